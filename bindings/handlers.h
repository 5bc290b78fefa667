/* handlers.h: how a compiled program of an array library calls PCCL without the interpreter. The
 * program has a number that stands for a Communicator, and four functions of the extension module
 * (init_handlers.cpp, which has the table of numbers). The handlers of JAX use these functions
 * (jax_handlers.c). This interface is plain C, and private to this wheel. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "pccl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pccl_handler_hooks {
  size_t size;
  /* acquire: the communicator of a handle, which is not freed before release(*pin); NULL if the
   * communicator is gone. A handle is never given twice. acquire and release are called without the
   * GIL, and release may close the communicator. */
  pccl_comm_t *(*acquire)(uint64_t handle, void **pin);
  void (*release)(void *pin);
  /* How often Python has withdrawn the operations that run on threads that are not its own. */
  uint64_t (*withdrawals)(void);
  /* Non-zero: give the operation up, because a signal handler has raised, the interpreter exits, or
   * Python has withdrawn operations since withdrawals() was `since`. interrupted is called between
   * slices of a wait, by any thread, without the GIL. The exception of a signal handler is raised
   * in the main thread as soon as Python runs there. */
  int (*interrupted)(uint64_t since);
} pccl_handler_hooks_t;

#ifdef __cplusplus
}
#endif
