//! path: which links of a group are broken, as its members report them (Broken), and when the
//! coordinator looks for ways around them (Look). The search itself: plan/planner.zig; what an
//! attempt does with the paths: attempt.zig.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const wire = @import("wire");
const Ranks = @import("peer.zig").Ranks;
const Edges = plan.Edges;
const Allocator = std.mem.Allocator;
const Health = wire.control.LinkHealth;
const Instant = base.Instant;
const PeerId = base.PeerId;

// ---- broken links
//
// Which links of a group are broken, as the members report. A link is broken when the member at
// either end reports it, until that member takes its report back.

pub const Broken = struct {
    claims: std.ArrayList(Claim) = .empty,
    /// A counter that grows with each change of `claims`.
    changes: u64 = 0,

    pub const Claim = struct {
        from: PeerId,
        to: PeerId,
        /// How the link is, as `from` reports it; never `up`.
        health: Health,
    };

    pub fn deinit(broken: *Broken, gpa: Allocator) void {
        broken.claims.deinit(gpa);
    }

    /// Takes a report of `from` about its link to `to`. False: the report changes nothing. If
    /// `from` claims more broken links than an honest member can have, an earlier claim of `from`
    /// is dropped.
    pub fn tell(
        broken: *Broken,
        gpa: Allocator,
        from: PeerId,
        to: PeerId,
        health: Health,
    ) Allocator.Error!bool {
        var earlier: ?*Claim = null;
        var count: usize = 0;
        for (broken.claims.items, 0..) |*claim, index| {
            if (!claim.from.eql(from)) continue;
            earlier = earlier orelse claim;
            count += 1;
            if (!claim.to.eql(to)) continue;
            if (claim.health == health) return false;
            if (health != .up) claim.health = health else _ = broken.claims.swapRemove(index);
            broken.changes += 1;
            return true;
        }
        if (health == .up) return false;
        const claim: Claim = .{ .from = from, .to = to, .health = health };
        if (count >= base.limits.links_broken_max)
            earlier.?.* = claim
        else
            try broken.claims.append(gpa, claim);
        broken.changes += 1;
        return true;
    }

    /// Whether `from` reports that its link to `to` is broken.
    pub fn has(broken: *const Broken, from: PeerId, to: PeerId) bool {
        for (broken.claims.items) |*claim| {
            if (claim.from.eql(from) and claim.to.eql(to)) return true;
        }
        return false;
    }

    /// Drops the claims of a member that comes back; the member repeats the claims that still hold.
    pub fn forget_from(broken: *Broken, id: PeerId) void {
        broken.forget_where(id, false);
    }

    /// Drops all claims about the links of a peer that is gone.
    pub fn forget(broken: *Broken, id: PeerId) void {
        broken.forget_where(id, true);
    }

    fn forget_where(broken: *Broken, id: PeerId, either_end: bool) void {
        var kept: usize = 0;
        for (broken.claims.items) |claim| {
            if (claim.from.eql(id) or (either_end and claim.to.eql(id))) continue;
            broken.claims.items[kept] = claim;
            kept += 1;
        }
        broken.changes += @intFromBool(kept < broken.claims.items.len);
        broken.claims.shrinkRetainingCapacity(kept);
    }

    /// Broken links between peers that have a rank. `lasting`: without silent links, which may work
    /// again at once.
    pub fn edges(broken: *const Broken, ranks: *const Ranks, lasting: bool) Edges {
        var found: Edges = .{};
        for (broken.claims.items) |*claim| {
            if (lasting and claim.health != .down) continue;
            const a = ranks.get(claim.from) orelse continue;
            const b = ranks.get(claim.to) orelse continue;
            found.add(a, b);
        }
        return found;
    }

    /// The ranks to which the links of a peer are broken.
    pub fn edges_of(broken: *const Broken, ranks: *const Ranks, id: PeerId) base.Mask {
        var found: base.Mask = .empty;
        for (broken.claims.items) |*claim| {
            const is_from = claim.from.eql(id);
            if (!is_from and !claim.to.eql(id)) continue;
            found.set(ranks.get(if (is_from) claim.to else claim.from) orelse continue);
        }
        return found;
    }
};

test "a link is broken until both ends that said so have taken it back" {
    const gpa = std.testing.allocator;
    var broken: Broken = .{};
    defer broken.deinit(gpa);
    const ids: [3]PeerId = .{ .from_int(1), .from_int(2), .from_int(3) };
    var ranks: Ranks = .empty;
    defer ranks.deinit(gpa);
    for (ids, 0..) |id, rank| try ranks.put(gpa, id, @intCast(rank));
    // The link was never reported as broken.
    try std.testing.expect(!try broken.tell(gpa, ids[2], ids[0], .up));
    try std.testing.expectEqual(0, broken.claims.items.len);
    try std.testing.expect(try broken.tell(gpa, ids[0], ids[1], .silent));
    try std.testing.expect(try broken.tell(gpa, ids[1], ids[0], .down));
    try std.testing.expect(broken.edges(&ranks, true).has(0, 1));
    try std.testing.expect(try broken.tell(gpa, ids[1], ids[0], .up));
    try std.testing.expect(!broken.edges(&ranks, true).has(0, 1));
    try std.testing.expect(broken.edges(&ranks, false).has(1, 0));
    try std.testing.expect(try broken.tell(gpa, ids[0], ids[1], .up));
    try std.testing.expect(!broken.edges(&ranks, false).has(0, 1));
    try std.testing.expectEqual(0, broken.claims.items.len);
}

test "who comes back says it again, and who is gone has no links" {
    const gpa = std.testing.allocator;
    var broken: Broken = .{};
    defer broken.deinit(gpa);
    const ids: [3]PeerId = .{ .from_int(1), .from_int(2), .from_int(3) };
    var ranks: Ranks = .empty;
    defer ranks.deinit(gpa);
    for (ids, 0..) |id, rank| try ranks.put(gpa, id, @intCast(rank));
    try std.testing.expect(try broken.tell(gpa, ids[0], ids[1], .down));
    try std.testing.expect(try broken.tell(gpa, ids[1], ids[2], .down));
    broken.forget_from(ids[0]);
    try std.testing.expect(!broken.edges(&ranks, false).has(0, 1));
    broken.forget(ids[2]);
    try std.testing.expectEqual(0, broken.claims.items.len);
}

test "a member that repeats itself changes nothing, and of very many words its last ones count" {
    const gpa = std.testing.allocator;
    const expect = std.testing.expect;
    const most = base.limits.links_broken_max;
    var broken: Broken = .{};
    defer broken.deinit(gpa);
    const liar: PeerId = .from_int(1);
    const honest: PeerId = .from_int(2);
    try expect(try broken.tell(gpa, honest, liar, .down));
    for (0..2 * most) |index| {
        try expect(try broken.tell(gpa, liar, .from_int(3 + index), .silent));
        const before = broken.changes;
        try expect(!try broken.tell(gpa, liar, .from_int(3 + index), .silent));
        try std.testing.expectEqual(before, broken.changes);
    }
    try std.testing.expectEqual(1 + most, broken.claims.items.len);
    try expect(!try broken.tell(gpa, honest, liar, .down)); // the claim of `honest` is still there
    var ranks: Ranks = .empty;
    defer ranks.deinit(gpa);
    for (1..4) |number| try ranks.put(gpa, .from_int(number), @intCast(number));
    try ranks.put(gpa, .from_int(2 + 2 * most), 4);
    var mask: base.Mask = .empty;
    mask.set(1);
    try expect(broken.edges_of(&ranks, honest).eql(&mask));
    mask = .empty;
    mask.set(2);
    mask.set(4);
    try expect(broken.edges_of(&ranks, liar).eql(&mask));
}

// ---- when ways are looked for
//
// When the coordinator looks again for ways around the broken links of a group, and for members to
// which no way leads. A look takes long in a large group, and a member can cause a look with a few
// bytes. So a look follows a little after the first report, once for all reports until then, and
// the next look only after a pause.

pub const Look = struct {
    /// The time at which the next look is due; `never`: nothing has changed.
    at: Instant = base.never,
    /// The member whose report made the look due at `at`, and which is charged for the attempt.
    by: PeerId = .none,
    /// The earliest time of the next look.
    not_before: Instant = 0,

    /// The pause after a look, for each member of the group. A look at 256 members takes a few
    /// milliseconds.
    const pause_ns = 2 * std.time.ns_per_ms;

    pub fn ask(look: *Look, at: Instant, by: PeerId) void {
        const when = @max(at, look.not_before);
        if (when >= look.at) return;
        look.at = when;
        look.by = by;
    }

    /// Takes a look that is due, and returns the member that is charged for it. Null: no look is
    /// due.
    pub fn take(look: *Look, now: Instant, members: usize) ?PeerId {
        if (now < look.at) return null;
        look.at = base.never;
        look.pause(now, members);
        return look.by;
    }

    /// Sets the pause after a look.
    pub fn pause(look: *Look, now: Instant, members: usize) void {
        look.not_before = now +| pause_ns *| members;
    }

    /// The time of the next look, or of the end of the pause, at which a waiting round goes on.
    pub fn next_deadline(look: *const Look, now: Instant) Instant {
        return if (look.not_before > now) @min(look.at, look.not_before) else look.at;
    }
};

test "however often it is asked for, a look comes once, and again only after a pause" {
    const expectEqual = std.testing.expectEqual;
    const ms = std.time.ns_per_ms;
    var look: Look = .{};
    try expectEqual(null, look.take(5 * ms, 256));
    look.ask(20 * ms, .from_int(1));
    look.ask(30 * ms, .from_int(2));
    try expectEqual(null, look.take(20 * ms - 1, 256));
    try expectEqual(PeerId.from_int(1), look.take(20 * ms, 256).?);
    try expectEqual(null, look.take(20 * ms, 256));
    look.ask(40 * ms, .from_int(2));
    look.ask(20 * ms, .from_int(1)); // not earlier than 532 ms: member 2 still pays
    try expectEqual(532 * ms, look.next_deadline(20 * ms));
    try expectEqual(null, look.take(532 * ms - 1, 256));
    try expectEqual(PeerId.from_int(2), look.take(532 * ms, 3).?);
    try expectEqual(538 * ms, look.next_deadline(532 * ms));
    try expectEqual(base.never, look.next_deadline(538 * ms));
}
