/* pccl.h: the C ABI of PCCL, the only public contract of the native library.
 *
 * It owns every type, constant and function that a C program (or a binding) may use, and not how any of it works; start
 * at docs/internals/ARCHITECTURE.md for that, and docs/reference/PROMISE.md for what is promised.
 *
 * Rules that hold for every function:
 *   - A function that can fail returns pccl_status_t. On any status but PCCL_OK, pccl_last_error() gives one
 *     sentence for a person: which peer, what was expected, what to do. It is per thread, and valid until
 *     the next failing call of that thread. Three functions return a count instead: pccl_comm_members,
 *     pccl_comm_joined and pccl_comm_left. They return 0 once the communicator is closed; for a NULL handle, or one
 *     of the parent in a forked child, they return 0 and set pccl_last_error().
 *   - Handles are opaque and thread-safe: any thread may call any function on a handle, except that a handle must
 *     not be used during or after its destroy.
 *   - Options structs begin with their size; initialise them with the _INIT macro (or zero them and set size).
 *     A zero field means the default. Fields are only ever appended, so old callers keep working.
 *   - Times are nanoseconds (uint64_t, suffix _ns), sizes are bytes (suffix _bytes), counts are elements.
 *   - Buffers are borrowed: for the call when it blocks, until the work is finished when it is asynchronous. Two
 *     operations in flight may read the same memory; a call that would write what another uses is refused.
 *   - A process forked after pccl_comm_create must not use the parent's handles: every call but destroy answers
 *     PCCL_INVALID_USAGE there. fork() closes the child's copies of the library's sockets at once (pthread_atfork), so
 *     that others still notice when the parent dies; exec closes them too. A child made by a bare clone or vfork that
 *     does not exec keeps them open until it ends. Memory that the child inherits stays until then.
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
  PCCL_TIMEOUT = 1,                 /* a wait timed out: not finished, or nothing there, in time */
  PCCL_INVALID_ARGUMENT = 2,        /* a bad argument; nothing was sent and no sequence number was used */
  PCCL_INVALID_USAGE = 3,           /* called in a wrong state: after close, in a forked child, a tag already in use; or
                                       the coordinator refuses the group, and the sentence has its reason */
  PCCL_OUT_OF_MEMORY = 4,           /* memory for the operation could not be had; nothing was sent */
  PCCL_MISMATCH = 5,                /* peers called the same operation with different descriptors; a newcomer alone
                                       gets it where its first call does not fit, and is no member then */
  PCCL_ABORTED = 6,                 /* the operation was aborted for all peers; the input is as it was */
  PCCL_EXPELLED = 7,                /* this peer is no longer a member of the group; connect again to go on */
  PCCL_IN_DOUBT = 8,                /* the deadline, a cancel or the loss of the coordinator came after this peer had
                                       voted; see pccl_work_resolve */
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

/* One sentence about this thread's last failure; "" if there was none. Valid until this thread fails again. */
PCCL_API const char *pccl_last_error(void);
/* Keeps a copy of the sentence as this thread's last failure, for a library over this one whose callers ask
 * pccl_last_error() about its failures too. A sentence of more than 1024 bytes is cut; NULL is "". */
PCCL_API void pccl_set_last_error(const char *sentence);

/* ---- Version --------------------------------------------------------------------------------------------- */

#define PCCL_VERSION_MAJOR 0
#define PCCL_VERSION_MINOR 1
#define PCCL_VERSION_PATCH 0

/* major * 10000 + minor * 100 + patch of the loaded library. */
PCCL_API uint32_t pccl_version(void);
/* e.g. "0.1.0". Static storage. */
PCCL_API const char *pccl_version_string(void);
/* Wire protocol version; peers and coordinator must agree on it. */
PCCL_API uint32_t pccl_wire_version(void);
/* CPU level of the kernels in use: "baseline", "v3", "v4", "v4x" (x86-64). Static storage.
 * PCCL_CPU_LEVEL in the environment forces one (an unknown or unsupported name fails the first create). */
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
  PCCL_BAND = 5, /* band, bor, bxor: and, or, exclusive or of the bits of integers; PCCL_INVALID_ARGUMENT for floats */
  PCCL_BOR = 6,
  PCCL_BXOR = 7
} pccl_reduce_op_t;

/* The effect of a peer's death on an operation in flight (docs/internals/PROMISE.md). */
typedef enum pccl_recovery {
  PCCL_RECOVERY_DEFAULT = 0, /* complete for what is scattered, gathered or exchanged by ranks (reduce_scatter,
                                all_gather, scatter, gather, all_to_all); else resume for avg, restart for the others */
  PCCL_RECOVERY_RESUME = 1,  /* keep finished chunks; contributors may differ per range */
  PCCL_RECOVERY_RESTART = 2, /* one contributor set for the whole result; of what is gathered, shards whole or zeros */
  PCCL_RECOVERY_RAISE = 3,   /* PCCL_ABORTED on every survivor, unless all had voted when the loss was noticed; it
                                does not apply to peers lost before the call: such a call runs among the others */
  PCCL_RECOVERY_COMPLETE = 4 /* every member of the epoch contributes, or PCCL_ABORTED for all; also if a member was
                                lost or had left before the call, until an epoch without it begins */
} pccl_recovery_t;

/* `form` of a call whose arrays are u8 here and bool to the caller: a Mismatch then tells the two apart, by name. */
#define PCCL_FORM_BOOL 1819242339
/* `form` of a broadcast or an all_gather of bytes that are an object to the caller: errors call it broadcast_object or
 * all_gather_object, and say nothing of the bytes. */
#define PCCL_FORM_OBJECT 1868720741

/* How the data of an operation moves (docs/internals/ALGORITHMS.md). Broken links and very large groups may leave no
 * choice. */
typedef enum pccl_plan {
  PCCL_PLAN_AUTO = 0,  /* direct with a codec, and for scatter, gather and all_to_all; else ring */
  PCCL_PLAN_RING = 1,  /* from each member to the next */
  PCCL_PLAN_DIRECT = 2, /* from all members to the owner of each part, from there to all members */
  PCCL_PLAN_MESSAGE = 3 /* in an outcome only: from the sender to the receiver */
} pccl_plan_t;

/* Which congestion control the lanes of a peer have: how TCP finds out how fast it may send
 * (docs/guides/NETWORKING.md). */
typedef enum pccl_congestion {
  PCCL_CONGESTION_AUTO = 0,   /* the system's, and bbr for links that lose packets though no queue on the way is full,
                                 if this process may use it; reno between peers of one machine, and in the place of
                                 cubic until a lane has lost a packet or its link is full */
  PCCL_CONGESTION_SYSTEM = 1, /* the system's, always */
  PCCL_CONGESTION_BBR = 2,    /* this one, between peers of one machine too; if the system does not let this process */
  PCCL_CONGESTION_CUBIC = 3   /* use it, the log says once what to do, and the system's stays */
} pccl_congestion_t;

/* Whether links of which nobody knows what they carry are probed while nothing else moves
 * (docs/guides/PERFORMANCE.md). */
typedef enum pccl_probe {
  PCCL_PROBE_AUTO = 0, /* over more than 2 ms, for a second and 16 MiB at most */
  PCCL_PROBE_OFF = 1   /* never */
} pccl_probe_t;

/* How floats travel (docs/reference/CODECS.md). All members decode a result that all of them have, its owner or source
 * too. A result that a single peer has, of a reduce or a reduce_scatter, is not encoded a second time. In an exchange a
 * peer's own shard is not encoded at all. */
typedef enum pccl_codec {
  PCCL_CODEC_NONE = 0,
  PCCL_CODEC_BF16 = 1,
  PCCL_CODEC_F16 = 2,
  PCCL_CODEC_INT8 = 3,          /* integers of 8, 6, 5, 4 bits with a bf16 scale for each block */
  PCCL_CODEC_INT6 = 4,
  PCCL_CODEC_INT5 = 5,
  PCCL_CODEC_INT4 = 6,
  PCCL_CODEC_E3M0 = 7,          /* sign and 3 bits of exponent, a scale for each block */
  PCCL_CODEC_FP8_E4M3 = 8,      /* a scale for each block */
  PCCL_CODEC_MIN_MAX_U8 = 9,    /* 256 steps between the least and the greatest of a piece */
  PCCL_CODEC_ZERO_POINT_U8 = 10 /* the same, with zero on a step */
} pccl_codec_t;

typedef enum pccl_rotate {
  PCCL_ROTATE_DEFAULT = 0, /* on for the codecs that have blocks */
  PCCL_ROTATE_ON = 1,      /* each block goes through random signs and a Hadamard matrix first */
  PCCL_ROTATE_OFF = 2
} pccl_rotate_t;

typedef enum pccl_rounding {
  PCCL_ROUNDING_NEAREST = 0,
  PCCL_ROUNDING_STOCHASTIC = 1 /* right on average; what is drawn follows from operation, element and rank alone */
} pccl_rounding_t;

#define PCCL_PEER_ID_BYTES 16
#define PCCL_TOKEN_BYTES_MAX 512 /* including the terminating zero */
#define PCCL_RUN_STATUS_BYTES_MAX 2097153 /* the longest status and the terminating zero: always enough, though the next
                                             answer may be longer than this one */
#define PCCL_NAME_BYTES_MAX 256  /* group names in UTF-8, without the terminating zero */

#define PCCL_LABEL_BYTES_MAX 80  /* labels of peers, the same */

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
 * run_id is 16 bytes, or NULL for random ones. token receives at most capacity bytes with the terminating zero. */
PCCL_API pccl_status_t pccl_token_create(const char *address, const uint8_t *run_id, char *token, size_t capacity);
/* Reads a token. PCCL_INVALID_ARGUMENT if it is truncated or mistyped (a token carries a checksum). */
PCCL_API pccl_status_t pccl_token_parse(const char *token, pccl_token_info_t *info);

/* ---- Coordinator ----------------------------------------------------------------------------------------- */

typedef struct pccl_coordinator pccl_coordinator_t; /* opaque */

typedef struct pccl_coordinator_options {
  size_t size;
  const char *bind;            /* address to listen on, "host:port" or "host"; NULL: "127.0.0.1". Without a port, or
                                  with port 0, any free one */
  const char *advertise;       /* address that goes into the token; NULL: the bound one ("host" or "host:port") */
  const uint8_t *run_id;       /* 16 bytes; NULL: random */
  uint32_t min_world_size;     /* a group that falls below fails with PCCL_TOO_FEW_PEERS; 0: 1 */
  uint32_t initial_world_size; /* peers the first epoch of a group waits for, unless they set it; 0: 1 */
  uint32_t lanes_per_link;     /* TCP connections between two peers, 1..64; 0: auto, as many as bring something, which
                                  each link finds out by itself */
  uint32_t chunk_bytes;        /* largest chunk, 1 KiB..256 KiB, a power of two; 0: 256 KiB */
  uint64_t window_bytes;       /* room for partial sums at each peer, and bytes that one source of a shared state is
                                  asked for, at most; 0: 256 MiB, 1 GiB at most. Each operation has 16 MiB, or this if
                                  it is less. It has more where more is in the air, as long as all operations of the
                                  peer together stay below this */
  uint64_t heartbeat_ns;       /* 0: 0.5 s. Like all times here at most seven days */
  uint64_t silence_ns;         /* a peer silent for this long is lost; 0: 5 s. At least 3 heartbeats */
  uint64_t prepare_ns;         /* time a newcomer has to open its lanes; 0: 10 s */
  const char *state_dir;       /* directory of the journal, made if its parent exists; NULL: the run ends with the
                                  coordinator. See below */
  uint64_t stall_warning_ns;   /* a member that has not made a call which over half have made is named in the log, the
                                  status and PCCL_DEADLINE_EXCEEDED after this time; 0: 10 s. At least a heartbeat */
  uint64_t stall_ns;           /* and is removed from the group after this time; 0: never. At least stall_warning_ns */
  uint64_t memory_bytes;       /* limit of all its queues together, 16 MiB or more; beyond it, the peer with the
                                  longest queue is removed; 0: 512 MiB */
  pccl_probe_t probe;          /* of the links of the run. Not in the journal */
  uint32_t reserved;           /* 0 */
} pccl_coordinator_options_t;
#define PCCL_COORDINATOR_OPTIONS_INIT \
  { sizeof(pccl_coordinator_options_t), NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, PCCL_PROBE_AUTO, 0 }

/* Starts a coordinator in this process, on a thread of its own. options may be NULL.
 * With a state_dir that holds a run, it goes on with that run: run id, port and every option that is not given come
 * from there, and the token is the same. PCCL_INVALID_ARGUMENT if an option differs, or if the address in the token
 * would differ; both may differ until the first epoch of the run begins. PCCL_SYSTEM_ERROR if another coordinator uses
 * the directory, or if its journal is damaged; PCCL_VERSION_MISMATCH if another version wrote it. */
PCCL_API pccl_status_t pccl_coordinator_create(const pccl_coordinator_options_t *options,
                                               pccl_coordinator_t **coordinator);
/* The token peers join with. Valid until destroy. */
PCCL_API const char *pccl_coordinator_token(const pccl_coordinator_t *coordinator);
/* The port it listens on. */
PCCL_API uint16_t pccl_coordinator_port(const pccl_coordinator_t *coordinator);
/* Stops it: its connections close, and peers see PCCL_COORDINATOR_UNREACHABLE. NULL is allowed. */
PCCL_API void pccl_coordinator_destroy(pccl_coordinator_t *coordinator);

/* Asks the coordinator of a token how the run is: JSON, schema in docs/reference/STATUS.md. Writes at most capacity
 * bytes with the terminating zero; *length is the full length without it. PCCL_INVALID_ARGUMENT if capacity is too
 * small: ask again with *length + 1, or at once with PCCL_RUN_STATUS_BYTES_MAX, which is always enough. A host gets few
 * large answers a second: beyond that this call waits a second, asks once more, and then fails with
 * PCCL_COORDINATOR_UNREACHABLE.
 * Blocks for timeout_ns at most (0: 5 s). */
PCCL_API pccl_status_t pccl_run_status(const char *token, uint64_t timeout_ns, char *json, size_t capacity,
                                       size_t *length);

/* The same, and members of the run dial this peer, once each, to see whether it can be reached: "dial_back" of the
 * status says how that went, and asking again says how far it has come (docs/guides/NETWORKING.md). The peer must be
 * connected to the coordinator from the machine that asks; else, or while another peer is being dialed, nobody is
 * asked. */
PCCL_API pccl_status_t pccl_run_dial_back(const char *token, const pccl_peer_id_t *peer, uint64_t timeout_ns,
                                          char *json, size_t capacity, size_t *length);

/* ---- Communicator: membership of this process in one group of the run ------------------------------------ */

typedef struct pccl_comm pccl_comm_t; /* opaque */

typedef struct pccl_comm_options {
  size_t size;
  const char *group;           /* name of the group, 1..256 bytes of UTF-8; NULL: "default" */
  const char *bind;            /* address to listen on for other peers, "host:port" or "host"; NULL: the interface
                                  that leads to the coordinator, with advertise on all of them */
  const char *advertise;       /* address other peers dial, "host" or "host:port"; NULL: the local address of the
                                  connection to the coordinator, with the bound port; if the peer is not there, the
                                  host that the coordinator sees the connection come from, with the same port */
  uint32_t initial_world_size; /* peers the first epoch of this group waits for; 0: the coordinator's default */
  uint64_t deadline_ns;        /* default deadline of collectives and admit on this communicator; 0: 10 min */
  uint64_t connect_ns;         /* how long create waits to reach the coordinator; 0: 30 s */
  const pccl_peer_id_t *peer_id; /* NULL: random. Two live peers with one id: the second is refused */
  /* Asked about every 50 ms by a thread that blocks in create, join, admit or sync of this communicator; non-zero
   * withdraws that call, which ends with PCCL_CANCELLED (an admit withdrawn so has not passed the safe point; call
   * it again). It is meant for Ctrl-C. It may call pccl_comm_close, and no other function here. It runs on the blocked
   * thread. NULL: never asked. */
  int (*interrupted)(void *context);
  void *interrupted_context;
  const char *ports;           /* ports to listen on, "29400-29500" or "29400"; the first free one is taken if bind
                                  names no port (or port 0); NULL: any */
  const char *label;           /* name of this peer for people, up to 80 bytes of UTF-8, shown beside its id in errors,
                                  logs and the status; it decides nothing. NULL or "": "host:pid" */
  uint64_t reconnect_timeout_ns; /* how long calls wait for a coordinator that is away, or answers nothing for half of
                                  the silence limit. Then this peer is out of all its groups: calls end with
                                  PCCL_COORDINATOR_UNREACHABLE, or PCCL_IN_DOUBT after the vote, and new ones fail.
                                  1: at once; 0: calls wait until their deadlines */
  uint64_t send_rate;          /* bytes per second that this peer sends to all others together, 1000..1.25e12; 0: no
                                  limit */
  pccl_congestion_t congestion;
  pccl_probe_t probe;          /* of the links of this peer, both ways */
  const char *send_rates;      /* the same in words, and for single peers: "100mbit,eu-1=20mbit" (pccl_rate_parse). Only
                                  one of the two fields may have a rate for all. NULL: none */
} pccl_comm_options_t;
#define PCCL_COMM_OPTIONS_INIT \
  { sizeof(pccl_comm_options_t), NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, \
    PCCL_CONGESTION_AUTO, PCCL_PROBE_AUTO, NULL }

/* Reads rates as people write them, as send_rates of pccl_comm_options_t is read: "200mbit", "25MB", "1.5gbit" per
 * second or a number of bytes, from 8kbit to 10tbit, for all peers together; and behind commas "eu-1=20mbit" for the
 * peer with that label. "eu-*" stands for all labels that begin so, and a peer has an id, too, whole or its first eight
 * digits. The first name that is a peer's counts, 32 of them at most. *rate is the one for all in bytes per second, 0
 * if the text has none. PCCL_INVALID_ARGUMENT names the part that is none; `name` is what it calls the text. */
PCCL_API pccl_status_t pccl_rate_parse(const char *text, const char *name, uint64_t *rate);

/* Connects to the coordinator and registers in a group. Returns when a lane to each member is open
 * (or, in a new group, when initial_world_size peers are there). The first pccl_comm_admit enters the group.
 * Blocks for at most deadline_ns once the coordinator answers. options may be NULL. */
PCCL_API pccl_status_t pccl_comm_create(const char *token, const pccl_comm_options_t *options, pccl_comm_t **comm);
/* Joins another group of the same run through the connection and the port that comm already has.
 * Only group, initial_world_size and deadline_ns of options count. */
PCCL_API pccl_status_t pccl_comm_join(pccl_comm_t *comm, const pccl_comm_options_t *options, pccl_comm_t **joined);
/* Asks for a sub-group: a group that is made of these members of comm's current epoch, in this order of ranks, and that
 * nobody else ever enters. All founders must call this with the same list and the same name, at the same place of the
 * program; PCCL_MISMATCH tells all of them if they do not. Returns when all have called that have not been lost to comm
 * or left it; pccl_comm_admit of the sub-group then enters, and returns when all have called that. A sub-group of
 * another epoch needs another name: take the epoch into it. It is a group of its own: it survives losses, and safe
 * points of comm, until it is closed. It has no minimum size. Only group, deadline_ns and interrupted of options count.
 * 64 groups are in a run and 8 around a peer at a time. */
PCCL_API pccl_status_t pccl_comm_subgroup(pccl_comm_t *comm, const pccl_peer_id_t *founders, uint32_t count,
    const pccl_comm_options_t *options, pccl_comm_t **subgroup);
/* The default deadline of later calls on comm, instead of deadline_ns of its options, which also limits how long its
 * making may take. 0: 10 min. Any thread may set it at any time. */
PCCL_API pccl_status_t pccl_comm_set_deadline(pccl_comm_t *comm, uint64_t deadline_ns);
/* Leaves the group gracefully: the others go on without this peer. Operations in flight here end with
 * PCCL_CANCELLED. The last communicator of a peer also closes its connections. Idempotent; every later
 * call answers PCCL_INVALID_USAGE. */
PCCL_API pccl_status_t pccl_comm_close(pccl_comm_t *comm);
/* Closes if needed and frees. Its works must be destroyed first. NULL is allowed. */
PCCL_API void pccl_comm_destroy(pccl_comm_t *comm);

typedef struct pccl_admission {
  size_t size;
  uint64_t epoch;       /* number of the membership now in force */
  uint32_t rank;        /* of this peer, 0 .. world_size-1 */
  uint32_t world_size;
  uint32_t joined_count; /* peers that are new in this epoch, if changed; read them with pccl_comm_joined */
  uint32_t left_count;   /* peers of the previous epoch that are gone; pccl_comm_left */
  uint32_t changed;      /* 1 if this call entered a new epoch */
} pccl_admission_t;
#define PCCL_ADMISSION_INIT { sizeof(pccl_admission_t), 0, 0, 0, 0, 0, 0 }

/* The safe point: the only place where new peers enter, and where rank and world_size change. Every member must call
 * it equally often. Returns without a network round trip if nothing is pending. Each member enters a new epoch at its
 * own call, so a newcomer may be there before the members are: pccl_comm_not_entered. deadline_ns 0: the default. */
PCCL_API pccl_status_t pccl_comm_admit(pccl_comm_t *comm, uint64_t deadline_ns, pccl_admission_t *admission);
/* The safe point that all members pass together: returns when all have called this, and all enter the same new epoch,
 * or none does. A newcomer that calls it enters when all members from before have. All must call it at the same safe
 * points; a member that calls pccl_comm_admit there does not wait, and the others wait for it. It costs an operation of
 * all members, which fails as one does, and then nobody has passed the safe point: call it again. After a deadline,
 * too: if the others have passed it meanwhile, the next call does. */
PCCL_API pccl_status_t pccl_comm_admit_together(pccl_comm_t *comm, uint64_t deadline_ns, pccl_admission_t *admission);
/* How many newcomers wait for the next pccl_comm_admit_together, the same number on all members, who must all ask. It
 * passes no safe point. They enter then unless they are lost; or, where a member was lost, at the one after that. */
PCCL_API pccl_status_t pccl_comm_pending_agreed(pccl_comm_t *comm, uint64_t deadline_ns, uint32_t *pending);
/* Members that have not come to the safe point at which the current epoch begins, as far as this peer knows: they are
 * still in the epoch before, and the operations of this one wait for them. Written as below. */
PCCL_API uint32_t pccl_comm_not_entered(pccl_comm_t *comm, pccl_peer_id_t *ids, uint32_t capacity);
/* The peers that joined, and left, with the epoch of the last admit; the same lists on every member. Writes at most
 * capacity ids and returns how many there are. */
PCCL_API uint32_t pccl_comm_joined(pccl_comm_t *comm, pccl_peer_id_t *ids, uint32_t capacity);
PCCL_API uint32_t pccl_comm_left(pccl_comm_t *comm, pccl_peer_id_t *ids, uint32_t capacity);

typedef struct pccl_comm_info {
  size_t size;
  uint64_t epoch;        /* 0 before the first admit; then rank, world_size and alive say nothing and are 0 */
  uint32_t attempt;      /* rises whenever the members begin again: a loss, a broken lane; one may count twice */
  uint32_t rank;
  uint32_t world_size;   /* of the epoch; changes only in admit */
  uint32_t alive;        /* members of the epoch that are still there */
  uint32_t pending;      /* newcomers that wait for the next safe point, as far as this peer knows */
  uint32_t operations_in_flight; /* called and not decided; those that wait for their turn are among them */
  pccl_peer_id_t peer_id;
  uint64_t bytes_sent;   /* payload and headers on lanes, since create, over all groups of the peer */
  uint64_t bytes_received;
  pccl_status_t lost;    /* PCCL_OK; once this peer is no longer a member: the status of all calls in the group from
                            now on, PCCL_EXPELLED for example. The numbers above are then the last that it knew */
  uint32_t reserved;     /* 0 */
} pccl_comm_info_t;
#define PCCL_COMM_INFO_INIT { sizeof(pccl_comm_info_t), 0, 0, 0, 0, 0, 0, 0, {{0}}, 0, 0, PCCL_OK, 0 }

PCCL_API pccl_status_t pccl_comm_info(pccl_comm_t *comm, pccl_comm_info_t *info);
/* Members of the current epoch in rank order. Writes at most capacity ids and returns how many there are. */
PCCL_API uint32_t pccl_comm_members(pccl_comm_t *comm, pccl_peer_id_t *ids, uint32_t capacity);

/* The label of a peer: of this one, of members of the epoch, of those that joined, left or wait to enter. Empty if
 * it is not known (any more). Writes it with its terminating zero. PCCL_INVALID_ARGUMENT if capacity is too small:
 * PCCL_LABEL_BYTES_MAX + 1 is always enough. */
PCCL_API pccl_status_t pccl_comm_label(pccl_comm_t *comm, const pccl_peer_id_t *peer, char *label, size_t capacity);

/* ---- Collectives ----------------------------------------------------------------------------------------- */

typedef struct pccl_work pccl_work_t; /* opaque: one asynchronous operation */

typedef struct pccl_collective_options {
  size_t size;
  uint64_t tag;          /* operations with different tags may be in flight together; one at a time per tag.
                            64 of a group are at once, and 64 sends and 64 receives beside them; up to 1,024
                            calls beyond wait for their turn, each of these three in the order of its calls, and
                            then all members must call in one order.
                            A new tag for each operation must be the next number, or an epoch ends at
                            65,536 of them. Those from 254 << 56 on belong to messages and shared states */
  uint64_t deadline_ns;  /* relative to the call; 0: the communicator's default */
  pccl_reduce_op_t op;   /* all_reduce, reduce, reduce_scatter */
  pccl_recovery_t recovery;
  pccl_plan_t plan;
  pccl_codec_t codec;       /* for floats, in all collectives but broadcast and barrier; a reduction must be sum or avg;
                               all members must give the same codec with the same options */
  uint32_t codec_block;     /* elements that share a scale: 32, 64, 128 or 256; 0: 128 */
  pccl_rotate_t codec_rotate;
  pccl_rounding_t codec_rounding;
  uint32_t reserved;        /* 0 */
  /* Error feedback, for all_reduce, reduce and reduce_scatter: as many f32 each as send_buffer has elements, or both
   * NULL. residual_in is added to send_buffer; residual_out receives the losses of this peer's encodings: of its
   * contribution, of sums it passes on, of results it owns. It counts only once the operation has succeeded: pass it
   * as residual_in of the next call then, and keep the old one on a failure. They must not overlap. */
  const float *residual_in;
  float *residual_out;
  uint64_t form; /* 0, or a number for what the arrays are to the caller: all members must give the same one, else
                    PCCL_MISMATCH. Its lower 32 bits are 0, or a hash, of their names for example; for bool arrays
                    PCCL_FORM_BOOL. Its upper 32 bits are the shape: 0 for one dimension, and for one matrix the length
                    of its rows, below 2^31. So (uint64_t)3 << 32 meets a NumPy array x of shape (2, 3), and 0
                    meets x.reshape(-1). Lists and three dimensions have a hash there that C cannot give: flatten
                    them in Python. Messages, barriers and all_to_all_v ignore it */
} pccl_collective_options_t;
#define PCCL_COLLECTIVE_OPTIONS_INIT \
  { sizeof(pccl_collective_options_t), 0, 0, PCCL_SUM, PCCL_RECOVERY_DEFAULT, PCCL_PLAN_AUTO, PCCL_CODEC_NONE, 0, \
    PCCL_ROTATE_DEFAULT, PCCL_ROUNDING_NEAREST, 0, NULL, NULL, 0 }

/* recv_buffer := reduction over all members of send_buffer, count elements of dtype each; equal bytes on every peer.
 * send_buffer == recv_buffer is in place; other overlap is PCCL_INVALID_ARGUMENT. A call with count 0 takes part.
 * On any status but PCCL_OK send_buffer is as it was, in place too; a separate recv_buffer may hold anything. The same
 * holds for all collectives; a broadcast is in place. Blocks until committed or failed. options may be NULL.
 * work (optional, may be NULL) receives a finished work whose outcome can be read; destroy it. It is set on PCCL_OK
 * and on PCCL_IN_DOUBT. */
PCCL_API pccl_status_t pccl_all_reduce(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                       pccl_dtype_t dtype, const pccl_collective_options_t *options,
                                       pccl_work_t **work);
/* buffer of every member := buffer of root (a rank of the current epoch), which is only read there. On any status but
 * PCCL_OK it is as it was on every member. */
PCCL_API pccl_status_t pccl_broadcast(pccl_comm_t *comm, void *buffer, uint64_t count, pccl_dtype_t dtype,
                                      uint32_t root, const pccl_collective_options_t *options, pccl_work_t **work);
/* recv_buffer of root := reduction over all members of send_buffer, count elements each. Elsewhere recv_buffer is not
 * used and may be NULL. In place at root: send_buffer == recv_buffer. */
PCCL_API pccl_status_t pccl_reduce(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                   pccl_dtype_t dtype, uint32_t root, const pccl_collective_options_t *options,
                                   pccl_work_t **work);
/* recv_buffer := this rank's shard of the reduction over all members of send_buffer, which has world_size shards of
 * count elements each, in rank order. In place: recv_buffer is this rank's shard of send_buffer. _v: shards of
 * counts[rank] elements, the same on every member; ranks is the number of counts and must be world_size. A member that
 * is lost or has left ends the call with PCCL_ABORTED on all (PCCL_RECOVERY_COMPLETE); with another recovery no peer
 * receives the shard of a lost rank. */
PCCL_API pccl_status_t pccl_reduce_scatter(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                           uint64_t count, pccl_dtype_t dtype,
                                           const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_reduce_scatter_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                             const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype,
                                             const pccl_collective_options_t *options, pccl_work_t **work);
/* recv_buffer := the shards of all ranks, in rank order: each member sends count elements (_v: counts[its rank]) and
 * receives world_size times count (the sum of counts). In place: send_buffer is this rank's shard of recv_buffer.
 * A member that is lost or has left ends the call with PCCL_ABORTED on all. With recovery restart or resume it goes on:
 * elements of a lost member that no survivor got are zeros in recv_buffer, equally on all members, and the outcome
 * names no contributor for them; with restart, a shard comes whole or not at all. */
PCCL_API pccl_status_t pccl_all_gather(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                       pccl_dtype_t dtype, const pccl_collective_options_t *options,
                                       pccl_work_t **work);
PCCL_API pccl_status_t pccl_all_gather_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                         const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype,
                                         const pccl_collective_options_t *options, pccl_work_t **work);
/* recv_buffer of each := its rank's shard of send_buffer of root, which has world_size shards of count elements each
 * (_v: of counts[rank]), in rank order. Elsewhere send_buffer is not used and may be NULL. In place at root:
 * recv_buffer is its shard of send_buffer. A lost root ends the call with PCCL_ABORTED. */
PCCL_API pccl_status_t pccl_scatter(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                    pccl_dtype_t dtype, uint32_t root, const pccl_collective_options_t *options,
                                    pccl_work_t **work);
PCCL_API pccl_status_t pccl_scatter_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                      const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype, uint32_t root,
                                      const pccl_collective_options_t *options, pccl_work_t **work);
/* recv_buffer of root := the shards of all ranks, in rank order, as all_gather has them; elsewhere recv_buffer is not
 * used and may be NULL. In place at root: send_buffer is its shard of recv_buffer. A lost root ends the call with
 * PCCL_ABORTED, whatever the recovery. */
PCCL_API pccl_status_t pccl_gather(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                   pccl_dtype_t dtype, uint32_t root, const pccl_collective_options_t *options,
                                   pccl_work_t **work);
PCCL_API pccl_status_t pccl_gather_v(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer,
                                     const uint64_t *counts, uint32_t ranks, pccl_dtype_t dtype, uint32_t root,
                                     const pccl_collective_options_t *options, pccl_work_t **work);
/* Shard r of recv_buffer := this rank's shard of send_buffer of rank r. Both have world_size shards of count elements
 * each, in rank order, and must not overlap. A lost member ends it as it does pccl_all_gather. */
PCCL_API pccl_status_t pccl_all_to_all(pccl_comm_t *comm, const void *send_buffer, void *recv_buffer, uint64_t count,
                                       pccl_dtype_t dtype, const pccl_collective_options_t *options,
                                       pccl_work_t **work);
/* The same with shards that differ: send_counts[rank] elements for each rank, recv_counts[rank] from each; ranks is
 * the number of either and must be world_size. No rank knows the counts between others, but every two must agree about
 * theirs, else PCCL_MISMATCH, which names them. At most 32 ranks. Data goes straight from each to each, whatever the
 * plan, so a link that stays broken ends the call with PCCL_ABORTED. */
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

/* One array of a coalesced call; see each collective for its fields. broadcast uses recv_buffer alone,
 * which is only read at the root. Zero the struct first; `reserved` stays zero. */
typedef struct pccl_array {
  const void *send_buffer;
  void *recv_buffer;
  uint64_t count;
  pccl_dtype_t dtype;
  uint32_t reserved;
} pccl_array_t;

/* One operation on several arrays, at most 16384 over all ranks, of any dtypes, without a copy: all of them succeed
 * or none does, with one tag and one outcome. Every member must give as many, of the same counts and dtypes, in the
 * same order. The list is copied, the buffers stay the caller's. Only collectives with a root use root. Error
 * feedback has as many f32 as the send_buffers have elements together (of a reduce_scatter world_size times count
 * for each array), those of one array behind those of the one before. Ranges of the outcome count the elements of
 * all arrays: for each rank's shard in turn, those of one array after the other. */
PCCL_API pccl_status_t pccl_coalesced(pccl_comm_t *comm, pccl_collective_t collective, const pccl_array_t *arrays,
                                      uint64_t array_count, uint32_t root, const pccl_collective_options_t *options,
                                      pccl_work_t **work);
/* One message: count elements of dtype go from buffer of rank src, which calls pccl_send, to that of rank dst, which
 * calls pccl_recv. No other peer takes part. Both must name each other, the tag, dtype and count
 * (PCCL_MISMATCH otherwise), and have passed the same safe points. Messages of one tag from one rank to another arrive
 * in the order of their calls; each direction of each two has its own, so a send and a recv of one tag may be in flight
 * with one rank, and with others. tag is below 1 << 38; of the other options only deadline_ns counts.
 * Both return when the receiver has everything. So two ranks that both send first wait for each other until a deadline:
 * use the asynchronous calls there. A lost partner, or a broken link to it, ends the call with PCCL_ABORTED; a loss of
 * others does not. On any status but PCCL_OK the buffer of a recv may hold anything. */
PCCL_API pccl_status_t pccl_send(pccl_comm_t *comm, const void *buffer, uint64_t count, pccl_dtype_t dtype,
                                 uint32_t dst, const pccl_collective_options_t *options, pccl_work_t **work);
PCCL_API pccl_status_t pccl_recv(pccl_comm_t *comm, void *buffer, uint64_t count, pccl_dtype_t dtype, uint32_t src,
                                 const pccl_collective_options_t *options, pccl_work_t **work);
/* Returns once every member has called it that is not lost; of the options recovery counts. */
PCCL_API pccl_status_t pccl_barrier(pccl_comm_t *comm, const pccl_collective_options_t *options, pccl_work_t **work);

/* The same, returning at once. Buffers stay borrowed until the work is finished: neither may be read or written.
 * work must not be NULL. */
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

/* Waits until the work is finished, at most timeout_ns (0: just looks; UINT64_MAX: until it is finished).
 * PCCL_TIMEOUT: the operation is not finished and continues. Otherwise the status of the operation; the buffer is ready
 * on PCCL_OK. */
PCCL_API pccl_status_t pccl_work_wait(pccl_work_t *work, uint64_t timeout_ns);
/* *finished := 1 if pccl_work_wait would not block. Never blocks. */
PCCL_API pccl_status_t pccl_work_poll(pccl_work_t *work, int *finished);
/* Calls finished(context) exactly once when the work is finished: from a thread of the library, or from this call if it
 * is finished already. finished must return at once (set a flag, post a semaphore) and must not call this library. A
 * second call replaces a callback that has not run. Once pccl_work_destroy has returned it never runs. */
PCCL_API pccl_status_t pccl_work_notify(pccl_work_t *work, void (*finished)(void *context), void *context);
/* *fd := a descriptor for the caller's own poll, select, epoll or kqueue: readable once pccl_work_wait would not block,
 * and from then on (level-triggered; do not read from it). It is the work's: the first call makes it, every
 * call answers the same one, and pccl_work_destroy closes it, so take it out of an epoll or kqueue set before that.
 * Exec closes it, and fork closes it in the child. It does not signal that a doubt was resolved. Each work that is
 * asked costs a descriptor; to have one for all, write to your own in pccl_work_notify.
 * PCCL_SYSTEM_ERROR: too many open files; the work goes on. */
PCCL_API pccl_status_t pccl_work_fd(pccl_work_t *work, int *fd);
/* Withdraws an operation, and this peer from the group: the others go on without it, as after its death, with this
 * operation too. Here it ends with PCCL_CANCELLED and the input is as it was. Other operations of the group end in the
 * same way, and later calls in the group answer PCCL_EXPELLED: close the communicator and make a new one. After this
 * peer's vote the others no longer need it: the operation ends with PCCL_IN_DOUBT, and the peer stays. (A peer votes in
 * a barrier, and perhaps as the root of a broadcast, when it calls; one that only sends to a reduce votes once its data
 * has left.) A message, which concerns two peers only, is withdrawn alone; the other side gets PCCL_ABORTED.
 * Returns PCCL_OK also if it had finished before. */
PCCL_API pccl_status_t pccl_work_cancel(pccl_work_t *work);
/* After PCCL_IN_DOUBT: waits for the coordinator's decision, at most timeout_ns. PCCL_OK: it was committed, and the
 * result is now in recv_buffer, which must still be valid; pass copy 0 to leave the buffer alone.
 * PCCL_ABORTED: it was not. PCCL_TIMEOUT: still unknown. PCCL_COORDINATOR_UNREACHABLE: this peer will never know. */
PCCL_API pccl_status_t pccl_work_resolve(pccl_work_t *work, uint64_t timeout_ns, int copy);
/* Frees a work. One that is not finished is withdrawn first, as by pccl_work_cancel, so this peer leaves the group; its
 * buffers are released before this returns. NULL is allowed. */
PCCL_API void pccl_work_destroy(pccl_work_t *work);

typedef struct pccl_outcome {
  size_t size;
  uint64_t epoch;
  uint64_t tag;
  uint64_t sequence;      /* of this tag in this epoch, from 0 */
  uint32_t attempts;      /* 1 without a loss or a broken lane */
  uint32_t range_count;   /* ranges of this peer's result; a range ends where the contributors change. 1 without a loss;
                             for all_gather, gather and all_to_all one for each shard that has elements, but one for
                             adjoining shards that were lost. 0 for an empty result */
  uint8_t digest[16];     /* of the result; equal on every peer. Zeros where each has a result of its own */
  uint64_t bytes_sent;    /* payload of this operation that this peer sent and received */
  uint64_t bytes_received;
  uint64_t duration_ns;   /* from the call to the commit */
  uint64_t predicted_ns;  /* the same as it was to be expected when the last attempt began, by the rates that members
                             had found on their links; 0: some of them was not known. docs/guides/PERFORMANCE.md */
  uint64_t bound_ns;      /* the least time at these rates, whatever the plan; 0: not known */
  uint32_t plan;          /* the way that the data took: PCCL_PLAN_RING, PCCL_PLAN_DIRECT or PCCL_PLAN_MESSAGE */
  uint32_t reserved;
} pccl_outcome_t;
#define PCCL_OUTCOME_INIT { sizeof(pccl_outcome_t), 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0, 0, 0, 0 }

typedef struct pccl_outcome_range {
  size_t size;
  uint64_t begin;             /* elements [begin, end) */
  uint64_t end;
  uint32_t contributor_count;
} pccl_outcome_range_t;
#define PCCL_OUTCOME_RANGE_INIT { sizeof(pccl_outcome_range_t), 0, 0, 0 }

/* The outcome of a work that finished with PCCL_OK; PCCL_INVALID_USAGE otherwise. */
PCCL_API pccl_status_t pccl_work_outcome(pccl_work_t *work, pccl_outcome_t *outcome);
/* Range index (0 .. range_count-1) and its contributors, in rank order of the epoch: writes at most capacity ids. */
PCCL_API pccl_status_t pccl_work_range(pccl_work_t *work, uint32_t index, pccl_outcome_range_t *range,
                                       pccl_peer_id_t *contributors, uint32_t capacity);

/* pccl_work_wait, pccl_work_outcome, pccl_work_range of the first range (zeros if there is none) and pccl_work_destroy,
 * in one call. On PCCL_OK the work is freed and *work is NULL, unless there is more to read: further ranges, or more
 * contributors than capacity. Otherwise it stays; on any other status as pccl_work_wait leaves it. No other thread may
 * use a work that this call may free. */
PCCL_API pccl_status_t pccl_work_finish(pccl_work_t **work, uint64_t timeout_ns, pccl_outcome_t *outcome,
                                        pccl_outcome_range_t *range, pccl_peer_id_t *contributors, uint32_t capacity);

/* ---- Shared state ---------------------------------------------------------------------------------------- */

typedef struct pccl_state pccl_state_t; /* opaque: tensors that all members of a group want to be equal */

/* In the flags of a tensor: it counts in the structure, but its content may differ and is never written. */
#define PCCL_TENSOR_MAY_DIFFER 1

/* One tensor, contiguous. Zero the struct first; `reserved` stays zero. */
typedef struct pccl_tensor {
  const char *name;       /* 1..256 bytes of UTF-8, unique in its state */
  void *data;             /* in the caller's memory, until the state is destroyed; NULL if it has no elements */
  const uint64_t *shape;  /* elements along each dimension; NULL if there are none */
  uint32_t dimensions;    /* 0..32; 0 is one element */
  pccl_dtype_t dtype;
  uint32_t flags;
  uint32_t reserved;
} pccl_tensor_t;

typedef struct pccl_state_options {
  size_t size;
  const char *name;             /* the same on every member; each state of a group has its own. NULL: "state" */
  const pccl_tensor_t *tensors; /* in any order, which may differ between members */
  uint64_t tensor_count;        /* at most 65536 */
  uint64_t revision;            /* of a restored checkpoint; 0 otherwise */
  uint32_t flags;
  uint32_t reserved;            /* 0 */
} pccl_state_options_t;
#define PCCL_STATE_OPTIONS_INIT { sizeof(pccl_state_options_t), NULL, NULL, 0, 0, 0, 0 }

/* In the flags of a state: newcomers may read its tensors at any time until it is closed, while this peer trains, so
 * that at their first sync only what has changed since moves. Created by a newcomer, between pccl_comm_create and its
 * first pccl_comm_admit, it is fetched from the members that set this flag; that admit waits until it is. */
#define PCCL_STATE_PREFETCH 1
/* Rules that all syncs of a state keep; the same on every member, else PCCL_MISMATCH. The judges are the members of the
 * epoch before, or all members where none of those is left.
 * SUCCESSIVE: only content of the expected revision is elected, which is one more than the last one that a judge has
 *   committed with a state of this name; any before the first commit. A member with another revision receives.
 * REFUSE: a member that does not fit is refused (PCCL_MISMATCH there alone; it is no member then), and the others go
 *   on: one whose names, shapes or dtypes are not those that most judges have, and by SUCCESSIVE one that would give
 *   content of a higher revision than the expected one. Where no structure has most judges, all get PCCL_MISMATCH.
 * ONE_SENDER: beside a member that passes PCCL_SEND_ONLY all others pass PCCL_RECEIVE_ONLY; else PCCL_MISMATCH.
 * HIGHEST_REVISION: the content of the highest revision is elected, also that of a newcomer; of equal revisions that
 *   of the higher standing (PCCL_POPULAR). Without it a newcomer's content never replaces that of members. */
#define PCCL_STATE_SUCCESSIVE 2
#define PCCL_STATE_REFUSE 4
#define PCCL_STATE_ONE_SENDER 8
#define PCCL_STATE_HIGHEST_REVISION 16

/* Names, shapes and the array of tensors are copied; only the tensors' memory stays the caller's. Nothing is sent. A
 * state must be destroyed before its communicator. */
PCCL_API pccl_status_t pccl_state_create(pccl_comm_t *comm, const pccl_state_options_t *options, pccl_state_t **state);

typedef enum pccl_strategy {
  PCCL_POPULAR = 0,      /* the elected content wins: that of members that have committed a sync of a state of this
                            name, then that of other members of the epoch before, then that of newcomers; of equals
                            that of the highest revision, then that of most members, then that of the smallest peer
                            id. Founders of a sub-group have the standing that they have in its parent */
  PCCL_SEND_ONLY = 1,    /* all members get the content of this peer. Two with different contents: PCCL_MISMATCH */
  PCCL_RECEIVE_ONLY = 2  /* the content of this peer is never taken */
} pccl_strategy_t;

/* In the flags of a sync: `revision` is that of this peer's content in this call, instead of the state's own. */
#define PCCL_SYNC_AT_REVISION 1

typedef struct pccl_sync_options {
  size_t size;
  pccl_strategy_t strategy;
  uint64_t deadline_ns;           /* relative to the call; 0: the communicator's default */
  uint64_t revision;              /* PCCL_SYNC_AT_REVISION: below 2**62; 0 without that flag */
  pccl_peer_id_t *contributors;   /* NULL, or room for `capacity` ids of the members that took part, in rank order */
  uint8_t *holders;               /* NULL, or as much room: 1 for those of them that held what was elected, else 0 */
  uint32_t capacity;
  uint32_t flags;
} pccl_sync_options_t;
#define PCCL_SYNC_OPTIONS_INIT { sizeof(pccl_sync_options_t), PCCL_POPULAR, 0, 0, NULL, NULL, 0, 0 }

typedef struct pccl_sync_outcome {
  size_t size;
  uint64_t revision;       /* of the state from now on, equal on every member: one more than that of what was elected */
  uint64_t epoch;
  uint64_t sequence;       /* of this state in this epoch, from 0 */
  uint32_t attempts;       /* 1 without a loss or a broken lane */
  uint32_t sources;        /* members that leaves came from */
  uint64_t leaves;         /* of the state: 256 KiB each, the last of each tensor perhaps less */
  uint64_t leaves_moved;   /* those that this peer received, which had differed */
  uint64_t bytes_sent;     /* of tensors, that this peer sent and received in this sync */
  uint64_t bytes_received;
  uint64_t duration_ns;    /* from the call to the commit */
  uint64_t hash_ns;        /* of that, hashing this peer's tensors */
  uint64_t leaves_early;   /* leaves that had differed and were fetched before the sync (PCCL_STATE_PREFETCH) */
  uint64_t elected_revision;     /* of the content that was elected, equal on every member */
  uint64_t hash_bytes_sent;      /* of hashes of leaves, apart from `bytes_sent` */
  uint64_t hash_bytes_received;
  uint32_t contributor_count;    /* members that took part: what was elected is the content of one of them */
  uint32_t holder_count;         /* those of them that held it when it was elected */
} pccl_sync_outcome_t;
#define PCCL_SYNC_OUTCOME_INIT { sizeof(pccl_sync_outcome_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Makes the state equal on all members, which must call it equally often. Blocks until committed or failed. On any
 * status but PCCL_OK the tensors and the revision are as they were. Tensors must not be written during the call, and
 * must not be read before it returns. One call per state at a time. options and outcome may be NULL.
 * PCCL_MISMATCH: names, shapes or dtypes differ (the sentence lists how), two members insist on different contents, or
 * a rule of the state is broken. If only the names, shapes, dtypes or the content of a newcomer differ, it alone gets
 * that, and is not a member then; the others succeed.
 * PCCL_STATE_UNAVAILABLE: no member holds content that may be taken. After PCCL_IN_DOUBT, sync again.
 * `interrupted` of the communicator withdraws it. */
PCCL_API pccl_status_t pccl_state_sync(pccl_state_t *state, const pccl_sync_options_t *options,
                                       pccl_sync_outcome_t *outcome);
/* Number of committed syncs, counted from the revision given at creation. */
PCCL_API pccl_status_t pccl_state_revision(pccl_state_t *state, uint64_t *revision);
/* Lets go of the tensors, which stay as they are. A sync under way on another thread is withdrawn (PCCL_CANCELLED or
 * PCCL_IN_DOUBT there) and is out of the tensors when this returns. Idempotent; later syncs answer PCCL_CANCELLED. */
PCCL_API pccl_status_t pccl_state_close(pccl_state_t *state);
/* Closes if needed and frees. NULL is allowed. */
PCCL_API void pccl_state_destroy(pccl_state_t *state);

/* ---- Logging --------------------------------------------------------------------------------------------- */

typedef enum pccl_log_level {
  PCCL_LOG_DEBUG = 0,
  PCCL_LOG_INFO = 1,
  PCCL_LOG_WARNING = 2,
  PCCL_LOG_ERROR = 3
} pccl_log_level_t;
/* The library never prints. Events (a peer lost, an epoch entered, a lane reopened) are queued, at most 1024; this
 * takes the oldest: PCCL_OK with *level and a zero-terminated message, PCCL_TIMEOUT if there is none. */
PCCL_API pccl_status_t pccl_log_next(pccl_log_level_t *level, char *message, size_t capacity);

/* ---- Low-communication training (docs/guides/DILOCO.md) -------------------------------------------------------- */

/* The arithmetic of DiLoCo (arXiv 2311.08105) and its family, on the calling thread, with the same bytes on every CPU.
 * Outer parameters, moments and gradients are f32. The arrays of a call must not overlap, but out may be outer. */

/* With g = scale * gradient:
 *   SGD       outer -= learning_rate * g
 *   NESTEROV  v = momentum * v + g;  outer -= learning_rate * (g + momentum * v); PyTorch's form; v is first_moment
 *   ADAM      m = beta1 * m + (1 - beta1) * g;  s = beta2 * s + (1 - beta2) * g * g;
 *             outer -= learning_rate * (m / (1 - beta1^step)) / (sqrt(s / (1 - beta2^step)) + epsilon) */
typedef enum pccl_outer_rule {
  PCCL_OUTER_SGD = 0,
  PCCL_OUTER_NESTEROV = 1,
  PCCL_OUTER_ADAM = 2
} pccl_outer_rule_t;

/* Every field counts as it is, also a zero: begin with PCCL_OUTER_OPTIONS_INIT, which has the paper's numbers. */
typedef struct pccl_outer_options {
  size_t size;            /* sizeof(pccl_outer_options_t) */
  pccl_outer_rule_t rule;
  float learning_rate;
  float momentum;         /* of NESTEROV */
  float beta1, beta2;     /* of ADAM: 0 or more, below 1 */
  float epsilon;          /* of ADAM */
  float scale;            /* of the gradient, where a loss has taken a part of the weights */
  uint32_t reserved;
  uint64_t step;          /* of ADAM: the number of this step, from 1 on */
} pccl_outer_options_t;
#define PCCL_OUTER_OPTIONS_INIT \
  { sizeof(pccl_outer_options_t), PCCL_OUTER_NESTEROV, 0.7f, 0.9f, 0.9f, 0.95f, 1e-8f, 1.0f, 0, 1 }

/* out := outer - parameters, the pseudo-gradient of a worker whose parameters are of the float dtype. *sum_of_squares
 * (may be NULL) becomes the sum of their squares; it is not finite if any of them is not. */
PCCL_API pccl_status_t pccl_outer_difference(const float *outer, const void *parameters, pccl_dtype_t dtype,
                                             uint64_t count, float *out, double *sum_of_squares);
/* parameters := alpha * parameters + (1 - alpha) * outer, each operation rounded once; outer alone if alpha is 0. */
PCCL_API pccl_status_t pccl_outer_mix(void *parameters, pccl_dtype_t dtype, const float *outer, uint64_t count,
                                      float alpha);
/* One step. A moment that the rule has not may be NULL, and is left alone; those that it has begin as zeros. */
PCCL_API pccl_status_t pccl_outer_step(float *outer, float *first_moment, float *second_moment, const float *gradient,
                                       uint64_t count, const pccl_outer_options_t *options);

/* Sparse pieces have the elements of greatest magnitude of each chunk of an array, for pccl_all_gather (SparseLoCo,
 * arXiv 2508.15706). */
typedef enum pccl_sparse_values {
  PCCL_SPARSE_CODES = 0, /* 2 bits each: a sign, and one of two magnitudes of the chunk */
  PCCL_SPARSE_FLOATS = 1 /* f32 */
} pccl_sparse_values_t;

typedef struct pccl_sparse_options {
  size_t size;                 /* sizeof(pccl_sparse_options_t) */
  uint32_t chunk;              /* elements of a chunk, at most 4096, the default; the last of an array may be shorter */
  uint32_t kept;               /* elements kept of each chunk, at most chunk; default: 64, or chunk if that is less */
  pccl_sparse_values_t values;
  uint32_t reserved;
} pccl_sparse_options_t;
#define PCCL_SPARSE_OPTIONS_INIT { sizeof(pccl_sparse_options_t), 0, 0, PCCL_SPARSE_CODES, 0 }

/* Options may be NULL for those of _INIT; they must be the same where a piece is made and where it is added. */

/* Bytes of the piece of count f32: 116 for each 4096 by default. 0 for no elements, and for bad options. */
PCCL_API uint64_t pccl_sparse_bytes(const pccl_sparse_options_t *options, uint64_t count);
/* piece := what is kept of input, of which the residual is input - piece: pccl_sparse_add with a scale of -1. */
PCCL_API pccl_status_t pccl_sparse_encode(const float *input, uint64_t count, const pccl_sparse_options_t *options,
                                          void *piece);
/* into += scale * piece, and weights += scale where the piece has an element; weights may be NULL. SparseLoCo's average
 * is into / weights. PCCL_INVALID_ARGUMENT, and nothing is added, if the piece is none of such an array. */
PCCL_API pccl_status_t pccl_sparse_add(float *into, float *weights, uint64_t count,
                                       const pccl_sparse_options_t *options, const void *piece, float scale);

/* ---- Measuring the kernels (docs/internals/KERNELS.md) ---------------------------------------------------------- */

typedef enum pccl_kernel_what {
  PCCL_KERNEL_PREPARE = 0, /* fills the memory with input for the kernel; once, before the others */
  PCCL_KERNEL_RUN = 1,
  PCCL_KERNEL_SKELETON = 2 /* a loop with the same loads and stores and no arithmetic */
} pccl_kernel_what_t;
/* The names of the kernels, e.g. "encode/int8_rotated", by number; NULL past the last. Static storage. */
PCCL_API const char *pccl_kernel_name(size_t index);
/* Bytes needed to measure with count f32; 0 unless count is a multiple of 4096. */
PCCL_API size_t pccl_kernel_memory(size_t count);
/* Runs it so many times on this thread, on pccl_kernel_memory(count) bytes at memory. *duration_ns becomes the
 * processor time that it took. */
PCCL_API pccl_status_t pccl_kernel_run(const char *name, pccl_kernel_what_t what, void *memory, size_t count,
                                       uint32_t repeats, uint64_t *duration_ns);

#ifdef __cplusplus
}
#endif
#endif /* PCCL_H */
