//! Broken: which links of a group are broken, by the reports of the members. A link is broken when
//! either end says so, until that end takes it back. The consequences: path_search.zig,
//! detours.zig; how a member finds out: session/links.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Edges = @import("path_search.zig").Edges;
const Ranks = @import("peer.zig").Ranks;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const Health = wire.control.LinkHealth;

pub const Broken = struct {
    claims: std.ArrayList(Claim) = .empty,
    /// Grows whenever they are others than before.
    changes: u64 = 0,

    pub const Claim = struct {
        from: PeerId,
        to: PeerId,
        /// Never `up`.
        health: Health,
    };

    pub fn deinit(broken: *Broken, gpa: Allocator) void {
        broken.claims.deinit(gpa);
    }

    /// `from` says how its link to `to` is. False: it said so before. Where it says so of more
    /// links than any honest member has, one that it said earlier does not count.
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

    /// Whether `from` says so.
    pub fn has(broken: *const Broken, from: PeerId, to: PeerId) bool {
        for (broken.claims.items) |*claim| {
            if (claim.from.eql(from) and claim.to.eql(to)) return true;
        }
        return false;
    }

    /// The claims of this member so far do not count: it repeats those that still hold.
    pub fn forget_from(broken: *Broken, id: PeerId) void {
        broken.forget_where(id, false);
    }

    /// The peer is gone, and all its links with it.
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

    /// Broken links between peers that have a rank. `lasting`: without those that may work again at
    /// once.
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

    /// The ranks to which the links of this one are broken.
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
    // It was never said to be broken.
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
    try expect(!try broken.tell(gpa, honest, liar, .down)); // it is still there
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
