/* jax_memory.c: memory of operations that a program begins and finishes later (jax_async.c). Blocks
 * are used again, because fresh pages cost more than the copies into them. The bytes of kept and
 * used blocks together never exceed the most bytes that were in use at once. Blocks that were idle
 * for IDLE_NS, and blocks of a closed communicator, go back to the system; whenever memory is
 * taken, and at the end of programs, such blocks are looked for. */
#define _DEFAULT_SOURCE /* clock_gettime, madvise */

#include "jax_handlers.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define IDLE_NS (10 * 1000000000ull)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static block_t *kept; /* the block that was given back last comes first */
static uint64_t kept_bytes, used_bytes, used_bytes_max;

/* With large pages the kernel takes and clears 2 MiB at a time; 4 KiB at a time may take longer
 * than the collective. A result of a program often has fresh pages: the C library gives them to
 * each result above its largest threshold, and to smaller results if freed memory went back to the
 * system. Memory of at least LARGE_BYTES gets large pages, as in NumPy. */
#define LARGE_PAGE_BYTES (2ull << 20)
#define LARGE_BYTES (4ull << 20)

void memory_use_large_pages(void *memory, uint64_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes < LARGE_BYTES) return;
  uint64_t begin = ((uint64_t)(uintptr_t)memory + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES;
  uint64_t end = ((uint64_t)(uintptr_t)memory + bytes) / LARGE_PAGE_BYTES;
  madvise((void *)(uintptr_t)(begin * LARGE_PAGE_BYTES), (end - begin) * LARGE_PAGE_BYTES,
          MADV_HUGEPAGE); /* only advice: errors do not matter */
#else
  (void)memory, (void)bytes;
#endif
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void free_all(block_t *first) {
  while (first != NULL) {
    block_t *next = first->next;
    free(first->memory);
    free(first);
    first = next;
  }
}

static block_t *allocate(uint64_t bytes) {
  block_t *block = calloc(1, sizeof *block);
  if (block == NULL) return NULL;
  block->bytes = (bytes + MEMORY_ALIGNED - 1) / MEMORY_ALIGNED * MEMORY_ALIGNED;
  block->memory = aligned_alloc(MEMORY_ALIGNED, block->bytes);
  if (block->memory == NULL) {
    free(block);
    return NULL;
  }
  memory_use_large_pages(block->memory, block->bytes);
  return block;
}

/* Takes the smallest kept block that has room for `bytes` and is at most twice as large. Call it
 * under the mutex. */
static block_t *find_kept(uint64_t bytes) {
  block_t **best = NULL;
  for (block_t **at = &kept; *at != NULL; at = &(*at)->next) {
    if ((*at)->bytes < bytes || (*at)->bytes / 2 > bytes) continue;
    if (best == NULL || (*at)->bytes < (*best)->bytes) best = at;
  }
  if (best == NULL) return NULL;
  block_t *block = *best;
  *best = block->next;
  kept_bytes -= block->bytes;
  return block;
}

static int is_open(uint64_t handle) {
  void *pin = NULL;
  pccl_comm_t *comm = hooks.acquire(handle, &pin);
  if (comm == NULL) return 0;
  pccl_comm_info_t info = PCCL_COMM_INFO_INIT;
  int is_open = pccl_comm_info(comm, &info) == PCCL_OK;
  hooks.release(pin);
  return is_open;
}

enum { HANDLES_MAX = 16 };

/* Lists the handles of kept blocks, each once, at most HANDLES_MAX of them. */
static int find_handles(uint64_t *handles) {
  int count = 0;
  pthread_mutex_lock(&mutex);
  for (const block_t *each = kept; each != NULL && count < HANDLES_MAX; each = each->next) {
    int at = 0;
    while (at < count && handles[at] != each->handle) at += 1;
    if (at == count) handles[count++] = each->handle;
  }
  pthread_mutex_unlock(&mutex);
  return count;
}

/* Keeps only handles of closed communicators in `handles`. Not under the mutex, as releasing a
 * communicator may close it. */
static int find_closed(uint64_t *handles, int count) {
  int closed = 0;
  for (int at = 0; at < count; at += 1)
    if (!is_open(handles[at])) handles[closed++] = handles[at];
  return closed;
}

void memory_give_back_idle(void) {
  uint64_t closed[HANDLES_MAX];
  int count = find_closed(closed, find_handles(closed));
  block_t *gone = NULL;
  pthread_mutex_lock(&mutex);
  uint64_t now = now_ns(); /* not before any `since_ns` in the list */
  for (block_t **at = &kept; *at != NULL;) {
    block_t *each = *at;
    int is_gone = now - each->since_ns >= IDLE_NS;
    for (int number = 0; number < count; number += 1) is_gone |= closed[number] == each->handle;
    if (!is_gone) {
      at = &each->next;
      continue;
    }
    *at = each->next;
    kept_bytes -= each->bytes;
    each->next = gone;
    gone = each;
  }
  pthread_mutex_unlock(&mutex);
  free_all(gone);
}

block_t *memory_take(uint64_t handle, uint64_t bytes) {
  if (bytes == 0) bytes = 1;
  memory_give_back_idle();
  pthread_mutex_lock(&mutex);
  block_t *block = find_kept(bytes);
  if (block == NULL) block = allocate(bytes);
  if (block != NULL) {
    block->handle = handle;
    used_bytes += block->bytes;
    if (used_bytes > used_bytes_max) used_bytes_max = used_bytes;
  }
  pthread_mutex_unlock(&mutex);
  return block;
}

void memory_give(block_t *block) {
  if (block == NULL) return;
  block->since_ns = now_ns();
  pthread_mutex_lock(&mutex);
  used_bytes -= block->bytes;
  block->next = kept;
  kept = block;
  kept_bytes += block->bytes;
  block_t *gone = NULL;
  while (kept_bytes + used_bytes > used_bytes_max) { /* frees blocks that were idle longest */
    block_t **last = &kept;
    while ((*last)->next != NULL) last = &(*last)->next;
    block_t *each = *last;
    *last = NULL;
    kept_bytes -= each->bytes;
    each->next = gone;
    gone = each;
  }
  pthread_mutex_unlock(&mutex);
  free_all(gone);
}

EXPORT void pccl_jax_memory(uint64_t *kept_now, uint64_t *used_now) {
  pthread_mutex_lock(&mutex);
  *kept_now = kept_bytes;
  *used_now = used_bytes;
  pthread_mutex_unlock(&mutex);
}
