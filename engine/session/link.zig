//! Link: the lanes to one other peer. Either side dials, one of them first; a lane that breaks is
//! dialed again. Which links are wanted is dial.zig's.
//!
//! Lane: one connection to another peer as bytes in and bytes out. It keeps the place in the
//! stream: which frame is coming in and where its payload goes, and which frame is going out. The
//! meaning of frames is frame.zig's. A lane does not know whose memory its payloads are in: it
//! keeps an owner, which it hands back.

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
    /// Bytes on its lanes, and those that the coordinator has been told of (session.zig).
    sent: u64 = 0,
    received: u64 = 0,
    sent_told: u64 = 0,
    received_told: u64 = 0,
    /// Where round robin goes on, among all operations and among large ones; and the bytes that
    /// small ones have sent since a large one had its turn (frame.zig).
    turn: usize = 0,
    turn_of_large: usize = 0,
    overtaken: usize = 0,
    /// Until then the first lane has no data of large operations.
    keeps_until: base.Instant = 0,
    /// Frames that lanes which broke had not delivered: they go first (dial.zig).
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
    /// When something of account was last under way on it, at a tick (dial.zig), and how many
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
    /// The payload that is coming in was sent ahead of time.
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
    /// It has had its turn, and lets the other lanes have theirs (sync.zig).
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
        /// A shared state's, fetched or given in the background (sync.zig).
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

// ---- frames that come early
//
// The frames that a peer has sent ahead of time, for operations that this peer has not reached yet.
// They are bounded for each operation, and for the link that they came on.

pub const Early = struct {
    gpa: Allocator,
    kept: std.AutoArrayHashMapUnmanaged(Key, Kept) = .empty,
    /// The memory of the data among it, with that which is still coming in.
    bytes: usize = 0,

    pub const Key = struct {
        /// A whole word, so that a key is hashed at once and not field by field.
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

    /// For one operation, in one attempt: the latest.
    const Kept = struct {
        attempt: u32,
        open: ?Open = null,
        data: std.ArrayList(Data) = .empty,
        data_bytes: usize = 0,

        /// Whether a data frame of this place is among it.
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

    /// Operations of which there is something.
    pub fn count(early: *const Early) usize {
        return early.kept.count();
    }

    /// Keeps an open until the operation is called here in that attempt.
    pub fn remember(early: *Early, key: Key, attempt: u32, open: Open) Error!void {
        const kept = try early.obtain(key, attempt) orelse return;
        kept.open = open;
    }

    /// The place for what is said of an operation in an attempt; null if a later one has begun.
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

    /// The frames that wait for this operation in this attempt. Those of an older one are
    /// forgotten.
    fn find(early: *Early, key: Key, attempt: u32) ?*Kept {
        if (early.count() == 0) return null; // most often: no hash of the key is needed
        const index = early.kept.getIndex(key) orelse return null;
        const kept = &early.kept.values()[index];
        if (kept.attempt == attempt) return kept;
        if (kept.attempt < attempt) early.forget_at(index);
        return null;
    }

    /// The open that waits for this operation and attempt, if any; it is forgotten.
    pub fn recall(early: *Early, key: Key, attempt: u32) ?Open {
        const kept = early.find(key, attempt) orelse return null;
        defer kept.open = null;
        return kept.open;
    }

    /// Whether a data frame of this place is kept already.
    pub fn has_data(early: *Early, header: *const Header) bool {
        const kept = early.find(.of(header), header.attempt) orelse return false;
        return kept.has(header);
    }

    /// Room for data that was sent ahead of time; `keep_data` follows when it is there.
    pub fn reserve_data(early: *Early, header: *const Header) Error![]u8 {
        const bytes = header.payload_bytes;
        const before = if (early.find(.of(header), header.attempt)) |kept| kept.data_bytes else 0;
        if (before + bytes > limits.eager_bytes_max) return error.TooMuchAhead;
        if (early.bytes + cost(bytes) > limits.early_bytes_max) return error.TooMuchAhead;
        const payload = try early.gpa.alloc(u8, bytes);
        early.bytes += cost(bytes);
        return payload;
    }

    /// Small payloads count with what it takes to keep them.
    fn cost(bytes: usize) usize {
        return bytes + @sizeOf(Data);
    }

    pub fn forget_data(early: *Early, payload: []u8) void {
        early.bytes -= cost(payload.len);
        early.gpa.free(payload);
    }

    /// Takes over the payload, also when it fails.
    pub fn keep_data(early: *Early, header: *const Header, payload: []u8) Error!void {
        errdefer early.forget_data(payload);
        const kept = try early.obtain(.of(header), header.attempt) orelse
            return early.forget_data(payload);
        // Several lanes may have brought some at the same time, and the same.
        if (kept.has(header)) return early.forget_data(payload);
        if (kept.data_bytes + payload.len > limits.eager_bytes_max) return error.TooMuchAhead;
        try kept.data.append(early.gpa, .{ .header = header.*, .payload = payload });
        kept.data_bytes += payload.len;
    }

    /// Data of this operation and attempt that came ahead of time, one by one; the caller forgets
    /// it.
    pub fn recall_data(early: *Early, key: Key, attempt: u32) ?Data {
        const kept = early.find(key, attempt) orelse return null;
        const data = kept.data.pop() orelse return null;
        kept.data_bytes -= data.payload.len;
        return data;
    }

    /// An operation is over: whatever was kept for it is not wanted.
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

    /// Forgets what is of passed attempts of this epoch.
    pub fn prune(early: *Early, group: u16, epoch: u64, attempt: u32) void {
        var index = early.count();
        while (index > 0) {
            index -= 1;
            const key = &early.kept.keys()[index];
            if (key.group != group or key.epoch != epoch) continue;
            if (early.kept.values()[index].attempt < attempt) early.forget_at(index);
        }
    }

    /// Forgets what is of this epoch and those before it; maxInt: the whole group.
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

/// Each is another piece.
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
    try test_keep(&early, test_header(0, 3, 1)); // a later attempt takes the place
    try test_keep(&early, test_header(0, 2, 1)); // an earlier one does not
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
    // Two lanes bring the last half at the same time: the second finds no place.
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
    try std.testing.expectEqual(null, early.recall_data(key, 1)); // a later attempt was asked for
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
// The frames that have gone out on one lane and that the other side has not said it has, oldest
// first: data, and requests of shared states with their answers. A lane delivers in order, so a
// count of them is an acknowledgement. If the lane breaks they go again on another, so whatever
// they are sent from is kept until then.

/// A frame that is acknowledged: a move of an operation, a fragment of one, or of a shared state.
pub const Sent = struct {
    /// Null: its attempt is over, or it is of a state that is fetched in the background.
    operation: ?*anyopaque,
    move: collective.Move = undefined,
    fragment: wire.Fragment = .whole,
    /// A frame of a shared state, and no move.
    request: ?Request = null,
    /// It has left this peer at some time, as movements count it.
    is_counted: bool = false,
    /// How often it was sent before.
    again: u8 = 0,

    pub const Request = struct {
        item: Requests.Item,
        /// This peer has given it; else it has asked for it.
        is_answer: bool,
    };
};

pub const Unacked = struct {
    all: [most]Sent = undefined,
    first: u8 = 0,
    count: u8 = 0,
    /// Something of the newest has not left yet, so nobody can have it.
    is_leaving: bool = false,
    /// Acknowledged since the lane opened.
    acked: Count = 0,

    /// So many frames of a lane may be under way; of whole ones, 16 MiB.
    const most = 64;

    pub fn has_room(unacked: *const Unacked) bool {
        return unacked.count < most;
    }

    /// The other side is to say soon what it has.
    pub fn is_short(unacked: *const Unacked) bool {
        return unacked.count >= most / 2;
    }

    pub fn push(unacked: *Unacked, sent: Sent) void {
        unacked.at(unacked.count).* = sent;
        unacked.count += 1;
        unacked.is_leaving = true;
    }

    /// The oldest is `at(0)`.
    pub fn at(unacked: *Unacked, index: u8) *Sent {
        return &unacked.all[(unacked.first + index) % most];
    }

    pub fn newest(unacked: *Unacked) *Sent {
        return unacked.at(unacked.count - 1);
    }

    /// The other side has so many. Returns how many of these are new.
    pub fn acknowledged(unacked: *const Unacked, total: Count) error{AcknowledgedTooMany}!u8 {
        const new = total -% unacked.acked;
        if (new > unacked.count - @intFromBool(unacked.is_leaving))
            return error.AcknowledgedTooMany;
        return @intCast(new);
    }

    /// The oldest is acknowledged.
    pub fn pop(unacked: *Unacked) Sent {
        const oldest = unacked.at(0).*;
        unacked.first = (unacked.first + 1) % most;
        unacked.count -= 1;
        unacked.acked +%= 1;
        return oldest;
    }

    /// Acknowledgements for this operation mean nothing any more.
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
    // The third is still leaving.
    try std.testing.expectEqual(2, try unacked.acknowledged(0));
    try std.testing.expectError(error.AcknowledgedTooMany, unacked.acknowledged(1));
    unacked.is_leaving = false;
    try std.testing.expectEqual(2, try unacked.acknowledged(0));
    try std.testing.expectError(error.AcknowledgedTooMany, unacked.acknowledged(2));
    // One that is older than what was said before says something absurd.
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
// Requests of another peer for a shared state that this peer holds: leaves and pages of their
// hashes, from when it asks until they are answered, first in first out. A request that comes again
// while it waits is one, because a lane that breaks has things said twice (dial.zig). A leaf may go
// out as several fragments (sync.zig): the rest of it waits as the first request. Requests of this
// peer are in state.zig; how they are said, and where the answers go: sync.zig.

/// Classes of requests, as they travel: `index` is a leaf, or a page of hashes.
pub const class_leaf = 0;
pub const class_hashes = 1;

/// Each peer may ask at any time, and few do: nothing is kept for those that do not.
pub const Requests = struct {
    waiting: std.Deque(Item) = .empty,
    /// Answers that have begun. Each has its number, so that nobody takes a fragment of one for
    /// that of another, which may be cut in another way.
    begun: u32 = 0,

    pub const Item = struct {
        class: u16,
        index: u32,
        // Where the answer belongs; of requests in the background only (sync.zig).
        group: u16 = 0,
        tag: u64 = 0,
        number: u32 = 0,
        fingerprint: u32 = 0,
        /// How often it was answered before, on lanes that broke.
        again: u8 = 0,
        /// The number of the answer; 0: it has not begun.
        answer: u32 = 0,
        /// This part of it is still to go, or goes again.
        part: Fragment = .whole,

        fn asks_the_same(one: Item, other: Item) bool {
            var same = other;
            same.again = one.again;
            same.answer = one.answer;
            same.part = one.part;
            return std.meta.eql(one, same);
        }
    };

    /// A page, and the leaves that may be on request at the same time; and as many that were asked
    /// for, or answered, on lanes that broke.
    pub const most = 2 * (limits.state_asked_max + 1);

    pub const Error = error{ OutOfMemory, TooManyRequests };

    /// Where the answer has begun it begins anew: the other side may have thrown away what went.
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

    /// One whose answer was lost with its lane goes first, unless all of it is to go anyway. The
    /// other side did not ask twice, so there is no limit to it: a lane holds few answers.
    pub fn put_back(requests: *Requests, gpa: Allocator, item: Item) error{OutOfMemory}!void {
        for (0..requests.waiting.len) |index| {
            const waiting = requests.waiting.atPtr(index);
            if (waiting.answer > 0 or !waiting.asks_the_same(item)) continue;
            waiting.again = @max(waiting.again, item.again);
            return;
        }
        try requests.waiting.pushFront(gpa, item);
    }

    /// The one to answer next.
    pub fn first(requests: *const Requests) ?*const Item {
        return if (requests.waiting.len > 0) requests.waiting.atPtr(0) else null;
    }

    /// This part of the first one goes now. The rest, if there is one, stays first.
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
    // It was asked for again before its lane broke here as well.
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
    // It is asked for again: all of it goes, as another answer.
    try requests.push(gpa, .{ .class = class_leaf, .index = 0 });
    try std.testing.expect(requests.first().?.part.is_whole());
    const anew = requests.take(gpa, .whole);
    try std.testing.expectEqual(0, anew.index);
    try std.testing.expect(anew.answer > first.answer);
    const other = requests.take(gpa, .whole);
    try std.testing.expectEqual(1, other.index);
    try std.testing.expect(other.answer > anew.answer);
    try std.testing.expectEqual(null, requests.first());
    // The numbers go on.
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
    // As many go again as were lost.
    for (0..Requests.most + 1) |index| {
        lost.index = @intCast(index);
        try requests.put_back(gpa, lost);
    }
    try requests.push(gpa, .{ .class = class_hashes, .index = 0 });
}
