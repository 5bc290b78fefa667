//! entering: members that have not come to the safe point at which their epoch begins. Each passes
//! it when its user does, so one that has entered may be alone there for a while. All members hear
//! who is missing: at ticks, and at once when those from before have entered, because newcomers may
//! wait for that (member.zig). Nothing is decided by it. For whom newcomers outside wait:
//! awaited.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Epoch = @import("epoch.zig").Epoch;

/// At a tick.
pub fn review(epoch: *Epoch) void {
    const missing = epoch.not_entered();
    if (missing.eql(&epoch.missing_told)) return;
    epoch.missing_told = missing;
    epoch.broadcast(message(epoch, missing));
}

/// A member has entered.
pub fn entered(epoch: *Epoch, rank: u16) void {
    const missing = epoch.not_entered();
    const newcomers_begin = epoch.members.len - epoch.began.joined;
    const incumbents: base.Mask = .full(newcomers_begin);
    const are_incumbents_in = incumbents.without(&missing).eql(&incumbents);
    const is_last = rank < newcomers_begin and are_incumbents_in;
    if (is_last or missing.is_empty()) review(epoch);
}

/// A member is back, and may not have heard it.
pub fn tell(epoch: *Epoch, rank: u16) void {
    const peer = epoch.members[rank].peer orelse return;
    peer.send(epoch.group, message(epoch, epoch.not_entered()));
}

fn message(epoch: *const Epoch, missing: base.Mask) wire.control.Message {
    return .{ .entered = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .missing = missing,
    } };
}
