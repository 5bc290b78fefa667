//! Every limit of the library. A breach is a clear error, never an assertion. The comment of a
//! limit says who enforces it.

const std = @import("std");
const assert = std.debug.assert;

pub const KiB = 1024;
pub const MiB = 1024 * KiB;

/// Peers of one run, and so members of a group. Enforced by the coordinator at registration.
pub const peers_max = 512;
/// Groups of one run. Enforced by the coordinator at join.
pub const groups_max = 64;
/// TCP connections between two peers. Enforced by the coordinator's options.
pub const lanes_per_link_max = 64;
/// Bytes per second that a user may let a peer send: 8 kbit/s to 10 Tbit/s. Enforced at the call.
pub const send_rate_min = 1_000;
pub const send_rate_max = 1_250_000_000_000;
/// Peers to which a user may give a send rate of their own. Enforced at the call.
pub const send_rates_max = 32;
/// Operations that one group may have in flight at a peer: collectives, sends and receives each.
/// Further calls wait for their turn (protocol/member.zig). Also enforced by the coordinator.
pub const operations_in_flight_max = 64;
/// Operations in flight of one group at a peer: collectives, sends and receives together.
pub const operations_in_flight_total_max = 3 * operations_in_flight_max;
/// Calls of one group that wait for their turn at a peer. Enforced at the call.
pub const operations_queued_max = 1024;
/// Elements of one operation. Enforced at the call.
pub const elements_max = 1 << 40;
/// Chunks of one operation; a chunk of a very large operation spans several pieces.
pub const chunks_max = 16_384;
/// Bytes of payload of one frame, and so of the largest piece.
pub const frame_payload_bytes_max = 256 * KiB;
/// Bytes of the smallest fragment of a piece that is worth a frame of its own. Enforced by the
/// sender (session/sync.zig).
pub const fragment_bytes_min = 16 * KiB;
/// Bytes of the smallest chunk that is worth a frame of its own.
pub const chunk_bytes_min = 1 * KiB;
/// Bytes of partial sums that each operation may hold at a peer; less if the run allows less. It is
/// the same for all members, because the cut of an operation depends on it.
pub const window_bytes_first = 16 * MiB;
/// Bytes of partial sums that all operations of a peer may hold together if its links have more in
/// flight, and bytes of leaves that may be requested from one source: default and upper bound.
/// Enforced by the coordinator's options.
pub const windows_bytes_default = 256 * MiB;
pub const windows_bytes_max = 1024 * MiB;
/// An operation of at most `chunk_bytes` divided by this is small: its frames go before larger
/// operations' on each link (session/frame.zig).
pub const small_chunk_part = 4;
/// Bytes of an operation that may be sent in an attempt before the receiver has called the
/// operation, so that small operations need no round trip. Enforced by the receiver
/// (session/link.zig).
pub const eager_bytes_max = 16 * KiB;
/// Operations that may send eager bytes on one link at the same time; further operations wait until
/// the receiver has called them. Enforced by the sender (session/frame.zig).
pub const eager_operations_max = 128;
/// Safe points of one group; only a lying peer tells more. Enforced where a message or record is
/// read, like all bounds of numbers in them (wire/codec.zig: bounds).
pub const safe_points_max = 1 << 62;
/// Operations of one tag, and `index` of a frame; only a lying peer tells more.
pub const sequences_max = 1 << 62;
pub const frame_index_max = 1 << 62;
/// Attempts of one epoch; only a lying member reports more.
pub const attempts_max = (1 << 31) - 1;
/// Attempts and decisions of an epoch that may be missing at the end of a coordinator's log. A
/// member that reports more after a restart lies. Enforced by the coordinator
/// (protocol/attempt.zig).
pub const attempts_unlogged_max = 1 << 16;
pub const decisions_unlogged_max = 1 << 32;
/// Decisions of one epoch; only a lying member reports more.
pub const decisions_max = 1 << 62;
/// Epochs of a group, and starts of a coordinator, in a journal.
pub const epochs_max = 1 << 62;
pub const incarnations_max = (1 << 32) - 2;
/// Nanoseconds of the heartbeat, the silence limit and the time to prepare. Enforced by the
/// coordinator's options.
pub const interval_ns_max = 7 * std.time.ns_per_day;
/// Nanoseconds of the shortest heartbeat; a shorter one would leave a peer no time for other work.
/// Enforced by the coordinator's options, and by peers, whose coordinator may lie.
pub const heartbeat_ns_min = std.time.ns_per_ms;
/// Nanoseconds after which callers learn which members they wait for; half of `stall_warning_ns` if
/// that is shorter. The coordinator asks missing members after half of that time. No member is
/// blamed for such a wait.
pub const wait_told_ns_max = 5 * std.time.ns_per_s;

pub fn wait_told_ns(stall_warning_ns: u64) u64 {
    return @min(wait_told_ns_max, stall_warning_ns / 2);
}

/// Peers that one message names to newcomers as those they wait for.
pub const awaited_told_max = 4;
/// A member reports a call that has lasted for `wait_told_ns` divided by this.
pub const called_part = 5;
/// Nanoseconds after which a dial without an answer is given up.
pub const dial_ns_max = 5 * std.time.ns_per_s;
/// Nanoseconds after which the coordinator gives up a dial to find a peer, which waits meanwhile.
pub const find_dial_ns_max = 2 * std.time.ns_per_s;
/// How many safe points a new epoch may lie ahead of the last safe point that a second member has
/// passed, or that a committed operation was called at. So one lying member cannot send the others
/// to a safe point far ahead. Also how often an honest program may pass a safe point while an
/// operation is in flight.
pub const safe_points_ahead_max = 4096;
/// Bytes of a group name, without terminating zero.
pub const name_bytes_max = 256;
/// Bytes of a peer's label (base/label.zig): the longest host name, a process id and a number.
/// Enforced by the coordinator at join.
pub const label_bytes_max = 80;
/// Links of a peer whose traffic the status shows: the busiest. Enforced by the reporting peer.
pub const links_told_max = 32;
/// Largest numbers that a peer reports of a link: bytes per second that the link carries, its round
/// trip, and bytes sent a second time, per million bytes. The peer cuts larger numbers; the
/// coordinator believes no larger ones (protocol/measurement.zig).
pub const link_rate_told_max = send_rate_max;
pub const link_rtt_ns_told_max = 60 * std.time.ns_per_s;
pub const link_again_ppm_max = 1_000_000;
/// Links of a peer whose measurements the coordinator keeps: all links of a few groups.
pub const links_measured_max = 4 * full_mesh_max;
/// The least round trip of a link that is far: far links are paced and probed.
pub const far_ns = 2 * std.time.ns_per_ms;
/// Members of the largest epoch whose members are told what each link carries; in larger epochs
/// most links are unmeasured.
pub const measured_max = full_mesh_max;
/// Bytes and nanoseconds of one probe of a link whose rate is unknown. Enforced by the sending peer
/// (session/measure.zig).
pub const probe_bytes_max = 16 * MiB;
pub const probe_ns_max = std.time.ns_per_s;
/// Bytes of payload of one frame of a probe, so that other frames wait for no more than these. Also
/// enforced by the receiver.
pub const probe_frame_bytes_max = 16 * KiB;
/// Bytes of the "host:port" of a peer or a coordinator.
pub const address_bytes_max = 255;
/// Bytes of the largest control message: a `resume_op` that lists every chunk with its holders.
pub const control_message_bytes_max = 2 * MiB;
/// Bytes of the largest control message from a peer that is no member; a hello and a join fit many
/// times. Enforced by the coordinator.
pub const newcomer_message_bytes_max = 64 * KiB;
/// Bytes of messages that wait for one peer that does not read. Enforced by the coordinator
/// (wire/stream.zig), like the next two limits.
pub const control_queue_bytes_max = 4 * MiB;
/// Bytes that may wait beyond `control_queue_bytes_max` because a member must be told them at once:
/// how each operation in flight goes on after a loss, or what was decided while the member was
/// away. Members that are told the same share the memory.
pub const control_bulk_bytes_max = 80 * MiB;
/// Bytes of all queues of a coordinator: the default, and the least that its options may set.
pub const queues_bytes_default = 512 * MiB;
pub const queues_bytes_min = 16 * MiB;
/// Bytes of messages of a peer that wait for its coordinator: reports of all operations in flight
/// in many groups.
pub const report_queue_bytes_max = 64 * MiB;
/// Bytes of a directory name in an option.
pub const path_bytes_max = 4095;
/// Bytes of a journal that is read back. The coordinator rewrites its journal long before
/// (net/journal.zig).
pub const journal_bytes_max = 256 * MiB;
/// Aborts that one member has caused and that some other member has not seen; a member that causes
/// more is removed. Also aborts that a member stores for later calls: a further abort replaces the
/// oldest abort of the member that caused most.
pub const decisions_kept_max = 4096;
/// If two members contradict each other, the abort counts against neither, unless this many
/// decisions are unseen by some member: then it counts against the member that spoke later.
pub const contradictions_kept_max = 16 * decisions_kept_max;
/// Decisions of an epoch that some member has not seen. At this number, votes of other members wait
/// for that member, which is removed when it votes `decisions_kept_max` times more. Enforced by the
/// coordinator (protocol/operation.zig).
pub const decisions_unseen_max = 4 * decisions_kept_max;
/// Operations that a peer has given up and that the coordinator has not aborted yet, as while it is
/// away. The coordinator counts these as aborts that the peer has caused, so the limit is below
/// `decisions_kept_max`. Enforced at the call.
pub const given_up_max = decisions_kept_max / 2;
/// A peer tells the coordinator of calls that failed at this peer alone (protocol/member.zig:
/// fail_alone) only while fewer operations than this wait to be given up.
pub const failed_alone_max = given_up_max / 8;
/// Decisions that a member may have seen without telling the coordinator.
pub const decisions_untold_max = 64;
/// Ranges of consecutive tags that were called equally often in one epoch of a group
/// (protocol/sequence.zig). Enforced at the call.
pub const tag_runs_max = 65_536;
/// Members of the largest group whose links are a full mesh. In larger groups, each rank keeps
/// links to `ring_reach` neighbours on either side, so that a new order of the ring rarely waits
/// for a connection.
pub const full_mesh_max = 32;
pub const ring_reach = 3;
/// Tags from here on belong to messages between two members: sender, receiver and the user's tag
/// follow from them (pair.zig). A message's user tag is below `pair_user_tags`, the tag of any
/// other user call below `pair_tags_first`. Enforced at the call.
pub const pair_tags_first = 0xfe << 56;
pub const pair_user_tags = 1 << 38;
/// Tags from here on belong to shared states, a tag to each name. Enforced at the call.
pub const state_tags_first = 0xff << 56;
/// The last two tags belong to safe points that all members pass together, and to the question how
/// many newcomers wait (session/membership.zig). The name of a state has one of these two tags once
/// in 2^55; then its syncs and these operations differ in kind.
pub const admit_tag = std.math.maxInt(u64);
pub const pending_tag = admit_tag - 1;
/// Tensors of one shared state, and dimensions of a tensor. Enforced when the state is made.
pub const state_tensors_max = 65_536;
pub const state_dimensions_max = 32;
/// Bytes of a leaf, the unit that is hashed, compared and moved; a leaf fits a frame.
pub const state_leaf_bytes = 256 * KiB;
/// Leaves of one shared state: 16 TiB in whole leaves.
pub const state_leaves_max = 1 << 26;
/// Revisions of a shared state; only a lying peer tells more. Enforced where a revision is read.
pub const state_revisions_max = 1 << 62;
/// Leaves that a member may have requested from one source and not received: the first number
/// applies while the link's rate is unknown, the second always. A peer that requests more breaks
/// the protocol.
pub const state_asked_first = 32;
pub const state_asked_max = 256 * MiB / state_leaf_bytes;
/// States whose syncs a member remembers by name, also after the states are closed.
pub const states_synced_max = 256;
/// Bytes about a member's tensors in one message; a name with its shape fits many times.
pub const state_page_bytes = 64 * KiB;
/// Missing members of whom a caller also learns which operations they wait in. Error texts name no
/// more.
pub const elsewhere_told_max = 4;
/// Bytes of the sentence that tells a user how the structures of members differ.
pub const state_differs_bytes_max = 900;
/// Bytes of a log line; a longer line is cut. Some lines name six peers, or say why a peer was
/// removed.
pub const log_line_bytes_max = 1023;
/// Bytes of the sentence that tells why a peer is no member any more: `state_differs_bytes_max` and
/// some words. Enforced by decoding, and by the coordinator, which cuts the sentence.
pub const expelled_bytes_max = 1000;
/// Bytes of the reason of a removal that are kept for a peer that asks later, also in the journal;
/// the rest is cut.
pub const removal_why_bytes_max = 240;
/// Connections that have not sent their first message yet, and nanoseconds that each may take.
pub const strangers_max = 64;
pub const stranger_ns_max = 5 * std.time.ns_per_s;

/// Connections that ask the coordinator for the status, and nanoseconds that each may take.
pub const statuses_max = 8;
pub const status_ns_max = std.time.ns_per_s;
/// Nanoseconds after which the coordinator disconnects a peer that has joined no group.
pub const idle_ns_max = 5 * std.time.ns_per_s;
/// Groups of one peer. Enforced by the coordinator at join.
pub const groups_per_peer_max = 8;

/// Messages that a peer may send to the coordinator per second, without messages about its calls,
/// and bytes per second, with these. A burst is what an honest peer sends at once: all it knows
/// after a reconnect, and what is settled of its operations in flight. Enforced by the coordinator,
/// which pauses reading from the peer (protocol/peer.zig), like the next limits.
pub const peer_messages_per_s_max = 2000;
pub const peer_messages_burst = 8192;
pub const peer_bytes_per_s_max = 4 * MiB;
pub const peer_bytes_burst = 16 * MiB;
/// Joins of one peer per second, and its burst: a peer repeats the joins of all its groups when its
/// connection breaks. The other burst is for newcomers from one network, behind which a whole run
/// may be.
pub const joins_per_s_max = 4;
pub const peer_joins_burst = 2 * groups_per_peer_max;
pub const network_joins_burst = 4 * peers_max;
/// Attempts per second that one peer may cause by reporting broken links; further attempts begin
/// later.
pub const peer_attempts_per_s_max = 2;
pub const peer_attempts_burst = 8;
/// Links that one member of a group reports as broken: more than any member has. A further report
/// replaces an earlier one. Enforced by the coordinator (protocol/path.zig).
pub const links_broken_max = 2 * full_mesh_max;
/// Nanoseconds for which the coordinator reads nothing from a peer that has sent too much: at
/// least, and at most. The maximum also bounds how long an attempt is put off.
pub const pause_ns_min = 10 * std.time.ns_per_ms;
pub const pause_ns_max = std.time.ns_per_s;
/// Networks whose joins are counted separately.
pub const sources_kept_max = 1024;

/// Bytes of early data that are kept for one link: what the sender may send by the limits above,
/// and twice as much for the cost of small pieces and for operations that the sender has given up.
/// Enforced by the receiver (session/link.zig), like the next limit.
pub const early_bytes_max = 3 * eager_operations_max * eager_bytes_max;
/// Operations of one link whose frames are kept before this peer calls them: all operations in
/// flight in two epochs of each group.
pub const early_operations_max = 2 * groups_max * operations_in_flight_total_max;

comptime {
    // A `resume_op` of a full-size operation fits one control message (wire/control.zig,
    // KeptRange).
    const resume_bytes_max = chunks_max * (12 + peers_max / 8) + 256;
    assert(resume_bytes_max <= control_message_bytes_max);
    // One `resume_op` fits the queue of a peer, and those of all collectives in flight of a group
    // fit `control_bulk_bytes_max`. The data of a message between two ranks arrives nearly in
    // order, so its `resume_op` has few ranges of chunks.
    assert(resume_bytes_max <= control_queue_bytes_max);
    assert(operations_in_flight_max * resume_bytes_max <= control_bulk_bytes_max);
    // Operations that a peer gives up at once, in both of its epochs, stay below what it may cause.
    const given_up_at_once = operations_queued_max + 2 * operations_in_flight_total_max;
    assert(given_up_max + given_up_at_once <= decisions_kept_max);
    // Even the smallest queue memory of a coordinator has room for one `resume_op`.
    assert(control_message_bytes_max + control_queue_bytes_max < queues_bytes_min);
    assert(state_leaf_bytes <= frame_payload_bytes_max);
    // Chunk indices are sent as u32, ranks as u16.
    assert(chunks_max <= std.math.maxInt(u32) and peers_max <= std.math.maxInt(u16));
}
