/* price: two peers and their coordinator in this process, for each of the libraries that are named,
 * and calls of pccl_all_reduce between them (f32, average). Purpose and meaning: bench/price.py.
 *
 * Usage: price BYTES BLOCKS CALLS LIBRARY...
 *
 * The libraries take turns, block by block, CALLS calls in each, so that other work of the machine
 * meets all of them alike. A line for each block and library: its place in the arguments,
 * nanoseconds of a call, and nanoseconds of processor time of all threads.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "pccl.h"

enum { PEERS = 2, LIBRARIES_MAX = 8 };

/* The functions of one library: each is loaded for itself. */
struct library {
  __typeof__(pccl_coordinator_create) *coordinator_create;
  __typeof__(pccl_coordinator_token) *coordinator_token;
  __typeof__(pccl_coordinator_destroy) *coordinator_destroy;
  __typeof__(pccl_comm_create) *comm_create;
  __typeof__(pccl_comm_admit) *comm_admit;
  __typeof__(pccl_comm_destroy) *comm_destroy;
  __typeof__(pccl_all_reduce) *all_reduce;
  __typeof__(pccl_last_error) *last_error;
};

struct peer {
  struct library *library;
  const char *token;
  uint64_t count;
  float *sent, *received;
  pccl_comm_t *comm;
};

struct world {
  struct library library;
  pccl_coordinator_t *coordinator;
  struct peer peers[PEERS];
};

/* The work of the second peer's thread; NULL ends it. */
static struct peer *other;
static uint64_t calls;
static pthread_barrier_t gate;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "price: %s: %s\n", what, why);
  exit(1);
}

static void check(struct library *library, pccl_status_t status, const char *what) {
  if (status != PCCL_OK) fail(what, library->last_error());
}

static void *symbol(void *handle, const char *name) {
  void *found = dlsym(handle, name);
  if (found == NULL) fail(name, dlerror());
  return found;
}

static void load(struct library *library, const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) fail(path, dlerror());
  library->coordinator_create = symbol(handle, "pccl_coordinator_create");
  library->coordinator_token = symbol(handle, "pccl_coordinator_token");
  library->coordinator_destroy = symbol(handle, "pccl_coordinator_destroy");
  library->comm_create = symbol(handle, "pccl_comm_create");
  library->comm_admit = symbol(handle, "pccl_comm_admit");
  library->comm_destroy = symbol(handle, "pccl_comm_destroy");
  library->all_reduce = symbol(handle, "pccl_all_reduce");
  library->last_error = symbol(handle, "pccl_last_error");
}

static void join(struct peer *peer) {
  struct library *library = peer->library;
  pccl_comm_options_t options = PCCL_COMM_OPTIONS_INIT;
  options.initial_world_size = PEERS;
  check(library, library->comm_create(peer->token, &options, &peer->comm), "connect");
  pccl_admission_t admission = PCCL_ADMISSION_INIT;
  check(library, library->comm_admit(peer->comm, 0, &admission), "admit");
}

static void call(struct peer *peer) {
  pccl_collective_options_t options = PCCL_COLLECTIVE_OPTIONS_INIT;
  options.op = PCCL_AVG;
  for (uint64_t i = 0; i < calls; i++) {
    check(peer->library,
          peer->library->all_reduce(peer->comm, peer->sent, peer->received, peer->count, PCCL_F32,
                                    &options, NULL),
          "all_reduce");
  }
}

/* The second peer of every world. */
static void *follow(void *unused) {
  (void)unused;
  for (;;) {
    pthread_barrier_wait(&gate);
    if (other == NULL) return NULL;
    if (other->comm == NULL) join(other); else call(other);
    pthread_barrier_wait(&gate);
  }
}

static uint64_t nanoseconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void with_both(struct world *world, void (*step)(struct peer *)) {
  other = &world->peers[1];
  pthread_barrier_wait(&gate);
  step(&world->peers[0]);
  pthread_barrier_wait(&gate);
}

static void begin(struct world *world, const char *path, uint64_t bytes) {
  struct library *library = &world->library;
  load(library, path);
  pccl_coordinator_options_t options = PCCL_COORDINATOR_OPTIONS_INIT;
  check(library, library->coordinator_create(&options, &world->coordinator), "coordinator");
  for (int i = 0; i < PEERS; i++) {
    struct peer *peer = &world->peers[i];
    peer->library = library;
    peer->token = library->coordinator_token(world->coordinator);
    peer->count = bytes / sizeof(float);
    peer->sent = aligned_alloc(64, (bytes + 63) / 64 * 64);
    peer->received = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (peer->sent == NULL || peer->received == NULL) fail("buffers", "out of memory");
    for (uint64_t j = 0; j < peer->count; j++) peer->sent[j] = (float)(j % 1000 + (uint64_t)i);
  }
  with_both(world, join);
}

/* The average of j and j + 1. */
static void verify(const struct peer *peer) {
  for (uint64_t j = 0; j < peer->count; j++)
    if (peer->received[j] != (float)(j % 1000) + 0.5f) fail("all_reduce", "the result is wrong");
}

static void end(struct world *world) {
  for (int i = 0; i < PEERS; i++) {
    world->library.comm_destroy(world->peers[i].comm);
    free(world->peers[i].sent);
    free(world->peers[i].received);
  }
  world->library.coordinator_destroy(world->coordinator);
}

int main(int argc, char **argv) {
  int libraries = argc - 4;
  if (libraries < 1 || libraries > LIBRARIES_MAX)
    fail("usage", "price BYTES BLOCKS CALLS LIBRARY...");
  uint64_t bytes = strtoull(argv[1], NULL, 10), blocks = strtoull(argv[2], NULL, 10);
  uint64_t calls_each = strtoull(argv[3], NULL, 10);

  static struct world worlds[LIBRARIES_MAX];
  pthread_t thread;
  pthread_barrier_init(&gate, NULL, 2);
  if (pthread_create(&thread, NULL, follow, NULL) != 0) fail("thread", "none is left");
  for (int i = 0; i < libraries; i++) begin(&worlds[i], argv[4 + i], bytes);

  for (uint64_t block = 0; block < blocks; block++)
    for (int i = 0; i < libraries; i++) {
      /* Each is the first of a round as often as any other. */
      int turn = (int)((block + (uint64_t)i) % (uint64_t)libraries);
      calls = calls_each;
      uint64_t began = nanoseconds(CLOCK_MONOTONIC), used = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
      with_both(&worlds[turn], call);
      uint64_t took = nanoseconds(CLOCK_MONOTONIC) - began;
      used = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - used;
      printf("%d %" PRIu64 " %" PRIu64 "\n", turn, took / calls, used / calls);
      for (int j = 0; j < PEERS; j++) verify(&worlds[turn].peers[j]);
    }

  other = NULL;
  pthread_barrier_wait(&gate);
  pthread_join(thread, NULL);
  for (int i = 0; i < libraries; i++) end(&worlds[i]);
  return 0;
}
