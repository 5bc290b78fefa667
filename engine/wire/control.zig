//! control: the messages between a peer and the coordinator. There is a struct for each message;
//! its place in the union `Message` is its number on the wire. Framing: u32 body length, u16 kind,
//! u16 zero, body (codec.zig). protocol/coordinator.zig and protocol/member.zig act on messages;
//! docs/internals/PROTOCOL.md has the bytes.

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

/// The largest number of a group. Numbers of epochs, attempts, rounds and decisions have the bound
/// `.any`, because their receiver only compares them with numbers that it has given itself.
const group_last = limits.groups_max - 1;
/// The largest count of safe points in a message, after which one more still has a number.
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
    /// One member sends, one receives, and all other members have no part in the operation.
    send_recv = 10,

    /// All traits of each kind, which a new kind must list, too.
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

    /// Whether contributions of members are added up.
    pub fn reduces(kind: OpKind) bool {
        return kind.has(.reduces);
    }

    /// Whether data on the wire can be encoded. A broadcast cannot, because its root only reads its
    /// buffer, and would keep exact values where other members get rounded ones.
    pub fn has_codecs(kind: OpKind) bool {
        return kind.has(.has_codecs);
    }

    /// Whether each shard is carried from one rank to another unchanged.
    pub fn carries(kind: OpKind) bool {
        return kind.has(.carries);
    }

    /// Whether only the root gets a result.
    pub fn ends_at_root(kind: OpKind) bool {
        return kind.has(.ends_at_root);
    }

    pub fn has_root(kind: OpKind) bool {
        return kind.has(.has_root);
    }

    /// Whether each rank has a shard of the elements, or a shard for each rank.
    pub fn has_shards(kind: OpKind) bool {
        return kind.has(.has_shards);
    }

    /// Whether all members get different results, so that no member can give another a lost part.
    pub fn is_private(kind: OpKind) bool {
        return kind.has(.is_private);
    }
};
pub const Recovery = enum(u8) {
    resume_chunks = 1,
    restart = 2,
    raise = 3,
    /// Every member of the epoch contributes, even one that was lost before the call: else the call
    /// fails.
    complete = 4,

    /// The recovery if the caller names none. No result can replace the shard of a lost rank.
    pub fn default(kind: OpKind, op: base.ReduceOp) Recovery {
        if (kind.has_shards()) return .complete;
        return if (op == .avg) .resume_chunks else .restart;
    }
};

/// The description of a member's call, which must be equal on all members; else a Mismatch.
pub const Descriptor = struct {
    kind: OpKind,
    dtype: base.DType,
    op: base.ReduceOp,
    recovery: Recovery,
    codec: base.Codec = .none,
    plan: base.Plan = .auto,
    /// An all_to_all with shards of different sizes; only its two ranks know the size of a shard.
    uneven: bool = false,
    /// Number of arrays if the call has several; 0: it has one.
    arrays: u16 = 0,
    /// Elements of all shards together. In the `open` frame of an uneven all_to_all: elements that
    /// its sender has for its receiver.
    count: u64,
    /// A hash of several arrays or of shards of different sizes, with their form (pccl.h); for one
    /// array its form alone. In the `open` frame of an uneven all_to_all: elements that its sender
    /// wants from its receiver.
    counts: u64 = 0,
    /// Sums beside a hash in `counts`, from which follows which array or shard differs, if only one
    /// does (session/call.zig).
    outline: Outline = .{},
    root: PeerId = .none,
    /// In a sync: the rules of the shared state.
    rules: StateRules = .{},
    /// Safe points that the caller has passed; all members must call admit() equally often.
    safe_points: u64,

    pub const bounds = .{
        .arrays = limits.chunks_max,
        .count = limits.elements_max,
        .counts = .any,
        .safe_points = safe_points_told_max,
    };

    /// Fills the descriptor of a message that is about no call.
    pub const blank: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .f32,
        .op = .sum,
        .recovery = .raise,
        .count = 0,
        .safe_points = 0,
    };

    /// Whether a call can have this descriptor: bitwise operations take no floats.
    pub fn exists(descriptor: *const Descriptor) bool {
        return !descriptor.kind.reduces() or descriptor.op.takes(descriptor.dtype);
    }

    pub fn eql(a: *const Descriptor, b: *const Descriptor) bool {
        return std.meta.eql(a.*, b.*);
    }

    /// Whether only the two members that exchange a message or shard know all of the call.
    pub fn is_between_two(descriptor: *const Descriptor) bool {
        return descriptor.kind == .send_recv or descriptor.uneven;
    }

    /// Whether the descriptors that two members have sent each other in `open` frames describe one
    /// call.
    pub fn fits(a: *const Descriptor, b: *const Descriptor) bool {
        if (!b.uneven) return a.eql(b);
        var seen_from_there = b.*;
        seen_from_there.count = b.counts;
        seen_from_there.counts = b.count;
        return a.eql(&seen_from_there);
    }

    /// The descriptor in votes and reports: an uneven all_to_all without sizes that only two
    /// members know.
    pub fn of_all(descriptor: *const Descriptor) Descriptor {
        var common = descriptor.*;
        if (common.uneven) common.count, common.counts = .{ 0, 0 };
        return common;
    }

    /// A hash short enough for every frame. Different descriptors may have one hash; votes compare
    /// whole descriptors.
    pub fn fingerprint(descriptor: Descriptor) u32 {
        return std.hash.Crc32.hash(&encode_descriptor(descriptor));
    }
};
pub const descriptor_bytes = 4 + 4 + 4 + 8 + 8 + 16 + 16 + 4 + 8;

/// Sums over the counts and dtypes of several arrays, or of shards. In the sums `_at`, each item is
/// multiplied by its number, counted from 1.
pub const Outline = struct {
    counts_at: u64 = 0,
    dtypes: u32 = 0,
    dtypes_at: u32 = 0,

    pub const bounds = .{ .counts_at = .any, .dtypes = .any, .dtypes_at = .any };
};

/// The name of an operation within its group and epoch.
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
    /// Two members have made the same call, and have cut it into different numbers of chunks.
    contradiction = 8,
    /// In a sync: names, shapes or dtypes of tensors differ.
    structure = 9,
    /// In a sync: two members insist on different contents.
    state_conflict = 10,
    /// In a sync: no member has content that may be elected, or no member gives it.
    state_unavailable = 11,
    /// In a message: the link between sender and receiver does not work.
    link_broken = 12,
    /// In a sync: two members send their contents, and the rules allow only one sender.
    state_strategy = 13,
    /// A member has left the epoch for the next one without making the call.
    passed = 14,
};

pub const LinkState = enum(u8) {
    /// A lane broke while an operation used it.
    broken = 0,
    /// No lane of the link is open any more; the other peer may be dead.
    closed = 1,
};

/// A member's report on its link to another member, with or without operations.
pub const LinkHealth = enum(u8) {
    /// A lane of the link works again.
    up = 0,
    /// Nothing moved on the last lane of the link for the silence limit; a new lane may work.
    silent = 1,
    /// No lane of the link has worked for the silence limit.
    down = 2,
};

pub const OpState = enum(u8) { running = 0, done = 1 };

/// Settled chunks [begin, end), which the members of attempt `reduced_attempt` have reduced.
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
/// Chunks [begin, end) that stay settled in the next attempt, and the ranks that hold them.
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

/// A peer and its label.
pub const LabelEntry = struct {
    id: PeerId,
    label: Bytes,

    pub const bounds = .{ .label = limits.label_bytes_max };
};

/// A BLAKE3 hash of a leaf of a shared state, of a structure, or a root (session/state.zig).
pub const Hash = [32]u8;

/// The weight of a member's content in a sync: higher standings outvote all lower ones.
pub const Standing = enum(u8) {
    /// The member entered with this epoch, or founded the group as a newcomer of the parent.
    newcomer = 0,
    /// The member is older, and has committed no sync of a state of this name.
    member = 1,
    /// The member has committed a sync of this state in this group; in a sub-group, anywhere in its
    /// root group.
    synced = 2,
};

/// A member's wish for its own content in a sync.
pub const Strategy = enum(u8) {
    /// The member takes the elected content, and its own content may be elected.
    popular = 0,
    /// All members shall get this member's content.
    send_only = 1,
    /// This member's content is never elected.
    receive_only = 2,
};

/// Rules that all syncs of a shared state keep (protocol/election.zig).
pub const StateRules = struct {
    /// Each sync raises the revision by exactly one: content of any other revision is not elected.
    successive: bool = false,
    /// A member whose content does not fit is removed, and the other members go on.
    refuse: bool = false,
    /// If one member sends (send_only), all others must receive (receive_only).
    one_sender: bool = false,
    /// The highest revision is elected, even if only a newcomer has it.
    highest_revision: bool = false,
};

/// One tensor of the structure of a shared state.
pub const StateTensor = struct {
    name: Bytes,
    dtype: base.DType,
    may_differ: bool,
    shape: List(u64),

    pub const bounds = .{ .name = limits.state_page_bytes, .shape = limits.state_dimensions_max };
};

/// The founders of a sub-group: members of one epoch of its parent group, in the rank order of the
/// sub-group. Without founders, a group admits any peer.
pub const Founders = struct {
    /// The name of the parent group.
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
/// The first message of every connection, once per group: a newcomer's wish to join, or the return
/// of a member. The peer's memberships follow (epoch_report, gave_up), then join_end.
pub const Join = struct {
    name: Bytes,
    address: Bytes,
    /// The key with which the coordinator makes sure that this very peer answers at `address`
    /// (hello.zig: proof).
    address_key: hello.Key,
    /// The user has named the address, so it must lead to this peer. False: the peer may also join
    /// without a working address.
    advertised: bool = true,
    initial_world_size: u32,
    /// The rounds whose end this peer waits for: `round` prepares the peer, `stop_round` stops its
    /// epoch; 0: none. A peer that reports no epoch, nor the round that made it a member, has lost
    /// its membership.
    round: u64,
    stop_round: u64,
    /// The peer's label; empty: it has none.
    label: Bytes = .{},
    /// The founders of the group, including this peer; empty if this peer is a member already.
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
/// An epoch that the sender of a join is in.
pub const EpochReport = struct {
    epoch: u64,
    attempt: u32,
    /// The peer has passed the safe point at which this epoch begins.
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
    /// Nothing is in flight or moves at this peer, so it may probe a link.
    may_probe: bool = false,
    /// The peer has no call under way, and nothing moves on its links.
    is_idle: bool = false,

    pub const bounds = .{ .number = .any, .bytes_sent = .any, .bytes_received = .any };
};
pub const HeartbeatAck = struct {
    number: u64,

    pub const bounds = .{ .number = .any };
};
pub const Prepared = struct {
    group: u16,
    round: u64,
    /// The user waits to enter. A newcomer may get all its lanes before its user calls admit().
    entering: bool,
    /// Peers of the round to which this peer has no open lane yet. If there are any, the message
    /// comes before all lanes are open, so that the round need not wait for these lanes.
    missing: List(Missing),

    pub const bounds = .{ .group = group_last, .round = .any, .missing = limits.peers_max };
};
pub const Missing = struct {
    peer: PeerId,
    /// The result of the last dial of the peer; set once lanes have been missing for a while.
    dialed: Dialed,
    /// The address of this machine that the dial came from; zeros if it is not known.
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
    /// Nanoseconds since the member called the operation, when the coordinator gets this message.
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
    /// The attempt in which the member called, and the attempt of its last vote; 0: it has not
    /// voted.
    begun_attempt: u32,
    voted_attempt: u32,
    chunks: u32,
    settled: List(SettledRange),

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .begun_attempt = .any,
        .voted_attempt = .any,
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
/// Tells how many decisions the member has seen, if no other message has told for a while.
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
    /// The result of the last dial, and the address of this machine that the dial came from.
    dialed: Dialed = .pending,
    source: base.Source = @splat(0),

    pub const bounds = .{ .group = group_last };
};
/// The traffic on the link to a peer, in bytes per second, and what the link can carry.
pub const LinkTraffic = struct {
    peer: PeerId,
    sent: u64,
    received: u64,
    /// Bytes per second that the link can carry to the peer; 0: not known yet.
    rate: u64 = 0,
    /// The rate at which the link itself was full, while no other link of the sender was; 0: not
    /// known, as the link may carry more than `rate`.
    limit: u64 = 0,
    /// The most bytes per second that have come from the peer; 0: not known.
    brought: u64 = 0,
    /// Nanoseconds of the shortest round trip; 0: not known.
    rtt_ns: u64 = 0,
    /// Bytes that were recently sent a second time, per million bytes.
    again_ppm: u32 = 0,
    /// Number of open lanes of the link.
    lanes: u8 = 0,

    /// A number that is too large is ignored, and does not end the connection
    /// (protocol/measurement.zig).
    pub const bounds = .{
        .sent = .any,
        .received = .any,
        .rate = .any,
        .limit = .any,
        .brought = .any,
        .rtt_ns = .any,
        .again_ppm = .any,
        .lanes = limits.lanes_per_link_max,
    };
};
pub const Traffic = struct {
    /// Nanoseconds over which the speeds were measured.
    span_ns: u64,
    /// Bytes per second on all links together.
    sent: u64,
    received: u64,
    /// The most bytes per second that all links together have carried recently, sent and received;
    /// 0: not known.
    up: u64,
    down: u64,
    /// The uplink was found to carry no more than `up`.
    is_full: bool = false,
    links: List(LinkTraffic),

    /// Numbers that are too large are ignored, as in LinkTraffic.
    pub const bounds = .{
        .span_ns = .any,
        .sent = .any,
        .received = .any,
        .up = .any,
        .down = .any,
        .links = limits.links_told_max,
    };
};

/// Whether a rate has changed enough since members were last told it.
pub fn differ(told: u64, now: u64) bool {
    return (told == 0) != (now == 0) or @max(told, now) - @min(told, now) > told / 10;
}
/// Asks the coordinator for its status. `dial_back`: members shall dial this peer, and the status
/// shows how that went (protocol/status.zig); none: no dial.
pub const StatusRequest = struct {
    dial_back: PeerId = .none,
};
/// Asks a member to dial a peer once, to ask it for its proof, and to report the result.
pub const DialBack = struct {
    peer: PeerId,
    nonce: hello.Nonce,
    address: Bytes,

    pub const bounds = .{ .address = limits.address_bytes_max };
};
/// The result of a dial that DialBack asked for. `pending`: the address answered with `proof`.
pub const DialedBack = struct {
    nonce: hello.Nonce,
    dialed: Dialed,
    proof: hello.Proof,
};
/// The member has called an operation that takes long, or that the coordinator has asked about. A
/// vote, an offer and a report also tell that the member has called.
pub const Called = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    descriptor: Descriptor,
    /// Nanoseconds until the call's deadline, if that is near; the largest number: far, or not
    /// told.
    left_ns: u64 = std.math.maxInt(u64),
    /// Ranks with which the member has exchanged no byte of the operation for the time of the stall
    /// warning, although it has sent data to them or waits for data of theirs.
    stuck: Mask = .empty,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .left_ns = .any,
    };
};
/// The content that a member holds when an attempt of a sync begins. If all offers are equal, each
/// counts as its member's vote.
pub const StateOffer = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    descriptor: Descriptor,
    /// A digest of root and revision, which is the vote if all offers are equal.
    digest: u128,
    revision: u64,
    /// One more than the last revision of a state of this name that the member has committed in
    /// this group; 0 if it has committed none.
    expected: u64 = 0,
    structure: Hash,
    root: Hash,
    strategy: Strategy,
    standing: Standing = .newcomer,
    /// The member has voted for this root in an earlier attempt.
    voted: bool,
    decisions_seen: u64,
    /// The state's name, as far as it can be shown.
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

    /// Whether the offer is its member's vote if all offers are equal. An offer whose content is
    /// never elected, or breaks a rule as far as its member knows, is no vote, because a restarted
    /// coordinator commits votes.
    pub fn is_vote(offer: *const StateOffer) bool {
        if (offer.voted) return true;
        if (offer.strategy == .receive_only) return false;
        if (!offer.descriptor.rules.successive or offer.expected == 0) return true;
        return offer.revision == offer.expected;
    }
};
/// Part of the answer to state_ask: tensors in the order of their names.
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
    /// Nanoseconds after which the coordinator warns of a call that some members have not made.
    /// Peers report long calls sooner (limits.wait_told_ns).
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
/// Begins a round. A peer is told only what is new to it.
pub const Prepare = struct {
    group: u16,
    round: u64,
    /// The peers that may be in the next epoch: a newcomer gets all of them, a member only
    /// newcomers.
    members: List(PeerId),
    /// The peers that the receiver needs lanes to, except members between which all links exist.
    links: List(MemberEntry),

    pub const bounds = .{
        .group = group_last,
        .round = .any,
        .members = limits.peers_max,
        .links = limits.peers_max,
    };
};

/// The labels of the peers of a round: a newcomer gets all of them, a member those of newcomers.
/// The message follows `prepare`, which lists the peers.
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
    /// The previous epoch, if the receiver is in it: its members that have not left come first in
    /// the new epoch, in their order, and `members` has only newcomers. 0: `members` has all.
    base: u64 = 0,
    /// Members in rank order; the last `joined` of them are newcomers.
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
/// Begins an attempt of an epoch: members stop, report, and wait for `resume_all`.
pub const View = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    alive: Mask,
    /// Ranks in the order of the ring; empty: rank order.
    order: List(u16),
    /// False: no ring avoids the broken links, so data goes over hubs.
    has_ring: bool,
    /// Ranks that have links to all other members (base.Paths).
    hubs: Mask,
    /// By rank: how many of the chunks of a direct schedule the rank owns; empty: all hubs own
    /// equally many.
    shares: List(u16) = .of(&.{}),
    /// The schedule of calls that leave it open; those of fewer than `small_bytes` are direct
    /// (base.Paths).
    plan: base.Plan = .ring,
    small_bytes: u64 = 0,

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .order = limits.peers_max,
        .shares = limits.full_mesh_max,
        .small_bytes = limits.elements_max,
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
    /// The peer that gave up, was lost, or called something else; none: no single peer.
    peer: PeerId,
    other: PeerId,
    /// In a mismatch: what `peer` and `other` called.
    descriptor: Descriptor,
    other_descriptor: Descriptor,
    decision: u64,

    pub const bounds = .{ .group = group_last, .epoch = .any, .decision = .any };
};
pub const Expelled = struct {
    group: u16,
    /// A newcomer's calls differ from those of the members, so its calls fail with Mismatch.
    refused: bool = false,
    why: Bytes,
    /// The member's call that the newcomer's call differs from, from which the newcomer finds the
    /// array that differs. `peer` none: the removal is about no call.
    op: OpId = .{ .tag = 0, .sequence = 0 },
    peer: PeerId = .none,
    descriptor: Descriptor = .blank,

    pub const bounds = .{ .group = .any, .why = limits.expelled_bytes_max };
};
/// The offers of a sync differ: all members get the content with this root from `holders`.
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
/// The structures of a state differ: asks a member for its structure, from tensor `first` on.
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
/// Tells how the structures differ, as a sentence; the abort follows.
pub const StateDiffers = struct {
    group: u16,
    epoch: u64,
    op: OpId,
    text: Bytes,

    pub const bounds = .{ .group = group_last, .epoch = .any, .text = .any };
};
/// Asks where a peer of the group can be dialed; there is no answer if its address is not known.
pub const AskAddress = struct {
    group: u16,
    peer: PeerId,

    pub const bounds = .{ .group = group_last };
};
pub const AddressTold = struct {
    peer: MemberEntry,
};
/// Some members have called an operation that `missing` have not. Missing members answer `called`
/// once they call; the callers learn which members they wait for.
pub const Stalled = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    op: OpId,
    missing: Mask,
    /// For callers: operations that the first missing members wait in themselves. If no member is
    /// missing: the links on which the operation moves no bytes, by their two ends.
    elsewhere: List(Elsewhere) = .{},

    pub const bounds = .{
        .group = group_last,
        .epoch = .any,
        .attempt = .any,
        .elsewhere = limits.elsewhere_told_max,
    };
};
/// A missing member has called another operation, and waits there for other members.
pub const Elsewhere = struct {
    rank: u16 = 0,
    op: OpId = .{ .tag = 0, .sequence = 0 },
    kind: OpKind = .barrier,
    /// The first rank that the missing member waits for, and how many ranks it waits for.
    waits_for: u16 = 0,
    count: u16 = 0,

    pub const bounds = .{
        .rank = limits.peers_max - 1,
        .waits_for = limits.peers_max - 1,
        .count = limits.peers_max,
    };
};
/// Tells a peer that another peer could not dial it; `peer` none: the coordinator could not.
pub const Unreached = struct {
    group: u16,
    peer: PeerId,
    dialed: Dialed,
    /// The address that the dial came from; zeros if it is not known.
    source: base.Source = @splat(0),
    /// The address that was dialed.
    address: Bytes,

    pub const bounds = .{ .group = group_last, .address = limits.address_bytes_max };
};
/// Tells newcomers of a group without members how many peers have arrived, and how many it needs.
pub const Waiting = struct {
    group: u16,
    here: u32,
    needed: u32,
    /// The group has had members, and all of them are gone.
    emptied: bool,

    pub const bounds = .{
        .group = group_last,
        .here = limits.peers_max,
        .needed = limits.peers_max,
    };
};
/// Tells newcomers which peers must act before the group begins, or before it admits newcomers.
pub const Awaited = struct {
    group: u16,
    why: Why,
    /// Number of peers that must act.
    count: u32,
    /// The first of the peers that must act.
    peers: List(AwaitedEntry),

    pub const bounds = .{
        .group = group_last,
        .count = limits.peers_max,
        .peers = limits.awaited_told_max,
    };

    pub const Why = enum(u8) {
        /// The group begins when the users of the peers named have called `admit`.
        begin = 0,
        /// An epoch has begun, and the peers named have not come to their next safe point.
        safe_point = 1,
        /// The peers named have calls of the previous epoch in flight.
        in_flight = 2,
        /// The peers named are founders of the group, and have not asked for it.
        founders = 3,
        /// The peers named have lost their connections to the coordinator: they return or are lost.
        away = 4,
    };
};
pub const AwaitedEntry = struct {
    id: PeerId,
    label: Bytes,
    /// The peer's rank; `limits.peers_max` if the peer is in no epoch.
    rank: u16,

    pub const bounds = .{ .label = limits.label_bytes_max, .rank = limits.peers_max };
};
/// Tells members of an epoch which members have not come to the safe point at which it begins.
pub const Entered = struct {
    group: u16,
    epoch: u64,
    missing: Mask,
    /// Newcomers in no epoch yet, if this epoch only closes the gap of a loss.
    waiting: u16,

    pub const bounds = .{ .group = group_last, .epoch = .any, .waiting = limits.peers_max };
};
/// Tells members of a small epoch what one member's links carry, as far as the coordinator believes
/// it. A rate is sent again when it has changed by more than a tenth.
pub const Measured = struct {
    group: u16,
    epoch: u64,
    rank: u16,
    /// Bytes per second that the member sends and receives on all links together; 0: not known.
    up: u64,
    down: u64,
    /// The links on which the member sends, as far as they are known.
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
/// Allows a member of a small epoch to probe its link to `rank`, whose rate is unknown.
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
/// A member asks for the best paths of its group: links of unknown rates are probed first, and the
/// coordinator answers with `optimized` once no better paths are known.
pub const Optimize = struct {
    group: u16,

    pub const bounds = .{ .group = group_last };
};
/// The answer to `optimize`: the member knows the best paths.
pub const Optimized = struct {
    group: u16,

    pub const bounds = .{ .group = group_last };
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
    optimize: Optimize,
    optimized: Optimized,
};

pub const Error = codec.Error || error{ UnknownKind, BadReserved };

/// Encodes a message with its 8-byte header. error.TooLong: `bytes` is too small.
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

/// The length of the body after this header. error.TooLong: it is above the limit.
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
        // All-zero bytes are no value of some enums, so the fields have the smallest legal values.
        const message = @unionInit(Message, field.name, smallest(field.type));
        var bytes: [4096]u8 = undefined;
        const encoded = try encode(message, &bytes);
        const decoded = try decode(encoded);
        try std.testing.expectEqual(std.meta.activeTag(message), std.meta.activeTag(decoded));
        var again: [4096]u8 = undefined;
        try std.testing.expectEqualSlices(u8, encoded, try encode(decoded, &again));
        // Each beginning of the message is an error.
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
            // The list is made at compile time, because it must outlive this call.
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
        .limit = 7,
        .brought = 4,
        .rtt_ns = limits.link_rtt_ns_told_max,
        .again_ppm = limits.link_again_ppm_max,
        .lanes = limits.lanes_per_link_max,
    };
    var room: [160]u8 = undefined;
    const at = header_bytes + 5 * 8 + 1 + 4; // where the first link begins
    const bytes = try encode_traffic(told, &room);
    try std.testing.expectEqualSlices(u8, &told.peer.bytes, bytes[at..][0..16]);
    try std.testing.expectEqualSlices(u8, "\x05" ++ "\x00" ** 7 ++ "\x06", bytes[at - 21 ..][0..9]);
    try std.testing.expectEqualSlices(u8, "\x02" ++ "\x00" ** 7 ++ "\x03" ++ "\x00" ** 7 ++
        "\x00\x54\xce\x09\x23\x01\x00\x00" ++ "\x07" ++ "\x00" ** 7 ++ "\x04" ++ "\x00" ** 7 ++
        "\x00\x58\x47\xf8\x0d\x00\x00\x00" ++
        "\x40\x42\x0f\x00" ++ "\x40", bytes[at + 16 ..]);
    _ = try decode(bytes);
    inline for (.{ "rate", "limit", "brought", "rtt_ns", "again_ppm", "lanes" }) |name| {
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
