/* jax_later.c: calls that end after their handler has returned. The handler gives XLA a future, and
 * a thread waits for the operation and completes the future. So the call blocks no thread of XLA,
 * on which the rest of the program may depend. XLA keeps the memory of a call until the call's
 * future is complete, also in a program that fails. jax_parts.c and jax_async.c have such calls. */
#include "jax_handlers.h"

#include <pthread.h>
#include <stdlib.h>

/* Copies into `later` a frame with the handle and the words of the call, which is all that an error
 * needs, and the operands without arrays. The copies live as long as the call. */
static void keep_call(const now_t *now, later_t *later) {
  later->call = *now->given->call;
  /* The copied frame has no operands and results for these fields. */
  later->call.tells_origin = later->call.tells_outcome = later->call.feeds_back = 0;
  later->call.counts_given = 0;
  later->words[0] = (uint32_t)now->given->handle;
  later->words[1] = (uint32_t)(now->given->handle >> 32);
  later->handle_dim = 2;
  later->handle = (XLA_FFI_Buffer){.dtype = XLA_FFI_DataType_U32, .data = later->words, .rank = 1,
                                   .dims = &later->handle_dim};
  later->args[0] = &later->handle;
  later->call_words = (XLA_FFI_Array){.dtype = XLA_FFI_DataType_S64, .data = &later->call,
                                      .size = sizeof later->call / sizeof(int64_t)};
  later->attrs[0] = &later->call_words;
  later->attr_type = XLA_FFI_AttrType_ARRAY;
  later->frame = *now->frame;
  later->frame.args.size = 1;
  later->frame.args.args = later->args;
  later->frame.rets.size = 0;
  later->frame.attrs.size = 1;
  later->frame.attrs.types = &later->attr_type;
  later->frame.attrs.attrs = later->attrs;
  later->given = (operands_t){.call = &later->call, .handle = now->given->handle,
                              .outcome = now->given->outcome};
  later->now = *now;
  later->now.frame = &later->frame;
  later->now.given = &later->given;
}

static XLA_FFI_Error *complete(XLA_FFI_Future *future, const XLA_FFI_Api *api,
                               XLA_FFI_Error *error) {
  if (error != NULL) {
    XLA_FFI_Future_SetError_Args args = {.struct_size = XLA_FFI_Future_SetError_Args_STRUCT_SIZE,
                                         .future = future, .error = error};
    return api->XLA_FFI_Future_SetError(&args);
  }
  XLA_FFI_Future_SetAvailable_Args args = {
      .struct_size = XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, .future = future};
  return api->XLA_FFI_Future_SetAvailable(&args);
}

/* The thread of a call: ends the call and completes its future, upon which XLA may run the rest of
 * the program here. */
static void *run(void *context) {
  later_t *later = context;
  const XLA_FFI_Api *api = later->frame.api;
  XLA_FFI_Future *future = later->future;
  fenv_t floats = later->floats;
  XLA_FFI_Error *error = later->end(later);
  fesetenv(&floats);
  if (complete(future, api, error) != NULL) abort(); /* only an invalid future fails */
  return NULL;
}

/* If no thread can be made, the call ends here, on the calling thread. */
XLA_FFI_Error *leave_to_thread(now_t *now, later_t *later, XLA_FFI_Error *(*end)(later_t *later)) {
  const XLA_FFI_Api *api = now->frame->api;
  keep_call(now, later);
  fegetenv(&later->floats);
  later->end = end;
  XLA_FFI_Future_Create_Args made = {.struct_size = XLA_FFI_Future_Create_Args_STRUCT_SIZE};
  XLA_FFI_Error *error = api->XLA_FFI_Future_Create(&made);
  later->future = made.future;
  pthread_t thread;
  if (error == NULL && pthread_create(&thread, NULL, run, later) == 0) {
    pthread_detach(thread);
    now->frame->future = made.future;
    return NULL;
  }
  XLA_FFI_Error *ended = end(later);
  if (error != NULL) { /* no future could be made: the call has ended here */
    destroy_error(api, error);
    return ended;
  }
  now->frame->future = made.future;
  return complete(made.future, api, ended);
}
