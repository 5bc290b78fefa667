//! Elsewhere: the operation in which a member that others wait for waits itself: it has called that
//! operation, and others have not. Two members that wait for each other in this way have called
//! different things: other tags, or states of other names. To refuse one of them would be wrong,
//! because its other thread may be about to call; so each is told, and both have their deadlines.
//! A member that has not entered the epoch waits in nothing there, and is told of as such. The
//! evidence is that of stalls.zig, and no decision depends on it.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Epoch = @import("epoch.zig").Epoch;
const Record = @import("record.zig").Record;
const Told = @import("told_elsewhere.zig").Told;
const Instant = base.Instant;
const Mask = base.Mask;
const control = wire.control;
const limits = base.limits;

/// A call counts once others have been waited for in it for such a part of the warning time.
pub const counts_part = 10;

/// For each member the operation in which it has waited for the longest time.
pub const Elsewhere = struct {
    epoch: *const Epoch,
    by_rank: [limits.peers_max]?*const Record = @splat(null),

    pub fn of(epoch: *const Epoch, now: Instant, warning_ns: u64) Elsewhere {
        var found: Elsewhere = .{ .epoch = epoch };
        for (epoch.records.items) |known| {
            if (!known.stall.has_waited(now, warning_ns / counts_part)) continue;
            for (0..epoch.members.len) |rank| {
                if (!known.stall.called.has(rank)) continue;
                const other = found.by_rank[rank];
                if (other) |it| if (it.stall.waits_since <= known.stall.waits_since) continue;
                found.by_rank[rank] = known;
            }
        }
        return found;
    }

    /// Null: it is not known to wait for anybody.
    pub fn get(elsewhere: *const Elsewhere, rank: usize) ?control.Elsewhere {
        const known = elsewhere.by_rank[rank] orelse return null;
        const missing = elsewhere.epoch.missing_of(known);
        if (missing.is_empty()) return null;
        return .{
            .rank = @intCast(rank),
            .op = known.id,
            .kind = known.descriptor.kind,
            .waits_for = missing.at(0),
            .count = @intCast(missing.count()),
        };
    }

    /// The operations that the first of those who are waited for wait in.
    pub fn told(elsewhere: *const Elsewhere, missing: *const Mask) Told {
        var list: Told = .{};
        for (0..missing.count()) |index| {
            if (list.count == list.items.len) break;
            list.add(elsewhere.get(missing.at(index)) orelse continue);
        }
        return list;
    }

    /// For the log: "; it waits in all_reduce (tag 5, sequence 0 of epoch 1) for rank 0 (7f3a01c2)"
    /// or "; it has not entered the epoch, as a member from before does when its program calls …"
    pub fn words(elsewhere: *const Elsewhere, rank: usize) Words {
        return .{ .elsewhere = elsewhere, .rank = rank };
    }

    const Words = struct {
        elsewhere: *const Elsewhere,
        rank: usize,

        pub fn format(it: Words, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const epoch = it.elsewhere.epoch;
            if (epoch.not_entered().has(it.rank))
                return writer.writeAll("; it has not entered the epoch, as a member from before " ++
                    "does when its program calls admit");
            const waits = it.elsewhere.get(it.rank) orelse return;
            try writer.print("; it waits in {f} for {f}", .{
                it.elsewhere.by_rank[it.rank].?.named(epoch.number),
                epoch.members[waits.waits_for].ranked(waits.waits_for),
            });
            if (waits.count > 1) try writer.print(" and {d} more", .{waits.count - 1});
        }
    };
};
