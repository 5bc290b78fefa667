//! unacked: the frames that have gone out on one lane and that the other side has not said it has,
//! oldest first: data, and requests of shared states with their answers. A lane delivers in order,
//! so a count of them is an acknowledgement. If the lane breaks they go again on another, so
//! whatever they are sent from is kept until then. It is filled by operation.zig, syncing.zig and
//! prefetch.zig, and emptied by resend.zig.

const std = @import("std");
const collective = @import("collective");
const wire = @import("wire");
const Count = wire.frame.Header.Count;
const Requests = @import("requests.zig").Requests;

/// A frame that is acknowledged: a move of an operation, a fragment of one, or of a shared state.
pub const Sent = struct {
    /// Null: its attempt is over, or it is of a state that is fetched in the background.
    operation: ?*anyopaque,
    move: collective.Move = undefined,
    fragment: wire.Fragment = .whole,
    /// A frame of a shared state, and no move.
    request: ?Request = null,
    /// It has left this peer at some time, as movements count it.
    is_counted: bool = false,
    /// How often it was sent before.
    again: u8 = 0,

    pub const Request = struct {
        item: Requests.Item,
        /// This peer has given it; else it has asked for it.
        is_answer: bool,
    };
};

pub const Unacked = struct {
    all: [most]Sent = undefined,
    first: u8 = 0,
    count: u8 = 0,
    /// Something of the newest has not left yet, so nobody can have it.
    is_leaving: bool = false,
    /// Acknowledged since the lane opened.
    acked: Count = 0,

    /// So many frames of a lane may be under way; of whole ones, 16 MiB.
    const most = 64;

    pub fn has_room(unacked: *const Unacked) bool {
        return unacked.count < most;
    }

    /// The other side is to say soon what it has.
    pub fn is_short(unacked: *const Unacked) bool {
        return unacked.count >= most / 2;
    }

    pub fn push(unacked: *Unacked, sent: Sent) void {
        unacked.at(unacked.count).* = sent;
        unacked.count += 1;
        unacked.is_leaving = true;
    }

    /// The oldest is `at(0)`.
    pub fn at(unacked: *Unacked, index: u8) *Sent {
        return &unacked.all[(unacked.first + index) % most];
    }

    pub fn newest(unacked: *Unacked) *Sent {
        return unacked.at(unacked.count - 1);
    }

    /// The other side has so many. Returns how many of these are new.
    pub fn acknowledged(unacked: *const Unacked, total: Count) error{AcknowledgedTooMany}!u8 {
        const new = total -% unacked.acked;
        if (new > unacked.count - @intFromBool(unacked.is_leaving))
            return error.AcknowledgedTooMany;
        return @intCast(new);
    }

    /// The oldest is acknowledged.
    pub fn pop(unacked: *Unacked) Sent {
        const oldest = unacked.at(0).*;
        unacked.first = (unacked.first + 1) % most;
        unacked.count -= 1;
        unacked.acked +%= 1;
        return oldest;
    }

    /// Acknowledgements for this operation mean nothing any more.
    pub fn forget(unacked: *Unacked, operation: *const anyopaque) void {
        for (0..unacked.count) |index| {
            const sent = unacked.at(@intCast(index));
            if (sent.operation != operation) continue;
            sent.operation = null;
            sent.request = null;
        }
    }
};

const test_move: collective.Move = .{ .kind = .final, .piece = 0, .place = .result };

test "frames are acknowledged in their order, and no more than were sent" {
    var unacked: Unacked = .{ .acked = std.math.maxInt(Count) - 1 };
    var operations: [3]u8 = undefined;
    for (&operations) |*operation| unacked.push(.{ .operation = operation, .move = test_move });
    // The third is still leaving.
    try std.testing.expectEqual(2, try unacked.acknowledged(0));
    try std.testing.expectError(error.AcknowledgedTooMany, unacked.acknowledged(1));
    unacked.is_leaving = false;
    try std.testing.expectEqual(2, try unacked.acknowledged(0));
    try std.testing.expectError(error.AcknowledgedTooMany, unacked.acknowledged(2));
    // One that is older than what was said before says something absurd.
    const before = std.math.maxInt(Count) - 2;
    try std.testing.expectError(error.AcknowledgedTooMany, unacked.acknowledged(before));
    unacked.forget(&operations[1]);
    try std.testing.expectEqual(@as(?*anyopaque, &operations[0]), unacked.pop().operation);
    try std.testing.expectEqual(null, unacked.pop().operation);
    try std.testing.expectEqual(0, try unacked.acknowledged(0));
    try std.testing.expectEqual(1, unacked.count);
}

test "a lane takes a bounded number, also round the end of its list" {
    var unacked: Unacked = .{};
    for (0..3) |_| {
        while (unacked.has_room()) unacked.push(.{ .operation = null, .move = test_move });
        try std.testing.expect(unacked.is_short());
        try std.testing.expectEqual(Unacked.most, unacked.count);
        for (0..Unacked.most - 5) |_| _ = unacked.pop();
        try std.testing.expect(!unacked.is_short());
    }
}
