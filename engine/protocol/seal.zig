//! Seal: tells a decision that a coordinator has made from one that a member makes up. Members keep
//! decisions and tell them to a coordinator that has started again (claims.zig: on_known); by the
//! seal it knows that the coordinator before it made them. The key never leaves the coordinator: it
//! is drawn at the first start and kept in the journal.

const std = @import("std");
const wire = @import("wire");
const control = wire.control;
const SipHash = std.crypto.auth.siphash.SipHash128(2, 4);

pub const Key = [SipHash.key_length]u8;

/// In a time that does not tell how much of it was right.
pub fn equal(told: u128, right: u128) bool {
    const Bytes = [@sizeOf(u128)]u8;
    return std.crypto.timing_safe.eql(Bytes, @bitCast(told), @bitCast(right));
}

/// The MAC over all fields of a decision except `seal` and `acknowledged`, which tells how far
/// decisions were known to all when it was sent.
pub fn of_commit(key: *const Key, message: *const control.Commit) u128 {
    var sealed = message.*;
    sealed.acknowledged = 0;
    sealed.seal = 0;
    return of(key, .{ .commit = sealed });
}

pub fn of_abort(key: *const Key, message: *const control.Abort) u128 {
    var sealed = message.*;
    sealed.acknowledged = 0;
    sealed.seal = 0;
    return of(key, .{ .abort = sealed });
}

/// For draws that others see and that must tell nothing of the key.
pub fn seed(key: *const Key) u64 {
    return @truncate(SipHash.toInt("draws", key));
}

fn of(key: *const Key, message: control.Message) u128 {
    var bytes: [512]u8 = undefined;
    const encoded = control.encode(message, &bytes) catch unreachable; // their size is a constant
    return SipHash.toInt(encoded, key);
}

test "a seal that differs in any bit is another" {
    const right: u128 = 0x0123456789abcdef_fedcba9876543210;
    try std.testing.expect(equal(right, right));
    for (0..128) |bit|
        try std.testing.expect(!equal(right ^ @as(u128, 1) << @intCast(bit), right));
}

test "a seal is of one decision and one key" {
    const key: Key = @splat(1);
    const other: Key = @splat(2);
    var commit = std.mem.zeroes(control.Commit);
    const seal = of_commit(&key, &commit);
    try std.testing.expect(of_commit(&other, &commit) != seal);
    inline for (@typeInfo(control.Commit).@"struct".fields) |field| {
        var changed = commit;
        if (field.type == control.OpId) {
            changed.op.sequence = 1;
        } else @field(changed, field.name) = 1;
        const free = comptime std.mem.eql(u8, field.name, "acknowledged") or
            std.mem.eql(u8, field.name, "seal");
        try std.testing.expectEqual(free, of_commit(&key, &changed) == seal);
    }
    commit.decision = 1;
    const blank = std.mem.zeroInit(control.Descriptor, .{
        .kind = .all_reduce,
        .dtype = .f32,
        .op = .sum,
        .recovery = .raise,
    });
    var abort = std.mem.zeroInit(control.Abort, .{
        .reason = .cancelled,
        .decision = 1,
        .descriptor = blank,
        .other_descriptor = blank,
    });
    try std.testing.expect(of_abort(&key, &abort) != of_commit(&key, &commit));
    const before = of_abort(&key, &abort);
    abort.reason = .deadline;
    try std.testing.expect(of_abort(&key, &abort) != before);
}
