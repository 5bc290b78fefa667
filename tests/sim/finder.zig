//! Finder: what the coordinator of a world finds out about the addresses that peers name: at once
//! in half of the worlds; in the others after a while, or when there is room. A peer says a name,
//! and others are told a number (`told_of`), so a dial to an address that was not found out shows
//! (world.zig: dial_lane).
//!
//! Next: engine/protocol/door.zig, which asks.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const stranger = @import("stranger.zig");
const swarm = @import("swarm.zig");
const world_file = @import("world.zig");
const World = world_file.World;
const NodeIndex = world_file.NodeIndex;
const Question = protocol.addresses.Question;
const Answer = protocol.addresses.Answer;
const Reply = protocol.addresses.Reply;

const name_prefix = "name-";
const number_prefix = "p-";
pub const text_bytes_max = 32;

/// A search under way; one of another start of the coordinator is for nobody.
pub const Search = struct {
    incarnation: u32,
    number: u64,
    id: base.PeerId,
    where: Where,

    /// Strangers of transcripts are found where they say, and refuse every dial.
    const Where = union(enum) { nowhere, stranger, node: NodeIndex };
};

pub fn name_of(node: NodeIndex, text: *[text_bytes_max]u8) []const u8 {
    return write(name_prefix, node, text);
}

fn number_of(node: NodeIndex, text: *[text_bytes_max]u8) []const u8 {
    return write(number_prefix, node, text);
}

fn write(prefix: []const u8, node: NodeIndex, text: *[text_bytes_max]u8) []const u8 {
    return std.fmt.bufPrint(text, "{s}{d}:10", .{ prefix, node }) catch unreachable;
}

/// The peer that a dial leads to; null: this was told to nobody.
pub fn told_of(world: *const World, address: []const u8) ?NodeIndex {
    return read(world, number_prefix, address);
}

fn read(world: *const World, prefix: []const u8, address: []const u8) ?NodeIndex {
    const host = (base.Endpoint.parse_told(address) catch return null).host;
    if (!std.mem.startsWith(u8, host, prefix)) return null;
    const index = std.fmt.parseInt(NodeIndex, host[prefix.len..], 10) catch return null;
    const is_peer = index != world_file.coordinator_index and index < world.nodes.len;
    return if (is_peer) index else null;
}

pub fn find(world: *World, question: *const Question) Reply {
    const search: Search = .{
        .incarnation = world.incarnations,
        .number = question.number,
        .id = question.peer,
        .where = if (read(world, name_prefix, question.address)) |node|
            .{ .node = node }
        else if (world.scripted and is_stranger(question.address)) .stranger else .nowhere,
    };
    const seed = world.config.seed;
    var of_world = swarm.stream(seed, "addresses");
    if (world.scripted or of_world.below(2) == 0) return .{ .answer = answer_of(world, search) };
    var prng = swarm.stream(seed ^ question.number ^ world.now, "address");
    if (world.phase == .safety and prng.below(8) == 0) return .busy;
    const most = if (world.phase == .safety) world.config.silence_ns else world.config.heartbeat_ns;
    world.after(prng.below(most), .{ .searched = search });
    return .later;
}

/// The end of a search.
pub fn found(world: *World, search: Search) void {
    if (search.incarnation != world.incarnations) return;
    const node = &world.nodes[world_file.coordinator_index];
    world.coordinator.answered(node.here(), search.number, answer_of(world, search));
    world.settle(node);
}

threadlocal var told: [text_bytes_max]u8 = undefined;

/// The process at that node says who it is.
fn answer_of(world: *const World, search: Search) Answer {
    const index = switch (search.where) {
        .nowhere => return .{ .not_found = .name_unknown },
        .stranger => return .{ .found = stranger.long_address },
        .node => |index| index,
    };
    const node = &world.nodes[index];
    if (node.state != .up or !node.id.eql(search.id)) return .{ .not_found = .refused };
    return .{ .found = number_of(index, &told) };
}

/// One that nobody but a stranger of a transcript says.
pub fn is_stranger(address: []const u8) bool {
    return std.mem.eql(u8, address, stranger.long_address);
}
