//! Counters: what each path has carried and dropped, and how late packets were handed over. It owns
//! the numbers and their form as JSON; whoever moves packets says what happened.

const std = @import("std");

pub const Drop = enum { cut, flow_queue, up_queue, path_queue, loss, down_queue, device };

pub const Counters = struct {
    in_packets: u64 = 0,
    in_bytes: u64 = 0,
    out_packets: u64 = 0,
    out_bytes: u64 = 0,
    dropped_bytes: u64 = 0,
    dropped: std.EnumArray(Drop, u64) = .initFill(0),

    pub fn entered(counters: *Counters, packets: u64, bytes: u64) void {
        counters.in_packets += packets;
        counters.in_bytes += bytes;
    }

    pub fn left(counters: *Counters, packets: u64, bytes: u64) void {
        counters.out_packets += packets;
        counters.out_bytes += bytes;
    }

    pub fn lost(counters: *Counters, why: Drop, packets: u64, bytes: u64) void {
        counters.dropped.getPtr(why).* += packets;
        counters.dropped_bytes += bytes;
    }

    pub fn write(counters: *const Counters, out: *std.Io.Writer) !void {
        try out.print(
            "\"in_packets\":{d},\"in_bytes\":{d},\"out_packets\":{d},\"out_bytes\":{d}," ++
                "\"dropped_bytes\":{d},\"dropped\":{{",
            .{
                counters.in_packets,
                counters.in_bytes,
                counters.out_packets,
                counters.out_bytes,
                counters.dropped_bytes,
            },
        );
        for (std.enums.values(Drop), 0..) |why, index| {
            const comma = if (index > 0) "," else "";
            try out.print("{s}\"{t}\":{d}", .{ comma, why, counters.dropped.get(why) });
        }
        try out.writeAll("}");
    }
};

/// How often something took how long, in steps of an eighth: exact below 8 us.
pub const Lateness = struct {
    steps: [steps_count]u64 = @splat(0),
    count: u64 = 0,
    max_us: u64 = 0,

    const parts = 8;
    const steps_count = parts * 62;

    pub fn note(lateness: *Lateness, us: u64) void {
        lateness.steps[step_of(us)] += 1;
        lateness.count += 1;
        lateness.max_us = @max(lateness.max_us, us);
    }

    /// The least time that so many of a thousand did not exceed, up to the width of a step.
    pub fn quantile_us(lateness: *const Lateness, per_mille: u64) u64 {
        var seen: u64 = 0;
        for (lateness.steps, 0..) |count, step| {
            seen += count;
            if (seen * 1000 >= lateness.count * per_mille) return end_of(step);
        }
        unreachable;
    }

    fn step_of(us: u64) usize {
        if (us < parts) return @intCast(us);
        const octave: u6 = @intCast(63 - @clz(us)); // 3 or more
        const part = (us >> (octave - 3)) - parts;
        return @as(usize, octave - 2) * parts + @as(usize, @intCast(part));
    }

    fn end_of(step: usize) u64 {
        if (step < parts) return step;
        const octave: u6 = @intCast(step / parts + 2);
        return ((step % parts + parts + 1) << (octave - 3)) - 1;
    }

    pub fn write(lateness: *const Lateness, out: *std.Io.Writer) !void {
        try out.print("{{\"count\":{d},\"p50\":{d},\"p99\":{d},\"p999\":{d},\"max\":{d}}}", .{
            lateness.count,
            lateness.quantile_us(500),
            lateness.quantile_us(990),
            lateness.quantile_us(999),
            lateness.max_us,
        });
    }
};

test "each time is in the step that ends at it or a little behind" {
    var us: u64 = 0;
    while (us < 1 << 40) : (us += 1 + us / 7) {
        const end = Lateness.end_of(Lateness.step_of(us));
        try std.testing.expect(end >= us and end <= us + us / 8);
    }
    _ = Lateness.step_of(std.math.maxInt(u64));
}

test "quantiles are those of what was noted" {
    var lateness: Lateness = .{};
    try std.testing.expectEqual(0, lateness.quantile_us(990));
    for (0..980) |_| lateness.note(3);
    for (0..20) |_| lateness.note(1000);
    try std.testing.expectEqual(3, lateness.quantile_us(500));
    const late: f64 = @floatFromInt(lateness.quantile_us(990));
    try std.testing.expectApproxEqRel(1000.0, late, 0.13);
    try std.testing.expectEqual(1000, lateness.max_us);
}

test "counters are an object of JSON" {
    var counters: Counters = .{};
    counters.entered(3, 4500);
    counters.left(2, 3000);
    counters.lost(.loss, 1, 1500);
    var buffer: [512]u8 = undefined;
    var out = std.Io.Writer.fixed(&buffer);
    try out.writeAll("{");
    try counters.write(&out);
    try out.writeAll("}");
    const gpa = std.testing.allocator;
    const read = try std.json.parseFromSlice(std.json.Value, gpa, out.buffered(), .{});
    defer read.deinit();
    const dropped = read.value.object.get("dropped").?.object;
    try std.testing.expectEqual(1, dropped.get("loss").?.integer);
    try std.testing.expectEqual(0, dropped.get("cut").?.integer);
}
