//! master: the master of PCCL 1.0 (include/compat/pccl.h): a coordinator, at the address that the
//! program gives, with the options of the environment; and that address as text.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const coordinator_file = @import("../coordinator.zig");
const environment = @import("environment.zig");
const words = @import("words.zig");
const Error = words.Error;
const Result = words.Result;

const gpa = std.heap.c_allocator;

/// Anyone who knows the address of a master can join, as with PCCL 1.0: its runs have no secret.
/// The Python package for PCCL 1.0 has the same.
pub const run_id = "pccl 1.0 has one";

pub const AddressText = [64:0]u8;

/// ccoip_socket_address_t
pub const SocketAddress = extern struct {
    inet: extern struct { protocol: c_uint, ipv4: [4]u8, ipv6: [16]u8 },
    port: u16,

    /// "1.2.3.4:48148" or "[2001:db8:0:0:0:0:0:1]:48148"
    pub fn write(from: SocketAddress, room: *AddressText) Error![*:0]const u8 {
        const ipv4 = 0;
        const ipv6 = 1;
        const bytes = &from.inet.ipv4;
        var writer: std.Io.Writer = .fixed(room);
        switch (from.inet.protocol) {
            ipv4 => writer.print(
                "{d}.{d}.{d}.{d}:{d}",
                .{ bytes[0], bytes[1], bytes[2], bytes[3], from.port },
            ) catch unreachable,
            ipv6 => {
                for (0..8) |index| writer.print("{c}{x}", .{
                    "[:"[@intFromBool(index > 0)],
                    std.mem.readInt(u16, from.inet.ipv6[2 * index ..][0..2], .big),
                }) catch unreachable;
                writer.print("]:{d}", .{from.port}) catch unreachable;
            },
            else => |protocol| return words.refuse(
                error.InvalidArgument,
                "there is no ccoip_inet_protocol_t {d}",
                .{protocol},
            ),
        }
        room[writer.end] = 0;
        return room;
    }
};

/// pcclMasterInstance_t
const Master = struct {
    address: AddressText,
    /// Null before it runs, and when it is over.
    coordinator: ?*coordinator_file.Coordinator = null,
    /// It was started. A signal handler looks at this, and sets the other.
    is_started: std.atomic.Value(bool) = .init(false),
    interrupted: net.lock.Signal = .{},

    fn end(master: *Master) void {
        coordinator_file.pccl_coordinator_destroy(master.coordinator);
        master.coordinator = null;
    }
};

pub const pcclCreateMaster = words.C(create).call;

fn create(address: SocketAddress, master_out: ?**Master) Error!void {
    const out = master_out orelse return words.is_null("p_master_handle_out");
    const master = gpa.create(Master) catch return words.out_of_memory();
    errdefer gpa.destroy(master);
    master.* = .{ .address = undefined };
    _ = try address.write(&master.address);
    out.* = master;
}

pub const pcclRunMaster = words.C(run).call;

fn run(handle: ?*Master) Error!void {
    const master = handle orelse return words.is_null("master_instance");
    if (master.is_started.load(.acquire))
        return words.refuse(error.InvalidUsage, "the master runs, or has run", .{});
    const Options = coordinator_file.CoordinatorOptions;
    var options = try environment.options(Options, "PCCL_COORDINATOR_");
    options.bind = &master.address;
    var id: [16]u8 = run_id.*;
    if (environment.text_of("PCCL_COORDINATOR_RUN_ID")) |given| {
        const digits = std.mem.span(given);
        const read = std.fmt.hexToBytes(&id, digits) catch "";
        if (digits.len != 2 * id.len or read.len != id.len) return words.refuse(
            error.InvalidArgument,
            "PCCL_COORDINATOR_RUN_ID must be 32 hexadecimal digits, not \"{s}\"",
            .{digits},
        );
    }
    options.run_id = &id;
    var made: *coordinator_file.Coordinator = undefined;
    const got = coordinator_file.pccl_coordinator_create(&options, &made);
    try words.check(got, error.InternalError);
    master.coordinator = made;
    master.is_started.store(true, .release);
}

pub const pcclInterruptMaster = words.C(interrupt).call;

/// Nothing that a signal handler may not do.
fn interrupt(handle: ?*Master) Error!void {
    const master = handle orelse return words.is_null("master_instance");
    if (!master.is_started.load(.acquire)) return no_run();
    master.interrupted.set();
}

pub const pcclMasterAwaitTermination = words.C(await_end).call;

fn await_end(handle: ?*Master) Error!void {
    const master = handle orelse return words.is_null("master_instance");
    if (master.coordinator == null) return no_run();
    _ = master.interrupted.wait(base.never);
    master.end();
}

pub const pcclDestroyMaster = words.C(destroy).call;

fn destroy(handle: ?*Master) Error!void {
    const master = handle orelse return words.is_null("master_instance");
    master.end();
    gpa.destroy(master);
}

fn no_run() Error {
    return words.refuse(error.InvalidUsage, "the master does not run", .{});
}

test "addresses as text" {
    var room: AddressText = undefined;
    var address = std.mem.zeroes(SocketAddress);
    address.port = 65535;
    address.inet.ipv4 = @splat(255);
    address.inet.ipv6 = @splat(255);
    const ipv4 = try address.write(&room);
    try std.testing.expectEqualStrings("255.255.255.255:65535", std.mem.span(ipv4));
    address.inet.protocol = 1;
    const ipv6 = try address.write(&room);
    const longest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    try std.testing.expectEqualStrings(longest, std.mem.span(ipv6));
    address.inet.protocol = 2;
    try std.testing.expectError(error.InvalidArgument, address.write(&room));
}

test "a master runs once, until it is interrupted" {
    const expect = std.testing.expectEqual;
    var master: *Master = undefined;
    var address = std.mem.zeroes(SocketAddress);
    address.inet.ipv4 = .{ 127, 0, 0, 1 };
    try expect(.success, pcclCreateMaster(address, &master));
    try expect(.invalid_usage, pcclInterruptMaster(master));
    try expect(.invalid_usage, pcclMasterAwaitTermination(master));
    try expect(.success, pcclRunMaster(master));
    try expect(.invalid_usage, pcclRunMaster(master));
    try expect(.success, pcclInterruptMaster(master));
    try expect(.success, pcclMasterAwaitTermination(master));
    try expect(.invalid_usage, pcclMasterAwaitTermination(master));
    try expect(.success, pcclDestroyMaster(master));
    for ([_]Result{
        pcclCreateMaster(address, null),
        pcclRunMaster(null),
        pcclInterruptMaster(null),
        pcclMasterAwaitTermination(null),
        pcclDestroyMaster(null),
    }) |result| try expect(.invalid_argument, result);
}
