//! Names: the peers and shared states that an error is about, as they were when it happened: the
//! user reads it later, when ranks and labels may be others. labels.zig fills it in.

const std = @import("std");
const base = @import("base");
const PeerId = base.PeerId;

pub const Names = struct {
    self: PeerId = .none,
    /// The world size of the operation's epoch; 0: not known.
    ranks: usize = 0,
    items: [items_max]Name = undefined,
    count: usize = 0,
    /// The shared states of this peer that the error is about.
    states: [states_max]StateName = undefined,
    states_count: usize = 0,

    /// The most ranks whose calls were missing that a sentence names, and the most ranks outside of
    /// the epoch; further ranks are counted.
    pub const missing_max = 4;
    pub const items_max = 2 * missing_max + 2 * base.limits.elsewhere_told_max + 6;

    const states_max = 1 + base.limits.elsewhere_told_max;

    pub const Name = struct { id: PeerId, rank: ?u16, label: base.Label };
    pub const StateName = struct { tag: u64, name: base.Label };

    /// The name of the shared state that operations with this tag are syncs of, as it can be shown;
    /// empty if there is none, or it is not known.
    pub fn state(names: *const Names, tag: u64) []const u8 {
        for (names.states[0..names.states_count]) |*item| if (item.tag == tag)
            return item.name.slice();
        return "";
    }

    pub fn find(names: *const Names, id: PeerId) ?*const Name {
        for (names.items[0..names.count]) |*name| if (name.id.eql(id)) return name;
        return null;
    }

    pub fn world_size(names: *const Names) usize {
        return names.ranks;
    }

    pub fn who(names: *const Names, id: PeerId) Who {
        return .{ .names = names, .id = id };
    }

    /// "rank 3 (node7:4242, 7f3a01c2)", "rank 0 (this peer)"; as far as that is known.
    pub const Who = struct {
        names: *const Names,
        id: PeerId,

        pub fn format(it: Who, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const name = it.names.find(it.id) orelse
                return writer.print("peer {s}", .{it.id.short()});
            const rank = name.rank orelse
                return writer.print("peer {f}", .{base.Named{ .id = it.id, .label = name.label }});
            if (it.id.eql(it.names.self)) return writer.print("rank {d} (this peer)", .{rank});
            try writer.print("{f}", .{base.Ranked{
                .rank = rank,
                .id = it.id,
                .label = name.label,
            }});
        }
    };
};

test "an error names a peer by its rank, its label and its id, and this one as such" {
    const names: Names = .{
        .self = .from_int(1 << 120),
        .items = [_]Names.Name{
            .{ .id = .from_int(1 << 120), .rank = 2, .label = base.Label.read("me").? },
            .{ .id = .from_int(2 << 120), .rank = 0, .label = base.Label.read("node7:42").? },
            .{ .id = .from_int(3 << 120), .rank = 1, .label = .{} },
            .{ .id = .from_int(4 << 120), .rank = null, .label = base.Label.read("gone").? },
        } ++ [_]Names.Name{undefined} ** (Names.items_max - 4),
        .count = 4,
    };
    var line: [100]u8 = undefined;
    for ([_][]const u8{
        "rank 2 (this peer)",
        "rank 0 (node7:42, 02000000)",
        "rank 1 (03000000)",
        "peer 04000000 (gone)",
        "peer 05000000",
    }, 1..) |wanted, number| {
        const id: PeerId = .from_int(@as(u128, number) << 120);
        const shown = try std.fmt.bufPrint(&line, "{f}", .{names.who(id)});
        try std.testing.expectEqualStrings(wanted, shown);
    }
}
