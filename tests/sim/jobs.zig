//! Jobs: the workers of one simulated peer. Jobs that the engine gives away are done at drawn
//! instants and in a drawn order, and the engine is told of each later still, so an order that
//! works by luck is found. A fence does what waits, and nobody is told of it. Used by world.zig.

const std = @import("std");
const base = @import("base");
const Config = @import("swarm.zig").Config;
const Node = @import("world.zig").Node;
const swarm = @import("swarm.zig");
const driver = @import("session").driver;
const Prng = base.Prng;

/// In such a time all jobs of any call are done, and told of.
pub const all_ns = 5 * std.time.ns_per_s;

pub const Workshop = struct {
    node: *Node,
    prng: Prng,
    waiting: std.ArrayList(*base.Job) = .empty,
    /// Done, and still to be told of.
    done: std.ArrayList(*base.Job) = .empty,

    const one_in = 2;
    const soon_ns = 100 * std.time.ns_per_us;
    const late_ns = 20 * std.time.ns_per_ms;
    /// Even the least; only empty ones are done at once.
    const bytes_min = 1;

    pub fn init(node: *Node, config: *const Config) Workshop {
        const salt = @as(u64, node.generation) << 32 | node.index;
        return .{ .node = node, .prng = swarm.stream(config.seed ^ salt, "workshop") };
    }

    /// Whether the peers of a world have one.
    pub fn is_open(config: *const Config) bool {
        var prng = swarm.stream(config.seed, "jobs");
        return prng.chance(one_in);
    }

    pub fn runner(shop: *Workshop) base.Runner {
        const vtable: *const base.Runner.VTable = &.{ .post = post, .fence = fence };
        return .{ .ctx = shop, .vtable = vtable, .bytes_min = bytes_min };
    }

    fn post(ctx: *anyopaque, job: *base.Job) void {
        const shop: *Workshop = @ptrCast(@alignCast(ctx));
        shop.keep(&shop.waiting, job);
        shop.come_back();
    }

    fn keep(shop: *Workshop, list: *std.ArrayList(*base.Job), job: *base.Job) void {
        list.append(shop.node.world.gpa, job) catch @panic("out of memory");
    }

    fn come_back(shop: *Workshop) void {
        const most: u64 = if (shop.prng.chance(20)) late_ns else soon_ns;
        shop.node.world.after(shop.prng.below(most), .{ .job = shop.node.index });
    }

    fn fence(ctx: *anyopaque, owner: *const anyopaque) void {
        const shop: *Workshop = @ptrCast(@alignCast(ctx));
        while (find(&shop.waiting, owner)) |at| {
            const job = shop.waiting.swapRemove(at);
            job.run(job);
        }
        while (find(&shop.done, owner)) |at| _ = shop.done.swapRemove(at);
    }

    fn find(list: *const std.ArrayList(*base.Job), owner: *const anyopaque) ?usize {
        for (list.items, 0..) |job, index| if (job.owner == owner) return index;
        return null;
    }

    /// A job is done, or the engine is told of one; whatever a fence has left.
    pub fn step(shop: *Workshop) void {
        const tells = shop.waiting.items.len == 0 or shop.prng.chance(2);
        if (tells and shop.done.items.len > 0) {
            const job = shop.done.swapRemove(shop.prng.below(shop.done.items.len));
            return driver.job_done(shop.node.session.?, shop.node.here(), job);
        }
        if (shop.waiting.items.len == 0) return;
        const job = shop.waiting.swapRemove(shop.prng.below(shop.waiting.items.len));
        job.run(job);
        shop.keep(&shop.done, job);
        shop.come_back();
    }

    /// The process has ended, and waited for what it had given away.
    pub fn close(shop: *Workshop) void {
        std.debug.assert(shop.waiting.items.len == 0 and shop.done.items.len == 0);
    }
};
