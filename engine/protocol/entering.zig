//! entering: members that have not come to the safe point at which their epoch begins. Each passes
//! it when its user does, so one that has entered may be alone there for a while. All members hear
//! who is missing: at ticks, and at once when those from before have entered, because newcomers may
//! wait for that (member.zig). Where the epoch only closes the gap of a loss, they hear how many
//! newcomers wait outside, too: a program that passes safe points only for newcomers must pass that
//! one. Nothing is decided by it. For whom newcomers outside wait: awaited.zig.

const base = @import("base");
const wire = @import("wire");
const post = @import("post.zig");
const Epoch = @import("epoch.zig").Epoch;
const Run = @import("run.zig").Run;

/// At a tick; so many newcomers are in no epoch.
pub fn review(run: *Run, epoch: *Epoch, outside: usize) void {
    const missing = epoch.not_entered();
    const closes_a_gap = epoch.began.joined == 0 and !missing.is_empty();
    epoch.waiting = if (closes_a_gap) @min(outside, base.limits.peers_max) else 0;
    tell_all(run, epoch, missing);
}

fn tell_all(run: *Run, epoch: *Epoch, missing: base.Mask) void {
    if (missing.eql(&epoch.missing_told) and epoch.waiting == epoch.waiting_told) return;
    epoch.missing_told = missing;
    epoch.waiting_told = epoch.waiting;
    post.broadcast(run, epoch, message(epoch, missing));
}

/// A member has entered.
pub fn entered(run: *Run, epoch: *Epoch, rank: u16) void {
    const missing = epoch.not_entered();
    const newcomers_begin = epoch.members.len - epoch.began.joined;
    const is_last = rank < newcomers_begin and !missing.meets(&.full(newcomers_begin));
    if (is_last or missing.is_empty()) tell_all(run, epoch, missing);
}

/// A member is back, and may not have heard it.
pub fn tell(run: *Run, epoch: *Epoch, rank: u16) void {
    const peer = epoch.members[rank].peer orelse return;
    post.send(run, peer, epoch.group, message(epoch, epoch.not_entered()));
}

fn message(epoch: *const Epoch, missing: base.Mask) wire.control.Message {
    return .{ .entered = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .missing = missing,
        .waiting = epoch.waiting,
    } };
}
