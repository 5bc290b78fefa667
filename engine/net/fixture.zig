//! fixture: what several tests set up: a directory, a connection over the loopback interface, and a
//! port that refuses. Only tests import this file.

const std = @import("std");
const address = @import("address.zig");
const socket = @import("socket.zig");
const c = std.c;
const testing = std.testing;
const Dir = std.Io.Dir;
const Fd = socket.Fd;

extern "c" fn mkdtemp(template: [*:0]u8) ?[*:0]u8;

/// An empty directory for a test, which deletes it at the end. The directory is in TMPDIR, or else
/// in /tmp, and its path is absolute, so that a test program finds it from any directory.
pub const TestDir = struct {
    storage: [path_bytes_max]u8,
    path: [:0]const u8,

    const path_bytes_max = 256;
    const template = "pccl-test-XXXXXX";

    /// `dir` must not be moved afterwards: `path` is a part of it.
    pub fn init(dir: *TestDir) !void {
        const given: []const u8 = if (c.getenv("TMPDIR")) |text| std.mem.span(text) else "/tmp";
        const parent = if (std.fs.path.isAbsolute(given)) given else return error.RelativeTmpDir;
        const path = try std.fmt.bufPrintZ(&dir.storage, "{s}/{s}", .{ parent, template });
        if (mkdtemp(path.ptr) == null) return error.NoTmpDir;
        dir.path = path;
    }

    pub fn deinit(dir: *TestDir) void {
        Dir.cwd().deleteTree(testing.io, dir.path) catch |err|
            std.debug.panic("{s} cannot be deleted: {t}", .{ dir.path, err });
        dir.* = undefined;
    }
};

/// A connection over the loopback interface: its two ends, and the listener that it came through.
pub const Pair = struct {
    listener: Fd,
    client: Fd,
    server: Fd,

    pub fn init() !Pair {
        const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
        const listener = try socket.listen(&any_port);
        errdefer socket.close(listener);
        const client = try socket.connect_start(&socket.local_address(listener).?);
        errdefer socket.close(client);
        try testing.expect(socket.wait_for(client, .write, 5000));
        try socket.connect_finish(client);
        try testing.expect(socket.wait_for(listener, .read, 5000));
        return .{ .listener = listener, .client = client, .server = try socket.accept(listener) };
    }

    pub fn deinit(pair: *const Pair) void {
        for ([_]Fd{ pair.server, pair.client, pair.listener }) |fd| socket.close(fd);
    }
};

/// A port of the loopback interface that is taken and refuses connections until it listens. A port
/// that was found free and closed again may belong to another program by the time it is dialed.
pub const HeldPort = struct {
    fd: Fd,
    at: address.Address,

    pub fn init() !HeldPort {
        const fd = c.socket(c.AF.INET, c.SOCK.STREAM, 0);
        if (fd < 0) return error.SystemLimit;
        errdefer _ = c.close(fd);
        const any: address.Address = .v4_from(.{ 127, 0, 0, 1 }, 0);
        if (c.bind(fd, &any.any, any.length()) != 0) return error.AddressNotAvailable;
        return .{ .fd = fd, .at = socket.local_address(fd) orelse return error.SystemLimit };
    }

    pub fn deinit(held: HeldPort) void {
        _ = c.close(held.fd);
    }

    pub fn endpoint(held: *const HeldPort) address.Endpoint {
        return .{ .host = "127.0.0.1", .port = held.at.port() };
    }

    /// From now on the port accepts connections.
    pub fn listen(held: *const HeldPort) !void {
        if (c.listen(held.fd, 1) != 0) return error.SystemLimit;
    }
};

test "a directory for a test is empty, its own, and gone afterwards" {
    var first: TestDir = undefined;
    try first.init();
    var path: [TestDir.path_bytes_max]u8 = undefined;
    const kept = try std.fmt.bufPrintZ(&path, "{s}", .{first.path});
    {
        defer first.deinit();
        var second: TestDir = undefined;
        try second.init();
        defer second.deinit();
        try testing.expect(!std.mem.eql(u8, first.path, second.path));
        var inside: [TestDir.path_bytes_max]u8 = undefined;
        const file = try std.fmt.bufPrintZ(&inside, "{s}/file", .{first.path});
        try testing.expectEqual(0, c.mkdir(file, 0o700));
        try testing.expectEqual(-1, c.access(try std.fmt.bufPrintZ(&inside, "{s}/file", .{
            second.path,
        }), c.F_OK));
    }
    try testing.expectEqual(-1, c.access(kept, c.F_OK));
}
