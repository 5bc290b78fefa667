//! labels: the names of other peers for people. The coordinator tells them with a round
//! (protocol/membership.zig). They are kept while somebody may ask: as long as a peer is in an
//! epoch or a round of this one, gives of its state, or has left with the last epoch. No decision
//! depends on them, but how fast the user lets this peer send to one. The names in an error:
//! names.zig.

const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const Group = @import("group.zig").Group;
const Link = @import("link.zig").Link;
const Names = @import("names.zig").Names;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const PeerId = base.PeerId;

/// The label of a peer; an empty one where it is not known.
pub fn of(s: *const Session, id: PeerId) base.Label {
    if (id.eql(s.self)) return s.label;
    return s.labels.get(id.bytes) orelse .{};
}

/// The peer in a line of the log: "7f3a01c2 (node7:4242)".
pub fn named(s: *const Session, id: PeerId) base.Named {
    return .{ .id = id, .label = of(s, id) };
}

/// The rate that the user gives this peer alone, by a name that may be known now only.
pub fn limit(s: *const Session, link: *Link) void {
    if (s.rates.count > 0) link.flow.ceiling = s.rates.of(link.peer, &of(s, link.peer));
}

pub const Error = error{ OutOfMemory, Unexpected };

pub fn on_labels(s: *Session, body: *const wire.control.Labels) Error!void {
    const group = s.group_of(body.group) orelse return;
    var entries = body.peers.iterator();
    while (entries.next()) |entry| {
        const label = base.Label.read(entry.label.data) orelse return error.Unexpected;
        // So nothing is kept that would not be forgotten.
        if (!is_kept(group, entry.id)) continue;
        try s.labels.put(s.gpa, entry.id.bytes, label);
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
    const known = &s.labels;
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

// ---- for errors

/// The peers that the error of an operation is about.
pub fn names_of_failure(s: *const Session, operation: *const Operation) Names {
    var names: Names = .{ .self = s.self, .ranks = operation.ids.len };
    const failure = &operation.failure;
    const roots = [_]PeerId{
        operation.op.descriptor.root,
        if (failure.descriptor) |*descriptor| descriptor.root else .none,
        if (failure.other_descriptor) |*descriptor| descriptor.root else .none,
    };
    for ([_]PeerId{ failure.peer, failure.other, operation.unreachable_peer } ++ roots) |id|
        add(&names, s, operation, id);
    add_ranks(&names, s, operation, &failure.missing);
    add_ranks(&names, s, operation, &failure.outside);
    add_elsewhere(&names, s, operation, &failure.elsewhere);
    add_state(&names, operation, operation.op.id.tag);
    return names;
}

/// The first of those whose calls are missing, and for whom they wait.
pub fn names_of_missing(s: *const Session, operation: *const Operation) Names {
    var names: Names = .{ .self = s.self };
    add_ranks(&names, s, operation, &operation.op.missing);
    add_ranks(&names, s, operation, &operation.group.member.outside_of(&operation.op));
    add_elsewhere(&names, s, operation, &operation.op.elsewhere);
    add_state(&names, operation, operation.op.id.tag);
    return names;
}

fn add_elsewhere(
    names: *Names,
    s: *const Session,
    operation: *const Operation,
    elsewhere: *const protocol.Elsewhere,
) void {
    for (elsewhere.slice()) |*waits| {
        add(names, s, operation, operation.ids[waits.rank]);
        add(names, s, operation, operation.ids[waits.waits_for]);
        add_state(names, operation, waits.op.tag);
    }
}

/// Others have the states that this peer has under the same tags.
fn add_state(names: *Names, operation: *const Operation, tag: u64) void {
    for (operation.group.states.items) |*shared| {
        const item = shared.state;
        if (item.tag != tag or names.state(tag).len > 0) continue;
        names.states[names.states_count] = .{ .tag = tag, .name = .shown(item.name) };
        names.states_count += 1;
    }
}

fn add_ranks(
    names: *Names,
    s: *const Session,
    operation: *const Operation,
    ranks: *const base.Mask,
) void {
    for (0..@min(ranks.count(), Names.missing_max)) |index|
        add(names, s, operation, operation.ids[ranks.at(index)]);
}

fn add(names: *Names, s: *const Session, operation: *const Operation, id: PeerId) void {
    if (id.eql(.none) or names.find(id) != null) return;
    const rank: ?u16 = for (operation.ids, 0..) |member, rank| {
        if (member.eql(id)) break @intCast(rank);
    } else null;
    names.items[names.count] = .{ .id = id, .rank = rank, .label = of(s, id) };
    names.count += 1;
}
