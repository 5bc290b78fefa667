/* jax_parts.c: the part of an all_reduce that one of several local devices carries. The number of
 * the part is data, as one program is for all devices, and each part has a tag of its own. Devices
 * share XLA's threads, so none may keep a thread that another needs: the handler begins the
 * operation and gives XLA a future, which a thread completes. XLA keeps the memory of a call
 * until its future is complete, also in a program that fails. frontends/pccl_jax/devices.py makes
 * parts of a whole. */
#include "jax_handlers.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A part in flight, with all that an error of it needs of the call. */
typedef struct part {
  pccl_work_t *work;
  uint64_t since;
  void *pin;
  XLA_FFI_Future *future;
  fenv_t floats; /* of XLA's thread: how it rounds, and what it does with small numbers */
  XLA_FFI_CallFrame frame;
  XLA_FFI_Buffer handle;
  int64_t handle_dim;
  uint32_t words[2];
  void *args[1], *attrs[1];
  XLA_FFI_AttrType attr_type;
  XLA_FFI_Array call_words;
  call_t call;
} part_t;

/* A frame that holds the handle and the words, and lives as long as the part. */
static void keep_frame(const now_t *now, part_t *part) {
  const uint64_t handle = now->given->handle;
  part->call = *now->given->call;
  part->words[0] = (uint32_t)handle;
  part->words[1] = (uint32_t)(handle >> 32);
  part->handle_dim = 2;
  part->handle = (XLA_FFI_Buffer){.dtype = XLA_FFI_DataType_U32, .data = part->words, .rank = 1,
                                  .dims = &part->handle_dim};
  part->args[0] = &part->handle;
  part->call_words = (XLA_FFI_Array){.dtype = XLA_FFI_DataType_S64, .data = &part->call,
                                     .size = sizeof part->call / sizeof(int64_t)};
  part->attrs[0] = &part->call_words;
  part->attr_type = XLA_FFI_AttrType_ARRAY;
  part->frame = *now->frame;
  part->frame.args.size = 1;
  part->frame.args.args = part->args;
  part->frame.rets.size = 0;
  part->frame.attrs.size = 1;
  part->frame.attrs.types = &part->attr_type;
  part->frame.attrs.attrs = part->attrs;
}

static XLA_FFI_Error *end(part_t *part) {
  pccl_status_t status = wait_until_finished(part->work, part->since);
  XLA_FFI_Error *error =
      status == PCCL_OK ? NULL : fail(&part->frame, status, "%s", pccl_last_error());
  pccl_work_destroy(part->work);
  hooks.release(part->pin);
  return error;
}

/* XLA may run the rest of the program on this thread. */
static void *run(void *context) {
  part_t *part = context;
  const XLA_FFI_Api *api = part->frame.api;
  XLA_FFI_Future *future = part->future;
  XLA_FFI_Error *error = end(part);
  fesetenv(&part->floats);
  free(part);
  if (error != NULL) {
    XLA_FFI_Future_SetError_Args args = {.struct_size = XLA_FFI_Future_SetError_Args_STRUCT_SIZE,
                                         .future = future, .error = error};
    error = api->XLA_FFI_Future_SetError(&args);
  } else {
    XLA_FFI_Future_SetAvailable_Args args = {
        .struct_size = XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, .future = future};
    error = api->XLA_FFI_Future_SetAvailable(&args);
  }
  if (error != NULL) abort(); /* only for a future that is none */
  return NULL;
}

/* Leaves the part to a thread; where there is none to be had, it waits here. */
static XLA_FFI_Error *leave_to_thread(now_t *now, part_t *part) {
  XLA_FFI_Future_Create_Args made = {.struct_size = XLA_FFI_Future_Create_Args_STRUCT_SIZE};
  XLA_FFI_Error *error = now->frame->api->XLA_FFI_Future_Create(&made);
  part->future = made.future;
  pthread_t thread;
  if (error == NULL && pthread_create(&thread, NULL, run, part) == 0) {
    pthread_detach(thread);
    now->frame->future = made.future;
    return NULL;
  }
  XLA_FFI_Error *ended = end(part);
  free(part);
  if (error != NULL) return error;
  if (ended == NULL) {
    XLA_FFI_Future_SetAvailable_Args args = {
        .struct_size = XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, .future = made.future};
    ended = now->frame->api->XLA_FFI_Future_SetAvailable(&args);
    now->frame->future = made.future;
  }
  return ended;
}

static XLA_FFI_Error *begin_part(now_t *now, part_t *part) {
  const operands_t *given = now->given;
  XLA_FFI_Error *error = find_place(now);
  if (error != NULL) return error;
  const XLA_FFI_Buffer *send = given->args[1], *recv = given->rets[0];
  pccl_collective_options_t options = options_of(given->call);
  options.tag += *(const uint32_t *)given->args[0]->data;
  pccl_dtype_t dtype;
  if (!dtype_of(send->dtype, &dtype) || send->dtype != recv->dtype ||
      elements_of(send) != elements_of(recv))
    return fail(now->frame, PCCL_INVALID_ARGUMENT, "psum: no such dtype here");
  part->since = hooks.withdrawals();
  pccl_status_t status = pccl_all_reduce_async(now->comm, send->data, recv->data,
                                               elements_of(send), dtype, &options, &part->work);
  return status == PCCL_OK ? NULL : fail(now->frame, status, "%s", pccl_last_error());
}

static XLA_FFI_Error *run_part(now_t *now) {
  const operands_t *given = now->given;
  if (given->call->kind != PCCL_ALL_REDUCE || given->arg_count != 2 || given->ret_count != 1 ||
      given->args[0]->dtype != XLA_FFI_DataType_U32 || elements_of(given->args[0]) != 1)
    return fail(now->frame, PCCL_INVALID_ARGUMENT,
                "psum: the shapes of the program do not fit its call, compile it again");
  part_t *part = calloc(1, sizeof *part);
  if (part == NULL) return fail(now->frame, PCCL_OUT_OF_MEMORY, "psum: no memory");
  XLA_FFI_Error *error = begin_part(now, part);
  if (error != NULL) {
    free(part);
    return error;
  }
  keep_frame(now, part);
  fegetenv(&part->floats);
  part->pin = now->pin;
  now->pin = NULL;
  return leave_to_thread(now, part);
}

EXPORT XLA_FFI_Error *pccl_jax_part(XLA_FFI_CallFrame *frame) {
  return with_communicator(frame, run_part);
}
