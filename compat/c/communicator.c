/* communicator.c: a peer of PCCL 1.0: joining, peer groups, reductions and shared state.
 *
 * Every peer of PCCL 1.0 is a member of one group of the library, called the run here. In
 * pcclUpdateTopology all peers pass the run's safe point together and tell each other their peer
 * groups; if there are several, each peer group becomes a sub-group. World sizes change only where
 * all members learn the same: in pcclUpdateTopology, and in the outcome of a reduction. A reduction
 * goes on among the survivors of a loss, and fails if this peer is the only survivor.
 * ../pccl/communicator.py does the same in Python. */
#include "compat.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* Tags of calls that this file makes by itself; tags of programs are lower. */
static const uint64_t split_tag = (uint64_t)1 << 62, pending_tag = ((uint64_t)1 << 62) + 1;
/* How long a call in doubt waits for the coordinator's decision. */
static const uint64_t doubt_ns = 60000000000;
enum {
  TRIES_MAX = 4, /* tries of a reduction; an abort is for all members, so all of them try again */
  IN_FLIGHT_MAX = 64,
  TENSORS_MAX = 65536,
};

/* Sizes that all members know alike. own: members of this peer's peer group; others: members of all
 * other peer groups; groups: number of peer groups; largest_other: members of the largest of the
 * other peer groups. */
typedef struct sizes {
  uint32_t own, others, groups, largest_other;
} sizes_t;

/* A reduction that has begun, and that pcclAwaitAsyncReduce has not returned yet. */
typedef struct reduction {
  struct reduction *next;
  uint64_t tag;
  pccl_work_t *work; /* NULL once the reduction is over; then `result` and `info` hold its end */
  pcclResult_t result;
  pcclReduceInfo_t info;
} reduction_t;

struct pcclComm_t {
  char token[PCCL_TOKEN_BYTES_MAX];
  uint32_t peer_group;
  /* Guards sizes and reductions: other threads may reduce beside the thread of the other calls. */
  pthread_mutex_t mutex;
  sizes_t sizes;
  reduction_t *reductions;
  pccl_comm_t *run;
  pccl_comm_t *group; /* the peer group; NULL before pcclConnect, or if an update failed half way */
};

static int is_initialized;

pcclResult_t pcclInit(void) {
  __atomic_store_n(&is_initialized, 1, __ATOMIC_RELEASE);
  return pcclSuccess;
}

pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *info) {
  if (info == NULL) return is_null("info");
  *info = (pcclBuildInfo_t){false, false};
  return pcclSuccess;
}

static pcclResult_t initialized(void) {
  if (__atomic_load_n(&is_initialized, __ATOMIC_ACQUIRE)) return pcclSuccess;
  return refuse(pcclNotInitialized, "call pcclInit first");
}

static pcclResult_t usable(const pcclComm_t *handle, pcclComm_t **comm) {
  TRY(initialized());
  *comm = (pcclComm_t *)handle; /* PCCL 1.0 has const also where a call changes the communicator */
  return handle != NULL ? pcclSuccess : is_null("communicator");
}

/* Checks the communicator of a call that needs an earlier pcclConnect. */
static pcclResult_t connected(const pcclComm_t *handle, pcclComm_t **comm) {
  TRY(usable(handle, comm));
  if (handle->run == NULL) return refuse(pcclInvalidUsage, "call pcclConnect first");
  if (handle->group == NULL)
    return refuse(pcclInvalidUsage,
                  "pcclUpdateTopology has failed half way: call it again first");
  return pcclSuccess;
}

static sizes_t sizes_of(pcclComm_t *comm) {
  pthread_mutex_lock(&comm->mutex);
  sizes_t sizes = comm->sizes;
  pthread_mutex_unlock(&comm->mutex);
  return sizes;
}

/* ---- numbers of PCCL 1.0 as those of the library */

#define LENGTH(table) (sizeof(table) / sizeof((table)[0]))
#define TRANSLATE(to, table, given, kind)                                                     \
  do {                                                                                        \
    if ((unsigned)(given) >= LENGTH(table))                                                   \
      return refuse(pcclInvalidArgument, "there is no " kind " %u", (unsigned)(given));       \
    *(to) = (table)[given];                                                                   \
  } while (0)

static const pccl_dtype_t dtypes[] = {
    [pcclUint8] = PCCL_U8,      [pcclInt8] = PCCL_I8,     [pcclInt16] = PCCL_I16,
    [pcclUint16] = PCCL_U16,    [pcclUint32] = PCCL_U32,  [pcclInt32] = PCCL_I32,
    [pcclUint64] = PCCL_U64,    [pcclInt64] = PCCL_I64,   [pcclFloat16] = PCCL_F16,
    [pcclBFloat16] = PCCL_BF16, [pcclFloat] = PCCL_F32,   [pcclDouble] = PCCL_F64,
};
static const pccl_reduce_op_t ops[] = {
    [pcclSum] = PCCL_SUM, [pcclAvg] = PCCL_AVG, [pcclProd] = PCCL_PROD,
    [pcclMax] = PCCL_MAX, [pcclMin] = PCCL_MIN,
};
/* The two codecs other than none encode to pcclUint8. */
static const pccl_codec_t codecs[] = {
    [pcclQuantNone] = PCCL_CODEC_NONE,
    [pcclQuantMinMax] = PCCL_CODEC_MIN_MAX_U8,
    [pcclQuantZeroPointScale] = PCCL_CODEC_ZERO_POINT_U8,
};
static const pccl_strategy_t strategies[] = {
    [PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR] = PCCL_POPULAR,
    [PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY] = PCCL_RECEIVE_ONLY,
    [PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY] = PCCL_SEND_ONLY,
};

/* ---- what calls of all members share */

/* Translates the status of a call that all members of `group` make. A failure after which this peer
 * is out of the group, such as the mismatch of a newcomer, is pcclMasterConnectionFailed. */
static pcclResult_t check(pccl_comm_t *group, pccl_status_t status, pcclResult_t lost) {
  if (status == PCCL_OK) return pcclSuccess;
  pccl_comm_info_t now = PCCL_COMM_INFO_INIT;
  /* pccl_comm_info succeeds on an open group, so pccl_last_error() keeps the call's sentence. */
  TRY(result_of(pccl_comm_info(group, &now), lost));
  return now.lost != PCCL_OK ? pcclMasterConnectionFailed : result_of(status, lost);
}

/* Returns pcclPendingAsyncOps if a reduction of the group is in flight. */
static pcclResult_t expect_rest(pccl_comm_t *group, pcclResult_t lost) {
  pccl_comm_info_t now = PCCL_COMM_INFO_INIT;
  TRY(result_of(pccl_comm_info(group, &now), lost));
  if (now.operations_in_flight == 0) return pcclSuccess;
  return refuse(pcclPendingAsyncOps, "%" PRIu32 " reductions are in flight: await them first",
                now.operations_in_flight);
}

/* Waits for the end of an operation, and returns its status. After PCCL_IN_DOUBT it waits up to
 * doubt_ns for the decision. */
static pccl_status_t wait_for(pccl_work_t *work) {
  pccl_status_t status = pccl_work_wait(work, UINT64_MAX);
  return status == PCCL_IN_DOUBT ? pccl_work_resolve(work, doubt_ns, 1) : status;
}

/* Waits for the end of an operation of the group, and reads its outcome; does not free the work. */
static pcclResult_t end(pccl_comm_t *group, pccl_work_t *work, pcclResult_t lost,
                        pccl_outcome_t *outcome) {
  TRY(check(group, wait_for(work), lost));
  return result_of(pccl_work_outcome(work, outcome), lost);
}

/* ---- reductions in flight */

/* Waits for the end of a reduction, and frees its work. If the outcome has fewer contributors than
 * the peer group has members, the group's size shrinks to them, alike on all members. */
static pcclResult_t finish(pcclComm_t *comm, pccl_work_t *work, pcclReduceInfo_t *info) {
  const pcclResult_t lost = pcclRankConnectionLost;
  pccl_outcome_t outcome = PCCL_OUTCOME_INIT;
  pccl_outcome_range_t range = PCCL_OUTCOME_RANGE_INIT;
  pcclResult_t result = end(comm->group, work, lost, &outcome);
  if (result == pcclSuccess) result = result_of(pccl_work_range(work, 0, &range, NULL, 0), lost);
  pccl_work_destroy(work);
  TRY(result);
  uint32_t here = range.contributor_count;
  pthread_mutex_lock(&comm->mutex);
  if (here < comm->sizes.own) comm->sizes.own = here;
  pthread_mutex_unlock(&comm->mutex);
  if (here < 2) return refuse(lost, "all other peers of the group have left or were lost");
  *info = (pcclReduceInfo_t){here, outcome.bytes_sent, outcome.bytes_received};
  return pcclSuccess;
}

/* Removes the reduction with this tag from comm->reductions and returns it, or NULL if none has the
 * tag. The caller holds the mutex. */
static reduction_t *take(pcclComm_t *comm, uint64_t tag) {
  reduction_t **at = &comm->reductions;
  while (*at != NULL && (*at)->tag != tag) at = &(*at)->next;
  reduction_t *found = *at;
  if (found != NULL) *at = found->next;
  return found;
}

/* Waits for reductions that were not awaited, keeps their results, and leaves the peer group. */
static void drop_group(pcclComm_t *comm) {
  for (reduction_t *each = comm->reductions; each != NULL; each = each->next) {
    if (each->work == NULL) continue;
    each->result = finish(comm, each->work, &each->info);
    each->work = NULL;
  }
  if (comm->group != comm->run) pccl_comm_destroy(comm->group);
  comm->group = NULL;
}

/* ---- peer groups */

/* Flags above the number of the peer group in a member's word (roll_t). is_groupless: the member is
 * in no peer group yet, so all peer groups are made anew. is_lost: the member's word is missing, as
 * it was lost before. */
static const uint64_t is_groupless = (uint64_t)1 << 32, is_lost = (uint64_t)1 << 33;

/* The members of the run, and the word that each member sent at the safe point, by rank. */
typedef struct roll {
  uint32_t count;
  uint64_t *said;
  pccl_peer_id_t *members;
  pccl_outcome_t outcome;
} roll_t;

static int is_of(uint64_t said, uint32_t peer_group) {
  return !(said & is_lost) && (uint32_t)said == peer_group;
}

static sizes_t count(const roll_t *roll, uint32_t peer_group) {
  sizes_t sizes = {0, 0, 0, 0};
  for (uint32_t rank = 0; rank < roll->count; rank++) {
    uint32_t group = (uint32_t)roll->said[rank], members = 0;
    if (roll->said[rank] & is_lost) continue;
    for (uint32_t at = 0; at < roll->count; at++) {
      if (!is_of(roll->said[at], group)) continue;
      if (at < rank) break; /* the group was counted at that rank */
      members++;
    }
    if (members == 0) continue;
    sizes.groups++;
    if (group == peer_group) {
      sizes.own = members;
      continue;
    }
    sizes.others += members;
    if (members > sizes.largest_other) sizes.largest_other = members;
  }
  return sizes;
}

/* Gathers the words of all members of the run. */
static pcclResult_t call_roll(pccl_comm_t *run, uint64_t own, pcclResult_t lost, roll_t *roll) {
  pccl_collective_options_t options = PCCL_COLLECTIVE_OPTIONS_INIT;
  options.tag = split_tag;
  options.recovery = PCCL_RECOVERY_RESTART;
  pccl_work_t *work = NULL;
  TRY(result_of(pccl_all_gather_async(run, &own, roll->said, 1, PCCL_U64, &options, &work), lost));
  pcclResult_t result = end(run, work, lost, &roll->outcome);
  for (uint32_t at = 0; result == pcclSuccess && at < roll->outcome.range_count; at++) {
    pccl_outcome_range_t range = PCCL_OUTCOME_RANGE_INIT;
    result = result_of(pccl_work_range(work, at, &range, NULL, 0), lost);
    if (range.contributor_count > 0) continue;
    for (uint64_t rank = range.begin; rank < range.end; rank++) roll->said[rank] = is_lost;
  }
  pccl_work_destroy(work);
  return result;
}

/* Makes the sub-group of this peer's peer group. Peers in Python give it the same name. */
static pcclResult_t found(pcclComm_t *comm, pccl_comm_t *run, pcclResult_t lost, roll_t *roll) {
  char name[PCCL_NAME_BYTES_MAX + 1];
  pccl_comm_options_t options = PCCL_COMM_OPTIONS_INIT;
  const char *run_name = text_of("PCCL_GROUP");
  int bytes = snprintf(name, sizeof name, "%s@%" PRIu64 ":%" PRIu32 ".%" PRIu64,
                       run_name != NULL ? run_name : "default", roll->outcome.epoch,
                       comm->peer_group, roll->outcome.sequence);
  if (bytes >= (int)sizeof name)
    return refuse(pcclInvalidArgument,
                  "PCCL_GROUP is too long for a run with several peer groups");
  options.group = name;
  uint32_t founders = 0;
  for (uint32_t rank = 0; rank < roll->count; rank++) {
    if (is_of(roll->said[rank], comm->peer_group)) roll->members[founders++] = roll->members[rank];
  }
  pccl_comm_t *group = NULL;
  TRY(result_of(pccl_comm_subgroup(run, roll->members, founders, &options, &group), lost));
  pcclResult_t result = result_of(pccl_comm_admit(group, 0, NULL), lost);
  if (result == pcclSuccess) comm->group = group;
  else pccl_comm_destroy(group);
  return result;
}

static pcclResult_t split_by(pcclComm_t *comm, pccl_comm_t *run, pcclResult_t lost, roll_t *roll) {
  uint64_t own = comm->peer_group | (comm->group == NULL ? is_groupless : 0);
  TRY(call_roll(run, own, lost, roll));
  pthread_mutex_lock(&comm->mutex);
  sizes_t sizes = comm->sizes = count(roll, comm->peer_group);
  pthread_mutex_unlock(&comm->mutex);
  uint32_t rank = 0;
  while (rank < roll->count && !(roll->said[rank] & is_groupless)) rank++;
  if (rank == roll->count) return pcclSuccess;
  drop_group(comm);
  if (sizes.groups > 1) return found(comm, run, lost, roll);
  comm->group = run;
  return pcclSuccess;
}

/* Learns the peer groups of all members; if a member is in no peer group, makes all groups anew. */
static pcclResult_t split(pcclComm_t *comm, pccl_comm_t *run, pcclResult_t lost) {
  roll_t roll = {.count = pccl_comm_members(run, NULL, 0)};
  roll.outcome.size = sizeof roll.outcome;
  roll.said = calloc(roll.count, sizeof *roll.said);
  roll.members = calloc(roll.count, sizeof *roll.members);
  pcclResult_t result;
  if (roll.said == NULL || roll.members == NULL) {
    result = out_of_memory();
  } else {
    pccl_comm_members(run, roll.members, roll.count);
    result = split_by(comm, run, lost, &roll);
  }
  free(roll.said);
  free(roll.members);
  return result;
}

/* ---- membership */

/* Writes the token: that of PCCL_TOKEN, or one made of the master's address. */
static pcclResult_t read_token(const pcclCommCreateParams_t *params, char *token) {
  pccl_token_info_t info = PCCL_TOKEN_INFO_INIT;
  const char *given = text_of("PCCL_TOKEN");
  TRY(given != NULL ? result_of(pccl_token_parse(given, &info), pcclInvalidArgument)
                    : write_address(&params->master_address, info.address));
  const uint8_t *run_id = given != NULL ? info.run_id : (const uint8_t *)RUN_ID;
  return result_of(pccl_token_create(info.address, run_id, token, PCCL_TOKEN_BYTES_MAX),
                   pcclInvalidArgument);
}

pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out) {
  TRY(initialized());
  if (params == NULL) return is_null("params");
  if (comm_out == NULL) return is_null("comm_out");
  pcclComm_t *comm = calloc(1, sizeof *comm);
  if (comm == NULL) return out_of_memory();
  comm->peer_group = params->peer_group;
  pthread_mutex_init(&comm->mutex, NULL);
  pcclResult_t result = read_token(params, comm->token);
  if (result == pcclSuccess) *comm_out = comm;
  else free(comm);
  return result;
}

pcclResult_t pcclDestroyCommunicator(pcclComm_t *communicator) {
  pcclComm_t *comm;
  TRY(usable(communicator, &comm));
  while (comm->reductions != NULL) {
    reduction_t *withdrawn = take(comm, comm->reductions->tag);
    pccl_work_destroy(withdrawn->work);
    free(withdrawn);
  }
  drop_group(comm);
  pccl_comm_destroy(comm->run);
  pthread_mutex_destroy(&comm->mutex);
  free(comm);
  return pcclSuccess;
}

pcclResult_t pcclConnect(pcclComm_t *communicator) {
  const pcclResult_t lost = pcclMasterConnectionFailed;
  pcclComm_t *comm;
  pccl_comm_options_t options;
  char label[LABEL_BYTES_MAX];
  TRY(usable(communicator, &comm));
  if (comm->run != NULL) return refuse(pcclInvalidUsage, "it is connected");
  TRY(read_peer_options(&options, label));
  pccl_comm_t *run = NULL;
  TRY(result_of(pccl_comm_create(comm->token, &options, &run), lost));
  /* Retries without a limit, as members of the run may take any time to reach their safe point. */
  pccl_status_t status = PCCL_DEADLINE_EXCEEDED;
  while (status == PCCL_DEADLINE_EXCEEDED) status = pccl_comm_admit_together(run, 0, NULL);
  pcclResult_t result = check(run, status, lost);
  if (result == pcclSuccess) result = split(comm, run, lost);
  if (result == pcclSuccess) comm->run = run;
  else pccl_comm_destroy(run);
  return result;
}

pcclResult_t pcclUpdateTopology(pcclComm_t *communicator) {
  const pcclResult_t lost = pcclUpdateTopologyFailed;
  pcclComm_t *comm;
  TRY(usable(communicator, &comm));
  if (comm->run == NULL) return refuse(pcclInvalidUsage, "call pcclConnect first");
  TRY(expect_rest(comm->run, lost));
  if (comm->group != NULL) TRY(expect_rest(comm->group, lost));
  TRY(check(comm->run, pccl_comm_admit_together(comm->run, 0, NULL), lost));
  return split(comm, comm->run, lost);
}

pcclResult_t pcclGetAttribute(const pcclComm_t *communicator, pcclAttribute_t attribute,
                              int *p_attribute_out) {
  pcclComm_t *comm;
  TRY(connected(communicator, &comm));
  if (p_attribute_out == NULL) return is_null("p_attribute_out");
  const sizes_t now = sizes_of(comm);
  switch (attribute) {
    case PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE: *p_attribute_out = (int)(now.own + now.others); break;
    case PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE: *p_attribute_out = (int)now.own; break;
    case PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS: *p_attribute_out = (int)now.groups; break;
    case PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE:
      *p_attribute_out = (int)(now.own > now.largest_other ? now.own : now.largest_other);
      break;
    default:
      return refuse(pcclInvalidArgument, "there is no pcclAttribute_t %u", (unsigned)attribute);
  }
  return pcclSuccess;
}

pcclResult_t pcclArePeersPending(const pcclComm_t *communicator, bool *pending_out) {
  const pcclResult_t lost = pcclRankConnectionLost;
  pcclComm_t *comm;
  TRY(connected(communicator, &comm));
  if (pending_out == NULL) return is_null("pending_out");
  pccl_comm_info_t now = PCCL_COMM_INFO_INIT;
  TRY(result_of(pccl_comm_info(comm->run, &now), lost));
  uint8_t flag = now.pending > 0 || now.alive < now.world_size;
  pccl_collective_options_t options = PCCL_COLLECTIVE_OPTIONS_INIT;
  options.tag = pending_tag;
  options.op = PCCL_MAX;
  options.recovery = PCCL_RECOVERY_RESTART;
  pccl_outcome_t outcome = PCCL_OUTCOME_INIT;
  pccl_work_t *work = NULL;
  TRY(result_of(pccl_all_reduce_async(comm->run, &flag, &flag, 1, PCCL_U8, &options, &work),
                lost));
  pcclResult_t result = end(comm->run, work, lost, &outcome);
  pccl_work_destroy(work);
  TRY(result);
  *pending_out = flag != 0;
  return pcclSuccess;
}

pcclResult_t pcclOptimizeTopology(const pcclComm_t *communicator) {
  pcclComm_t *comm;
  TRY(connected(communicator, &comm));
  const sizes_t now = sizes_of(comm);
  if (now.own + now.others < 2)
    return refuse(pcclInvalidUsage, "this peer is alone: pcclUpdateTopology lets others in");
  return result_of(pccl_comm_optimize_topology(comm->group, 0, NULL),
                   pcclTopologyOptimizationFailed);
}

/* ---- reductions */

static pcclResult_t expect_others(pcclComm_t *comm) {
  if (sizes_of(comm).own > 1) return pcclSuccess;
  return refuse(pcclTooFewPeers, "this peer is alone in its peer group");
}

static pcclResult_t begin(pcclComm_t *comm, const void *send, void *recv,
                          const pcclReduceDescriptor_t *given, pccl_work_t **work) {
  if (given->count == 0)
    return refuse(pcclInvalidArgument, "count is 0; it must be at least 1");
  pccl_collective_options_t options = PCCL_COLLECTIVE_OPTIONS_INIT;
  options.tag = given->tag;
  options.recovery = PCCL_RECOVERY_RESTART; /* one set of contributors for the whole result */
  pccl_dtype_t dtype;
  const pcclQuantizationOptions_t *how = &given->quantization_options;
  TRANSLATE(&dtype, dtypes, given->src_descriptor.datatype, "pcclDataType_t");
  TRANSLATE(&options.op, ops, given->op, "pcclRedOp_t");
  TRANSLATE(&options.codec, codecs, how->algorithm, "pcclQuantizationAlgorithm_t");
  if (how->algorithm != pcclQuantNone && how->quantized_datatype != pcclUint8)
    return refuse(pcclInvalidArgument, "elements are quantized to pcclUint8 alone, not to "
                  "pcclDataType_t %u", (unsigned)how->quantized_datatype);
  return result_of(
      pccl_all_reduce_async(comm->group, send, recv, given->count, dtype, &options, work),
      pcclRankConnectionLost);
}

pcclResult_t pcclAllReduce(const void *sendbuff, void *recvbuff,
                           const pcclReduceDescriptor_t *descriptor,
                           const pcclComm_t *communicator, pcclReduceInfo_t *reduce_info_out) {
  pcclComm_t *comm;
  TRY(connected(communicator, &comm));
  if (descriptor == NULL) return is_null("descriptor");
  TRY(expect_others(comm));
  pccl_work_t *work = NULL;
  pcclReduceInfo_t info;
  TRY(begin(comm, sendbuff, recvbuff, descriptor, &work));
  TRY(finish(comm, work, &info));
  if (reduce_info_out != NULL) *reduce_info_out = info;
  return pcclSuccess;
}

pcclResult_t pcclAllReduceAsync(const void *sendbuff, void *recvbuff,
                                const pcclReduceDescriptor_t *descriptor,
                                const pcclComm_t *communicator,
                                pcclAsyncReduceOp_t *reduce_handle_out) {
  pcclComm_t *comm;
  TRY(connected(communicator, &comm));
  if (descriptor == NULL) return is_null("descriptor");
  if (reduce_handle_out == NULL) return is_null("reduce_handle_out");
  TRY(expect_others(comm));
  reduction_t *made = calloc(1, sizeof *made);
  if (made == NULL) return out_of_memory();
  made->tag = descriptor->tag;
  reduction_t *unused = made;
  pthread_mutex_lock(&comm->mutex);
  pcclResult_t result = begin(comm, sendbuff, recvbuff, descriptor, &made->work);
  if (result == pcclSuccess) {
    /* An earlier reduction of this tag is over, as the library has not refused the tag. */
    unused = take(comm, made->tag);
    made->next = comm->reductions;
    comm->reductions = made;
    *reduce_handle_out = (pcclAsyncReduceOp_t){comm, made->tag};
  }
  pthread_mutex_unlock(&comm->mutex);
  if (unused != NULL) pccl_work_destroy(unused->work);
  free(unused);
  return result;
}

pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                  pcclReduceInfo_t *reduce_info_out) {
  if (reduce_handle == NULL) return is_null("reduce_handle");
  pcclComm_t *comm;
  TRY(usable(reduce_handle->comm, &comm));
  pthread_mutex_lock(&comm->mutex);
  reduction_t *taken = take(comm, reduce_handle->tag);
  pthread_mutex_unlock(&comm->mutex);
  if (taken == NULL)
    return refuse(pcclInvalidUsage,
                  "no reduction with tag %" PRIu64 " is to be awaited: each is awaited once",
                  reduce_handle->tag);
  if (taken->work != NULL) taken->result = finish(comm, taken->work, &taken->info);
  const reduction_t over = *taken;
  free(taken);
  if (over.result == pcclSuccess && reduce_info_out != NULL) *reduce_info_out = over.info;
  return over.result;
}

static void launch(pcclComm_t *comm, const pcclReduceOpDescriptor_t *given, reduction_t *part) {
  part->result = begin(comm, given->sendbuf, given->recvbuf, &given->descriptor, &part->work);
}

/* Waits for the end of a reduction, which it begins again if it was aborted. */
static void end_part(pcclComm_t *comm, const pcclReduceOpDescriptor_t *given, reduction_t *part) {
  for (int tries = 1; tries < TRIES_MAX && part->result == pcclSuccess; tries++) {
    if (wait_for(part->work) != PCCL_ABORTED) break;
    pccl_work_destroy(part->work);
    launch(comm, given, part);
  }
  if (part->result == pcclSuccess) part->result = finish(comm, part->work, &part->info);
}

/* Makes all reductions, in_flight at a time. Every member begins the reductions in the same order,
 * and waits for the first unfinished reduction, so all members have begun that reduction. */
static pcclResult_t make_all(pcclComm_t *comm, const pcclReduceOpDescriptor_t *given, size_t count,
                             size_t in_flight, reduction_t *parts, pcclReduceInfo_t *total) {
  pcclResult_t first = pcclSuccess;
  for (size_t at = 0, begun = 0; at < count; at++) {
    for (; begun < count && begun < at + in_flight; begun++)
      launch(comm, &given[begun], &parts[begun]);
    end_part(comm, &given[at], &parts[at]);
    if (first == pcclSuccess) first = parts[at].result;
    total->tx_bytes += parts[at].info.tx_bytes;
    total->rx_bytes += parts[at].info.rx_bytes;
  }
  return first;
}

pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors,
                                            size_t count, const pcclComm_t *communicator,
                                            pcclReduceInfo_t *reduce_info_out, int max_in_flight) {
  pcclComm_t *comm;
  TRY(connected(communicator, &comm));
  if (descriptors == NULL) return is_null("descriptors");
  if (count == 0 || max_in_flight < 1)
    return refuse(pcclInvalidArgument,
                  "count is %zu and max_in_flight %d; both must be 1 or more", count,
                  max_in_flight);
  TRY(expect_others(comm));
  reduction_t *parts = calloc(count, sizeof *parts);
  if (parts == NULL) return out_of_memory();
  size_t in_flight = max_in_flight < IN_FLIGHT_MAX ? (size_t)max_in_flight : IN_FLIGHT_MAX;
  pcclReduceInfo_t total = {0, 0, 0};
  pcclResult_t result = make_all(comm, descriptors, count, in_flight, parts, &total);
  free(parts);
  TRY(result);
  total.local_world_size = sizes_of(comm).own;
  if (reduce_info_out != NULL) *reduce_info_out = total;
  return expect_others(comm);
}

/* ---- shared state */

static pcclResult_t read_tensor(const pcclTensorInfo_t *info, uint64_t *shape,
                                pccl_tensor_t *tensor) {
  if (info->device_type != pcclDeviceCpu)
    return refuse(pcclInvalidArgument, "a tensor is on pcclDeviceType_t %u: copy it to the CPU",
                  (unsigned)info->device_type);
  *shape = info->count;
  *tensor = (pccl_tensor_t){.name = info->name, .data = info->data, .shape = shape,
                            .dimensions = 1};
  if (info->allow_content_inequality) tensor->flags = PCCL_TENSOR_MAY_DIFFER;
  TRANSLATE(&tensor->dtype, dtypes, info->datatype, "pcclDataType_t");
  return pcclSuccess;
}

/* Syncs a state of PCCL 1.0, which has no handle, so each sync makes a pccl_state_t. */
static pcclResult_t sync_once(pcclComm_t *comm, pcclSharedState_t *shared,
                              const pccl_state_options_t *options, pccl_strategy_t strategy,
                              pcclSharedStateSyncInfo_t *info) {
  const pcclResult_t lost = pcclRankConnectionLost;
  pccl_state_t *state = NULL;
  TRY(result_of(pccl_state_create(comm->group, options, &state), lost));
  pccl_sync_options_t how = PCCL_SYNC_OPTIONS_INIT;
  how.strategy = strategy;
  how.revision = shared->revision;
  how.flags = PCCL_SYNC_AT_REVISION;
  pccl_sync_outcome_t outcome = PCCL_SYNC_OUTCOME_INIT;
  pcclResult_t result = check(comm->group, pccl_state_sync(state, &how, &outcome), lost);
  pccl_state_destroy(state);
  TRY(result);
  shared->revision = outcome.elected_revision;
  if (info != NULL)
    *info = (pcclSharedStateSyncInfo_t){outcome.bytes_sent, outcome.bytes_received};
  return pcclSuccess;
}

pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator,
                                        pcclSharedState_t *shared_state,
                                        pcclSharedStateSyncStrategy_t strategy,
                                        pcclSharedStateSyncInfo_t *sync_info_out) {
  pccl_strategy_t wish;
  pcclComm_t *comm;
  TRY(connected(communicator, &comm));
  if (shared_state == NULL) return is_null("shared_state");
  if (shared_state->infos == NULL) return is_null("infos");
  TRANSLATE(&wish, strategies, strategy, "pcclSharedStateSyncStrategy_t");
  TRY(expect_rest(comm->group, pcclRankConnectionLost));
  size_t count = shared_state->count;
  if (count > TENSORS_MAX)
    return refuse(pcclInvalidArgument, "the state has %zu tensors; it may have %d", count,
                  TENSORS_MAX);
  pccl_tensor_t *tensors = calloc(count + 1, sizeof *tensors);
  uint64_t *shapes = calloc(count + 1, sizeof *shapes);
  pcclResult_t result = pcclSuccess;
  if (tensors == NULL || shapes == NULL) result = out_of_memory();
  for (size_t at = 0; result == pcclSuccess && at < count; at++)
    result = read_tensor(&shared_state->infos[at], &shapes[at], &tensors[at]);
  pccl_state_options_t options = PCCL_STATE_OPTIONS_INIT;
  options.tensors = tensors;
  options.tensor_count = count;
  options.flags = PCCL_STATE_ONE_SENDER;
  if (result == pcclSuccess)
    result = sync_once(comm, shared_state, &options, wish, sync_info_out);
  free(tensors);
  free(shapes);
  return result;
}
