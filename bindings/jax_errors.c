/* jax_errors.c: errors of the handlers for JAX. An error of XLA has a code and a text, to which XLA
 * and JAX add words. So each error has a number in its text, and a table has the status and the
 * sentence of the last errors, of which frontends/pccl_jax/errors.py makes the exception. */
#include "jax_handlers.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERRORS_KEPT = 256, TEXT_BYTES_MAX = 4096 };

typedef struct error {
  uint64_t number;
  pccl_status_t status;
  int64_t kind;
  uint64_t form, handle;
  char text[TEXT_BYTES_MAX];
} error_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static error_t errors[ERRORS_KEPT];
static uint64_t last_number;

static XLA_FFI_Error_Code code_of(pccl_status_t status) {
  switch (status) {
    case PCCL_INVALID_ARGUMENT:
    case PCCL_MISMATCH: return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    case PCCL_INVALID_USAGE:
    case PCCL_EXPELLED: return XLA_FFI_Error_Code_FAILED_PRECONDITION;
    case PCCL_OUT_OF_MEMORY: return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    case PCCL_ABORTED: return XLA_FFI_Error_Code_ABORTED;
    case PCCL_DEADLINE_EXCEEDED: return XLA_FFI_Error_Code_DEADLINE_EXCEEDED;
    case PCCL_CANCELLED: return XLA_FFI_Error_Code_CANCELLED;
    case PCCL_COORDINATOR_UNREACHABLE:
    case PCCL_TOO_FEW_PEERS: return XLA_FFI_Error_Code_UNAVAILABLE;
    default: return XLA_FFI_Error_Code_UNKNOWN;
  }
}

/* Stores in `kept` which call has failed, if the operands can be read. */
static void describe(const XLA_FFI_CallFrame *frame, error_t *kept) {
  operands_t given;
  int is_read = read_operands(frame, &given) == NULL;
  kept->kind = is_read ? given.call->kind : -1;
  kept->form = is_read ? (uint64_t)given.call->form : 0;
  kept->handle = is_read ? given.handle : 0;
}

/* Copies the sentence before any other function of the library is called, which may replace the
 * last error. */
XLA_FFI_Error *fail(const now_t *now, pccl_status_t status, const char *format, ...) {
  char text[TEXT_BYTES_MAX] = "";
  va_list rest;
  va_start(rest, format);
  vsnprintf(text, sizeof text, format, rest);
  va_end(rest);
  size_t length = strlen(text);
  if (now->call_number != 0) /* in a loop only the number tells steps apart */
    snprintf(text + length, sizeof text - length,
             ". It was call %llu of the program's run on this communicator",
             (unsigned long long)now->call_number);

  pthread_mutex_lock(&mutex);
  uint64_t number = ++last_number;
  error_t *kept = &errors[number % ERRORS_KEPT];
  kept->number = number;
  kept->status = status;
  describe(now->frame, kept);
  memcpy(kept->text, text, sizeof text);
  pthread_mutex_unlock(&mutex);

  char said[TEXT_BYTES_MAX + 64];
  snprintf(said, sizeof said, "[pccl error %llu] %s: %s", (unsigned long long)number,
           pccl_status_name(status), text);
  XLA_FFI_Error_Create_Args args = {
      .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
      .message = said,
      .errc = code_of(status),
  };
  return now->frame->api->XLA_FFI_Error_Create(&args);
}

void destroy_error(const XLA_FFI_Api *api, XLA_FFI_Error *error) {
  XLA_FFI_Error_Destroy_Args args = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE,
                                     .error = error};
  api->XLA_FFI_Error_Destroy(&args);
}

/* Writes the sentence and the call of an error; returns its status, or PCCL_OK if too many errors
 * have followed. */
EXPORT int pccl_jax_error(uint64_t number, char *text, size_t capacity, int64_t *kind,
                          uint64_t *form, uint64_t *handle) {
  pthread_mutex_lock(&mutex);
  const error_t *kept = &errors[number % ERRORS_KEPT];
  int status = kept->number == number ? (int)kept->status : PCCL_OK;
  if (status != PCCL_OK) {
    snprintf(text, capacity, "%s", kept->text);
    *kind = kept->kind;
    *form = kept->form;
    *handle = kept->handle;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}
