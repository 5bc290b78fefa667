//! frames: from bytes on a lane to moves of an operation. A frame says where it belongs; here it is
//! matched with the group, epoch, attempt and operation that this peer knows, and with nothing
//! else. Frames of a passed attempt are thrown away, opens of a later attempt are kept (early.zig).
//! The way back, from moves to bytes: outgoing.zig.

const base = @import("base");
const wire = @import("wire");
const collective = @import("collective");
const Session = @import("session.zig").Session;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Early = @import("early.zig").Early;
const Operation = @import("operation.zig").Operation;
const greeting = @import("greeting.zig");
const links = @import("links.zig");
const operations = @import("operations.zig");
const prefetch = @import("prefetch.zig");
const probing = @import("probing.zig");
const resend = @import("resend.zig");
const syncing = @import("syncing.zig");
const transfers = @import("transfer.zig");
const Group = @import("group.zig").Group;
const Header = wire.frame.Header;
const control = wire.control;

// ---- operations

/// Moves data of an operation in the current attempt of its epoch.
pub fn start(s: *Session, operation: *Operation, kept: []const control.KeptRange) void {
    const group = operation.group;
    const epoch = group.member.epoch_of(operation.op.epoch).?;
    // Its inputs are the caller's again, so nothing can be done a second time.
    if (operation.op.state == .in_doubt and operation.op.descriptor.kind.is_private())
        return group.member.ask_to_abort(&operation.op);
    // Completion is looked at later: this runs inside the member.
    defer operations.later(s, operation);
    probing.end(s); // it would be in the way, and be measured with the operation
    operation.history.note(epoch.attempt, &epoch.alive);
    operation.withdraws = null;
    if (operation.sync() != null) return syncing.start(s, operation);
    if (operation.op.descriptor.kind != .send_recv)
        return start_along(s, operation, kept, &epoch.paths);
    // A message goes straight from one to the other.
    start_along(s, operation, kept, &.between(operation.work.movement.board.ledger.roles.pair));
}

fn start_along(
    s: *Session,
    operation: *Operation,
    kept: []const control.KeptRange,
    paths: *const base.Paths,
) void {
    const epoch = operation.group.member.epoch_of(operation.op.epoch).?;
    var begin: collective.Begin = .{
        .attempt = epoch.attempt,
        .schedule = schedule_of(operation, paths),
        .order = &paths.order,
        .hubs = &paths.hubs,
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
    // The coordinator may have been between two attempts when it was told.
    operation.mismatch_told = false;
    const is_message = operation.op.descriptor.kind == .send_recv;
    for (order.slice(), 0..) |rank, index| {
        const position: u16 = @intCast(index);
        const receives = x.receives_from(position);
        if (!receives and !x.sends_to(position)) continue;
        const link = links.obtain(s, operation.ids[rank]) catch
            return operations.give_up(s, operation);
        const count = operation.neighbours.len;
        operation.neighbours_room[count] = .{
            .link = link,
            .position = position,
            .open_pending = receives,
        };
        operation.neighbours = operation.neighbours_room[0 .. count + 1];
        if (is_message) links.borrow(s, link);
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

/// Which way the data takes in this attempt: as the call says, if there is such a way.
fn schedule_of(operation: *const Operation, paths: *const base.Paths) collective.Schedule {
    if (operation.op.descriptor.uneven) return .direct;
    if (!paths.has_ring) return .direct;
    if (paths.hubs.is_empty()) return .ring;
    return operation.schedule;
}

/// Data that a neighbour sent before this peer was ready for it.
fn replay(s: *Session, operation: *Operation, neighbour: *const Operation.Neighbour) void {
    const link = neighbour.link;
    const x = operation.work.movement;
    if (!x.receives_from(neighbour.position)) return; // it had no reason to send any
    while (link.early.recall_data(key_of(operation), x.board.attempt)) |item| {
        defer link.early.forget_data(item.payload);
        if (is_foreign(operation, &item.header)) continue;
        const place = x.place(&item.header, neighbour.position) catch |err| place: {
            // The same has come on another lane meanwhile, or is coming.
            if (err == error.Twice)
                break :place link.take_over(operation.owner(), &item.header) orelse continue;
            s.log(.warning, "data sent ahead does not fit its operation: {t}", .{err});
            continue;
        };
        @memcpy(place.bytes, item.payload);
        _ = x.arrived(&item.header, place.slot); // whoever replays wakes all
    }
}

fn key_of(operation: *const Operation) Early.Key {
    return .of_operation(operation.group.id.?, operation.op.epoch, operation.op.id);
}

/// From now on no lane reads or writes memory of this operation.
pub fn stop(s: *Session, operation: *Operation) void {
    detach(s, operation);
    for (operation.neighbours) |*neighbour| resend.forget(neighbour.link, operation);
    operation.neighbours = &.{};
    switch (operation.work) {
        .movement => |x| x.halt(),
        .sync => syncing.stop(operation),
    }
}

/// The caller gets its memory back as it was and no lane reads or writes it any more; the operation
/// goes on for the others. Whether that is done (Movement.set_aside).
pub fn set_aside(s: *Session, operation: *Operation) bool {
    detach(s, operation);
    if (operation.sync() == null) {
        const is_aside = operation.work.movement.set_aside();
        for (operation.neighbours) |*neighbour|
            if (resend.is_cut_short(neighbour.link, operation)) links.cut_short(s, neighbour.link);
        return is_aside;
    }
    syncing.over(s, operation, false);
    return true;
}

fn detach(s: *Session, operation: *Operation) void {
    if (operation.sync() != null) {
        operations.detach_all(s, operation.owner());
        for (s.links.items) |link| resend.forget(link, operation);
        return;
    }
    for (operation.neighbours) |*neighbour|
        operations.detach_link(s, neighbour.link, operation.owner());
}

/// A runner has done a job of it.
pub fn job_done(s: *Session, operation: *Operation, job: *base.Job) void {
    const x = operation.work.movement;
    const settled = x.board.ledger.settled_count;
    if (x.done(job)) operations.wake_all(s, operation);
    // One that is over in doubt goes on for the others.
    if (operation.op.state == .finished) return;
    if (x.board.ledger.settled_count != settled) s.fault_point(operation, .operation_settled);
    check_complete(s, operation);
}

/// Votes if everything is settled.
pub fn check_complete(s: *Session, operation: *Operation) void {
    if (operation.withdraws) |reason|
        return operation.group.member.give_up(&operation.op, reason);
    if (operation.sync() != null) return syncing.step(s, operation);
    const x = operation.work.movement;
    if (x.board.members == 0 or !x.complete()) return;
    const voted = operation.op.voted_attempt;
    operation.op.age_ns = s.age_ns(operation);
    operation.group.member.completed(&operation.op, x.board.ledger.digest());
    if (operation.op.voted_attempt != voted) s.fault_point(operation, .operation_voted);
}

// ---- incoming

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
            .payload => on_payload(s, lane) and resend.taken(s, lane),
            .discarded => resend.taken(s, lane),
        };
        if (!alive or lane.broken) return;
    }
}

/// False when the lane is gone.
fn on_head(s: *Session, lane: *Lane) bool {
    lane.head_done();
    return switch (lane.state) {
        .dialing => reject(s, lane, "it speaks before it is connected"),
        .refusing => reject(s, lane, "it goes on after it was refused"),
        .waiting => reject(s, lane, "it goes on before it is answered"),
        .stranger => greeting.greet(s, lane),
        .greeting => greeting.answered(s, lane),
        .open => on_frame(s, lane),
    };
}

fn reject(s: *Session, lane: *Lane, why: []const u8) bool {
    links.fail(s, lane, why);
    return false;
}

const Route = union(enum) {
    /// An operation of the current attempt.
    current: *Operation,
    /// For an epoch, attempt or operation that this peer has not reached yet.
    early,
    /// For one that is over.
    stale,
};

fn route(s: *Session, header: *const Header, from: base.PeerId) Route {
    const group = for (s.groups.items) |group| {
        if (group.state == .joined and group.id == header.group) break group;
    } else return .stale;
    const epoch = group.member.epoch_of(header.epoch) orelse
        return if (is_of_next(group, header.epoch, from)) .early else .stale;
    // Others have nothing to say in it: only members can make this peer keep anything.
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

/// A frame that was in the air when its operation was aborted is not wanted.
fn early_of(epoch: anytype, header: *const Header) Route {
    const id: control.OpId = .{ .tag = header.tag, .sequence = header.sequence };
    return if (epoch.is_aborted(id)) .stale else .early;
}

/// Whether the peer may be in the next epoch, which it was told of before this one.
fn is_of_next(group: *const Group, number: u64, from: base.PeerId) bool {
    if (number <= group.member.newest()) return false;
    for (group.round_members.items) |id| if (id.eql(from)) return true;
    return false;
}

fn on_frame(s: *Session, lane: *Lane) bool {
    lane.incoming = wire.frame.decode(lane.head[0..wire.frame.header_bytes]) catch |err|
        return reject(s, lane, @errorName(err));
    const header = &lane.incoming;
    // The other end knows that it works, too.
    links.tell(s, lane.link.?, .up);
    resend.acknowledged(s, lane) catch |err| return reject(s, lane, @errorName(err));
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
            return resend.taken(s, lane);
        },
        .leaf, .hashes => return on_state_data(s, lane, header),
        .lack => {
            if (header.payload_bytes != 0) return reject(s, lane, "an answer of a wrong length");
            prefetch.on_lack(s, lane.link.?, header);
            return resend.taken(s, lane);
        },
        .ping => {
            if (header.payload_bytes != 0) return reject(s, lane, "a ping of a wrong length");
            links.on_ping(s, lane.link.?, header) catch |err|
                return reject(s, lane, @errorName(err));
        },
        .probe => probing.on_frame(s, lane, header) catch |err|
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

fn on_want(s: *Session, link: *Link, header: *const Header) syncing.Error!void {
    if (header.epoch == 0) return prefetch.on_want(s, link, header);
    switch (route(s, header, link.peer)) {
        .current => |operation| try syncing.on_want(s, link, operation, header),
        // It offered before anybody could ask, so the attempt of this request is over.
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

fn place_of(s: *Session, lane: *Lane, header: *const Header) syncing.Error!?transfers.Place {
    if (header.epoch == 0) return prefetch.place(s, lane, header);
    const operation = switch (route(s, header, lane.link.?.peer)) {
        .current => |operation| operation,
        .early, .stale => return null, // nobody has asked for it
    };
    return syncing.place(s, lane, operation, header);
}

/// Data of a call that differs: this peer's open tells its sender, who tells the coordinator.
fn is_foreign(operation: *const Operation, header: *const Header) bool {
    return header.fingerprint != operation.fingerprint;
}

fn throw_away(lane: *Lane, header: *const Header) bool {
    lane.discard = header.payload_bytes;
    return true;
}

/// False when the lane is gone.
fn on_payload(s: *Session, lane: *Lane) bool {
    const header = &lane.incoming;
    if (header.kind == .open) return on_open(s, lane, header);
    if (lane.early.len > 0) return on_early(s, lane, header);
    const owner = lane.into_owner orelse return true;
    lane.into_owner = null;
    const operation = Operation.from_owner(owner) orelse {
        prefetch.arrived(s, lane, header);
        return true;
    };
    if (operation.sync() != null) {
        syncing.arrived(s, lane, operation, header);
        return true;
    }
    const x = operation.work.movement;
    const settled = x.board.ledger.settled_count;
    if (x.arrived(header, lane.into_slot)) operations.wake_all(s, operation);
    if (x.board.ledger.settled_count == settled) return true;
    s.fault_point(operation, .operation_settled);
    check_complete(s, operation);
    return true;
}

/// Data that came ahead of time is whole. It may have become due, or stale, while it came in.
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
    operations.wake_all(s, operation);
    check_complete(s, operation);
    return true;
}

fn on_open(s: *Session, lane: *Lane, header: *const Header) bool {
    const descriptor = control.decode_descriptor(&lane.descriptor) catch |err|
        return reject(s, lane, @errorName(err));
    switch (route(s, header, lane.link.?.peer)) {
        .stale => {},
        .current => |operation| if (operation.sync() != null) {
            syncing.on_open(s, lane.link.?, operation);
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

/// A neighbour has called the operation and can receive.
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
    // The other's call may be all that was missing.
    if (operation.op.descriptor.is_between_two()) operations.later(s, operation);
}
