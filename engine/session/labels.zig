//! labels: the names of other peers for people. The coordinator tells them with a round
//! (protocol/labels.zig). They are kept while somebody may ask: as long as a peer is in an epoch or
//! a round of this one, gives of its state, or has left with the last epoch. No decision depends on
//! them.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const Group = @import("group.zig").Group;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;

pub const Labels = struct {
    of_others: std.AutoArrayHashMapUnmanaged([16]u8, base.Label) = .empty,

    pub fn deinit(labels: *Labels, gpa: Allocator) void {
        labels.of_others.deinit(gpa);
    }
};

/// The label of a peer; an empty one where it is not known.
pub fn of(s: *const Session, id: PeerId) base.Label {
    if (id.eql(s.self)) return s.label;
    return s.labels.of_others.get(id.bytes) orelse .{};
}

/// The peer in a line of the log: "7f3a01c2 (node7:4242)".
pub fn named(s: *const Session, id: PeerId) base.Named {
    return .{ .id = id, .label = of(s, id) };
}

pub const Error = error{ OutOfMemory, Unexpected };

pub fn on_labels(s: *Session, body: *const wire.control.Labels) Error!void {
    const group = s.group_of(body.group) orelse return;
    var entries = body.peers.iterator();
    while (entries.next()) |entry| {
        const label = base.Label.read(entry.label.data) orelse return error.Unexpected;
        // So nothing is kept that would not be forgotten.
        if (!is_kept(group, entry.id)) continue;
        try s.labels.of_others.put(s.gpa, entry.id.bytes, label);
    }
}

fn is_kept(group: *const Group, id: PeerId) bool {
    if (group.needs(id)) return true;
    for (group.member.epochs) |slot| if (slot) |epoch| {
        for (epoch.left) |other| if (other.eql(id)) return true;
    };
    return false;
}

pub fn prune(s: *Session) void {
    const known = &s.labels.of_others;
    var index = known.count();
    while (index > 0) {
        index -= 1;
        const id: PeerId = .{ .bytes = known.keys()[index] };
        const wanted = for (s.groups.items) |group| {
            if (is_kept(group, id)) break true;
        } else false;
        if (!wanted) known.swapRemoveAt(index);
    }
}

/// The peers that an error names, as they were when it happened: the user reads it later, when
/// ranks and labels may be others.
pub const Names = struct {
    self: PeerId = .none,
    /// The world size of the operation's epoch; 0: not known.
    ranks: usize = 0,
    items: [names_max]Name = undefined,
    count: usize = 0,
    /// The shared states of this peer that the error is about.
    states: [states_max]StateName = undefined,
    states_count: usize = 0,

    /// Those whose calls were missing; further ones are counted.
    pub const missing_max = 4;
    const names_max = missing_max + base.limits.elsewhere_told_max + 6;

    const states_max = 1 + base.limits.elsewhere_told_max;

    pub const Name = struct { id: PeerId, rank: ?u16, label: base.Label };
    const StateName = struct { tag: u64, name: base.Label };

    pub fn of_failure(s: *const Session, operation: *const Operation) Names {
        var names: Names = .{ .self = s.self, .ranks = operation.ids.len };
        const failure = &operation.failure;
        const roots = [_]PeerId{
            operation.op.descriptor.root,
            if (failure.descriptor) |*descriptor| descriptor.root else .none,
            if (failure.other_descriptor) |*descriptor| descriptor.root else .none,
        };
        for ([_]PeerId{ failure.peer, failure.other, operation.unreachable_peer } ++ roots) |id|
            names.add(s, operation, id);
        names.add_ranks(s, operation, &failure.missing);
        names.add_elsewhere(s, operation, &failure.elsewhere);
        names.add_state(operation, operation.op.id.tag);
        return names;
    }

    /// The first of those whose calls are missing, and for whom they wait.
    pub fn of_missing(s: *const Session, operation: *const Operation) Names {
        var names: Names = .{ .self = s.self };
        names.add_ranks(s, operation, &operation.op.missing);
        names.add_elsewhere(s, operation, &operation.op.elsewhere);
        names.add_state(operation, operation.op.id.tag);
        return names;
    }

    fn add_elsewhere(
        names: *Names,
        s: *const Session,
        operation: *const Operation,
        elsewhere: *const protocol.Elsewhere,
    ) void {
        for (elsewhere.slice()) |*waits| {
            names.add(s, operation, operation.ids[waits.waits_for]);
            names.add_state(operation, waits.op.tag);
        }
    }

    /// Others have the states that this peer has under the same tags.
    fn add_state(names: *Names, operation: *const Operation, tag: u64) void {
        for (operation.group.states.items) |item| {
            if (item.tag != tag or names.state(tag).len > 0) continue;
            names.states[names.states_count] = .{ .tag = tag, .name = .shown(item.name) };
            names.states_count += 1;
        }
    }

    /// The name of the shared state that operations with this tag are syncs of, as it can be shown;
    /// empty if there is none, or it is not known.
    pub fn state(names: *const Names, tag: u64) []const u8 {
        for (names.states[0..names.states_count]) |*item| if (item.tag == tag)
            return item.name.slice();
        return "";
    }

    fn add_ranks(
        names: *Names,
        s: *const Session,
        operation: *const Operation,
        ranks: *const base.Mask,
    ) void {
        for (0..@min(ranks.count(), missing_max)) |index|
            names.add(s, operation, operation.ids[ranks.at(index)]);
    }

    fn add(names: *Names, s: *const Session, operation: *const Operation, id: PeerId) void {
        if (id.eql(.none) or names.find(id) != null) return;
        const rank: ?u16 = for (operation.ids, 0..) |member, rank| {
            if (member.eql(id)) break @intCast(rank);
        } else null;
        names.items[names.count] = .{ .id = id, .rank = rank, .label = of(s, id) };
        names.count += 1;
    }

    fn find(names: *const Names, id: PeerId) ?*const Name {
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
        } ++ [_]Names.Name{undefined} ** (Names.names_max - 4),
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
