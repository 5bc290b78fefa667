//! JournalWriter: writes the journal of a coordinator and syncs it, on a thread of its own, so that
//! a disk that takes seconds holds up only those that must wait for it. Records that the
//! coordinator gives it meanwhile are written together. It also looks now and then whether the
//! state directory is still locked, because that asks the same disk. The file: journal_file.zig;
//! who waits for which record: protocol/journaling.zig; owned by coordinator_engine.zig.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const clock = @import("clock.zig");
const fault = @import("fault.zig");
const lock = @import("lock.zig");
const secret = @import("secret.zig");
const thread = @import("thread.zig");
const journal_file = @import("journal_file.zig");
const JournalFile = journal_file.JournalFile;
const TestDir = @import("fixture.zig").TestDir;
const Waker = @import("poller.zig").Waker;
const Allocator = std.mem.Allocator;
const journal = protocol.journal;

pub const JournalWriter = struct {
    gpa: Allocator,
    /// The thread's, from its start to its end.
    file: *JournalFile,
    /// Made readable when there is something to `take`.
    waker: *Waker,
    disk: fault.Disk,
    thread: ?std.Thread = null,
    /// There is something to do.
    work: lock.Signal = .{},
    lock: lock.FairLock = .{},
    // Under the lock:
    given: Given = .{},
    news: News = .{},
    stopping: bool = false,
    // The coordinator's:
    why_storage: [128]u8 = undefined,
    failure: ?journal_file.Failure = null,

    /// The bytes to be written next.
    const Given = struct {
        bytes: std.ArrayList(u8) = .empty,
        /// They are all of the journal, not its end.
        replaces: bool = false,
        /// The number of the last that was given; 0: nothing was.
        number: u64 = 0,
    };

    /// The results since they were taken last; 0: none.
    pub const News = struct {
        written: u64 = 0,
        failed: u64 = 0,
        failure: ?journal_file.Failure = null,
    };

    /// Groups that wait for their records add few of them, so a disk that only takes long does not
    /// reach this, unless twenty members lie and have all calls refused that they may.
    const given_bytes_max = 16 * base.limits.MiB;
    /// How often it looks whether the lock is still there.
    const watch_ns = std.time.ns_per_s;

    /// The file stays the caller's.
    pub fn create(
        gpa: Allocator,
        file: *JournalFile,
        waker: *Waker,
        disk: fault.Disk,
    ) Allocator.Error!*JournalWriter {
        const writer = try gpa.create(JournalWriter);
        writer.* = .{ .gpa = gpa, .file = file, .waker = waker, .disk = disk };
        return writer;
    }

    /// From here on the file is the thread's.
    pub fn start(writer: *JournalWriter) thread.Error!void {
        writer.thread = try thread.spawn("pccl-journal", writer, run);
    }

    /// Writes what it was given, then ends the thread.
    pub fn destroy(writer: *JournalWriter) void {
        if (writer.thread) |running| {
            writer.lock.lock();
            writer.stopping = true;
            writer.lock.unlock();
            writer.work.set();
            running.join();
        }
        writer.given.bytes.deinit(secret.allocator);
        writer.gpa.destroy(writer);
    }

    // ---- what the coordinator calls, in one thread

    pub fn seam(writer: *JournalWriter) journal.Journal {
        return .{ .ctx = writer, .vtable = &.{
            .begin = begin,
            .append = append,
            .replace = replace,
            .why = why,
        } };
    }

    fn begin(context: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const writer: *JournalWriter = @ptrCast(@alignCast(context));
        std.debug.assert(writer.thread == null);
        return writer.file.replace(bytes);
    }

    fn append(context: *anyopaque, number: u64, bytes: []const u8) error{JournalFailed}!void {
        const writer: *JournalWriter = @ptrCast(@alignCast(context));
        return writer.give(number, bytes, false);
    }

    fn replace(context: *anyopaque, number: u64, bytes: []const u8) error{JournalFailed}!void {
        const writer: *JournalWriter = @ptrCast(@alignCast(context));
        return writer.give(number, bytes, true);
    }

    fn give(
        writer: *JournalWriter,
        number: u64,
        bytes: []const u8,
        replaces: bool,
    ) error{JournalFailed}!void {
        {
            writer.lock.lock();
            defer writer.lock.unlock();
            const given = &writer.given;
            const before = if (replaces) 0 else given.bytes.items.len;
            if (!replaces and before + bytes.len > given_bytes_max) return error.JournalFailed;
            given.bytes.ensureTotalCapacity(secret.allocator, before + bytes.len) catch
                return error.JournalFailed;
            given.bytes.shrinkRetainingCapacity(before);
            given.bytes.appendSliceAssumeCapacity(bytes);
            given.replaces = given.replaces or replaces;
            given.number = number;
        }
        writer.work.set();
    }

    /// The results since this was asked last, for the coordinator.
    pub fn take(writer: *JournalWriter) News {
        writer.lock.lock();
        defer writer.lock.unlock();
        defer writer.news = .{};
        if (writer.news.failed > 0) writer.failure = writer.news.failure;
        return writer.news;
    }

    fn why(context: *anyopaque) []const u8 {
        const writer: *JournalWriter = @ptrCast(@alignCast(context));
        const failure = writer.failure orelse
            return "there was no memory for what was to be written";
        var out: std.Io.Writer = .fixed(&writer.why_storage);
        out.print("{f}", .{failure}) catch {}; // cut
        return out.buffered();
    }

    // ---- the thread

    fn run(writer: *JournalWriter) void {
        var watch_at = clock.after(watch_ns);
        while (true) {
            _ = writer.work.wait(watch_at);
            writer.lock.lock();
            writer.work.clear();
            const stopping = writer.stopping;
            var given = writer.given;
            writer.given = .{};
            writer.lock.unlock();
            defer given.bytes.deinit(secret.allocator);
            if (given.number > 0) writer.write(&given);
            if (stopping) return; // nothing is given any more
            if (clock.now() < watch_at) continue;
            // A journal that is not alone any more takes nothing more; the next record says so.
            writer.file.keep_lock() catch {};
            watch_at = clock.after(watch_ns);
        }
    }

    fn write(writer: *JournalWriter, given: *const Given) void {
        writer.disk.take_time();
        const file = writer.file;
        const bytes = given.bytes.items;
        const result = if (given.replaces) file.replace(bytes) else append_each(file, bytes);
        {
            writer.lock.lock();
            defer writer.lock.unlock();
            if (result) |_| {
                writer.news.written = given.number;
            } else |_| {
                writer.news.failed = given.number;
                writer.news.failure = file.failure;
            }
        }
        writer.waker.wake();
    }

    /// Each record is on the disk before the next is written: only the last may be torn, and a disk
    /// need not write in order (protocol/journal.zig).
    fn append_each(file: *JournalFile, bytes: []const u8) error{JournalFailed}!void {
        var rest = bytes;
        while (rest.len > 0) {
            const length = protocol.journal.record_length(rest);
            try file.append(rest[0..length]);
            rest = rest[length..];
        }
    }
};

// ---- tests

const testing = std.testing;
const socket = @import("socket.zig");

/// A new journal in a directory of its own.
const Desk = struct {
    directory: TestDir = undefined,
    file: *JournalFile = undefined,
    waker: Waker = undefined,
    image: journal.Image = .{},

    fn init(desk: *Desk) !void {
        desk.* = .{};
        try desk.directory.init();
        try desk.open();
        desk.waker = try .init();
        try desk.image.begin_file(testing.allocator);
        var settings = std.mem.zeroes(journal.Settings);
        settings.address = .of("a.host:29400");
        try desk.image.add(testing.allocator, .{ .settings = settings });
    }

    fn deinit(desk: *Desk) void {
        desk.image.deinit(testing.allocator);
        desk.waker.deinit();
        desk.file.close();
        desk.directory.deinit();
    }

    fn open(desk: *Desk) !void {
        var trouble: journal_file.Trouble = undefined;
        desk.file = try JournalFile.open(testing.allocator, desk.directory.path, &trouble);
    }

    /// A writer that has written the settings, and perhaps failed afterwards.
    fn start(
        desk: *Desk,
        disk: fault.Disk,
        failure: ?journal_file.Failure,
    ) !*JournalWriter {
        const writer = try JournalWriter.create(testing.allocator, desk.file, &desk.waker, disk);
        errdefer writer.destroy();
        try writer.seam().begin(desk.image.bytes());
        desk.file.failure = failure;
        try writer.start();
        return writer;
    }

    /// The bytes of one more record, which is the last of the image from here on.
    fn add(desk: *Desk, incarnation: u32) ![]const u8 {
        const before = desk.image.bytes().len;
        try desk.image.add(testing.allocator, .{ .start = .{
            .incarnation = incarnation,
            .ended_epoch = 0,
        } });
        return desk.image.bytes()[before..];
    }

    /// Waits until the writer has said something.
    fn hear(desk: *Desk, writer: *JournalWriter) !JournalWriter.News {
        try testing.expect(socket.wait_for(desk.waker.read_fd, .read, 60_000));
        desk.waker.drain();
        return writer.take();
    }

    /// The journal is the image, once it is closed.
    fn expect_content(desk: *Desk) !void {
        desk.file.close();
        try desk.open();
        try testing.expectEqualSlices(u8, desk.image.bytes(), desk.file.content());
    }
};

test "what is given while the disk takes its time is written together, and at the end at last" {
    // The first write has not ended when the second is given, and that when the writer ends; how
    // long the disk takes makes this likely and not more, and what must hold does so anyway.
    var desk: Desk = undefined;
    try desk.init();
    defer desk.deinit();
    const writer = try desk.start(.{ .delay_ns = 20 * std.time.ns_per_ms }, null);
    {
        defer writer.destroy();
        const seam = writer.seam();
        try seam.append(1, try desk.add(1));
        try testing.expectEqual(1, (try desk.hear(writer)).written);
        try testing.expectEqual(0, writer.take().written); // it was told
        for (2..6) |number| try seam.append(number, try desk.add(@intCast(number)));
        var last: u64 = 0;
        while (last < 5) {
            const news = try desk.hear(writer);
            try testing.expectEqual(0, news.failed);
            try testing.expect(news.written > last);
            last = news.written;
        }
        _ = try desk.add(6);
        try seam.replace(6, desk.image.bytes());
        try seam.append(7, try desk.add(7));
    }
    try desk.expect_content();
}

test "what waits for the disk is replaced as a whole, grows behind that, and has a bound" {
    // Method: the thread has not begun.
    var desk: Desk = undefined;
    try desk.init();
    defer desk.deinit();
    const writer = try JournalWriter.create(testing.allocator, desk.file, &desk.waker, .{});
    defer writer.destroy();
    const seam = writer.seam();
    try seam.append(1, "a");
    try seam.append(2, "b");
    try testing.expectEqualStrings("ab", writer.given.bytes.items);
    try testing.expect(!writer.given.replaces);
    try seam.replace(3, "cd");
    try seam.append(4, "e");
    try testing.expectEqualStrings("cde", writer.given.bytes.items);
    try testing.expect(writer.given.replaces);
    try testing.expectEqual(4, writer.given.number);
    const much = try testing.allocator.alloc(u8, JournalWriter.given_bytes_max);
    defer testing.allocator.free(much);
    try testing.expectError(error.JournalFailed, seam.append(5, much));
    try seam.append(5, much[3..]);
    try testing.expectEqual(5, writer.given.number);
}

test "a write that fails is told with the reason, and all that is given until all is written anew" {
    var desk: Desk = undefined;
    try desk.init();
    defer desk.deinit();
    const writer = try desk.start(.{}, .{ .step = .write, .code = .NOSPC });
    {
        defer writer.destroy();
        const seam = writer.seam();
        for (1..3) |number| {
            try seam.append(number, "never written");
            const news = try desk.hear(writer);
            try testing.expectEqual(number, news.failed);
            try testing.expectEqual(0, news.written);
            try testing.expectEqualStrings(
                "writing the journal failed: no space is left on the disk (NOSPC)",
                seam.why(),
            );
        }
        try seam.replace(3, desk.image.bytes());
        try testing.expectEqual(3, (try desk.hear(writer)).written);
        const more = try testing.allocator.alloc(u8, JournalWriter.given_bytes_max + 1);
        defer testing.allocator.free(more);
        try testing.expectError(error.JournalFailed, seam.append(4, more));
    }
    try desk.expect_content();
}
