//! token: the one string that a peer needs to join: "pccl1-" and base64url of version u8, run id 16
//! bytes, address (u8 length, bytes), CRC-32 of these bytes. Encryption (docs/ROADMAP.md) will add
//! keys and change the prefix.

const std = @import("std");
const base = @import("base");

pub const prefix = "pccl1-";
const encoder = std.base64.url_safe_no_pad.Encoder;
const decoder = std.base64.url_safe_no_pad.Decoder;
const raw_bytes_max = 1 + 16 + 1 + base.limits.address_bytes_max + 4;
pub const text_bytes_max = prefix.len + encoder.calcSize(raw_bytes_max);

pub const Token = struct {
    run_id: base.RunId,
    address_storage: [base.limits.address_bytes_max]u8 = undefined,
    address_length: u8 = 0,

    pub fn init(run_id: base.RunId, at: []const u8) error{TooLong}!Token {
        if (at.len > base.limits.address_bytes_max) return error.TooLong;
        var token: Token = .{ .run_id = run_id, .address_length = @intCast(at.len) };
        @memcpy(token.address_storage[0..at.len], at);
        return token;
    }

    pub fn address(token: *const Token) []const u8 {
        return token.address_storage[0..token.address_length];
    }
};

pub fn encode(token: *const Token, text: *[text_bytes_max]u8) []const u8 {
    var raw: [raw_bytes_max]u8 = undefined;
    raw[0] = 1;
    raw[1..17].* = token.run_id;
    raw[17] = token.address_length;
    @memcpy(raw[18..][0..token.address_length], token.address());
    const length = 18 + @as(usize, token.address_length);
    std.mem.writeInt(u32, raw[length..][0..4], std.hash.Crc32.hash(raw[0..length]), .little);
    @memcpy(text[0..prefix.len], prefix);
    return text[0 .. prefix.len + encoder.encode(text[prefix.len..], raw[0 .. length + 4]).len];
}

pub const Error = error{ NotAToken, BadChecksum };

pub fn decode(text: []const u8) Error!Token {
    const trimmed = std.mem.trim(u8, text, " \t\r\n");
    if (!std.mem.startsWith(u8, trimmed, prefix)) return error.NotAToken;
    const body = trimmed[prefix.len..];
    const length = decoder.calcSizeForSlice(body) catch return error.NotAToken;
    if (length < 22 or length > raw_bytes_max) return error.NotAToken;
    var raw: [raw_bytes_max]u8 = undefined;
    decoder.decode(raw[0..length], body) catch return error.NotAToken;
    const sum = std.mem.readInt(u32, raw[length - 4 ..][0..4], .little);
    if (sum != std.hash.Crc32.hash(raw[0 .. length - 4])) return error.BadChecksum;
    if (raw[0] != 1 or raw[17] != length - 22) return error.NotAToken;
    return Token.init(raw[1..17].*, raw[18 .. length - 4]) catch return error.NotAToken;
}

test "a token survives the round trip, and a mistyped one is refused" {
    const token = try Token.init(@splat(0xab), "[::1]:4000");
    var text: [text_bytes_max]u8 = undefined;
    const encoded = encode(&token, &text);
    const decoded = try decode(encoded);
    try std.testing.expectEqualStrings("[::1]:4000", decoded.address());
    try std.testing.expectEqual(token.run_id, decoded.run_id);
    text[prefix.len + 5] = if (text[prefix.len + 5] == 'A') 'B' else 'A';
    try std.testing.expectError(error.BadChecksum, decode(encoded));
    try std.testing.expectError(error.NotAToken, decode("pccl1-"));
    try std.testing.expectError(error.NotAToken, decode("hello"));
}
