//! Overheard: what travels between nodes, as somebody beside the cables records it: nothing is
//! encrypted (docs/internals/PROMISE.md), so an adversary has all of it. Insiders (insider.zig) and
//! strangers (stranger.zig) say it again, changed or not. Only the last part of a long record is
//! kept.

const std = @import("std");
const base = @import("base");
const units_file = @import("units.zig");
const world_file = @import("world.zig");
const Connection = world_file.Connection;
const NodeIndex = world_file.NodeIndex;
const Prng = base.Prng;
const Unit = units_file.Unit;
const World = world_file.World;

/// How much of a unit is worth keeping, and of a connection.
const unit_bytes_max = 512;
pub const recording_bytes_max = 2048;

/// The beginning of what somebody who dialed has sent.
pub const Recording = struct {
    connection: u32 = std.math.maxInt(u32),
    is_control: bool = false,
    to: NodeIndex = 0,
    /// Where its units begin; the first is the hello.
    starts: [marks_max]u16 = undefined,
    marks: u8 = 0,
    length: u16 = 0,
    bytes: [recording_bytes_max]u8 = undefined,

    const marks_max = 32;

    pub fn slice(recording: *const Recording) []const u8 {
        return recording.bytes[0..recording.length];
    }

    /// From some unit on to its end.
    pub fn tail(recording: *const Recording, prng: *Prng) []const u8 {
        if (recording.marks == 0) return "";
        return recording.bytes[recording.starts[prng.below(recording.marks)]..recording.length];
    }

    fn append(recording: *Recording, unit: []const u8) void {
        if (recording.marks == marks_max or recording.length + unit.len > recording.bytes.len)
            return;
        recording.starts[recording.marks] = recording.length;
        recording.marks += 1;
        @memcpy(recording.bytes[recording.length..][0..unit.len], unit);
        recording.length += @intCast(unit.len);
    }
};

/// The last units of one kind.
pub const Ring = struct {
    const places = 64;

    bytes: [places][unit_bytes_max]u8 = undefined,
    lengths: [places]u16 = @splat(0),
    count: usize = 0,

    fn add(ring: *Ring, unit: []const u8) void {
        if (unit.len > unit_bytes_max) return;
        const place = ring.count % places;
        @memcpy(ring.bytes[place][0..unit.len], unit);
        ring.lengths[place] = @intCast(unit.len);
        ring.count += 1;
    }

    /// Null before anything was said.
    pub fn pick(ring: *const Ring, prng: *Prng) ?[]const u8 {
        if (ring.count == 0) return null;
        const place = prng.below(@min(ring.count, places));
        return ring.bytes[place][0..ring.lengths[place]];
    }
};

pub const Overheard = struct {
    recordings: [32]Recording = @splat(.{}),
    /// Messages of peers to the coordinator, and frames to each other.
    messages: Ring = .{},
    frames: Ring = .{},

    /// Bytes that leave one end of a connection.
    pub fn listen(o: *Overheard, world: *World, c: *Connection, side: u1, bytes: []const u8) void {
        if (c.is_control and side == 1) return; // of the coordinator nothing is worth repeating
        const units = &c.ears[side];
        units.feed(world.gpa, bytes);
        while (units.next(c.is_control, side)) |unit| {
            switch (unit.kind) {
                .message => o.messages.add(unit.bytes),
                .frame => o.frames.add(unit.bytes),
                .hello, .answer, .noise => {},
            }
            if (side == 0) o.record(c, unit);
        }
    }

    fn record(o: *Overheard, c: *const Connection, unit: Unit) void {
        const recording = &o.recordings[c.index % o.recordings.len];
        if (unit.kind == .hello) recording.* = .{
            .connection = c.index,
            .is_control = c.is_control,
            .to = c.ends[1].node,
        };
        if (recording.connection == c.index) recording.append(unit.bytes);
    }

    pub fn pick_recording(o: *const Overheard, prng: *Prng, is_control: bool) ?*const Recording {
        const first = prng.below(o.recordings.len);
        for (0..o.recordings.len) |offset| {
            const recording = &o.recordings[(first + offset) % o.recordings.len];
            if (recording.length > 0 and recording.is_control == is_control) return recording;
        }
        return null;
    }
};
