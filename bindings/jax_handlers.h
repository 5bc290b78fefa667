/* jax_handlers.h: what the handlers for JAX share: the words of a call, reading what XLA passes,
 * errors. The handlers are in jax_handlers.c, jax_async.c and jax_parts.c, errors in jax_errors.c,
 * calls that end later in jax_later.c; frontends/pccl_jax/call.py writes the words. */
#pragma once

#include <fenv.h>

#include "handlers.h"
#include "xla/ffi/api/c_api.h"

#define EXPORT __attribute__((visibility("default")))

/* A wait returns at least this often, to ask about signals. */
#define SLICE_NS 50000000u

/* pccl_collective_t, and those that are none of it. */
enum { KIND_BARRIER = 16, KIND_SEND = 17, KIND_RECV = 18 };

/* The communicator of a derivative: the handle and the epoch of the call that it is of, each the
 * low word first. */
enum { ORIGIN_WORDS = 4 };

/* Programs are kept in files. It grows with each change of what the words of a call mean. */
enum { CALL_VERSION = 2 };

/* The attribute "call" of a custom call: 64-bit words, and the counts of each rank behind them. */
typedef struct call {
  int64_t version;
  int64_t kind, op, tag, deadline_ns, recovery, plan;
  int64_t codec, codec_block, codec_rotate, codec_rounding, form;
  int64_t root; /* a rank; or, if root_is_peer, the peer of this id */
  int64_t root_is_peer, root_peer[2];
  int64_t world_size;    /* that the program was traced for; 0: it serves any */
  int64_t rank;          /* the same; -1 */
  int64_t tells_origin;  /* an origin is behind the results and, of an average, contributors */
  int64_t tells_outcome; /* the last result is an outcome */
  int64_t feeds_back;    /* behind the arrays is a residual of f32, and behind their results the
                            next one */
  int64_t counts_given;  /* of the words that follow; an all_to_all has those that it sends and then
                            others */
} call_t;

/* The operands of a call: without the token of XLA that comes first where a call is ordered, and
 * the handle. */
typedef struct operands {
  const call_t *call;
  const uint64_t *counts;
  uint64_t handle;
  uint64_t epoch; /* of the call that this one is a derivative of; 0: it is of none */
  XLA_FFI_Buffer **args;
  int64_t arg_count;
  XLA_FFI_Buffer **rets;
  int64_t ret_count;
  XLA_FFI_Buffer **contributors; /* NULL; or u16 for each element of each result: their number */
  uint32_t *origin;              /* NULL, or room for the handle and the epoch */
  uint32_t *outcome;             /* NULL, or room for an outcome */
  const XLA_FFI_Buffer *residual; /* of error feedback; NULL for none */
  const XLA_FFI_Buffer *next_residual;
} operands_t;

/* A call that has all that it needs, and knows who it is. */
typedef struct now {
  XLA_FFI_CallFrame *frame;
  const operands_t *given;
  pccl_comm_t *comm;
  void *pin; /* of the communicator; whoever keeps it makes this NULL */
  uint32_t rank, world_size, root;
  uint64_t epoch;
  uint64_t call_number; /* since the run of the program began, from 1; 0: not counted */
} now_t;

/* The outcome of a call as an array of u32, each 64-bit number as two of them, the low one first.
 * outcome.py reads it. */
enum {
  OUTCOME_RANGES_MAX = 16,
  OUTCOME_BIT_WORDS = 16, /* a bit for each rank */
  OUTCOME_HANDLE = 0,
  OUTCOME_EPOCH = 2,
  OUTCOME_TAG = 4,
  OUTCOME_SEQUENCE = 6,
  OUTCOME_BYTES_SENT = 8,
  OUTCOME_BYTES_RECEIVED = 10,
  OUTCOME_DURATION_NS = 12,
  OUTCOME_ATTEMPTS = 14,
  OUTCOME_RANGE_COUNT = 15,  /* of all; if these are more than there is room for, the last that is
                                told spans the rest, with those who contributed to any of it */
  OUTCOME_CONTRIBUTORS = 16, /* ranks that contributed to any range */
  OUTCOME_RANKS_KNOWN = 17,  /* 0: the epoch was left meanwhile, so that no bits are set */
  OUTCOME_DIGEST = 18,
  OUTCOME_PREDICTED_NS = 22,
  OUTCOME_BOUND_NS = 24,
  OUTCOME_PLAN = 26,
  OUTCOME_RANGES = 27, /* begin, end, bits */
  OUTCOME_RANGE_WORDS = 4 + OUTCOME_BIT_WORDS,
  OUTCOME_WORDS = OUTCOME_RANGES + OUTCOME_RANGES_MAX * OUTCOME_RANGE_WORDS
};

extern pccl_handler_hooks_t hooks;

/* Answers the probe of XLA that asks for the version; true if that was all. */
int answer_probe(XLA_FFI_CallFrame *frame);

/* Reads what XLA passes. Returns NULL, or what is wrong with it. */
const char *read_operands(const XLA_FFI_CallFrame *frame, operands_t *given);

/* XLA's error of a status, which names the entry of the table that has the sentence. */
XLA_FFI_Error *fail(const now_t *now, pccl_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Frees an error that XLA does not get back. */
void destroy_error(const XLA_FFI_Api *api, XLA_FFI_Error *error);

const char *kind_name(int64_t kind);

/* jax_runs.c: the number of a call among those of its run on its communicator, from 1. */
uint64_t count_call(const now_t *now);

/* ---- Functions of jax_handlers.c that others use -------------------------------------------- */

int dtype_of(XLA_FFI_DataType dtype, pccl_dtype_t *made);
uint64_t elements_of(const XLA_FFI_Buffer *buffer);
pccl_collective_options_t options_of(const call_t *call);

/* Reads the operands of a handler, and runs it with the communicator; errors name the call. */
XLA_FFI_Error *with_communicator(XLA_FFI_CallFrame *frame, XLA_FFI_Error *(*run)(now_t *now));
/* The rank, the size of the world and the root, as they are now. */
XLA_FFI_Error *find_place(now_t *now);
/* Waits in slices; `since`: hooks.withdrawals() before the wait. */
pccl_status_t wait_until_finished(pccl_work_t *work, uint64_t since);
XLA_FFI_Error *wait_for(const now_t *now, pccl_work_t *work, uint64_t since);
XLA_FFI_Error *tell_outcome(const now_t *now, pccl_work_t *work);

/* ---- jax_later.c: a call that ends after its handler has returned ----------------------------- */

/* All that is needed of a call then. */
typedef struct later {
  XLA_FFI_Error *(*end)(struct later *later);
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
  operands_t given; /* without arrays */
  now_t now;
} later_t;

/* Whether this is the thread that takes signals: it must wait inside of its handler, where it asks
 * about them. */
int is_main_thread(void);

/* Leaves the rest to a thread: `end` waits, frees `later`, and returns the error of the call. */
XLA_FFI_Error *leave_to_thread(now_t *now, later_t *later, XLA_FFI_Error *(*end)(later_t *later));

/* ---- jax_memory.c: memory that is used again --------------------------------------------------- */

enum { MEMORY_ALIGNED = 64 };

typedef struct block {
  struct block *next;
  void *memory;
  uint64_t bytes, handle, since_ns;
} block_t;

/* At least `bytes`, for a communicator; NULL if there is no memory. */
block_t *memory_take(uint64_t handle, uint64_t bytes);
/* Takes back a block that nothing is written to any more. */
void memory_give(block_t *block);
/* Asks for large pages in memory that is about to be written for the first time, as NumPy does. */
void memory_use_large_pages(void *memory, uint64_t bytes);
/* Frees those that are kept for nothing. */
void memory_give_back_idle(void);
