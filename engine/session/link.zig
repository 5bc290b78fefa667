//! Link: the lanes to one other peer. Either side dials, one of them first; a lane that breaks is
//! dialed again. Which links are wanted is links.zig's.
//!
//! Lane: one connection to another peer as bytes in and bytes out. It keeps the place in the
//! stream: which frame is coming in and where its payload goes, and which frame is going out. The
//! meaning of frames is frames.zig's. A lane does not know whose memory its payloads are in: it
//! keeps an owner, which it hands back.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const collective = @import("collective");
const Early = @import("early.zig").Early;
const flow_file = @import("flow.zig");
const Requests = @import("requests.zig").Requests;
const unacked_file = @import("unacked.zig");
const Sent = unacked_file.Sent;
const Unacked = unacked_file.Unacked;
const Allocator = std.mem.Allocator;
const frame = wire.frame;
const hello = wire.hello;
const limits = base.limits;
const assert = std.debug.assert;

pub const Link = struct {
    gpa: Allocator,
    peer: base.PeerId,
    address: []u8 = &.{},
    /// Where both sides dial at once, the connections of this one stay: its id is larger.
    wins: bool,
    /// This side dials at once, and the other when that seems to lead nowhere. At first it is the
    /// one that wins, then the one that has made the last lane.
    leads: bool,
    lanes: [limits.lanes_per_link_max]?*Lane = @splat(null),
    /// No lane has this number or a larger one.
    lanes_end: u8 = 0,
    open_count: u32 = 0,
    flow: flow_file.Flow,
    /// There was a lane at some time.
    was_open: bool = false,
    wanted: bool = false,
    /// Wanted for the messages of this peer alone: the other side may not know of them yet.
    borrowed: bool = false,
    /// When an unwanted link is closed.
    expires_at: base.Instant,
    /// The end of the last dial; `pending` again once there is a lane.
    dialed: wire.Dialed = .pending,
    /// The address of this machine that it came from; zeros before there was one.
    dialed_from: base.Source = @splat(0),
    retry_at: base.Instant = 0,
    retries: u6 = 0,
    /// When the coordinator was last asked where the peer is dialed.
    asked_at: ?base.Instant = null,
    /// Since when no lane is open.
    down_since: base.Instant,
    /// The health that coordinators were told, or will be when one is there.
    told: wire.control.LinkHealth = .up,
    /// Bytes on its lanes, and those that the coordinator has been told of (traffic.zig).
    sent: u64 = 0,
    received: u64 = 0,
    sent_told: u64 = 0,
    received_told: u64 = 0,
    /// Where round robin goes on, among all operations and among large ones; and the bytes that
    /// small ones have sent since a large one had its turn (outgoing.zig).
    turn: usize = 0,
    turn_of_large: usize = 0,
    overtaken: usize = 0,
    /// Until then the first lane has no data of large operations.
    keeps_until: base.Instant = 0,
    /// Frames that lanes which broke had not delivered: they go first (resend.zig).
    again: std.ArrayList(Sent) = .empty,
    /// Frames of operations that this peer has not reached yet.
    early: Early,
    /// When a frame was last acknowledged by the other side, or something of a payload came in.
    moved_at: base.Instant = 0,
    /// The bytes that it may be probed with for nothing.
    probe_left: u32 = limits.probe_bytes_max,
    /// The peer is to hear that this one has no time for its probe.
    declines: bool = false,
    /// The coordinator does not know what it carries.
    is_asked: bool = false,
    /// Requests of the peer, a newcomer, in the background.
    asked: Requests = .{},
    /// The group of which it was a newcomer when it asked first: others may overtake it meanwhile.
    asks_in: ?u16 = null,

    pub fn deinit(link: *Link) void {
        link.gpa.free(link.address);
        link.early.deinit();
        link.again.deinit(link.gpa);
        link.asked.clear(link.gpa);
        link.* = undefined;
    }

    /// The places of the lanes that there are to be.
    pub fn places(link: *Link) []?*Lane {
        return link.lanes[0..link.flow.lanes()];
    }

    pub fn put(link: *Link, lane: *Lane) void {
        link.lanes[lane.number] = lane;
        link.lanes_end = @max(link.lanes_end, lane.number + 1);
    }

    /// Whether data goes out on this lane: of more than there are to be, the first that are open.
    pub fn serves(link: *const Link, lane: *const Lane) bool {
        return link.is_among_first(lane, link.flow.spread.lanes);
    }

    /// Whether neither side sends data on this lane, by what they have told each other.
    pub fn is_surplus(link: *const Link, lane: *const Lane) bool {
        return !link.is_among_first(lane, link.flow.lanes());
    }

    fn is_among_first(link: *const Link, lane: *const Lane, lanes: u8) bool {
        if (lane.number < lanes) return true;
        var before: usize = 0;
        for (link.lanes[0..lane.number]) |place| if (place) |other| {
            before += @intFromBool(other.state == .open);
        };
        return before < lanes;
    }

    /// Whether this lane is the one that is left to small operations. A link of few lanes has none.
    pub fn keeps(link: *const Link, lane: *const Lane, now: base.Instant) bool {
        if (now >= link.keeps_until) return false;
        if (@min(link.open_count, link.flow.spread.lanes) < keeps_of) return false;
        for (link.lanes[0..lane.number]) |place| if (place) |other| {
            if (other.state == .open) return false;
        };
        return true;
    }

    const keeps_of = 4;

    pub fn set_address(link: *Link, address: []const u8) Allocator.Error!void {
        if (std.mem.eql(u8, link.address, address)) return;
        const copy = try link.gpa.dupe(u8, address);
        link.gpa.free(link.address);
        link.address = copy;
    }

    /// When it is closed because nobody wants it: not while the peer waits for calls of this one.
    pub fn ends_at(link: *const Link) base.Instant {
        return if (link.wanted or link.early.count() > 0) base.never else link.expires_at;
    }

    /// The bytes of a frame have a place already. If they are still coming in on another lane, and
    /// were sent before this, that lane lets go of the place. Null: this frame is not needed.
    pub fn take_over(
        link: *const Link,
        owner: Lane.Owner,
        header: *const frame.Header,
    ) ?collective.Movement.Place {
        for (link.lanes[0..link.lanes_end]) |place| {
            const other = place orelse continue;
            if (other.into == null or !other.brings(owner)) continue;
            if (!other.incoming.is_same(header)) continue;
            if (other.incoming.again >= header.again) return null;
            const bytes = other.place();
            other.drop_into();
            return .{ .bytes = bytes, .slot = other.into_slot };
        }
        return null;
    }

    /// Whether something of this owner is coming in.
    pub fn brings(link: *const Link, owner: Lane.Owner) bool {
        for (link.lanes) |place| if (place) |lane| if (lane.brings(owner)) return true;
        return false;
    }

    /// Whether a frame is unacknowledged, still leaves, or has come in part.
    pub fn is_loaded(link: *const Link) bool {
        if (link.again.items.len > 0) return true;
        return for (link.lanes[0..link.lanes_end]) |place| {
            const lane = place orelse continue;
            if (lane.unacked.count > 0 or lane.into != null) break true;
            if (lane.out_head_left.len > 0 or lane.out_payload.len > 0) break true;
        } else false;
    }

    /// The bytes still to come of the payloads that have begun, on all lanes.
    pub fn bytes_left(link: *const Link, owner: Lane.Owner) usize {
        var left: usize = 0;
        for (link.lanes) |place| if (place) |lane| {
            if (lane.brings(owner)) left += lane.into.?.len;
        };
        return left;
    }
};

pub const Lane = struct {
    gpa: Allocator,
    /// The driver's to use.
    driver: usize = 0,
    state: State,
    /// Null until a stranger has said who it is, and for a dial that the coordinator has asked for.
    link: ?*Link,
    number: u8 = 0,
    /// This side has dialed it.
    is_ours: bool = false,
    /// Where one that was accepted comes from, and whether that was just now.
    source: base.Source = @splat(0),
    is_fresh: bool = false,
    /// When a connection that is not open yet is given up.
    deadline: base.Instant,
    /// When bytes last came in, and went out: an open lane that is silent for too long is dead.
    heard_at: base.Instant = 0,
    /// How long it took to connect, which is one round trip; 0: the other side has dialed, or a
    /// packet was lost.
    connect_ns: u64 = 0,
    spoke_at: base.Instant = 0,
    /// When something of account was last under way on it, at a tick (surplus.zig), and how many
    /// frames of account had gone both ways then.
    used_at: base.Instant = 0,
    used: frame.Header.Count = 0,
    ping_due: bool = false,
    /// The last sample, and whether a frame was under way then.
    sample: ?flow_file.Sample = null,
    was_busy: bool = false,
    /// Acknowledged in the last interval, bytes per second.
    moved: u64 = 0,
    /// It has no data of large operations, so it may be idle while its link has more to send.
    is_kept: bool = false,
    /// As the driver was told.
    pace: flow_file.Pace = .{},
    /// A pause has ended so long ago: it begins slowly again. Its losses before that count no more.
    restarted_ns: ?u64 = null,
    lost_before: u64 = 0,

    // Incoming: a head (hello, answer or frame header), then perhaps a payload.
    head: [hello.hello_bytes]u8 = undefined,
    head_need: usize,
    head_got: usize = 0,
    incoming: frame.Header = undefined,
    /// Where the rest of the payload goes; null while a head is read.
    into: ?[]u8 = null,
    /// Payload bytes to throw away, because nobody wants them any more.
    discard: usize = 0,
    into_owner: ?Owner = null,
    into_slot: u16 = collective.no_slot,
    /// Data frames that have come in whole, also those that nobody wants; and whether the other
    /// side waits to hear of it.
    taken: frame.Header.Count = 0,
    ack_due: bool = false,
    /// The payload that is coming in was sent ahead of time (early.zig).
    early: []u8 = &.{},
    descriptor: [wire.control.descriptor_bytes]u8 = undefined,

    // Outgoing: what is left of a head, and of a payload.
    out_head: [out_head_bytes]u8 = undefined,
    out_head_left: []const u8 = "",
    out_payload: []const u8 = "",
    out_owner: ?Owner = null,
    unacked: Unacked = .{},
    /// A frame is under way.
    out_busy: bool = false,
    /// It has had its turn, and lets the other lanes have theirs (cutting.zig).
    had_turn: bool = false,
    bounce: []u8 = &.{},
    /// Memory ran out and the stream has lost its place: nothing moves any more, and the session
    /// closes it before the call under way returns.
    broken: bool = false,

    /// A hello, or a frame header with a descriptor.
    const out_head_bytes = @max(
        hello.hello_bytes,
        frame.header_bytes + wire.control.descriptor_bytes,
    );

    pub const State = enum {
        /// The driver is connecting.
        dialing,
        /// Our hello is sent, the answer is awaited.
        greeting,
        /// Accepted; its hello is awaited.
        stranger,
        /// Its hello is here, in the name of a peer that nobody has named yet, or in the place of a
        /// lane of ours that may still be answered.
        waiting,
        /// A refusal is being sent; then it is closed.
        refusing,
        open,
    };

    /// Whose memory a payload is in.
    pub const Owner = union(enum) {
        /// A call's (operation.zig).
        operation: *anyopaque,
        /// A shared state's, fetched or given in the background (prefetch.zig).
        state: *anyopaque,
    };

    pub fn dialed(gpa: Allocator, link: ?*Link, number: u8, deadline: base.Instant) Lane {
        return .{
            .gpa = gpa,
            .state = .dialing,
            .link = link,
            .number = number,
            .is_ours = true,
            .deadline = deadline,
            .head_need = hello.answer_bytes,
        };
    }

    pub fn accepted(gpa: Allocator, source: base.Source, deadline: base.Instant) Lane {
        return .{
            .gpa = gpa,
            .source = source,
            .state = .stranger,
            .link = null,
            .deadline = deadline,
            .head_need = hello.hello_bytes,
        };
    }

    /// One that has not said who it is.
    pub fn guest(lane: *const Lane) ?base.places.Guest {
        const spoke = lane.state == .stranger and lane.head_got > 0;
        return .{ .source = lane.source, .silent = !spoke, .fresh = lane.is_fresh };
    }

    pub fn deinit(lane: *Lane) void {
        if (lane.early.len > 0) lane.link.?.early.forget_data(lane.early);
        lane.gpa.free(lane.bounce);
        lane.* = undefined;
    }

    /// The connection is greeted: frames follow.
    pub fn open(lane: *Lane, now: base.Instant) void {
        lane.state = .open;
        lane.heard_at = now;
        lane.spoke_at = now;
        lane.used_at = now;
        lane.used = 0;
        lane.deadline = base.never;
        lane.head_need = frame.header_bytes;
        lane.head_got = 0;
        lane.unacked = .{};
        lane.taken = 0;
    }

    // ---- incoming

    pub fn recv_slices(lane: *Lane, sink: []u8, slices: *[2][]u8) usize {
        if (lane.discard > sink.len) {
            slices[0] = sink;
            return 1;
        }
        var count: usize = 0;
        if (lane.discard > 0) {
            slices[0] = sink[0..lane.discard];
            count = 1;
        } else if (lane.into) |into| if (into.len > 0) {
            slices[0] = into;
            count = 1;
        };
        slices[count] = lane.head[lane.head_got..lane.head_need];
        return count + 1;
    }

    /// The event that `count` received bytes completed, and how many it took; call again with the
    /// rest.
    pub fn consume(lane: *Lane, count: usize) struct {
        taken: usize,
        event: enum { none, head, payload, discarded },
    } {
        if (lane.discard > 0) {
            const taken = @min(count, lane.discard);
            lane.discard -= taken;
            return .{ .taken = taken, .event = if (lane.discard == 0) .discarded else .none };
        }
        if (lane.into) |into| {
            const taken = @min(count, into.len);
            lane.into = into[taken..];
            const whole = taken == into.len;
            if (whole) lane.into = null;
            return .{ .taken = taken, .event = if (whole) .payload else .none };
        }
        const taken = @min(count, lane.head_need - lane.head_got);
        lane.head_got += taken;
        return .{ .taken = taken, .event = if (lane.head_got == lane.head_need) .head else .none };
    }

    /// The head is read; the next bytes are a payload or another head.
    pub fn head_done(lane: *Lane) void {
        lane.head_got = 0;
    }

    pub fn expect(lane: *Lane, into: []u8, owner: ?Owner, slot: u16) void {
        assert(lane.into == null and lane.discard == 0);
        lane.into = into;
        lane.into_owner = owner;
        lane.into_slot = slot;
    }

    // ---- outgoing

    pub fn send_slices(lane: *const Lane, slices: *[2][]const u8) usize {
        var count: usize = 0;
        for ([_][]const u8{ lane.out_head_left, lane.out_payload }) |bytes| {
            if (bytes.len == 0) continue;
            slices[count] = bytes;
            count += 1;
        }
        return count;
    }

    pub fn put_head(lane: *Lane, bytes: []const u8) void {
        @memcpy(lane.head_room(bytes.len), bytes);
    }

    /// A head of so many bytes goes out, which the caller writes now.
    pub fn head_room(lane: *Lane, bytes: usize) []u8 {
        assert(lane.out_head_left.len == 0 and lane.out_payload.len == 0);
        const room = lane.out_head[0..bytes];
        lane.out_head_left = room;
        return room;
    }

    /// The payload goes out behind the head.
    pub fn put_payload(lane: *Lane, payload: []const u8, owner: Owner) void {
        lane.out_payload = payload;
        lane.out_owner = owner;
    }

    /// The header that was put last.
    pub fn outgoing(lane: *const Lane) frame.Header {
        return frame.decode(lane.out_head[0..frame.header_bytes]) catch unreachable; // made here
    }

    /// True when everything that was put has left.
    pub fn sent(lane: *Lane, count: usize) bool {
        const head = @min(count, lane.out_head_left.len);
        lane.out_head_left = lane.out_head_left[head..];
        lane.out_payload = lane.out_payload[count - head ..];
        return lane.out_head_left.len == 0 and lane.out_payload.len == 0;
    }

    /// Whether a payload is coming in, wherever it goes.
    pub fn takes(lane: *const Lane) bool {
        return lane.into != null or lane.discard > 0;
    }

    /// Whether something of this owner is coming in.
    pub fn brings(lane: *const Lane, owner: Owner) bool {
        return is_same(lane.into_owner, owner);
    }

    fn is_same(one: ?Owner, other: Owner) bool {
        return std.meta.eql(one orelse return false, other);
    }

    /// From now on the lane does not touch the memory of this owner: what is left to send is
    /// copied, what is still to come is thrown away. The stream keeps its place; without memory for
    /// the copy the lane is `broken`. Whoever called this may be in the middle of the lane's bytes,
    /// so it is not closed here.
    pub fn detach(lane: *Lane, owner: Owner) void {
        if (lane.brings(owner)) lane.drop_into();
        if (is_same(lane.out_owner, owner)) lane.bounce_out();
    }

    /// The count that the other side is told with each frame.
    pub fn answer(lane: *Lane) frame.Header.Count {
        lane.ack_due = false;
        return lane.taken;
    }

    /// The place of the payload that is coming in, from its start.
    pub fn place(lane: *const Lane) []u8 {
        const rest = lane.into.?;
        const whole: usize = lane.incoming.payload_bytes;
        return (rest.ptr - (whole - rest.len))[0..whole];
    }

    /// Throws away what is still to come of the payload.
    pub fn drop_into(lane: *Lane) void {
        if (lane.into) |into| lane.discard = into.len;
        lane.into = null;
        lane.into_owner = null;
    }

    fn bounce_out(lane: *Lane) void {
        lane.out_owner = null;
        if (lane.out_payload.len == 0) return;
        if (lane.bounce.len < lane.out_payload.len) {
            lane.gpa.free(lane.bounce);
            lane.bounce = &.{};
            lane.bounce = lane.gpa.alloc(u8, lane.out_payload.len) catch {
                lane.broken = true;
                lane.out_head_left = "";
                lane.out_payload = "";
                return;
            };
        }
        @memcpy(lane.bounce[0..lane.out_payload.len], lane.out_payload);
        lane.out_payload = lane.bounce[0..lane.out_payload.len];
    }
};
