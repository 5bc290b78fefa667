//! Lobby: joins of newcomers that wait because there were too many. The rules of waiting:
//! arrivals.zig.

const std = @import("std");
const wire = @import("wire");
const founding = @import("founding.zig");
const rates = @import("rates.zig");
const Peer = @import("peer.zig").Peer;
const Rounds = @import("peer.zig").Rounds;
const Allocator = std.mem.Allocator;
const control = wire.control;
const Aim = rates.Arrivals.Aim;

pub const Lobby = struct {
    /// In the order in which they came. Each peer has as many as it may have groups.
    waiting: std.ArrayList(Waiting) = .empty,

    pub const Waiting = struct {
        peer: *Peer,
        name: []u8,
        /// When it came; null for one of a founder, who is a member elsewhere: it keeps to its own
        /// rate alone.
        aim: ?Aim,
        told: Told,
        /// The peer has told everything.
        is_whole: bool = false,
    };

    pub fn deinit(lobby: *Lobby, gpa: Allocator) void {
        for (lobby.waiting.items) |*item| free(gpa, item);
        lobby.waiting.deinit(gpa);
    }

    pub fn free(gpa: Allocator, item: *const Waiting) void {
        gpa.free(item.name);
        founding.free(gpa, &item.told.founders);
    }

    pub fn holds(lobby: *const Lobby, peer: *const Peer, name: []const u8) bool {
        for (lobby.waiting.items) |*item| {
            if (item.peer == peer and std.mem.eql(u8, item.name, name)) return true;
        }
        return false;
    }

    /// Its connection is gone: it asks anew.
    pub fn disconnected(lobby: *Lobby, gpa: Allocator, peer: *const Peer) void {
        if (peer.joins_waiting == 0) return;
        var index = lobby.waiting.items.len;
        while (index > 0) {
            index -= 1;
            if (lobby.waiting.items[index].peer != peer) continue;
            const gone = lobby.remove(index);
            free(gpa, &gone);
        }
    }

    pub fn remove(lobby: *Lobby, index: usize) Waiting {
        const item = lobby.waiting.orderedRemove(index);
        item.peer.joins_waiting -= 1;
        return item;
    }
};

/// A `join`, and the newest epoch that was named after it; 0: none.
pub const Told = struct {
    rounds: Rounds,
    initial_world_size: u32,
    /// In the bytes of the message, or in the lobby's.
    founders: control.Founders,
    newest: u64 = 0,

    pub fn of(body: *const control.Join) Told {
        return .{
            .rounds = .{ .preparing = body.round, .stopping = body.stop_round },
            .initial_world_size = body.initial_world_size,
            .founders = body.founders,
        };
    }
};
