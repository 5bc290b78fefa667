//! rounds: a group's next epoch while it is prepared: this peer's answers about the lanes that the
//! coordinator asks for, and a line in the log for those that cannot be made. Free functions on
//! Session. Rounds begin and end in groups.zig. The protocol: protocol/group.zig and member.zig;
//! how lanes are opened: links.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Session = @import("session.zig").Session;
const labels = @import("labels.zig");
const Group = @import("group.zig").Group;
const Link = @import("link.zig").Link;
const Unreached = @import("unreached.zig").Unreached;
const PeerId = base.PeerId;
const control = wire.control;

/// How long lanes may take before the coordinator hears which are missing, and between two times
/// that it hears of it.
pub const report_ns = 250 * std.time.ns_per_ms;

fn is_open(s: *const Session, id: PeerId) bool {
    const link = s.link_to(id) orelse return false;
    // One that is down may stay so: the ring goes around it.
    return link.open_count > 0 or link.told == .down;
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
        if (tell_missing(s, group)) group.member.links_missing(group.missing_told.items);
    }
}

/// False: the coordinator knows.
fn tell_missing(s: *Session, group: *Group) bool {
    var count: usize = 0;
    var differs = false;
    for (group.round_peers.items) |id| {
        if (is_open(s, id)) continue;
        const told = &group.missing_told;
        const missing: control.Missing = dialed(s, id);
        if (count == told.items.len)
            told.appendAssumeCapacity(.{ .peer = .none, .dialed = .pending });
        const is_news = !std.meta.eql(told.items[count], missing);
        // The coordinator knows of it, and has had the time to answer that the other is away.
        if (!is_news and missing.dialed != .pending and !group.awaited.is_away(id))
            note_unreached(s, s.link_to(id).?);
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
    const link = s.link_to(id) orelse return unknown;
    const patience_ns = s.settings.silence_ns / 10 * 3;
    if (s.now -| link.down_since < patience_ns or link.dialed == .pending) return unknown;
    return .{ .peer = id, .dialed = link.dialed, .source = link.dialed_from };
}

/// For the user: this one could not be dialed, and it has not dialed this peer.
pub fn note_unreached(s: *Session, link: *const Link) void {
    const address = s.addresses.get(link.peer.bytes) orelse "";
    const peer = labels.named(s, link.peer);
    say_unreached(s, .of(peer, false, link.dialed, link.dialed_from, address));
}

pub fn say_unreached(s: *Session, entry: Unreached.Entry) void {
    if (!s.unreached.note(s.now, entry)) return;
    s.log(.warning, "{f}; " ++ wire.dialed.remedy, .{&entry});
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
