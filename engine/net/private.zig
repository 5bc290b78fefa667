//! private: whether a directory or a file belongs to this user alone: it has the right kind, its
//! owner is this user, no other user may do anything with it, and it has no second name. An
//! Exposure tells the fault and the cure; nothing is mended here. A caller must open the file
//! without following links, and check the open file: its name may lead elsewhere by then. Used by
//! journal.zig.

const std = @import("std");
const builtin = @import("builtin");
const c = std.c;
const linux = std.os.linux;

pub const Kind = enum { directory, file };

/// The properties that the file system tells of a directory or file.
pub const Look = struct {
    kind: enum { directory, file, link, other },
    owner: u32,
    mode: u32,
    links: u64,
    device: u64,
    inode: u64,
    size: u64 = 0,

    pub fn same(look: Look, other: Look) bool {
        return look.device == other.device and look.inode == other.inode;
    }

    fn from(
        mode: u32,
        owner: u32,
        links: u64,
        device: u64,
        inode: u64,
        size: u64,
    ) Look {
        return .{
            .kind = switch (mode & c.S.IFMT) {
                c.S.IFDIR => .directory,
                c.S.IFREG => .file,
                c.S.IFLNK => .link,
                else => .other,
            },
            .owner = owner,
            .mode = mode & 0o7777,
            .links = links,
            .device = device,
            .inode = inode,
            .size = size,
        };
    }
};

/// Why a directory or file is not used.
pub const Exposure = struct {
    what: What,
    kind: Kind,
    /// The name within the directory; empty for the directory itself.
    name: []const u8,
    look: Look,

    const What = enum { link, other_kind, foreign, open, linked };

    /// The sentence about the exposure; `directory` is the path of the directory.
    pub fn told(exposure: Exposure, directory: []const u8) Told {
        return .{ .exposure = exposure, .directory = directory };
    }
};

/// The mode bit of a directory in which many users have files, and each can remove only its own.
const sticky = 0o1000;

pub const Told = struct {
    exposure: Exposure,
    directory: []const u8,

    /// For example "/state is not private: other users may use it (owner 0, mode 0777): chmod 700
    /// /state".
    pub fn format(told: Told, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const exposure = told.exposure;
        try told.path(writer);
        try writer.writeAll(" is not private: ");
        switch (exposure.what) {
            .link => try writer.writeAll("it is a symbolic link"),
            .other_kind => try writer.print("it is not a {s}", .{switch (exposure.kind) {
                .directory => "directory",
                .file => "regular file",
            }}),
            .foreign => try writer.print("it is not of the user {d} that runs this", .{
                c.geteuid(),
            }),
            .open => try writer.writeAll("other users may use it"),
            .linked => try writer.writeAll("it has a second name, a hard link"),
        }
        const look = exposure.look;
        try writer.print(" (owner {d}, mode {o:0>4}): ", .{ look.owner, look.mode });
        if (exposure.kind == .directory and look.kind == .directory) {
            // In a directory such as /tmp, a user who closes it to others harms them.
            if (look.mode & sticky != 0) return told.below(writer);
            if (exposure.what == .foreign) return writer.writeAll(
                "run this as its owner, or take a directory of this user's own, of mode 0700",
            );
        }
        switch (exposure.what) {
            .link, .other_kind, .linked => try writer.writeAll(
                "look who has put it there, and take another directory, of the mode of chmod 700",
            ),
            .foreign => {
                try writer.writeAll("run this as its owner, or look at it, chown it and ");
                try told.cure(writer);
            },
            .open => try told.cure(writer),
        }
    }

    fn path(told: Told, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.writeAll(told.directory);
        if (told.exposure.name.len > 0) try writer.print("/{s}", .{told.exposure.name});
    }

    fn below(told: Told, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const directory = std.mem.trimEnd(u8, told.directory, "/");
        try writer.print("many use it, so make one below it: mkdir -m 700 {s}/run", .{directory});
    }

    fn cure(told: Told, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.writeAll(switch (told.exposure.kind) {
            .directory => "chmod 700 ",
            .file => "chmod 600 ",
        });
        try told.path(writer);
    }
};

/// Why a directory or file is not private; null: it is private.
pub fn judge(kind: Kind, name: []const u8, look: Look) ?Exposure {
    const what = wrong(kind, look) orelse return null;
    return .{ .what = what, .kind = kind, .name = name, .look = look };
}

fn wrong(kind: Kind, look: Look) ?Exposure.What {
    if (look.kind == .link) return .link;
    switch (kind) {
        .directory => if (look.kind != .directory) return .other_kind,
        .file => if (look.kind != .file) return .other_kind,
    }
    if (look.owner != c.geteuid()) return .foreign;
    if (look.mode & 0o077 != 0) return .open;
    // A directory has one more name in each of its subdirectories.
    if (kind == .file and look.links != 1) return .linked;
    return null;
}

/// Looks at an open file or directory.
pub fn look_at(fd: c.fd_t, into: *Look) c.E {
    if (builtin.os.tag == .linux) return statx(fd, "", linux.AT.EMPTY_PATH, into);
    var found: c.Stat = undefined;
    return taken(c.fstat(fd, &found), &found, into);
}

/// Looks at the file or directory of this name; a link is looked at itself.
pub fn look_at_name(directory: c.fd_t, name: [:0]const u8, into: *Look) c.E {
    if (builtin.os.tag == .linux) return statx(directory, name, linux.AT.SYMLINK_NOFOLLOW, into);
    var found: c.Stat = undefined;
    return taken(c.fstatat(directory, name, &found, c.AT.SYMLINK_NOFOLLOW), &found, into);
}

/// Asks statx, or else fstatat. The C library of older systems has no fstat that a program can be
/// linked to. An old kernel has no statx, and a filter of system calls that is older than statx
/// forbids it.
fn statx(fd: c.fd_t, name: [:0]const u8, flags: u32, into: *Look) c.E {
    const code = statx_alone(fd, name, flags, into);
    return if (code == .NOSYS or code == .PERM) fstatat(fd, name, flags, into) else code;
}

fn statx_alone(fd: c.fd_t, name: [:0]const u8, flags: u32, into: *Look) c.E {
    var found: linux.Statx = undefined;
    const mask: linux.STATX = .{
        .TYPE = true,
        .MODE = true,
        .NLINK = true,
        .UID = true,
        .INO = true,
        .SIZE = true,
    };
    const code = linux.errno(linux.statx(fd, name, flags, mask, &found));
    if (code != .SUCCESS) return @enumFromInt(@intFromEnum(code));
    const device = @as(u64, found.dev_major) << 32 | found.dev_minor;
    into.* = .from(found.mode, found.uid, found.nlink, device, found.ino, found.size);
    return .SUCCESS;
}

/// The struct in which the kernel tells of a file: include/uapi/asm/stat.h.
const KernelStat = switch (builtin.cpu.arch) {
    .x86_64 => extern struct {
        dev: u64,
        ino: u64,
        nlink: u64,
        mode: u32,
        uid: u32,
        gid: u32,
        reserved: u32,
        rdev: u64,
        size: u64,
        rest: [88]u8,
    },
    .aarch64 => extern struct {
        dev: u64,
        ino: u64,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u64,
        reserved: u64,
        size: u64,
        rest: [72]u8,
    },
    else => void,
};

fn fstatat(fd: c.fd_t, name: [:0]const u8, flags: u32, into: *Look) c.E {
    if (KernelStat == void) return .NOSYS;
    var found: KernelStat = undefined;
    const code = linux.errno(linux.syscall4(
        .fstatat64,
        @bitCast(@as(isize, fd)),
        @intFromPtr(name.ptr),
        @intFromPtr(&found),
        flags,
    ));
    if (code != .SUCCESS) return @enumFromInt(@intFromEnum(code));
    // Splits the device number into its two parts, as statx does.
    const major = (found.dev >> 8 & 0xfff) | (found.dev >> 32 & 0xffff_f000);
    const minor = (found.dev & 0xff) | (found.dev >> 12 & 0xffff_ff00);
    const device = major << 32 | minor;
    into.* = .from(found.mode, found.uid, found.nlink, device, found.ino, found.size);
    return .SUCCESS;
}

fn taken(code: c_int, found: *const c.Stat, into: *Look) c.E {
    if (code != 0) return std.posix.errno(code);
    const device: u64 = @bitCast(@as(i64, found.dev));
    const size: u64 = @intCast(found.size);
    into.* = .from(found.mode, found.uid, found.nlink, device, found.ino, size);
    return .SUCCESS;
}

const testing = std.testing;

test "both system calls say the same of a file" {
    if (builtin.os.tag != .linux) return error.SkipZigTest;
    const at = linux.AT;
    for ([_][:0]const u8{ "/", "/dev/null", "/proc/self/exe", "/tmp" }) |path| {
        var modern: Look = undefined;
        var old: Look = undefined;
        for ([_]u32{ 0, at.SYMLINK_NOFOLLOW }) |flags| {
            try testing.expectEqual(.SUCCESS, statx_alone(at.FDCWD, path, flags, &modern));
            try testing.expectEqual(.SUCCESS, fstatat(at.FDCWD, path, flags, &old));
            try testing.expectEqual(modern, old);
        }
    }
    var modern: Look = undefined;
    var old: Look = undefined;
    try testing.expectEqual(.SUCCESS, statx_alone(1, "", at.EMPTY_PATH, &modern));
    try testing.expectEqual(.SUCCESS, fstatat(1, "", at.EMPTY_PATH, &old));
    try testing.expectEqual(modern, old);
    try testing.expectEqual(.NOENT, fstatat(at.FDCWD, "/no/such", 0, &old));
    try testing.expectEqual(.BADF, fstatat(-1, "", at.EMPTY_PATH, &old));
}

test "each way in which something is not private is told with its path, owner, mode and cure" {
    const own = c.geteuid();
    const good: Look = .{
        .kind = .file,
        .owner = own,
        .mode = 0o600,
        .links = 1,
        .device = 1,
        .inode = 1,
    };
    try testing.expectEqual(null, judge(.file, "lock", good));
    var directory = good;
    directory.kind = .directory;
    directory.mode = 0o700;
    directory.links = 7;
    try testing.expectEqual(null, judge(.directory, "", directory));

    var open = good;
    open.mode = 0o666;
    var foreign = good;
    foreign.owner = own +% 1;
    var linked = good;
    linked.links = 2;
    var link = good;
    link.kind = .link;
    var pipe = good;
    pipe.kind = .other;
    const Case = struct { look: Look, words: []const []const u8 };
    for ([_]Case{
        .{ .look = open, .words = &.{ "mode 0666", ": chmod 600 /s/lock" } },
        .{ .look = foreign, .words = &.{ "not of the user", "chown it and chmod 600 /s/lock" } },
        .{ .look = linked, .words = &.{ "second name", "mode 0600", "chmod 700" } },
        .{ .look = link, .words = &.{ "/s/lock is not private: it is a symbolic link", "owner" } },
        .{ .look = pipe, .words = &.{ "it is not a regular file", "chmod 700" } },
    }) |case| {
        var text: [400]u8 = undefined;
        const told = judge(.file, "lock", case.look).?.told("/s");
        const sentence = try std.fmt.bufPrint(&text, "{f}", .{told});
        for (case.words) |word|
            try testing.expect(std.mem.indexOf(u8, sentence, word) != null);
    }
    for ([_]u32{ 0o701, 0o702, 0o704, 0o710, 0o720, 0o740 }) |mode| {
        directory.mode = mode;
        var text: [400]u8 = undefined;
        const told = judge(.directory, "", directory).?.told("/s");
        const sentence = try std.fmt.bufPrint(&text, "{f}", .{told});
        try testing.expect(std.mem.endsWith(u8, sentence, ": chmod 700 /s"));
    }
}

test "nobody is told to change a directory that is there for many, or for another user" {
    const own = c.geteuid();
    for ([_]struct { path: []const u8, owner: u32, mode: u32, cure: []const u8 }{
        .{ .path = "/all", .owner = own, .mode = 0o1777, .cure = ": mkdir -m 700 /all/run" },
        .{ .path = "/all/", .owner = own +% 1, .mode = 0o1777, .cure = ": mkdir -m 700 /all/run" },
        .{ .path = "/opt", .owner = own +% 1, .mode = 0o755, .cure = "user's own, of mode 0700" },
    }) |case| {
        const told = judge(.directory, "", .{
            .kind = .directory,
            .owner = case.owner,
            .mode = case.mode,
            .links = 7,
            .device = 1,
            .inode = 1,
        }).?.told(case.path);
        var text: [400]u8 = undefined;
        const sentence = try std.fmt.bufPrint(&text, "{f}", .{told});
        try testing.expect(std.mem.endsWith(u8, sentence, case.cure));
        for ([_][]const u8{ "chmod", "chown" }) |word|
            try testing.expectEqual(null, std.mem.indexOf(u8, sentence, word));
    }
}
