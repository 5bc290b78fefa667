//! incoming: finds the piece that a frame brings, and which part of it, and checks that the frame
//! comes once, from the sender it is due from, and has the right length. Errors are breaches of the
//! protocol by the sender, or a frame that comes again. This file knows no memory; movement.zig
//! knows it, and calls this file.

const wire = @import("wire");
const job_file = @import("job.zig");
const Assembly = @import("assembly.zig").Assembly;
const Board = @import("board.zig").Board;
const Movers = @import("movers.zig").Movers;
const PlaceError = @import("board.zig").PlaceError;
const Header = wire.frame.Header;
const no_slot = job_file.no_slot;

/// A range of bytes of a slot, or of the piece in the result if there is no slot.
pub const Found = struct {
    piece: usize,
    slot: u16 = no_slot,
    range: wire.Fragment.Range,
};

/// Finds the place of a frame from position `from`; the frame counts as placed from now on.
pub fn find(b: *Board, movers: *Movers, header: *const Header, from: u16) PlaceError!Found {
    const piece = b.ledger.partition.numbered(header.index) orelse return error.UnknownPiece;
    switch (header.kind) {
        .partial => {},
        .final => return find_final(b, movers, header, piece, from),
        .open, .credit, .ping, .want, .leaf, .hashes, .lack, .probe => return error.WrongPhase,
    }
    const slot = try movers.ask(b, .place_partial, .{ header, piece, from });
    const range = header.fragment.range(b.partial_bytes(piece));
    return .{ .piece = piece, .slot = slot, .range = range };
}

fn find_final(
    b: *Board,
    movers: *Movers,
    header: *const Header,
    piece: usize,
    from: u16,
) PlaceError!Found {
    const l = &b.ledger;
    const assembly = &l.assemblies[piece];
    const is_whole = assembly.placed == 0;
    if (l.final_seen.has(piece) and (is_whole or assembly.has(header.fragment)))
        return error.Twice;
    const chunk = l.partition.chunk_of(piece);
    if (!l.wants(chunk)) return error.WrongPhase;
    const expected = movers.ask(b, .gives, .{ chunk, from });
    if (!expected) return error.WrongPhase;
    const range = header.fragment.range(final_bytes(b, piece));
    if (header.payload_bytes != range.len()) return error.WrongLength;
    if (header.reduced_attempt == 0 or header.reduced_attempt > b.attempt) return error.WrongPhase;
    // This peer's sum of the piece has not gone on yet, so no owner can have final bytes of it.
    if (b.is_under_way(piece)) return error.WrongPhase;
    if (!is_whole or !header.fragment.is_whole()) try assembly.place(header.fragment);
    l.final_seen.set_bit(piece);
    return .{ .piece = piece, .range = range };
}

fn final_bytes(b: *const Board, piece: usize) usize {
    const partition = &b.ledger.partition;
    if (!b.ledger.encodes()) return partition.place_of(piece).bytes();
    return partition.codec.encoded_bytes(partition.elements(piece));
}

/// Frees the place of a placed frame that did not come in whole; the sender sends the frame again.
pub fn let_go(b: *Board, movers: *Movers, header: *const Header, from: u16, slot: u16) void {
    const piece = b.ledger.partition.numbered(header.index).?;
    const assembly = assembly_of(b, header.kind, piece, slot);
    if (!header.fragment.is_whole() and !assembly.unplace(header.fragment)) return;
    if (header.kind == .final) return b.ledger.final_seen.unset_bit(piece);
    movers.ask(b, .unplace, .{ piece, from, slot });
}

/// The fragments of a piece that have come.
pub fn assembly_of(b: *Board, kind: wire.frame.Kind, piece: usize, slot: u16) *Assembly {
    return if (kind == .final) &b.ledger.assemblies[piece] else &b.assemblies[slot];
}
