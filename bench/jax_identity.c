/* jax_identity: a foreign function of XLA that does nothing, as a measure of what a call of one
 * costs. Its one array is operand and result in the same memory, with XLA's token before it where
 * the call is ordered. bench/jax_identity.py compiles and calls it. */
#include <stddef.h>

#include "xla/ffi/api/c_api.h"

__attribute__((visibility("default"))) XLA_FFI_Error *bench_identity(XLA_FFI_CallFrame *frame) {
  for (XLA_FFI_Extension_Base *each = frame->extension_start; each != NULL; each = each->next) {
    if (each->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)each)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return NULL;
  }
  return NULL;
}
