/* pccl.h: the C ABI of PCCL, the only public contract of the native library.
 *
 * This header has every type, constant and function that a C program (or a binding) may use. How the library works is
 * in docs/internals/ARCHITECTURE.md, and what it promises in docs/reference/PROMISE.md.
 *
 * Rules that hold for every function:
 *   - A function that can fail returns a pccl_status_t. On any status but PCCL_OK, pccl_last_error() gives one
 *     sentence for a person: which peer, what was expected, what to do. The sentence is per thread, and valid until
 *     the next failing call of that thread. Four functions return a count instead: pccl_comm_members,
 *     pccl_comm_joined, pccl_comm_left and pccl_comm_not_entered. They return 0 once the communicator is closed; for a
 *     NULL handle, or a handle of the parent in a forked child, they return 0 and set pccl_last_error().
 *   - Handles are opaque and thread-safe: any thread may call any function on a handle, except that a handle must
 *     not be used during or after its destroy.
 *   - Options structs begin with their size; initialise them with the _INIT macro (or zero them and set size).
 *     A zero field means the default. Fields are only ever appended, so old callers keep working.
 *   - Times are nanoseconds (uint64_t, suffix _ns), sizes are bytes (suffix _bytes), counts are elements.
 *   - Buffers are borrowed: a blocking call borrows them until it returns, an asynchronous call until its work is
 *     finished. Two operations in flight may read the same memory; a call that would write memory that another
 *     operation uses is refused.
 *   - A process forked after pccl_comm_create must not use the parent's handles: every call but destroy answers
 *     PCCL_INVALID_USAGE there. fork() closes the child's copies of the library's sockets at once (pthread_atfork), so
 *     that peers still notice when the parent dies; exec closes them too. A child made by a bare clone or vfork that
 *     does not exec keeps the sockets open until it ends. A forked child keeps the memory that it inherits until it
 *     ends.
 */
#ifndef PCCL_H
#define PCCL_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define PCCL_API __declspec(dllimport)
#else
#define PCCL_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---------------------------------------------------------------------------------------------- */

typedef enum pccl_status {
  PCCL_OK = 0,
  PCCL_TIMEOUT = 1,                 /* a wait timed out: the work is not finished or not decided, or the log is empty */
  PCCL_INVALID_ARGUMENT = 2,        /* a bad argument; nothing was sent and no sequence number was used */
  PCCL_INVALID_USAGE = 3,           /* called in a wrong state: after close, in a forked child, a tag already in use; or
                                       the coordinator refuses the group, and the sentence has its reason */
  PCCL_OUT_OF_MEMORY = 4,           /* there is not enough memory for the operation; nothing was sent */
  PCCL_MISMATCH = 5,                /* peers called the same operation with different descriptors; if only a newcomer's
                                       first call differs, the newcomer alone gets it, and is no member any more */
  PCCL_ABORTED = 6,                 /* the operation was aborted for all peers; the input is as it was */
  PCCL_EXPELLED = 7,                /* this peer is no longer a member of the group; connect again to go on */
  PCCL_IN_DOUBT = 8,                /* a deadline, a cancel or the loss of the coordinator came after this peer's vote,
                                       so the operation may have committed; see pccl_work_resolve */
  PCCL_DEADLINE_EXCEEDED = 9,       /* the deadline passed; the input is as it was */
  PCCL_TOO_FEW_PEERS = 10,          /* fewer than min_world_size peers are left */
  PCCL_COORDINATOR_UNREACHABLE = 11,/* no connection to the coordinator could be made, or it was lost */
  PCCL_AUTHENTICATION_FAILED = 12,  /* the token belongs to another run */
  PCCL_VERSION_MISMATCH = 13,       /* the other side speaks another wire version, or is not PCCL at all */
  PCCL_STATE_UNAVAILABLE = 14,      /* pccl_state_sync: no member holds the shared state any more */
  PCCL_CANCELLED = 15,              /* the caller withdrew the operation, or closed the communicator */
  PCCL_SYSTEM_ERROR = 16            /* the operating system refused: port in use, too many open files; or the journal
                                       of a coordinator is in use or damaged */
} pccl_status_t;

/* The name of a status, e.g. "PCCL_MISMATCH". Static storage. */
PCCL_API const char *pccl_status_name(pccl_status_t status);

/* One sentence about this thread's last failure; "" if there was none. Valid until a call of this thread fails
 * again. */
PCCL_API const char *pccl_last_error(void);
/* Makes a copy of the sentence this thread's last failure. A library on top of PCCL calls it, so that callers of that
 * library can ask pccl_last_error() about its failures too. A sentence of more than 1024 bytes is cut; NULL is "". */
PCCL_API void pccl_set_last_error(const char *sentence);

/* ---- Version --------------------------------------------------------------------------------------------- */

#define PCCL_VERSION_MAJOR 0
#define PCCL_VERSION_MINOR 1
#define PCCL_VERSION_PATCH 0

/* major * 10000 + minor * 100 + patch of the loaded library. */
PCCL_API uint32_t pccl_version(void);
/* The version of the loaded library as text, e.g. "0.1.0". Static storage. */
PCCL_API const char *pccl_version_string(void);
/* The version of the wire protocol, which must be equal in all peers and the coordinator. */
PCCL_API uint32_t pccl_wire_version(void);
/* CPU level of the kernels in use: "baseline", "v3", "v4", "v4x" (x86-64). Static storage.
 * PCCL_CPU_LEVEL in the environment forces a level (an unknown or unsupported name fails the first create). */
PCCL_API const char *pccl_cpu_level(void);

/* ---- Words ----------------------------------------------------------------------------------------------- */

typedef enum pccl_dtype {
  PCCL_F32 = 0,
  PCCL_F64 = 1,
  PCCL_F16 = 2,
  PCCL_BF16 = 3,
  PCCL_I8 = 4,
  PCCL_U8 = 5,
  PCCL_I16 = 6,
  PCCL_U16 = 7,
  PCCL_I32 = 8,
  PCCL_U32 = 9,
  PCCL_I64 = 10,
  PCCL_U64 = 11
} pccl_dtype_t;

typedef enum pccl_reduce_op {
  PCCL_SUM = 0,
  PCCL_AVG = 1,
  PCCL_PROD = 2,
  PCCL_MIN = 3,
  PCCL_MAX = 4,
  PCCL_BAND = 5, /* band, bor, bxor: bitwise and, or, exclusive or of integers; PCCL_INVALID_ARGUMENT for floats */
  PCCL_BOR = 6,
  PCCL_BXOR = 7
} pccl_reduce_op_t;

/* The effect of a peer's death on an operation in flight (docs/internals/PROMISE.md). */
typedef enum pccl_recovery {
  PCCL_RECOVERY_DEFAULT = 0, /* complete for collectives with a shard for each rank (reduce_scatter, all_gather,
                                scatter, gather, all_to_all); of the others, resume for avg, else restart */
  PCCL_RECOVERY_RESUME = 1,  /* the survivors keep finished chunks; contributors may differ between ranges */
  PCCL_RECOVERY_RESTART = 2, /* one set of contributors for the whole result; a gathered shard is whole, or zeros */
  PCCL_RECOVERY_RAISE = 3,   /* PCCL_ABORTED on every survivor, unless all had voted when the loss was noticed; a call
                                after the loss runs among the remaining members */
  PCCL_RECOVERY_COMPLETE = 4 /* every member of the epoch contributes, or PCCL_ABORTED for all; also if a member was
                                lost or had left before the call, until an epoch without that member begins */
} pccl_recovery_t;

/* `form` of a call whose u8 arrays are bool to the caller: the sentence of a PCCL_MISMATCH then tells u8 and bool
 * apart, by name. */
#define PCCL_FORM_BOOL 1819242339
/* `form` of a broadcast or an all_gather of bytes that are an object to the caller: errors call the operation
 * broadcast_object or all_gather_object, and do not mention the bytes. */
#define PCCL_FORM_OBJECT 1868720741

/* How the data of an operation moves (docs/internals/ALGORITHMS.md). The plan of a call is a wish, which the library
 * cannot follow over broken links or in very large groups. */
typedef enum pccl_plan {
  PCCL_PLAN_AUTO = 0,  /* direct with a codec, and for scatter, gather and all_to_all; else what measured rates make
                          faster, and ring as long as none are known */
  PCCL_PLAN_RING = 1,  /* data goes from each member to the next */
  PCCL_PLAN_DIRECT = 2, /* data goes from all members to the owner of each part, and from the owner to all members */
  PCCL_PLAN_MESSAGE = 3 /* in an outcome only: data goes from the sender to the receiver of a message */
} pccl_plan_t;

/* The congestion control of a peer's lanes, by which TCP finds out how fast it may send (docs/guides/PERFORMANCE.md).
 * If the system does not let this process use bbr or cubic, the log says once what to do, and the system's stays. */
typedef enum pccl_congestion {
  PCCL_CONGESTION_AUTO = 0,   /* the system's, with exceptions: bbr, if permitted, on links that lose packets though no
                                 queue on the way is full; reno between peers of one machine; and reno instead of cubic
                                 until a lane has lost a packet or its link is full */
  PCCL_CONGESTION_SYSTEM = 1, /* the system's, always */
  PCCL_CONGESTION_BBR = 2,    /* bbr, between peers of one machine too */
  PCCL_CONGESTION_CUBIC = 3   /* cubic, between peers of one machine too */
} pccl_congestion_t;

/* Whether links of unknown capacity are probed while no operation moves data (docs/guides/PERFORMANCE.md). */
typedef enum pccl_probe {
  PCCL_PROBE_AUTO = 0, /* links to peers more than 2 ms away are probed, for at most a second and 16 MiB at a time */
  PCCL_PROBE_OFF = 1   /* links are never probed */
} pccl_probe_t;

/* Whether the paths of data follow measured rates (docs/guides/PERFORMANCE.md). */
typedef enum pccl_plans {
  PCCL_PLANS_AUTO = 0, /* the ring goes around slow links, and members with thin links own less of direct schedules */
  PCCL_PLANS_FIXED = 1 /* rank order, around broken links alone: equal calls give equal bits in each run */
} pccl_plans_t;

/* How floats travel (docs/reference/CODECS.md). If all members have a result, all of them decode it from the same
 * bytes, its owner or source too. If a single peer has a result, as in a reduce or a reduce_scatter, the result is not
 * encoded a second time. In an all_to_all a peer's own shard is not encoded at all. */
typedef enum pccl_codec {
  PCCL_CODEC_NONE = 0,
  PCCL_CODEC_BF16 = 1,
  PCCL_CODEC_F16 = 2,
  PCCL_CODEC_INT8 = 3,          /* integers of 8, 6, 5, 4 bits with a bf16 scale for each block */
  PCCL_CODEC_INT6 = 4,
  PCCL_CODEC_INT5 = 5,
  PCCL_CODEC_INT4 = 6,
  PCCL_CODEC_E3M0 = 7,          /* a sign and 3 bits of exponent, with a scale for each block */
  PCCL_CODEC_FP8_E4M3 = 8,      /* fp8 of the format E4M3, with a scale for each block */
  PCCL_CODEC_MIN_MAX_U8 = 9,    /* 256 steps between the least and the greatest value of a piece */
  PCCL_CODEC_ZERO_POINT_U8 = 10 /* as min_max_u8, but with zero on a step */
} pccl_codec_t;

typedef enum pccl_rotate {
  PCCL_ROTATE_DEFAULT = 0, /* on for the codecs that have blocks */
  PCCL_ROTATE_ON = 1,      /* each block goes through random signs and a Hadamard matrix first */
  PCCL_ROTATE_OFF = 2
} pccl_rotate_t;

typedef enum pccl_rounding {
  PCCL_ROUNDING_NEAREST = 0,
  PCCL_ROUNDING_STOCHASTIC = 1 /* right on average; the random numbers depend on operation, element and rank alone */
} pccl_rounding_t;

#define PCCL_PEER_ID_BYTES 16
#define PCCL_TOKEN_BYTES_MAX 512 /* including the terminating zero */
#define PCCL_RUN_STATUS_BYTES_MAX 2097153 /* the longest status of a run with its terminating zero */
#define PCCL_NAME_BYTES_MAX 256  /* group names in UTF-8, without the terminating zero */

#define PCCL_LABEL_BYTES_MAX 80  /* labels of peers in UTF-8, without the terminating zero */

typedef struct pccl_peer_id {
  uint8_t bytes[PCCL_PEER_ID_BYTES];
} pccl_peer_id_t;

/* Size of one element in bytes; 0 for an unknown dtype. */
PCCL_API size_t pccl_dtype_size(pccl_dtype_t dtype);

/* ---- Tokens ---------------------------------------------------------------------------------------------- */

typedef struct pccl_token_info {
  size_t size;
  char address[256];  /* host or [v6], colon, port, as given to pccl_token_create */
  uint8_t run_id[16];
} pccl_token_info_t;
#define PCCL_TOKEN_INFO_INIT { sizeof(pccl_token_info_t), {0}, {0} }

/* Makes a token: "pccl1-" and base64url. address is "host:port", "1.2.3.4:port" or "[v6]:port".
 * run_id is 16 bytes, or NULL for a random run id. token receives at most capacity bytes with the terminating zero. */
PCCL_API pccl_status_t pccl_token_create(const char *address, const uint8_t *run_id, char *token, size_t capacity);
/* Reads a token. PCCL_INVALID_ARGUMENT if it is truncated or mistyped (a token carries a checksum). */
PCCL_API pccl_status_t pccl_token_parse(const char *token, pccl_token_info_t *info);

/* ---- Coordinator ----------------------------------------------------------------------------------------- */

typedef struct pccl_coordinator pccl_coordinator_t; /* opaque */

typedef struct pccl_coordinator_options {
  size_t size;
  const char *bind;            /* address to listen on, "host:port" or "host"; NULL: "127.0.0.1". Without a port, or
                                  with port 0, any free port */
  const char *advertise;       /* address that goes into the token, "host" or "host:port"; NULL: the bound address */
  const uint8_t *run_id;       /* 16 bytes; NULL: random */
  uint32_t min_world_size;     /* a group with fewer members fails with PCCL_TOO_FEW_PEERS; 0: 1 */
  uint32_t initial_world_size; /* number of peers that the first epoch of a group waits for, unless the peers set it;
                                  0: 1 */
  uint32_t lanes_per_link;     /* TCP connections between two peers, 1..64; 0: auto, each link finds out how many lanes
                                  raise its rate */
  uint32_t chunk_bytes;        /* largest chunk, 1 KiB..256 KiB, a power of two; 0: 256 KiB */
  uint64_t window_bytes;       /* limit, at each peer, of the memory for partial sums of all operations together, and of
                                  the bytes requested from one source of a shared state; at most 1 GiB; 0: 256 MiB. An
                                  operation has 16 MiB for partial sums, or the limit if that is less. An operation
                                  with more sums in flight gets more memory, within the limit */
  uint64_t heartbeat_ns;       /* interval of a peer's heartbeats; 0: 0.5 s. Like all times here at most seven days */
  uint64_t silence_ns;         /* a peer that is silent for this long is lost; 0: 5 s. At least 3 heartbeats */
  uint64_t prepare_ns;         /* time that a newcomer has to open its lanes; 0: 10 s */
  const char *state_dir;       /* directory of the journal, made if its parent exists; NULL: the run ends with the
                                  coordinator. See pccl_coordinator_create */
  uint64_t stall_warning_ns;   /* a member that lacks a call which over half of the members have made is named in the
                                  log, the status and PCCL_DEADLINE_EXCEEDED after this time; 0: 10 s. At least a
                                  heartbeat */
  uint64_t stall_ns;           /* a member that lacks such a call for this long is removed from the group; 0: never. At
                                  least stall_warning_ns */
  uint64_t memory_bytes;       /* limit of all queues of the coordinator together, 16 MiB or more; beyond it, the peer
                                  with the longest queue is removed; 0: 512 MiB */
  pccl_probe_t probe;          /* whether links of the run may be probed. The journal does not keep it */
  pccl_plans_t plans;          /* whether paths follow measured rates. The journal does not keep it */
} pccl_coordinator_options_t;
#define PCCL_COORDINATOR_OPTIONS_INIT \
  { sizeof(pccl_coordinator_options_t), NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, PCCL_PROBE_AUTO, \
    PCCL_PLANS_AUTO }

/* Starts a coordinator in this process, on a thread of its own. options may be NULL.
 * If state_dir holds a run, the coordinator goes on with that run: run id, port and every option that is not given come
 * from the journal, and the token is the same. PCCL_INVALID_ARGUMENT if an option differs, or if the address in the
 * token would differ; both may differ until the first epoch of the run begins. PCCL_SYSTEM_ERROR if another coordinator
 * uses the directory, or if its journal is damaged; PCCL_VERSION_MISMATCH if another version wrote the journal. */
PCCL_API pccl_status_t pccl_coordinator_create(const pccl_coordinator_options_t *options,
                                               pccl_coordinator_t **coordinator);
/* The token with which peers join the coordinator's run. Valid until destroy. */
PCCL_API const char *pccl_coordinator_token(const pccl_coordinator_t *coordinator);
/* The port that the coordinator listens on. */
PCCL_API uint16_t pccl_coordinator_port(const pccl_coordinator_t *coordinator);
/* Stops the coordinator: its connections close, and peers see PCCL_COORDINATOR_UNREACHABLE. NULL is allowed. */
PCCL_API void pccl_coordinator_destroy(pccl_coordinator_t *coordinator);

/* Asks the coordinator of a token for the status of the run: JSON, schema in docs/reference/STATUS.md. Writes at most
 * capacity bytes with the terminating zero; *length is the full length without it. PCCL_INVALID_ARGUMENT if capacity is
 * too small: ask again with *length + 1, though the next status may be longer, or with PCCL_RUN_STATUS_BYTES_MAX, which
 * is always enough.
 * The coordinator sends a host few large answers a second: beyond that this call waits a second, asks once more, and
 * then fails with PCCL_COORDINATOR_UNREACHABLE.
 * Blocks for timeout_ns at most (0: 5 s). */
PCCL_API pccl_status_t pccl_run_status(const char *token, uint64_t timeout_ns, char *json, size_t capacity,
                                       size_t *length);

/* Asks for the status as pccl_run_status, and has members of the run dial the given peer, once each, to find out
 * whether it can be reached. "dial_back" of the status has the results so far; call again for later results
 * (docs/guides/NETWORKING.md). The peer must be connected to the coordinator from the machine of this call; otherwise,
 * or while another peer is being dialed, no member dials. */
PCCL_API pccl_status_t pccl_run_dial_back(const char *token, const pccl_peer_id_t *peer, uint64_t timeout_ns,
                                          char *json, size_t capacity, size_t *length);

/* ---- Communicator: membership of this process in one group of the run ------------------------------------ */

typedef struct pccl_comm pccl_comm_t; /* opaque */

typedef struct pccl_comm_options {
  size_t size;
  const char *group;           /* name of the group, 1..256 bytes of UTF-8; NULL: "default" */
  const char *bind;            /* address to listen on for other peers, "host:port" or "host"; NULL: the interface
                                  that leads to the coordinator, with advertise on all of them */
  const char *advertise;       /* address that other peers dial, "host" or "host:port"; NULL: the local address of the
                                  connection to the coordinator, with the bound port; if the peer cannot be reached
                                  there, the host from which the coordinator sees the connection, with the same port */
  uint32_t initial_world_size; /* number of peers that the first epoch of this group waits for; 0: the coordinator's
                                  default */
  uint64_t deadline_ns;        /* default deadline of collectives and admit on this communicator; 0: 10 min */
  uint64_t connect_ns;         /* how long create waits to reach the coordinator; 0: 30 s */
  const pccl_peer_id_t *peer_id; /* NULL: random. A second live peer with the same id is refused */
  /* A thread that blocks in create, join, admit or sync of this communicator calls `interrupted` about every 50 ms. If
   * it returns non-zero, the blocked call is withdrawn and ends with PCCL_CANCELLED (a withdrawn admit has not passed
   * the safe point; call it again). `interrupted` is meant for Ctrl-C, and may call pccl_comm_close, but no other
   * function of this header. NULL: calls are not interrupted. */
  int (*interrupted)(void *context);
  void *interrupted_context;
  const char *ports;           /* ports to listen on, "29400-29500" or "29400"; the first free port is taken if bind
                                  names no port (or port 0); NULL: any */
  const char *label;           /* name of this peer for people, up to 80 bytes of UTF-8, shown beside its id in errors,
                                  logs and the status; it decides nothing. NULL or "": "host:pid" */
  uint64_t reconnect_timeout_ns; /* how long calls wait while the coordinator is away, or answers nothing for half of
                                  the silence limit. Then this peer is out of all its groups: its calls end with
                                  PCCL_COORDINATOR_UNREACHABLE, or PCCL_IN_DOUBT after the vote, and new calls fail.
                                  1: no wait; 0: calls wait until their deadlines */
  uint64_t send_rate;          /* limit of the bytes per second that this peer sends to all peers together,
                                  1000..1.25e12; 0: no limit */
  pccl_congestion_t congestion;
  pccl_probe_t probe;          /* whether links of this peer may be probed, in both directions */
  const char *send_rates;      /* send rates as text, also for single peers: "100mbit,eu-1=20mbit" (pccl_rate_parse).
                                  Only one of send_rate and send_rates may have a rate for all peers. NULL: none */
} pccl_comm_options_t;
#define PCCL_COMM_OPTIONS_INIT \
  { sizeof(pccl_comm_options_t), NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, \
    PCCL_CONGESTION_AUTO, PCCL_PROBE_AUTO, NULL }

/* Parses rates as in send_rates of pccl_comm_options_t. The rate for all peers together is "200mbit", "25MB" or
 * "1.5gbit" (per second), or a number of bytes per second, from 8kbit to 10tbit. After commas follow rates for single
 * peers, 32 at most: "eu-1=20mbit" for the peer with the label eu-1. Before the "=", "eu-*" stands for all labels that
 * begin with "eu-", and a peer id, or its first eight digits, for a peer. The first entry that names a peer sets the
 * peer's rate. *rate becomes the rate for all peers in bytes per second, 0 if the text has none. On
 * PCCL_INVALID_ARGUMENT the sentence names the invalid part; it calls the text `name`. */
PCCL_API pccl_status_t pccl_rate_parse(const char *text, const char *name, uint64_t *rate);

/* Connects to the coordinator and registers this peer in a group. Returns when a lane to each member is open
 * (or, in a new group, when initial_world_size peers are there). The first pccl_comm_admit enters the group.
 * Blocks for at most deadline_ns once the coordinator answers. options may be NULL. */
PCCL_API pccl_status_t pccl_comm_create(const char *token, const pccl_comm_options_t *options, pccl_comm_t **comm);
/* Joins another group of the same run through the connection and the port that comm already has.
 * Only group, initial_world_size and deadline_ns of options are used. */
PCCL_API pccl_status_t pccl_comm_join(pccl_comm_t *comm, const pccl_comm_options_t *options, pccl_comm_t **joined);
/* Makes a sub-group: a group of these members of comm's current epoch, its founders, with ranks in the order of the
 * list. No other peer ever enters a sub-group. All founders must call this with the same list and the same name, at the
 * same place of the program; otherwise all of them get PCCL_MISMATCH. Returns when all founders have called it, but for
 * those that were lost to comm or have left it. pccl_comm_admit of the sub-group then enters it, and returns when all
 * founders have called that. The sub-groups of two epochs need different names: put the epoch into the name. A
 * sub-group is a group of its own: it survives losses, and safe points of comm, until it is closed. A sub-group has no
 * minimum size. Only group, deadline_ns and interrupted of options are used. A run has at most 64 groups at a time, and
 * a peer is in at most 8 groups. */
PCCL_API pccl_status_t pccl_comm_subgroup(pccl_comm_t *comm, const pccl_peer_id_t *founders, uint32_t count,
    const pccl_comm_options_t *options, pccl_comm_t **subgroup);
/* Sets the default deadline of later calls on comm, which deadline_ns of the options has set before; deadline_ns of the
 * options also limits how long making comm may take. 0: 10 min. Any thread may set the deadline at any time. */
PCCL_API pccl_status_t pccl_comm_set_deadline(pccl_comm_t *comm, uint64_t deadline_ns);
/* Leaves the group gracefully: the other members go on without this peer. Operations in flight here end with
 * PCCL_CANCELLED. Closing the last communicator of a peer also closes the peer's connections. Idempotent; every other
 * later call on comm answers PCCL_INVALID_USAGE. */
PCCL_API pccl_status_t pccl_comm_close(pccl_comm_t *comm);
/* Closes the communicator if needed, and frees it. Its works must be destroyed first. NULL is allowed. */
PCCL_API void pccl_comm_destroy(pccl_comm_t *comm);

typedef struct pccl_admission {
  size_t size;
  uint64_t epoch;       /* number of the epoch that is now in force */
  uint32_t rank;        /* rank of this peer, 0 .. world_size-1 */
  uint32_t world_size;
  uint32_t joined_count; /* number of new members of this epoch, if changed; pccl_comm_joined lists them */
  uint32_t left_count;   /* number of members of the previous epoch that are gone; pccl_comm_left lists them */
  uint32_t changed;      /* 1 if this call entered a new epoch, else 0 */
} pccl_admission_t;
#define PCCL_ADMISSION_INIT { sizeof(pccl_admission_t), 0, 0, 0, 0, 0, 0 }

/* Passes a safe point: the only place where newcomers enter, and where rank and world_size change. Every member must
 * call pccl_comm_admit equally often. Returns without a network round trip if no change of members is pending. Each
 * member enters a new epoch at its own call, so a newcomer may enter before the members: pccl_comm_not_entered.
 * deadline_ns 0: the communicator's default. */
PCCL_API pccl_status_t pccl_comm_admit(pccl_comm_t *comm, uint64_t deadline_ns, pccl_admission_t *admission);
/* Passes a safe point together: returns when all members have called it, and all enter the same new epoch, or none
 * does. A newcomer that calls pccl_comm_admit_together enters when all earlier members have. All members must call it
 * at the same safe points; a member that calls pccl_comm_admit at such a safe point does not wait, while the other
 * members wait for that call. The call costs an operation of all members, and fails as an operation does; then no
 * member has passed the safe point: call it again. After a deadline the other members may have passed the safe point;
 * then this member's next call passes it. */
PCCL_API pccl_status_t pccl_comm_admit_together(pccl_comm_t *comm, uint64_t deadline_ns, pccl_admission_t *admission);
/* The number of newcomers that wait for the next pccl_comm_admit_together, equal on all members. All members must call
 * pccl_comm_pending_agreed, which passes no safe point. The newcomers enter at the next pccl_comm_admit_together unless
 * they are lost; or, if a member was lost, at the one after the next. */
PCCL_API pccl_status_t pccl_comm_pending_agreed(pccl_comm_t *comm, uint64_t deadline_ns, uint32_t *pending);
/* Members that have not passed the safe point at which the current epoch begins, as far as this peer knows: they are
 * still in the previous epoch, and operations of the current epoch wait for them. Writes at most capacity ids and
 * returns how many there are. */
PCCL_API uint32_t pccl_comm_not_entered(pccl_comm_t *comm, pccl_peer_id_t *ids, uint32_t capacity);
/* The peers that joined, and that left, with the epoch of the last admit; every member gets the same lists. Writes at
 * most capacity ids and returns how many there are. */
PCCL_API uint32_t pccl_comm_joined(pccl_comm_t *comm, pccl_peer_id_t *ids, uint32_t capacity);
PCCL_API uint32_t pccl_comm_left(pccl_comm_t *comm, pccl_peer_id_t *ids, uint32_t capacity);

typedef struct pccl_comm_info {
  size_t size;
  uint64_t epoch;        /* number of the epoch; 0 before the first admit, when rank, world_size and alive are 0 too */
  uint32_t attempt;      /* rises when the members begin an attempt after a loss or a broken lane; one event may count
                            twice */
  uint32_t rank;
  uint32_t world_size;   /* number of members at the begin of the epoch; changes only in admit */
  uint32_t alive;        /* number of members of the epoch that were not lost and have not left */
  uint32_t pending;      /* number of newcomers that wait for the next safe point, as far as this peer knows */
  uint32_t operations_in_flight; /* operations called and not decided, also those that wait for their turn */
  pccl_peer_id_t peer_id;
  uint64_t bytes_sent;   /* bytes of payload and headers that the peer sent on lanes, since create, over all its groups;
                            bytes_received: that it received */
  uint64_t bytes_received;
  pccl_status_t lost;    /* PCCL_OK for a member; once this peer is no longer a member, the status of all later calls in
                            the group, e.g. PCCL_EXPELLED, and the numbers above are the last that the peer knew */
  uint32_t reserved;     /* 0 */
} pccl_comm_info_t;
#define PCCL_COMM_INFO_INIT { sizeof(pccl_comm_info_t), 0, 0, 0, 0, 0, 0, 0, {{0}}, 0, 0, PCCL_OK, 0 }

PCCL_API pccl_status_t pccl_comm_info(pccl_comm_t *comm, pccl_comm_info_t *info);
/* A limit of a plan: the link between two ranks; or, with PCCL_PLAN_ALL_LINKS at one end, all links of the rank at the
 * other end together. */
typedef struct pccl_plan_limit {
  uint32_t from;
  uint32_t to;
} pccl_plan_limit_t;
#define PCCL_PLAN_ALL_LINKS 0xffffffffu
#define PCCL_PLAN_LIMITS_MAX 8
#define PCCL_PLAN_ORDER_MAX 512 /* the most members of a group */
#define PCCL_PLAN_SHARES_MAX 32 /* the most members of an epoch that has a direct plan */

/* The plan of an epoch's current attempt: the way that the data of a call with PCCL_PLAN_AUTO takes, and its time
 * (docs/guides/PLANS.md). Times are of an all_reduce of 64 MiB at the rates that this peer knows. */
typedef struct pccl_comm_plan {
  size_t size;
  uint64_t epoch;        /* number of the epoch; 0 before the first admit, when all numbers are 0 */
  uint32_t attempt;
  uint32_t kind;         /* PCCL_PLAN_RING or PCCL_PLAN_DIRECT */
  uint64_t small_bytes;  /* calls of fewer bytes are direct, and all members own equally much of their data */
  uint64_t predicted_ns; /* 0: a rate that is needed is not known */
  uint64_t bound_ns;     /* the least time whatever the plan; 0: not known */
  uint32_t world_size;
  uint32_t order_count;  /* number of members in the order of the ring, without members that are gone; 0: no ring avoids
                            the broken links */
  uint32_t limit_count;  /* number of limits: the links that need longest */
  uint32_t reserved;     /* 0 */
  pccl_plan_limit_t limits[PCCL_PLAN_LIMITS_MAX];
  uint8_t shares[PCCL_PLAN_SHARES_MAX]; /* by rank, the parts of the data that each member owns in the direct plan. All
                                           0: the members own equally much */
  uint16_t order[PCCL_PLAN_ORDER_MAX];  /* the ranks in the order of the ring */
} pccl_comm_plan_t;
#define PCCL_COMM_PLAN_INIT \
  { sizeof(pccl_comm_plan_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {{0, 0}}, {0}, {0} }

/* The present plan. Costs no network round trip. */
PCCL_API pccl_status_t pccl_comm_plan(pccl_comm_t *comm, pccl_comm_plan_t *plan);
/* Waits until no better plan is known: links whose rates are not known are probed first, and a better plan begins at
 * once, although members may be busy. Any member may call it, alone or together with others, at any time; operations go
 * on meanwhile. Plans follow the rates without it, but wait for a quiet moment, and links are probed while nothing
 * moves. plan may be NULL. PCCL_INVALID_USAGE before the first admit; after PCCL_DEADLINE_EXCEEDED a better plan may
 * still begin. deadline_ns 0: the communicator's default. */
PCCL_API pccl_status_t pccl_comm_optimize_topology(pccl_comm_t *comm, uint64_t deadline_ns, pccl_comm_plan_t *plan);
/* Members of the current epoch in rank order. Writes at most capacity ids and returns how many there are. */
PCCL_API uint32_t pccl_comm_members(pccl_comm_t *comm, pccl_peer_id_t *ids, uint32_t capacity);

/* The label of a peer: this peer, a member of the epoch, or a peer that joined, left or waits to enter. Empty if the
 * label is not known (any more). Writes the label with its terminating zero. PCCL_INVALID_ARGUMENT if capacity is too
 * small: PCCL_LABEL_BYTES_MAX + 1 is always enough. */
PCCL_API pccl_status_t pccl_comm_label(pccl_comm_t *comm, const pccl_peer_id_t *peer, char *label, size_t capacity);

/* ---- Collectives ----------------------------------------------------------------------------------------- */

typedef struct pccl_work pccl_work_t; /* opaque: one asynchronous operation */

typedef struct pccl_collective_options {
  size_t size;
  uint64_t tag;          /* operations with different tags may be in flight together; one operation at a time per tag.
                            A group has at most 64 collectives, 64 sends and 64 receives in flight. Up to 1,024 calls
                            beyond these wait for their turn, each of the three kinds in the order of its calls; then
                            all members must make their calls in the same order.
                            A program with a new tag for each operation must take the next number each time: an epoch
                            holds 65,536 tags that do not follow each other. Tags from 254 << 56 on belong to messages
                            and shared states */
  uint64_t deadline_ns;  /* time that the call may take; 0: the communicator's default */
  pccl_reduce_op_t op;   /* used by all_reduce, reduce, reduce_scatter */
  pccl_recovery_t recovery;
  pccl_plan_t plan;
  pccl_codec_t codec;       /* for floats, in all collectives but broadcast and barrier; a reduction must be sum or avg;
                               all members must give the same codec with the same options */
  uint32_t codec_block;     /* number of elements that share a scale: 32, 64, 128 or 256; 0: 128 */
  pccl_rotate_t codec_rotate;
  pccl_rounding_t codec_rounding;
  uint32_t reserved;        /* 0 */
  /* Error feedback, for all_reduce, reduce and reduce_scatter: two arrays with an f32 for each element of send_buffer,
   * or both NULL. residual_in is added to send_buffer; residual_out receives the losses of this peer's encodings: of
   * its contribution, of sums it passes on, of results it owns. After a success, pass residual_out as residual_in of
   * the next call; after a failure, ignore residual_out and pass the old residual_in again. The two arrays must not
   * overlap. */
  const float *residual_in;
  float *residual_out;
  uint64_t form; /* 0, or a number for what the arrays are to the caller: all members must give the same form, else
                    PCCL_MISMATCH. Its lower 32 bits are 0, or a hash, e.g. of the arrays' names; for bool arrays
                    PCCL_FORM_BOOL. Its upper 32 bits are the shape: 0 for one dimension, and for one matrix the length
                    of its rows, below 2^31. So (uint64_t)3 << 32 fits a NumPy array x of shape (2, 3), and 0 fits
                    x.reshape(-1). For lists of arrays, and for three dimensions, Python puts a hash there that C cannot
                    compute: flatten them in Python. Messages, barriers and all_to_all_v ignore the form */
} pccl_collective_options_t;
#define PCCL_COLLECTIVE_OPTIONS_INIT \
  { sizeof(pccl_collective_options_t), 0, 0, PCCL_SUM, PCCL_RECOVERY_DEFAULT, PCCL_PLAN_AUTO, PCCL_CODEC_NONE, 0, \
    PCCL_ROTATE_DEFAULT, PCCL_ROUNDING_NEAREST, 0, NULL, NULL, 0 }

/* recv_buffer := reduction over all members of send_buffer, count elements of dtype each; equal bytes on every peer.
 * send_buffer == recv_buffer is in place; other overlap is PCCL_INVALID_ARGUMENT. A call with count 0 takes part.
 * Every collective leaves send_buffer as it was on any status but PCCL_OK, in place too; a separate recv_buffer may
 * then hold anything; a broadcast is in place. Blocks until the operation is committed or has failed. options may be
 * NULL. work (optional, may be NULL) receives a finished work whose outcome can be read; destroy it. work is set on
 * PCCL_OK and on PCCL_IN_DOUBT. */
PCCL_API pccl_status_t pccl_all_reduce(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                       pccl_dtype_t dtype, const pccl_collective_options_t *options,
                                       pccl_work_t **work);
/* buffer of every member := buffer of root (a rank of the current epoch), which is only read at root. On any status but
 * PCCL_OK buffer is as it was on every member. */
PCCL_API pccl_status_t pccl_broadcast(pccl_comm_t *comm, void *buffer, uint64_t count, pccl_dtype_t dtype,
                                      uint32_t root, const pccl_collective_options_t *options, pccl_work_t **work);
/* recv_buffer of root := reduction over all members of send_buffer, count elements each. On other ranks recv_buffer is
 * not used and may be NULL. In place at root: send_buffer == recv_buffer. */
PCCL_API pccl_status_t pccl_reduce(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                   pccl_dtype_t dtype, uint32_t root, const pccl_collective_options_t *options,
                                   pccl_work_t **work);
/* recv_buffer := this rank's shard of the reduction over all members of send_buffer, which has world_size shards of
 * count elements each, in rank order. In place: recv_buffer is this rank's shard of send_buffer. _v: shards of
 * counts[rank] elements, the same on every member; ranks is the number of counts and must be world_size. By default
 * (PCCL_RECOVERY_COMPLETE) a member that is lost or has left ends the call with PCCL_ABORTED on all members; with
 * another recovery no peer receives the shard of a lost rank. */
PCCL_API pccl_status_t pccl_reduce_scatter(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                           uint64_t count, pccl_dtype_t dtype,
                                           const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_reduce_scatter_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                             const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype,
                                             const pccl_collective_options_t *options, pccl_work_t **work);
/* recv_buffer := the shards of all ranks, in rank order: each member sends count elements (_v: counts[its rank]) and
 * receives world_size times count (the sum of counts). In place: send_buffer is this rank's shard of recv_buffer.
 * A member that is lost or has left ends the call with PCCL_ABORTED on all members. With recovery restart or resume the
 * call goes on: elements of a lost member that no survivor has received are zeros in recv_buffer, equally on all
 * members, and the outcome names no contributor for them; with restart, a shard comes whole or not at all. */
PCCL_API pccl_status_t pccl_all_gather(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                       pccl_dtype_t dtype, const pccl_collective_options_t *options,
                                       pccl_work_t **work);
PCCL_API pccl_status_t pccl_all_gather_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                         const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype,
                                         const pccl_collective_options_t *options, pccl_work_t **work);
/* recv_buffer of each member := its rank's shard of send_buffer of root, which has world_size shards of count elements
 * each (_v: of counts[rank]), in rank order. On other ranks send_buffer is not used and may be NULL. In place at root:
 * recv_buffer is the root's shard of send_buffer. A lost root ends the call with PCCL_ABORTED. */
PCCL_API pccl_status_t pccl_scatter(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                    pccl_dtype_t dtype, uint32_t root, const pccl_collective_options_t *options,
                                    pccl_work_t **work);
PCCL_API pccl_status_t pccl_scatter_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                      const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype, uint32_t root,
                                      const pccl_collective_options_t *options, pccl_work_t **work);
/* recv_buffer of root := the shards of all ranks, in rank order, as in all_gather; on other ranks recv_buffer is not
 * used and may be NULL. In place at root: send_buffer is the root's shard of recv_buffer. A lost root ends the call
 * with PCCL_ABORTED, whatever the recovery. */
PCCL_API pccl_status_t pccl_gather(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                   pccl_dtype_t dtype, uint32_t root, const pccl_collective_options_t *options,
                                   pccl_work_t **work);
PCCL_API pccl_status_t pccl_gather_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                     const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype, uint32_t root,
                                     const pccl_collective_options_t *options, pccl_work_t **work);
/* Shard r of recv_buffer := this rank's shard of send_buffer of rank r. Both buffers have world_size shards of count
 * elements each, in rank order, and must not overlap. A lost member has the effects that it has in pccl_all_gather. */
PCCL_API pccl_status_t pccl_all_to_all(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                       pccl_dtype_t dtype, const pccl_collective_options_t *options,
                                       pccl_work_t **work);
/* pccl_all_to_all with shards of different sizes: send_counts[rank] elements go to each rank, and recv_counts[rank]
 * come from it; ranks is the number of counts in each list and must be world_size. Every two ranks must agree about the
 * counts between them, else PCCL_MISMATCH, which names the two ranks. At most 32 ranks. Data goes straight from each
 * rank to each other rank, whatever the plan, so a link that stays broken ends the call with PCCL_ABORTED. */
PCCL_API pccl_status_t pccl_all_to_all_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                         const uint64_t *send_counts, const uint64_t *recv_counts, uint32_t ranks,
                                         pccl_dtype_t dtype, const pccl_collective_options_t *options,
                                         pccl_work_t **work);

typedef enum pccl_collective {
  PCCL_ALL_REDUCE = 0,
  PCCL_BROADCAST = 1,
  PCCL_REDUCE = 4,
  PCCL_REDUCE_SCATTER = 5,
  PCCL_ALL_GATHER = 6,
  PCCL_SCATTER = 7,
  PCCL_GATHER = 8,
  PCCL_ALL_TO_ALL = 9
} pccl_collective_t;

/* One array of a coalesced call; its fields are the arguments of the collective. A broadcast uses recv_buffer alone,
 * which is only read at the root. Zero the struct first; `reserved` stays zero. */
typedef struct pccl_array {
  const void *send_buffer;
  void *recv_buffer;
  uint64_t count;
  pccl_dtype_t dtype;
  uint32_t reserved;
} pccl_array_t;

/* One operation on several arrays, at most 16384 over all ranks, of any dtypes, without a copy: the operation succeeds
 * or fails for all arrays, with one tag and one outcome. Every member must give as many arrays, with the same counts
 * and dtypes, in the same order. The list is copied; the buffers stay the caller's. Only collectives with a root use
 * root. The arrays of error feedback have an f32 for each element of all send_buffers together (of a reduce_scatter
 * world_size times count for each array), array after array. Ranges of the outcome number the elements of all arrays:
 * rank after rank, and in each rank's shard array after array. */
PCCL_API pccl_status_t pccl_coalesced(pccl_comm_t *comm, pccl_collective_t collective, const pccl_array_t *arrays,
                                      uint64_t array_count, uint32_t root, const pccl_collective_options_t *options,
                                      pccl_work_t **work);
/* One message: count elements of dtype go from buffer of rank src, which calls pccl_send, to buffer of rank dst, which
 * calls pccl_recv. No other peer takes part. Both ranks must name each other, and the same tag, dtype and count
 * (PCCL_MISMATCH otherwise), and have passed the same safe points. Messages of one tag from one rank to another arrive
 * in the order of their calls. Each direction between two ranks has tags of its own, so a send and a recv of one tag
 * may be in flight with the same rank, and with other ranks. tag is below 1 << 38; of the other options only
 * deadline_ns is used. Both calls return when the receiver has all data. So two ranks that both send first wait for
 * each other until a deadline: use the asynchronous calls there. A lost partner, or a broken link to the partner, ends
 * the call with PCCL_ABORTED; a loss of another rank does not. On any status but PCCL_OK the buffer of a recv may hold
 * anything. */
PCCL_API pccl_status_t pccl_send(pccl_comm_t *comm, const void *buffer, uint64_t count, pccl_dtype_t dtype,
                                 uint32_t dst, const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_recv(pccl_comm_t *comm, void *buffer, uint64_t count, pccl_dtype_t dtype, uint32_t src,
                                 const pccl_collective_options_t *options, pccl_work_t **work);
/* Returns when every member that is not lost has called pccl_barrier; `recovery` says what a loss does. */
PCCL_API pccl_status_t pccl_barrier(pccl_comm_t *comm, const pccl_collective_options_t *options, pccl_work_t **work);

/* The functions _async begin the same operations, and return at once. Buffers stay borrowed until the work is finished:
 * until then the caller must neither read nor write them. work must not be NULL. */
PCCL_API pccl_status_t pccl_all_reduce_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                             uint64_t count, pccl_dtype_t dtype,
                                             const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_broadcast_async(pccl_comm_t *comm, void *buffer, uint64_t count, pccl_dtype_t dtype,
                                            uint32_t root, const pccl_collective_options_t *options,
                                            pccl_work_t **work);
PCCL_API pccl_status_t pccl_reduce_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                         uint64_t count, pccl_dtype_t dtype, uint32_t root,
                                         const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_reduce_scatter_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                                 uint64_t count, pccl_dtype_t dtype,
                                                 const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_reduce_scatter_v_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                                   const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype,
                                                   const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_all_gather_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                             uint64_t count, pccl_dtype_t dtype,
                                             const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_all_gather_v_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                               const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype,
                                               const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_scatter_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                          uint64_t count, pccl_dtype_t dtype, uint32_t root,
                                          const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_scatter_v_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                            const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype,
                                            uint32_t root, const pccl_collective_options_t *options,
                                            pccl_work_t **work);
PCCL_API pccl_status_t pccl_gather_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                         uint64_t count, pccl_dtype_t dtype, uint32_t root,
                                         const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_gather_v_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                           const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype, uint32_t root,
                                           const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_all_to_all_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                             uint64_t count, pccl_dtype_t dtype,
                                             const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_all_to_all_v_async(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                               const uint64_t *send_counts, const uint64_t *recv_counts,
                                               uint32_t ranks, pccl_dtype_t dtype,
                                               const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_coalesced_async(pccl_comm_t *comm, pccl_collective_t collective,
                                            const pccl_array_t *arrays, uint64_t array_count, uint32_t root,
                                            const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_send_async(pccl_comm_t *comm, const void *buffer, uint64_t count, pccl_dtype_t dtype,
                                       uint32_t dst, const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_recv_async(pccl_comm_t *comm, void *buffer, uint64_t count, pccl_dtype_t dtype,
                                       uint32_t src, const pccl_collective_options_t *options,
                                       pccl_work_t **work);
PCCL_API pccl_status_t pccl_barrier_async(pccl_comm_t *comm, const pccl_collective_options_t *options,
                                          pccl_work_t **work);

/* ---- Work ------------------------------------------------------------------------------------------------ */

/* Waits until the work is finished, at most timeout_ns (0: returns at once; UINT64_MAX: waits without a limit).
 * PCCL_TIMEOUT: the operation is not finished and continues. Otherwise it returns the status of the operation; on
 * PCCL_OK the result is in the buffer. */
PCCL_API pccl_status_t pccl_work_wait(pccl_work_t *work, uint64_t timeout_ns);
/* *finished := 1 if pccl_work_wait would not block. Never blocks. */
PCCL_API pccl_status_t pccl_work_poll(pccl_work_t *work, int *finished);
/* Calls finished(context) exactly once when the work is finished: from a thread of the library, or from this call if
 * the work is finished already. finished must return at once (set a flag, post a semaphore) and must not call this
 * library. A second call replaces a callback that has not run. No callback runs once pccl_work_destroy has returned. */
PCCL_API pccl_status_t pccl_work_notify(pccl_work_t *work, void (*finished)(void *context), void *context);
/* *fd := a descriptor for the caller's own poll, select, epoll or kqueue: readable once pccl_work_wait would not block,
 * and from then on (level-triggered; do not read from it). The work owns the descriptor: the first call makes it, every
 * call answers the same descriptor, and pccl_work_destroy closes it, so remove it from an epoll or kqueue set before.
 * Exec closes the descriptor, and fork closes it in the child. The descriptor does not signal that a doubt was
 * resolved. Each work costs a descriptor after this call; to have one for all works, write to a descriptor of your own
 * in the callback of pccl_work_notify.
 * PCCL_SYSTEM_ERROR: too many open files; the work goes on. */
PCCL_API pccl_status_t pccl_work_fd(pccl_work_t *work, int *fd);
/* Withdraws this peer from an operation, and so from the group: the other members go on without this peer, with this
 * operation too, as after its death. Here the operation ends with PCCL_CANCELLED and the input is as it was. Other
 * operations of the group end in the same way, and later calls in the group answer PCCL_EXPELLED: close the
 * communicator and make a new one. After this peer's vote the operation ends here with PCCL_IN_DOUBT instead, and the
 * peer stays a member, as the other members no longer need it. (A peer votes in a barrier, and perhaps as the root of a
 * broadcast, when it calls; a peer that only sends in a reduce votes once its data has left.) A message, which concerns
 * two peers only, is withdrawn alone: the peer stays a member, and the partner gets PCCL_ABORTED.
 * Returns PCCL_OK also if the work had finished before. */
PCCL_API pccl_status_t pccl_work_cancel(pccl_work_t *work);
/* After PCCL_IN_DOUBT: waits for the coordinator's decision, at most timeout_ns. PCCL_OK: the operation was committed,
 * and the result is now in recv_buffer, which must still be valid; pass copy 0 to leave the buffer alone. PCCL_ABORTED:
 * the operation was aborted. PCCL_TIMEOUT: the decision is still unknown. PCCL_COORDINATOR_UNREACHABLE: this peer will
 * never know the decision. */
PCCL_API pccl_status_t pccl_work_resolve(pccl_work_t *work, uint64_t timeout_ns, int copy);
/* Frees a work. A work that is not finished is withdrawn first, as by pccl_work_cancel, so this peer leaves the group.
 * The work's buffers are released before this call returns. NULL is allowed. */
PCCL_API void pccl_work_destroy(pccl_work_t *work);

typedef struct pccl_outcome {
  size_t size;
  uint64_t epoch;
  uint64_t tag;
  uint64_t sequence;      /* number of the operation among those of this tag in this epoch, from 0 */
  uint32_t attempts;      /* number of attempts: 1 without a loss or a broken lane */
  uint32_t range_count;   /* number of ranges of this peer's result; a range ends where the contributors change. 1
                             without a loss; for all_gather, gather and all_to_all one for each shard that has elements,
                             but one for adjoining shards that were lost. 0 for an empty result */
  uint8_t digest[16];     /* hash of the result, equal on every peer. Zeros where each peer has a result of its own */
  uint64_t bytes_sent;    /* payload of this operation that this peer sent; bytes_received: that it received */
  uint64_t bytes_received;
  uint64_t duration_ns;   /* time from the call to the commit */
  uint64_t predicted_ns;  /* duration that was expected when the last attempt began, by the rates that members had found
                             on their links; 0: a rate was not known. docs/guides/PERFORMANCE.md */
  uint64_t bound_ns;      /* the least duration at these rates, whatever the plan; 0: not known */
  uint32_t plan;          /* the way that the data took: PCCL_PLAN_RING, PCCL_PLAN_DIRECT or PCCL_PLAN_MESSAGE */
  uint32_t reserved;
} pccl_outcome_t;
#define PCCL_OUTCOME_INIT { sizeof(pccl_outcome_t), 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0, 0, 0, 0 }

typedef struct pccl_outcome_range {
  size_t size;
  uint64_t begin;             /* the range has the elements from begin to end-1 of the result */
  uint64_t end;
  uint32_t contributor_count;
} pccl_outcome_range_t;
#define PCCL_OUTCOME_RANGE_INIT { sizeof(pccl_outcome_range_t), 0, 0, 0 }

/* The outcome of a work that finished with PCCL_OK; PCCL_INVALID_USAGE otherwise. */
PCCL_API pccl_status_t pccl_work_outcome(pccl_work_t *work, pccl_outcome_t *outcome);
/* Range index (0 .. range_count-1), and its contributors in rank order of the epoch; writes at most capacity ids. */
PCCL_API pccl_status_t pccl_work_range(pccl_work_t *work, uint32_t index, pccl_outcome_range_t *range,
                                       pccl_peer_id_t *contributors, uint32_t capacity);

/* pccl_work_wait, pccl_work_outcome, pccl_work_range of the first range (zeros if there is none) and pccl_work_destroy,
 * in one call. On PCCL_OK the work is freed and *work is NULL, unless there is more to read: further ranges, or more
 * contributors than capacity. Otherwise the work stays; on any other status it is as pccl_work_wait leaves it. No other
 * thread may use a work that this call may free. */
PCCL_API pccl_status_t pccl_work_finish(pccl_work_t **work, uint64_t timeout_ns, pccl_outcome_t *outcome,
                                        pccl_outcome_range_t *range, pccl_peer_id_t *contributors, uint32_t capacity);

/* ---- Shared state ---------------------------------------------------------------------------------------- */

typedef struct pccl_state pccl_state_t; /* opaque: tensors that all members of a group want to be equal */

/* Flag of a tensor: its name, shape and dtype must be equal on all members, but its content may differ and is never
 * written. */
#define PCCL_TENSOR_MAY_DIFFER 1

/* One tensor, contiguous. Zero the struct first; `reserved` stays zero. */
typedef struct pccl_tensor {
  const char *name;       /* 1..256 bytes of UTF-8, unique in its state */
  void *data;             /* the caller's memory, borrowed until the state is destroyed; NULL without elements */
  const uint64_t *shape;  /* elements along each dimension; NULL without dimensions */
  uint32_t dimensions;    /* number of dimensions, 0..32; a tensor of 0 dimensions has one element */
  pccl_dtype_t dtype;
  uint32_t flags;
  uint32_t reserved;
} pccl_tensor_t;

typedef struct pccl_state_options {
  size_t size;
  const char *name;             /* equal on all members, and unique among the states of a group. NULL: "state" */
  const pccl_tensor_t *tensors; /* in any order, which may differ between members */
  uint64_t tensor_count;        /* at most 65536 */
  uint64_t revision;            /* revision of a restored checkpoint's content; 0 otherwise */
  uint32_t flags;
  uint32_t reserved;            /* 0 */
} pccl_state_options_t;
#define PCCL_STATE_OPTIONS_INIT { sizeof(pccl_state_options_t), NULL, NULL, 0, 0, 0, 0 }

/* Flag of a state: newcomers may read the tensors of this state at any time until it is closed, while this peer trains,
 * so that their first sync moves only the content that has changed since. If a newcomer creates a state with this flag
 * between pccl_comm_create and its first pccl_comm_admit, the state is fetched from the members that set the flag; that
 * admit waits until the state is fetched. */
#define PCCL_STATE_PREFETCH 1
/* Flags of a state: rules for its syncs, equal on all members, else PCCL_MISMATCH. The judges are the members of the
 * previous epoch, or all members if no member of that epoch is left.
 * SUCCESSIVE: only content of the expected revision is elected: one more than the last revision that a judge has
 *   committed with a state of this name; any revision before the first commit. A member with another revision receives.
 * REFUSE: a member that does not fit is refused (PCCL_MISMATCH there alone; it is no member any more), and the other
 *   members go on. A member does not fit if its names, shapes or dtypes are not those of most judges, or, with
 *   SUCCESSIVE, if it would give content of a higher revision than the expected one. If no structure has most judges,
 *   all members get PCCL_MISMATCH.
 * ONE_SENDER: if a member passes PCCL_SEND_ONLY, all other members pass PCCL_RECEIVE_ONLY; else PCCL_MISMATCH.
 * HIGHEST_REVISION: the content of the highest revision is elected, also a newcomer's; of equal revisions, the content
 *   of higher standing (PCCL_POPULAR). Without this rule a newcomer's content never replaces that of members. */
#define PCCL_STATE_SUCCESSIVE 2
#define PCCL_STATE_REFUSE 4
#define PCCL_STATE_ONE_SENDER 8
#define PCCL_STATE_HIGHEST_REVISION 16

/* Creates a state. Names, shapes and the array of tensors are copied; only the tensors' memory stays the caller's.
 * Nothing is sent. A state must be destroyed before its communicator. */
PCCL_API pccl_status_t pccl_state_create(pccl_comm_t *comm, const pccl_state_options_t *options, pccl_state_t **state);

typedef enum pccl_strategy {
  PCCL_POPULAR = 0,      /* the elected content wins. The election prefers the content of members that have committed a
                            sync of a state of this name, then that of other members of the previous epoch, then that of
                            newcomers; of equals the highest revision, then the content that most members have, then the
                            smallest peer id. Founders of a sub-group have the standing that they have in its parent */
  PCCL_SEND_ONLY = 1,    /* all members get this peer's content. Two senders with different contents: PCCL_MISMATCH */
  PCCL_RECEIVE_ONLY = 2  /* this peer's content is never taken */
} pccl_strategy_t;

/* Flag of a sync: `revision` of the sync's options is the revision of this peer's content, instead of the state's. */
#define PCCL_SYNC_AT_REVISION 1

typedef struct pccl_sync_options {
  size_t size;
  pccl_strategy_t strategy;
  uint64_t deadline_ns;           /* time that the call may take; 0: the communicator's default */
  uint64_t revision;              /* with PCCL_SYNC_AT_REVISION, below 2**62; 0 without that flag */
  pccl_peer_id_t *contributors;   /* NULL, or room for `capacity` ids of the members that took part, in rank order */
  uint8_t *holders;               /* NULL, or room for `capacity` bytes: 1 if that contributor held the elected content,
                                     else 0 */
  uint32_t capacity;
  uint32_t flags;
} pccl_sync_options_t;
#define PCCL_SYNC_OPTIONS_INIT { sizeof(pccl_sync_options_t), PCCL_POPULAR, 0, 0, NULL, NULL, 0, 0 }

typedef struct pccl_sync_outcome {
  size_t size;
  uint64_t revision;       /* the state's revision from now on, equal on every member: elected_revision + 1 */
  uint64_t epoch;
  uint64_t sequence;       /* number of the sync among those of this state in this epoch, from 0 */
  uint32_t attempts;       /* number of attempts: 1 without a loss or a broken lane */
  uint32_t sources;        /* number of members that sent leaves to this peer */
  uint64_t leaves;         /* number of leaves of the state: 256 KiB each, the last leaf of each tensor perhaps less */
  uint64_t leaves_moved;   /* number of leaves that this peer received, because they had differed */
  uint64_t bytes_sent;     /* bytes of tensors that this peer sent in this sync; bytes_received: that it received */
  uint64_t bytes_received;
  uint64_t duration_ns;    /* time from the call to the commit */
  uint64_t hash_ns;        /* part of duration_ns in which this peer hashed its tensors */
  uint64_t leaves_early;   /* number of leaves that had differed and came before the sync (PCCL_STATE_PREFETCH) */
  uint64_t elected_revision;     /* revision of the elected content, equal on every member */
  uint64_t hash_bytes_sent;      /* bytes of hashes of leaves that this peer sent, not counted in `bytes_sent` */
  uint64_t hash_bytes_received;
  uint32_t contributor_count;    /* number of members that took part; one of them had the elected content */
  uint32_t holder_count;         /* number of contributors that held the elected content at the election */
} pccl_sync_outcome_t;
#define PCCL_SYNC_OUTCOME_INIT { sizeof(pccl_sync_outcome_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Makes the state equal on all members, which must call pccl_state_sync equally often. Blocks until the sync is
 * committed or has failed. On any status but PCCL_OK the tensors and the revision are as they were. The caller must
 * neither read nor write the tensors during the call. One call per state at a time. options and outcome may be NULL.
 * PCCL_MISMATCH: names, shapes or dtypes differ (the sentence lists how), two members insist on different contents, or
 * a rule of the state is broken. If only the names, shapes, dtypes or the content of a newcomer differ, the newcomer
 * alone gets PCCL_MISMATCH, and is no member any more; the other members succeed.
 * PCCL_STATE_UNAVAILABLE: no member holds content that may be taken. After PCCL_IN_DOUBT, sync again.
 * `interrupted` of the communicator withdraws a sync. */
PCCL_API pccl_status_t pccl_state_sync(pccl_state_t *state, const pccl_sync_options_t *options,
                                       pccl_sync_outcome_t *outcome);
/* The revision of the state: one more than the revision that the last committed sync elected; before the first sync,
 * the revision given at creation. */
PCCL_API pccl_status_t pccl_state_revision(pccl_state_t *state, uint64_t *revision);
/* Releases the tensors, whose content stays. A sync that runs on another thread is withdrawn (PCCL_CANCELLED or
 * PCCL_IN_DOUBT there), and no longer uses the tensors when pccl_state_close returns. Idempotent; later syncs answer
 * PCCL_CANCELLED. */
PCCL_API pccl_status_t pccl_state_close(pccl_state_t *state);
/* Closes the state if needed, and frees it. NULL is allowed. */
PCCL_API void pccl_state_destroy(pccl_state_t *state);

/* ---- Logging --------------------------------------------------------------------------------------------- */

typedef enum pccl_log_level {
  PCCL_LOG_DEBUG = 0,
  PCCL_LOG_INFO = 1,
  PCCL_LOG_WARNING = 2,
  PCCL_LOG_ERROR = 3
} pccl_log_level_t;
/* Takes the oldest line of the log: PCCL_OK with *level and a zero-terminated message, PCCL_TIMEOUT if there is none.
 * The library never prints; it queues at most 1024 lines about events (a peer lost, an epoch entered, a lane
 * reopened). */
PCCL_API pccl_status_t pccl_log_next(pccl_log_level_t *level, char *message, size_t capacity);

/* ---- Low-communication training (docs/guides/DILOCO.md) -------------------------------------------------------- */

/* The arithmetic of DiLoCo (arXiv 2311.08105) and its family runs on the calling thread, and gives the same bytes on
 * every CPU. Outer parameters, moments and gradients are f32. The arrays of a call must not overlap, but out may be
 * outer. */

/* The rule of an outer step, with g = scale * gradient:
 *   SGD       outer -= learning_rate * g
 *   NESTEROV  v = momentum * v + g;  outer -= learning_rate * (g + momentum * v); PyTorch's form; v is first_moment
 *   ADAM      m = beta1 * m + (1 - beta1) * g;  s = beta2 * s + (1 - beta2) * g * g;
 *             outer -= learning_rate * (m / (1 - beta1^step)) / (sqrt(s / (1 - beta2^step)) + epsilon) */
typedef enum pccl_outer_rule {
  PCCL_OUTER_SGD = 0,
  PCCL_OUTER_NESTEROV = 1,
  PCCL_OUTER_ADAM = 2
} pccl_outer_rule_t;

/* A zero field means zero here, and not the default: begin with PCCL_OUTER_OPTIONS_INIT, which has the paper's
 * numbers. */
typedef struct pccl_outer_options {
  size_t size;            /* sizeof(pccl_outer_options_t) */
  pccl_outer_rule_t rule;
  float learning_rate;
  float momentum;         /* of NESTEROV */
  float beta1, beta2;     /* of ADAM: 0 or more, below 1 */
  float epsilon;          /* of ADAM */
  float scale;            /* factor of the gradient; above 1 for a weighted sum that lacks the weights of lost peers */
  uint32_t reserved;
  uint64_t step;          /* of ADAM: the number of this step, from 1 on */
} pccl_outer_options_t;
#define PCCL_OUTER_OPTIONS_INIT \
  { sizeof(pccl_outer_options_t), PCCL_OUTER_NESTEROV, 0.7f, 0.9f, 0.9f, 0.95f, 1e-8f, 1.0f, 0, 1 }

/* out := outer - parameters, the pseudo-gradient of a worker whose parameters are of the float dtype. *sum_of_squares
 * (may be NULL) becomes the sum of the squares of out; it is not finite if an element of out is not. */
PCCL_API pccl_status_t pccl_outer_difference(const float *outer, const void *parameters, pccl_dtype_t dtype,
                                             uint64_t count, float *out, double *sum_of_squares);
/* parameters := alpha * parameters + (1 - alpha) * outer, each operation rounded once; outer alone if alpha is 0. */
PCCL_API pccl_status_t pccl_outer_mix(void *parameters, pccl_dtype_t dtype, const float *outer, uint64_t count,
                                      float alpha);
/* Makes one outer step. A moment that the rule does not use may be NULL, and is not written; a moment that the rule
 * uses must be zeros before the first step. */
PCCL_API pccl_status_t pccl_outer_step(float *outer, float *first_moment, float *second_moment, const float *gradient,
                                       uint64_t count, const pccl_outer_options_t *options);

/* How a sparse piece holds values. A sparse piece has the elements of greatest magnitude of each chunk of an array, for
 * pccl_all_gather (SparseLoCo, arXiv 2508.15706). */
typedef enum pccl_sparse_values {
  PCCL_SPARSE_CODES = 0, /* values of 2 bits: a sign, and one of two magnitudes of the chunk */
  PCCL_SPARSE_FLOATS = 1 /* values as f32 */
} pccl_sparse_values_t;

typedef struct pccl_sparse_options {
  size_t size;                 /* sizeof(pccl_sparse_options_t) */
  uint32_t chunk;              /* elements of a chunk, at most 4096, the default; the last chunk may be shorter */
  uint32_t kept;               /* elements kept of each chunk, at most chunk; default: 64, or chunk if that is less */
  pccl_sparse_values_t values;
  uint32_t reserved;
} pccl_sparse_options_t;
#define PCCL_SPARSE_OPTIONS_INIT { sizeof(pccl_sparse_options_t), 0, 0, PCCL_SPARSE_CODES, 0 }

/* Options may be NULL, which means PCCL_SPARSE_OPTIONS_INIT; they must be the same where a piece is made and where it
 * is added. */

/* Bytes of the piece of count f32: by default 116 for each 4096 elements. 0 for no elements, and for bad options. */
PCCL_API uint64_t pccl_sparse_bytes(const pccl_sparse_options_t *options, uint64_t count);
/* piece := the kept elements of input. The residual is input - piece: pccl_sparse_add to input with a scale of -1. */
PCCL_API pccl_status_t pccl_sparse_encode(const float *input, uint64_t count, const pccl_sparse_options_t *options,
                                          void *piece);
/* into += scale * piece, and weights += scale where the piece has an element; weights may be NULL. SparseLoCo's average
 * is into / weights. PCCL_INVALID_ARGUMENT, and nothing is added, if piece is not of an array of count elements with
 * these options. */
PCCL_API pccl_status_t pccl_sparse_add(float *into, float *weights, uint64_t count,
                                       const pccl_sparse_options_t *options, const void *piece, float scale);

/* ---- Measuring the kernels (docs/internals/KERNELS.md) ---------------------------------------------------------- */

typedef enum pccl_kernel_what {
  PCCL_KERNEL_PREPARE = 0, /* fills the memory with input for the kernel; once, before RUN and SKELETON */
  PCCL_KERNEL_RUN = 1,
  PCCL_KERNEL_SKELETON = 2 /* a loop with the loads and stores of the kernel and no arithmetic */
} pccl_kernel_what_t;
/* The name of kernel number index, e.g. "encode/int8_rotated"; NULL past the last kernel. Static storage. */
PCCL_API const char *pccl_kernel_name(size_t index);
/* Bytes of memory that pccl_kernel_run needs for count f32; 0 unless count is a multiple of 4096. */
PCCL_API size_t pccl_kernel_memory(size_t count);
/* Runs the kernel `name` `repeats` times on this thread, on pccl_kernel_memory(count) bytes at memory. *duration_ns
 * becomes the processor time that the runs took. */
PCCL_API pccl_status_t pccl_kernel_run(const char *name, pccl_kernel_what_t what, void *memory, size_t count,
                                       uint32_t repeats, uint64_t *duration_ns);

#ifdef __cplusplus
}
#endif
#endif /* PCCL_H */
