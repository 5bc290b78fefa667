/* handlers.h: how a compiled program of an array library calls PCCL without the interpreter: it has
 * a number that stands for a Communicator, and three functions of the extension module
 * (init_handlers.cpp, which owns the table of numbers). The handlers of JAX use it
 * (jax_handlers.c). It is plain C, and private to this wheel. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "pccl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pccl_handler_hooks {
  size_t size;
  /* The communicator of a handle, which is not freed before release(*pin); NULL if there is none
   * any more. A handle is never given twice. Both are called without the GIL, and release may close
   * the communicator. */
  pccl_comm_t *(*acquire)(uint64_t handle, void **pin);
  void (*release)(void *pin);
  /* How often Python has withdrawn what runs beside its threads. */
  uint64_t (*withdrawals)(void);
  /* Non-zero: give up, as a signal handler has raised, or the interpreter exits, or Python has
   * withdrawn what ran before `since`. Called between slices of a wait, by any thread, without the
   * GIL. The exception of a signal handler is raised in the main thread as soon as Python runs
   * there. */
  int (*interrupted)(uint64_t since);
} pccl_handler_hooks_t;

#ifdef __cplusplus
}
#endif
