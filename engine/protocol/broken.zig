//! Broken: which links of a group are broken, by what members say of them. A link is broken when
//! either end says so, until it takes that back. Its consequences: plan.zig, group.zig; how a
//! member finds out: session/links.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Edges = @import("plan.zig").Edges;
const Ranks = @import("epoch.zig").Ranks;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const Health = wire.control.LinkHealth;

pub const Broken = struct {
    claims: std.ArrayList(Claim) = .empty,

    pub const Claim = struct {
        from: PeerId,
        to: PeerId,
        /// Never `up`.
        health: Health,
    };

    pub fn deinit(broken: *Broken, gpa: Allocator) void {
        broken.claims.deinit(gpa);
    }

    /// `from` says how its link to `to` is.
    pub fn tell(
        broken: *Broken,
        gpa: Allocator,
        from: PeerId,
        to: PeerId,
        health: Health,
    ) Allocator.Error!void {
        for (broken.claims.items, 0..) |*claim, index| {
            if (!claim.from.eql(from) or !claim.to.eql(to)) continue;
            if (health != .up) claim.health = health else _ = broken.claims.swapRemove(index);
            return;
        }
        if (health == .up) return;
        try broken.claims.append(gpa, .{ .from = from, .to = to, .health = health });
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
};

test "a link is broken until both ends that said so have taken it back" {
    const gpa = std.testing.allocator;
    var broken: Broken = .{};
    defer broken.deinit(gpa);
    const ids: [3]PeerId = .{ .from_int(1), .from_int(2), .from_int(3) };
    var ranks: Ranks = .empty;
    defer ranks.deinit(gpa);
    for (ids, 0..) |id, rank| try ranks.put(gpa, id, @intCast(rank));
    try broken.tell(gpa, ids[2], ids[0], .up); // it was never said to be broken
    try std.testing.expectEqual(0, broken.claims.items.len);
    try broken.tell(gpa, ids[0], ids[1], .silent);
    try broken.tell(gpa, ids[1], ids[0], .down);
    try std.testing.expect(broken.edges(&ranks, true).has(0, 1));
    try broken.tell(gpa, ids[1], ids[0], .up);
    try std.testing.expect(!broken.edges(&ranks, true).has(0, 1));
    try std.testing.expect(broken.edges(&ranks, false).has(1, 0));
    try broken.tell(gpa, ids[0], ids[1], .up);
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
    try broken.tell(gpa, ids[0], ids[1], .down);
    try broken.tell(gpa, ids[1], ids[2], .down);
    broken.forget_from(ids[0]);
    try std.testing.expect(!broken.edges(&ranks, false).has(0, 1));
    broken.forget(ids[2]);
    try std.testing.expectEqual(0, broken.claims.items.len);
}
