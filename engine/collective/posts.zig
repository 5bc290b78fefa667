//! Posts: the jobs of one movement that are in the hands of a runner: a few places, all reserved at
//! the start. movement.zig does small jobs at once, and without a runner all jobs.

const std = @import("std");
const base = @import("base");
const Job = @import("job.zig").Job;
const Memory = @import("memory.zig").Memory;
const Allocator = std.mem.Allocator;

/// A job in the hands of a runner, and the digest of its result.
pub const Post = struct {
    base: base.Job,
    memory: *const Memory,
    job: Job,
    access: Memory.Access,
    digest: u128 = 0,

    fn run(posted: *base.Job) void {
        const post = of(posted);
        post.digest = post.memory.run(&post.job, post.access);
    }

    pub fn of(posted: *base.Job) *Post {
        return @alignCast(@fieldParentPtr("base", posted));
    }
};

pub const Posts = struct {
    runner: ?*const base.Runner,
    /// All places; the first `free` of them are free.
    all: []*Post = &.{},
    free: usize = 0,

    const most = 32;

    /// Reserves places for jobs on pieces of `piece_bytes_max` bytes at most. Call `open` once the
    /// movement has its final address.
    pub fn init(
        arena: Allocator,
        runner: ?*const base.Runner,
        piece_bytes_max: usize,
        pieces: u64,
    ) Allocator.Error!Posts {
        const wanted = if (runner) |one| piece_bytes_max >= one.bytes_min else false;
        if (!wanted) return .{ .runner = null };
        const places = try base.unfilled.list(arena, Post, @intCast(@min(pieces, most)));
        const all = try base.unfilled.list(arena, *Post, places.len);
        for (all, places) |*post, *place| post.* = place;
        return .{ .runner = runner, .all = all };
    }

    pub fn open(posts: *Posts) void {
        posts.free = posts.all.len;
    }

    pub fn takes(posts: *const Posts, bytes: usize) bool {
        return posts.free > 0 and bytes >= posts.runner.?.bytes_min;
    }

    pub fn give(
        posts: *Posts,
        owner: *const anyopaque,
        memory: *const Memory,
        job: *const Job,
        access: Memory.Access,
    ) void {
        posts.free -= 1;
        const post = posts.all[posts.free];
        post.* = .{
            .base = .{ .run = Post.run, .owner = owner },
            .memory = memory,
            .job = job.*,
            .access = access,
        };
        posts.runner.?.post(&post.base);
    }

    /// Frees the place of a job that the runner has done.
    pub fn take_back(posts: *Posts, post: *Post) void {
        const taken = posts.all[posts.free..];
        const at = std.mem.indexOfScalar(*Post, taken, post).?;
        std.mem.swap(*Post, &taken[0], &taken[at]);
        posts.free += 1;
    }

    /// Returns when the runner has done all jobs of `owner`; each post is still to be taken back.
    pub fn fence(posts: *const Posts, owner: *const anyopaque) void {
        posts.runner.?.fence(owner);
    }
};

test "a job is given away where it is large and there is a place, which is free once it is done" {
    const Idle = struct {
        fn post(_: *anyopaque, _: *base.Job) void {}
        fn fence(_: *anyopaque, _: *const anyopaque) void {}
    };
    var nothing: u8 = 0;
    const runner: base.Runner = .{
        .ctx = &nothing,
        .vtable = &.{ .post = Idle.post, .fence = Idle.fence },
        .bytes_min = 100,
    };
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    var posts: Posts = try .init(arena.allocator(), &runner, 100, 2);
    posts.open();
    try std.testing.expect(!posts.takes(99));
    var memory: Memory = undefined;
    for (0..2) |_| {
        try std.testing.expect(posts.takes(100));
        posts.give(&nothing, &memory, &.{ .kind = .clear, .piece = 0 }, .{});
    }
    try std.testing.expect(!posts.takes(100));
    // The post that was given first comes back first.
    const first, const second = .{ posts.all[1], posts.all[0] };
    posts.take_back(first);
    try std.testing.expect(posts.takes(100));
    posts.give(&nothing, &memory, &.{ .kind = .clear, .piece = 1 }, .{});
    try std.testing.expectEqual(1, first.job.piece);
    try std.testing.expectEqual(0, second.job.piece);
}
