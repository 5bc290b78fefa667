//! planner-bench: a program that plans the paths of matrices (`zig build planner-bench`).
//! bench/planner.py draws the matrices, and makes table rows of the output; tests compare the
//! shares with those of another solver of linear programs.
//!
//! The input has numbers between spaces. For each matrix: the number of members, the rates of their
//! uplinks and downlinks in bytes per second, and for each member the rates and then the round
//! trips in nanoseconds of its links to all members. All rates are limits. The output has a line of
//! JSON for each matrix: the plan, the nanoseconds of the search, and the times of an all_reduce of
//! 64 MiB by the plan, in rank order, by the ring with the least sum of costs (a cost is one over a
//! rate, as PCCL 1.0 has it), and at least.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const Mask = base.Mask;
const Matrix = plan.Matrix;
const Paths = base.Paths;
const planner = plan.planner;

const gpa = std.heap.c_allocator;
const cost_one: u64 = 1 << 50;

const Input = std.mem.TokenIterator(u8, .any);

pub fn main(init: std.process.Init) !void {
    var in_buffer: [4096]u8 = undefined;
    var stdin = std.Io.File.stdin().reader(init.io, &in_buffer);
    const text = try stdin.interface.allocRemaining(gpa, .unlimited);
    defer gpa.free(text);
    var out_buffer: [4096]u8 = undefined;
    var stdout = std.Io.File.stdout().writerStreaming(init.io, &out_buffer);
    var input = std.mem.tokenizeAny(u8, text, " \n");
    while (input.peek() != null) try plan_one(&input, &stdout.interface, init.io);
    try stdout.interface.flush();
}

fn number(input: *Input) !u64 {
    return std.fmt.parseInt(u64, input.next() orelse return error.TooFewNumbers, 10);
}

fn plan_one(input: *Input, out: *std.Io.Writer, io: std.Io) !void {
    var matrix: Matrix = .{};
    const count: usize = @intCast(try number(input));
    if (count < 3 or count > plan.matrix.members_max) return error.MembersOutOfRange;
    for (matrix.up[0..count]) |*rate| rate.* = try number(input);
    for (matrix.down[0..count]) |*rate| rate.* = try number(input);
    for (0..count) |a| {
        matrix.is_full[a] = true;
        for (matrix.rates[a][0..count]) |*rate| rate.* = try number(input);
        for (matrix.rtts_ns[a][0..count]) |*trip| trip.* = try number(input);
    }
    matrix.limits = matrix.rates;
    const alive: Mask = .full(count);
    const question: planner.Question = .{
        .alive = &alive,
        .world_size = count,
        .broken = &.{},
        .matrix = &matrix,
    };
    const begin = std.Io.Clock.cpu_thread.now(io);
    const paths = planner.paths_of(gpa, &question).?;
    const spent = begin.durationTo(std.Io.Clock.cpu_thread.now(io));
    const search_ns: u64 = @intCast(spent.toNanoseconds());
    const chosen: planner.Explained = .of(&matrix, &paths, 0);
    const ranks: planner.Explained = .of(&matrix, &.all(&alive, count), 0);
    const costs: planner.Explained = .of(&matrix, &ring_of_costs(&alive, count, &matrix), 0);
    var json: std.json.Stringify = .{ .writer = out };
    var shares: [plan.matrix.members_max]u32 = undefined;
    for (shares[0..count], paths.shares.of[0..count]) |*to, share| to.* = share;
    try json.write(.{
        .plan = @tagName(paths.plan),
        .order = paths.order.slice(),
        .shares = shares[0..count],
        .search_ns = search_ns,
        .predicted_ns = chosen.figures.predicted_ns,
        .ranks_ns = ranks.figures.predicted_ns,
        .costs_ns = costs.figures.predicted_ns,
        .bound_ns = chosen.figures.bound_ns,
    });
    try out.writeByte('\n');
}

fn ring_of_costs(alive: *const Mask, count: usize, matrix: *const Matrix) Paths {
    var costs: plan.cycle.RoundTrips = @splat(@splat(0));
    for (0..count) |a| for (0..count) |b| if (a != b) {
        costs[a][b] = cost_one / matrix.rates[a][b];
    };
    var paths: Paths = .all(alive, count);
    paths.order = plan.cycle.search(alive, &.{}, &costs).?;
    return paths;
}
