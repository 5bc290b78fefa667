/* pccl.h of PCCL 1.0, over this library: programs that were written for PCCL 1.0 compile and run unchanged.
 *
 * This header has the names of PCCL 1.0 with its numbers and fields; ../pccl.h is the interface of this library, which
 * new programs use. Both headers are called pccl.h, so an include path finds only one of them (`pccl flags --compat`
 * prints the path of this header). libpccl has the functions of both headers; functions of this header call functions
 * of ../pccl.h. Differences from PCCL 1.0, each with its reason, are in docs/guides/MIGRATING.md.
 *
 * Rules that hold for every function:
 *   - A function returns a pcclResult_t. After a failure pccl_last_error(), the only name that PCCL 1.0 does not have,
 *     gives one sentence for a person; it is per thread. A NULL argument, and a number that an enum does not have, are
 *     pcclInvalidArgument.
 *   - Before pcclInit, calls on communicators answer pcclNotInitialized. Calls on masters need no pcclInit.
 *   - One thread makes the calls of a communicator. Other threads may reduce (pcclAllReduceAsync, pcclAwaitAsyncReduce)
 *     and read attributes meanwhile, but must not be in a call during pcclUpdateTopology and pcclDestroyCommunicator.
 *   - A call that all peers make together blocks until all peers have made it, without a limit. PCCL_DEADLINE in the
 *     environment sets a limit in seconds. A call fails 5 seconds after the master is gone (PCCL_RECONNECT_TIMEOUT).
 *     docs/reference/ENVIRONMENT.md lists further variables. PCCL_TOKEN names the run instead of an address, so that
 *     programs run under `pccl run`.
 *   - pcclMasterConnectionFailed means that this peer has lost the master, or was removed: destroy the communicator,
 *     and connect with another one. After every other result the communicator may be used again.
 */
#ifndef PCCL_COMPAT_PCCL_H
#define PCCL_COMPAT_PCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define PCCL_EXPORT __declspec(dllimport)
#else
#define PCCL_EXPORT __attribute__((visibility("default")))
#endif
/* PCCL_NULLABLE marks an argument that may be NULL. */
#define PCCL_NULLABLE

/* The default port of a master. */
#define CCOIP_PROTOCOL_PORT_MASTER 48148
/* The ports of a peer in PCCL 1.0. A peer of this library listens on one port: the first free port from 48149 on
 * (PCCL_PORTS). */
#define CCOIP_PROTOCOL_PORT_SHARED_STATE 48149
#define CCOIP_PROTOCOL_PORT_P2P 48150
#define CCOIP_PROTOCOL_PORT_BANDWIDTH_BENCHMARK 48151

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Addresses ------------------------------------------------------------------------------------------- */

typedef enum ccoip_inet_protocol_t { inetIPv4 = 0, inetIPv6 = 1 } ccoip_inet_protocol_t;

typedef struct ccoip_ipv4_address_t {
  uint8_t data[4];
} ccoip_ipv4_address_t;

typedef struct ccoip_ipv6_address_t {
  uint8_t data[16];
} ccoip_ipv6_address_t;

/* `protocol` says which of the two addresses is used; the other one is ignored. */
typedef struct ccoip_inet_address_t {
  ccoip_inet_protocol_t protocol;
  ccoip_ipv4_address_t ipv4;
  ccoip_ipv6_address_t ipv6;
} ccoip_inet_address_t;

typedef struct ccoip_socket_address_t {
  ccoip_inet_address_t inet;
  uint16_t port;
} ccoip_socket_address_t;

/* ---- Words ----------------------------------------------------------------------------------------------- */

typedef enum pcclResult_t {
  pcclSuccess = 0,
  pcclNotInitialized = 1,
  pcclInternalError = 2,              /* no memory, or the operating system refused, e.g. a port in use */
  pcclInvalidArgument = 3,            /* also: peers made the same call with different arguments */
  pcclInvalidUsage = 4,               /* called in a wrong state: before pcclConnect, or with a tag in use */
  pcclTooFewPeers = 5,                /* this peer is alone in its peer group */
  pcclMasterConnectionFailed = 6,
  pcclRankConnectionFailed = 7,       /* never returned: a peer that cannot be reached is not a member */
  pcclRankConnectionLost = 8,         /* all other peers were lost, or a deadline passed; the input is as it was */
  pcclNoSharedStateAvailable = 9,     /* no peer has a state whose content may be taken */
  pcclPendingAsyncOps = 10,           /* reductions are in flight here: await them first */
  pcclUpdateTopologyFailed = 11,      /* no peer has passed the safe point: call pcclUpdateTopology again */
  pcclTopologyOptimizationFailed = 12 /* links were still being probed at the deadline; the paths may still change */
} pcclResult_t;

/* Type of one element. */
typedef enum pcclDataType_t {
  pcclUint8 = 0,
  pcclInt8 = 1,
  pcclInt16 = 2,
  pcclUint16 = 3,
  pcclUint32 = 4,
  pcclInt32 = 5,
  pcclUint64 = 6,
  pcclInt64 = 7,
  pcclFloat16 = 8,
  pcclBFloat16 = 9,
  pcclFloat = 10,
  pcclDouble = 11
} pcclDataType_t;

/* The device of a tensor's memory; only pcclDeviceCpu is accepted. */
typedef enum pcclDeviceType_t { pcclDeviceCpu = 0, pcclDeviceCuda = 1, pcclDeviceHip = 2 } pcclDeviceType_t;

typedef enum pcclRedOp_t { pcclSum = 0, pcclAvg = 1, pcclProd = 2, pcclMax = 3, pcclMin = 4 } pcclRedOp_t;

typedef enum pcclAttribute_t {
  PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1,             /* peers of the run */
  PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2,         /* peers in this peer's peer group */
  PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3,      /* peer groups that have peers */
  PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4  /* peers in the largest peer group */
} pcclAttribute_t;

/* How a peer takes part in a sync of a shared state. */
typedef enum pcclSharedStateSyncStrategy_t {
  PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0, /* the content of most peers is taken */
  PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1,    /* this peer's content is never taken */
  PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2        /* all peers get this peer's content; the others receive only */
} pcclSharedStateSyncStrategy_t;

/* How the elements' values are distributed: ignored. The last three names come from headers after 1.0.0. */
typedef enum pcclDistributionHint_t {
  PCCL_DISTRIBUTION_HINT_NONE = 0,
  PCCL_NORMAL_DISTRIBUTION_HINT = 1,
  PCCL_UNIFORM_DISTRIBUTION_HINT = 2,
  pcclDistributionNone = 0,
  pcclDistributionNormal = 1,
  pcclDistributionUniform = 2
} pcclDistributionHint_t;

/* How floats travel in a sum or an average. Both algorithms encode to pcclUint8. */
typedef enum pcclQuantizationAlgorithm_t {
  pcclQuantNone = 0,
  pcclQuantMinMax = 1,
  pcclQuantZeroPointScale = 2
} pcclQuantizationAlgorithm_t;

/* ---- Structs --------------------------------------------------------------------------------------------- */

typedef struct pcclCommCreateParams_t {
  ccoip_socket_address_t master_address; /* ignored if the environment has PCCL_TOKEN */
  uint32_t peer_group;                   /* peers reduce and share state with peers of the same peer_group */
  uint32_t p2p_connection_pool_size;     /* ignored: the master's PCCL_COORDINATOR_LANES_PER_LINK sets it */
} pcclCommCreateParams_t;

typedef struct pcclComm_t pcclComm_t;         /* opaque */
typedef struct pcclRankInfo_t pcclRankInfo_t; /* opaque; no function takes or returns a pcclRankInfo_t */

typedef struct pcclRankUuid_t {
  uint8_t data[16];
} pcclRankUuid_t;

typedef struct pcclReduceInfo_t {
  uint32_t local_world_size; /* number of peers that have contributed */
  uint64_t tx_bytes;         /* payload bytes that this peer sent (tx) and received (rx) for the reduction */
  uint64_t rx_bytes;
} pcclReduceInfo_t;

typedef struct pcclReduceOperandDescriptor_t {
  pcclDataType_t datatype;
  pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;

typedef struct pcclQuantizationOptions_t {
  pcclDataType_t quantized_datatype; /* ignored with pcclQuantNone */
  pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;

typedef struct pcclReduceDescriptor_t {
  size_t count; /* elements, at least one */
  pcclRedOp_t op;
  uint64_t tag; /* reductions with different tags may be in flight together; below 1 << 62 */
  pcclReduceOperandDescriptor_t src_descriptor;
  pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;

typedef struct pcclReduceSingleDescriptor_t {
  void *sendbuf;
  void *recvbuf;
  pcclReduceDescriptor_t descriptor;
} pcclReduceOpDescriptor_t;

typedef struct pcclAsyncReduceOp_t {
  pcclComm_t *comm;
  uint64_t tag;
} pcclAsyncReduceOp_t;

typedef struct pcclTensorInfo_t {
  const char *name; /* unique among the tensors of its state */
  void *data;
  size_t count;
  pcclDataType_t datatype;
  pcclDeviceType_t device_type;
  bool allow_content_inequality; /* name, type and count must agree, but the content may differ and is never written */
} pcclTensorInfo_t;

typedef struct pcclSharedState_t {
  uint64_t revision; /* number of the content's version; the program sets it, below 1 << 62 */
  size_t count;
  pcclTensorInfo_t *infos;
} pcclSharedState_t;

typedef struct pcclSharedStateSyncInfo_t {
  uint64_t tx_bytes; /* bytes of tensors that this peer sent (tx) and received (rx) in the sync */
  uint64_t rx_bytes;
} pcclSharedStateSyncInfo_t;

typedef struct pcclMasterInstanceState_t pcclMasterInstance_t; /* opaque */

typedef struct pcclBuildInfo_t {
  bool has_cuda_support; /* always false, as has_hip_support is */
  bool has_hip_support;
} pcclBuildInfo_t;

/* ---- Library --------------------------------------------------------------------------------------------- */

/* Call pcclInit once in a process, before the calls on communicators; further calls do nothing. Any thread may call
 * pcclInit, which returns at once. */
PCCL_EXPORT pcclResult_t pcclInit(void);

PCCL_EXPORT pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *info);

/* One sentence about this thread's last failure; "" if there was none. PCCL 1.0 lacks this function. The text is valid
 * until a call of this thread fails again. */
PCCL_EXPORT const char *pccl_last_error(void);

/* ---- Communicators: membership of this process in the run ------------------------------------------------ */

/* Makes a communicator, without a connection. Returns at once. */
PCCL_EXPORT pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out);

/* Leaves the run, which goes on without this peer, and frees the communicator. Reductions in flight are withdrawn, and
 * their buffers are released when this call returns. */
PCCL_EXPORT pcclResult_t pcclDestroyCommunicator(pcclComm_t *communicator);

/* Joins the run: tries for a second to reach the master (pcclMasterConnectionFailed: call pcclConnect again), and then
 * waits, without a limit, until the peers of the run let this peer in with pcclUpdateTopology. The first peers enter
 * together, when PCCL_INITIAL_WORLD_SIZE peers are there; by default the first peer enters at once. */
PCCL_EXPORT pcclResult_t pcclConnect(pcclComm_t *communicator);

/* Reads an attribute, which is equal on all peers: attributes change in pcclConnect, in pcclUpdateTopology, and with
 * the result of a reduction whose peer group has lost a peer. Any thread may call pcclGetAttribute, which returns at
 * once. */
PCCL_EXPORT pcclResult_t pcclGetAttribute(const pcclComm_t *communicator, pcclAttribute_t attribute,
                                          int *p_attribute_out);

/* The safe point: all peers of the run pass it together, and newcomers enter there. pcclPendingAsyncOps while
 * reductions are in flight here. */
PCCL_EXPORT pcclResult_t pcclUpdateTopology(pcclComm_t *communicator);

/* Whether there is a reason to call pcclUpdateTopology: a newcomer waits, or a peer was lost, after which no newcomer
 * enters before all peers have called pcclUpdateTopology. All peers of the run call pcclArePeersPending together, and
 * get the same answer. Reductions may be in flight. */
PCCL_EXPORT pcclResult_t pcclArePeersPending(const pcclComm_t *communicator, bool *pending_out);

/* Waits until the data of the peer group takes the best paths: links whose rates are not known are probed first. Any
 * peer may call it, alone or together with others; reductions may be in flight. Paths follow the measured rates without
 * it, too, but wait for a quiet moment. pcclInvalidUsage if this peer is alone. */
PCCL_EXPORT pcclResult_t pcclOptimizeTopology(const pcclComm_t *communicator);

/* ---- Reductions ------------------------------------------------------------------------------------------ */

/* recvbuff := reduction of sendbuff over the peer group; equal bytes on every peer. sendbuff == recvbuff is in place;
 * other overlap is pcclInvalidArgument. After a loss of peers the reduction is made again among the survivors, whose
 * number is local_world_size. On any other result than pcclSuccess sendbuff is as it was, in place too. */
PCCL_EXPORT pcclResult_t pcclAllReduce(const void *sendbuff, void *recvbuff, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator,
                                       pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/* Begins a reduction as pcclAllReduce, and returns at once. The buffers stay borrowed until pcclAwaitAsyncReduce has
 * returned. A tag may be used again when its reduction is over. */
PCCL_EXPORT pcclResult_t pcclAllReduceAsync(const void *sendbuff, void *recvbuff,
                                            const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                            pcclAsyncReduceOp_t *reduce_handle_out);

/* Waits for the end of a reduction and returns its result, once; a second call for the same reduction returns
 * pcclInvalidUsage. Any thread may call it. */
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                              pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/* Makes several reductions, in the order of descriptors, at most max_in_flight (and 64) at once, each with its own tag.
 * A reduction that all peers had to abort is made again, three times at most. All reductions are tried; the result is
 * that of the first reduction that failed. The info has the bytes of all reductions, and the peer group's size now. */
PCCL_EXPORT pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                                        const pcclComm_t *communicator,
                                                        pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out,
                                                        int max_in_flight);

/* ---- Shared state ---------------------------------------------------------------------------------------- */

/* Makes the tensors equal in the peer group, whose peers must all call it; revision becomes that of the content taken.
 * The content of peers from before the last update wins, then the highest revision, then the content of most peers.
 * Unless the call returns pcclSuccess, tensors and revision are as they were. The program must not use the tensors
 * during the call. pcclInvalidArgument, on all peers: names, types or counts differ between peers, or a peer sends only
 * and another peer does not receive only. pcclMasterConnectionFailed: this peer is new, its names, types or counts
 * differ from those of the other peers, and the other peers go on without this peer. pcclPendingAsyncOps: reductions
 * are in flight here. */
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                                    pcclSharedStateSyncStrategy_t strategy,
                                                    pcclSharedStateSyncInfo_t *PCCL_NULLABLE sync_info_out);

/* ---- Masters --------------------------------------------------------------------------------------------- */

/* Makes a master that will listen on listen_address. Returns at once. */
PCCL_EXPORT pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address,
                                          pcclMasterInstance_t **p_master_handle_out);

/* Starts the master on a thread of the library, and returns. pcclInternalError: it cannot listen on its address.
 * pcclInvalidUsage: the master runs, or has run. */
PCCL_EXPORT pcclResult_t pcclRunMaster(pcclMasterInstance_t *master_instance);

/* Makes pcclMasterAwaitTermination end the run. Any thread and signal handlers may call it. pcclInvalidUsage if the
 * master does not run. */
PCCL_EXPORT pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master_instance);

/* Waits for pcclInterruptMaster, without a limit, and ends the run: its peers lose the master. pcclInvalidUsage if the
 * master does not run. */
PCCL_EXPORT pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master_instance);

/* Ends the run if the master still runs, and frees the master. */
PCCL_EXPORT pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master_instance);

#ifdef __cplusplus
}
#endif
#endif /* PCCL_COMPAT_PCCL_H */
