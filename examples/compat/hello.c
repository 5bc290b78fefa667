/* hello: an unchanged C program for PCCL 1.0: peers average numbers, and survive a peer's death.
 *
 *     cc examples/compat/hello.c $(pccl flags --compat) -o hello
 *     pccl run -n 3 --restarts 1 -- ./hello 200 1@50
 *
 * Arguments: the number of steps; RANK@STEP (optional): the process with this RANK kills itself in
 * this step, and joins again when `pccl run` has restarted it; the number of peers that a step
 * needs (default 2): with fewer, peers wait. compat/include/pccl.h has the names of PCCL 1.0;
 * docs/guides/MIGRATING.md lists the differences from PCCL 1.0.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pccl.h>

enum { COUNT = 1024 };

static void check(pcclResult_t result, const char *what) {
  if (result == pcclSuccess) return;
  fprintf(stderr, "hello: %s: %d: %s\n", what, (int)result, pccl_last_error());
  exit(1);
}

static const char *variable(const char *name) {
  const char *text = getenv(name);
  return text ? text : "0";
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: pccl run -n 2 -- ./hello STEPS [RANK@STEP [PEERS]]\n");
    return 2;
  }
  const uint64_t steps = strtoull(argv[1], NULL, 10);
  const int needed = argc > 3 ? atoi(argv[3]) : 2;
  const char *rank = variable("RANK");
  const char *at = argc > 2 ? strchr(argv[2], '@') : NULL;
  const size_t length = at ? (size_t)(at - argv[2]) : 0;
  const int dies = at && strlen(rank) == length && !strncmp(argv[2], rank, length) &&
                   !strcmp(variable("PCCL_RESTARTS"), "0");

  check(pcclInit(), "init");
  pcclCommCreateParams_t params = {0};
  params.master_address.inet.protocol = inetIPv4;
  params.master_address.inet.ipv4 = (ccoip_ipv4_address_t){{127, 0, 0, 1}};
  params.master_address.port = CCOIP_PROTOCOL_PORT_MASTER;
  pcclComm_t *communicator = NULL;
  check(pcclCreateCommunicator(&params, &communicator), "create");
  check(pcclConnect(communicator), "connect");

  float weights[COUNT] = {0}, gradients[COUNT];
  pcclTensorInfo_t infos[] = {{"weights", weights, COUNT, pcclFloat, pcclDeviceCpu, false}};
  pcclSharedState_t state = {0, 1, infos};
  int size = 0, known = 0;
  for (int is_new = 1;; is_new = 0) {
    /* The safe point: waiting newcomers enter here. A newcomer has passed it in pcclConnect. */
    pcclResult_t result;
    while (!is_new && (result = pcclUpdateTopology(communicator)) != pcclSuccess) {
      if (result == pcclMasterConnectionFailed) check(result, "update");
      printf("[%s] update: %s; once more\n", rank, pccl_last_error());
    }
    check(pcclGetAttribute(communicator, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE, &size), "size");
    if (size != known)
      printf("[%s] %d peers at revision %" PRIu64 "\n", rank, size, state.revision);
    fflush(stdout);
    known = size;
    if (size < needed) {
      nanosleep(&(struct timespec){0, 100000000}, NULL);
      continue;
    }
    check(pcclSynchronizeSharedState(communicator, &state,
                                     PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL),
          "sync");
    if (state.revision >= steps) break;
    if (dies && state.revision == strtoull(at + 1, NULL, 10)) raise(SIGKILL);

    for (size_t i = 0; i < COUNT; i++) gradients[i] = (float)(i % 7);
    pcclReduceDescriptor_t descriptor = {0};
    descriptor.count = COUNT;
    descriptor.op = pcclAvg;
    descriptor.src_descriptor.datatype = pcclFloat;
    pcclAsyncReduceOp_t reduction;
    pcclReduceInfo_t info;
    if (pcclAllReduceAsync(gradients, gradients, &descriptor, communicator, &reduction) ||
        pcclAwaitAsyncReduce(&reduction, &info)) {
      printf("[%s] reduction: %s; next turn\n", rank, pccl_last_error());
      continue;
    }
    for (size_t i = 0; i < COUNT; i++) weights[i] += gradients[i];
    state.revision++;
  }

  double sum = 0;
  for (size_t i = 0; i < COUNT; i++) sum += weights[i];
  printf("[%s] end at revision %" PRIu64 ", weights %.0f\n", rank, state.revision, sum);
  check(pcclDestroyCommunicator(communicator), "destroy");
  return 0;
}
