//! rounds: a group's next epoch while it is prepared: which lanes the coordinator asks for, and
//! this peer's answers about them. Free functions on Session. The protocol: protocol/group.zig and
//! member.zig; how lanes are opened: links.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Session = @import("session.zig").Session;
const groups = @import("groups.zig");
const Group = @import("group.zig").Group;
const links = @import("links.zig");
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const control = wire.control;

/// How long lanes may take before the coordinator hears which are missing, and between two times
/// that it hears of it.
const report_ns = 250 * std.time.ns_per_ms;

pub fn on_prepare(s: *Session, body: *const control.Prepare) Allocator.Error!void {
    const group = s.group_of(body.group) orelse return;
    const member = &group.member;
    const old = group.alive_mask();
    try group.round_members.ensureTotalCapacity(s.gpa, old.count() + body.members.count);
    try group.round_peers.ensureTotalCapacity(s.gpa, body.links.count);
    try group.missing_told.ensureTotalCapacity(s.gpa, body.links.count);
    group.round_members.clearRetainingCapacity();
    group.round_peers.clearRetainingCapacity();
    group.missing_told.clearRetainingCapacity();
    for (group.members(), 0..) |id, rank| {
        if (old.has(rank)) group.round_members.appendAssumeCapacity(id);
    }
    var new = body.members.iterator();
    while (new.next()) |id| group.round_members.appendAssumeCapacity(id);
    var wanted = body.links.iterator();
    while (wanted.next()) |entry| {
        if (entry.id.eql(s.self)) continue;
        group.round_peers.appendAssumeCapacity(entry.id);
        try s.remember_address(entry.id, entry.address.data);
    }
    groups.prune_addresses(s);
    group.report_at = s.now +| report_ns;
    group.attendance = null; // enough have come
    group.forget_away(); // the coordinator says it again
    member.on_prepare(body.round, body.members.count);
    links.review(s);
    links.say_broken(s, group);
    check_ready(s);
}

/// The epoch that a round was for has begun, or never will.
pub fn over(s: *Session, group: *Group) void {
    group.round_peers.clearRetainingCapacity();
    group.round_members.clearRetainingCapacity();
    group.forget_away();
    groups.prune_addresses(s);
    links.review(s);
}

fn is_open(s: *const Session, id: PeerId) bool {
    const link = links.find(s, id) orelse return false;
    // One that is down may stay so: the ring goes around it.
    return link.open_count >= s.settings.lanes or link.told == .down;
}

/// Tells groups whose round has all its lanes.
pub fn check_ready(s: *Session) void {
    for (s.groups.items) |group| {
        if (group.state != .joined or group.member.round == 0) continue;
        const ready = for (group.round_peers.items) |id| {
            if (!is_open(s, id)) break false;
        } else true;
        if (!ready) continue;
        group.member.links_ready();
        if (group.ready_told) continue;
        group.ready_told = true;
        s.host.vtable.group_event(s.host.ctx, group, .ready);
    }
}

/// Says which lanes are missing, if it is time, and if others are than at the last time.
pub fn tick(s: *Session) void {
    for (s.groups.items) |group| {
        if (s.now < report_due(group)) continue;
        group.report_at = s.now +| report_ns;
        if (tell_missing(group)) group.member.links_missing(group.missing_told.items);
    }
}

/// False: the coordinator knows.
fn tell_missing(group: *Group) bool {
    const s = group.session;
    var count: usize = 0;
    var differs = false;
    for (group.round_peers.items) |id| {
        if (is_open(s, id)) continue;
        const told = &group.missing_told;
        const missing: control.Missing = dialed(s, id);
        if (count == told.items.len)
            told.appendAssumeCapacity(.{ .peer = .none, .dialed = .pending });
        const is_news = !std.meta.eql(told.items[count], missing);
        if (!is_news and missing.dialed != .pending) note_unreached(group, id);
        differs = differs or is_news;
        told.items[count] = missing;
        count += 1;
    }
    differs = differs or count != group.missing_told.items.len;
    group.missing_told.shrinkRetainingCapacity(count);
    return differs and count > 0;
}

/// Why there are no lanes to this peer, once the other side, too, has had the time to make them.
fn dialed(s: *Session, id: PeerId) control.Missing {
    const unknown: control.Missing = .{ .peer = id, .dialed = .pending };
    const link = links.find(s, id) orelse return unknown;
    const patience_ns = s.settings.silence_ns / 10 * 3;
    if (s.now -| link.down_since < patience_ns or link.dialed == .pending) return unknown;
    return .{ .peer = id, .dialed = link.dialed, .source = link.dialed_from };
}

/// The coordinator knows of it, and has had the time to answer that the other is away.
fn note_unreached(group: *const Group, id: PeerId) void {
    if (group.awaited.is_away(id)) return;
    links.note_unreached(group.session, links.find(group.session, id).?);
}

fn report_due(group: *const Group) base.Instant {
    const waits = group.state == .joined and group.member.connected and group.member.round != 0;
    return if (waits) group.report_at else base.never;
}

pub fn next_deadline(s: *const Session) base.Instant {
    var next = base.never;
    for (s.groups.items) |group| next = @min(next, report_due(group));
    return next;
}
