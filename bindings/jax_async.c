/* jax_async.c: an all_reduce that a compiled program begins and finishes later: two handlers, and
 * between them a table of the operations that have begun. XLA may free, move or reuse the memory of
 * a call as soon as its handler has returned: a failure elsewhere ends a program between the two
 * handlers, and XLA may insert a copy and use the first memory for other data. So an operation here
 * works in memory of its own (jax_memory.c): the first handler copies operands into this memory,
 * and the second handler copies results out of it. This memory has room for operands and results,
 * so the library need not save operands. No thread of XLA waits for a transfer: the second handler
 * leaves the wait to a thread. frontends/pccl_jax/collectives.py has the two calls; errors.py tells
 * about operations that no call has finished. */
#include "jax_handlers.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One all_reduce, from the call that begins it to the call that finishes it. */
typedef struct begun {
  later_t later; /* first member: the finishing thread gets only a later_t */
  struct begun *next;
  uint64_t ticket, handle, since, bytes, call_number;
  int64_t tag, count;
  uint32_t world_size;
  pccl_comm_t *comm;
  void *pin;
  pccl_work_t *work;
  int is_told; /* reported as unfinished: another operation may take its tag */
  block_t *block;
  void **results; /* outputs of the finishing call, in memory behind `arrays` */
  pccl_array_t arrays[];
} begun_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static begun_t *all;
static uint64_t last_ticket;

static uint64_t bytes_of(const pccl_array_t *array) {
  return (array->count * pccl_dtype_size(array->dtype) + MEMORY_ALIGNED - 1) /
         MEMORY_ALIGNED * MEMORY_ALIGNED;
}

/* Withdraws an operation that still runs, and frees it. Never call this under the mutex, as it may
 * close a communicator. */
static void drop(begun_t *begun) {
  pccl_work_destroy(begun->work);
  memory_give(begun->block);
  if (begun->pin != NULL) hooks.release(begun->pin);
  free(begun);
}

/* ---- Beginning ---------------------------------------------------------------------------- */

static begun_t *make(int64_t count) {
  begun_t *begun = calloc(
      1, sizeof *begun + (size_t)count * (sizeof *begun->arrays + sizeof *begun->results));
  if (begun == NULL) return NULL;
  begun->count = count;
  begun->results = (void **)&begun->arrays[count];
  return begun;
}

static XLA_FFI_Error *copy_in(const now_t *now, begun_t *begun) {
  const operands_t *given = now->given;
  for (int64_t index = 0; index < begun->count; index += 1) {
    pccl_array_t *array = &begun->arrays[index];
    if (!dtype_of(given->args[index]->dtype, &array->dtype))
      return fail(now, PCCL_INVALID_ARGUMENT, "all_reduce_start: no such dtype here");
    array->count = elements_of(given->args[index]);
    begun->bytes += bytes_of(array);
  }
  begun->block = memory_take(given->handle, 2 * begun->bytes);
  if (begun->block == NULL)
    return fail(now, PCCL_OUT_OF_MEMORY,
                "all_reduce_start: no memory for %" PRIu64 " bytes", 2 * begun->bytes);
  uint8_t *at = begun->block->memory;
  for (int64_t index = 0; index < begun->count; index += 1) {
    pccl_array_t *array = &begun->arrays[index];
    memcpy(at, given->args[index]->data, array->count * pccl_dtype_size(array->dtype));
    array->send_buffer = at;
    array->recv_buffer = at + begun->bytes;
    at += bytes_of(array);
  }
  return NULL;
}

/* Whether the tag of the call has an operation that was not reported as unfinished yet; marks it as
 * reported. Operations of the tag that were reported before move from the table into `gone`. */
static int is_tag_taken(const now_t *now, begun_t **gone) {
  int is_taken = 0;
  pthread_mutex_lock(&mutex);
  for (begun_t **at = &all; *at != NULL;) {
    begun_t *each = *at;
    int is_of_tag = each->handle == now->given->handle && each->tag == now->given->call->tag;
    if (is_of_tag && each->is_told) {
      *at = each->next;
      each->next = *gone;
      *gone = each;
      continue;
    }
    if (is_of_tag) each->is_told = is_taken = 1;
    at = &each->next;
  }
  pthread_mutex_unlock(&mutex);
  return is_taken;
}

/* Drops the operations of a list, after waiting for those that still run: to withdraw an operation
 * would take this peer out of the group. */
static void drop_all(begun_t *first) {
  while (first != NULL) {
    begun_t *next = first->next;
    wait_until_finished(first->work, first->since);
    drop(first);
    first = next;
  }
}

static int is_ticket(const XLA_FFI_Buffer *buffer) {
  return buffer->dtype == XLA_FFI_DataType_U32 && elements_of(buffer) == 2;
}

static XLA_FFI_Error *wrong_program(const now_t *now) {
  return fail(now, PCCL_INVALID_ARGUMENT,
              "all_reduce_start: the shapes of the program do not fit its call, compile it again");
}

static void keep(now_t *now, begun_t *begun) {
  begun->handle = now->given->handle;
  begun->tag = now->given->call->tag;
  begun->comm = now->comm;
  begun->world_size = now->world_size;
  begun->call_number = now->call_number;
  begun->pin = now->pin;
  now->pin = NULL;
  pthread_mutex_lock(&mutex);
  begun->ticket = ++last_ticket;
  begun->next = all;
  all = begun;
  pthread_mutex_unlock(&mutex);
}

static XLA_FFI_Error *begin(now_t *now) {
  const operands_t *given = now->given;
  if (given->call->kind != PCCL_ALL_REDUCE || given->arg_count < 1 || given->ret_count != 1 ||
      !is_ticket(given->rets[0]))
    return wrong_program(now);
  now->call_number = count_call(now);
  XLA_FFI_Error *error = find_place(now);
  if (error != NULL) return error;
  begun_t *gone = NULL;
  int is_taken = is_tag_taken(now, &gone);
  drop_all(gone);
  if (is_taken)
    return fail(now, PCCL_INVALID_USAGE,
                "all_reduce_start: tag %" PRId64 " has an operation that no all_reduce_done has "
                "finished: give each one that is in flight a tag of its own, and finish all. "
                "Nothing was sent", given->call->tag);
  begun_t *begun = make(given->arg_count);
  if (begun == NULL) return fail(now, PCCL_OUT_OF_MEMORY, "all_reduce_start: no memory");
  error = copy_in(now, begun);
  if (error == NULL) {
    pccl_collective_options_t options = options_of(given->call);
    begun->since = hooks.withdrawals();
    pccl_status_t status =
        pccl_coalesced_async(now->comm, PCCL_ALL_REDUCE, begun->arrays, (uint64_t)begun->count, 0,
                             &options, &begun->work);
    if (status != PCCL_OK) error = fail(now, status, "%s", pccl_last_error());
  }
  if (error != NULL) {
    drop(begun);
    return error;
  }
  keep(now, begun);
  uint32_t *ticket = given->rets[0]->data;
  ticket[0] = (uint32_t)begun->ticket;
  ticket[1] = (uint32_t)(begun->ticket >> 32);
  return NULL;
}

/* ---- Finishing ---------------------------------------------------------------------------- */

static int fit(const now_t *now, const begun_t *begun) {
  const operands_t *given = now->given;
  int is_fit = given->ret_count == begun->count;
  for (int64_t index = 0; is_fit && index < begun->count; index += 1) {
    pccl_dtype_t dtype;
    const XLA_FFI_Buffer *result = given->rets[index];
    is_fit = dtype_of(result->dtype, &dtype) && dtype == begun->arrays[index].dtype &&
             elements_of(result) == begun->arrays[index].count;
  }
  return is_fit;
}

/* Finds the operation of `ticket`, and takes it out of the table if it fits the call. */
static begun_t *take(const now_t *now, uint64_t ticket, int *is_fit) {
  begun_t *found = NULL;
  pthread_mutex_lock(&mutex);
  for (begun_t **at = &all; *at != NULL; at = &(*at)->next) {
    if ((*at)->ticket != ticket) continue;
    found = *at;
    *is_fit = found->handle == now->given->handle && fit(now, found);
    if (*is_fit) *at = found->next;
    break;
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

static XLA_FFI_Error *end(const now_t *now, begun_t *begun) {
  XLA_FFI_Error *error = wait_for(now, begun->work, begun->since);
  if (error == NULL) error = tell_outcome(now, begun->work);
  for (int64_t index = 0; error == NULL && index < begun->count; index += 1) {
    const pccl_array_t *array = &begun->arrays[index];
    size_t bytes = array->count * pccl_dtype_size(array->dtype);
    memcpy(begun->results[index], array->recv_buffer, bytes);
  }
  return error;
}

static XLA_FFI_Error *end_later(later_t *later) {
  begun_t *begun = (begun_t *)later;
  XLA_FFI_Error *error = end(&later->now, begun);
  drop(begun);
  return error;
}

static XLA_FFI_Error *finish(now_t *now) {
  const operands_t *given = now->given;
  /* Operands behind the ticket only make XLA compute other values first. */
  if (given->arg_count < 1 || !is_ticket(given->args[0])) return wrong_program(now);
  const uint32_t *words = given->args[0]->data;
  int is_fit = 0;
  begun_t *begun = take(now, words[0] | (uint64_t)words[1] << 32, &is_fit);
  if (begun == NULL)
    return fail(now, PCCL_INVALID_USAGE,
                "all_reduce_done: this handle has been finished before, or comes too late: its tag "
                "has begun another operation. Each all_reduce_start has one all_reduce_done, in "
                "one program");
  if (!is_fit)
    return fail(now, PCCL_INVALID_ARGUMENT,
                "all_reduce_done: the handle is that of another operation");
  now->world_size = begun->world_size;
  now->call_number = begun->call_number;
  for (int64_t index = 0; index < begun->count; index += 1) {
    begun->results[index] = given->rets[index]->data;
    memory_use_large_pages(begun->results[index], begun->arrays[index].count *
                                                      pccl_dtype_size(begun->arrays[index].dtype));
  }
  if (!is_main_thread() && pccl_work_wait(begun->work, 0) == PCCL_TIMEOUT)
    return leave_to_thread(now, &begun->later, end_later);
  XLA_FFI_Error *error = end(now, begun);
  drop(begun);
  return error;
}

EXPORT XLA_FFI_Error *pccl_jax_begin(XLA_FFI_CallFrame *frame) {
  return with_communicator(frame, begin);
}

EXPORT XLA_FFI_Error *pccl_jax_finish(XLA_FFI_CallFrame *frame) {
  return with_communicator(frame, finish);
}

/* Writes a sentence about one unfinished operation that was not reported yet; returns 0 if there is
 * none. Drops reported operations of closed communicators, and frees idle memory. */
EXPORT int pccl_jax_unfinished(char *text, size_t capacity) {
  int is_told = 0;
  memory_give_back_idle();
  begun_t *gone = NULL;
  pthread_mutex_lock(&mutex);
  for (begun_t **at = &all; *at != NULL;) {
    begun_t *each = *at;
    pccl_comm_info_t info = PCCL_COMM_INFO_INIT;
    if (!each->is_told && !is_told) {
      snprintf(text, capacity,
               "all_reduce_start with tag %" PRId64 ", %" PRIu64 " bytes: its program has ended, "
               "and no all_reduce_done has taken its result. The operation goes on for the other "
               "members; here its result is dropped",
               each->tag, each->bytes);
      each->is_told = is_told = 1;
    }
    if (each->is_told && pccl_comm_info(each->comm, &info) != PCCL_OK) {
      *at = each->next;
      each->next = gone;
      gone = each;
    } else {
      at = &each->next;
    }
  }
  pthread_mutex_unlock(&mutex);
  drop_all(gone);
  return is_told;
}
