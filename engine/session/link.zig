//! Link: the lanes to one other peer. Either side may dial, and the side that leads dials first. A
//! lane that breaks is dialed again. dial.zig decides which links are wanted.
//!
//! Lane: one connection to another peer, as bytes in and bytes out. A lane keeps its position in
//! both streams: the frame that is coming in with the memory for its payload, and the frame that is
//! going out. frame.zig knows what frames mean. For the memory of a payload, a lane keeps an
//! `Owner` without knowing what the owner is.

const std = @import("std");
const base = @import("base");
const Fragment = @import("wire").Fragment;
const collective = @import("collective");
const limits = @import("base").limits;
const wire = @import("wire");
const flow_file = @import("flow.zig");
const Allocator = std.mem.Allocator;
const Count = wire.frame.Header.Count;
const Header = wire.frame.Header;
const OpId = wire.control.OpId;
const assert = std.debug.assert;
const frame = wire.frame;
const hello = wire.hello;

pub const Link = struct {
    gpa: Allocator,
    peer: base.PeerId,
    address: []u8 = &.{},
    /// This side's id is larger than the peer's. If both sides dial at the same time, this side's
    /// connections stay, and the connections of the other side are closed.
    wins: bool,
    /// This side dials at once; the other side dials later, if no lane has come. At first the side
    /// that wins leads, later the side that dialed the last opened lane.
    leads: bool,
    /// The lanes by their numbers; null: no lane has the number.
    lanes: [limits.lanes_per_link_max]?*Lane = @splat(null),
    /// No lane has this number or a larger one.
    lanes_end: u8 = 0,
    /// How many lanes are open.
    open_count: u32 = 0,
    /// The measurements of the link, and the decisions that follow from them (flow.zig).
    flow: flow_file.Flow,
    /// The link has had an open lane at some time.
    was_open: bool = false,
    /// An epoch, a round, a fetch or a message of this peer needs the link (dial.zig).
    wanted: bool = false,
    /// Only messages of this peer need the link: the other side may not know of them yet.
    borrowed: bool = false,
    /// When the link is closed if it is not wanted until then.
    expires_at: base.Instant,
    /// How this side's last dial ended; `pending` again once a lane is open.
    dialed: wire.Dialed = .pending,
    /// The address of this machine that the last dial came from; zeros before the first dial.
    dialed_from: base.Source = @splat(0),
    /// This side dials no lane before this time. `retries`: lanes that were lost, or did not open,
    /// since a lane last opened.
    retry_at: base.Instant = 0,
    retries: u6 = 0,
    /// When the coordinator was last asked for the address of the peer; null: never.
    asked_at: ?base.Instant = null,
    /// When the link last became wanted without an open lane.
    down_since: base.Instant,
    /// The health of the link that the coordinator was told, or will be told once it is connected.
    told: wire.control.LinkHealth = .up,
    /// Bytes sent and received on all lanes of the link. `sent_told`, `received_told`: their values
    /// in the last message about traffic (session.zig).
    sent: u64 = 0,
    received: u64 = 0,
    sent_told: u64 = 0,
    received_told: u64 = 0,
    /// The index of the operation that has the next turn to send. `turn_of_large`: the same among
    /// large operations. `overtaken`: bytes that small operations have sent since a large operation
    /// had its turn (frame.zig).
    turn: usize = 0,
    turn_of_large: usize = 0,
    overtaken: usize = 0,
    /// Until this time the first open lane carries no data of large operations.
    keeps_until: base.Instant = 0,
    /// Frames that broken lanes had not delivered: they are sent again before other frames
    /// (dial.zig).
    again: std.ArrayList(Sent) = .empty,
    /// Frames that came for operations that this peer has not reached yet.
    early: Early,
    /// When the other side last acknowledged a frame, or bytes of a payload last came in.
    moved_at: base.Instant = 0,
    /// Bytes of probes that the link still has free of charge (session.zig).
    probe_left: u32 = limits.probe_bytes_max,
    /// The next frame on an idle lane must tell the peer that this side declines its probe.
    declines: bool = false,
    /// The coordinator has asked for the rate of this link, which this peer knows: the next message
    /// about traffic names the link even if it is idle.
    is_asked: bool = false,
    /// Requests of the peer, a newcomer, for shared states that it fetches in the background.
    asked: Requests = .{},
    /// The group in which the peer last requested a shared state as a newcomer; null: it has
    /// requested none. `asks_in` stays set if other newcomers enter the group first.
    asks_in: ?u16 = null,

    pub fn deinit(link: *Link) void {
        link.gpa.free(link.address);
        link.early.deinit();
        link.again.deinit(link.gpa);
        link.asked.clear(link.gpa);
        link.* = undefined;
    }

    /// The places in `lanes` of the lanes that the link is to have.
    pub fn places(link: *Link) []?*Lane {
        return link.lanes[0..link.flow.lanes()];
    }

    pub fn put(link: *Link, lane: *Lane) void {
        link.lanes[lane.number] = lane;
        link.lanes_end = @max(link.lanes_end, lane.number + 1);
    }

    /// Whether this side sends data on this lane. If more lanes are open than this side wants, only
    /// the first open lanes carry its data.
    pub fn serves(link: *const Link, lane: *const Lane) bool {
        return link.is_among_first(lane, link.flow.spread.lanes);
    }

    /// Whether neither side sends data on this lane, by the numbers of lanes that both sides have
    /// told.
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

    /// Whether this lane carries small operations alone now. A link of fewer than `keeps_of` lanes
    /// reserves no lane for small operations.
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

    /// When the link is closed because nothing wants it; `never` while it is wanted, and while it
    /// keeps frames for operations that this peer has not called yet.
    pub fn ends_at(link: *const Link) base.Instant {
        return if (link.wanted or link.early.count() > 0) base.never else link.expires_at;
    }

    /// For a copy of a frame whose earlier copy another lane is still receiving: takes the memory
    /// from that lane, and returns it for this copy. Null: no lane is receiving an earlier copy, so
    /// this copy is not needed.
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

    /// Whether a payload of this owner is coming in on any lane.
    pub fn brings(link: *const Link, owner: Lane.Owner) bool {
        for (link.lanes) |place| if (place) |lane| if (lane.brings(owner)) return true;
        return false;
    }

    /// Whether some frame of the link is unacknowledged, has not left whole, or has come in only in
    /// part.
    pub fn is_loaded(link: *const Link) bool {
        if (link.again.items.len > 0) return true;
        return for (link.lanes[0..link.lanes_end]) |place| {
            const lane = place orelse continue;
            if (lane.unacked.count > 0 or lane.into != null) break true;
            if (lane.out_head_left.len > 0 or lane.out_payload.len > 0) break true;
        } else false;
    }

    /// Bytes still to come, on all lanes, of payloads of this owner that have begun to come in.
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
    /// A number that only the driver uses.
    driver: usize = 0,
    state: State,
    /// The link of the lane. Null: a stranger that has not said which peer it is, or a dial that
    /// the coordinator has asked for.
    link: ?*Link,
    /// The lane's index in `Link.lanes`.
    number: u8 = 0,
    /// This side has dialed the lane.
    is_ours: bool = false,
    /// The address that an accepted connection comes from.
    source: base.Source = @splat(0),
    /// The connection was accepted at this instant, so its first bytes may not have been read yet.
    is_fresh: bool = false,
    /// When a connection that is not open yet is given up.
    deadline: base.Instant,
    /// When bytes last came in. An open lane on which nothing comes in for the silence limit is
    /// closed.
    heard_at: base.Instant = 0,
    /// How long the connect took, which is one round trip; 0: the other side has dialed, or the
    /// time says nothing because a packet was lost.
    connect_ns: u64 = 0,
    /// When bytes last went out. An open lane that takes no bytes for the silence limit is closed.
    spoke_at: base.Instant = 0,
    /// The last tick at which the lane carried frames of kinds that are acknowledged. `used`: how
    /// many of these frames had gone in both directions by then (dial.zig).
    used_at: base.Instant = 0,
    used: frame.Header.Count = 0,
    /// A ping is to be sent, because nothing has left for half a heartbeat.
    ping_due: bool = false,
    /// The system's counters of the lane at the last measurement. `was_busy`: a frame was going out
    /// then.
    sample: ?flow_file.Sample = null,
    was_busy: bool = false,
    /// Bytes per second that the other side has acknowledged in the last interval.
    moved: u64 = 0,
    /// The lane carries no data of large operations, so it may be idle while its link has more to
    /// send.
    is_kept: bool = false,
    /// The pace that the driver was last told.
    pace: flow_file.Pace = .{},
    /// Nanoseconds since a pause of the link ended, after which the lane begins slowly again; null:
    /// there was no pause. `lost_before`: bytes sent again until the pause, which do not count any
    /// more.
    restarted_ns: ?u64 = null,
    lost_before: u64 = 0,

    // Incoming: a head (hello, answer or frame header), then perhaps a payload.
    head: [hello.hello_bytes]u8 = undefined,
    /// Bytes of the whole head. `head_got`: bytes of the head that have come in.
    head_need: usize,
    head_got: usize = 0,
    /// The header of the frame that is coming in.
    incoming: frame.Header = undefined,
    /// Memory for the rest of the payload; null: a head is read, or the payload is thrown away.
    into: ?[]u8 = null,
    /// Bytes of a payload still to come that are thrown away, because no operation wants them.
    discard: usize = 0,
    /// Whose memory `into` is; null: memory of the lane. `into_slot`: the slot of the operation
    /// that `into` is in.
    into_owner: ?Owner = null,
    into_slot: u16 = collective.no_slot,
    /// Frames of acknowledged kinds that have come in whole, including those thrown away.
    /// `ack_due`: the other peer has not been told the present value of `taken`.
    taken: frame.Header.Count = 0,
    ack_due: bool = false,
    /// The memory of the payload that is coming in, if it was sent ahead of time; else empty.
    early: []u8 = &.{},
    /// The descriptor of an open that is coming in.
    descriptor: [wire.control.descriptor_bytes]u8 = undefined,

    // Outgoing: the rest of a head, and the rest of a payload.
    out_head: [out_head_bytes]u8 = undefined,
    out_head_left: []const u8 = "",
    out_payload: []const u8 = "",
    /// Whose memory `out_payload` is; null: memory of the lane, or no payload.
    out_owner: ?Owner = null,
    /// The frames that have gone out and that the other side has not acknowledged.
    unacked: Unacked = .{},
    /// A frame is going out, and has not left whole.
    out_busy: bool = false,
    /// The lane has just taken data, so the other idle lanes of its link send next (sync.zig).
    had_turn: bool = false,
    /// A copy of the rest of a payload whose owner has taken its memory back.
    bounce: []u8 = &.{},
    /// Memory ran out, so the rest of an outgoing payload is lost. Nothing moves on the lane any
    /// more, and the session closes the lane before the call under way returns.
    broken: bool = false,

    /// Room for a hello, or for a frame header with a descriptor.
    const out_head_bytes = @max(
        hello.hello_bytes,
        frame.header_bytes + wire.control.descriptor_bytes,
    );

    pub const State = enum {
        /// The driver is connecting the lane.
        dialing,
        /// This side's hello is on its way, and the answer has not come.
        greeting,
        /// The connection was accepted, and its hello has not come.
        stranger,
        /// The hello has come, and is not answered yet: no group of this peer knows the sender, or
        /// the other side may still answer a lane of this side with the same number.
        waiting,
        /// This side sends a last answer to the hello, and then closes the lane.
        refusing,
        /// Both sides have greeted each other: frames follow.
        open,
    };

    /// The owner of the memory that a payload is in.
    pub const Owner = union(enum) {
        /// The owner is a call (operation.zig).
        operation: *anyopaque,
        /// The owner is a shared state whose leaves are fetched or given in the background
        /// (sync.zig).
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

    /// This connection as base/places.zig counts connections that have not said which peer they are
    /// from.
    pub fn guest(lane: *const Lane) ?base.places.Guest {
        const spoke = lane.state == .stranger and lane.head_got > 0;
        return .{ .source = lane.source, .silent = !spoke, .fresh = lane.is_fresh };
    }

    pub fn deinit(lane: *Lane) void {
        if (lane.early.len > 0) lane.link.?.early.forget_data(lane.early);
        lane.gpa.free(lane.bounce);
        lane.* = undefined;
    }

    /// Opens the lane after both hellos: frames follow from now on.
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

    /// Takes some of `count` received bytes, up to the next event. Returns how many bytes were
    /// taken, and the event that they complete. The caller calls `consume` again with the rest of
    /// the bytes.
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

    /// The head is read: the next bytes are a payload or another head.
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

    /// Room for the head of an outgoing frame, of `bytes` bytes. The caller fills the room before
    /// anything else happens to the lane.
    pub fn head_room(lane: *Lane, bytes: usize) []u8 {
        assert(lane.out_head_left.len == 0 and lane.out_payload.len == 0);
        const room = lane.out_head[0..bytes];
        lane.out_head_left = room;
        return room;
    }

    /// Puts a payload behind the head that goes out.
    pub fn put_payload(lane: *Lane, payload: []const u8, owner: Owner) void {
        lane.out_payload = payload;
        lane.out_owner = owner;
    }

    /// The header of the frame that was put on the lane last.
    pub fn outgoing(lane: *const Lane) frame.Header {
        return frame.decode(lane.out_head[0..frame.header_bytes]) catch unreachable; // encoded here
    }

    /// Notes that `count` bytes have left. True: the frame has left whole.
    pub fn sent(lane: *Lane, count: usize) bool {
        const head = @min(count, lane.out_head_left.len);
        lane.out_head_left = lane.out_head_left[head..];
        lane.out_payload = lane.out_payload[count - head ..];
        return lane.out_head_left.len == 0 and lane.out_payload.len == 0;
    }

    /// Whether a payload is coming in, even if the lane throws it away.
    pub fn takes(lane: *const Lane) bool {
        return lane.into != null or lane.discard > 0;
    }

    /// Whether a payload of this owner is coming in.
    pub fn brings(lane: *const Lane, owner: Owner) bool {
        return is_same(lane.into_owner, owner);
    }

    fn is_same(one: ?Owner, other: Owner) bool {
        return std.meta.eql(one orelse return false, other);
    }

    /// The lane does not touch the memory of this owner from now on: the rest of a payload that
    /// goes out is copied, and the rest of a payload that comes in is thrown away. The stream of
    /// bytes stays complete. Without memory for the copy, the lane is marked `broken` and not
    /// closed here, because the caller may be reading the lane's bytes.
    pub fn detach(lane: *Lane, owner: Owner) void {
        if (lane.brings(owner)) lane.drop_into();
        if (is_same(lane.out_owner, owner)) lane.bounce_out();
    }

    /// The acknowledgement for a frame that goes out: the number of frames that this side has
    /// taken.
    pub fn answer(lane: *Lane) frame.Header.Count {
        lane.ack_due = false;
        return lane.taken;
    }

    /// The memory of the whole payload that is coming in, from its first byte.
    pub fn place(lane: *const Lane) []u8 {
        const rest = lane.into.?;
        const whole: usize = lane.incoming.payload_bytes;
        return (rest.ptr - (whole - rest.len))[0..whole];
    }

    /// Throws away the rest of the payload that is coming in.
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

// ---- frames that come early
//
// Frames that a peer has sent ahead of time, for operations that this peer has not reached yet. The
// bytes of early frames are bounded for each operation and for each link.

pub const Early = struct {
    gpa: Allocator,
    kept: std.AutoArrayHashMapUnmanaged(Key, Kept) = .empty,
    /// Bytes of all early payloads that are kept or still coming in, counted with `cost`.
    bytes: usize = 0,

    pub const Key = struct {
        /// A u64, so that the key is hashed as one block of bytes and not field by field.
        group: u64,
        epoch: u64,
        tag: u64,
        sequence: u64,

        pub fn of(header: *const Header) Key {
            return .{
                .group = header.group,
                .epoch = header.epoch,
                .tag = header.tag,
                .sequence = header.sequence,
            };
        }

        pub fn of_operation(group: u16, epoch: u64, id: OpId) Key {
            return .{ .group = group, .epoch = epoch, .tag = id.tag, .sequence = id.sequence };
        }
    };

    /// Early frames of one operation, of the latest attempt of which a frame has come.
    const Kept = struct {
        attempt: u32,
        open: ?Open = null,
        data: std.ArrayList(Data) = .empty,
        data_bytes: usize = 0,

        /// Whether a data frame for the same place as the frame of `header` is kept.
        fn has(kept: *const Kept, header: *const Header) bool {
            for (kept.data.items) |*item| if (item.header.is_same(header)) return true;
            return false;
        }
    };

    pub const Open = struct { credit: u64, descriptor: wire.control.Descriptor };
    pub const Data = struct { header: Header, payload: []u8 };
    pub const Error = error{ OutOfMemory, TooMuchAhead };

    pub fn deinit(early: *Early) void {
        while (early.count() > 0) early.forget_at(early.count() - 1);
        early.kept.deinit(early.gpa);
        early.* = undefined;
    }

    /// Number of operations of which early frames are kept.
    pub fn count(early: *const Early) usize {
        return early.kept.count();
    }

    /// Keeps an open until this peer begins the operation in this attempt.
    pub fn remember(early: *Early, key: Key, attempt: u32, open: Open) Error!void {
        const kept = try early.obtain(key, attempt) orelse return;
        kept.open = open;
    }

    /// Finds or makes the entry of an operation for frames of this attempt, and drops frames of an
    /// earlier attempt. Null: frames of a later attempt are kept.
    fn obtain(early: *Early, key: Key, attempt: u32) Error!?*Kept {
        if (early.kept.getIndex(key)) |index| {
            const kept = &early.kept.values()[index];
            if (kept.attempt == attempt) return kept;
            if (kept.attempt > attempt) return null;
            early.forget_at(index);
        }
        if (early.count() >= limits.early_operations_max) return error.TooMuchAhead;
        const entry = try early.kept.getOrPutValue(early.gpa, key, .{ .attempt = attempt });
        return entry.value_ptr;
    }

    /// The frames that are kept for this operation in this attempt; null: no frames. Drops frames
    /// of an earlier attempt.
    fn find(early: *Early, key: Key, attempt: u32) ?*Kept {
        if (early.count() == 0) return null; // usual, and saves hashing the key
        const index = early.kept.getIndex(key) orelse return null;
        const kept = &early.kept.values()[index];
        if (kept.attempt == attempt) return kept;
        if (kept.attempt < attempt) early.forget_at(index);
        return null;
    }

    /// Takes the open that is kept for this operation and attempt; null: no open is kept.
    pub fn recall(early: *Early, key: Key, attempt: u32) ?Open {
        const kept = early.find(key, attempt) orelse return null;
        defer kept.open = null;
        return kept.open;
    }

    /// Whether a data frame for the same attempt and place as the frame of `header` is kept.
    pub fn has_data(early: *Early, header: *const Header) bool {
        const kept = early.find(.of(header), header.attempt) orelse return false;
        return kept.has(header);
    }

    /// Allocates memory for a payload that was sent ahead of time. The caller calls `keep_data`
    /// when the payload is whole.
    pub fn reserve_data(early: *Early, header: *const Header) Error![]u8 {
        const bytes = header.payload_bytes;
        const before = if (early.find(.of(header), header.attempt)) |kept| kept.data_bytes else 0;
        if (before + bytes > limits.eager_bytes_max) return error.TooMuchAhead;
        if (early.bytes + cost(bytes) > limits.early_bytes_max) return error.TooMuchAhead;
        const payload = try early.gpa.alloc(u8, bytes);
        early.bytes += cost(bytes);
        return payload;
    }

    /// Bytes that a payload of `bytes` bytes counts as: its own, and the bookkeeping of its frame.
    fn cost(bytes: usize) usize {
        return bytes + @sizeOf(Data);
    }

    pub fn forget_data(early: *Early, payload: []u8) void {
        early.bytes -= cost(payload.len);
        early.gpa.free(payload);
    }

    /// Keeps a frame whose payload is whole. Takes over the payload's memory, even on an error.
    pub fn keep_data(early: *Early, header: *const Header, payload: []u8) Error!void {
        errdefer early.forget_data(payload);
        const kept = try early.obtain(.of(header), header.attempt) orelse
            return early.forget_data(payload);
        // Several lanes may have brought the same frame at the same time.
        if (kept.has(header)) return early.forget_data(payload);
        if (kept.data_bytes + payload.len > limits.eager_bytes_max) return error.TooMuchAhead;
        try kept.data.append(early.gpa, .{ .header = header.*, .payload = payload });
        kept.data_bytes += payload.len;
    }

    /// Takes one kept data frame of this operation and attempt; null: no more are kept. The caller
    /// gives the payload to `forget_data`.
    pub fn recall_data(early: *Early, key: Key, attempt: u32) ?Data {
        const kept = early.find(key, attempt) orelse return null;
        const data = kept.data.pop() orelse return null;
        kept.data_bytes -= data.payload.len;
        return data;
    }

    /// Drops all early frames of an operation that is over.
    pub fn forget(early: *Early, key: Key) void {
        if (early.count() == 0) return;
        if (early.kept.getIndex(key)) |index| early.forget_at(index);
    }

    fn forget_at(early: *Early, index: usize) void {
        const kept = &early.kept.values()[index];
        for (kept.data.items) |data| early.forget_data(data.payload);
        kept.data.deinit(early.gpa);
        early.kept.swapRemoveAt(index);
    }

    /// Drops the early frames of this epoch that are of attempts before `attempt`.
    pub fn prune(early: *Early, group: u16, epoch: u64, attempt: u32) void {
        var index = early.count();
        while (index > 0) {
            index -= 1;
            const key = &early.kept.keys()[index];
            if (key.group != group or key.epoch != epoch) continue;
            if (early.kept.values()[index].attempt < attempt) early.forget_at(index);
        }
    }

    /// Drops the early frames of this epoch and of the epochs before it; epoch maxInt: of the whole
    /// group.
    pub fn prune_epochs(early: *Early, group: u16, epoch: u64) void {
        var index = early.count();
        while (index > 0) {
            index -= 1;
            const key = &early.kept.keys()[index];
            if (key.group == group and key.epoch <= epoch) early.forget_at(index);
        }
    }
};

fn test_header(sequence: u64, attempt: u32, payload_bytes: u32) Header {
    return std.mem.zeroInit(Header, .{
        .kind = .partial,
        .sequence = sequence,
        .attempt = attempt,
        .payload_bytes = payload_bytes,
    });
}

/// Keeps one more early frame, which is of a different piece in each call.
fn test_keep(early: *Early, like: Header) Early.Error!void {
    var header = like;
    const kept = early.kept.getPtr(.of(&header));
    header.index = if (kept) |it| it.data.items.len else 0;
    try early.keep_data(&header, try early.reserve_data(&header));
}

test "what is kept ahead of time is counted with its cost, and given back" {
    var early: Early = .{ .gpa = std.testing.allocator };
    defer early.deinit();
    for (0..3) |_| try test_keep(&early, test_header(0, 1, 1));
    try std.testing.expect(early.bytes > 3 * @sizeOf(Early.Data));
    early.prune(0, 0, 2);
    try std.testing.expectEqual(0, early.bytes);
    try test_keep(&early, test_header(0, 2, 1));
    try test_keep(&early, test_header(0, 3, 1)); // replaces the earlier attempt
    try test_keep(&early, test_header(0, 2, 1)); // dropped: earlier attempt
    early.prune(0, 0, 3);
    const key: Early.Key = .of(&test_header(0, 3, 1));
    try std.testing.expectEqual(null, early.recall_data(key, 2));
    early.forget_data(early.recall_data(key, 3).?.payload);
    try std.testing.expectEqual(0, early.bytes);
}

test "data ahead of time is bounded for each operation, and for the link" {
    var early: Early = .{ .gpa = std.testing.allocator };
    defer early.deinit();
    const half = limits.eager_bytes_max / 2;
    for (0..2) |_| try test_keep(&early, test_header(0, 1, half));
    try std.testing.expectError(error.TooMuchAhead, test_keep(&early, test_header(0, 1, 1)));
    // Two lanes bring the last half of the limit at the same time: the second payload is refused.
    var last = test_header(1, 1, half);
    try test_keep(&early, last);
    const payloads = .{ try early.reserve_data(&last), try early.reserve_data(&last) };
    last.index = 1;
    try early.keep_data(&last, payloads[0]);
    last.index = 2;
    try std.testing.expectError(error.TooMuchAhead, early.keep_data(&last, payloads[1]));
    var operations: u64 = 2;
    while (test_keep(&early, test_header(operations, 1, limits.eager_bytes_max))) {
        operations += 1;
    } else |err| try std.testing.expectEqual(error.TooMuchAhead, err);
    try std.testing.expect(operations >= limits.eager_operations_max);
    try std.testing.expect(early.bytes <= limits.early_bytes_max);
    early.prune_epochs(0, 0);
    try std.testing.expectEqual(0, early.bytes);
    try std.testing.expectEqual(0, early.count());
}

test "the same data on two lanes is kept once" {
    var early: Early = .{ .gpa = std.testing.allocator };
    defer early.deinit();
    const header = test_header(0, 1, 100);
    try std.testing.expect(!early.has_data(&header));
    const payloads = .{ try early.reserve_data(&header), try early.reserve_data(&header) };
    inline for (payloads) |payload| try early.keep_data(&header, payload);
    try std.testing.expect(early.has_data(&header));
    var later = header;
    later.attempt = 2;
    try std.testing.expect(!early.has_data(&later));
    const key: Early.Key = .of(&header);
    try std.testing.expectEqual(null, early.recall_data(key, 1)); // has_data dropped it
    try std.testing.expectEqual(0, early.bytes);
}

test "opens ahead of time are bounded" {
    var early: Early = .{ .gpa = std.testing.allocator };
    defer early.deinit();
    const open: Early.Open = .{ .credit = 1, .descriptor = undefined };
    for (0..limits.early_operations_max) |sequence| {
        try early.remember(.of(&test_header(sequence, 1, 0)), 1, open);
    }
    const more: Early.Key = .of(&test_header(limits.early_operations_max, 1, 0));
    try std.testing.expectError(error.TooMuchAhead, early.remember(more, 1, open));
    early.prune_epochs(1, std.math.maxInt(u64)); // another group
    try std.testing.expectEqual(limits.early_operations_max, early.count());
    early.prune_epochs(0, std.math.maxInt(u64));
    try early.remember(more, 1, open);
}

// ---- frames that are not acknowledged
//
// Frames that have gone out on one lane and that the other side has not acknowledged, oldest first:
// data, and requests for shared states with their answers. A lane delivers in order, so an
// acknowledgement is a number of frames. If the lane breaks, its unacknowledged frames are sent
// again on another lane. So the memory of a frame is kept until the frame is acknowledged.

/// A frame that is to be acknowledged: a move of an operation or a fragment of it, or a frame of a
/// shared state.
pub const Sent = struct {
    /// The frame's operation. Null: the attempt of the frame is over, or the frame is of a shared
    /// state that is fetched in the background.
    operation: ?*anyopaque,
    move: collective.Move = undefined,
    fragment: wire.Fragment = .whole,
    /// A request or an answer of a shared state; null: the frame is a move.
    request: ?Request = null,
    /// The frame has left this peer whole on some lane, and its operation has counted it as sent.
    is_counted: bool = false,
    /// How often the frame was sent before, on lanes that broke.
    again: u8 = 0,

    pub const Request = struct {
        item: Requests.Item,
        /// The frame answers the request `item`; otherwise the frame is the request.
        is_answer: bool,
    };
};

pub const Unacked = struct {
    all: [most]Sent = undefined,
    first: u8 = 0,
    count: u8 = 0,
    /// The newest frame has not left whole, so it cannot be acknowledged.
    is_leaving: bool = false,
    /// Frames that were acknowledged since the lane opened.
    acked: Count = 0,

    /// The most unacknowledged frames of one lane, which are 16 MiB if each frame is full.
    const most = 64;

    pub fn has_room(unacked: *const Unacked) bool {
        return unacked.count < most;
    }

    /// Whether the other side should acknowledge soon, because half of the room is taken.
    pub fn is_short(unacked: *const Unacked) bool {
        return unacked.count >= most / 2;
    }

    pub fn push(unacked: *Unacked, sent: Sent) void {
        unacked.at(unacked.count).* = sent;
        unacked.count += 1;
        unacked.is_leaving = true;
    }

    /// The frame with this index, counted from the oldest.
    pub fn at(unacked: *Unacked, index: u8) *Sent {
        return &unacked.all[(unacked.first + index) % most];
    }

    pub fn newest(unacked: *Unacked) *Sent {
        return unacked.at(unacked.count - 1);
    }

    /// Checks an acknowledgement by which the other side has taken `total` frames since the lane
    /// opened. Returns how many of these frames were not acknowledged before.
    pub fn acknowledged(unacked: *const Unacked, total: Count) error{AcknowledgedTooMany}!u8 {
        const new = total -% unacked.acked;
        if (new > unacked.count - @intFromBool(unacked.is_leaving))
            return error.AcknowledgedTooMany;
        return @intCast(new);
    }

    /// Removes the oldest frame, because it is acknowledged.
    pub fn pop(unacked: *Unacked) Sent {
        const oldest = unacked.at(0).*;
        unacked.first = (unacked.first + 1) % most;
        unacked.count -= 1;
        unacked.acked +%= 1;
        return oldest;
    }

    /// Lets later acknowledgements of this operation's frames have no effect.
    pub fn forget(unacked: *Unacked, operation: *const anyopaque) void {
        for (0..unacked.count) |index| {
            const sent = unacked.at(@intCast(index));
            if (sent.operation != operation) continue;
            sent.operation = null;
            sent.request = null;
        }
    }
};

const test_move: collective.Move = .{ .kind = .final, .piece = 0, .place = .result };

test "frames are acknowledged in their order, and no more than were sent" {
    var unacked: Unacked = .{ .acked = std.math.maxInt(Count) - 1 };
    var operations: [3]u8 = undefined;
    for (&operations) |*operation| unacked.push(.{ .operation = operation, .move = test_move });
    // The third frame has not left whole.
    try std.testing.expectEqual(2, try unacked.acknowledged(0));
    try std.testing.expectError(error.AcknowledgedTooMany, unacked.acknowledged(1));
    unacked.is_leaving = false;
    try std.testing.expectEqual(2, try unacked.acknowledged(0));
    try std.testing.expectError(error.AcknowledgedTooMany, unacked.acknowledged(2));
    // An acknowledgement of fewer frames than were acknowledged before makes no sense.
    const before = std.math.maxInt(Count) - 2;
    try std.testing.expectError(error.AcknowledgedTooMany, unacked.acknowledged(before));
    unacked.forget(&operations[1]);
    try std.testing.expectEqual(@as(?*anyopaque, &operations[0]), unacked.pop().operation);
    try std.testing.expectEqual(null, unacked.pop().operation);
    try std.testing.expectEqual(0, try unacked.acknowledged(0));
    try std.testing.expectEqual(1, unacked.count);
}

test "a lane takes a bounded number, also round the end of its list" {
    var unacked: Unacked = .{};
    for (0..3) |_| {
        while (unacked.has_room()) unacked.push(.{ .operation = null, .move = test_move });
        try std.testing.expect(unacked.is_short());
        try std.testing.expectEqual(Unacked.most, unacked.count);
        for (0..Unacked.most - 5) |_| _ = unacked.pop();
        try std.testing.expect(!unacked.is_short());
    }
}

// ---- requests for a shared state
//
// Requests of another peer for parts of a shared state that this peer holds: leaves, and pages of
// leaf hashes. Requests wait until they are answered, first in, first out. A request that comes
// again while it waits counts once, because both sides repeat requests when a lane breaks
// (dial.zig). A leaf may go out as several fragments (sync.zig); then the rest of the leaf stays
// first in the queue. This peer's own requests are in state.zig; sync.zig sends them and takes the
// answers.

/// Classes of requests on the wire, which say whether `index` names a leaf or a page of leaf
/// hashes.
pub const class_leaf = 0;
pub const class_hashes = 1;

/// The waiting requests of one peer. Most peers send no requests, so an empty queue allocates
/// nothing.
pub const Requests = struct {
    waiting: std.Deque(Item) = .empty,
    /// How many answers have begun, which is the number of the last answer. By this number the
    /// other side tells fragments of one answer from fragments of another answer, which may be cut
    /// differently.
    begun: u32 = 0,

    pub const Item = struct {
        class: u16,
        index: u32,
        // The place that the answer names; used only by requests in the background (sync.zig).
        group: u16 = 0,
        tag: u64 = 0,
        number: u32 = 0,
        fingerprint: u32 = 0,
        /// How often the item was sent before, on lanes that broke.
        again: u8 = 0,
        /// The number of the answer; 0: the answer has not begun.
        answer: u32 = 0,
        /// The part of the answer that is still to be sent, or to be sent again.
        part: Fragment = .whole,

        fn asks_the_same(one: Item, other: Item) bool {
            var same = other;
            same.again = one.again;
            same.answer = one.answer;
            same.part = one.part;
            return std.meta.eql(one, same);
        }
    };

    /// The most requests that wait: as many as a peer may have open at the same time (one page, and
    /// its leaves), and as many repeated after lanes broke.
    pub const most = 2 * (limits.state_asked_max + 1);

    pub const Error = error{ OutOfMemory, TooManyRequests };

    /// Adds a request that has come. If the same request waits already, its answer begins anew,
    /// because the other side may have thrown away the parts that it had.
    pub fn push(requests: *Requests, gpa: Allocator, item: Item) Error!void {
        var count: usize = 0;
        for (0..requests.waiting.len) |index| {
            const waiting = requests.waiting.atPtr(index);
            if (waiting.asks_the_same(item)) {
                waiting.* = item;
                return;
            }
            count += @intFromBool(waiting.again == 0);
        }
        if (count >= most) return error.TooManyRequests;
        try requests.waiting.pushBack(gpa, item);
    }

    /// Puts the part of an answer that was lost with its lane first in the queue, unless the whole
    /// item waits anyway. The limit `most` does not apply, because a lane holds few answers.
    pub fn put_back(requests: *Requests, gpa: Allocator, item: Item) error{OutOfMemory}!void {
        for (0..requests.waiting.len) |index| {
            const waiting = requests.waiting.atPtr(index);
            if (waiting.answer > 0 or !waiting.asks_the_same(item)) continue;
            waiting.again = @max(waiting.again, item.again);
            return;
        }
        try requests.waiting.pushFront(gpa, item);
    }

    /// The request that is answered next.
    pub fn first(requests: *const Requests) ?*const Item {
        return if (requests.waiting.len > 0) requests.waiting.atPtr(0) else null;
    }

    /// Takes `part` of the first request's answer, which goes out now. The rest of the answer, if
    /// any, stays first in the queue.
    pub fn take(requests: *Requests, gpa: Allocator, part: Fragment) Item {
        const waiting = requests.waiting.atPtr(0);
        if (waiting.answer == 0) {
            requests.begun +%= 1;
            waiting.answer = requests.begun;
        }
        var item = waiting.*;
        item.part = part;
        if (part.after > waiting.part.after) {
            waiting.part.before = @intCast(part.end());
            return item;
        }
        _ = requests.waiting.popFront();
        if (requests.waiting.len == 0) requests.clear(gpa);
        return item;
    }

    pub fn clear(requests: *Requests, gpa: Allocator) void {
        requests.waiting.deinit(gpa);
        requests.waiting = .empty;
    }
};

test "requests are answered in their order, up to the limit, and leave nothing behind" {
    const gpa = std.testing.allocator;
    var requests: Requests = .{};
    for (0..2) |_| {
        for (0..Requests.most) |index|
            try requests.push(gpa, .{ .class = class_leaf, .index = @intCast(index) });
        const beyond: Requests.Item = .{ .class = class_hashes, .index = 0 };
        try std.testing.expectError(error.TooManyRequests, requests.push(gpa, beyond));
        for (0..Requests.most) |index|
            try std.testing.expectEqual(index, requests.take(gpa, .whole).index);
        try std.testing.expectEqual(null, requests.first());
        try std.testing.expectEqual(0, requests.waiting.buffer.len);
    }
}

test "a request that waits already is one, and one whose answer was lost goes first" {
    const gpa = std.testing.allocator;
    var requests: Requests = .{};
    defer requests.clear(gpa);
    for (0..3) |_| for (0..Requests.most) |index|
        try requests.push(gpa, .{ .class = class_leaf, .index = @intCast(index) });
    try requests.put_back(gpa, .{ .class = class_hashes, .index = 0, .again = 2 });
    // The other side asked for leaf 0 again before this side noticed that the lane broke.
    try requests.put_back(gpa, .{ .class = class_leaf, .index = 0, .again = 1 });
    try requests.put_back(gpa, .{ .class = class_leaf, .index = 0 });
    try std.testing.expectEqual(Requests.most + 1, requests.waiting.len);
    const first = requests.take(gpa, .whole);
    try std.testing.expectEqual(class_hashes, first.class);
    try std.testing.expectEqual(2, first.again);
    const second = requests.take(gpa, .whole);
    try std.testing.expectEqual(0, second.index);
    try std.testing.expectEqual(1, second.again);
}

test "the rest of an answer goes first, and each answer has its number" {
    const gpa = std.testing.allocator;
    var requests: Requests = .{};
    defer requests.clear(gpa);
    for (0..2) |index|
        try requests.push(gpa, .{ .class = class_leaf, .index = @intCast(index) });
    const first = requests.take(gpa, .{ .after = 12 });
    try std.testing.expectEqual(Fragment{ .before = 4 }, requests.first().?.part);
    const second = requests.take(gpa, .{ .before = 4, .after = 3 });
    try std.testing.expectEqual(first.answer, second.answer);
    try std.testing.expectEqual(Fragment{ .before = 13 }, requests.first().?.part);
    try std.testing.expectEqual(0, requests.first().?.index);
    // Leaf 0 is asked for again: the whole leaf goes out, as another answer.
    try requests.push(gpa, .{ .class = class_leaf, .index = 0 });
    try std.testing.expect(requests.first().?.part.is_whole());
    const anew = requests.take(gpa, .whole);
    try std.testing.expectEqual(0, anew.index);
    try std.testing.expect(anew.answer > first.answer);
    const other = requests.take(gpa, .whole);
    try std.testing.expectEqual(1, other.index);
    try std.testing.expect(other.answer > anew.answer);
    try std.testing.expectEqual(null, requests.first());
    // The numbers of answers go on after the queue was empty.
    try requests.push(gpa, .{ .class = class_leaf, .index = 0 });
    try std.testing.expect(requests.take(gpa, .whole).answer > other.answer);
}

test "a fragment that was lost goes again as it was, unless all of its leaf is to go" {
    const gpa = std.testing.allocator;
    var requests: Requests = .{};
    defer requests.clear(gpa);
    const item: Requests.Item = .{ .class = class_leaf, .index = 7 };
    try requests.push(gpa, item);
    var lost = requests.take(gpa, .{ .after = 12 });
    lost.again = 1;
    try requests.put_back(gpa, lost);
    try std.testing.expectEqual(2, requests.waiting.len);
    try std.testing.expectEqual(lost, requests.take(gpa, lost.part));
    try std.testing.expectEqual(Fragment{ .before = 4 }, requests.take(gpa, .{ .before = 4 }).part);
    try requests.push(gpa, item);
    try requests.put_back(gpa, lost);
    try std.testing.expectEqual(1, requests.waiting.len);
    const whole = requests.take(gpa, .whole);
    try std.testing.expect(whole.answer > lost.answer and whole.again == 1);
    // `put_back` takes more items than `Requests.most`, and `push` still has room after that.
    for (0..Requests.most + 1) |index| {
        lost.index = @intCast(index);
        try requests.put_back(gpa, lost);
    }
    try requests.push(gpa, .{ .class = class_hashes, .index = 0 });
}
