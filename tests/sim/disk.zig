//! Disk: the bytes of journal and log, which survive the coordinator of a world. Those of the log
//! are there when the coordinator's call returns; with a disk that fails, a crash may cost their
//! end, as a loss of power does. Those of the journal are appended, or all replaced at once, some
//! time after the coordinator asked for it. A crash may fall into a write. Then a part of an append
//! is there, or a replacement is there as a whole or not at all; of the writes that wait behind it,
//! nothing is there, or the first. Messages that the coordinator sent before the crash are heard,
//! later ones are not. A disk may be full, fail in a write of which a part, or all, is there, take
//! seconds for a write, and change bits of its contents. told.zig says which messages may be sent
//! before a record is there. Next: world.zig, which starts the coordinator that writes to it.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const faults = @import("faults.zig");
const Facts = @import("told.zig").Facts;
const ms = world_file.ms;
const world_file = @import("world.zig");
const World = world_file.World;
const journal = protocol.journal;

pub const Disk = struct {
    world: *World,
    bytes: std.ArrayList(u8) = .empty,
    log: std.ArrayList(u8) = .empty,
    /// The writes to do, in this order; the first is under way.
    given: std.ArrayList(Write) = .empty,
    /// Something failed that what is appended would follow.
    behind: bool = false,
    prng: base.Prng,
    /// The facts that it has, for whoever asks whether something may be said.
    facts: Facts = .{},
    /// It takes nothing more until the next start of the coordinator, or until there is room for
    /// what replaces all.
    full: bool = false,
    /// A scenario's: the coordinator dies in the write after so many more.
    dies_after: ?u32 = null,
    /// How much of the write that failed last is there all the same.
    done_all_the_same: usize = 0,
    /// Bits that are not as they were written.
    flips: [flips_max]Flip = undefined,
    flip_count: usize = 0,

    const Flip = struct { byte: usize, bit: u3 };
    const flips_max = 3;

    const File = enum { journal, log };

    const Write = struct { number: u64, bytes: []const u8, replaces: bool };

    pub fn journal_of(disk: *Disk) journal.Journal {
        return .{ .ctx = disk, .vtable = &.{
            .begin = begin,
            .append = append,
            .replace = replace,
            .log = log_more,
            .log_anew = log_anew,
        } };
    }

    fn begin(ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const disk: *Disk = @ptrCast(@alignCast(ctx));
        disk.behind = false;
        disk.facts.forget_journal();
        try disk.write_whole(bytes, .journal);
        disk.facts.read(disk.world.gpa, disk.bytes.items);
        const world = disk.world;
        const node = &world.nodes[world_file.coordinator_index];
        if (node.dies or node.is_frozen()) return;
        // It waits for this one.
        if (disk.draw_slowness()) |ns| faults.freeze_for(world, node, ns);
    }

    fn append(ctx: *anyopaque, number: u64, bytes: []const u8) error{JournalFailed}!void {
        const disk: *Disk = @ptrCast(@alignCast(ctx));
        disk.give(number, bytes, false);
    }

    fn replace(ctx: *anyopaque, number: u64, bytes: []const u8) error{JournalFailed}!void {
        const disk: *Disk = @ptrCast(@alignCast(ctx));
        disk.give(number, bytes, true);
    }

    fn log_more(ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const disk: *Disk = @ptrCast(@alignCast(ctx));
        const gpa = disk.world.gpa;
        const part = disk.part_of(bytes.len, .log);
        const done = (part catch disk.done_all_the_same) orelse bytes.len;
        disk.log.appendSlice(gpa, bytes[0..done]) catch @panic("out of memory");
        if (done == bytes.len) disk.facts.read_log(gpa, bytes);
        _ = try part;
    }

    fn log_anew(ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const disk: *Disk = @ptrCast(@alignCast(ctx));
        try disk.write_whole(bytes, .log);
    }

    fn give(disk: *Disk, number: u64, bytes: []const u8, replaces: bool) void {
        const gpa = disk.world.gpa;
        if (disk.world.nodes[world_file.coordinator_index].dies) return; // it has ended
        disk.given.append(gpa, .{
            .number = number,
            .bytes = gpa.dupe(u8, bytes) catch @panic("out of memory"),
            .replaces = replaces,
        }) catch @panic("out of memory");
        if (disk.given.items.len == 1) disk.turn();
    }

    /// One write after the other.
    fn turn(disk: *Disk) void {
        const world = disk.world;
        const prompt = if (world.scripted) 0 else disk.prng.below(3 * ms);
        world.after(disk.draw_slowness() orelse prompt, .{ .written = world.incarnations });
    }

    fn draw_slowness(disk: *Disk) ?u64 {
        const world = disk.world;
        if (!faults.chance(world, .slow_journal, 4)) return null;
        world.statistics.fault(.slow_journal);
        world.note("the disk of the coordinator is slow", .{});
        return faults.draw_time(world.faults.stream(.slow_journal), 3000);
    }

    /// The first of what was given is done, or not.
    pub fn written(disk: *Disk, incarnation: u32) void {
        const world = disk.world;
        // It was given by a coordinator that has died since.
        if (incarnation != world.incarnations) return;
        const node = &world.nodes[world_file.coordinator_index];
        const write = disk.given.orderedRemove(0);
        defer world.gpa.free(write.bytes);
        if (disk.given.items.len > 0) disk.turn();
        disk.perform(&write) catch {
            disk.behind = true;
            if (!node.dies) world.coordinator.journal_failed(node.here(), write.number);
            return world.settle(node);
        };
        if (!node.dies) {
            disk.facts.read(world.gpa, disk.bytes.items);
            world.coordinator.journal_written(node.here(), write.number);
        }
        world.settle(node);
    }

    fn perform(disk: *Disk, write: *const Write) error{JournalFailed}!void {
        if (write.replaces) {
            try disk.write_whole(write.bytes, .journal);
            disk.behind = false;
            return disk.facts.forget_journal();
        }
        if (disk.behind) return error.JournalFailed;
        const length = write.bytes.len;
        const part = disk.part_of(length, .journal);
        const done = (part catch disk.done_all_the_same) orelse length;
        disk.bytes.appendSlice(disk.world.gpa, write.bytes[0..done]) catch @panic("out of memory");
        _ = try part;
    }

    /// The new file takes the place of the old one, or does not.
    fn write_whole(disk: *Disk, bytes: []const u8, file: File) error{JournalFailed}!void {
        const gpa = disk.world.gpa;
        disk.make_room();
        const part = disk.part_of(2, file);
        const renamed = (part catch disk.done_all_the_same) orelse 2;
        if (renamed > 0) {
            const kept = if (file == .log) &disk.log else &disk.bytes;
            kept.clearRetainingCapacity();
            kept.appendSlice(gpa, bytes) catch @panic("out of memory");
            switch (file) {
                .journal => disk.flip_count = 0,
                .log => disk.facts.read_log(gpa, bytes[journal.header_bytes..]),
            }
        }
        _ = try part;
    }

    fn make_room(disk: *Disk) void {
        if (disk.full and !faults.chance(disk.world, .full_journal, 2) and
            !faults.chance(disk.world, .failing_journal, 2)) disk.full = false;
    }

    /// The coordinator is dead. The first of what it has given may be there.
    pub fn crash(disk: *Disk) void {
        const world = disk.world;
        const count = disk.given.items.len;
        const kept = if (world.scripted) 0 else disk.prng.below(count + 1);
        for (disk.given.items, 0..) |*write, index| {
            defer world.gpa.free(write.bytes);
            if (index >= kept or disk.full or (disk.behind and !write.replaces)) continue;
            disk.behind = false;
            if (write.replaces) disk.bytes.clearRetainingCapacity();
            disk.bytes.appendSlice(world.gpa, write.bytes) catch @panic("out of memory");
            if (write.replaces) disk.flip_count = 0;
        }
        disk.given.clearRetainingCapacity();
        if (!faults.chance(world, .failing_journal, 2)) return;
        disk.lose_end_of_log(world.faults.stream(.failing_journal).below(disk.log.items.len + 1));
    }

    /// Cuts the log after `left` bytes, as a loss of power does.
    pub fn lose_end_of_log(disk: *Disk, left: usize) void {
        disk.world.note("of {d} bytes of the log {d} are left", .{ disk.log.items.len, left });
        disk.log.shrinkRetainingCapacity(left);
        disk.world.checkers.forgetful = true; // members that know more are let go
    }

    /// Nothing of it is written.
    fn forget_given(disk: *Disk) void {
        for (disk.given.items) |*write| disk.world.gpa.free(write.bytes);
        disk.given.clearRetainingCapacity();
    }

    /// How much of a write is done before the coordinator dies; null: it lives.
    fn part_of(disk: *Disk, length: usize, file: File) error{JournalFailed}!?usize {
        const world = disk.world;
        // There are many more writes to the log.
        const rarer: u64 = if (file == .log) 20 else 1;
        const node = &world.nodes[world_file.coordinator_index];
        if (node.dies) return 0; // what a dead process writes
        if (!disk.full and faults.chance(world, .full_journal, 20 * rarer)) {
            world.statistics.fault(.full_journal);
            world.note("the disk of the coordinator is full", .{});
            disk.full = true;
        }
        disk.done_all_the_same = 0;
        if (!disk.full and faults.chance(world, .failing_journal, 20 * rarer)) {
            world.statistics.fault(.failing_journal);
            disk.full = true;
            const part = world.faults.stream(.failing_journal).below(length + 1);
            disk.done_all_the_same = part;
            world.note("a write fails, with {d} of {d} bytes on disk", .{ part, length });
        }
        if (disk.full) return error.JournalFailed;
        if (file == .journal) if (disk.dies_after) |*writes| {
            if (writes.* == 0) {
                disk.dies_after = null;
                disk.die();
                return length / 2;
            }
            writes.* -= 1;
        };
        if (!faults.chance(world, .torn_journal, 6 * rarer)) return null;
        world.statistics.fault(.torn_journal);
        disk.die();
        const part = world.faults.stream(.torn_journal).below(length + 1);
        world.note("the coordinator dies with {d} of {d} bytes written", .{ part, length });
        return part;
    }

    /// Whatever was to be on disk before it was said is a lie from now on.
    fn die(disk: *Disk) void {
        disk.forget_given(); // what was to follow does not
        disk.world.flush_coordinator();
        disk.world.nodes[world_file.coordinator_index].dies = true;
    }

    // ---- bits that change

    /// False if there is nothing that could change, or enough has.
    pub fn flip(disk: *Disk, prng: *base.Prng) bool {
        if (disk.flip_count == flips_max or disk.bytes.items.len == 0) return false;
        const one: Flip = .{
            .byte = prng.below(disk.bytes.items.len),
            .bit = @intCast(prng.below(8)),
        };
        for (disk.flips[0..disk.flip_count]) |other| if (std.meta.eql(one, other)) return false;
        disk.world.note("bit {d} of byte {d} of the journal flips", .{ one.bit, one.byte });
        disk.flips[disk.flip_count] = one;
        disk.flip_count += 1;
        toggle(disk.bytes.items, one);
        return true;
    }

    fn toggle(bytes: []u8, one: Flip) void {
        bytes[one.byte] ^= @as(u8, 1) << one.bit;
    }

    /// Mends it as a person with a copy does. False: it is as it was written.
    pub fn mend(disk: *Disk) bool {
        if (disk.flip_count == 0) return false;
        for (disk.flips[0..disk.flip_count]) |one| toggle(disk.bytes.items, one);
        disk.flip_count = 0;
        return true;
    }

    /// A coordinator reads of a changed journal what was written, or refuses it (P8).
    pub fn check_flips(disk: *Disk) void {
        if (disk.flip_count == 0) return;
        const gpa = disk.world.gpa;
        const bytes = gpa.dupe(u8, disk.bytes.items) catch @panic("out of memory");
        defer gpa.free(bytes);
        for (disk.flips[0..disk.flip_count]) |one| toggle(bytes, one);
        const found = good_part(disk.bytes.items) orelse return;
        const wanted = good_part(bytes) orelse return;
        if (std.mem.eql(u8, found, wanted)) return;
        disk.world.checkers.fail(
            .p8_restart,
            "of a journal with {d} changed bits {d} bytes are read, of the unchanged one {d}",
            .{ disk.flip_count, found.len, wanted.len },
        );
    }

    /// The records that replay; null if it is refused.
    fn good_part(bytes: []const u8) ?[]const u8 {
        var replay: journal.Replay = .init(bytes);
        while (replay.next() catch return null) |_| {}
        return bytes[0..replay.good_bytes];
    }
};

test "a changed journal is refused, or read as it was written" {
    // Goal: P8, for every bit. Method: each bit of a journal of three records, whole and torn.
    const gpa = std.testing.allocator;
    var image: journal.Image = .{};
    defer image.deinit(gpa);
    try image.begin_file(gpa);
    var settings = std.mem.zeroes(journal.Settings);
    settings.address = .of("a.host:29400");
    try image.add(gpa, .{ .settings = settings });
    for (1..3) |incarnation| {
        try image.add(gpa, .{ .start = .{
            .incarnation = @intCast(incarnation),
            .ended_epoch = 0,
        } });
    }
    var refused: usize = 0;
    for ([_]usize{ 0, 1, 7, 20 }) |torn| {
        const bytes = image.list.items[0 .. image.list.items.len - torn];
        const wanted = Disk.good_part(bytes).?;
        for (0..bytes.len * 8) |place| {
            const one: Disk.Flip = .{ .byte = place / 8, .bit = @intCast(place % 8) };
            Disk.toggle(bytes, one);
            defer Disk.toggle(bytes, one);
            const found = Disk.good_part(bytes) orelse {
                refused += 1;
                continue;
            };
            try std.testing.expectEqual(wanted.len, found.len);
        }
    }
    try std.testing.expect(refused > 3 * 8 * 100);
}
