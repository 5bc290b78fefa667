/* jax_handlers.c: the handler that a program compiled by JAX calls for each collective, message and
 * barrier. The handler needs neither the interpreter nor the GIL, and blocks until the operation is
 * committed or has failed. Words in an attribute describe a call (jax_handlers.h). The communicator
 * is an operand, a number that each call looks up, so that one program serves every communicator,
 * epoch and world size. */
#include "jax_handlers.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

pccl_handler_hooks_t hooks;
static unsigned long main_thread;

EXPORT void pccl_jax_start(const pccl_handler_hooks_t *given, unsigned long main_thread_ident) {
  hooks = *given;
  main_thread = main_thread_ident;
}

int is_main_thread(void) {
  return (unsigned long)pthread_self() == main_thread;
}

EXPORT void pccl_jax_version(int *major, int *minor) {
  *major = XLA_FFI_API_MAJOR;
  *minor = XLA_FFI_API_MINOR;
}

EXPORT int pccl_jax_outcome_words(void) {
  return OUTCOME_WORDS;
}

int answer_probe(XLA_FFI_CallFrame *frame) {
  for (XLA_FFI_Extension_Base *each = frame->extension_start; each != NULL; each = each->next) {
    if (each->type != XLA_FFI_Extension_Metadata) continue;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)each)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return 1;
  }
  return 0;
}

const char *kind_name(int64_t kind) {
  switch (kind) {
    case PCCL_ALL_REDUCE: return "all_reduce";
    case PCCL_BROADCAST: return "broadcast";
    case PCCL_REDUCE: return "reduce";
    case PCCL_REDUCE_SCATTER: return "reduce_scatter";
    case PCCL_ALL_GATHER: return "all_gather";
    case PCCL_SCATTER: return "scatter";
    case PCCL_GATHER: return "gather";
    case PCCL_ALL_TO_ALL: return "all_to_all";
    case KIND_BARRIER: return "barrier";
    case KIND_SEND: return "send";
    case KIND_RECV: return "recv";
    default: return "an unknown operation";
  }
}

int dtype_of(XLA_FFI_DataType dtype, pccl_dtype_t *made) {
  switch (dtype) {
    case XLA_FFI_DataType_F32: *made = PCCL_F32; return 1;
    case XLA_FFI_DataType_F64: *made = PCCL_F64; return 1;
    case XLA_FFI_DataType_F16: *made = PCCL_F16; return 1;
    case XLA_FFI_DataType_BF16: *made = PCCL_BF16; return 1;
    case XLA_FFI_DataType_S8: *made = PCCL_I8; return 1;
    case XLA_FFI_DataType_S16: *made = PCCL_I16; return 1;
    case XLA_FFI_DataType_S32: *made = PCCL_I32; return 1;
    case XLA_FFI_DataType_S64: *made = PCCL_I64; return 1;
    case XLA_FFI_DataType_U8: *made = PCCL_U8; return 1;
    case XLA_FFI_DataType_U16: *made = PCCL_U16; return 1;
    case XLA_FFI_DataType_U32: *made = PCCL_U32; return 1;
    case XLA_FFI_DataType_U64: *made = PCCL_U64; return 1;
    /* Elements of these dtypes only move, or have their bits combined; the call's form tells them
     * apart. */
    case XLA_FFI_DataType_PRED:
    case XLA_FFI_DataType_F8E5M2:
    case XLA_FFI_DataType_F8E3M4:
    case XLA_FFI_DataType_F8E4M3:
    case XLA_FFI_DataType_F8E4M3FN:
    case XLA_FFI_DataType_F8E4M3B11FNUZ:
    case XLA_FFI_DataType_F8E5M2FNUZ:
    case XLA_FFI_DataType_F8E4M3FNUZ:
    case XLA_FFI_DataType_F8E8M0FNU: *made = PCCL_U8; return 1;
    default: return 0;
  }
}

uint64_t elements_of(const XLA_FFI_Buffer *buffer) {
  uint64_t count = 1;
  for (int64_t index = 0; index < buffer->rank; index += 1) count *= (uint64_t)buffer->dims[index];
  return count;
}

static int adds(int64_t kind) {
  return kind == PCCL_ALL_REDUCE || kind == PCCL_REDUCE || kind == PCCL_REDUCE_SCATTER;
}

static int is_token(const XLA_FFI_Buffer *buffer) {
  return buffer->dtype == XLA_FFI_DataType_TOKEN;
}

/* ---- The operands of XLA ------------------------------------------------------------------ */

/* Reads the results beside those of the collective: outcome, origin and numbers of contributors. */
static const char *read_told(operands_t *given) {
  const call_t *call = given->call;
  given->outcome = given->origin = NULL;
  given->contributors = NULL;
  uint64_t sizes[] = {OUTCOME_WORDS, ORIGIN_WORDS};
  uint32_t **places[] = {&given->outcome, &given->origin};
  int64_t told[] = {call->tells_outcome, call->tells_origin};
  for (int each = 0; each < 2; each += 1) {
    if (!told[each]) continue;
    XLA_FFI_Buffer *last = given->ret_count > 0 ? given->rets[given->ret_count - 1] : NULL;
    if (last == NULL || last->dtype != XLA_FFI_DataType_U32 || elements_of(last) != sizes[each])
      return "the outcome has another size: compile the program again";
    *places[each] = last->data;
    given->ret_count -= 1;
  }
  if (!call->tells_origin || !adds(call->kind) || call->op != PCCL_AVG) return NULL;
  given->ret_count /= 2;
  given->contributors = given->rets + given->ret_count;
  for (int64_t index = 0; index < given->ret_count; index += 1)
    if (given->contributors[index]->dtype != XLA_FFI_DataType_U16 ||
        elements_of(given->contributors[index]) != elements_of(given->rets[index]))
      return "numbers of contributors have another shape: compile the program again";
  return NULL;
}

/* Reads the residuals of error feedback: the last array, and the last result. */
static const char *read_residuals(operands_t *given) {
  if (given->arg_count < 2 || given->ret_count != given->arg_count)
    return "error feedback needs arrays";
  given->arg_count -= 1;
  given->ret_count -= 1;
  given->residual = given->args[given->arg_count];
  given->next_residual = given->rets[given->ret_count];
  uint64_t count = 0;
  for (int64_t index = 0; index < given->arg_count; index += 1)
    count += elements_of(given->args[index]);
  if (given->residual->dtype == XLA_FFI_DataType_F32 && elements_of(given->residual) == count &&
      given->next_residual->dtype == XLA_FFI_DataType_F32 &&
      elements_of(given->next_residual) == count)
    return NULL;
  return "the residual of error feedback must have one f32 for each element";
}

const char *read_operands(const XLA_FFI_CallFrame *frame, operands_t *given) {
  const XLA_FFI_Attrs *attrs = &frame->attrs;
  const XLA_FFI_Array *words =
      attrs->size == 1 && attrs->types[0] == XLA_FFI_AttrType_ARRAY ? attrs->attrs[0] : NULL;
  size_t fixed = sizeof(call_t) / sizeof(int64_t);
  if (words == NULL || words->dtype != XLA_FFI_DataType_S64 || words->size < fixed ||
      ((const call_t *)words->data)->version != CALL_VERSION ||
      words->size != fixed + (uint64_t)((const call_t *)words->data)->counts_given)
    return "the program was made by another version of pccl_jax: compile it again";
  given->call = words->data;
  given->counts = (const uint64_t *)words->data + fixed;

  given->args = (XLA_FFI_Buffer **)frame->args.args;
  given->arg_count = frame->args.size;
  given->rets = (XLA_FFI_Buffer **)frame->rets.rets;
  given->ret_count = frame->rets.size;
  if (given->arg_count > 0 && is_token(given->args[0])) {
    given->args += 1;
    given->arg_count -= 1;
    given->rets += 1;
    given->ret_count -= 1;
  }
  uint64_t handle_words = given->arg_count < 1 ? 0 : elements_of(given->args[0]);
  if ((handle_words != 2 && handle_words != ORIGIN_WORDS) ||
      given->args[0]->dtype != XLA_FFI_DataType_U32)
    return "the communicator must be two u32, or the four of an origin";
  const uint32_t *handle = given->args[0]->data;
  given->handle = handle[0] | (uint64_t)handle[1] << 32;
  given->epoch = handle_words == 2 ? 0 : handle[2] | (uint64_t)handle[3] << 32;
  given->args += 1;
  given->arg_count -= 1;
  const char *wrong = read_told(given);
  given->residual = given->next_residual = NULL;
  return wrong == NULL && given->call->feeds_back ? read_residuals(given) : wrong;
}

/* ---- The place of this rank --------------------------------------------------------------- */

static XLA_FFI_Error *find_root(now_t *now) {
  const call_t *call = now->given->call;
  if (!call->root_is_peer) {
    if (call->root < 0 || call->root >= now->world_size)
      return fail(now, PCCL_INVALID_ARGUMENT, "%s must be a rank from 0 to %u, not %" PRId64,
                  call->kind == KIND_SEND   ? "dst"
                  : call->kind == KIND_RECV ? "src"
                                            : "root",
                  now->world_size - 1, call->root);
    now->root = (uint32_t)call->root;
    return NULL;
  }
  pccl_peer_id_t *ids = calloc(now->world_size, sizeof *ids);
  if (ids == NULL)
    return fail(now, PCCL_OUT_OF_MEMORY, "no memory for %u ids", now->world_size);
  uint32_t count = pccl_comm_members(now->comm, ids, now->world_size);
  int found = 0;
  for (uint32_t rank = 0; rank < count && rank < now->world_size && !found; rank += 1) {
    if (memcmp(ids[rank].bytes, call->root_peer, sizeof ids[rank].bytes) != 0) continue;
    now->root = rank;
    found = 1;
  }
  free(ids);
  if (found) return NULL;
  return fail(now, PCCL_INVALID_ARGUMENT,
              "%s: the peer that is named is not a member of the epoch", kind_name(call->kind));
}

static int has_root(int64_t kind) {
  return kind == PCCL_BROADCAST || kind == PCCL_REDUCE || kind == PCCL_SCATTER ||
         kind == PCCL_GATHER || kind == KIND_SEND || kind == KIND_RECV;
}

XLA_FFI_Error *find_place(now_t *now) {
  const call_t *call = now->given->call;
  pccl_comm_info_t info = PCCL_COMM_INFO_INIT;
  pccl_status_t status = pccl_comm_info(now->comm, &info);
  if (status != PCCL_OK) return fail(now, status, "%s", pccl_last_error());
  if (info.epoch == 0)
    return fail(now, PCCL_INVALID_USAGE,
                "rank and world_size are known after the first admit(): call it first");
  if (now->given->epoch != 0 && now->given->epoch != info.epoch)
    return fail(now, PCCL_INVALID_USAGE,
                "%s: this derivative is of a call in epoch %" PRIu64
                ", now the group is in epoch %" PRIu64
                ", whose ranks may be other members. Repeat the forward pass, and call admit "
                "before it or after the backward pass. Nothing was sent",
                kind_name(call->kind), now->given->epoch, info.epoch);
  now->rank = info.rank;
  now->world_size = info.world_size;
  now->epoch = info.epoch;
  if (call->world_size != 0 && call->world_size != info.world_size)
    return fail(now, PCCL_MISMATCH,
                "%s: the program was traced for %" PRId64
                ", now %u ranks are there: its arrays have other "
                "shapes. Trace it again, as pccl_jax.jit does. Nothing was sent",
                kind_name(call->kind), call->world_size, info.world_size);
  if (call->rank >= 0 && call->rank != info.rank)
    return fail(now, PCCL_MISMATCH,
                "%s: the program was traced for rank %" PRId64
                ", now this is rank %u, with other rows by "
                "`counts`. Trace it again, as pccl_jax.jit does. Nothing was sent",
                kind_name(call->kind), call->rank, info.rank);
  return has_root(call->kind) ? find_root(now) : NULL;
}

/* ---- The arrays --------------------------------------------------------------------------- */

/* Whether this rank's input has `sends` and its output `recvs` elements, as the call needs (0: no
 * array); sets the count for pccl.h. */
static int fits(const now_t *now, uint64_t sends, uint64_t recvs, uint64_t *count) {
  uint64_t world = now->world_size;
  switch (now->given->call->kind) {
    case PCCL_REDUCE_SCATTER: *count = recvs; return sends == world * recvs;
    case PCCL_SCATTER: *count = recvs; return now->rank != now->root || sends == world * recvs;
    case PCCL_ALL_GATHER:
    case PCCL_GATHER: *count = sends; return recvs == world * sends;
    case PCCL_ALL_TO_ALL: *count = sends / world; return sends == recvs && sends % world == 0;
    default: /* whole arrays */ *count = sends; return sends == recvs;
  }
}

static XLA_FFI_Error *wrong_shapes(const now_t *now) {
  return fail(now, PCCL_INVALID_ARGUMENT,
              "%s: the shapes of the program do not fit its call, compile it again",
              kind_name(now->given->call->kind));
}

static XLA_FFI_Error *make_array(const now_t *now, int64_t index, pccl_array_t *made) {
  const operands_t *given = now->given;
  const call_t *call = given->call;
  XLA_FFI_Buffer *send = given->arg_count > 0 ? given->args[index] : NULL;
  XLA_FFI_Buffer *recv = given->rets[index];
  memset(made, 0, sizeof *made);
  if (!dtype_of(recv->dtype, &made->dtype) || (send != NULL && send->dtype != recv->dtype))
    return fail(now, PCCL_INVALID_ARGUMENT, "%s: no such dtype here", kind_name(call->kind));
  made->recv_buffer = recv->data;
  if (send == NULL || send->data != recv->data)
    memory_use_large_pages(recv->data, elements_of(recv) * pccl_dtype_size(made->dtype));
  if (call->kind == PCCL_SCATTER && now->rank == now->root && send == NULL)
    return fail(now, PCCL_INVALID_ARGUMENT,
                "the root of a scatter needs x, with the rows of all ranks");
  uint64_t sends = send == NULL ? 0 : elements_of(send);
  if (call->counts_given == 0 && !fits(now, sends, elements_of(recv), &made->count))
    return wrong_shapes(now);
  if (call->kind == PCCL_BROADCAST) {
    size_t bytes = made->count * pccl_dtype_size(made->dtype);
    if (now->rank == now->root && send->data != recv->data) memcpy(recv->data, send->data, bytes);
    return NULL;
  }
  if (call->kind != PCCL_SCATTER || now->rank == now->root) made->send_buffer = send->data;
  return NULL;
}

/* Clears the results of a reduce or gather on ranks other than the root, and the tie of a send. */
static void clear_results(const now_t *now) {
  int64_t kind = now->given->call->kind;
  int is_other = (kind == PCCL_REDUCE || kind == PCCL_GATHER) && now->rank != now->root;
  if (!is_other && kind != KIND_SEND) return;
  for (int64_t index = 0; index < now->given->ret_count; index += 1) {
    XLA_FFI_Buffer *result = now->given->rets[index];
    pccl_dtype_t dtype;
    if (dtype_of(result->dtype, &dtype))
      memset(result->data, 0, elements_of(result) * pccl_dtype_size(dtype));
  }
}

/* ---- Beginning ---------------------------------------------------------------------------- */

pccl_collective_options_t options_of(const call_t *call) {
  pccl_collective_options_t options = PCCL_COLLECTIVE_OPTIONS_INIT;
  options.tag = (uint64_t)call->tag;
  options.deadline_ns = (uint64_t)call->deadline_ns;
  options.op = (pccl_reduce_op_t)call->op;
  options.recovery = (pccl_recovery_t)call->recovery;
  options.plan = (pccl_plan_t)call->plan;
  options.codec = (pccl_codec_t)call->codec;
  options.codec_block = (uint32_t)call->codec_block;
  options.codec_rotate = (pccl_rotate_t)call->codec_rotate;
  options.codec_rounding = (pccl_rounding_t)call->codec_rounding;
  options.form = (uint64_t)call->form;
  return options;
}

static uint64_t sum(const uint64_t *counts, uint32_t ranks) {
  uint64_t total = 0;
  for (uint32_t rank = 0; rank < ranks; rank += 1) total += counts[rank];
  return total;
}

/* Begins a collective with the number of elements of each rank's shard. */
static XLA_FFI_Error *begin_uneven(const now_t *now, const pccl_array_t *array,
                                   pccl_work_t **work) {
  const operands_t *given = now->given;
  const call_t *call = given->call;
  const uint64_t *counts = given->counts, *sent = counts;
  uint32_t ranks = now->world_size;
  uint64_t sends = given->arg_count > 0 ? elements_of(given->args[0]) : 0,
           recvs = elements_of(given->rets[0]);
  pccl_collective_options_t options = options_of(call);
  if (call->kind == PCCL_ALL_TO_ALL) counts += ranks;
  int is_part = call->kind == PCCL_REDUCE_SCATTER || call->kind == PCCL_SCATTER;
  uint64_t own = counts[now->rank], whole = sum(counts, ranks);
  int fit = call->kind == PCCL_ALL_TO_ALL ? sends == sum(sent, ranks) && recvs == whole
            : is_part ? recvs == own && (array->send_buffer == NULL || sends == whole)
                      : sends == own && recvs == whole;
  if (!fit) return wrong_shapes(now);
  const void *send = array->send_buffer;
  void *recv = array->recv_buffer;
  pccl_status_t status;
  switch (call->kind) {
    case PCCL_REDUCE_SCATTER:
      status = pccl_reduce_scatter_v_async(now->comm, send, recv, counts, ranks, array->dtype,
                                           &options, work);
      break;
    case PCCL_ALL_GATHER:
      status = pccl_all_gather_v_async(now->comm, send, recv, counts, ranks, array->dtype, &options,
                                       work);
      break;
    case PCCL_SCATTER:
      status = pccl_scatter_v_async(now->comm, send, recv, counts, ranks, array->dtype, now->root,
                                    &options, work);
      break;
    case PCCL_GATHER:
      status = pccl_gather_v_async(now->comm, send, recv, counts, ranks, array->dtype, now->root,
                                   &options, work);
      break;
    case PCCL_ALL_TO_ALL:
      status = pccl_all_to_all_v_async(now->comm, send, recv, sent, counts, ranks, array->dtype,
                                       &options, work);
      break;
    default: return wrong_shapes(now);
  }
  return status == PCCL_OK ? NULL : fail(now, status, "%s", pccl_last_error());
}

static XLA_FFI_Error *begin_collective(const now_t *now, pccl_work_t **work) {
  const operands_t *given = now->given;
  const call_t *call = given->call;
  pccl_array_t few[16], *arrays = few;
  int64_t count = given->ret_count;
  if (count < 1 ||
      (given->arg_count != count && (call->kind != PCCL_SCATTER || given->arg_count != 0)))
    return wrong_shapes(now);
  if ((size_t)count > sizeof few / sizeof *few) arrays = calloc((size_t)count, sizeof *arrays);
  if (arrays == NULL)
    return fail(now, PCCL_OUT_OF_MEMORY, "no memory for a list of %" PRId64 " arrays",
                count);
  XLA_FFI_Error *error = NULL;
  for (int64_t index = 0; index < count && error == NULL; index += 1)
    error = make_array(now, index, &arrays[index]);
  if (error == NULL && call->counts_given != 0) {
    error = begin_uneven(now, arrays, work);
  } else if (error == NULL) {
    pccl_collective_options_t options = options_of(call);
    if (given->residual != NULL) {
      options.residual_in = given->residual->data;
      options.residual_out = given->next_residual->data;
    }
    pccl_status_t status = pccl_coalesced_async(now->comm, (pccl_collective_t)call->kind, arrays,
                                                (uint64_t)count, now->root, &options, work);
    if (status != PCCL_OK) error = fail(now, status, "%s", pccl_last_error());
  }
  if (arrays != few) free(arrays);
  return error;
}

static XLA_FFI_Error *begin_other(const now_t *now, pccl_work_t **work) {
  const operands_t *given = now->given;
  const call_t *call = given->call;
  pccl_collective_options_t options = options_of(call);
  pccl_status_t status;
  if (call->kind == KIND_BARRIER) {
    status = pccl_barrier_async(now->comm, &options, work);
  } else {
    int sends = call->kind == KIND_SEND;
    /* Operands behind the message are ties, which only derivatives use. */
    if ((sends ? given->arg_count : given->ret_count) < 1) return wrong_shapes(now);
    XLA_FFI_Buffer *buffer = sends ? given->args[0] : given->rets[0];
    pccl_dtype_t dtype;
    if (!dtype_of(buffer->dtype, &dtype))
      return fail(now, PCCL_INVALID_ARGUMENT, "%s: no such dtype here",
                  kind_name(call->kind));
    uint64_t count = elements_of(buffer);
    status =
        sends ? pccl_send_async(now->comm, buffer->data, count, dtype, now->root, &options, work)
              : pccl_recv_async(now->comm, buffer->data, count, dtype, now->root, &options, work);
  }
  return status == PCCL_OK ? NULL : fail(now, status, "%s", pccl_last_error());
}

/* ---- Waiting, and the outcome ------------------------------------------------------------- */

pccl_status_t wait_until_finished(pccl_work_t *work, uint64_t since) {
  pccl_status_t status;
  while ((status = pccl_work_wait(work, SLICE_NS)) == PCCL_TIMEOUT) {
    if (!hooks.interrupted(since)) continue;
    pccl_work_cancel(work);
    return pccl_work_wait(work, UINT64_MAX);
  }
  return status;
}

XLA_FFI_Error *wait_for(const now_t *now, pccl_work_t *work, uint64_t since) {
  pccl_status_t status = wait_until_finished(work, since);
  return status == PCCL_OK ? NULL : fail(now, status, "%s", pccl_last_error());
}

static void put(uint32_t *words, int at, uint64_t number) {
  words[at] = (uint32_t)number;
  words[at + 1] = (uint32_t)(number >> 32);
}

static void put_bits(uint32_t *bits, const pccl_peer_id_t *members, uint32_t world_size,
                     const pccl_peer_id_t *peers, uint32_t count) {
  uint32_t rank = 0; /* `members` and `peers` are in the order of ranks */
  for (uint32_t index = 0; index < count; index += 1) {
    while (rank < world_size && memcmp(&members[rank], &peers[index], sizeof *peers) != 0)
      rank += 1;
    if (rank < world_size) bits[rank / 32] |= 1u << rank % 32;
  }
}

/* Adds the peers that `found` lacks; returns the new number of peers in `found`, at most `most`. */
static uint32_t add_peers(pccl_peer_id_t *found, uint32_t count, uint32_t most,
                          const pccl_peer_id_t *peers, uint32_t peer_count) {
  for (uint32_t index = 0; index < peer_count && index < most && count < most; index += 1) {
    uint32_t at = 0;
    while (at < count && memcmp(&found[at], &peers[index], sizeof *peers) != 0) at += 1;
    if (at == count) found[count++] = peers[index];
  }
  return count;
}

/* Writes the ranges of an outcome. `ids`: room for the members, and for as many contributors. */
static pccl_status_t put_ranges(const now_t *now, pccl_work_t *work, const pccl_outcome_t *outcome,
                                pccl_peer_id_t *ids, uint32_t *words) {
  pccl_peer_id_t *peers = ids + now->world_size;
  pccl_comm_info_t info = PCCL_COMM_INFO_INIT;
  uint32_t all[OUTCOME_BIT_WORDS] = {0},
           listed = pccl_comm_members(now->comm, ids, now->world_size);
  int known = pccl_comm_info(now->comm, &info) == PCCL_OK && info.epoch == outcome->epoch &&
              listed == now->world_size;
  words[OUTCOME_RANKS_KNOWN] = (uint32_t)known;
  uint32_t found = 0; /* contributors to all ranges, in `ids`, if ranks are unknown */
  for (uint32_t index = 0; index < outcome->range_count; index += 1) {
    pccl_outcome_range_t range = PCCL_OUTCOME_RANGE_INIT;
    pccl_status_t status = pccl_work_range(work, index, &range, peers, now->world_size);
    if (status != PCCL_OK) return status;
    uint32_t bits[OUTCOME_BIT_WORDS] = {0};
    if (!known) found = add_peers(ids, found, now->world_size, peers, range.contributor_count);
    if (known) put_bits(bits, ids, now->world_size, peers, range.contributor_count);
    for (int word = 0; word < OUTCOME_BIT_WORDS; word += 1) all[word] |= bits[word];
    uint32_t place = index < OUTCOME_RANGES_MAX ? index : OUTCOME_RANGES_MAX - 1;
    uint32_t *at = words + OUTCOME_RANGES + place * OUTCOME_RANGE_WORDS;
    if (place == index) put(at, 0, range.begin);
    put(at, 2, range.end);
    for (int word = 0; word < OUTCOME_BIT_WORDS; word += 1) at[4 + word] |= bits[word];
  }
  for (int word = 0; word < OUTCOME_BIT_WORDS; word += 1)
    words[OUTCOME_CONTRIBUTORS] += (uint32_t)__builtin_popcount(all[word]);
  if (!known) words[OUTCOME_CONTRIBUTORS] = found;
  return PCCL_OK;
}

/* Writes the number of contributors of a range into an array that begins at element `first`, and
 * returns where the next array begins. */
static uint64_t put_contributors(XLA_FFI_Buffer *into, uint64_t first,
                                 const pccl_outcome_range_t *range) {
  uint64_t count = elements_of(into);
  uint64_t begin = range->begin > first ? range->begin - first : 0;
  uint64_t end = range->end > first ? range->end - first : 0;
  uint16_t *numbers = into->data;
  for (uint64_t index = begin; index < end && index < count; index += 1)
    numbers[index] = (uint16_t)range->contributor_count;
  return first + count;
}

/* Writes the origin: the derivative of an average must divide by the same numbers of contributors
 * as the average, in the same epoch. */
static XLA_FFI_Error *tell_origin(const now_t *now, pccl_work_t *work) {
  const operands_t *given = now->given;
  if (given->origin == NULL) return NULL;
  put(given->origin, 0, given->handle);
  put(given->origin, 2, now->epoch);
  if (given->contributors == NULL) return NULL;
  for (int64_t index = 0; index < given->ret_count; index += 1) {
    uint16_t *numbers = given->contributors[index]->data;
    uint64_t count = elements_of(given->contributors[index]);
    for (uint64_t each = 0; each < count; each += 1) numbers[each] = 1; /* no contributor */
  }
  pccl_outcome_t outcome = PCCL_OUTCOME_INIT;
  pccl_status_t status = pccl_work_outcome(work, &outcome);
  for (uint32_t index = 0; index < outcome.range_count && status == PCCL_OK; index += 1) {
    pccl_outcome_range_t range = PCCL_OUTCOME_RANGE_INIT;
    status = pccl_work_range(work, index, &range, NULL, 0);
    if (status != PCCL_OK || range.contributor_count == 0) continue;
    uint64_t first = 0;
    for (int64_t array = 0; array < given->ret_count; array += 1)
      first = put_contributors(given->contributors[array], first, &range);
  }
  return status == PCCL_OK ? NULL : fail(now, status, "%s", pccl_last_error());
}

XLA_FFI_Error *tell_outcome(const now_t *now, pccl_work_t *work) {
  uint32_t *words = now->given->outcome;
  if (words == NULL) return NULL;
  memset(words, 0, OUTCOME_WORDS * sizeof *words);
  pccl_outcome_t outcome = PCCL_OUTCOME_INIT;
  pccl_status_t status = pccl_work_outcome(work, &outcome);
  if (status != PCCL_OK) return fail(now, status, "%s", pccl_last_error());
  put(words, OUTCOME_HANDLE, now->given->handle);
  put(words, OUTCOME_EPOCH, outcome.epoch);
  put(words, OUTCOME_TAG, outcome.tag);
  put(words, OUTCOME_SEQUENCE, outcome.sequence);
  put(words, OUTCOME_BYTES_SENT, outcome.bytes_sent);
  put(words, OUTCOME_BYTES_RECEIVED, outcome.bytes_received);
  put(words, OUTCOME_DURATION_NS, outcome.duration_ns);
  put(words, OUTCOME_PREDICTED_NS, outcome.predicted_ns);
  put(words, OUTCOME_BOUND_NS, outcome.bound_ns);
  words[OUTCOME_PLAN] = outcome.plan;
  words[OUTCOME_ATTEMPTS] = outcome.attempts;
  words[OUTCOME_RANGE_COUNT] = outcome.range_count;
  memcpy(words + OUTCOME_DIGEST, outcome.digest, sizeof outcome.digest);
  pccl_peer_id_t *ids = calloc(2 * (size_t)now->world_size, sizeof *ids);
  if (ids == NULL) return fail(now, PCCL_OUT_OF_MEMORY, "no memory for the outcome");
  status = put_ranges(now, work, &outcome, ids, words);
  free(ids);
  return status == PCCL_OK ? NULL : fail(now, status, "%s", pccl_last_error());
}

static XLA_FFI_Error *run(now_t *now) {
  uint64_t since = hooks.withdrawals();
  now->call_number = count_call(now);
  XLA_FFI_Error *error = find_place(now);
  if (error != NULL) return error;
  pccl_work_t *work = NULL;
  error = now->given->call->kind < KIND_BARRIER ? begin_collective(now, &work)
                                                : begin_other(now, &work);
  if (error != NULL) return error;
  error = wait_for(now, work, since);
  if (error == NULL) error = tell_origin(now, work);
  if (error == NULL) error = tell_outcome(now, work);
  pccl_work_destroy(work);
  if (error == NULL) clear_results(now);
  return error;
}

XLA_FFI_Error *with_communicator(XLA_FFI_CallFrame *frame, XLA_FFI_Error *(*run)(now_t *now)) {
  if (answer_probe(frame)) return NULL;
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return NULL;
  operands_t given;
  now_t now = {.frame = frame, .given = &given};
  const char *wrong = read_operands(frame, &given);
  if (wrong != NULL) return fail(&now, PCCL_INVALID_ARGUMENT, "%s", wrong);
  now.comm = hooks.acquire(given.handle, &now.pin);
  if (now.comm == NULL)
    return fail(&now, PCCL_INVALID_USAGE,
                "%s: the communicator is closed and gone, or is that of another process: pass one "
                "that is open",
                kind_name(given.call->kind));
  XLA_FFI_Error *error = run(&now);
  if (now.pin != NULL) hooks.release(now.pin);
  return error;
}

EXPORT XLA_FFI_Error *pccl_jax_collective(XLA_FFI_CallFrame *frame) {
  return with_communicator(frame, run);
}
