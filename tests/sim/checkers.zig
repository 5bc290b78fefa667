//! Checkers: the promises (docs/internals/PROMISE.md) as conditions on the results of the calls of
//! all peers. world.zig and users.zig tell them each call and its return; the first breach ends the
//! world.
//!
//!   P1 agreement       all successes of an operation have equal bytes, digest and ranges
//!   P2 atomicity       no member that goes on saw it fail where another saw it succeed
//!   P3 input kept      a call that fails or is in doubt leaves its input intact, for good
//!   P4 contributors    every element is the sum of exactly the listed contributors, each once
//!   P5 same bits       a result of floats equals its definition from view, order and inputs
//!   P6 progress        once the network is well, every user makes progress
//!   P7 bounded wait    no call outlives its deadline by more than the silence limit
//!
//! Values are oracle.zig's; other conditions on a success are rules.zig's; buffers that the engine
//! has given back are borrowed.zig's.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const calls = @import("calls.zig");
const floats = @import("floats.zig");
const program = @import("program.zig");
const Allocator = std.mem.Allocator;
const Status = protocol.Status;

pub const Check = enum {
    p1_agreement,
    p2_atomicity,
    p3_input_kept,
    p4_contributors,
    p5_same_bits,
    p6_progress,
    p7_bounded_wait,
    p8_restart,
    /// Recovery restart and raise: one contributor set for the whole result.
    one_set,
    /// A peer carries on what its encodings have lost, as far as they are in a result.
    residuals,
    /// Whoever is listed as a contributor called the same thing.
    descriptors,
    /// Contributors are those whom the recovery of the call allows (rules.zig).
    recovery,
    /// A group below its least world size commits nothing.
    least,
    /// A sync ends with what somebody offered, whom nobody should have outvoted.
    election,
    /// Those who pass a safe point together go on in the same epoch.
    together,
    /// A sub-group has its founders that are not lost, in their order, and nobody else.
    founders,
    /// Epochs and views are the same to everybody.
    views,
    /// A link costs nobody its place while there is a ring without it, and a connection to the
    /// coordinator that is made again in time costs nobody anything.
    place,
    /// A failure that nothing in this world explains.
    spurious,
    /// Memory, operations and connections are given back.
    leak,
    /// A process holds more than its budget, whoever sends it what.
    memory,
    /// More happens than the work explains.
    storm,
    /// Same seed, same trace.
    determinism,
    /// The engine called the driver, or answered it, as it must not.
    interface,
    /// A panic inside the engine (only known to whoever watches the process).
    panic,
    /// A scenario that expected something else.
    scenario,
};

pub const Violation = struct {
    check: Check,
    text_bytes: [400]u8 = undefined,
    text_length: usize = 0,

    pub fn text(violation: *const Violation) []const u8 {
        return violation.text_bytes[0..violation.text_length];
    }
};

/// A call of one peer and its outcome.
pub const Call = struct {
    state: State = .none,
    /// By a peer that breaks the rules.
    of_insider: bool = false,
    status: Status = .ok,
    began: u64 = 0,
    finished: u64 = 0,
    called_at: base.Instant = 0,
    /// Which stay of this peer in the group it belongs to: rejoining starts another.
    membership: u32 = 0,
    /// The request, as one number; peers that called the same have the same.
    asked: u64 = 0,
    /// Somebody had succeeded before this peer called.
    after_success: bool = false,
    // For a sync: what it offered (syncs.zig).
    content: u64 = 0,
    revision: u64 = 0,
    expected: u64 = 0,
    strategy: wire.control.Strategy = .popular,
    /// After a doubt: was it committed?
    resolved: ?bool = null,
    /// The buffers that it lent; kept until the world ends.
    work: ?*const calls.Work = null,

    pub const State = enum { none, running, ok, failed, in_doubt, gone };
};

/// Contributors are digits.
pub const Range = struct { begin: u64, end: u64, contributors: base.Mask };

/// One operation over all peers.
pub const Record = struct {
    key: program.Key,
    /// By digit.
    calls: []Call,
    /// The first success; all others must be equal.
    won: ?Success = null,
    won_by: u16 = 0,
    /// For floats: what the result must be.
    known: ?*floats.Known = null,

    pub const Success = struct {
        bytes_hash: u64,
        digest: u128,
        ranges_hash: u64,
        sequence: u64,
        asked: u64,
        /// For every part of a private result, where that must be one set.
        contributors: ?base.Mask = null,
    };
};

pub const View = struct { group: u8, epoch: u64, attempt: u32, alive: base.Mask };

/// An attempt of an epoch.
pub const Attempt = struct { group: u8, epoch: u64, attempt: u32 };

pub const Epoch = struct { group: u8, number: u64, members_hash: u64, members: u32 };

/// A group, by its index or a hash of its name, and the number of an epoch or a round.
const Begun = struct { group: u64, number: u64 };

pub const Checkers = struct {
    gpa: Allocator,
    processes_max: u16,
    /// A coordinator died that could not write its journal: whom it had removed may be back.
    forgetful: bool = false,
    violation: ?Violation = null,
    /// In a fuzzed world only processes matter, not what calls return.
    lives_only: bool = false,
    /// The present events are those of an insider, to which nothing is promised (excused.zig:
    /// own_experience).
    of_insider: bool = false,
    /// The breaches not counted because of that.
    excused: u64 = 0,
    records: std.AutoArrayHashMapUnmanaged(program.Key, *Record) = .empty,
    /// By group and epoch.
    views: std.AutoHashMapUnmanaged(Begun, std.ArrayList(View)) = .empty,
    epochs: std.AutoHashMapUnmanaged(Begun, Epoch) = .empty,
    paths: std.AutoHashMapUnmanaged(Attempt, base.Paths) = .empty,
    /// By group and number, the round that began it; by group and round, the epoch that it began.
    rounds_of_epochs: std.AutoHashMapUnmanaged(Begun, u64) = .empty,
    /// The epoch in which those who have passed one together are then.
    safe_points: std.AutoHashMapUnmanaged(SafePoint, u64) = .empty,
    epochs_of_rounds: std.AutoHashMapUnmanaged(Begun, u64) = .empty,
    /// Per membership: the latest beginning of a call that succeeded. It proves that the member was
    /// still one when that call began, so it went on after everything that had failed before.
    proofs: std.ArrayList(u64) = .empty,

    pub fn init(gpa: Allocator, processes_max: u16) Checkers {
        return .{ .gpa = gpa, .processes_max = processes_max };
    }

    /// The first breach counts; what follows may be its echo.
    pub fn fail(c: *Checkers, check: Check, comptime format: []const u8, args: anytype) void {
        if (c.violation != null) return;
        if (c.lives_only or c.of_insider) switch (check) {
            .leak, .memory, .interface, .panic, .p8_restart => {},
            else => {
                c.excused += @intFromBool(c.of_insider);
                return;
            },
        };
        // Whom a coordinator had removed that could not write its journal, and then died, goes on
        // as if nothing had been: docs/internals/PROMISE.md does not promise agreement with the
        // others.
        if (c.forgetful) switch (check) {
            .p1_agreement, .p2_atomicity, .together => return,
            else => {},
        };
        c.violation = .{ .check = check };
        const violation = &c.violation.?;
        var writer: std.Io.Writer = .fixed(&violation.text_bytes);
        writer.print(format, args) catch {}; // cut; the start says what is wrong
        violation.text_length = writer.end;
    }

    /// Fails for what only changed bytes can make happen.
    pub fn lives(c: *Checkers, check: Check, comptime format: []const u8, args: anytype) void {
        if (!c.lives_only and !c.of_insider) c.fail(check, format, args);
    }

    pub fn record(c: *Checkers, key: program.Key) *Record {
        const entry = c.records.getOrPut(c.gpa, key) catch @panic("out of memory");
        if (!entry.found_existing) {
            entry.value_ptr.* = c.gpa.create(Record) catch @panic("out of memory");
            const all = c.gpa.alloc(Call, c.processes_max) catch @panic("out of memory");
            @memset(all, .{});
            entry.value_ptr.*.* = .{ .key = key, .calls = all };
        }
        return entry.value_ptr.*;
    }

    pub fn membership_new(c: *Checkers) u32 {
        c.proofs.append(c.gpa, 0) catch @panic("out of memory");
        return @intCast(c.proofs.items.len - 1);
    }

    // ---- P1 and P2

    pub fn succeeded(c: *Checkers, r: *Record, digit: u16, success: Record.Success) void {
        const call = &r.calls[digit];
        if (call.membership < c.proofs.items.len) {
            const proof = &c.proofs.items[call.membership];
            proof.* = @max(proof.*, call.began);
        }
        const won = r.won orelse {
            r.won = success;
            r.won_by = digit;
            return;
        };
        const other = r.won_by;
        if (won.bytes_hash != success.bytes_hash) return c.fail(
            .p1_agreement,
            "{f}: peers {d} and {d} hold different bytes",
            .{ fmt_key(r.key), other, digit },
        );
        if (won.digest != success.digest) return c.fail(
            .p1_agreement,
            "{f}: peers {d} and {d} have different digests",
            .{ fmt_key(r.key), other, digit },
        );
        if (won.ranges_hash != success.ranges_hash) return c.fail(
            .p1_agreement,
            "{f}: peers {d} and {d} list different ranges or contributors",
            .{ fmt_key(r.key), other, digit },
        );
        // A case of agreement.
        if (!c.forgetful) if (won.contributors) |*set| if (success.contributors) |*also| {
            if (!set.eql(also)) return c.fail(
                .one_set,
                "{f}: the contributors of peer {d} are {f}, those of peer {d} {f}",
                .{ fmt_key(r.key), other, fmt_peers(set), digit, fmt_peers(also) },
            );
        };
        if (won.contributors == null) r.won.?.contributors = success.contributors;
        if (won.sequence != success.sequence) return c.fail(
            .p1_agreement,
            "{f}: peer {d} says sequence {d}, peer {d} says {d}",
            .{ fmt_key(r.key), other, won.sequence, digit, success.sequence },
        );
        if (won.asked != success.asked) return c.fail(
            .descriptors,
            "{f}: peers {d} and {d} called differently and both succeeded",
            .{ fmt_key(r.key), other, digit },
        );
    }

    /// Called when nothing is in flight any more.
    pub fn check_atomicity(c: *Checkers) void {
        for (c.records.values()) |r| {
            for (r.calls, 0..) |*call, digit| {
                if (call.of_insider) continue;
                if (call.resolved) |committed| {
                    if (committed or r.won == null) continue;
                    // As below. With all who know of an abort, and are removed for being away,
                    // what is known of it is gone: those who are left may go on and succeed.
                    if (c.proofs.items[call.membership] <= call.finished) continue;
                    return c.fail(
                        .p2_atomicity,
                        "{f}: peer {d} was in doubt and then told aborted, peer {d} succeeded",
                        .{ fmt_key(r.key), digit, r.won_by },
                    );
                }
                const proven = c.proofs.items[call.membership] >= call.began;
                if (call.after_success and proven) return c.fail(
                    .p2_atomicity,
                    "{f}: peer {d} succeeded before peer {d} had called, which was a member",
                    .{ fmt_key(r.key), r.won_by, digit },
                );
                if (call.state != .failed) continue;
                if (r.won == null and !resolved_ok(r)) continue;
                // Only a member that goes on counts: one that was removed meanwhile may have
                // failed.
                if (c.proofs.items[call.membership] <= call.finished) continue;
                return c.fail(
                    .p2_atomicity,
                    "{f}: peer {d} saw {t} and went on, peer {d} succeeded",
                    .{ fmt_key(r.key), digit, call.status, r.won_by },
                );
            }
        }
    }

    fn resolved_ok(r: *const Record) bool {
        for (r.calls) |*call| {
            if (!call.of_insider and (call.resolved orelse false)) return true;
        }
        return false;
    }

    // ---- epochs and views

    pub fn view_seen(c: *Checkers, view: View, digit: u16) void {
        const views = c.views_of(view.group, view.epoch);
        for (views.items) |known| {
            if (known.attempt == view.attempt) {
                if (known.alive.eql(&view.alive) or c.forgetful) return;
                return c.fail(
                    .views,
                    "group {d} epoch {d} attempt {d}: peer {d} sees other members than others did",
                    .{ view.group, view.epoch, view.attempt, digit },
                );
            }
            const newer, const older = if (known.attempt > view.attempt)
                .{ known, view }
            else
                .{ view, known };
            if (!older.alive.covers(&newer.alive) and !c.forgetful) return c.fail(
                .views,
                "group {d} epoch {d}: a member came back between attempts {d} and {d}",
                .{ view.group, view.epoch, older.attempt, newer.attempt },
            );
        }
        views.append(c.gpa, view) catch @panic("out of memory");
    }

    fn views_of(c: *Checkers, group: u8, epoch: u64) *std.ArrayList(View) {
        const known = c.views.getOrPut(c.gpa, .{ .group = group, .number = epoch }) catch
            @panic("out of memory");
        if (!known.found_existing) known.value_ptr.* = .empty;
        return known.value_ptr;
    }

    /// The paths of an attempt's data, as a member was told.
    pub fn paths_seen(c: *Checkers, attempt: Attempt, paths: *const base.Paths, digit: u16) void {
        const known = c.paths.getOrPut(c.gpa, attempt) catch @panic("out of memory");
        if (!known.found_existing) {
            known.value_ptr.* = paths.*;
            return;
        }
        if (known.value_ptr.eql(paths) or c.forgetful) return;
        c.fail(
            .views,
            "group {d} epoch {d} attempt {d}: peer {d} was told another order or hubs",
            .{ attempt.group, attempt.epoch, attempt.attempt, digit },
        );
    }

    /// Null if nobody was seen in it.
    pub fn paths_of(c: *const Checkers, group: u8, epoch: u64, attempt: u32) ?*const base.Paths {
        return c.paths.getPtr(.{ .group = group, .epoch = epoch, .attempt = attempt });
    }

    /// A coordinator has this epoch. Two are never one, even with the same members: another number
    /// is another round, under whatever coordinator.
    pub fn epoch_begun(c: *Checkers, group: []const u8, epoch: u64, round: u64) void {
        const hash = std.hash.Wyhash.hash(0, group);
        const known = c.rounds_of_epochs.getOrPut(c.gpa, .{ .group = hash, .number = epoch }) catch
            @panic("out of memory");
        if (known.found_existing) {
            if (known.value_ptr.* == round) return;
            return c.fail(
                .views,
                "group {s}: rounds {d} and {d} have both begun epoch {d}",
                .{ group, known.value_ptr.*, round, epoch },
            );
        }
        known.value_ptr.* = round;
        const before = c.epochs_of_rounds.fetchPut(c.gpa, .{
            .group = hash,
            .number = round,
        }, epoch) catch @panic("out of memory");
        if (before) |other| c.fail(
            .views,
            "group {s}: round {d} has begun epochs {d} and {d}",
            .{ group, round, other.value, epoch },
        );
    }

    /// A safe point that all members of an epoch pass together, after the same round of each.
    pub const SafePoint = struct { group: u8, epoch: u64, round: u32 };

    /// All who have passed it are in the same epoch then.
    pub fn passed_together(c: *Checkers, point: SafePoint, epoch: u64, digit: u16) void {
        const known = c.safe_points.getOrPut(c.gpa, point) catch @panic("out of memory");
        if (!known.found_existing) known.value_ptr.* = epoch;
        if (known.value_ptr.* != epoch) c.fail(
            .together,
            "group {d} epoch {d}, after round {d}: peer {d} is in epoch {d}, another in {d}",
            .{ point.group, point.epoch, point.round, digit, epoch, known.value_ptr.* },
        );
    }

    pub fn epoch_seen(c: *Checkers, epoch: Epoch, digit: u16) void {
        const known = c.epochs.getOrPut(c.gpa, .{
            .group = epoch.group,
            .number = epoch.number,
        }) catch @panic("out of memory");
        if (!known.found_existing) {
            known.value_ptr.* = epoch;
            return;
        }
        if (known.value_ptr.members_hash != epoch.members_hash) c.fail(
            .views,
            "group {d} epoch {d}: peer {d} was told another membership than others",
            .{ epoch.group, epoch.number, digit },
        );
    }
};

pub const KeyFormat = struct {
    key: program.Key,

    pub fn format(self: KeyFormat, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const key = self.key;
        try writer.print(
            "operation g{d}/e{d}/r{d}/{d}",
            .{ key.group, key.epoch, key.round, key.index },
        );
    }
};

pub fn fmt_key(key: program.Key) KeyFormat {
    return .{ .key = key };
}

/// Digits as the numbers of their peers: 1,2,5, and 1-40 where many follow each other.
pub const PeersFormat = struct {
    digits: *const base.Mask,

    const run_min = 10;

    pub fn format(self: PeersFormat, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        var peer: usize = 1;
        var is_first = true;
        while (peer <= base.limits.peers_max) : (peer += 1) {
            if (!self.digits.has(peer - 1)) continue;
            if (!is_first) try writer.writeAll(",");
            is_first = false;
            try writer.print("{d}", .{peer});
            var last = peer;
            while (last < base.limits.peers_max and self.digits.has(last)) last += 1;
            if (last < peer + run_min - 1) continue;
            try writer.print("-{d}", .{last});
            peer = last;
        }
    }
};

pub fn fmt_peers(digits: *const base.Mask) PeersFormat {
    return .{ .digits = digits };
}

test "a set of peers is written as a list, and what is long as a run" {
    var digits: base.Mask = .full(3);
    for (60..512) |digit| digits.set(digit);
    digits.unset(400);
    var buffer: [64]u8 = undefined;
    const text = try std.fmt.bufPrint(&buffer, "{f}", .{fmt_peers(&digits)});
    try std.testing.expectEqualStrings("1,2,3,61-400,402-512", text);
}

test "a member that goes on after a failure that another saw succeed is a breach of P2" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    var c = Checkers.init(arena.allocator(), 2);
    const r = c.record(.{ .group = 0, .epoch = 1, .round = 0, .index = 0 });
    const success: Record.Success = .{
        .bytes_hash = 1,
        .digest = 2,
        .ranges_hash = 3,
        .sequence = 0,
        .asked = 5,
    };
    const first = c.membership_new();
    const second = c.membership_new();
    r.calls[0] = .{ .state = .ok, .began = 1, .finished = 5, .membership = first };
    c.succeeded(r, 0, success);
    r.calls[1] = .{ .state = .failed, .status = .aborted, .finished = 6, .membership = second };
    c.check_atomicity();
    try std.testing.expect(c.violation == null); // peer 1 may have been removed

    const later = c.record(.{ .group = 0, .epoch = 1, .round = 1, .index = 0 });
    later.calls[1] = .{ .state = .ok, .began = 7, .finished = 8, .membership = second };
    c.succeeded(later, 1, success);
    c.check_atomicity();
    try std.testing.expectEqual(.p2_atomicity, c.violation.?.check);
}

test "two epochs of one number, or of one round, are seen whoever is in them" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    for ([_][2]u64{ .{ 7, 2 }, .{ 8, 1 } }) |other| {
        var c = Checkers.init(arena.allocator(), 2);
        for (0..2) |_| c.epoch_begun("g", 7, 1);
        c.epoch_begun("h", other[0], other[1]);
        try std.testing.expect(c.violation == null);
        c.epoch_begun("g", other[0], other[1]);
        try std.testing.expectEqual(.views, c.violation.?.check);
    }
}

test "successes with different bytes are a breach of P1" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    var c = Checkers.init(arena.allocator(), 2);
    const r = c.record(.{ .group = 0, .epoch = 1, .round = 0, .index = 0 });
    var success: Record.Success = .{
        .bytes_hash = 1,
        .digest = 2,
        .ranges_hash = 3,
        .sequence = 0,
        .asked = 5,
    };
    c.succeeded(r, 0, success);
    success.bytes_hash = 9;
    c.succeeded(r, 1, success);
    try std.testing.expectEqual(.p1_agreement, c.violation.?.check);
}
