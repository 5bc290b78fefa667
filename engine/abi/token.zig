//! token: makes and reads the string that peers join with (wire/token.zig).

const std = @import("std");
const wire = @import("wire");
const net = @import("net");
const argument = @import("argument.zig");
const status = @import("status.zig");
const Status = status.Status;

pub const TokenInfo = extern struct {
    size: usize,
    address: [256]u8,
    run_id: [16]u8,
};

pub const pccl_token_create = status.Secret(create).call;

noinline fn create(
    address: ?[*:0]const u8,
    run_id: ?*const [16]u8,
    token: ?[*]u8,
    capacity: usize,
) status.Error!void {
    const slice = argument.bounded(address orelse return status.is_null("address"), 255) catch
        return status.fail(.invalid_argument, "the address of a token has at most 255 bytes", .{});
    const endpoint = net.address.Endpoint.parse(slice) catch return bad_address(slice);
    if (endpoint.host.len == 0 or endpoint.port == 0) return bad_address(slice);
    const id = if (run_id) |given| given.* else net.random.array(16);
    try put(id, slice, token orelse return status.is_null("token"), capacity);
}

/// Writes the token of a run whose coordinator is at `address`.
pub fn put(run_id: [16]u8, address: []const u8, to: [*]u8, capacity: usize) status.Error!void {
    const value = wire.token.Token.init(run_id, address) catch return bad_address(address);
    var storage: [wire.token.text_bytes_max]u8 = undefined;
    const encoded = wire.token.encode(&value, &storage);
    if (!argument.copy(encoded, to, capacity)) return status.fail(
        .invalid_argument,
        "the token needs {d} bytes with its terminating zero, and capacity is {d}; " ++
            "PCCL_TOKEN_BYTES_MAX is always enough",
        .{ encoded.len + 1, capacity },
    );
}

fn bad_address(address: []const u8) status.Error {
    return status.fail(
        .invalid_argument,
        "\"{s}\" is not an address; it must be host:port, 1.2.3.4:port or [v6]:port",
        .{address},
    );
}

pub const pccl_token_parse = status.Secret(parse).call;

noinline fn parse(token: ?[*:0]const u8, info: ?*TokenInfo) status.Error!void {
    const to = info orelse return status.is_null("info");
    const value = try read(token);
    var filled = std.mem.zeroes(TokenInfo);
    const address = value.address();
    @memcpy(filled.address[0..address.len], address);
    filled.run_id = value.run_id;
    try argument.write(TokenInfo, "pccl_token_info_t", to, filled);
}

/// Reads what a caller gave as a token.
pub fn read(token: ?[*:0]const u8) status.Error!wire.token.Token {
    // Room for white space around it.
    const bytes_max = wire.token.text_bytes_max + 64;
    const slice = argument.bounded(token orelse return status.is_null("token"), bytes_max) catch
        return no_token();
    const value = wire.token.decode(slice) catch |err| return switch (err) {
        error.NotAToken => if (begins_as_one(slice)) mistyped() else no_token(),
        error.BadChecksum => mistyped(),
    };
    _ = net.address.Endpoint.parse(value.address()) catch return no_token();
    return value;
}

fn begins_as_one(slice: []const u8) bool {
    const trimmed = std.mem.trim(u8, slice, " \t\r\n");
    return std.mem.startsWith(u8, trimmed, wire.token.prefix);
}

fn mistyped() status.Error {
    return status.fail(
        .invalid_argument,
        "the token is mistyped or cut: its checksum does not fit; copy it whole",
        .{},
    );
}

fn no_token() status.Error {
    return status.fail(.invalid_argument, "this is not a token: one begins with \"{s}\" and " ++
        "comes from `pccl coordinator`, or from a program's coordinator", .{wire.token.prefix});
}

test "a token whose address is none is refused" {
    const made: wire.token.Token = try .init(@splat(9), "nowhere");
    var storage: [wire.token.text_bytes_max]u8 = undefined;
    const encoded = wire.token.encode(&made, &storage);
    var token: [wire.token.text_bytes_max + 1]u8 = undefined;
    try std.testing.expect(argument.copy(encoded, &token, token.len));
    const result = status.code(if (read(@ptrCast(&token))) |_| {} else |err| err);
    try std.testing.expectEqual(.invalid_argument, result);
}

test "a token comes back as it was made, and bad ones are refused" {
    var token: [512]u8 = undefined;
    const run_id: [16]u8 = @splat(9);
    try std.testing.expectEqual(.ok, pccl_token_create("[::1]:4000", &run_id, &token, token.len));
    var info: TokenInfo = undefined;
    info.size = @sizeOf(TokenInfo);
    try std.testing.expectEqual(.ok, pccl_token_parse(@ptrCast(&token), &info));
    try std.testing.expectEqualStrings("[::1]:4000", std.mem.sliceTo(&info.address, 0));
    try std.testing.expectEqual(run_id, info.run_id);
    const bad = [_]Status{
        pccl_token_create("nowhere", null, &token, token.len),
        pccl_token_create("host:0", null, &token, token.len),
        pccl_token_create(":4000", null, &token, token.len),
        pccl_token_create(null, null, &token, token.len),
        pccl_token_create("host:1", null, null, 0),
        pccl_token_create("host:1", null, &token, 10),
        pccl_token_parse("pccl1-abc", &info),
        pccl_token_parse(null, &info),
    };
    for (bad) |result| {
        try std.testing.expectEqual(.invalid_argument, result);
        try std.testing.expect(std.mem.len(status.pccl_last_error()) > 0);
    }
    try std.testing.expectEqual(.invalid_argument, pccl_token_parse("pccl1-abc", &info));
    const cut = std.mem.span(status.pccl_last_error());
    try std.testing.expect(std.mem.indexOf(u8, cut, "mistyped or cut") != null);
    info.size = 0;
    try std.testing.expectEqual(.ok, pccl_token_create("host:1", null, &token, token.len));
    try std.testing.expectEqual(.invalid_argument, pccl_token_parse(@ptrCast(&token), &info));
}
