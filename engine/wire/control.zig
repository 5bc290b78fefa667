//! control: the messages between a peer and the coordinator. One struct per message; the union's
//! order is the number on the wire. Framing: u32 body length, u16 kind, u16 zero, body (codec.zig).
//! Their effects: protocol/coordinator.zig and protocol/member.zig; bytes:
//! docs/internals/PROTOCOL.md.

const std = @import("std");
const base = @import("base");
const codec = @import("codec.zig");
const hello = @import("hello.zig");
const Dialed = @import("dialed.zig").Dialed;
const Bytes = codec.Bytes;
const List = codec.List;
const PeerId = base.PeerId;
const Mask = base.Mask;

const limits = base.limits;

pub const header_bytes = 8;

/// Parts of the bounds of messages (codec.zig). Numbers of epochs, attempts, rounds and
/// decisions are `.any`: whoever reads one compares it with those that it has given itself.
const group_last = limits.groups_max - 1;
/// The safe point after it has a number, too.
const safe_points_told_max = limits.safe_points_max - 1;

pub const OpKind = enum(u8) {
    all_reduce = 0,
    broadcast = 1,
    barrier = 2,
    sync = 3,
    reduce = 4,
    reduce_scatter = 5,
    all_gather = 6,
    scatter = 7,
    gather = 8,
    all_to_all = 9,
    /// One sends, one receives, and the others have no part in it.
    send_recv = 10,

    /// All that follows from a kind; a new one must say all of it.
    const traits: std.EnumArray(OpKind, std.EnumSet(Trait)) = .init(.{
        .all_reduce = .initMany(&.{ .reduces, .has_codecs }),
        .broadcast = .initMany(&.{.has_root}),
        .barrier = .initMany(&.{}),
        .sync = .initMany(&.{}),
        .reduce = .initMany(&.{ .reduces, .has_codecs, .has_root, .ends_at_root, .is_private }),
        .reduce_scatter = .initMany(&.{ .reduces, .has_codecs, .has_shards, .is_private }),
        .all_gather = .initMany(&.{ .has_codecs, .has_shards }),
        .scatter = .initMany(&.{ .carries, .has_codecs, .has_shards, .has_root, .is_private }),
        .gather = .initMany(
            &.{ .carries, .has_codecs, .has_shards, .has_root, .ends_at_root, .is_private },
        ),
        .all_to_all = .initMany(&.{ .carries, .has_codecs, .has_shards, .is_private }),
        .send_recv = .initMany(&.{ .carries, .is_private }),
    });

    const Trait = enum {
        reduces,
        has_codecs,
        carries,
        ends_at_root,
        has_root,
        has_shards,
        is_private,
    };

    inline fn has(kind: OpKind, trait: Trait) bool {
        return traits.get(kind).contains(trait);
    }

    /// Contributions are added up.
    pub fn reduces(kind: OpKind) bool {
        return kind.has(.reduces);
    }

    /// Data on the wire can be encoded. The buffer of a root that broadcasts is only read, so it
    /// would keep what the others get rounded.
    pub fn has_codecs(kind: OpKind) bool {
        return kind.has(.has_codecs);
    }

    /// Each shard is carried from one rank to another.
    pub fn carries(kind: OpKind) bool {
        return kind.has(.carries);
    }

    /// The root alone has a result.
    pub fn ends_at_root(kind: OpKind) bool {
        return kind.has(.ends_at_root);
    }

    pub fn has_root(kind: OpKind) bool {
        return kind.has(.has_root);
    }

    /// Each rank has a shard of the elements, or one for each rank.
    pub fn has_shards(kind: OpKind) bool {
        return kind.has(.has_shards);
    }

    /// No two members have the same result, so nobody can give another what that one lacks.
    pub fn is_private(kind: OpKind) bool {
        return kind.has(.is_private);
    }
};
pub const Recovery = enum(u8) {
    resume_chunks = 1,
    restart = 2,
    raise = 3,
    /// Every member of the epoch contributes, also one that was lost before the call.
    complete = 4,

    /// Where the caller names none. Nothing takes the place of the shard of a lost rank.
    pub fn default(kind: OpKind, op: base.ReduceOp) Recovery {
        if (kind.has_shards()) return .complete;
        return if (op == .avg) .resume_chunks else .restart;
    }
};

/// The request of a call. All members must ask for the same; a difference is a Mismatch.
pub const Descriptor = struct {
    kind: OpKind,
    dtype: base.DType,
    op: base.ReduceOp,
    recovery: Recovery,
    codec: base.Codec = .none,
    plan: base.Plan = .auto,
    /// An all_to_all whose shards differ: only the two that exchange one know how large it is.
    uneven: bool = false,
    /// How many there are, if there are several.
    arrays: u16 = 0,
    /// In all shards together. In the open of an uneven all_to_all: what its sender has for its
    /// receiver.
    count: u64,
    /// A hash of the shards' elements, where they differ, or of several arrays, and of their form
    /// (pccl.h); else the form. In the open of an uneven all_to_all: what its sender wants of its
    /// receiver.
    counts: u64 = 0,
    /// Beside a hash: says which of them differs, if one does (session/call.zig).
    outline: Outline = .{},
    root: PeerId = .none,
    /// The rules of the shared state, for a sync.
    rules: StateRules = .{},
    /// Safe points the caller has passed: all members call admit() equally often.
    safe_points: u64,

    pub const bounds = .{
        .arrays = limits.chunks_max,
        .count = limits.elements_max,
        .counts = .any,
        .safe_points = safe_points_told_max,
    };

    /// Where a message has room for one, and there is none.
    pub const blank: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .f32,
        .op = .sum,
        .recovery = .raise,
        .count = 0,
        .safe_points = 0,
    };

    /// No caller can ask for the bits of floats.
    pub fn exists(descriptor: *const Descriptor) bool {
        return !descriptor.kind.reduces() or descriptor.op.takes(descriptor.dtype);
    }

    pub fn eql(a: *const Descriptor, b: *const Descriptor) bool {
        return std.meta.eql(a.*, b.*);
    }

    /// Whether only the two members that exchange something know all of what they called.
    pub fn is_between_two(descriptor: *const Descriptor) bool {
        return descriptor.kind == .send_recv or descriptor.uneven;
    }

    /// Whether two members who exchange their opens have called the same.
    pub fn fits(a: *const Descriptor, b: *const Descriptor) bool {
        if (!b.uneven) return a.eql(b);
        var seen_from_there = b.*;
        seen_from_there.count = b.counts;
        seen_from_there.counts = b.count;
        return a.eql(&seen_from_there);
    }

    /// As votes have it: without the sizes of shards that only two know.
    pub fn of_all(descriptor: *const Descriptor) Descriptor {
        var common = descriptor.*;
        if (common.uneven) common.count, common.counts = .{ 0, 0 };
        return common;
    }

    /// Short enough for every frame. Equal ones may differ; votes compare the whole.
    pub fn fingerprint(descriptor: Descriptor) u32 {
        return std.hash.Crc32.hash(&encode_descriptor(descriptor));
    }
};
pub const descriptor_bytes = 4 + 4 + 4 + 8 + 8 + 16 + 16 + 4 + 8;

/// Sums over the counts and the dtypes of several arrays, or over those of shards; `_at`: each
/// times its number, from 1 on.
pub const Outline = struct {
    counts_at: u64 = 0,
    dtypes: u32 = 0,
    dtypes_at: u32 = 0,

    pub const bounds = .{ .counts_at = .any, .dtypes = .any, .dtypes_at = .any };
};

/// An operation within its group and epoch.
pub const OpId = struct {
    tag: u64,
    sequence: u64,

    pub const bounds = .{ .tag = .any, .sequence = limits.sequences_max };

    pub fn eql(a: OpId, b: OpId) bool {
        return a.tag == b.tag and a.sequence == b.sequence;
    }
};

pub const AbortReason = enum(u8) {
    deadline = 1,
    cancelled = 2,
    mismatch = 3,
    digest = 4,
    peer_lost = 5,
    root_lost = 6,
    too_few_peers = 7,
    /// Members agree about the call, and not about its parts.
    contradiction = 8,
    /// A sync: names, shapes or dtypes differ.
    structure = 9,
    /// A sync: two members insist on different contents.
    state_conflict = 10,
    /// A sync: nobody has content that may be taken, or gives it.
    state_unavailable = 11,
    /// A message: the link between its sender and its receiver does not work.
    link_broken = 12,
    /// A sync: two members give their contents, and its rules let one alone do that.
    state_strategy = 13,
    /// A member has left the epoch for the next and has not made the call.
    passed = 14,
};

pub const LinkState = enum(u8) {
    /// A lane broke while an operation used it.
    broken = 0,
    /// No lane is open any more: the other may be dead.
    closed = 1,
};

/// A member's report of its link to another one, whatever they are doing.
pub const LinkHealth = enum(u8) {
    /// A lane works again.
    up = 0,
    /// Nothing moved on its last lane for the silence limit; a new one may work.
    silent = 1,
    /// No lane worked for the silence limit.
    down = 2,
};

pub const OpState = enum(u8) { running = 0, done = 1 };

/// Chunks [begin, end), settled, reduced by the members of that attempt.
pub const SettledRange = struct {
    begin: u32,
    end: u32,
    reduced_attempt: u32,

    pub const bounds = .{
        .begin = limits.chunks_max,
        .end = limits.chunks_max,
        .reduced_attempt = .any,
    };
};
/// Chunks [begin, end) that are kept, and who holds them (ranks of the epoch).
pub const KeptRange = struct {
    begin: u32,
    end: u32,
    reduced_attempt: u32,
    holders: Mask,

    pub const bounds = .{
        .begin = limits.chunks_max,
        .end = limits.chunks_max,
        .reduced_attempt = .any,
    };
};

pub const MemberEntry = struct {
    id: PeerId,
    address: Bytes,

    pub const bounds = .{ .address = limits.address_bytes_max };
};

/// A peer and its name for people.
pub const LabelEntry = struct {
    id: PeerId,
    label: Bytes,

    pub const bounds = .{ .label = limits.label_bytes_max };
};

/// BLAKE3: of a leaf of shared state, of a structure, or of both as a root (session/state.zig).
pub const Hash = [32]u8;

/// Content of a higher standing outvotes that of a lower one in a sync.
pub const Standing = enum(u8) {
    /// The member has come with this epoch, or is a founder that was new in the parent.
    newcomer = 0,
    /// It was there before, and has committed no sync of a state of this name.
    member = 1,
    /// It has committed one: here, or for a sub-group anywhere in the group that it comes from.
    synced = 2,
};

/// A member's wish for its own content in a sync.
pub const Strategy = enum(u8) {
    /// The elected content wins.
    popular = 0,
    /// Everybody shall get this member's content.
    send_only = 1,
    /// This member's content is never taken.
    receive_only = 2,
};

/// The rules that all syncs of a shared state keep (protocol/election.zig).
pub const StateRules = struct {
    /// The revision goes up by exactly one: content of another revision is not elected.
    successive: bool = false,
    /// A member whose content does not fit is refused, and the others go on.
    refuse: bool = false,
    /// Beside a member that sends (send_only), all others only receive.
    one_sender: bool = false,
    /// The highest revision is elected, also that of a newcomer.
    highest_revision: bool = false,
};

/// One tensor of a structure.
pub const StateTensor = struct {
    name: Bytes,
    dtype: base.DType,
    may_differ: bool,
    shape: List(u64),

    pub const bounds = .{ .name = limits.state_page_bytes, .shape = limits.state_dimensions_max };
};

/// Members of one epoch of another group, in the rank order of the group that they make. Without
/// any, a group takes whoever comes.
pub const Founders = struct {
    /// The name of the other group.
    parent: Bytes = .{},
    epoch: u64 = 0,
    members: List(PeerId) = .{},

    pub const bounds = .{
        .parent = limits.name_bytes_max,
        .epoch = .any,
        .members = limits.peers_max,
    };
};

// ---- peer to coordinator
/// Opens every connection, once per group: a newcomer's wish, or the return of a member. The
/// memberships of the peer follow (epoch_report, gave_up), then join_end.
pub const Join = struct {
    name: Bytes,
    address: Bytes,
    /// By which the coordinator finds this very peer there (hello.zig: proof).
    address_key: hello.Key,
    /// The user has named the address, so it must lead here; else this peer can do without one.
    advertised: bool = true,
    initial_world_size: u32,
    /// Rounds whose end it still waits for, the one that prepares it and the one that stops it; 0:
    /// none. A peer that names no epoch and not the round that made it a member is none any more.
    round: u64,
    stop_round: u64,
    /// The name of the peer for people; none if it is empty.
    label: Bytes = .{},
    /// The group is made of these, and this peer is one of them; a member names none.
    founders: Founders = .{},

    pub const bounds = .{
        .name = limits.name_bytes_max,
        .address = limits.address_bytes_max,
        .initial_world_size = limits.peers_max,
        .round = .any,
        .stop_round = .any,
        .label = limits.label_bytes_max,
    };
};
/// An epoch that the peer is in.
pub const EpochReport = struct {
    epoch: u64,
    attempt: u32,
    /// It has passed the safe point at which the epoch begins.
    entered: bool,
    decisions_seen: u64,
    alive: Mask,
    members: List(PeerId),

    pub const bounds = .{
        .epoch = .any,
        .attempt = limits.attempts_max,
        .decisions_seen = limits.decisions_max,
        .members = limits.peers_max,
    };
};
pub const JoinEnd = struct {};
pub const Leave = struct {
    group: u16,

    pub const bounds = .{ .group = group_last };
};
pub const Heartbeat = struct {
    number: u64,
    bytes_sent: u64,
    bytes_received: u64,
    /// Nothing is in flight at this peer, nothing moves, and a probe of a link may.
    may_probe: bool = false,

    pub const bounds = .{ .number = .any, .bytes_sent = .any, .bytes_received = .any };
};
pub const HeartbeatAck = struct {
    number: u64,

    pub const bounds = .{ .number = .any };
};
pub const Prepared = struct {
    group: u16,
    round: u64,
    /// The user waits to enter; of a newcomer it may come later than the lanes.
    entering: bool,
    /// Those whose lanes are not open yet, of the ones that the round asked for: with these, it is
    /// said before all are open, so that nobody waits for them alone.
    missing: List(Missing),

    pub const bounds = .{ .group = group_last, .round = .any, .missing = limits.peers_max };
};
pub const Missing = struct {
    peer: PeerId,
    /// The end of the last dial, told once lanes have been missing for a while.
    dialed: Dialed,
    /// The address of this machine that it came from; zeros if none is known.
    source: base.Source = @splat(0),
};
pub const SafePoints = struct {
    group: u16,
    round: u64,
    count: u64,

    pub const bounds = .{ .group = group_last, .round = .any, .count = safe_points_told_max };
};
pub const Activated = struct {
    group: u16,
    epoch: u64,

    pub const bounds = .{ .group = group_last, .epoch = .any };
};
pub const EpochClosed = struct {
    group: u16,
    epoch: u64,

    pub const bounds = .{ .group = group_last, .epoch = .any };
};
pub const Done = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    descriptor: Descriptor,
    digest: u128,
    decisions_seen: u64,
    /// How long ago it was called, counting the way to the coordinator.
    age_ns: u64 = 0,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .digest = .any,
        .decisions_seen = .any,
        .age_ns = limits.interval_ns_max,
    };
};
pub const GaveUp = struct {
    group: u16,
    epoch: u64,
    op: OpId,
    reason: AbortReason,

    pub const bounds = .{ .group = group_last, .epoch = .any };
};
pub const MismatchSeen = struct {
    group: u16,
    epoch: u64,
    op: OpId,
    mine: Descriptor,
    other: PeerId,
    theirs: Descriptor,

    pub const bounds = .{ .group = group_last, .epoch = .any };
};
pub const ReportOp = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    descriptor: Descriptor,
    state: OpState,
    /// The attempt of its call, and that of its last vote; 0 before the vote.
    begun_attempt: u32,
    voted_attempt: u32,
    digest: u128,
    chunks: u32,
    settled: List(SettledRange),

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .begun_attempt = .any,
        .voted_attempt = .any,
        .digest = .any,
        .chunks = limits.chunks_max,
        .settled = limits.chunks_max,
    };
};
pub const ReportEnd = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    decisions_seen: u64,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .decisions_seen = .any,
    };
};
/// When nothing else has said it for a while.
pub const DecisionsSeen = struct {
    group: u16,
    epoch: u64,
    count: u64,

    pub const bounds = .{ .group = group_last, .epoch = .any, .count = .any };
};
pub const LinkLost = struct {
    other: PeerId,
    group: u16,
    epoch: u64,
    attempt: u32,
    state: LinkState,

    pub const bounds = .{ .group = group_last, .epoch = .any, .attempt = .any };
};
pub const LinkTold = struct {
    other: PeerId,
    group: u16,
    health: LinkHealth,
    /// The end of the last dial, and the address of this machine that it came from.
    dialed: Dialed = .pending,
    source: base.Source = @splat(0),

    pub const bounds = .{ .group = group_last };
};
/// The traffic on the link to a peer, in bytes per second, and how the link carries what this side
/// sends.
pub const LinkTraffic = struct {
    peer: PeerId,
    sent: u64,
    received: u64,
    /// The link was found to carry so much, in bytes per second; 0: not known yet.
    rate: u64 = 0,
    /// The most that came from there; 0: not known.
    brought: u64 = 0,
    /// The shortest round trip; 0: not known.
    rtt_ns: u64 = 0,
    /// The bytes that were sent a second time, in millionths, of late.
    again_ppm: u32 = 0,
    /// So many lanes are open.
    lanes: u8 = 0,

    /// A number that cannot be is not believed, and ends nothing (protocol/measurement.zig).
    pub const bounds = .{
        .sent = .any,
        .received = .any,
        .rate = .any,
        .brought = .any,
        .rtt_ns = .any,
        .again_ppm = .any,
        .lanes = limits.lanes_per_link_max,
    };
};
pub const Traffic = struct {
    /// The time that all the speeds are those of.
    span_ns: u64,
    /// On all links together, per second.
    sent: u64,
    received: u64,
    /// The most that all links together have carried of late, each way; 0: not known.
    up: u64,
    down: u64,
    links: List(LinkTraffic),

    /// As in LinkTraffic.
    pub const bounds = .{
        .span_ns = .any,
        .sent = .any,
        .received = .any,
        .up = .any,
        .down = .any,
        .links = limits.links_told_max,
    };
};

/// Whether a rate is told to members again.
pub fn differ(told: u64, now: u64) bool {
    return (told == 0) != (now == 0) or @max(told, now) - @min(told, now) > told / 10;
}
/// For the status. Members are to dial this peer, and the status says how that went
/// (protocol/status.zig); none: nobody is.
pub const StatusRequest = struct {
    dial_back: PeerId = .none,
};
/// To a member: dial this peer once, ask it for its proof, and say what came of it.
pub const DialBack = struct {
    peer: PeerId,
    nonce: hello.Nonce,
    address: Bytes,

    pub const bounds = .{ .address = limits.address_bytes_max };
};
/// How that dial went; `pending`: something there has answered as a peer does, with this.
pub const DialedBack = struct {
    nonce: hello.Nonce,
    dialed: Dialed,
    proof: hello.Proof,
};
/// It has called an operation that takes long, or of which the coordinator has said that others
/// have called it. A vote, an offer and a report say so too.
pub const Called = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    descriptor: Descriptor,
    /// Until its deadline, for one that is near; the largest number: it is far, or not said.
    left_ns: u64 = std.math.maxInt(u64),
    /// The ranks with which it has exchanged nothing of the operation for the time of the stall
    /// warning, though it has sent them something, or waits for something of theirs.
    stuck: Mask = .empty,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .left_ns = .any,
    };
};
/// The content that a member holds when a sync begins, in each attempt. If all offer the same it is
/// its vote.
pub const StateOffer = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    descriptor: Descriptor,
    /// A digest of root and revision: its vote, should all be equal.
    digest: u128,
    revision: u64,
    /// One more than the last revision of a state of this name that the member has committed in
    /// this group; 0 if it has committed none.
    expected: u64 = 0,
    structure: Hash,
    root: Hash,
    strategy: Strategy,
    standing: Standing = .newcomer,
    /// It has voted for this root in an earlier attempt.
    voted: bool,
    decisions_seen: u64,
    /// The name of the state, for people: as much of it as can be shown.
    name: Bytes,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .digest = .any,
        .revision = limits.state_revisions_max,
        .expected = limits.state_revisions_max,
        .decisions_seen = .any,
        .name = limits.label_bytes_max,
    };

    /// Whether it is its member's vote, should all offer the same. Content that is never taken, or
    /// is out of rule as far as its member knows, is none: a coordinator that starts again commits
    /// votes.
    pub fn is_vote(offer: *const StateOffer) bool {
        if (offer.voted) return true;
        if (offer.strategy == .receive_only) return false;
        if (!offer.descriptor.rules.successive or offer.expected == 0) return true;
        return offer.revision == offer.expected;
    }
};
/// A part of the answer to state_ask: tensors in order of their names.
pub const StateTensors = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    first: u32,
    total: u32,
    tensors: List(StateTensor),

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .first = limits.state_tensors_max,
        .total = limits.state_tensors_max,
        .tensors = limits.state_tensors_max,
    };
};

// ---- coordinator to peer
pub const Welcome = struct {
    heartbeat_ns: u64,
    silence_ns: u64,
    window_bytes: u64,
    windows_bytes: u64,
    chunk_bytes: u32,
    lanes: u8,
    /// A tenth of it after a call, the coordinator is told of it.
    stall_warning_ns: u64,

    pub const bounds = .{
        .heartbeat_ns = limits.interval_ns_max,
        .silence_ns = limits.interval_ns_max,
        .stall_warning_ns = limits.interval_ns_max,
        .window_bytes = limits.windows_bytes_max,
        .windows_bytes = limits.windows_bytes_max,
        .chunk_bytes = limits.frame_payload_bytes_max,
        .lanes = limits.lanes_per_link_max,
    };
};
pub const Joined = struct {
    name: Bytes,
    group: u16,

    pub const bounds = .{ .name = limits.name_bytes_max, .group = group_last };
};
pub const Refused = struct {
    name: Bytes,
    why: Bytes,

    pub const bounds = .{ .name = limits.name_bytes_max, .why = .any };
};
/// A round costs what is new in it: nobody is told again what it knows.
pub const Prepare = struct {
    group: u16,
    round: u64,
    /// The peers that may be in the next epoch: to a newcomer all; to a member those who are new.
    members: List(PeerId),
    /// Those that the receiver is to have lanes to, without members between which all links are.
    links: List(MemberEntry),

    pub const bounds = .{
        .group = group_last,
        .round = .any,
        .members = limits.peers_max,
        .links = limits.peers_max,
    };
};

/// The names of peers of a round, for people: to a newcomer those of all, to a member the new ones.
/// They come behind `prepare`, which lists the peers of the round.
pub const Labels = struct {
    group: u16,
    peers: List(LabelEntry),

    pub const bounds = .{ .group = group_last, .peers = limits.peers_max };
};
pub const Release = struct {
    group: u16,
    round: u64,

    pub const bounds = .{ .group = group_last, .round = .any };
};
pub const AskSafePoints = struct {
    group: u16,
    round: u64,

    pub const bounds = .{ .group = group_last, .round = .any };
};
pub const Activate = struct {
    group: u16,
    round: u64,
    epoch: u64,
    /// The safe point at which the epoch begins.
    safe_point: u64,
    /// The epoch before, where the receiver is in it: those of it that have not left come first,
    /// in their order. 0: all members are named.
    base: u64 = 0,
    /// In rank order; the last `joined` of them are new.
    members: List(PeerId),
    joined: u32,
    left: List(PeerId),

    pub const bounds = .{
        .group = group_last,
        .round = .any,
        .epoch = .any,
        .safe_point = limits.safe_points_max,
        .base = .any,
        .members = limits.peers_max,
        .joined = limits.peers_max,
        .left = limits.peers_max,
    };
};
/// A new attempt of an epoch: stop, report, wait for resume.
pub const View = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    alive: Mask,
    /// Ranks in the order of the ring; nothing: rank order.
    order: List(u16),
    /// False: no ring does without broken links; hubs do.
    has_ring: bool,
    /// Ranks that reach all others (base.Paths).
    hubs: Mask,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .order = limits.peers_max,
    };
};
pub const ResumeOp = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    kept: List(KeptRange),

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .kept = limits.chunks_max,
    };
};
pub const Resume = struct {
    group: u16,
    epoch: u64,
    attempt: u32,

    pub const bounds = .{ .group = group_last, .epoch = .any, .attempt = .any };
};
pub const Commit = struct {
    group: u16,
    epoch: u64,
    op: OpId,
    attempt: u32,
    digest: u128,
    decision: u64,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .digest = .any,
        .decision = .any,
    };
};
pub const Abort = struct {
    group: u16,
    epoch: u64,
    op: OpId,
    reason: AbortReason,
    /// The peer that gave up, was lost, or differs; none if nobody in particular.
    peer: PeerId,
    other: PeerId,
    /// For a mismatch: what `peer` and `other` called.
    descriptor: Descriptor,
    other_descriptor: Descriptor,
    decision: u64,

    pub const bounds = .{ .group = group_last, .epoch = .any, .decision = .any };
};
pub const Expelled = struct {
    group: u16,
    /// A newcomer whose calls do not fit those of the members: they fail as such.
    refused: bool = false,
    why: Bytes,
    /// The call of a member that such a call does not fit, from which the newcomer finds which of
    /// several arrays differs. No peer: it is about no call.
    op: OpId = .{ .tag = 0, .sequence = 0 },
    peer: PeerId = .none,
    descriptor: Descriptor = .blank,

    pub const bounds = .{ .group = .any, .why = limits.expelled_bytes_max };
};
/// The offers differ: everybody gets the content with this root from the holders.
pub const StateElected = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    revision: u64,
    root: Hash,
    holders: Mask,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .revision = limits.state_revisions_max,
    };
};
/// Structures differ: say what yours is, from this tensor on.
pub const StateAsk = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    first: u32,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .first = limits.state_tensors_max,
    };
};
/// How they differ, as a sentence; the abort follows.
pub const StateDiffers = struct {
    group: u16,
    epoch: u64,
    op: OpId,
    text: Bytes,

    pub const bounds = .{ .group = group_last, .epoch = .any, .text = .any };
};
/// Where a peer of the group is dialed; nothing follows if it is not known.
pub const AskAddress = struct {
    group: u16,
    peer: PeerId,

    pub const bounds = .{ .group = group_last };
};
pub const AddressTold = struct {
    peer: MemberEntry,
};
/// Some have called an operation, and the missing have not: one of those says `called` when it
/// calls; the others know whom they wait for.
pub const Stalled = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    missing: Mask,
    /// The operations that the first of them wait in themselves, for those who wait for them. If
    /// all have called it: the links of this operation that move nothing, by their two ends.
    elsewhere: List(Elsewhere) = .{},

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .elsewhere = limits.elsewhere_told_max,
    };
};
/// A member that others wait for has called another operation, and waits there for others.
pub const Elsewhere = struct {
    rank: u16 = 0,
    op: OpId = .{ .tag = 0, .sequence = 0 },
    kind: OpKind = .barrier,
    /// The first of those, and how many they are.
    waits_for: u16 = 0,
    count: u16 = 0,

    pub const bounds = .{
        .rank = limits.peers_max - 1,
        .waits_for = limits.peers_max - 1,
        .count = limits.peers_max,
    };
};
/// A peer could not dial the one that is told this, for its user; no peer: the coordinator itself.
pub const Unreached = struct {
    group: u16,
    peer: PeerId,
    dialed: Dialed,
    /// Where from; zeros if that is not known.
    source: base.Source = @splat(0),
    /// Where it was dialed.
    address: Bytes,

    pub const bounds = .{ .group = group_last, .address = limits.address_bytes_max };
};
/// To newcomers of a group that has no members: it begins when so many are there.
pub const Waiting = struct {
    group: u16,
    here: u32,
    needed: u32,
    /// It has had members, and all of them are gone.
    emptied: bool,

    pub const bounds = .{
        .group = group_last,
        .here = limits.peers_max,
        .needed = limits.peers_max,
    };
};
/// To newcomers: the group begins, or lets them in, when these have done something.
pub const Awaited = struct {
    group: u16,
    why: Why,
    /// All of them.
    count: u32,
    /// The first.
    peers: List(AwaitedEntry),

    pub const bounds = .{
        .group = group_last,
        .count = limits.peers_max,
        .peers = limits.awaited_told_max,
    };

    pub const Why = enum(u8) {
        /// The group begins when their users have called `admit`.
        begin = 0,
        /// An epoch has begun, and they have not come to their next safe point.
        safe_point = 1,
        /// They have calls of the epoch before in flight.
        in_flight = 2,
        /// They are founders of the group, and have not asked for it.
        founders = 3,
        /// Their connections to the coordinator have closed: they are back soon, or lost.
        away = 4,
    };
};
pub const AwaitedEntry = struct {
    id: PeerId,
    label: Bytes,
    /// `limits.peers_max` for one that is in no epoch.
    rank: u16,

    pub const bounds = .{ .label = limits.label_bytes_max, .rank = limits.peers_max };
};
/// To members of an epoch: these have not come to the safe point at which it begins.
pub const Entered = struct {
    group: u16,
    epoch: u64,
    missing: Mask,
    /// Newcomers that are in no epoch, where this one only closes the gap of a loss.
    waiting: u16,

    pub const bounds = .{ .group = group_last, .epoch = .any, .waiting = limits.peers_max };
};
/// To members of an epoch of few: what a member carries, as the coordinator believes it. A rate is
/// told again when it has changed by more than a tenth.
pub const Measured = struct {
    group: u16,
    epoch: u64,
    rank: u16,
    /// Bytes per second on all links together; 0: not known.
    up: u64,
    down: u64,
    /// Those on which it sends to others, as far as they are known.
    links: List(MeasuredLink),

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .rank = limits.measured_max - 1,
        .up = limits.link_rate_told_max,
        .down = limits.link_rate_told_max,
        .links = limits.measured_max,
    };
};
pub const MeasuredLink = struct {
    rank: u16,
    rate: u64,
    rtt_ns: u64,

    pub const bounds = .{
        .rank = limits.measured_max - 1,
        .rate = limits.link_rate_told_max,
        .rtt_ns = limits.link_rtt_ns_told_max,
    };
};
/// To a member of an epoch of few: nobody knows what its link to this one carries, so it may send a
/// probe there.
pub const Probe = struct {
    group: u16,
    epoch: u64,
    rank: u16,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .rank = limits.measured_max - 1,
    };
};
pub const StatusReply = struct {
    json: Bytes,

    pub const bounds = .{ .json = .any };
};

pub const Message = union(enum(u16)) {
    join: Join = 1,
    epoch_report: EpochReport,
    join_end: JoinEnd,
    leave: Leave,
    heartbeat: Heartbeat,
    heartbeat_ack: HeartbeatAck,
    prepared: Prepared,
    safe_points: SafePoints,
    activated: Activated,
    epoch_closed: EpochClosed,
    done: Done,
    gave_up: GaveUp,
    mismatch_seen: MismatchSeen,
    report_op: ReportOp,
    report_end: ReportEnd,
    decisions_seen: DecisionsSeen,
    link_lost: LinkLost,
    link_told: LinkTold,
    status_request: StatusRequest,
    welcome: Welcome,
    joined: Joined,
    refused: Refused,
    prepare: Prepare,
    release: Release,
    ask_safe_points: AskSafePoints,
    activate: Activate,
    view: View,
    resume_op: ResumeOp,
    resume_all: Resume,
    commit: Commit,
    abort: Abort,
    expelled: Expelled,
    status_reply: StatusReply,
    state_offer: StateOffer,
    state_tensors: StateTensors,
    state_elected: StateElected,
    state_ask: StateAsk,
    state_differs: StateDiffers,
    ask_address: AskAddress,
    address_told: AddressTold,
    called: Called,
    stalled: Stalled,
    unreached: Unreached,
    labels: Labels,
    waiting: Waiting,
    traffic: Traffic,
    dial_back: DialBack,
    dialed_back: DialedBack,
    awaited: Awaited,
    entered: Entered,
    measured: Measured,
    probe: Probe,
};

pub const Error = codec.Error || error{ UnknownKind, BadReserved };

/// Encodes with the 8-byte header. error.TooLong: `bytes` is too small.
pub fn encode(message: Message, bytes: []u8) codec.Error![]u8 {
    var writer: codec.Writer = .{ .bytes = bytes };
    try writer.put(&@as([header_bytes]u8, @splat(0)));
    switch (message) {
        inline else => |body| try codec.write(@TypeOf(body), body, &writer),
    }
    const body_bytes = writer.offset - header_bytes;
    if (body_bytes > limits.control_message_bytes_max) return error.TooLong;
    std.mem.writeInt(u32, bytes[0..4], @intCast(body_bytes), .little);
    std.mem.writeInt(u16, bytes[4..6], @intFromEnum(message), .little);
    return bytes[0..writer.offset];
}

/// Length of the body that follows this header, checked against the limit.
pub fn body_length(header: *const [header_bytes]u8) Error!usize {
    const length = std.mem.readInt(u32, header[0..4], .little);
    if (length > limits.control_message_bytes_max) return error.TooLong;
    if (header[6] != 0 or header[7] != 0) return error.BadReserved;
    return length;
}

/// Decodes one whole message. Lists and byte strings in it refer to `bytes`.
pub fn decode(bytes: []const u8) Error!Message {
    if (bytes.len < header_bytes) return error.Short;
    if (try body_length(bytes[0..header_bytes]) != bytes.len - header_bytes) return error.Short;
    const number = std.mem.readInt(u16, bytes[4..6], .little);
    const kind = std.enums.fromInt(std.meta.Tag(Message), number) orelse return error.UnknownKind;
    var reader: codec.Reader = .{ .bytes = bytes[header_bytes..] };
    switch (kind) {
        inline else => |tag| {
            const Body = @FieldType(Message, @tagName(tag));
            const body = try codec.read(Body, &reader);
            if (reader.offset != reader.bytes.len) return error.Trailing;
            return @unionInit(Message, @tagName(tag), body);
        },
    }
}

pub fn encode_descriptor(descriptor: Descriptor) [descriptor_bytes]u8 {
    var bytes: [descriptor_bytes]u8 = undefined;
    var writer: codec.Writer = .{ .bytes = &bytes };
    codec.write(Descriptor, descriptor, &writer) catch unreachable; // the size is a constant
    std.debug.assert(writer.offset == bytes.len);
    return bytes;
}

pub fn decode_descriptor(bytes: *const [descriptor_bytes]u8) Error!Descriptor {
    var reader: codec.Reader = .{ .bytes = bytes };
    return codec.read(Descriptor, &reader);
}

test "every message survives the round trip with zero fields" {
    inline for (@typeInfo(Message).@"union".fields) |field| {
        // All-zero bytes are not a value of every enum, so start from the smallest legal ones.
        const message = @unionInit(Message, field.name, smallest(field.type));
        var bytes: [4096]u8 = undefined;
        const encoded = try encode(message, &bytes);
        const decoded = try decode(encoded);
        try std.testing.expectEqual(std.meta.activeTag(message), std.meta.activeTag(decoded));
        var again: [4096]u8 = undefined;
        try std.testing.expectEqualSlices(u8, encoded, try encode(decoded, &again));
        // Truncation at every length is a named error.
        for (0..encoded.len) |length| {
            try std.testing.expect(std.meta.isError(decode(encoded[0..length])));
        }
    }
}

fn smallest(comptime T: type) T {
    return switch (@typeInfo(T)) {
        .int => 0,
        .bool => false,
        .@"enum" => |info| @field(T, info.fields[0].name),
        .array => |info| @splat(smallest(info.child)),
        .@"struct" => |info| value: {
            var value: T = undefined;
            if (@hasDecl(T, "is_wire_bytes")) break :value Bytes.of("abc");
            // Made when compiling: what it points to must outlive this call.
            if (@hasDecl(T, "wire_item")) break :value T.of(&.{comptime smallest(T.wire_item)});
            inline for (info.fields) |field| @field(value, field.name) = smallest(field.type);
            break :value value;
        },
        else => @compileError("not a wire type"),
    };
}

test "a descriptor that combines the bits of floats is not read" {
    for (std.enums.values(OpKind)) |kind| for ([_]base.DType{ .f32, .bf16, .i8, .u64 }) |dtype| {
        var descriptor = smallest(Descriptor);
        descriptor.kind = kind;
        descriptor.dtype = dtype;
        descriptor.op = .bxor;
        const bytes = encode_descriptor(descriptor);
        if (kind.reduces() and dtype.is_float()) {
            try std.testing.expectError(error.BadValue, decode_descriptor(&bytes));
        } else try std.testing.expect(descriptor.eql(&try decode_descriptor(&bytes)));
    };
}

test "a rate is told again when it has changed by more than a tenth, or becomes known" {
    for ([_][2]u64{ .{ 0, 0 }, .{ 100, 90 }, .{ 100, 110 }, .{ 5, 5 } }) |same|
        try std.testing.expect(!differ(same[0], same[1]));
    for ([_][2]u64{ .{ 0, 1 }, .{ 1, 0 }, .{ 100, 89 }, .{ 100, 111 }, .{ 5, 6 } }) |other|
        try std.testing.expect(differ(other[0], other[1]));
}

test "the traffic of a link has its bytes in order, and only its lanes are out of range" {
    const told: LinkTraffic = .{
        .peer = .from_int(1),
        .sent = 2,
        .received = 3,
        .rate = limits.link_rate_told_max,
        .brought = 4,
        .rtt_ns = limits.link_rtt_ns_told_max,
        .again_ppm = limits.link_again_ppm_max,
        .lanes = limits.lanes_per_link_max,
    };
    var room: [160]u8 = undefined;
    const at = header_bytes + 5 * 8 + 4; // the first link
    const bytes = try encode_traffic(told, &room);
    try std.testing.expectEqualSlices(u8, &told.peer.bytes, bytes[at..][0..16]);
    try std.testing.expectEqualSlices(u8, "\x05" ++ "\x00" ** 7 ++ "\x06", bytes[at - 20 ..][0..9]);
    try std.testing.expectEqualSlices(u8, "\x02" ++ "\x00" ** 7 ++ "\x03" ++ "\x00" ** 7 ++
        "\x00\x54\xce\x09\x23\x01\x00\x00" ++ "\x04" ++ "\x00" ** 7 ++
        "\x00\x58\x47\xf8\x0d\x00\x00\x00" ++
        "\x40\x42\x0f\x00" ++ "\x40", bytes[at + 16 ..]);
    _ = try decode(bytes);
    inline for (.{ "rate", "brought", "rtt_ns", "again_ppm", "lanes" }) |name| {
        var above = told;
        @field(above, name) = std.math.maxInt(@TypeOf(@field(above, name)));
        const read = decode(try encode_traffic(above, &room));
        if (comptime std.mem.eql(u8, name, "lanes"))
            try std.testing.expectError(error.OutOfRange, read)
        else
            _ = try read;
    }
}

fn encode_traffic(link: LinkTraffic, bytes: []u8) ![]u8 {
    return encode(.{ .traffic = .{
        .span_ns = 1,
        .sent = 2,
        .received = 3,
        .up = 5,
        .down = 6,
        .links = .of(&.{link}),
    } }, bytes);
}

test "descriptors have the size the frames say" {
    const descriptor = smallest(Descriptor);
    const bytes = encode_descriptor(descriptor);
    try std.testing.expect(descriptor.eql(&try decode_descriptor(&bytes)));
}
