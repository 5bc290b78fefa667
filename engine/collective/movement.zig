//! Movement: the data movement of one operation: its ledger, its memory, and the mover of the
//! attempt under way: round the ring (ring.zig), straight to the owners and back (direct.zig), or
//! from sender to receiver (message.zig).
//!
//! Members that are alive have positions 0..n-1. Every chunk has an owner, which forms its result;
//! partial sums or contributions travel to the owner, and the final bytes from there to everybody.
//! A chunk may have a *source*, the one rank that contributes to it, and is then final there from
//! the start. A chunk may have an *audience*, the one rank that wants its result. A chunk with
//! source and audience is *carried*, unchanged, from its source to its audience. After a loss,
//! chunks that some survivors hold travel on from these survivors. A chunk whose source or audience
//! is lost is *void*: no rank waits for it, and its bytes become zeros.
//!
//! Movers answer with moves and jobs (job.zig). A runner does the jobs that are not small, at most
//! as many at once as `posts` has places, and `halt` waits for them. session/frame.zig calls this
//! file. Kinds of calls: roles.zig; steps: docs/internals/ALGORITHMS.md; tests: movement_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const board_file = @import("board.zig");
const incoming = @import("incoming.zig");
const job_file = @import("job.zig");
const posts_file = @import("posts.zig");
const Arrays = @import("arrays.zig").Arrays;
const Begin = board_file.Begin;
const Board = board_file.Board;
const Job = job_file.Job;
const Ledger = @import("ledger.zig").Ledger;
const Memory = @import("memory.zig").Memory;
const Move = job_file.Move;
const Movers = @import("movers.zig").Movers;
const Options = @import("options.zig").Options;
const Pool = @import("pool.zig").Pool;
const Post = posts_file.Post;
const Posts = posts_file.Posts;
const Allocator = std.mem.Allocator;
const Fragment = wire.Fragment;
const Header = wire.frame.Header;
const assert = std.debug.assert;

pub const Movement = struct {
    /// The memory of all lists below, reserved by `prepare`.
    region: base.Region,
    board: Board,
    memory: Memory,
    movers: Movers,
    /// Sixteenths of pieces that this peer has still to send so that other members get their
    /// private results.
    owed: u64 = 0,
    /// The piece that `work` looks at next.
    work_next: usize = 0,
    /// The bytes that one call of `work` handles at most.
    work_bytes: usize,
    /// The job that gives the caller's arrays back (`restore` or `set_aside`) until all are back;
    /// else null.
    ending: ?Job.Kind = null,
    /// The piece that `ending` looks at next.
    ending_next: usize = 0,
    posts: Posts,
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,

    pub const work_bytes_max = 2 * base.limits.MiB;
    const ahead_max = 8;

    /// Makes the bookkeeping without the large buffers: the operation may wait long before it moves
    /// anything.
    pub fn prepare(gpa: Allocator, pool: *Pool, options: Options) Allocator.Error!Movement {
        var region: base.Region = .init(gpa);
        errdefer region.deinit();
        const arena = region.allocator();
        const partition = try options.partition(arena);
        const arrays: Arrays = try .init(arena, &partition, options.arrays, &options.roles);
        const descriptor = &options.descriptor;
        const ledger: Ledger =
            try .init(arena, descriptor, partition, options.roles, options.arrays.len);
        const posts: Posts =
            try .init(arena, options.runner, partition.piece_bytes_max(), partition.pieces);
        const members = options.members_max();
        const board: Board = try .init(arena, ledger, &.{
            .members_max = members,
            .window_bytes = options.window_bytes,
            .window_here = options.window_here,
            .is_far = options.is_far,
            .ahead = @intCast(std.math.clamp(posts.all.len, 1, ahead_max)),
            .jobs = @intCast(posts.all.len),
        });
        var movement: Movement = .{
            .board = board,
            .memory = try .init(arena, pool, &ledger, arrays, options.operation, options.residual),
            .movers = try .init(arena, &partition, members, board.free_slots.len),
            .work_bytes = @intCast(@min(options.window_bytes, work_bytes_max)),
            .posts = posts,
            .region = undefined,
        };
        movement.region = region;
        return movement;
    }

    /// Takes the large buffers, once, before the first attempt; an error takes none.
    pub fn reserve(x: *Movement) Allocator.Error!void {
        try x.memory.reserve(x.board.free_slots.len);
        x.board.ledger.settle_own();
        // A small operation brings all its own pieces to the result here, without a round of the
        // engine's loop.
        if (x.board.ledger.own_left.count > 0) x.work();
    }

    pub fn deinit(x: *Movement) void {
        x.wait();
        x.memory.release();
        x.region.deinit();
        x.* = undefined;
    }

    /// The size in bytes of all slots of the operation.
    pub fn room_bytes(x: *const Movement) u64 {
        return x.board.free_slots.len * x.memory.slot_bytes;
    }

    // ---- attempts

    /// Starts the next attempt: chunks that are kept stay settled, all other chunks are redone.
    pub fn begin(x: *Movement, options: Begin) void {
        assert(x.board.members == 0);
        x.end_now(); // an operation in doubt goes on from the result that was set aside
        x.posts.open();
        x.board.begin(&options);
        x.movers.choose(&x.board);
        const l = &x.board.ledger;
        l.begin(options.attempt, x.board.positions, options.kept, Told{ .x = x, .of = &options });
        if (l.voided.count > 0) x.clear_voids();
        x.owed = 0;
        const alone = x.board.members == 1;
        x.work_next = if (alone or l.own_left.count > 0) 0 else l.piece_count();
        if (alone) return x.work();
        x.movers.ask(&x.board, .begin, .{&options});
        if (l.descriptor.kind.is_private()) x.owed = Fragment.most * x.movers.owed(&x.board);
    }

    /// Tells the mover which members hold a kept chunk.
    const Told = struct {
        x: *Movement,
        of: *const Begin,

        pub fn held_by(told: Told, chunk: usize, ranks: *const base.Mask) void {
            told.x.movers.ask(&told.x.board, .held_by, .{ chunk, ranks, told.of.order });
        }
    };

    /// Writes zeros to void chunks in the result of each rank that would have received them.
    fn clear_voids(x: *Movement) void {
        const l = &x.board.ledger;
        for (0..l.partition.chunks) |index| {
            const chunk: u32 = @intCast(index);
            if (!l.voided.has(chunk)) continue;
            const pieces = l.pieces_of(chunk);
            for (pieces.first..pieces.end) |piece| {
                if (l.has_target(chunk)) x.start(&x.board.job_of(.clear, piece));
                x.memory.keep_residual(piece);
            }
        }
    }

    /// Ends the attempt: nothing moves until the next `begin`, and no job is under way. The caller
    /// has made sure that no lane still reads or writes slots and results. If the caller's arrays
    /// are being given back, that goes on.
    pub fn halt(x: *Movement) void {
        if (x.ending == null) x.wait();
        x.board.members = 0;
        x.board.slots_each = 0;
    }

    // ---- jobs

    /// Does a job now, or hands it to the runner.
    fn start(x: *Movement, job: *const Job) void {
        const access = x.memory.prepare(job);
        if (access.is_needless) return x.count(job, 0);
        if (access.needs_aside or !x.posts.takes(x.piece_bytes(job.piece)))
            return x.count(job, x.memory.run(job, access));
        x.board.under_way.appendAssumeCapacity(job.piece);
        x.posts.give(x, &x.memory, job, access);
    }

    /// Takes back a job that the runner has done. Returns whether there may be more to send now.
    pub fn done(x: *Movement, posted: *base.Job) bool {
        const post: *Post = .of(posted);
        const job = post.job;
        x.take_back(post);
        if (x.ending != null) x.end_some();
        return x.moves_on(job.piece, job.kind == .finish) or job.kind == .contribute or
            job.kind == .bring;
    }

    /// Frees the job's place, and counts the job as done.
    fn take_back(x: *Movement, post: *Post) void {
        const job = post.job;
        const digest_part = post.digest;
        x.posts.take_back(post);
        const under_way = &x.board.under_way;
        const at = std.mem.indexOfScalar(usize, under_way.items, job.piece).?;
        _ = under_way.swapRemove(at);
        x.count(&job, digest_part);
    }

    /// Waits until no job is under way; the jobs waited for do not count as done.
    fn wait(x: *Movement) void {
        if (x.board.under_way.items.len == 0) return;
        x.posts.fence(x);
        x.board.under_way.clearRetainingCapacity();
        x.posts.open();
    }

    /// Notes that a job is done, and makes ready what waited for it.
    fn count(x: *Movement, job: *const Job, digest_part: u128) void {
        const l = &x.board.ledger;
        const piece = job.piece;
        switch (job.kind) {
            .finish => x.finish(piece, job.reduced_attempt, digest_part),
            .bring => {
                l.own_left.unset_bit(piece);
                l.add_digest(piece, digest_part);
            },
            .alone => {
                l.add_digest(piece, digest_part);
                l.settle(piece, x.board.attempt, x.board.attempt);
            },
            .clear, .restore, .set_aside => {},
            .contribute, .add, .add_last, .reduce, .reduce_for_another, .take => {
                const is_final = x.movers.ask(&x.board, .done, .{job});
                if (is_final) x.finish(piece, x.board.attempt, digest_part);
            },
        }
    }

    /// The final bytes of a piece are in the result: settles the piece, and makes it due to the
    /// members that get it from here.
    fn finish(x: *Movement, piece: usize, reduced_attempt: u32, digest_part: u128) void {
        const l = &x.board.ledger;
        l.add_digest(piece, digest_part);
        l.settle(piece, reduced_attempt, x.board.attempt);
        if (l.descriptor.kind.is_private()) return;
        x.movers.ask(&x.board, .forward_final, .{piece});
    }

    /// Whether `work` has something to do, which no frame would trigger.
    pub fn has_work(x: *const Movement) bool {
        if (!x.has_place()) return false; // there is work again when a place is free
        if (x.ending != null) return x.ending_next < x.board.ledger.piece_count();
        return x.board.members > 0 and x.work_next < x.board.ledger.piece_count();
    }

    /// Does a part of the work that no frame triggers, `work_bytes` at most, so that other
    /// operations on the thread need not wait for gigabytes: all pieces in a world of one, else the
    /// pieces of which this peer is the source.
    pub fn work(x: *Movement) void {
        if (x.ending != null) return x.end_some();
        const l = &x.board.ledger;
        const alone = x.board.members == 1;
        var bytes: usize = 0;
        while (x.work_next < l.piece_count() and bytes < x.work_bytes and x.has_place()) {
            const piece = x.work_next;
            x.work_next += 1;
            if (l.own_left.has(piece)) {
                // A piece that this peer sends is brought to the result just before it is sent.
                if (x.is_due(piece) or x.board.is_under_way(piece)) continue;
                x.start(&x.board.job_of(.bring, piece));
            } else if (alone and !l.settled.has(piece) and l.is_own_result(piece)) {
                x.start(&x.board.job_of(.alone, piece));
            } else continue;
            bytes += x.piece_bytes(piece);
        }
    }

    fn has_place(x: *const Movement) bool {
        return x.posts.free > 0 or x.board.under_way.items.len == 0;
    }

    /// Whether the final bytes of a piece will go out from here.
    fn is_due(x: *const Movement, piece: usize) bool {
        if (x.board.members < 2) return false;
        return x.movers.ask(&x.board, .is_due, .{piece});
    }

    pub fn piece_bytes(x: *const Movement, piece: usize) usize {
        return x.board.ledger.partition.place_of(piece).bytes();
    }

    // ---- the end

    /// The call has failed: gives the caller back the bytes that were overwritten in place, which
    /// no lane uses any more. Returns whether all bytes are back; if not, `work` goes on.
    pub fn restore(x: *Movement) bool {
        assert(x.board.members == 0);
        return x.end(.restore);
    }

    /// The call returns in doubt: gives the caller back the bytes that were overwritten in place,
    /// and keeps the result, which other members may still need, in the undo log. No lane uses the
    /// result or the caller's arrays any more. Returns whether all bytes are back; if not, `work`
    /// goes on.
    pub fn set_aside(x: *Movement) bool {
        return x.end(.set_aside);
    }

    fn end(x: *Movement, how: Job.Kind) bool {
        x.settle_jobs();
        x.ending = how;
        x.ending_next = 0;
        x.end_some();
        return x.ending == null;
    }

    /// Waits for the jobs under way, and counts them as done.
    fn settle_jobs(x: *Movement) void {
        if (x.board.under_way.items.len == 0) return;
        x.posts.fence(x);
        while (x.posts.free < x.posts.all.len) x.take_back(x.posts.all[x.posts.free]);
    }

    fn end_some(x: *Movement) void {
        const how = x.ending.?;
        var bytes: usize = 0;
        while (x.ending_next < x.board.ledger.piece_count()) {
            if (bytes >= work_bytes_max or !x.has_place()) return;
            const piece = x.ending_next;
            x.ending_next += 1;
            const concerned = if (how == .restore)
                x.memory.is_overwritten(piece)
            else
                x.memory.is_received(piece);
            if (!concerned) continue;
            x.start(&x.board.job_of(how, piece));
            bytes += x.piece_bytes(piece);
        }
        if (x.board.under_way.items.len > 0) return;
        x.ending = null;
        if (how == .restore) x.memory.dirty.clear() else x.memory.is_set_aside();
    }

    /// Finishes giving the caller's arrays back, without a pause.
    pub fn end_now(x: *Movement) void {
        while (x.ending != null) {
            x.settle_jobs();
            x.end_some();
        }
    }

    // ---- what comes in

    pub const Place = struct { bytes: []u8, slot: u16 };
    pub const PlaceError = board_file.PlaceError;

    /// Whether frames of this attempt may come from the member at position `from`.
    pub fn receives_from(x: *const Movement, from: u16) bool {
        if (from >= x.board.members or from == x.board.position) return false;
        return x.movers.ask(&x.board, .receives_from, .{from});
    }

    /// Chooses the place for the payload of a frame from position `from`. Errors are breaches of
    /// the protocol by the sender.
    pub fn place(x: *Movement, header: *const Header, from: u16) PlaceError!Place {
        assert(x.board.members > 1 and x.receives_from(from));
        const found = try incoming.find(&x.board, &x.movers, header, from);
        x.end_now();
        const is_result = found.slot == job_file.no_slot;
        const whole = if (is_result) x.memory.receive(found.piece) else x.memory.slot(found.slot);
        return .{ .bytes = whole[found.range.first..found.range.end], .slot = found.slot };
    }

    /// Frees the place of a frame whose lane broke before its payload was complete; the sender
    /// sends the frame again.
    pub fn unplace(x: *Movement, header: *const Header, from: u16, slot: u16) void {
        incoming.let_go(&x.board, &x.movers, header, from, slot);
    }

    /// The payload of a placed frame is complete. Returns whether there may be more to send now.
    pub fn arrived(x: *Movement, header: *const Header, slot: u16) bool {
        assert(x.board.members > 1);
        const piece = x.board.ledger.partition.numbered(header.index).?;
        x.bytes_received += header.payload_bytes;
        const assembly = incoming.assembly_of(&x.board, header.kind, piece, slot);
        if (!header.fragment.is_whole() and !assembly.arrived(header.fragment)) return false;
        // A job is at the piece only if a liar sent final bytes before this peer's sum moved on:
        // the bytes that this job saves must be saved before the next job starts.
        const waits = x.board.is_under_way(piece);
        if (waits) x.settle_jobs();
        const is_final = header.kind == .final;
        if (is_final) {
            var job = x.board.job_of(.finish, piece);
            job.reduced_attempt = header.reduced_attempt;
            x.start(&job);
        } else {
            const next_job = x.movers.ask(&x.board, .arrived, .{ piece, slot });
            if (next_job) |*job| x.start(job);
        }
        return waits or x.moves_on(piece, is_final);
    }

    fn moves_on(x: *const Movement, piece: usize, is_final: bool) bool {
        return x.movers.ask(&x.board, .moves_on, .{ piece, is_final });
    }

    // ---- credits

    fn classes(x: *const Movement, neighbour: u16) Board.Classes {
        return x.movers.ask(&x.board, .classes, .{neighbour});
    }

    /// The credit that a sender has from the start, told in the open frame once this peer has
    /// called.
    pub fn initial_credit(x: *const Movement) u64 {
        return x.board.slots_each;
    }

    pub fn next_grant(x: *Movement, from: u16) ?Board.Grant {
        if (x.board.members < 2) return null;
        return x.board.next_grant(x.classes(from));
    }

    pub fn opened(x: *Movement, to: u16, credit: u64) void {
        x.board.opened(to, x.classes(to), credit);
    }

    pub fn credited(x: *Movement, to: u16, class: u16, allowed: u64) error{UnknownPiece}!void {
        return x.board.credited(x.classes(to), class, allowed);
    }

    // ---- what goes out

    pub const Out = struct { move: Move, payload: []const u8 };

    pub fn sends_to(x: *const Movement, to: u16) bool {
        if (to >= x.board.members or to == x.board.position) return false;
        return x.movers.ask(&x.board, .sends_to, .{to});
    }

    /// The next frame for the member at position `to`; null if nothing can be sent now.
    pub fn next(x: *Movement, to: u16) ?Out {
        if (x.board.members < 2 or x.ending != null) return null;
        const target = &x.board.targets[to];
        // A member that is not known to have called is sent little (limits.zig: eager_bytes_max).
        const is_eager = !target.open;
        const most = base.limits.eager_bytes_max;
        if (is_eager and target.eager_bytes + x.memory.slot_bytes > most) return null;
        const move = x.next_move(to, is_eager) orelse return null;
        const bytes = x.payload(&move);
        if (is_eager) target.eager_bytes += bytes.len;
        x.bytes_sent += bytes.len;
        return .{ .move = move, .payload = bytes };
    }

    /// The payload of a move's frame, also when the frame is sent again.
    pub fn payload(x: *const Movement, move: *const Move) []const u8 {
        return switch (move.place) {
            .slot => x.memory.slot(move.slot)[0..x.board.partial_bytes(move.piece)],
            .own => x.memory.own_piece(move.piece),
            .result => x.memory.final_piece(move.piece),
        };
    }

    fn next_move(x: *Movement, to: u16, is_eager: bool) ?Move {
        // With a runner, contributions that leave later are made ready now.
        while (x.posts.free > 0)
            x.start(&(x.movers.ask(&x.board, .prepare, .{to}) orelse break));
        while (true) switch (x.movers.ask(&x.board, .next, .{ to, is_eager })) {
            .nothing => return null,
            .move => |move| return move,
            .job => |job| x.start(&job),
        };
    }

    /// Counts a fragment that has left as no longer owed.
    pub fn sent(x: *Movement, fragment: Fragment) void {
        assert(x.board.members > 1);
        x.owed -|= fragment.count();
    }

    /// Notes that the neighbour has a fragment of a move. Returns whether the fragment was the last
    /// of its slot, which is free then.
    pub fn acknowledged(x: *Movement, move: *const Move, fragment: Fragment) bool {
        assert(x.board.members > 1);
        return x.board.slot_left(move, fragment);
    }

    /// Whether a frame may be sent, perhaps again. Once the result is set aside, this peer's
    /// contribution belongs to the caller and may not be sent.
    pub fn is_repeatable(x: *const Movement, move: *const Move) bool {
        return move.place != .own or (x.ending == null and !x.memory.is_aside);
    }

    /// Whether the receiver must acknowledge this frame soon, because slots are short.
    pub fn is_short(x: *const Movement, move: *const Move) bool {
        return x.board.is_short(move);
    }

    /// A lane from position `from` broke, and may have lost an open and credits: announces the
    /// credits again.
    pub fn grant_again(x: *Movement, from: u16) void {
        x.board.grant_again(x.classes(from));
    }

    // ---- results

    /// Whether this peer has its result, and has sent everything that other members need from it
    /// for private results.
    pub fn complete(x: *const Movement) bool {
        if (!x.board.ledger.is_complete() or x.owed > 0) return false;
        // Two members that exchange something must have told each other the same call in this
        // attempt, even if nothing is to be moved, or all that was moved is kept.
        return !x.board.ledger.descriptor.is_between_two() or x.board.are_all_open();
    }
};
