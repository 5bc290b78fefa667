//! Network: one network namespace for each node, with a TUN device in it that this process holds.
//! It owns the system calls. The namespaces have no name: only descriptors of this process hold
//! them, so they end with it, however it ends. Others enter by /proc/PID/fd/N. No other device is
//! in them, so nothing leaves them but through this process.

const std = @import("std");
const linux = std.os.linux;
const stages = @import("stages.zig");
const packets = @import("packet.zig");

const mtu_bytes = 1500;
/// Packets that wait between the kernel and this process; when there are more, the run is void.
const ring_packets = 8192;

pub const Error = error{ NotPermitted, NoTun, Refused };

pub const Node = struct { namespace: i32, device: i32 };

/// Makes the namespaces, and returns to the one that this process was in.
pub fn make(nodes: []Node) Error!void {
    const home = try open("/proc/self/ns/net", .{ .CLOEXEC = true });
    defer _ = linux.close(home);
    for (nodes, 1..) |*node, host| node.* = try make_node(@intCast(host));
    try check(linux.setns(home, linux.CLONE.NEWNET));
}

fn make_node(host: u8) Error!Node {
    switch (linux.errno(linux.unshare(linux.CLONE.NEWNET))) {
        .SUCCESS => {},
        .PERM => return error.NotPermitted,
        else => return error.Refused,
    }
    const namespace = try open("/proc/self/ns/net", .{ .CLOEXEC = true });
    const flags: linux.O = .{ .ACCMODE = .RDWR, .NONBLOCK = true, .CLOEXEC = true };
    const device = open("/dev/net/tun", flags) catch return error.NoTun;
    var request: Request = .{ .name = name_of("wan") };
    request.set(u16, tun | without_protocol | with_offload_header);
    try control(device, set_interface, @intFromPtr(&request));
    var header_bytes: c_int = @sizeOf(packets.Offload);
    try control(device, set_header_bytes, @intFromPtr(&header_bytes));
    try control(device, set_offload, offload_checksum | offload_tcp4 | offload_tcp_ecn);
    try configure(host);
    return .{ .namespace = namespace, .device = device };
}

/// Address and state of the devices in the namespace that this process is in.
fn configure(host: u8) Error!void {
    const kind = linux.SOCK.DGRAM | linux.SOCK.CLOEXEC;
    const made = linux.socket(linux.AF.INET, kind, 0);
    try check(made);
    const socket: i32 = @intCast(made);
    defer _ = linux.close(socket);
    var request: Request = .{ .name = name_of("lo") };
    request.set(u16, is_up);
    try control(socket, set_flags, @intFromPtr(&request));
    request.name = name_of("wan");
    request.set(c_int, mtu_bytes);
    try control(socket, set_mtu, @intFromPtr(&request));
    request.set(c_int, ring_packets);
    try control(socket, set_queue, @intFromPtr(&request));
    request.set_address(@as(u32, stages.network_address) + host);
    try control(socket, set_address_of, @intFromPtr(&request));
    request.set_address(0xffff_ff00);
    try control(socket, set_netmask, @intFromPtr(&request));
    request.set(u16, is_up | is_running);
    try control(socket, set_flags, @intFromPtr(&request));
}

/// The next packet that a node has sent; null: there is none now.
pub fn receive(node: Node, buffer: []u8) ?[]u8 {
    const count = linux.read(node.device, buffer.ptr, buffer.len);
    return if (linux.errno(count) == .SUCCESS) buffer[0..count] else null;
}

/// False: the device has no room, or refuses what it was given.
pub fn send(node: Node, content: []const u8) bool {
    return linux.errno(linux.write(node.device, content.ptr, content.len)) == .SUCCESS;
}

/// struct ifreq: a name and 24 bytes whose meaning the request tells.
const Request = extern struct {
    name: [16]u8,
    value: [24]u8 = @splat(0),

    fn set(request: *Request, comptime T: type, value: T) void {
        request.value = @splat(0);
        @memcpy(request.value[0..@sizeOf(T)], std.mem.asBytes(&value));
    }

    fn set_address(request: *Request, address: u32) void {
        const value: linux.sockaddr.in = .{ .port = 0, .addr = std.mem.nativeToBig(u32, address) };
        request.set(linux.sockaddr.in, value);
    }
};

comptime {
    std.debug.assert(@sizeOf(Request) == 40);
}

const set_interface = 0x4004_54ca; // TUNSETIFF
const set_header_bytes = 0x4004_54d8; // TUNSETVNETHDRSZ
const set_offload = 0x4004_54d0; // TUNSETOFFLOAD
const set_flags = 0x8914; // SIOCSIFFLAGS
const set_address_of = 0x8916; // SIOCSIFADDR
const set_netmask = 0x891c; // SIOCSIFNETMASK
const set_mtu = 0x8922; // SIOCSIFMTU
const set_queue = 0x8943; // SIOCSIFTXQLEN

const tun = 0x0001;
const without_protocol = 0x1000;
const with_offload_header = 0x4000;
const offload_checksum = 0x01;
const offload_tcp4 = 0x02;
const offload_tcp_ecn = 0x08;
const is_up = 0x01;
const is_running = 0x40;

fn name_of(comptime text: []const u8) [16]u8 {
    var name: [16]u8 = @splat(0);
    @memcpy(name[0..text.len], text);
    return name;
}

fn open(path: [*:0]const u8, flags: linux.O) Error!i32 {
    const opened = linux.open(path, flags, 0);
    try check(opened);
    return @intCast(opened);
}

fn control(descriptor: i32, request: u32, argument: usize) Error!void {
    try check(linux.ioctl(descriptor, request, argument));
}

fn check(result: usize) Error!void {
    switch (linux.errno(result)) {
        .SUCCESS => {},
        .PERM, .ACCES => return error.NotPermitted,
        else => return error.Refused,
    }
}
