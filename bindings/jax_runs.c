/* jax_runs.c: counts the calls of each run of a program. In a loop all calls are one instruction of
 * XLA, so an error says the number of the call since the run began, by XLA's id of the run. */
#include "jax_handlers.h"

#include <pthread.h>

/* A run is forgotten when RUNS_KEPT other runs have made calls since its last call; fewer threads
 * than that run programs at once. */
enum { RUNS_KEPT = 64 };

typedef struct run {
  int64_t id;
  uint64_t handle, calls, last; /* `last`: number of the last call among all runs; 0: free place */
} run_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static run_t runs[RUNS_KEPT];
static uint64_t last_call;

uint64_t count_call(const now_t *now) {
  XLA_FFI_RunId_Get_Args args = {.struct_size = XLA_FFI_RunId_Get_Args_STRUCT_SIZE,
                                 .ctx = now->frame->ctx};
  XLA_FFI_Error *error = now->frame->api->XLA_FFI_RunId_Get(&args);
  if (error != NULL) {
    destroy_error(now->frame->api, error);
    return 0;
  }
  pthread_mutex_lock(&mutex);
  run_t *found = NULL, *oldest = &runs[0];
  for (run_t *each = runs; each < runs + RUNS_KEPT && found == NULL; each += 1) {
    if (each->last != 0 && each->id == args.run_id && each->handle == now->given->handle)
      found = each;
    if (each->last < oldest->last) oldest = each;
  }
  if (found == NULL) {
    found = oldest;
    *found = (run_t){.id = args.run_id, .handle = now->given->handle};
  }
  found->calls += 1;
  found->last = ++last_call;
  uint64_t calls = found->calls;
  pthread_mutex_unlock(&mutex);
  return calls;
}
