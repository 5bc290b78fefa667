//! waits: for whom this peer waits, in an operation or to enter, by the coordinator's word: a line
//! in the log while it lasts. A call that fails says it too (abi/sentence.zig); protocol/stalls.zig
//! and protocol/awaited.zig find the missing peers.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const asking = @import("asking.zig");
const Awaited = @import("awaited.zig").Awaited;
const Link = @import("link.zig").Link;
const Names = @import("names.zig").Names;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const labels = @import("labels.zig");
const control = wire.control;
const limits = base.limits;

/// A call takes long: the coordinator is told. One whose deadline comes before its caller would be
/// told for whom it waits says so sooner, and how near the deadline is.
pub fn say_called(s: *Session, operation: *Operation) void {
    const told_ns = limits.wait_told_ns(s.settings.stall_warning_ns);
    const rest_ns = operation.deadline -| operation.started_at;
    const long_ns = @min(told_ns, rest_ns) / limits.called_part;
    if (s.now -| operation.started_at < long_ns) return;
    const is_urgent = rest_ns < 2 * told_ns;
    const left_ns = if (is_urgent) operation.deadline -| s.now else null;
    operation.group.member.takes_long(&operation.op, left_ns);
}

/// Calls with far deadlines can wait for the next tick.
pub fn says_called_at(s: *const Session, operation: *const Operation) base.Instant {
    const told_ns = limits.wait_told_ns(s.settings.stall_warning_ns);
    const rest_ns = operation.deadline -| operation.started_at;
    if (rest_ns >= 2 * told_ns) return base.never;
    if (!operation.group.member.may_say_called(&operation.op, true)) return base.never;
    return operation.started_at +| rest_ns / limits.called_part;
}

/// At a tick: finds out whether bytes of an operation move, and tells the coordinator with which
/// members nothing does, once that has lasted for the stall warning. Their lanes may be well, as
/// far as pings tell: the other process takes no frames, or somebody else has taken the lane over;
/// or they break and are made again, each time in vain. `late`: this engine was frozen, and has
/// seen nothing move.
pub fn review(s: *Session, operation: *Operation, late: bool) void {
    if (operation.op.state != .running or !operation.is_under_way()) return;
    const exchanged = switch (operation.work) {
        .movement => |x| x.bytes_sent + x.bytes_received,
        .sync => |it| it.bytes_sent + it.bytes_received + it.hash_bytes_sent +
            it.hash_bytes_received,
    };
    const has_moved = exchanged != operation.exchanged or operation.exchanged_at == 0;
    operation.exchanged = exchanged;
    // While others have not called, nothing need move.
    if (late or has_moved or !operation.op.missing.is_empty()) operation.exchanged_at = s.now;
    const warning_ns = s.settings.stall_warning_ns;
    const stands = s.now -| operation.exchanged_at >= warning_ns;
    const stuck: base.Mask = if (stands) stuck_of(s, operation) else .empty;
    operation.group.member.say_stuck(&operation.op, &stuck);
}

/// The ranks at the other ends of links that have moved nothing, and on which a frame is
/// unacknowledged, has come in part, or may not be sent yet; and the sources of a sync that owe
/// what they were asked for, and whose links have moved nothing.
fn stuck_of(s: *const Session, operation: *const Operation) base.Mask {
    var stuck: base.Mask = .empty;
    switch (operation.work) {
        .movement => |x| for (operation.neighbours) |*neighbour| {
            const place = neighbour.position;
            const link = neighbour.link;
            const is_open = !x.sends_to(place) or x.board.targets[place].open;
            if (moves(s, link) or (!link.is_loaded() and is_open)) continue;
            for (operation.ids, 0..) |id, rank| if (id.eql(link.peer)) stuck.set(rank);
        },
        .sync => |it| for (0..it.transfer.peers.len) |rank| {
            const link = asking.link_to(s, &it.transfer, rank) orelse continue;
            if (it.transfer.owes(@intCast(rank)) and !moves(s, link)) stuck.set(rank);
        },
    }
    return stuck;
}

fn moves(s: *const Session, link: *const Link) bool {
    return s.now -| link.moved_at < s.settings.stall_warning_ns;
}

/// Many calls may wait for one member: one line in such a time.
const said_ns = 5 * std.time.ns_per_s;

pub fn on_stalled(s: *Session, body: *const control.Stalled) protocol.Member.EpochError!void {
    const group = s.group_of(body.group) orelse return;
    try group.member.on_stalled(body);
    const operation = for (s.operations.items) |item| {
        if (item.group != group or item.is_over() or item.op.epoch != body.epoch) continue;
        if (item.op.id.eql(body.op)) break item;
    } else return;
    if (operation.op.missing.is_empty()) return say_stuck(s, operation);
    // A deadline is near, of this call or of another member's.
    const told_ns = limits.wait_told_ns(s.settings.stall_warning_ns);
    if (s.now -| operation.started_at < told_ns) return;
    if (group.wait_said_at != 0 and s.now -| group.wait_said_at < said_ns) return;
    group.wait_said_at = s.now;
    const names: Names = labels.names_of_missing(s, operation);
    const outside = group.member.outside_of(&operation.op);
    s.log(.warning, "{f} has been waiting {d} s for {f}{f}{f}; group {s}", .{
        operation.named(&names),
        (s.now -| operation.started_at) / std.time.ns_per_s,
        Ranks{ .names = &names, .operation = operation, .ranks = &operation.op.missing },
        Outside{ .names = &names, .operation = operation, .ranks = &outside },
        Elsewhere{
            .names = &names,
            .operation = operation,
            .missing = &operation.op.missing,
            .told = &operation.op.elsewhere,
        },
        group.name,
    });
}

fn say_stuck(s: *Session, operation: *const Operation) void {
    const group = operation.group;
    if (operation.op.elsewhere.count == 0) return;
    if (group.wait_said_at != 0 and s.now -| group.wait_said_at < said_ns) return;
    group.wait_said_at = s.now;
    const names: Names = labels.names_of_missing(s, operation);
    s.log(.warning, "{f} stands, though all have called it: {f}; group {s}", .{
        operation.named(&names),
        Stuck{ .names = &names, .operation = operation, .told = &operation.op.elsewhere },
        group.name,
    });
}

/// "nothing of it moves between rank 1 (node7:4242, 7f3a01c2) and rank 2 (this peer)"
pub const Stuck = struct {
    names: *const Names,
    operation: *const Operation,
    told: *const protocol.Elsewhere,

    pub fn format(it: Stuck, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.writeAll("nothing of it moves between ");
        for (it.told.slice(), 0..) |*link, index| {
            if (!it.told.is_new(index)) continue;
            if (index > 0) try writer.writeAll(", nor between ");
            try writer.print("{f} and {f}", .{
                it.names.who(it.operation.ids[link.rank]),
                it.names.who(it.operation.ids[link.waits_for]),
            });
        }
    }
};

/// "rank 1 (node7:4242, 7f3a01c2) and rank 2 (this peer)"
pub const Ranks = struct {
    names: *const Names,
    operation: *const Operation,
    ranks: *const base.Mask,

    pub fn format(it: Ranks, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const most = Names.missing_max;
        const count = it.ranks.count();
        for (0..@min(count, most)) |index| {
            if (index > 0) try writer.writeAll(" and ");
            try writer.print("{f}", .{it.names.who(it.operation.ids[it.ranks.at(index)])});
        }
        if (count > most) try writer.print(" and {d} more", .{count - most});
    }
};

/// "; rank 1 (node7:4242, 7f3a01c2) has not entered the epoch, as a member from before does when …"
pub const Outside = struct {
    names: *const Names,
    operation: *const Operation,
    ranks: *const base.Mask,

    pub fn format(it: Outside, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const count = it.ranks.count();
        if (count == 0) return;
        const ranks: Ranks = .{ .names = it.names, .operation = it.operation, .ranks = it.ranks };
        const tail = if (count == 1)
            "has not entered the epoch, as a member from before does when its program calls admit"
        else
            "have not entered the epoch, as members from before do when their programs call admit";
        try writer.print("; {f} {s}", .{ ranks, tail });
    }
};

pub fn on_awaited(s: *Session, body: *const control.Awaited) error{Unexpected}!void {
    const group = s.group_of(body.group) orelse return;
    var awaited: Awaited = .{ .why = body.why, .count = body.count, .at = s.now };
    var peers = body.peers.iterator();
    while (peers.next()) |entry| {
        const label = base.Label.read(entry.label.data) orelse return error.Unexpected;
        awaited.named[awaited.named_count] = .{
            .id = entry.id,
            .label = label,
            .rank = if (entry.rank < limits.peers_max) entry.rank else null,
        };
        awaited.named_count += 1;
    }
    if (awaited.named_count == 0 or awaited.named_count > body.count) return error.Unexpected;
    const is_news = !awaited.eql(&group.awaited);
    group.awaited = awaited;
    if (is_news) s.log(.warning, "{f}; group {s}", .{ &awaited, group.name });
}

/// "; rank 1 (node7:4242, 7f3a01c2) waits in all_reduce (tag 5, sequence 0 of epoch 1) for rank 0
/// (this peer)"
pub const Elsewhere = struct {
    names: *const Names,
    operation: *const Operation,
    missing: *const base.Mask,
    told: *const protocol.Elsewhere,

    pub fn format(it: Elsewhere, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const ids = it.operation.ids;
        for (it.told.slice()) |*waits| {
            if (!it.missing.has(waits.rank)) continue; // it is lost by now
            try writer.print("; {f} waits in {f} for {f}", .{
                it.names.who(ids[waits.rank]),
                wire.NamedCall{
                    .kind = waits.kind,
                    .op = waits.op,
                    .epoch = it.operation.op.epoch,
                    .state = it.names.state(waits.op.tag),
                },
                it.names.who(ids[waits.waits_for]),
            });
            if (waits.count > 1) try writer.print(" and {d} more", .{waits.count - 1});
        }
    }
};

/// Too few have come for the group to begin.
pub fn on_waiting(s: *Session, body: *const control.Waiting) void {
    const group = s.group_of(body.group) orelse return;
    group.attendance = .{ .here = body.here, .needed = body.needed, .emptied = body.emptied };
    const emptied = if (body.emptied) "; all that were in it before are gone" else "";
    s.log(.info, "{d} of {d} peers are here{s}; group {s}", .{
        body.here,
        body.needed,
        emptied,
        group.name,
    });
}
