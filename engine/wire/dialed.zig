//! Dialed: the result of one peer's dial to another, as a byte of a message and in words. It is
//! shown to people; no decision depends on it.

const std = @import("std");
const limits = @import("base").limits;

pub const Dialed = enum(u8) {
    /// No dial of the peer has failed, as far as is known.
    pending = 0,
    /// The peer's address is not known.
    no_address = 1,
    refused = 2,
    no_answer = 3,
    unreachable_host = 4,
    name_unknown = 5,
    /// The process that answers at the address is not the peer.
    other_answers = 6,
    /// The connection is accepted, and no answer comes.
    silent = 7,
    /// The operating system gives the process no more sockets.
    no_sockets = 8,
    /// The coordinator, whose dials have a shorter time limit, got no answer.
    no_answer_soon = 9,

    /// The end of a sentence that begins like "it could not be dialed at ...: ".
    pub fn why(dialed: Dialed) []const u8 {
        return switch (dialed) {
            .pending => "no dial has failed yet",
            .no_address => "its address is not known",
            .refused => "the connection was refused",
            .no_answer => no_answer_in(limits.dial_ns_max),
            .no_answer_soon => no_answer_in(limits.find_dial_ns_max),
            .unreachable_host => "no route leads there",
            .name_unknown => "the name is not known",
            .other_answers => "something else answers there",
            .silent => "the connection is taken, and nothing answers",
            .no_sockets => "this machine gives no more sockets",
        };
    }

    fn no_answer_in(comptime ns: u64) []const u8 {
        const seconds = ns / std.time.ns_per_s;
        return std.fmt.comptimePrint("no answer in {d} s (a firewall or NAT?)", .{seconds});
    }
};

/// Advice to the user, which follows each message about a failed dial.
pub const remedy = "one of the two must be able to dial the other, or both must reach another " ++
    "member: open a port (PCCL_PORTS), or name the address that leads to it (PCCL_ADVERTISE)";

pub const why_bytes_max = blk: {
    var longest = 0;
    for (@typeInfo(Dialed).@"enum".fields) |field| {
        longest = @max(longest, @as(Dialed, @enumFromInt(field.value)).why().len);
    }
    break :blk longest;
};
