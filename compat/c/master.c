/* master.c: the master of PCCL 1.0: a coordinator at the address that the program gives, with
 * options from the environment. */
#include "compat.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct pcclMasterInstanceState_t {
  char address[ADDRESS_BYTES_MAX];
  pccl_coordinator_t *coordinator; /* NULL before pcclRunMaster, and after the end of the run */
  /* pcclInterruptMaster, perhaps in a signal handler, reads is_started and sets is_interrupted. */
  int is_started;
  int is_interrupted;
};

pcclResult_t write_address(const ccoip_socket_address_t *from, char text[ADDRESS_BYTES_MAX]) {
  char host[INET6_ADDRSTRLEN] = "";
  switch (from->inet.protocol) {
    case inetIPv4:
      inet_ntop(AF_INET, from->inet.ipv4.data, host, sizeof host);
      snprintf(text, ADDRESS_BYTES_MAX, "%s:%u", host, from->port);
      return pcclSuccess;
    case inetIPv6:
      inet_ntop(AF_INET6, from->inet.ipv6.data, host, sizeof host);
      snprintf(text, ADDRESS_BYTES_MAX, "[%s]:%u", host, from->port);
      return pcclSuccess;
  }
  return refuse(pcclInvalidArgument, "there is no ccoip_inet_protocol_t %u",
                (unsigned)from->inet.protocol);
}

static pcclResult_t no_run(void) { return refuse(pcclInvalidUsage, "the master does not run"); }

static void end(pcclMasterInstance_t *master) {
  pccl_coordinator_destroy(master->coordinator);
  master->coordinator = NULL;
}

pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address,
                              pcclMasterInstance_t **p_master_handle_out) {
  if (p_master_handle_out == NULL) return is_null("p_master_handle_out");
  pcclMasterInstance_t *master = calloc(1, sizeof *master);
  if (master == NULL) return out_of_memory();
  pcclResult_t result = write_address(&listen_address, master->address);
  if (result == pcclSuccess) *p_master_handle_out = master;
  else free(master);
  return result;
}

pcclResult_t pcclRunMaster(pcclMasterInstance_t *master) {
  if (master == NULL) return is_null("master_instance");
  if (master->is_started) return refuse(pcclInvalidUsage, "the master runs, or has run");
  pccl_coordinator_options_t options;
  uint8_t run_id[16];
  TRY(read_master_options(&options, run_id));
  options.bind = master->address;
  pccl_status_t status = pccl_coordinator_create(&options, &master->coordinator);
  if (status == PCCL_OK) __atomic_store_n(&master->is_started, 1, __ATOMIC_RELEASE);
  return result_of(status, pcclInternalError);
}

/* A signal handler may call pcclInterruptMaster. */
pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master) {
  if (master == NULL) return is_null("master_instance");
  if (!__atomic_load_n(&master->is_started, __ATOMIC_ACQUIRE)) return no_run();
  __atomic_store_n(&master->is_interrupted, 1, __ATOMIC_RELEASE);
  return pcclSuccess;
}

/* Polls is_interrupted every 50 ms; a signal on this thread ends the pause at once. */
pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master) {
  if (master == NULL) return is_null("master_instance");
  if (master->coordinator == NULL) return no_run();
  const struct timespec pause = {0, 50000000};
  while (!__atomic_load_n(&master->is_interrupted, __ATOMIC_ACQUIRE)) nanosleep(&pause, NULL);
  end(master);
  return pcclSuccess;
}

pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master) {
  if (master == NULL) return is_null("master_instance");
  end(master);
  free(master);
  return pcclSuccess;
}
