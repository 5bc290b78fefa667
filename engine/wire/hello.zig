//! hello: the fixed 96 bytes that open every connection, and the 32-byte answer. Nothing else is
//! read from a stranger. With encryption (docs/ROADMAP.md) the Noise handshake takes this place.

const std = @import("std");
const base = @import("base");

/// The version in every hello, which must be equal at peers and coordinator. Each change of the
/// layout of a message or frame raises it, so that older peers learn why they are refused.
pub const version: u16 = 9;

pub const hello_bytes = 96;
pub const answer_bytes = 32;
// no text protocol sends these bytes, and no converter of line ends keeps them
const magic = "PCCL\r\n\x1a\n";

pub const Purpose = enum(u8) {
    /// From a peer to the coordinator: control messages follow.
    control = 1,
    /// From a peer to a peer: frames follow.
    lane = 2,
    /// From any holder of the token to the coordinator: one status_request, one status_reply.
    status = 3,
    /// From the coordinator to a peer: asks it for its `proof`, without showing the run id.
    probe = 4,
};

pub const Hello = struct {
    purpose: Purpose,
    lane: u8 = 0,
    run_id: base.RunId,
    from: base.PeerId,
    /// In a lane: the peer that is meant, so that a reused address is noticed.
    to: base.PeerId = .none,
    /// In control: tells a reconnecting process from a second process with the same id. Drawn at
    /// the start of the process.
    instance: u64 = 0,
    /// In a probe: the nonce that the proof must contain.
    nonce: Nonce = @splat(0),
};

pub const Nonce = [16]u8;
/// The key of proofs, which a peer draws at its start and tells only its coordinator.
pub const Key = [SipHash.key_length]u8;
pub const Proof = [SipHash.mac_length]u8;
const SipHash = std.crypto.auth.siphash.SipHash128(2, 4);

/// Proves that this very peer of the run has answered. The proof contains the run id, because a
/// peer of another run may have the same id and a key that this coordinator knows.
pub fn proof(key: *const Key, run_id: base.RunId, peer: base.PeerId, nonce: Nonce) Proof {
    var result: Proof = undefined;
    SipHash.create(&result, &(run_id ++ peer.bytes ++ nonce), key);
    return result;
}

pub const Verdict = enum(u8) {
    welcome = 1,
    version_mismatch = 2,
    wrong_run = 3,
    wrong_peer = 4,
    /// Another connected process has the id, or the id is not allowed.
    refused = 5,
    /// There is no room for another peer now; a later attempt may succeed.
    full = 6,
    /// The id belongs to a member that is away and may return; a later attempt may get the id.
    held = 7,
};

pub const Error = error{ NotPccl, VersionMismatch, BadValue };

pub fn encode(hello: Hello) [hello_bytes]u8 {
    var bytes: [hello_bytes]u8 = @splat(0);
    bytes[0..8].* = magic.*;
    std.mem.writeInt(u16, bytes[8..10], version, .little);
    bytes[10] = @intFromEnum(hello.purpose);
    bytes[11] = hello.lane;
    bytes[16..32].* = hello.run_id;
    bytes[32..48].* = hello.from.bytes;
    bytes[48..64].* = hello.to.bytes;
    std.mem.writeInt(u64, bytes[64..72], hello.instance, .little);
    bytes[72..88].* = hello.nonce;
    return bytes;
}

pub fn decode(bytes: *const [hello_bytes]u8) Error!Hello {
    if (!std.mem.eql(u8, bytes[0..8], magic)) return error.NotPccl;
    if (std.mem.readInt(u16, bytes[8..10], .little) != version) return error.VersionMismatch;
    for (bytes[12..16]) |byte| if (byte != 0) return error.BadValue;
    const purpose = std.enums.fromInt(Purpose, bytes[10]) orelse return error.BadValue;
    const nonce: Nonce = bytes[72..88].*;
    if (purpose != .probe and !std.mem.allEqual(u8, &nonce, 0)) return error.BadValue;
    for (bytes[88..96]) |byte| if (byte != 0) return error.BadValue;
    return .{
        .purpose = purpose,
        .lane = bytes[11],
        .run_id = bytes[16..32].*,
        .from = .{ .bytes = bytes[32..48].* },
        .to = .{ .bytes = bytes[48..64].* },
        .instance = std.mem.readInt(u64, bytes[64..72], .little),
        .nonce = nonce,
    };
}

pub fn encode_answer(verdict: Verdict) [answer_bytes]u8 {
    var bytes: [answer_bytes]u8 = @splat(0);
    bytes[0..8].* = magic.*;
    std.mem.writeInt(u16, bytes[8..10], version, .little);
    bytes[10] = @intFromEnum(verdict);
    return bytes;
}

/// Encodes the answer to a probe.
pub fn encode_proof(value: Proof) [answer_bytes]u8 {
    var bytes = encode_answer(.welcome);
    bytes[16..32].* = value;
    return bytes;
}

/// The proof in an answer to a probe, which is not checked here.
pub fn proof_in(bytes: *const [answer_bytes]u8) Error!Proof {
    const value: Proof = bytes[16..32].*;
    var rest = bytes.*;
    rest[16..32].* = @splat(0);
    return if (try decode_answer(&rest) == .welcome) value else error.BadValue;
}

/// Whether the answer is the proof that was expected.
pub fn is_proof(bytes: *const [answer_bytes]u8, expected: Proof) bool {
    return std.crypto.timing_safe.eql([answer_bytes]u8, bytes.*, encode_proof(expected));
}

pub fn decode_answer(bytes: *const [answer_bytes]u8) Error!Verdict {
    if (!std.mem.eql(u8, bytes[0..8], magic)) return error.NotPccl;
    const verdict = std.enums.fromInt(Verdict, bytes[10]) orelse return error.BadValue;
    if (std.mem.readInt(u16, bytes[8..10], .little) != version) return error.VersionMismatch;
    for (bytes[11..]) |byte| if (byte != 0) return error.BadValue;
    return verdict;
}

test "a hello survives the round trip, and a stranger's bytes are named errors" {
    const hello: Hello = .{
        .purpose = .lane,
        .lane = 3,
        .run_id = @splat(7),
        .from = .from_int(1),
        .to = .from_int(2),
        .instance = 1 << 63 | 5,
    };
    const bytes = encode(hello);
    try std.testing.expectEqual(hello, try decode(&bytes));
    const zeros: [hello_bytes]u8 = @splat(0);
    try std.testing.expectError(error.NotPccl, decode(&zeros));
    var old = bytes;
    for ([_]u8{ version - 1, version + 1, 0xff }) |other| {
        old[8] = other;
        try std.testing.expectError(error.VersionMismatch, decode(&old));
    }
    const answer = encode_answer(.wrong_run);
    try std.testing.expectEqual(.wrong_run, try decode_answer(&answer));
}

test "a proof is of one key, run, peer and question, and an echo is none" {
    const peer: base.PeerId = .from_int(5);
    const key: Key = @splat(1);
    const mine = proof(&key, @splat(2), peer, @splat(3));
    const others = [_]Proof{
        proof(&@as(Key, @splat(9)), @splat(2), peer, @splat(3)),
        proof(&key, @splat(9), peer, @splat(3)),
        proof(&key, @splat(2), .from_int(9), @splat(3)),
        proof(&key, @splat(2), peer, @splat(9)),
    };
    try std.testing.expect(is_proof(&encode_proof(mine), mine));
    for (others) |other| try std.testing.expect(!is_proof(&encode_proof(other), mine));
    const probe = encode(.{
        .purpose = .probe,
        .run_id = @splat(0),
        .from = .none,
        .to = peer,
        .nonce = @splat(3),
    });
    try std.testing.expectEqual(@as(Nonce, @splat(3)), (try decode(&probe)).nonce);
    try std.testing.expect(!is_proof(probe[0..answer_bytes], mine));
    try std.testing.expectEqual(mine, try proof_in(&encode_proof(mine)));
    try std.testing.expectError(error.BadValue, proof_in(&encode_answer(.wrong_peer)));
    try std.testing.expectError(error.NotPccl, proof_in(&@as([answer_bytes]u8, @splat(0))));
    var lane = probe;
    lane[10] = @intFromEnum(Purpose.lane);
    try std.testing.expectError(error.BadValue, decode(&lane));
}
