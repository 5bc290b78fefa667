/* jax_parts.c: the part of an all_reduce that one of several local devices carries. The number of
 * the part is an operand, because one program runs on all devices, and each part has a tag of its
 * own. Devices share XLA's threads, so a device must not block a thread that another device needs:
 * the handler begins the operation, and a new thread waits for the operation (jax_later.c).
 * frontends/pccl_jax/devices.py cuts a whole into parts. */
#include "jax_handlers.h"

#include <stdlib.h>

/* A part of an all_reduce in flight. */
typedef struct part {
  later_t later; /* first member: the thread gets only a later_t */
  pccl_work_t *work;
  uint64_t since;
  void *pin;
} part_t;

static XLA_FFI_Error *end(later_t *later) {
  part_t *part = (part_t *)later;
  XLA_FFI_Error *error = wait_for(&later->now, part->work, part->since);
  pccl_work_destroy(part->work);
  hooks.release(part->pin);
  free(part);
  return error;
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
    return fail(now, PCCL_INVALID_ARGUMENT, "psum: no such dtype here");
  part->since = hooks.withdrawals();
  pccl_status_t status = pccl_all_reduce_async(now->comm, send->data, recv->data,
                                               elements_of(send), dtype, &options, &part->work);
  return status == PCCL_OK ? NULL : fail(now, status, "%s", pccl_last_error());
}

static XLA_FFI_Error *run_part(now_t *now) {
  const operands_t *given = now->given;
  if (given->call->kind != PCCL_ALL_REDUCE || given->arg_count != 2 || given->ret_count != 1 ||
      given->args[0]->dtype != XLA_FFI_DataType_U32 || elements_of(given->args[0]) != 1)
    return fail(now, PCCL_INVALID_ARGUMENT,
                "psum: the shapes of the program do not fit its call, compile it again");
  part_t *part = calloc(1, sizeof *part);
  if (part == NULL) return fail(now, PCCL_OUT_OF_MEMORY, "psum: no memory");
  XLA_FFI_Error *error = begin_part(now, part);
  if (error != NULL) {
    free(part);
    return error;
  }
  part->pin = now->pin;
  now->pin = NULL;
  return leave_to_thread(now, &part->later, end);
}

EXPORT XLA_FFI_Error *pccl_jax_part(XLA_FFI_CallFrame *frame) {
  return with_communicator(frame, run_part);
}
