//! Statistics: counts the events of a run of seeds, so that a rig that sees nothing shows. Added up
//! over all seeds and printed by main.zig; no world reads it.

const std = @import("std");
const Copy = @import("copies.zig").Count;
const Class = @import("swarm.zig").Class;
const Rule = @import("excused.zig").Rule;
const Trick = @import("insider.zig").Trick;
const Status = @import("protocol").Status;

pub const Statistics = struct {
    seeds: u64 = 0,
    calm_seeds: u64 = 0,
    /// Worlds that were looked at while nothing went on.
    rests: u64 = 0,
    events: u64 = 0,
    bytes: u64 = 0,
    virtual_ns: u64 = 0,
    /// How often each class of fault happened.
    faults: std.EnumArray(Class, u64) = .initFill(0),
    /// The tricks of insiders, and which promises were not asked for because of them.
    tricks: std.EnumArray(Trick, u64) = .initFill(0),
    excused: std.EnumArray(Rule, u64) = .initFill(0),
    /// The most that a process has held.
    peak_bytes: u64 = 0,
    /// Calls by what they returned.
    calls: std.EnumArray(Status, u64) = .initFill(0),
    /// Calls in doubt by what they turned out to be.
    doubts_committed: u64 = 0,
    doubts_aborted: u64 = 0,
    doubts_open: u64 = 0,
    /// Newcomers' calls that ended because one of them did not fit those of the members.
    refused: u64 = 0,
    /// Successes whose ranges have different contributors, and that took several attempts.
    split_results: u64 = 0,
    retried_results: u64 = 0,
    /// Successes during which another operation was in flight at the peer.
    overlapping: u64 = 0,
    /// Successes on floats; with a codec; of those, other than all_reduces, after an attempt that
    /// failed, in several ranges, and with a residual carried on.
    floats: u64 = 0,
    encoded: u64 = 0,
    encoded_other: u64 = 0,
    encoded_retried: u64 = 0,
    encoded_split: u64 = 0,
    residuals: u64 = 0,
    /// Syncs that a peer saw committed; with leaves that it fetched; after an attempt that failed.
    syncs: u64 = 0,
    syncs_fetched: u64 = 0,
    syncs_retried: u64 = 0,
    leaves_moved: u64 = 0,
    leaves_early: u64 = 0,
    /// Frames that went again, and what became of them.
    copies: std.EnumArray(Copy, u64) = .initFill(0),
    /// Bytes of probes of links.
    probed_bytes: u64 = 0,
    admissions: u64 = 0,
    epochs: u64 = 0,
    /// Sub-groups that peers have entered; those without a founder that was lost; and those that
    /// came about for nobody who asked.
    subs: u64 = 0,
    subs_short: u64 = 0,
    subs_failed: u64 = 0,
    peers: u64 = 0,
    connections: u64 = 0,

    /// Whether every kind of copy was there that 2,000 seeds have many of.
    pub fn has_copies(statistics: *const Statistics) bool {
        for ([_]Copy{ .resent, .resent_states, .thrown_away }) |kind| {
            if (statistics.copies.get(kind) == 0) return false;
        }
        return true;
    }

    pub fn fault(statistics: *Statistics, class: Class) void {
        statistics.faults.getPtr(class).* += 1;
    }

    pub fn add(into: *Statistics, from: *const Statistics) void {
        inline for (@typeInfo(Statistics).@"struct".fields) |field| {
            if (comptime std.mem.eql(u8, field.name, "peak_bytes")) {
                into.peak_bytes = @max(into.peak_bytes, from.peak_bytes);
            } else if (field.type == u64) {
                @field(into, field.name) += @field(from, field.name);
            } else {
                for (&@field(into, field.name).values, @field(from, field.name).values) |*a, b| {
                    a.* += b;
                }
            }
        }
    }

    pub fn print(statistics: *const Statistics, seconds: f64, workers: usize) void {
        const minutes = seconds / 60;
        const seeds: f64 = @floatFromInt(statistics.seeds);
        const out = std.debug.print;
        const format = "{d} seeds ({d} calm, {d} at rest) in {d:.1} s: " ++
            "{d:.0} seeds/min, {d:.0} per worker\n";
        out(format, .{
            statistics.seeds,
            statistics.calm_seeds,
            statistics.rests,
            seconds,
            seeds / minutes,
            seeds / minutes / @as(f64, @floatFromInt(workers)),
        });
        out("  {d} events, {d} MB, {d} virtual s, {d} peers, {d} connections, {d} epochs\n", .{
            statistics.events,
            statistics.bytes / 1_000_000,
            statistics.virtual_ns / std.time.ns_per_s,
            statistics.peers,
            statistics.connections,
            statistics.epochs,
        });
        out("  calls:", .{});
        for (std.enums.values(Status)) |status| {
            out(" {t} {d}", .{ status, statistics.calls.get(status) });
        }
        out("\n  in doubt, then: committed {d}, aborted {d}, never told {d}\n", .{
            statistics.doubts_committed,
            statistics.doubts_aborted,
            statistics.doubts_open,
        });
        out("  successes: {d} in several ranges, {d} in several attempts, {d} beside others\n", .{
            statistics.split_results,
            statistics.retried_results,
            statistics.overlapping,
        });
        out("  calls of newcomers that were refused: {d}\n", .{statistics.refused});
        const encoded = "  floats: {d}, {d} encoded: {d} no all_reduces, {d} in several " ++
            "attempts, {d} in several ranges, {d} with residuals\n";
        out(encoded, .{
            statistics.floats,
            statistics.encoded,
            statistics.encoded_other,
            statistics.encoded_retried,
            statistics.encoded_split,
            statistics.residuals,
        });
        const syncs = "  syncs: {d}, {d} with leaves fetched ({d}, and {d} ahead of time), " ++
            "{d} in several attempts\n";
        out(syncs, .{
            statistics.syncs,
            statistics.syncs_fetched,
            statistics.leaves_moved,
            statistics.leaves_early,
            statistics.syncs_retried,
        });
        out("  sub-groups: {d} entered, {d} without a lost founder; {d} given up\n", .{
            statistics.subs,
            statistics.subs_short,
            statistics.subs_failed,
        });
        statistics.print_copies();
        out("  probes of links: {d} bytes\n", .{statistics.probed_bytes});
        statistics.print_faults();
    }

    fn print_copies(statistics: *const Statistics) void {
        const format = "  frames that went again: {d} of broken lanes and {d} of shared " ++
            "states; {d} copies thrown away, {d} of passed attempts\n";
        std.debug.print(format, .{
            statistics.copies.get(.resent),
            statistics.copies.get(.resent_states),
            statistics.copies.get(.thrown_away),
            statistics.copies.get(.crossed),
        });
    }

    fn print_faults(statistics: *const Statistics) void {
        const out = std.debug.print;
        out("  faults:", .{});
        for (std.enums.values(Class)) |class| {
            out(" {t} {d}", .{ class, statistics.faults.get(class) });
        }
        out("\n  insiders:", .{});
        for (std.enums.values(Trick)) |trick| {
            out(" {t} {d}", .{ trick, statistics.tricks.get(trick) });
        }
        out("; not asked for:", .{});
        for (std.enums.values(Rule)) |rule| {
            out(" {t} {d}", .{ rule, statistics.excused.get(rule) });
        }
        out("\n  a process has held {d} KiB at most\n", .{statistics.peak_bytes / 1024});
    }
};

test "statistics add up field by field" {
    var a: Statistics = .{ .seeds = 1 };
    var b: Statistics = .{ .seeds = 2 };
    b.fault(.stall);
    a.add(&b);
    try std.testing.expectEqual(3, a.seeds);
    try std.testing.expectEqual(1, a.faults.get(.stall));
}
