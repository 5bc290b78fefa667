//! TestDir: for tests: an empty directory that ends with the test. It is in TMPDIR, or else in
//! /tmp, and its path is absolute: a test program finds it from whatever directory it runs in.

const std = @import("std");
const c = std.c;
const testing = std.testing;
const Dir = std.Io.Dir;

extern "c" fn mkdtemp(template: [*:0]u8) ?[*:0]u8;

pub const TestDir = struct {
    storage: [path_bytes_max]u8,
    path: [:0]const u8,

    const path_bytes_max = 256;
    const template = "pccl-test-XXXXXX";

    /// `dir` stays where it is.
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
