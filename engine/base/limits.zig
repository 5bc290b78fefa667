//! Every limit of the library, in one place. A breach is a clear error, never an assertion. Beside
//! each limit is written who enforces it.

const std = @import("std");
const assert = std.debug.assert;

pub const KiB = 1024;
pub const MiB = 1024 * KiB;

/// Members of one run, so of any group too. Enforced by the coordinator at registration.
pub const peers_max = 512;
/// Groups of one run. Enforced by the coordinator at join.
pub const groups_max = 64;
/// TCP connections between two peers. Enforced by the coordinator's options.
pub const lanes_per_link_max = 64;
/// Bytes per second that a user may let a peer send: 8 kbit to 10 Tbit. Enforced at the call.
pub const send_rate_min = 1_000;
pub const send_rate_max = 1_250_000_000_000;
/// Names of peers that a user may give a rate of their own. Enforced at the call.
pub const send_rates_max = 32;
/// Operations that one group may have in flight at a peer, collectives, sends and receives each: a
/// call beyond waits for its turn (protocol/member.zig). Enforced by the coordinator, too.
pub const operations_in_flight_max = 64;
/// All of these.
pub const operations_in_flight_total_max = 3 * operations_in_flight_max;
/// Calls of one group that wait so at a peer. Enforced at the call.
pub const operations_queued_max = 1024;
/// Elements of one operation. Enforced at the call.
pub const elements_max = 1 << 40;
/// Units of recovery of one operation; a chunk of a very large operation spans several pieces.
pub const chunks_max = 16_384;
/// Payload of one frame, and so the largest piece.
pub const frame_payload_bytes_max = 256 * KiB;
/// Smallest part of a piece that is worth a frame of its own. Enforced by the sender
/// (session/sync.zig).
pub const fragment_bytes_min = 16 * KiB;
/// Smallest chunk that is worth a frame of its own.
pub const chunk_bytes_min = 1 * KiB;
/// Room for partial sums that each operation has at every peer. All know of it, so how an operation
/// is cut follows from it, too. Less if a run allows less.
pub const window_bytes_first = 16 * MiB;
/// Room that the operations of a peer may have together where its links have more in the air, and
/// the bytes that one source is asked for: by default, and at most. Enforced by the coordinator's
/// options.
pub const windows_bytes_default = 256 * MiB;
pub const windows_bytes_max = 1024 * MiB;
/// An operation of no more than this part of the largest chunk goes before larger ones on each
/// link (session/frame.zig).
pub const small_chunk_part = 4;
/// Bytes of an operation in an attempt before the receiver has called it: small operations
/// need not wait for the answer to come round. The receiver keeps it (session/link.zig).
pub const eager_bytes_max = 16 * KiB;
/// Operations that may do so on one link at the same time; others wait until the receiver has
/// called. Enforced by the sender (session/frame.zig).
pub const eager_operations_max = 128;
/// Safe points of one group: only a liar gets there. Enforced where a count comes in, as are all
/// bounds of numbers that messages and records carry (wire/codec.zig: bounds).
pub const safe_points_max = 1 << 62;
/// Operations of one tag, and slots or pieces of one operation in a frame: only a liar gets there.
pub const sequences_max = 1 << 62;
pub const frame_index_max = 1 << 62;
/// Attempts of an epoch that a member tells of: only a liar tells of more.
pub const attempts_max = (1 << 31) - 1;
/// Attempts and decisions of an epoch that may be missing at the end of a coordinator's log: a
/// member that tells of more after a restart lies. Enforced by the coordinator
/// (protocol/attempt.zig).
pub const attempts_unlogged_max = 1 << 16;
pub const decisions_unlogged_max = 1 << 32;
/// Decisions of an epoch: only a liar has seen more.
pub const decisions_max = 1 << 62;
/// Epochs of a group and starts of a coordinator, in a journal.
pub const epochs_max = 1 << 62;
pub const incarnations_max = (1 << 32) - 2;
/// Heartbeat, silence limit and the time to prepare. Enforced by the coordinator's options.
pub const interval_ns_max = 7 * std.time.ns_per_day;
/// A shorter heartbeat keeps a peer busy with nothing else. Enforced by the coordinator's options,
/// and by peers, whose coordinator may lie.
pub const heartbeat_ns_min = std.time.ns_per_ms;
/// Callers hear whom they wait for after this time, or after half of `stall_warning_ns` if that is
/// shorter; those who are waited for are asked after half of it. Nobody is blamed for it.
pub const wait_told_ns_max = 5 * std.time.ns_per_s;

pub fn wait_told_ns(stall_warning_ns: u64) u64 {
    return @min(wait_told_ns_max, stall_warning_ns / 2);
}

/// Peers whose `admit` others wait for: so many are named to them.
pub const awaited_told_max = 4;
/// A member says that it has called an operation when this part of `wait_told_ns` has passed.
pub const called_part = 5;
/// A dial without an answer is given up after this time.
pub const dial_ns_max = 5 * std.time.ns_per_s;
/// The same for the coordinator, which looks where a peer is while that one waits.
pub const find_dial_ns_max = 2 * std.time.ns_per_s;
/// How far a new epoch lies ahead of the last safe point that a second member, or a committed
/// operation, vouches for: one member that claims to be further has the others wait for nobody.
/// Also how often an honest program may pass a safe point while an operation is in flight.
pub const safe_points_ahead_max = 4096;
/// Group names, without terminating zero.
pub const name_bytes_max = 256;
/// The name of a peer for people (base/label.zig), in bytes: the longest name of a host, a process
/// id and a number. Enforced by the coordinator at join.
pub const label_bytes_max = 80;
/// Links of a peer whose traffic is in the status: the busiest. Enforced where it is told.
pub const links_told_max = 32;
/// The numbers that a peer tells of such a link: the bytes per second that it carries, its round
/// trip, and the bytes sent a second time, in millionths. The peer cuts them before it tells them;
/// the coordinator believes no others (protocol/measurement.zig).
pub const link_rate_told_max = send_rate_max;
pub const link_rtt_ns_told_max = 60 * std.time.ns_per_s;
pub const link_again_ppm_max = 1_000_000;
/// Links of a peer whose numbers the coordinator keeps: in a few groups of all links.
pub const links_measured_max = 4 * full_mesh_max;
/// Members of an epoch that are told what each link carries: in larger ones most links are unknown.
pub const measured_max = full_mesh_max;
/// One probe of a link of which nothing is known: so many bytes, and for so long. Enforced by the
/// peer that sends it (session/measure.zig).
pub const probe_bytes_max = 16 * MiB;
pub const probe_ns_max = std.time.ns_per_s;
/// The payload of one of its frames: whatever else is to be sent waits for no more than that.
/// Enforced by the receiver, too.
pub const probe_frame_bytes_max = 16 * KiB;
/// "host:port" of a peer or a coordinator.
pub const address_bytes_max = 255;
/// Largest control message: a resume that lists every chunk with its holders.
pub const control_message_bytes_max = 2 * MiB;
/// The same of somebody who is no member of any group; a hello and a join fit many times. Enforced
/// by the coordinator.
pub const newcomer_message_bytes_max = 64 * KiB;
/// Bytes that wait for one peer that does not read. Enforced by the coordinator (wire/stream.zig),
/// as are the next two.
pub const control_queue_bytes_max = 4 * MiB;
/// Bytes that wait on top of that because a member must be told it at once: how each operation in
/// flight goes on after a loss, or what was decided while it was away. Members that are told the
/// same share it in memory.
pub const control_bulk_bytes_max = 80 * MiB;
/// All queues of a coordinator, unless its options say otherwise, and what they may say.
pub const queues_bytes_default = 512 * MiB;
pub const queues_bytes_min = 16 * MiB;
/// Bytes that a peer has to tell its coordinator: reports of all that is in flight in many groups.
pub const report_queue_bytes_max = 64 * MiB;
/// Name of a directory that an option gives.
pub const path_bytes_max = 4095;
/// A journal that is read back. The coordinator writes it anew long before (net/journal.zig).
pub const journal_bytes_max = 256 * MiB;
/// Aborts that one member has caused and some other has not seen: who adds more leaves the run.
/// Also what a member stores for later calls, where the oldest of whoever caused most makes room.
pub const decisions_kept_max = 4096;
/// The same for aborts of which nobody knows who caused them, because two members contradict each
/// other.
pub const contradictions_kept_max = 16 * decisions_kept_max;
/// Decisions of an epoch that some member has not seen yet: beyond, votes of the others wait for
/// it, and it is let go when it votes `decisions_kept_max` times more. Enforced by the coordinator
/// (protocol/operation.zig).
pub const decisions_unseen_max = 4 * decisions_kept_max;
/// Operations that one peer may have given up and whose abort the coordinator has still to send, as
/// while it is away: told all at once, they must not be more than it may cause. Enforced at the
/// call.
pub const given_up_max = decisions_kept_max / 2;
/// Calls that failed at one peer alone, because they need a member that is lost, and that it has
/// still to tell the coordinator, with what it has given up (protocol/member.zig: fail_alone). More
/// are not told.
pub const failed_alone_max = given_up_max / 8;
/// Decisions that a member may have seen without having said so.
pub const decisions_untold_max = 64;
/// Runs of tags that were called equally often in one epoch of a group (protocol/sequence.zig).
/// Enforced at the call.
pub const tag_runs_max = 65_536;
/// Links of a group are a full mesh up to this many members; above, each rank keeps
/// `ring_reach` neighbours on either side, so that a new order of the ring rarely waits for a
/// connection.
pub const full_mesh_max = 32;
pub const ring_reach = 3;
/// Tags from here on belong to messages between two members, which their sender, their receiver and
/// the tag of the call follow from (pair.zig); those have smaller tags. Enforced at the call.
pub const pair_tags_first = 0xfe << 56;
pub const pair_user_tags = 1 << 38;
/// Tags from here on belong to shared states, one to each name. Enforced at the call.
pub const state_tags_first = 0xff << 56;
/// The last two are those of safe points that all members pass together, and of the question who
/// would enter there (session/membership.zig). A state whose name had one of them, one in 2^55,
/// would differ from those in its kind.
pub const admit_tag = std.math.maxInt(u64);
pub const pending_tag = admit_tag - 1;
/// Tensors of one shared state, and dimensions of one of them. Enforced when it is made.
pub const state_tensors_max = 65_536;
pub const state_dimensions_max = 32;
/// The unit that is hashed, compared and moved; it fits a frame.
pub const state_leaf_bytes = 256 * KiB;
/// Leaves of one shared state: 16 TiB in whole leaves.
pub const state_leaves_max = 1 << 26;
/// Revisions of a shared state: only a liar gets there. Enforced where one comes in.
pub const state_revisions_max = 1 << 62;
/// Leaves that one member asks of another before it has any of them, while their link is not known;
/// and at most. A peer that asks for more breaks the protocol.
pub const state_asked_first = 32;
pub const state_asked_max = 256 * MiB / state_leaf_bytes;
/// States whose syncs a member remembers, by their names, after they are closed.
pub const states_synced_max = 256;
/// Bytes about a member's tensors in one message; a name and its shape fit many times.
pub const state_page_bytes = 64 * KiB;
/// Members of whom others hear what they wait in, beside that they are waited for. More are not
/// named in a sentence, either.
pub const elsewhere_told_max = 4;
/// How structures differ, as a sentence for a person.
pub const state_differs_bytes_max = 900;
/// A line of the log; a longer one is cut. Some name six peers, or say why one was removed.
pub const log_line_bytes_max = 1023;
/// The sentence that says why a peer is not a member any more has `state_differs_bytes_max` and
/// some words. Enforced by decoding, and by the coordinator, which cuts it.
pub const expelled_bytes_max = 1000;
/// As much of it is kept for a peer that asks later, also by the journal; the rest is cut.
pub const removal_why_bytes_max = 240;
/// Connections that have not said who they are yet, and how long they may take.
pub const strangers_max = 64;
pub const stranger_ns_max = 5 * std.time.ns_per_s;

/// Connections that ask the coordinator for the status, and how long each may take.
pub const statuses_max = 8;
pub const status_ns_max = std.time.ns_per_s;
/// A peer that has joined nothing for so long is let go.
pub const idle_ns_max = 5 * std.time.ns_per_s;
/// Groups of one peer. Enforced by the coordinator at join.
pub const groups_per_peer_max = 8;

/// Messages of one peer to the coordinator, without those of its calls; and bytes, with those. The
/// bursts are what an honest one says at once: what it knows when it comes back, and what is
/// settled of all it has in flight. Enforced by the coordinator, which reads nothing from the peer
/// for a while (protocol/peer.zig), as are the next.
pub const peer_messages_per_s_max = 2000;
pub const peer_messages_burst = 8192;
pub const peer_bytes_per_s_max = 4 * MiB;
pub const peer_bytes_burst = 16 * MiB;
/// Joins of one peer, all of whose groups are told again when its connection breaks; and those of
/// newcomers from one network, behind which a whole run may be.
pub const joins_per_s_max = 4;
pub const peer_joins_burst = 2 * groups_per_peer_max;
pub const network_joins_burst = 4 * peers_max;
/// Attempts that one peer may cause by saying that links are broken; more come later.
pub const peer_attempts_per_s_max = 2;
pub const peer_attempts_burst = 8;
/// Links of one member of a group that it says are broken: more than any has. Beyond, one that it
/// said earlier is forgotten. Enforced by the coordinator (protocol/path.zig).
pub const links_broken_max = 2 * full_mesh_max;
/// The shortest and the longest time for which nothing is read from a peer that has said too much;
/// the longest also for which an attempt is put off.
pub const pause_ns_min = 10 * std.time.ns_per_ms;
pub const pause_ns_max = std.time.ns_per_s;
/// Addresses whose joins are counted apart.
pub const sources_kept_max = 1024;

/// Data sent ahead of time that is kept for one link: what the sender may send by the limits above,
/// and twice as much for what keeping small pieces costs and for operations that it has given up
/// meanwhile. Enforced by the receiver (session/link.zig), as is the next.
pub const early_bytes_max = 3 * eager_operations_max * eager_bytes_max;
/// Operations of one link that this peer has not called yet: all in flight in two epochs.
pub const early_operations_max = 2 * groups_max * operations_in_flight_total_max;

comptime {
    // One resume of a full-size operation fits one control message (wire/control.zig, KeptRange).
    const resume_bytes_max = chunks_max * (12 + peers_max / 8) + 256;
    assert(resume_bytes_max <= control_message_bytes_max);
    // It fits what waits for a peer, and those of all collectives that a group may have in flight
    // fit the bulk. A message arrives nearly in order, so its resume has few ranges of chunks.
    assert(resume_bytes_max <= control_queue_bytes_max);
    assert(operations_in_flight_max * resume_bytes_max <= control_bulk_bytes_max);
    // All that a peer gives up at once, in both of its epochs, is less than what one may cause.
    const given_up_at_once = operations_queued_max + 2 * operations_in_flight_total_max;
    assert(given_up_max + given_up_at_once <= decisions_kept_max);
    // Not even the coordinator with the least memory must let members go for a resume.
    assert(control_message_bytes_max + control_queue_bytes_max < queues_bytes_min);
    assert(state_leaf_bytes <= frame_payload_bytes_max);
    // Chunk indices travel as u32, ranks as u16.
    assert(chunks_max <= std.math.maxInt(u32) and peers_max <= std.math.maxInt(u16));
}
