//! wan: a wide area network in one process. It owns the loop: packets from the TUN devices into the
//! stages, those that are due out of them, and the commands of whoever started it.
//!
//!     wan NODES SEED
//!
//! Standard input is a socket. The first line on it is ours: the process id and the descriptors of
//! the namespaces, an object of JSON. Afterwards a line there is a command (control.zig), and gets
//! a line as its answer. The process ends when the socket is closed, or its parent is gone, and
//! everything that it has made with it. bench/wan_network.py starts it; what is emulated, and what
//! not, is told in docs/internals/BENCHMARKS.md.

const std = @import("std");
const linux = std.os.linux;
const network = @import("network.zig");
const packets = @import("packet.zig");
const stages_of = @import("stages.zig");
const counters = @import("counters.zig");
const Control = @import("control.zig").Control;
const gpa = std.heap.smp_allocator;

/// How many packets of a node are read before the others have their turn.
const packets_in_turn = 16;
/// The shortest wait, so that several packets leave at once: each is late by as much at most, and
/// the emulator needs less CPU by about a third.
const nap_ns_min = 100 * std.time.ns_per_us;
const line_bytes_max = 4096;
const answer_bytes_max = 1 << 20;
const control_descriptor = 0;

var nodes: [stages_of.nodes_max]network.Node = undefined;
var stages: stages_of.Stages = undefined;
var lateness: counters.Lateness = .{};
var content: [packets.content_bytes_max]u8 = undefined;
var answer_buffer: [answer_bytes_max]u8 = undefined;

pub fn main(init: std.process.Init.Minimal) !u8 {
    var arguments = init.args.iterate();
    _ = arguments.skip();
    const count = try std.fmt.parseInt(u8, arguments.next() orelse return error.NoNodes, 10);
    const seed = try std.fmt.parseInt(u64, arguments.next() orelse return error.NoSeed, 10);
    if (count == 0 or count > stages_of.nodes_max) return error.TooManyNodes;

    _ = linux.prctl(@intFromEnum(linux.PR.SET_PDEATHSIG), @intFromEnum(linux.SIG.KILL), 0, 0, 0);
    stages.init(gpa, count, seed, deliver);
    network.make(nodes[0..count]) catch |err| {
        try say("{{\"error\":\"{t}\"}}\n", .{err});
        return 1;
    };
    const is_realtime = prefer_this_process();
    try greet(nodes[0..count], is_realtime);
    try loop(nodes[0..count]);
    return 0;
}

/// It must run when a packet is due, whatever the peers do. True: before all others.
fn prefer_this_process() bool {
    _ = linux.prctl(@intFromEnum(linux.PR.SET_TIMERSLACK), 1, 0, 0, 0);
    _ = linux.mlockall(.{ .CURRENT = true, .FUTURE = true });
    const first: linux.sched_param = .{ .priority = 1 };
    return linux.errno(linux.sched_setscheduler(0, .{ .mode = .FIFO }, &first)) == .SUCCESS;
}

fn greet(made: []const network.Node, is_realtime: bool) !void {
    var out = std.Io.Writer.fixed(&answer_buffer);
    const pid = linux.getpid();
    try out.print("{{\"pid\":{d},\"realtime\":{},\"namespaces\":[", .{ pid, is_realtime });
    for (made, 0..) |node, index| {
        try out.print("{s}{d}", .{ if (index > 0) "," else "", node.namespace });
    }
    try out.writeAll("]}\n");
    try write(out.buffered());
}

fn loop(made: []const network.Node) !void {
    var polled: [stages_of.nodes_max + 1]linux.pollfd = undefined;
    const readable = linux.POLL.IN;
    polled[0] = .{ .fd = control_descriptor, .events = readable, .revents = 0 };
    for (made, polled[1..][0..made.len]) |node, *entry| {
        entry.* = .{ .fd = node.device, .events = readable, .revents = 0 };
    }
    var commands: Commands = .{};
    while (true) {
        try stages.run(now_ns());
        var wait = until_next(now_ns());
        _ = linux.ppoll(&polled, made.len + 1, if (wait) |*time| time else null, null);
        if (polled[0].revents != 0 and !try commands.serve()) return;
        for (made, polled[1..][0..made.len], 0..) |node, entry, index| {
            if (entry.revents == 0) continue;
            for (0..packets_in_turn) |_| {
                const received = network.receive(node, &content) orelse break;
                try stages.enter(@intCast(index), received, now_ns());
            }
        }
    }
}

fn until_next(from_ns: u64) ?linux.timespec {
    const due_ns = stages.next_ns() orelse return null;
    const ns = @max(nap_ns_min, due_ns -| from_ns);
    return .{
        .sec = @intCast(ns / std.time.ns_per_s),
        .nsec = @intCast(ns % std.time.ns_per_s),
    };
}

fn deliver(packet: *packets.Packet, due_ns: u64) bool {
    lateness.note((now_ns() -| due_ns) / std.time.ns_per_us);
    return network.send(nodes[packet.target], packet.content());
}

/// Lines that come in pieces of any size.
const Commands = struct {
    buffer: [line_bytes_max]u8 = undefined,
    filled: usize = 0,

    /// False: nobody is there any more.
    fn serve(commands: *Commands) !bool {
        const room = commands.buffer[commands.filled..];
        const count = linux.read(control_descriptor, room.ptr, room.len);
        if (linux.errno(count) != .SUCCESS or count == 0) return false;
        commands.filled += count;
        const control: Control = .{ .stages = &stages, .lateness = &lateness };
        while (std.mem.indexOfScalar(u8, commands.buffer[0..commands.filled], '\n')) |end| {
            var out = std.Io.Writer.fixed(&answer_buffer);
            try control.answer(commands.buffer[0..end], &out);
            try write(out.buffered());
            const rest = commands.buffer[end + 1 .. commands.filled];
            std.mem.copyForwards(u8, &commands.buffer, rest);
            commands.filled = rest.len;
        }
        return commands.filled < commands.buffer.len; // a line without an end is nobody's
    }
};

fn say(comptime format: []const u8, arguments: anytype) !void {
    var out = std.Io.Writer.fixed(&answer_buffer);
    try out.print(format, arguments);
    try write(out.buffered());
}

fn write(bytes: []const u8) !void {
    var done: usize = 0;
    while (done < bytes.len) {
        const count = linux.write(control_descriptor, bytes.ptr + done, bytes.len - done);
        if (linux.errno(count) != .SUCCESS) return error.NobodyThere;
        done += count;
    }
}

fn now_ns() u64 {
    var time: linux.timespec = undefined;
    _ = linux.clock_gettime(.MONOTONIC, &time);
    return @as(u64, @intCast(time.sec)) * std.time.ns_per_s + @as(u64, @intCast(time.nsec));
}

test {
    _ = @import("control.zig");
    _ = @import("counters.zig");
    _ = @import("flow.zig");
    _ = @import("packet.zig");
    _ = @import("path.zig");
    _ = @import("pool.zig");
    _ = @import("queue.zig");
    _ = @import("stages.zig");
}
