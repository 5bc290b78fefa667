//! Frame: turns bytes on a lane into moves of an operation, and moves into bytes. Each frame names
//! its group, epoch, attempt and operation, by which this peer finds its own operation. Frames of
//! earlier attempts are thrown away. Frames of later attempts are kept until this peer begins the
//! attempt (link.zig).

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const wire = @import("wire");
const detach_all = @import("session.zig").detach_all;
const detach_link = @import("session.zig").detach_link;
const dial = @import("dial.zig");
const give_up = @import("session.zig").give_up;
const measure = @import("measure.zig");
const state_file = @import("state.zig");
const sync_file = @import("sync.zig");
const wake_all = @import("session.zig").wake_all;
const wake_later = @import("session.zig").wake_later;
const Early = @import("link.zig").Early;
const Group = @import("group.zig").Group;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const WayBack = @import("flow.zig").WayBack;
const Header = wire.frame.Header;
const control = wire.control;
const limits = base.limits;

// ---- operations

/// Begins an operation's part in the current attempt of its epoch. `kept`: the chunks that were
/// reduced in earlier attempts and are kept, and the ranks that hold them.
pub fn start(s: *Session, operation: *Operation, kept: []const control.KeptRange) void {
    const group = operation.group;
    const epoch = group.member.epoch_of(operation.op.epoch).?;
    // The inputs of a private operation in doubt belong to the caller again, so its data cannot be
    // sent again, and the member asks to abort the operation.
    if (operation.op.state == .in_doubt and operation.op.descriptor.kind.is_private())
        return group.member.ask_to_abort(&operation.op);
    // Completion is checked later, because `start` runs inside an action of the member.
    defer wake_later(s, operation);
    measure.end_probe(s); // a probe would slow the operation, and be measured with it
    operation.history.note(epoch.attempt, &epoch.alive);
    operation.withdraws = null;
    if (operation.sync() != null) return sync_file.start(s, operation);
    if (operation.op.descriptor.kind != .send_recv)
        return start_along(s, operation, kept, &epoch.paths);
    // The data of a message goes straight from the sender to the receiver.
    start_along(s, operation, kept, &.between(operation.work.movement.board.ledger.roles.pair));
}

fn start_along(
    s: *Session,
    operation: *Operation,
    kept: []const control.KeptRange,
    paths: *const base.Paths,
) void {
    const epoch = operation.group.member.epoch_of(operation.op.epoch).?;
    const bytes = operation.work.movement.board.ledger.partition.bytes;
    const taken = collective.Schedule.along(paths, &operation.op.descriptor, bytes);
    var begin: collective.Begin = .{
        .attempt = epoch.attempt,
        .schedule = taken.schedule,
        .order = &paths.order,
        .hubs = &paths.hubs,
        .shares = taken.shares,
        .kept = kept,
    };
    if (begin.schedule == .ring or operation.op.descriptor.kind == .send_recv)
        return start_in(s, operation, &begin);
    const order: base.Order = .of(&epoch.alive);
    begin.order = &order;
    start_in(s, operation, &begin);
}

fn start_in(s: *Session, operation: *Operation, begin: *const collective.Begin) void {
    const x = operation.work.movement;
    const order = begin.order;
    x.begin(begin.*);
    // A mismatch is told again in each attempt, because the coordinator may have been between two
    // attempts when it was told.
    operation.mismatch_told = false;
    const is_message = operation.op.descriptor.kind == .send_recv;
    for (order.slice(), 0..) |rank, index| {
        const position: u16 = @intCast(index);
        const receives = x.receives_from(position);
        if (!receives and !x.sends_to(position)) continue;
        const link = dial.obtain(s, operation.ids[rank]) catch
            return give_up(s, operation);
        const count = operation.neighbours.len;
        operation.neighbours_room[count] = .{
            .link = link,
            .position = position,
            .open_pending = receives,
        };
        operation.neighbours = operation.neighbours_room[0 .. count + 1];
        if (is_message) dial.borrow(s, link);
        const is_down = link.told == .down and link.open_count == 0;
        if (operation.op.descriptor.is_between_two() and is_down) operation.withdraw_from(link);
    }
    for (operation.neighbours) |*neighbour| {
        const early = neighbour.link.early.recall(key_of(operation), begin.attempt);
        if (early) |open| opened(s, operation, neighbour, open.credit, &open.descriptor);
        s.wake(neighbour.link);
        replay(s, operation, neighbour);
    }
}

/// Takes the data that a neighbour sent before this peer had called the operation.
fn replay(s: *Session, operation: *Operation, neighbour: *const Operation.Neighbour) void {
    const link = neighbour.link;
    const x = operation.work.movement;
    if (!x.receives_from(neighbour.position)) return; // the neighbour had no reason to send any
    while (link.early.recall_data(key_of(operation), x.board.attempt)) |item| {
        defer link.early.forget_data(item.payload);
        if (is_foreign(operation, &item.header)) continue;
        const place = x.place(&item.header, neighbour.position) catch |err| place: {
            // Another copy of the frame has come in on another lane meanwhile, or is coming in.
            if (err == error.Twice)
                break :place link.take_over(operation.owner(), &item.header) orelse continue;
            s.log(.warning, "data sent ahead does not fit its operation: {t}", .{err});
            continue;
        };
        @memcpy(place.bytes, item.payload);
        _ = x.arrived(&item.header, place.slot); // the caller of replay wakes all lanes
    }
}

fn key_of(operation: *const Operation) Early.Key {
    return .of_operation(operation.group.id.?, operation.op.epoch, operation.op.id);
}

/// Ends the operation's part in an attempt: from now on no lane reads or writes its memory.
pub fn stop(s: *Session, operation: *Operation) void {
    detach(s, operation);
    for (operation.neighbours) |*neighbour| dial.forget_sent(neighbour.link, operation);
    operation.neighbours = &.{};
    switch (operation.work) {
        .movement => |x| x.halt(),
        .sync => sync_file.stop(operation),
    }
}

/// Begins to give the memory of an operation in doubt back to its caller, and stops all lanes that
/// read or write this memory. The operation goes on for the other members. Returns whether the
/// memory is given back (Movement.set_aside).
pub fn set_aside(s: *Session, operation: *Operation) bool {
    detach(s, operation);
    if (operation.sync() == null) {
        const is_aside = operation.work.movement.set_aside();
        for (operation.neighbours) |*neighbour|
            if (dial.is_cut_short(neighbour.link, operation)) dial.cut_short(s, neighbour.link);
        return is_aside;
    }
    sync_file.over(s, operation, false);
    return true;
}

fn detach(s: *Session, operation: *Operation) void {
    if (operation.sync() != null) {
        detach_all(s, operation.owner());
        for (s.links.items) |link| dial.forget_sent(link, operation);
        return;
    }
    for (operation.neighbours) |*neighbour|
        detach_link(s, neighbour.link, operation.owner());
}

/// A runner has done a job of this operation.
pub fn job_done(s: *Session, operation: *Operation, job: *base.Job) void {
    const x = operation.work.movement;
    const settled = x.board.ledger.settled_count;
    if (x.done(job)) wake_all(s, operation);
    // An operation in doubt is over for its caller, but goes on for the other members.
    if (operation.op.state == .finished) return;
    if (x.board.ledger.settled_count != settled) s.fault_point(operation, .operation_settled);
    check_complete(s, operation);
}

/// Lets the member vote if all data of an operation is settled, or withdraws an operation that is
/// to be withdrawn.
pub fn check_complete(s: *Session, operation: *Operation) void {
    if (operation.withdraws) |reason|
        return operation.group.member.give_up(&operation.op, reason);
    if (operation.sync() != null) return sync_file.step(s, operation);
    const x = operation.work.movement;
    if (x.board.members == 0 or !x.complete()) return;
    const voted = operation.op.voted_attempt;
    operation.op.age_ns = s.age_ns(operation);
    operation.group.member.completed(&operation.op, x.board.ledger.digest());
    if (operation.op.voted_attempt != voted) s.fault_point(operation, .operation_voted);
}

// ---- incoming

/// `count` bytes have come into the lane's slices: reads frames from them.
pub fn received(s: *Session, lane: *Lane, count: usize) void {
    var rest = count;
    while (rest > 0) {
        if (lane.into != null or lane.discard > 0) {
            if (lane.link) |link| link.moved_at = s.now;
        }
        const step = lane.consume(rest);
        rest -= step.taken;
        const alive = switch (step.event) {
            .none => true,
            .head => on_head(s, lane),
            .payload => on_payload(s, lane) and dial.frame_taken(s, lane),
            .discarded => dial.frame_taken(s, lane),
        };
        if (!alive or lane.broken) return;
    }
}

/// A head has come in whole. False: the lane is gone.
fn on_head(s: *Session, lane: *Lane) bool {
    lane.head_done();
    return switch (lane.state) {
        .dialing => reject(s, lane, "it speaks before it is connected"),
        .refusing => reject(s, lane, "it goes on after it was refused"),
        .waiting => reject(s, lane, "it goes on before it is answered"),
        .stranger => dial.greet(s, lane),
        .greeting => dial.lane_answered(s, lane),
        .open => on_frame(s, lane),
    };
}

fn reject(s: *Session, lane: *Lane, why: []const u8) bool {
    dial.fail(s, lane, why);
    return false;
}

const Route = union(enum) {
    /// The frame is for an operation in the current attempt.
    current: *Operation,
    /// The frame is for an epoch, attempt or operation that this peer has not reached yet.
    early,
    /// The frame is for an operation or attempt that is over.
    stale,
};

fn route(s: *Session, header: *const Header, from: base.PeerId) Route {
    const group = for (s.groups.items) |group| {
        if (group.state == .joined and group.id == header.group) break group;
    } else return .stale;
    const epoch = group.member.epoch_of(header.epoch) orelse
        return if (is_of_next(group, header.epoch, from)) .early else .stale;
    // A frame of a peer that is no live member of the epoch is stale, so only members can make this
    // peer keep frames.
    const rank = epoch.rank_of(from) orelse return .stale;
    if (!epoch.alive.has(rank)) return .stale;
    if (header.attempt > epoch.attempt) return early_of(epoch, header);
    if (header.attempt < epoch.attempt) return .stale;
    if (!epoch.running) return early_of(epoch, header);
    for (s.operations.items) |operation| {
        const op = &operation.op;
        if (operation.group != group or op.epoch != header.epoch or op.state == .finished) continue;
        if (op.id.tag != header.tag or op.id.sequence != header.sequence) continue;
        return if (operation.is_under_way()) .{ .current = operation } else .early;
    }
    const id: control.OpId = .{ .tag = header.tag, .sequence = header.sequence };
    const is_over = id.sequence < epoch.sequences.next(id.tag) and !epoch.is_queued(id);
    return if (is_over) .stale else early_of(epoch, header);
}

/// Routes a frame that came early: it is stale if its operation was aborted while the frame was in
/// flight.
fn early_of(epoch: anytype, header: *const Header) Route {
    const id: control.OpId = .{ .tag = header.tag, .sequence = header.sequence };
    return if (epoch.is_aborted(id)) .stale else .early;
}

/// Whether the sender may be a member of the epoch `number`, of which this peer has not been told
/// yet.
fn is_of_next(group: *const Group, number: u64, from: base.PeerId) bool {
    if (number <= group.member.newest()) return false;
    for (group.round_members.items) |id| if (id.eql(from)) return true;
    return false;
}

fn on_frame(s: *Session, lane: *Lane) bool {
    lane.incoming = wire.frame.decode(lane.head[0..wire.frame.header_bytes]) catch |err|
        return reject(s, lane, @errorName(err));
    const header = &lane.incoming;
    // The other side sends frames, so both sides know that the link works.
    dial.tell_link(s, lane.link.?, .up);
    dial.acknowledged(s, lane) catch |err| return reject(s, lane, @errorName(err));
    switch (header.kind) {
        .open => {
            if (header.payload_bytes != control.descriptor_bytes)
                return reject(s, lane, "an open of a wrong length");
            lane.expect(&lane.descriptor, null, 0);
        },
        .credit => {
            if (header.payload_bytes != 0) return reject(s, lane, "a credit of a wrong length");
            const operation = switch (route(s, header, lane.link.?.peer)) {
                .current => |operation| operation,
                .early, .stale => return true,
            };
            const neighbour = operation.neighbour(lane.link.?) orelse return true;
            const x = operation.work.movement;
            if (!x.sends_to(neighbour.position)) return true;
            x.credited(neighbour.position, header.class, header.index) catch |err|
                return reject(s, lane, @errorName(err));
            s.wake(lane.link.?);
        },
        .partial, .final => return on_data(s, lane, header),
        .want => {
            if (header.payload_bytes != 0) return reject(s, lane, "a request of a wrong length");
            on_want(s, lane.link.?, header) catch |err| return reject(s, lane, @errorName(err));
            return dial.frame_taken(s, lane);
        },
        .leaf, .hashes => return on_state_data(s, lane, header),
        .lack => {
            if (header.payload_bytes != 0) return reject(s, lane, "an answer of a wrong length");
            sync_file.on_lack(s, lane.link.?, header);
            return dial.frame_taken(s, lane);
        },
        .ping => {
            if (header.payload_bytes != 0) return reject(s, lane, "a ping of a wrong length");
            dial.on_ping(s, lane.link.?, header) catch |err|
                return reject(s, lane, @errorName(err));
        },
        .probe => measure.on_probe_frame(s, lane, header) catch |err|
            return reject(s, lane, @errorName(err)),
    }
    return true;
}

fn on_data(s: *Session, lane: *Lane, header: *const Header) bool {
    if (header.payload_bytes == 0) return reject(s, lane, "data without a payload");
    const operation = switch (route(s, header, lane.link.?.peer)) {
        .current => |operation| operation,
        .stale => return throw_away(lane, header),
        .early => {
            if (lane.link.?.early.has_data(header)) return throw_away(lane, header);
            lane.early = lane.link.?.early.reserve_data(header) catch |err|
                return reject(s, lane, @errorName(err));
            lane.expect(lane.early, null, collective.no_slot);
            return true;
        },
    };
    const neighbour = operation.neighbour(lane.link.?) orelse return throw_away(lane, header);
    const x = operation.work.movement;
    if (!x.receives_from(neighbour.position)) return throw_away(lane, header);
    if (is_foreign(operation, header)) return throw_away(lane, header);
    const place = x.place(header, neighbour.position) catch |err| place: {
        if (err != error.Twice) return reject(s, lane, @errorName(err));
        break :place lane.link.?.take_over(operation.owner(), header) orelse
            return throw_away(lane, header);
    };
    lane.expect(place.bytes, operation.owner(), place.slot);
    return true;
}

fn on_want(s: *Session, link: *Link, header: *const Header) sync_file.Error!void {
    if (header.epoch == 0) return sync_file.on_prefetch_want(s, link, header);
    switch (route(s, header, link.peer)) {
        .current => |operation| try sync_file.on_want(s, link, operation, header),
        // A member requests only what a sync has offered, so the attempt of this request is over.
        .early, .stale => {},
    }
}

fn on_state_data(s: *Session, lane: *Lane, header: *const Header) bool {
    if (header.payload_bytes == 0) return reject(s, lane, "an answer without a payload");
    const place = place_of(s, lane, header) catch |err|
        return reject(s, lane, @errorName(err));
    const into, const owner = place orelse return throw_away(lane, header);
    lane.expect(into, owner, collective.no_slot);
    return true;
}

fn place_of(s: *Session, lane: *Lane, header: *const Header) sync_file.Error!?state_file.Place {
    if (header.epoch == 0) return sync_file.place_prefetched(s, lane, header);
    const operation = switch (route(s, header, lane.link.?.peer)) {
        .current => |operation| operation,
        .early, .stale => return null, // this peer has asked for nothing in the attempt
    };
    return sync_file.place(s, lane, operation, header);
}

/// Whether data is of a call that differs from this peer's call. The sender sees the difference in
/// this peer's open, and tells the coordinator.
fn is_foreign(operation: *const Operation, header: *const Header) bool {
    return header.fingerprint != operation.fingerprint;
}

fn throw_away(lane: *Lane, header: *const Header) bool {
    lane.discard = header.payload_bytes;
    return true;
}

/// A payload has come in whole. False: the lane is gone.
fn on_payload(s: *Session, lane: *Lane) bool {
    const header = &lane.incoming;
    if (header.kind == .open) return on_open(s, lane, header);
    if (lane.early.len > 0) return on_early(s, lane, header);
    const owner = lane.into_owner orelse return true;
    lane.into_owner = null;
    const operation = Operation.from_owner(owner) orelse {
        sync_file.prefetched_arrived(s, lane, header);
        return true;
    };
    if (operation.sync() != null) {
        sync_file.arrived(s, lane, operation, header);
        return true;
    }
    const x = operation.work.movement;
    const settled = x.board.ledger.settled_count;
    if (x.arrived(header, lane.into_slot)) wake_all(s, operation);
    if (x.board.ledger.settled_count == settled) return true;
    s.fault_point(operation, .operation_settled);
    check_complete(s, operation);
    return true;
}

/// Data that was sent ahead of time has come in whole. Its operation may have begun or ended while
/// the data came in.
fn on_early(s: *Session, lane: *Lane, header: *const Header) bool {
    const link = lane.link.?;
    const payload = lane.early;
    lane.early = &.{};
    const operation = switch (route(s, header, link.peer)) {
        .current => |operation| operation,
        .stale => {
            link.early.forget_data(payload);
            return true;
        },
        .early => {
            link.early.keep_data(header, payload) catch |err|
                return reject(s, lane, @errorName(err));
            return true;
        },
    };
    link.early.keep_data(header, payload) catch |err| return reject(s, lane, @errorName(err));
    const neighbour = operation.neighbour(link) orelse {
        link.early.forget(key_of(operation));
        return true;
    };
    replay(s, operation, neighbour);
    wake_all(s, operation);
    check_complete(s, operation);
    return true;
}

fn on_open(s: *Session, lane: *Lane, header: *const Header) bool {
    const descriptor = control.decode_descriptor(&lane.descriptor) catch |err|
        return reject(s, lane, @errorName(err));
    switch (route(s, header, lane.link.?.peer)) {
        .stale => {},
        .current => |operation| if (operation.sync() != null) {
            sync_file.on_open(s, lane.link.?, operation);
        } else if (operation.neighbour(lane.link.?)) |neighbour| {
            opened(s, operation, neighbour, header.index, &descriptor);
        },
        .early => lane.link.?.early.remember(.of(header), header.attempt, .{
            .credit = header.index,
            .descriptor = descriptor,
        }) catch |err| return reject(s, lane, @errorName(err)),
    }
    return true;
}

/// An open has come, which says that the neighbour has called the operation and can receive.
fn opened(
    s: *Session,
    operation: *Operation,
    neighbour: *const Operation.Neighbour,
    credit: u64,
    descriptor: *const control.Descriptor,
) void {
    const mine = operation.descriptor_for(neighbour.position);
    if (!mine.fits(descriptor)) {
        if (operation.mismatch_told) return;
        operation.mismatch_told = true;
        const other = neighbour.link.peer;
        return operation.group.member.mismatch(&operation.op, mine, other, descriptor.*);
    }
    const x = operation.work.movement;
    if (!x.sends_to(neighbour.position)) return;
    x.opened(neighbour.position, credit);
    s.wake(neighbour.link);
    // An operation between two members may have waited only for the other member's call.
    if (operation.op.descriptor.is_between_two()) wake_later(s, operation);
}

// ---- outgoing
//
// From moves of an operation to bytes on a lane: which frame an idle lane sends next, and what
// follows when the frame has left.
//
// Opens, credits and small operations go before large operations, so that a small operation beside
// a large operation takes hardly longer than alone. Large operations send one frame for every
// frame's worth of bytes that small operations have sent first. On a far link a small frame would
// still wait behind bytes that the system has taken. So a far link of several lanes keeps one lane
// for small operations alone, for `keep_ns`.

/// Puts the next frame on an idle lane, if there is one.
pub fn next_outgoing(s: *Session, lane: *Lane) void {
    if (lane.state != .open) return;
    const link = lane.link.?;
    // A new number of lanes is told at once, because the other side may be the side that dials.
    if (link.flow.is_news()) return put_ping(s, lane, link);
    const says = lane.ping_due or lane.ack_due;
    if (!link.serves(lane)) return if (says) put_ping(s, lane, link);
    lane.is_kept = link.keeps(lane, s.now);
    if (sync_file.gives_way(s, lane, link)) return;
    if (dial.next_resend(lane, link)) return;
    if (next_of_all(s, lane, link)) return;
    if (!lane.is_kept and sync_file.next_prefetch(s, lane, link)) return;
    if (says) return put_ping(s, lane, link);
    measure.next_probe(s, lane, link);
}

/// Puts a ping on a lane: a sign of life, an acknowledgement, the number of lanes that this side
/// wants, the round trip as this side knows it, and the time at which the ping leaves.
fn put_ping(s: *const Session, lane: *Lane, link: *Link) void {
    const index = link.flow.spread.lanes;
    link.flow.told = index;
    lane.put_head(&wire.frame.encode(std.mem.zeroInit(Header, .{
        .kind = .ping,
        .index = index,
        .tag = @min(link.flow.base_ns, limits.link_rtt_ns_told_max),
        .sequence = if (leaves_at_once(s, lane, link)) WayBack.stamp(s.now) else WayBack.none,
        .acked = lane.answer(),
    })));
    lane.out_busy = true;
}

/// Whether the system would send a ping at once, with no unsent bytes before it. False on near
/// links, whose waits are not measured.
fn leaves_at_once(s: *const Session, lane: *Lane, link: *const Link) bool {
    if (!link.flow.is_far()) return false;
    const sample = s.host.vtable.lane_sample(s.host.ctx, lane) orelse return false;
    return sample.unsent == 0;
}

/// Puts a frame of some operation on an idle lane. First come opens, credits and requests of all
/// operations and data of small operations, in turn; then data of large operations, in turn. If
/// there is a single operation, it is asked once for all its frames.
fn next_of_all(s: *Session, lane: *Lane, link: *Link) bool {
    const count = s.operations.items.len;
    const is_alone = count == 1 and !lane.is_kept;
    var room: ?bool = null;
    if (!lane.is_kept and link.overtaken >= s.settings.chunk_bytes) {
        link.overtaken = 0;
        if (next_of_large(s, lane, link, &room)) return true;
    }
    var waits = false;
    for (0..count) |step| {
        const index = (link.turn + step) % count;
        const operation = s.operations.items[index];
        const part: Part = if (is_alone or operation.is_small) .all else .said;
        waits = waits or part == .said;
        if (!next_of(s, lane, link, operation, part, &room)) continue;
        link.turn = index + 1;
        if (operation.is_small and lane.out_payload.len > 0) overtook(s, lane, link);
        return true;
    }
    return waits and !lane.is_kept and next_of_large(s, lane, link, &room);
}

fn next_of_large(s: *Session, lane: *Lane, link: *Link, room: *?bool) bool {
    const count = s.operations.items.len;
    for (0..count) |step| {
        const index = (link.turn_of_large + step) % count;
        const operation = s.operations.items[index];
        if (operation.is_small or !next_of(s, lane, link, operation, .all, room)) continue;
        link.turn_of_large = index + 1;
        link.overtaken = 0;
        return true;
    }
    return false;
}

/// Notes that a small operation has sent data. If a large operation uses the link, too, a lane is
/// kept free for the next small operations.
fn overtook(s: *Session, lane: *const Lane, link: *Link) void {
    link.overtaken += lane.out_payload.len;
    if (!link.flow.is_far()) return;
    for (s.operations.items) |operation| {
        if (operation.is_small or operation.neighbour(link) == null) continue;
        link.keeps_until = s.now +| keep_ns;
        return;
    }
}

/// A lane is kept free for this time, because a program calls small operations beside large
/// operations in each of its steps.
const keep_ns = 60 * std.time.ns_per_s;

/// The frames that an operation may send: `said`: opens, credits and requests; `all`: data, too.
const Part = enum { said, all };

/// Puts the operation's next frame on an idle lane. `room`: the answer of has_room_ahead; null: not
/// yet asked.
fn next_of(
    s: *Session,
    lane: *Lane,
    link: *Link,
    operation: *Operation,
    part: Part,
    room: *?bool,
) bool {
    if (operation.sync() != null) {
        if (sync_file.says_next(lane, link, operation)) return true;
        return part == .all and sync_file.gives_next(s, lane, link, operation);
    }
    const x = operation.work.movement;
    if (x.board.members < 2) return false;
    const neighbour = operation.neighbour(link) orelse return false;
    const position = neighbour.position;
    if (x.receives_from(position)) {
        if (neighbour.open_pending) {
            neighbour.open_pending = false;
            const descriptor = control.encode_descriptor(operation.descriptor_for(position));
            operation.put(lane, .{ .kind = .open, .index = x.initial_credit() }, &descriptor);
            s.fault_point(operation, .operation_opened);
            return true;
        }
        if (x.next_grant(position)) |grant| {
            operation.put(lane, .{
                .kind = .credit,
                .index = grant.allowed,
                .class = grant.class,
            }, "");
            return true;
        }
    }
    if (part == .said or !x.sends_to(position)) return false;
    if (!x.board.targets[position].open and x.board.targets[position].eager_bytes == 0) {
        if (room.* == null) room.* = has_room_ahead(s, link);
        if (!room.*.?) return false;
    }
    if (!lane.unacked.has_room()) return false;
    return sync_file.next_cut(s, lane, operation, neighbour);
}

/// Whether one more operation may send data to this peer before the peer has called it.
fn has_room_ahead(s: *const Session, link: *const Link) bool {
    var ahead: usize = 0;
    for (s.operations.items) |operation| {
        const neighbour = operation.neighbour(link) orelse continue;
        const target = &operation.work.movement.board.targets[neighbour.position];
        if (!target.open and target.eager_bytes > 0) ahead += 1;
    }
    return ahead < limits.eager_operations_max;
}

/// A frame has left the lane whole.
pub fn outgoing_sent(s: *Session, lane: *Lane) void {
    lane.out_busy = false;
    lane.ping_due = false;
    lane.unacked.is_leaving = false;
    if (lane.state == .refusing) return dial.fail(s, lane, "it was refused");
    const owner = lane.out_owner orelse return;
    lane.out_owner = null;
    const operation = Operation.from_owner(owner) orelse return;
    if (operation.sync() != null) return sync_file.sent(s, lane, operation);
    const frame = lane.unacked.newest();
    if (frame.is_counted) return;
    frame.is_counted = true;
    operation.work.movement.sent(frame.fragment);
    if (frame.move.kind == .partial) s.fault_point(operation, .operation_partial);
    // The operation may be complete now that this frame has left.
    if (!operation.op.complete) check_complete(s, operation);
}
