/* small_stack: a coordinator and a peer on a thread with the stack that docs/guides/C.md names. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "pccl.h"

static void check(pccl_status_t status, const char *what) {
  if (status == PCCL_OK) return;
  fprintf(stderr, "%s: %s\n", what, pccl_last_error());
  exit(1);
}

static char json[100000];

static void *use(void *nothing) {
  pccl_coordinator_t *coordinator = NULL;
  check(pccl_coordinator_create(NULL, &coordinator), "coordinator");
  const char *token = pccl_coordinator_token(coordinator);
  pccl_comm_options_t options = PCCL_COMM_OPTIONS_INIT;
  options.bind = "127.0.0.1:0";
  options.initial_world_size = 1;
  pccl_comm_t *comm = NULL;
  check(pccl_comm_create(token, &options, &comm), "connect");
  check(pccl_comm_admit(comm, 0, NULL), "admit");
  float values[8] = {0};
  check(pccl_all_reduce(comm, values, values, 8, PCCL_F32, NULL, NULL), "all_reduce");
  uint64_t shape = 8;
  pccl_tensor_t tensor = {"x", values, &shape, 1, PCCL_F32, 0, 0};
  pccl_state_options_t shared = PCCL_STATE_OPTIONS_INIT;
  shared.tensors = &tensor;
  shared.tensor_count = 1;
  pccl_state_t *state = NULL;
  check(pccl_state_create(comm, &shared, &state), "state");
  check(pccl_state_sync(state, NULL, NULL), "sync");
  pccl_state_destroy(state);
  size_t length = 0;
  check(pccl_run_status(token, 0, json, sizeof json, &length), "status");
  pccl_comm_destroy(comm);
  pccl_coordinator_destroy(coordinator);
  return nothing;
}

int main(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  if (pthread_attr_setstacksize(&attributes, 64 * 1024)) return 2;
  if (pthread_create(&thread, &attributes, use, NULL)) return 3;
  return pthread_join(thread, NULL);
}
