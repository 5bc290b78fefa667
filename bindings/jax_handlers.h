/* jax_handlers.h: what the handlers for JAX share: the words that describe a call, reading operands
 * from XLA, and errors. jax_handlers.c, jax_async.c and jax_parts.c have the handlers, jax_errors.c
 * errors, jax_later.c calls that end later; frontends/pccl_jax/call.py writes a call's words. */
#pragma once

#include <fenv.h>

#include "handlers.h"
#include "xla/ffi/api/c_api.h"

#define EXPORT __attribute__((visibility("default")))

/* Longest slice of a wait, in ns; between slices a handler looks for signals. */
#define SLICE_NS 50000000u

/* Kinds of calls that pccl_collective_t does not have. */
enum { KIND_BARRIER = 16, KIND_SEND = 17, KIND_RECV = 18 };

/* Words of an origin, the communicator of a derivative: the handle and the epoch of the call that
 * was differentiated, each with the low word first. */
enum { ORIGIN_WORDS = 4 };

/* Version of the words of a call, which grows with each change of their meaning: compiled programs
 * are kept in files. */
enum { CALL_VERSION = 2 };

/* The attribute "call" of a custom call: these 64-bit words, and behind them the counts of each
 * rank. */
typedef struct call {
  int64_t version;
  int64_t kind, op, tag, deadline_ns, recovery, plan;
  int64_t codec, codec_block, codec_rotate, codec_rounding, form;
  int64_t root; /* rank of the root; unused with root_is_peer */
  int64_t root_is_peer, root_peer[2]; /* root_peer: peer id of the root */
  int64_t world_size;    /* ranks that the program was traced for; 0: any number */
  int64_t rank;          /* rank that the program was traced for; -1: any rank */
  int64_t tells_origin;  /* behind the results: contributors of an average, and an origin */
  int64_t tells_outcome; /* the last result is an outcome */
  int64_t feeds_back;    /* error feedback: a residual of f32 follows the arrays, and the next
                            residual follows their results */
  int64_t counts_given;  /* number of counts that follow; an all_to_all has counts to send, then
                            counts to receive */
} call_t;

/* The operands of a call. `args` and `rets` leave out the handle, and the token of XLA that comes
 * first if a call is ordered. */
typedef struct operands {
  const call_t *call;
  const uint64_t *counts;
  uint64_t handle;
  uint64_t epoch; /* epoch of the call that this derivative is of; 0: no derivative */
  XLA_FFI_Buffer **args;
  int64_t arg_count;
  XLA_FFI_Buffer **rets;
  int64_t ret_count;
  XLA_FFI_Buffer **contributors; /* NULL, or the number of contributors of each element, u16 */
  uint32_t *origin;              /* NULL, or room for the handle and the epoch */
  uint32_t *outcome;             /* NULL, or room for an outcome */
  const XLA_FFI_Buffer *residual; /* residual of error feedback; NULL without it */
  const XLA_FFI_Buffer *next_residual;
} operands_t;

/* A call with its operands, its communicator and its place in the group. */
typedef struct now {
  XLA_FFI_CallFrame *frame;
  const operands_t *given;
  pccl_comm_t *comm;
  void *pin; /* keeps `comm` alive; NULL once another struct has the pin */
  uint32_t rank, world_size, root;
  uint64_t epoch;
  uint64_t call_number; /* number of the call in the program's run, from 1; 0: unknown */
} now_t;

/* Places in the outcome of a call, an array of u32 that frontends/pccl_jax/outcome.py reads. A
 * 64-bit number takes two words, the low word first. */
enum {
  OUTCOME_RANGES_MAX = 16,
  OUTCOME_BIT_WORDS = 16, /* words of a range's contributors, a bit for each rank */
  OUTCOME_HANDLE = 0,
  OUTCOME_EPOCH = 2,
  OUTCOME_TAG = 4,
  OUTCOME_SEQUENCE = 6,
  OUTCOME_BYTES_SENT = 8,
  OUTCOME_BYTES_RECEIVED = 10,
  OUTCOME_DURATION_NS = 12,
  OUTCOME_ATTEMPTS = 14,
  OUTCOME_RANGE_COUNT = 15,  /* number of all ranges; without room for all, the last place spans
                                the rest, with all contributors to any part of it */
  OUTCOME_CONTRIBUTORS = 16, /* number of ranks that contributed to any range */
  OUTCOME_RANKS_KNOWN = 17,  /* 0: this peer has left the epoch, so no bits are set */
  OUTCOME_DIGEST = 18,
  OUTCOME_PREDICTED_NS = 22,
  OUTCOME_BOUND_NS = 24,
  OUTCOME_PLAN = 26,
  OUTCOME_RANGES = 27, /* the ranges, each: begin, end, bits */
  OUTCOME_RANGE_WORDS = 4 + OUTCOME_BIT_WORDS,
  OUTCOME_WORDS = OUTCOME_RANGES + OUTCOME_RANGES_MAX * OUTCOME_RANGE_WORDS
};

extern pccl_handler_hooks_t hooks;

/* Answers a call by which XLA only asks for the version of the interface; false for other calls. */
int answer_probe(XLA_FFI_CallFrame *frame);

/* Reads the operands of a call from XLA. Returns NULL, or a sentence that says what is wrong. */
const char *read_operands(const XLA_FFI_CallFrame *frame, operands_t *given);

/* Makes XLA's error of a status; its text has the error's number in the table of jax_errors.c. */
XLA_FFI_Error *fail(const now_t *now, pccl_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Frees an error that is not returned to XLA. */
void destroy_error(const XLA_FFI_Api *api, XLA_FFI_Error *error);

const char *kind_name(int64_t kind);

/* jax_runs.c: the number of a call among those of its run on its communicator, from 1. */
uint64_t count_call(const now_t *now);

/* ---- Functions of jax_handlers.c ------------------------------------------------------------ */

int dtype_of(XLA_FFI_DataType dtype, pccl_dtype_t *made);
uint64_t elements_of(const XLA_FFI_Buffer *buffer);
pccl_collective_options_t options_of(const call_t *call);

/* Reads the operands of a call, acquires its communicator, and runs it; errors name the call. */
XLA_FFI_Error *with_communicator(XLA_FFI_CallFrame *frame, XLA_FFI_Error *(*run)(now_t *now));
/* Sets `now`'s rank, world size, epoch and root, as they are now. */
XLA_FFI_Error *find_place(now_t *now);
/* Waits for a work in slices; `since`: hooks.withdrawals() before the wait. */
pccl_status_t wait_until_finished(pccl_work_t *work, uint64_t since);
XLA_FFI_Error *wait_for(const now_t *now, pccl_work_t *work, uint64_t since);
XLA_FFI_Error *tell_outcome(const now_t *now, pccl_work_t *work);

/* ---- jax_later.c: a call that ends after its handler has returned ----------------------------- */

/* A copy of what a call needs after its handler has returned. */
typedef struct later {
  XLA_FFI_Error *(*end)(struct later *later);
  XLA_FFI_Future *future;
  fenv_t floats; /* rounding and flushing of small numbers of XLA's thread */
  XLA_FFI_CallFrame frame;
  XLA_FFI_Buffer handle;
  int64_t handle_dim;
  uint32_t words[2];
  void *args[1], *attrs[1];
  XLA_FFI_AttrType attr_type;
  XLA_FFI_Array call_words;
  call_t call;
  operands_t given; /* a copy of the operands, without arrays */
  now_t now;
} later_t;

/* Whether this thread runs Python's signal handlers: such a thread must wait inside its handler,
 * which looks for signals. */
int is_main_thread(void);

/* Leaves the end of a call to a new thread: `end` waits, frees `later`, and returns the call's
 * error. */
XLA_FFI_Error *leave_to_thread(now_t *now, later_t *later, XLA_FFI_Error *(*end)(later_t *later));

/* ---- jax_memory.c: memory that is used again --------------------------------------------------- */

enum { MEMORY_ALIGNED = 64 };

typedef struct block {
  struct block *next;
  void *memory;
  uint64_t bytes, handle, since_ns;
} block_t;

/* A block of at least `bytes` for the communicator of `handle`; NULL if there is no memory. */
block_t *memory_take(uint64_t handle, uint64_t bytes);
/* Takes back a block to which no operation writes any more. */
void memory_give(block_t *block);
/* Asks for large pages in memory that is about to be written for the first time, as NumPy does. */
void memory_use_large_pages(void *memory, uint64_t bytes);
/* Frees blocks that were idle for long, or whose communicator is closed. */
void memory_give_back_idle(void);
