/* result.c: results of PCCL 1.0: for a call that this folder refuses, with a sentence for
 * pccl_last_error(), and for each status of the library. */
#include "compat.h"

#include <stdarg.h>
#include <stdio.h>

pcclResult_t refuse(pcclResult_t result, const char *format, ...) {
  char sentence[1024];
  va_list rest;
  va_start(rest, format);
  vsnprintf(sentence, sizeof sentence, format, rest);
  va_end(rest);
  pccl_set_last_error(sentence);
  return result;
}

pcclResult_t is_null(const char *what) { return refuse(pcclInvalidArgument, "%s is NULL", what); }

pcclResult_t out_of_memory(void) {
  return refuse(pcclInternalError, "there is not enough memory for this call");
}

pcclResult_t result_of(pccl_status_t status, pcclResult_t lost) {
  switch (status) {
    case PCCL_OK: return pcclSuccess;
    case PCCL_INVALID_ARGUMENT:
    case PCCL_MISMATCH: return pcclInvalidArgument;
    case PCCL_INVALID_USAGE: return pcclInvalidUsage;
    case PCCL_TOO_FEW_PEERS: return pcclTooFewPeers;
    case PCCL_EXPELLED:
    case PCCL_COORDINATOR_UNREACHABLE:
    case PCCL_AUTHENTICATION_FAILED:
    case PCCL_VERSION_MISMATCH: return pcclMasterConnectionFailed;
    case PCCL_STATE_UNAVAILABLE: return pcclNoSharedStateAvailable;
    case PCCL_OUT_OF_MEMORY:
    case PCCL_SYSTEM_ERROR: return pcclInternalError;
    case PCCL_TIMEOUT:
    case PCCL_ABORTED:
    case PCCL_IN_DOUBT:
    case PCCL_DEADLINE_EXCEEDED:
    case PCCL_CANCELLED: return lost;
  }
  return pcclInternalError;
}
