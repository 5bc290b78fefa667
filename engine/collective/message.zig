//! message: a send and its recv. The pieces go unchanged and in order from the sender's memory to
//! the receiver's, once the receiver has called. No other member takes part, and no piece waits in
//! a slot. Called by movement.zig.

const std = @import("std");
const base = @import("base");
const board_file = @import("board.zig");
const job_file = @import("job.zig");
const Answer = job_file.Answer;
const Board = board_file.Board;
const Begin = board_file.Begin;
const Job = job_file.Job;
const Header = @import("wire").frame.Header;
const PlaceError = board_file.PlaceError;

pub const Message = struct {
    /// The next piece to send.
    piece_next: u64 = 0,

    pub fn reset(message: *Message) void {
        message.* = .{};
    }

    /// Does nothing: the ledger knows the chunks that the receiver has, and `next_due` skips them.
    pub fn held_by(
        _: *Message,
        _: *const Board,
        _: usize,
        _: *const base.Mask,
        _: *const base.Order,
    ) void {}

    pub fn begin(message: *Message, b: *Board, _: *const Begin) void {
        message.piece_next = next_due(b, 0);
    }

    fn next_due(b: *const Board, from: u64) u64 {
        const partition = &b.ledger.partition;
        if (b.ledger.roles.rank != b.ledger.roles.pair.src) return partition.pieces;
        var piece = from;
        while (piece < partition.pieces) {
            const chunk = partition.chunk_of(piece);
            if (!b.ledger.is_done(chunk)) return piece;
            piece = partition.first_piece(@as(u64, chunk) + 1);
        }
        return piece;
    }

    /// Both members receive frames: each is told that the other has called.
    pub fn receives_from(_: *const Message, _: *const Board, _: u16) bool {
        return true;
    }

    pub fn sends_to(_: *const Message, _: *const Board, _: u16) bool {
        return true;
    }

    pub fn classes(_: *const Message, _: *const Board, neighbour: u16) Board.Classes {
        return .{ .first = neighbour, .count = 1 };
    }

    pub fn passes_here(_: *const Message, b: *const Board, _: u32) bool {
        return b.ledger.roles.rank == b.ledger.roles.pair.src;
    }

    pub fn gives(_: *const Message, b: *const Board, chunk: u32, _: u16) bool {
        return !b.ledger.is_done(chunk) and b.ledger.wants(chunk);
    }

    pub fn place_partial(
        _: *Message,
        _: *Board,
        _: *const Header,
        _: usize,
        _: u16,
    ) PlaceError!u16 {
        return error.WrongPhase;
    }

    pub fn unplace(_: *Message, _: *Board, _: usize, _: u16, _: u16) void {
        unreachable; // no partial gets a place in a message
    }

    pub fn arrived(_: *Message, _: *Board, _: usize, _: u16) ?Job {
        unreachable; // no partial gets a place in a message
    }

    pub fn done(_: *Message, b: *Board, job: *const Job) bool {
        b.contributed(job, .final, 0);
        return false;
    }

    pub fn forward_final(_: *Message, _: *const Board, _: usize) void {}

    pub fn moves_on(_: *const Message, _: *const Board, _: usize, _: bool) bool {
        return false;
    }

    pub fn is_due(_: *const Message, _: *const Board, _: usize) bool {
        return false;
    }

    pub fn next(message: *Message, b: *Board, to: u16, is_eager: bool) Answer {
        if (is_eager) return .nothing;
        if (b.targets[to].pop()) |move| return .{ .move = move };
        return if (message.prepare(b, to)) |job| .{ .job = job } else .nothing;
    }

    pub fn prepare(message: *Message, b: *Board, to: u16) ?Job {
        if (!b.targets[to].open or message.piece_next >= b.ledger.partition.pieces) return null;
        const piece: usize = @intCast(message.piece_next);
        const job = b.contribution(piece, to) orelse return null;
        message.piece_next = next_due(b, piece + 1);
        return job;
    }
};
