//! Copies: frames that go again because their lane broke (session/dial.zig). Here they are
//! counted for the statistics: how many go, how many copies the receiver throws away, and how many
//! of these come when their attempt is over. It reads the lanes of both ends, draws nothing and
//! changes nothing. Used by world.zig.

const std = @import("std");
const session_layer = @import("session");
const wire = @import("wire");
const world_file = @import("world.zig");
const Lane = session_layer.Lane;
const NodeIndex = world_file.NodeIndex;
const World = world_file.World;
const Header = wire.frame.Header;

/// The kinds of events that are counted, and that a transcript may expect.
pub const Count = enum {
    /// Data of a broken lane has gone again on another, and answers of shared states have.
    resent,
    resent_states,
    /// Data that had gone again by then, the first frame or a later one, was thrown away.
    thrown_away,
    /// Data that was thrown away, as above, and whose attempt was over.
    crossed,
};

pub const Copies = struct {
    /// All data that has gone again.
    gone: std.AutoHashMapUnmanaged(Frame, void) = .empty,

    /// All copies of a frame have these fields in common.
    const Frame = struct {
        from: NodeIndex,
        to: NodeIndex,
        group: u16,
        epoch: u64,
        tag: u64,
        sequence: u64,
        attempt: u32,
        kind: wire.frame.Kind,
        index: u64,
        class: u16,
        reduced_attempt: u32,
        fragment: u8,

        fn of(header: *const Header, from: NodeIndex, to: NodeIndex) Frame {
            return .{
                .from = from,
                .to = to,
                .group = header.group,
                .epoch = header.epoch,
                .tag = header.tag,
                .sequence = header.sequence,
                .attempt = header.attempt,
                .kind = header.kind,
                .index = header.index,
                .class = header.class,
                .reduced_attempt = header.reduced_attempt,
                .fragment = @bitCast(header.fragment),
            };
        }
    };
};

/// This lane of `from` is about to send.
pub fn leaves(world: *World, lane: *Lane, from: NodeIndex, to: NodeIndex) void {
    const is_new = lane.out_head_left.len == wire.frame.header_bytes;
    if (!is_new or lane.out_owner == null or lane.unacked.count == 0) return;
    const sent = lane.unacked.newest();
    if (sent.request) |*request| {
        if (request.is_answer and request.item.again > 0) count(world, .resent_states);
        return;
    }
    if (sent.again == 0) return;
    const header = lane.outgoing();
    count(world, .resent);
    world.note("p{d} sends p{d} {t} {d} once more", .{ from, to, header.kind, header.index });
    world.copies.gone.put(world.gpa, .of(&header, from, to), {}) catch @panic("out of memory");
}

/// The last of a payload comes in that the peer `to` throws away. Payloads that were kept ahead of
/// their time and are not wanted then (session/link.zig) do not come here.
pub fn thrown_away(world: *World, lane: *const Lane, from: NodeIndex, to: NodeIndex) void {
    const header = &lane.incoming;
    if (!header.kind.is_data() or world.copies.gone.count() == 0) return;
    if (!world.copies.gone.contains(.of(header, from, to))) return;
    count(world, .thrown_away);
    const is_over = is_passed(world, header, to);
    if (is_over) count(world, .crossed);
    world.note("p{d} throws away {t} {d} of p{d}{s}", .{
        to, header.kind, header.index, from, if (is_over) ", whose attempt is over" else "",
    });
}

fn is_passed(world: *const World, header: *const Header, at: NodeIndex) bool {
    for (world.nodes[at].session.?.groups.items) |group| {
        if (group.state != .joined or group.id != header.group) continue;
        const epoch = group.member.epoch_of(header.epoch) orelse return false;
        return header.attempt < epoch.attempt;
    }
    return false;
}

fn count(world: *World, what: Count) void {
    world.statistics.copies.getPtr(what).* += 1;
}
