//! socket: non-blocking TCP sockets: listen (on one port or in a range of ports), accept, connect,
//! send, receive. poller.zig waits for sockets; the engines have buffers and threads. The fate of
//! descriptors when a process forks: descriptor.zig.

const std = @import("std");
const base = @import("base");
const builtin = @import("builtin");
const address = @import("address.zig");
const descriptor = @import("descriptor.zig");
const HeldPort = @import("fixture.zig").HeldPort;
const c = std.c;
const Address = address.Address;
const AddressList = address.AddressList;

pub const Fd = descriptor.Fd;
pub const close = descriptor.close;
const on_linux = builtin.os.tag == .linux;
const no_signal: u32 = if (@hasDecl(c.MSG, "NOSIGNAL")) c.MSG.NOSIGNAL else 0;

pub const OpenError = error{
    /// Too many open files, or no memory for sockets.
    SystemLimit,
    /// This system has no such address family.
    FamilyUnsupported,
};

fn open(family: c_uint) OpenError!Fd {
    const flags: c_uint = if (on_linux) c.SOCK.NONBLOCK | c.SOCK.CLOEXEC else 0;
    descriptor.hold_forks();
    defer descriptor.allow_forks();
    const fd = c.socket(family, c.SOCK.STREAM | flags, 0);
    if (fd < 0) return switch (errno(fd)) {
        .AFNOSUPPORT, .PROTONOSUPPORT, .INVAL => error.FamilyUnsupported,
        else => error.SystemLimit,
    };
    if (!on_linux) configure(fd);
    return descriptor.adopt(fd);
}

/// Sets the options that Linux takes as flags of socket() and accept4().
fn configure(fd: Fd) void {
    const nonblock: c_int = @bitCast(c.O{ .NONBLOCK = true });
    _ = c.fcntl(fd, c.F.SETFL, c.fcntl(fd, c.F.GETFL) | nonblock);
    _ = c.fcntl(fd, c.F.SETFD, @as(c_int, c.FD_CLOEXEC));
    if (@hasDecl(c.SO, "NOSIGPIPE")) set_option(fd, c.SOL.SOCKET, c.SO.NOSIGPIPE, 1);
}

/// Sets an option that only makes things better: a system that refuses the option is left as it is.
fn set_option(fd: Fd, level: i32, option: u32, value: c_int) void {
    _ = c.setsockopt(fd, level, option, &value, @sizeOf(c_int));
}

fn errno(result: anytype) c.E {
    return std.posix.errno(result);
}

// ---- listening

pub const ListenError = OpenError || error{ AddressInUse, AddressNotAvailable, PermissionDenied };

/// Listens on the first address of the list that can be had.
pub fn listen(list: *const AddressList) ListenError!Fd {
    var failure: ListenError = error.AddressNotAvailable;
    for (list.slice()) |*to| {
        if (listen_on(to)) |fd| return fd else |err| failure = err;
        // If the address is in use or not permitted, another address would be a surprise to the
        // user.
        if (failure == error.AddressInUse or failure == error.PermissionDenied) return failure;
    }
    return failure;
}

/// IPV6_V6ONLY; std.c lacks the number of Darwin.
const v6_only = if (builtin.os.tag.isDarwin()) 27 else c.IPV6.V6ONLY;

fn listen_on(to: *const Address) ListenError!Fd {
    const fd = try open(to.family());
    errdefer close(fd);
    set_option(fd, c.SOL.SOCKET, c.SO.REUSEADDR, 1);
    if (to.family() == c.AF.INET6) {
        set_option(fd, c.IPPROTO.IPV6, v6_only, @intFromBool(!to.is_any()));
    }
    // The queue is longer than the number of strangers that a side keeps, so that a whole world may
    // connect at once.
    const backlog = 1024;
    if (c.bind(fd, &to.any, to.length()) != 0 or c.listen(fd, backlog) != 0) {
        return switch (errno(@as(c_int, -1))) {
            .ADDRINUSE => error.AddressInUse,
            .ACCES, .PERM => error.PermissionDenied,
            .NOMEM, .NOBUFS => error.SystemLimit,
            else => error.AddressNotAvailable,
        };
    }
    return fd;
}

/// The range that a peer takes its listening port from, so that a firewall can let it in:
/// "29400-29500", or one port alone.
pub const PortRange = struct {
    first: u16,
    last: u16,

    pub const ParseError = error{BadPorts};

    pub fn parse(text: []const u8) ParseError!PortRange {
        const dash = std.mem.indexOfScalar(u8, text, '-');
        const first = try number(text[0 .. dash orelse text.len]);
        const last = if (dash) |at| try number(text[at + 1 ..]) else first;
        if (last < first) return error.BadPorts;
        return .{ .first = first, .last = last };
    }

    fn number(text: []const u8) ParseError!u16 {
        // parseInt alone would accept signs and underscores.
        for (text) |byte| if (!std.ascii.isDigit(byte)) return error.BadPorts;
        const port = std.fmt.parseInt(u16, text, 10) catch return error.BadPorts;
        return if (port == 0) error.BadPorts else port;
    }
};

pub const RangeError = ListenError || error{NoPortFree};

/// Listens on the first free port of the range. The ports in `list` are not used.
pub fn listen_within(range: PortRange, list: *const AddressList) RangeError!Fd {
    var to = list.*;
    var port: u32 = range.first;
    while (port <= range.last) : (port += 1) {
        // All kinds of addresses have the port in the same place.
        for (to.items[0..to.count]) |*at| at.v4.port = std.mem.nativeToBig(u16, @intCast(port));
        return listen(&to) catch |err| switch (err) {
            error.AddressInUse => continue,
            else => return err,
        };
    }
    return error.NoPortFree;
}

pub const AcceptError = error{ WouldBlock, SystemLimit };

pub fn accept(listener: Fd) AcceptError!Fd {
    descriptor.hold_forks(); // accept does not block, so forks wait briefly
    defer descriptor.allow_forks();
    while (true) {
        const fd = if (on_linux)
            c.accept4(listener, null, null, c.SOCK.NONBLOCK | c.SOCK.CLOEXEC)
        else
            c.accept(listener, null, null);
        if (fd >= 0) {
            if (!on_linux) configure(fd);
            set_option(fd, c.IPPROTO.TCP, c.TCP.NODELAY, 1);
            tune_within_machine(fd);
            return descriptor.adopt(fd);
        }
        switch (errno(fd)) {
            .MFILE, .NFILE, .NOBUFS, .NOMEM => return error.SystemLimit,
            // The connection died in the queue, or a signal came: accepts the next connection.
            .CONNABORTED, .INTR, .PROTO => {},
            // Nothing waits, or the listener is broken: asking again at once would never end.
            else => return error.WouldBlock,
        }
    }
}

/// A descriptor held back, with which a listener that is out of descriptors takes a connection and
/// closes it: otherwise the connection would stay in the queue and wake the engine for ever.
pub const Spare = struct {
    fd: Fd = -1,

    pub fn init() Spare {
        var spare: Spare = .{};
        spare.reserve();
        return spare;
    }

    pub fn deinit(spare: *Spare) void {
        if (spare.fd >= 0) close(spare.fd);
        spare.fd = -1;
    }

    fn reserve(spare: *Spare) void {
        spare.fd = open(c.AF.INET) catch -1;
    }

    /// Closes one waiting connection; false if no connection waits, or there is no descriptor for
    /// it.
    pub fn turn_away(spare: *Spare, listener: Fd) bool {
        if (spare.fd < 0) spare.reserve();
        if (spare.fd < 0) return false;
        spare.deinit();
        defer spare.reserve();
        close(accept(listener) catch return false);
        return true;
    }
};

// ---- connecting

/// Starts to connect a socket, which becomes writable when the connection is there, or has failed.
pub fn connect_start(to: *const Address) (OpenError || ConnectError)!Fd {
    const fd = try open(to.family());
    errdefer close(fd);
    set_option(fd, c.IPPROTO.TCP, c.TCP.NODELAY, 1);
    const result = c.connect(fd, &to.any, to.length());
    if (result == 0) return fd;
    return switch (errno(result)) {
        .INPROGRESS, .INTR => fd,
        else => |code| connect_error(code),
    };
}

pub const ConnectError = error{
    /// The host answers, but nothing listens on the port.
    Refused,
    /// No route leads to the host, or nothing answers.
    Unreachable,
};

/// Tells whether the connection of `connect_start` was made, once the socket is writable.
pub fn connect_finish(fd: Fd) ConnectError!void {
    var code: c_int = 0;
    var length: c.socklen_t = @sizeOf(c_int);
    if (c.getsockopt(fd, c.SOL.SOCKET, c.SO.ERROR, &code, &length) != 0) return error.Unreachable;
    if (code != 0) return connect_error(@enumFromInt(code));
    // If nobody listens on a port of this machine, this socket may by chance have been given that
    // port, and TCP then connects the socket to itself.
    const local = local_address(fd) orelse return error.Unreachable;
    const remote = remote_address(fd) orelse return error.Unreachable;
    if (local.eql(&remote)) return error.Refused;
    tune_within_machine(fd);
}

/// Gives a connection within one machine reno: no packet is lost, no link is shared and no byte is
/// long under way. A congestion control that paces its packets (BBR) would only spend CPU time on
/// timers there. Connections to other machines keep the administrator's choice.
fn tune_within_machine(fd: Fd) void {
    // Every Linux has reno and lets every process use it.
    if (on_linux and is_within_machine(fd)) _ = control_congestion(fd, "reno");
}

/// Whether both ends of a connection have the same address.
pub fn is_within_machine(fd: Fd) bool {
    const local = local_address(fd) orelse return false;
    const remote = remote_address(fd) orelse return false;
    return local.same_host(&remote);
}

/// Sets the congestion control of a socket; false if the system lacks it, or this process may not
/// use it.
pub fn control_congestion(fd: Fd, name: []const u8) bool {
    if (!on_linux) return false;
    const length: c.socklen_t = @intCast(name.len);
    return c.setsockopt(fd, c.IPPROTO.TCP, std.os.linux.TCP.CONGESTION, name.ptr, length) == 0;
}

/// Whether this process may set this congestion control on a socket that has another one.
pub fn may_control_congestion(name: []const u8) bool {
    const fd = open(c.AF.INET) catch return false;
    defer close(fd);
    return control_congestion(fd, name);
}

fn connect_error(code: c.E) ConnectError {
    return switch (code) {
        .CONNREFUSED, .CONNRESET => error.Refused,
        else => error.Unreachable,
    };
}

/// The address of this side of a connection, or the address of a listener.
pub fn local_address(fd: Fd) ?Address {
    return address_by(c.getsockname, fd);
}

/// The host of the other side of a connection.
pub fn source_of(fd: Fd) base.Source {
    const remote = remote_address(fd) orelse return @splat(0);
    return remote.source();
}

/// The address of the other side of a connection.
pub fn remote_address(fd: Fd) ?Address {
    return address_by(c.getpeername, fd);
}

fn address_by(comptime ask: anytype, fd: Fd) ?Address {
    var result: Address = undefined;
    var length: c.socklen_t = @sizeOf(Address);
    if (ask(fd, &result.any, &length) != 0) return null;
    return result;
}

/// The address of this machine on the way to the rest of the world, found without sending a packet;
/// loopback if there is no way. A listener of the family IPv6 takes both kinds of addresses, and
/// then the IPv4 address is preferred.
pub fn outward_address(family: c_uint) Address {
    const far_v4: Address = .v4_from(.{ 192, 0, 2, 1 }, 9); // TEST-NET-1: never a real host
    const far_v6: Address = .v6_from(.{ 0x20, 0x01, 0x0d, 0xb8 } ++ .{0} ** 11 ++ .{1}, 9);
    if (on_the_way_to(&far_v4)) |found| return found;
    if (family == c.AF.INET6) if (on_the_way_to(&far_v6)) |found| return found;
    return .v4_from(.{ 127, 0, 0, 1 }, 0);
}

fn on_the_way_to(far: *const Address) ?Address {
    descriptor.hold_forks(); // connecting a datagram socket sends nothing and does not block
    defer descriptor.allow_forks();
    const flags: c_uint = if (on_linux) c.SOCK.CLOEXEC else 0;
    const fd = c.socket(far.family(), c.SOCK.DGRAM | flags, 0);
    if (fd < 0) return null;
    defer _ = c.close(fd);
    if (c.connect(fd, &far.any, far.length()) != 0) return null;
    return local_address(fd);
}

// ---- moving bytes

pub const TransferError = error{
    WouldBlock,
    /// The connection was reset, or is gone in another way.
    Broken,
};

/// Reads into the slices, in order. 0: the other side has ended the connection.
pub fn receive(fd: Fd, slices: []const []u8) TransferError!usize {
    var vectors: [2]std.posix.iovec = undefined;
    for (slices, vectors[0..slices.len]) |slice, *vector| {
        vector.* = .{ .base = slice.ptr, .len = slice.len };
    }
    while (true) {
        const count = c.readv(fd, &vectors, @intCast(slices.len));
        if (count >= 0) return @intCast(count);
        switch (errno(count)) {
            .INTR => {},
            .AGAIN => return error.WouldBlock,
            else => return error.Broken,
        }
    }
}

/// Sends as many bytes of the slices as fit, in order.
pub fn send(fd: Fd, slices: []const []const u8) TransferError!usize {
    var vectors: [2]std.posix.iovec_const = undefined;
    for (slices, vectors[0..slices.len]) |slice, *vector| {
        vector.* = .{ .base = slice.ptr, .len = slice.len };
    }
    const message: c.msghdr_const = .{
        .name = null,
        .namelen = 0,
        .iov = &vectors,
        .iovlen = @intCast(slices.len),
        .control = null,
        .controllen = 0,
        .flags = 0,
    };
    while (true) {
        const count = c.sendmsg(fd, &message, no_signal);
        if (count >= 0) return @intCast(count);
        switch (errno(count)) {
            .INTR => {},
            .AGAIN, .NOBUFS => return error.WouldBlock,
            else => return error.Broken,
        }
    }
}

/// Ends the sending direction; bytes that were sent still arrive.
pub fn end_sending(fd: Fd) void {
    _ = c.shutdown(fd, c.SHUT.WR);
}

pub const Direction = enum { read, write };

/// Waits in poll() for one socket, on a thread of the user; false if `timeout_ms` passed first.
pub fn wait_for(fd: Fd, events: Direction, timeout_ms: c_int) bool {
    var entry = [1]c.pollfd{.{
        .fd = fd,
        .events = switch (events) {
            .read => c.POLL.IN,
            .write => c.POLL.OUT,
        },
        .revents = 0,
    }};
    return c.poll(&entry, 1, timeout_ms) > 0;
}

// ---- tests

test "bytes cross a loopback connection, and each failure has its name" {
    const any_port: AddressList = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    const listener = try listen(&any_port);
    defer close(listener);
    const at = local_address(listener).?;
    try std.testing.expectError(error.WouldBlock, accept(listener));

    const client = try connect_start(&at);
    try std.testing.expect(wait_for(client, .write, 5000));
    try connect_finish(client);
    try std.testing.expect(wait_for(listener, .read, 5000));
    const server = try accept(listener);
    defer close(server);

    try std.testing.expectEqual(9, try send(client, &.{ "head", "body!" }));
    try std.testing.expect(wait_for(server, .read, 5000));
    var first: [4]u8 = undefined;
    var second: [16]u8 = undefined;
    try std.testing.expectEqual(9, try receive(server, &.{ &first, &second }));
    try std.testing.expectEqualStrings("head", &first);
    try std.testing.expectEqualStrings("body!", second[0..5]);
    try std.testing.expectError(error.WouldBlock, receive(server, &.{&first}));

    var taken: AddressList = .{ .count = 1 };
    taken.items[0] = at;
    try std.testing.expectError(error.AddressInUse, listen(&taken));
    close(client);
    try std.testing.expect(wait_for(server, .read, 5000));
    try std.testing.expectEqual(0, try receive(server, &.{&first}));
}

test "a port where nothing listens refuses" {
    const held = try HeldPort.init();
    defer held.deinit();
    const fd = connect_start(&held.at) catch |err|
        return std.testing.expectEqual(error.Refused, err);
    defer close(fd);
    try std.testing.expect(wait_for(fd, .write, 5000));
    try std.testing.expectError(error.Refused, connect_finish(fd));
}

test "a range of ports is two numbers in order, or one" {
    const expectEqual = std.testing.expectEqual;
    try expectEqual(PortRange{ .first = 29400, .last = 29500 }, try PortRange.parse("29400-29500"));
    try expectEqual(PortRange{ .first = 7, .last = 7 }, try PortRange.parse("7"));
    try expectEqual(PortRange{ .first = 65535, .last = 65535 }, try PortRange.parse("65535-65535"));
    for ([_][]const u8{
        "", "-", "0", "0-5", "5-", "-5", "6-5", "65536", "1-65536", "1-2-3", "+5", "1_0", " 5", "a",
    }) |text| try std.testing.expectError(error.BadPorts, PortRange.parse(text));
}

test "a taken port of the range is passed over, and a range without a free one is an error" {
    const held = try HeldPort.init();
    defer held.deinit();
    try held.listen();
    const taken = held.at.port();
    const list = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    const alone: PortRange = .{ .first = taken, .last = taken };
    try std.testing.expectError(error.NoPortFree, listen_within(alone, &list));
    const wider: PortRange = .{ .first = taken, .last = taken +| 64 };
    const fd = try listen_within(wider, &list);
    defer close(fd);
    const got = local_address(fd).?.port();
    try std.testing.expect(got > taken and got <= wider.last);
}
