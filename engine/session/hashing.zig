//! Hashing: leaves of a shared state that have come in, and whose hashes a runner computes: places
//! for a few of them. A leaf that finds none, or is small, or has no runner, is hashed at once. A
//! part of a transfer (transfer.zig). The use of a hash: syncing.zig, prefetch.zig.
//!
//! Nothing writes to a leaf meanwhile: it counts as here, and is asked of nobody
//! (collective/fetch.zig). Whatever ends a transfer, or its attempt, first waits for the jobs.

const std = @import("std");
const base = @import("base");
const kernels = @import("kernels");
const Mask = base.Mask;
const State = @import("state.zig").State;
const Hash = @import("wire").control.Hash;

pub const Hashing = struct {
    runner: ?*const base.Runner = null,
    posts: [most]Post = undefined,
    /// Those in the hands of the runner.
    taken: Places = .initEmpty(),

    const most = 16;
    const Places = std.bit_set.IntegerBitSet(most);

    /// A leaf, who has given it, and what has come of it.
    pub const Post = struct {
        base: base.Job,
        bytes: []const u8,
        rank: u16,
        leaf: u32,
        hash: Hash,

        fn run(job: *base.Job) void {
            const post: *Post = @alignCast(@fieldParentPtr("base", job));
            post.hash = kernels.blake3(post.bytes);
        }
    };

    pub fn is_idle(h: *const Hashing) bool {
        return h.taken.mask == 0;
    }

    /// False: it is to be hashed at once.
    pub fn give(h: *Hashing, bytes: []const u8, rank: u16, leaf: u32) bool {
        const runner = h.runner orelse return false;
        const place = h.taken.complement().findFirstSet() orelse return false;
        if (bytes.len < runner.bytes_min) return false;
        h.taken.set(place);
        const post = &h.posts[place];
        post.* = .{
            .base = .{ .run = Post.run, .owner = h },
            .bytes = bytes,
            .rank = rank,
            .leaf = leaf,
            .hash = undefined,
        };
        runner.post(&post.base);
        return true;
    }

    pub fn owns(h: *const Hashing, job: *const base.Job) bool {
        return @as(*const anyopaque, h) == job.owner;
    }

    /// A leaf is hashed: its place is free.
    pub fn take_back(h: *Hashing, job: *base.Job) Post {
        const post: *Post = @alignCast(@fieldParentPtr("base", job));
        for (&h.posts, 0..) |*place, index| if (place == post) h.taken.unset(index);
        return post.*;
    }

    /// The leaves of which a fence has found that they are as they must be, and who gave them.
    pub const Found = struct { leaves: u32 = 0, sources: Mask = .empty };

    /// Returns when no leaf is being hashed. The hashes are kept in the state.
    pub fn fence(h: *Hashing, state: *State) Found {
        var found: Found = .{};
        if (h.is_idle()) return found;
        h.runner.?.fence(h);
        var places = h.taken.iterator(.{});
        while (places.next()) |place| {
            const post = &h.posts[place];
            state.staged_hashes[post.leaf] = post.hash;
            if (!state.check_staged(post.leaf, &post.hash)) continue;
            found.leaves += 1;
            found.sources.set(post.rank);
        }
        h.taken = .initEmpty();
        return found;
    }
};
