//! Board: the state that the movers of one operation share: the ledger, the position of each member
//! in the attempt under way, and the slots with the credits of the members that may fill them.
//! Partial sums and contributions wait in slots. Each owner (ring) or sender (direct) has slots of
//! its own at this peer, so the sums of two members never wait for each other, and no cycle of full
//! buffers can form.
//!
//! The board knows ranks and numbers, never bytes. Next: ring.zig, direct.zig, message.zig, which
//! choose moves; memory.zig, where the slots are.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const job_file = @import("job.zig");
const Answer = job_file.Answer;
const Assembly = @import("assembly.zig").Assembly;
const Job = job_file.Job;
const Ledger = @import("ledger.zig").Ledger;
const Move = job_file.Move;
const Schedule = @import("schedule.zig").Schedule;
const Allocator = std.mem.Allocator;
const BitSet = base.BitSet;
const Fragment = wire.Fragment;
const Header = wire.frame.Header;
const KeptRange = wire.control.KeptRange;
const assert = std.debug.assert;
const no_slot = job_file.no_slot;
const nobody = job_file.nobody;

/// The parameters with which an attempt begins.
pub const Begin = struct {
    attempt: u32,
    schedule: Schedule,
    /// Ranks of the members alive, by position: in the order of the ring, or in rank order.
    order: *const base.Order,
    /// Ranks of the members that reach all others; these hubs own the chunks of a direct schedule.
    hubs: *const base.Mask,
    /// How many of the chunks each hub owns.
    shares: base.Shares = .{},
    /// Ranges of chunks that some members hold; empty in a first attempt.
    kept: []const KeptRange,
};

pub const PlaceError = error{ UnknownPiece, WrongLength, Twice, Overlap, NoCredit, WrongPhase };

pub const Board = struct {
    ledger: Ledger,

    // The attempt under way; `members` is 0 while the operation is stopped.
    attempt: u32 = 0,
    position: u16 = 0,
    members: u16 = 0,
    schedule: Schedule = .ring,
    shares: base.Shares = .{},
    /// By rank: its position in this attempt, or `nobody`.
    positions: []u16,

    free_slots: []u16,
    /// By slot: the fragments that come into the slot (`assemblies`); the fragments sent from the
    /// slot that the neighbour has (`left`).
    assemblies: []Assembly,
    left: []Fragment.Mask,
    free_count: u16 = 0,
    /// The number of slots that may hold a contribution of this peer on its way out.
    origin_slots: u16,
    /// The least `origin_slots` that any member has.
    origin_sure: u16,
    /// The number of slots that one sender of partial sums may fill here in this attempt: an
    /// owner's neighbour in the ring, or a contributor.
    slots_each: u32 = 0,
    /// The least number of slots that any member has.
    slots_sure: usize,
    /// Some members are far away: frames with the longest way leave first (ring.zig: next).
    is_far: bool,
    /// By position: the state of sending to that member.
    targets: []Target,
    /// Credits by position: of the owner in a ring, of the sender or receiver in a direct schedule.
    credits: []Credit,
    /// The number of contributions to each neighbour that are made ready ahead of time, at least 1.
    ahead: u16,
    /// The pieces that a runner's jobs are at.
    under_way: std.ArrayList(usize),

    /// The state of sending to one member.
    pub const Target = struct {
        /// The member has called the operation, and can receive.
        open: bool = false,
        /// Bytes of payload sent to the member in this attempt before it opened.
        eager_bytes: usize = 0,
        /// Contributions that are ready for the member, oldest first.
        ready: []Move = &.{},
        ready_count: u16 = 0,
        /// The number of contributions to the member that jobs are making.
        preparing: u16 = 0,
        /// The number of slots taken for contributions to the member, until it has them.
        held: u16 = 0,

        pub fn push(target: *Target, move: Move) void {
            target.ready[target.ready_count] = move;
            target.ready_count += 1;
        }

        pub fn pop(target: *Target) ?Move {
            if (target.ready_count == 0) return null;
            target.ready_count -= 1;
            defer std.mem.copyForwards(
                Move,
                target.ready[0..target.ready_count],
                target.ready[1 .. target.ready_count + 1],
            );
            return target.ready[0];
        }

        pub fn has_room(target: *const Target) bool {
            return target.ready_count + target.preparing < target.ready.len;
        }
    };

    pub const Credit = struct {
        /// As receiver: slots in use (`held`), slots freed in this attempt (`freed`), and how much
        /// of `freed` the sender has been told (`announced`).
        held: u32 = 0,
        freed: u64 = 0,
        announced: u64 = 0,
        /// As sender: the number of pieces that the receiver allows in this attempt; `used` counts
        /// those sent.
        allowed: u64 = 0,
        /// The part of `allowed` that the receiver has said, not assumed: a credit may overtake the
        /// open on another lane.
        granted: u64 = 0,
        used: u64 = 0,

        pub fn has_left(credit: *const Credit) bool {
            return credit.used < credit.allowed;
        }
    };

    /// The least number of slots for contributions that must be converted before they travel.
    const origin_slots_min = 8;
    const slots_each_max = 4096;

    pub const Sizes = struct {
        members_max: u32,
        window_bytes: u64,
        /// The window of this member in bytes, if it is larger than `window_bytes`.
        window_here: u64 = 0,
        is_far: bool = false,
        /// The number of contributions to one neighbour that are made ready ahead of time, at least
        /// 1.
        ahead: u16 = 1,
        /// The number of jobs that a runner may have at once.
        jobs: u16 = 0,
    };

    /// Makes a board whose lists are in `arena`.
    pub fn init(arena: Allocator, ledger: Ledger, sizes: *const Sizes) Allocator.Error!Board {
        const world_size = ledger.roles.world_size;
        // This peer may have more slots than all members have, but no more than half of the pieces.
        const sure = slots_needed(&ledger, sizes.window_bytes, sizes.is_far);
        const half: usize = @intCast(@min(ledger.partition.pieces / 2, no_slot - 1));
        const here = slots_needed(&ledger, sizes.window_here, sizes.is_far);
        const is_more = @min(here.all, half) > sure.all;
        const slots = if (is_more) @min(here.all, half) else sure.all;
        const spare = slots - (sure.all - sure.origin);
        const targets = try base.unfilled.list(arena, Target, sizes.members_max);
        const ready = try base.unfilled.list(arena, Move, sizes.members_max * sizes.ahead);
        for (targets, 0..) |*target, index| target.* = .{
            .ready = ready[index * sizes.ahead ..][0..sizes.ahead],
        };
        return .{
            .ledger = ledger,
            // Contributions never take slots that senders take for granted.
            .origin_slots = @max(sure.origin, @as(u16, @intCast(@min(here.origin, spare)))),
            .origin_sure = sure.origin,
            .slots_sure = sure.all,
            .is_far = sizes.is_far,
            .free_slots = try base.unfilled.list(arena, u16, slots),
            .assemblies = try base.unfilled.list(arena, Assembly, slots),
            .left = try base.unfilled.list(arena, Fragment.Mask, slots),
            .positions = try base.unfilled.list(arena, u16, world_size),
            .targets = targets,
            .credits = try base.unfilled.list(arena, Credit, sizes.members_max),
            .ahead = sizes.ahead,
            .under_way = try .initCapacity(arena, sizes.jobs),
        };
    }

    /// The number of slots (`all`), and how many of them hold contributions of this peer
    /// (`origin`).
    const Needed = struct { all: usize = 0, origin: u16 = 0 };

    fn slots_needed(ledger: *const Ledger, window_bytes: u64, is_far: bool) Needed {
        const kind = ledger.descriptor.kind;
        const world_size = ledger.roles.world_size;
        if (!(kind.reduces() or kind.carries()) or world_size < 2) return .{};
        if (kind == .send_recv) return .{}; // a message goes from memory to memory
        const senders = world_size - 1;
        const slot_bytes = @max(1, ledger.partition.slot_bytes());
        const by_window = @max(1, window_bytes / (slot_bytes * senders));
        // Each owner has 1/n of the pieces, and after losses n may be 2, hence half of them.
        const pieces = ledger.partition.pieces;
        const by_work = @max(1, std.math.divCeil(u64, pieces, 2) catch unreachable);
        const per_sender = @min(by_window, by_work, slots_each_max);
        // A contribution stays in its slot until the neighbour has it, so these slots hold all
        // contributions that are on their way: between far members perhaps one for every piece.
        const least = origin_slots_of(world_size);
        const most = if (is_far) pieces else by_work;
        const under_way = @min(window_bytes / slot_bytes, most, slots_each_max);
        const origin: u16 = if (converts_any(ledger)) @intCast(@max(least, under_way)) else 0;
        return .{
            .all = @intCast(@min(per_sender * senders + origin, no_slot - 1)),
            .origin = origin,
        };
    }

    /// Whether some contributions travel in another form than they have in the caller's array.
    fn converts_any(ledger: *const Ledger) bool {
        if (ledger.encodes()) return true;
        for (ledger.partition.shards) |*shard| {
            if (shard.partial_bytes > shard.dtype.size()) return true;
        }
        return false;
    }

    /// Room for one contribution on its way to each owner of a direct schedule, so that no owner
    /// waits for another.
    fn origin_slots_of(world_size: u32) u16 {
        if (world_size > base.limits.full_mesh_max) return origin_slots_min;
        return @intCast(@max(origin_slots_min, world_size -| 1));
    }

    // ---- attempts

    /// The first half of the begin of an attempt; the ledger's `begin` is the second.
    pub fn begin(b: *Board, options: *const Begin) void {
        b.attempt = options.attempt;
        b.members = options.order.count;
        b.schedule = options.schedule;
        b.shares = options.shares;
        b.position = options.order.position(b.ledger.roles.rank);
        @memset(b.positions, nobody);
        for (options.order.slice(), 0..) |rank, position| b.positions[rank] = @intCast(position);
        b.free_count = @intCast(b.free_slots.len);
        // The lowest slots are handed out first and so stay in cache.
        for (b.free_slots, 0..) |*entry, index| {
            entry.* = @intCast(b.free_slots.len - 1 - index);
        }
        @memset(b.left, 0);
        for (b.targets) |*target| target.* = .{ .ready = target.ready };
        b.slots_each = b.slots_per_sender(b.free_slots.len, b.origin_slots);
        // Until a receiver says how much it allows, this peer assumes the slots that every member
        // has.
        @memset(b.credits, .{ .allowed = b.slots_per_sender(b.slots_sure, b.origin_sure) });
    }

    /// The number of slots that one sender may fill, fixed when an attempt begins.
    fn slots_per_sender(b: *const Board, slots: usize, reserved: u16) u32 {
        if (b.members < 2 or slots == 0) return 0;
        // If the root owns all chunks, everything that comes in round the ring counts under one
        // credit.
        const one_owner = b.schedule == .ring and b.ledger.descriptor.kind.ends_at_root();
        const senders = if (one_owner) 1 else b.members - 1;
        return @intCast(@max(1, (slots - reserved) / senders));
    }

    // ---- who is where

    pub fn rank_at(b: *const Board, wanted: u16) u16 {
        for (b.positions, 0..) |position, rank| if (position == wanted) return @intCast(rank);
        unreachable;
    }

    /// The position of the audience of a chunk that is not void; null: all ranks want the chunk.
    pub inline fn audience_position(b: *const Board, chunk: usize) ?u16 {
        return b.positions[b.ledger.audience(chunk) orelse return null];
    }

    pub inline fn source_position(b: *const Board, chunk: usize) ?u16 {
        return b.positions[b.ledger.source(chunk) orelse return null];
    }

    // ---- sizes

    /// Whether this peer's contribution to a piece travels in another form than it has in the
    /// buffer.
    pub fn converts(b: *const Board, piece: usize) bool {
        if (b.ledger.encodes()) return true;
        if (b.schedule == .direct) return false;
        const shard = &b.ledger.partition.shards[b.ledger.partition.shard_of(piece)];
        return shard.partial_bytes > shard.dtype.size();
    }

    /// The size in bytes of a sum of, or contribution to, a piece as it travels.
    pub fn partial_bytes(b: *const Board, piece: usize) usize {
        const partition = &b.ledger.partition;
        const place = partition.place_of(piece);
        if (b.ledger.encodes()) return partition.codec.encoded_bytes(place.elements);
        const width = switch (b.schedule) {
            .ring => partition.shards[place.shard].partial_bytes,
            .direct => place.dtype.size(),
        };
        return place.elements * width;
    }

    // ---- slots

    fn slot_take(b: *Board) u16 {
        b.free_count -= 1;
        return b.free_slots[b.free_count];
    }

    fn slot_give(b: *Board, index: u16) void {
        b.free_slots[b.free_count] = index;
        b.free_count += 1;
    }

    /// Takes a slot for a sum or contribution that comes in; an error if its sender has no credit
    /// left.
    pub fn place_in_slot(
        b: *Board,
        header: *const Header,
        piece: usize,
        credit: *Credit,
    ) PlaceError!u16 {
        if (!b.is_long(header, piece)) return error.WrongLength;
        if (credit.held >= b.slots_each or b.free_count == 0) return error.NoCredit;
        credit.held += 1;
        const index = b.slot_take();
        const assembly = &b.assemblies[index];
        assembly.* = .{};
        if (!header.fragment.is_whole()) assembly.place(header.fragment) catch unreachable;
        return index;
    }

    /// Gives a further fragment of a sum or contribution its place in the slot that the first
    /// fragment got.
    pub fn place_beside(b: *Board, header: *const Header, piece: usize, index: u16) PlaceError!u16 {
        const assembly = &b.assemblies[index];
        if (assembly.placed == 0) return error.Twice; // the piece came, or comes, whole
        if (!b.is_long(header, piece)) return error.WrongLength;
        try assembly.place(header.fragment);
        return index;
    }

    fn is_long(b: *const Board, header: *const Header, piece: usize) bool {
        return header.payload_bytes == header.fragment.range(b.partial_bytes(piece)).len();
    }

    /// Frees a slot whose content came from another member: that sender may fill the slot again.
    pub fn slot_free(b: *Board, credit: *Credit, index: u16) void {
        b.slot_give(index);
        credit.held -= 1;
        credit.freed += 1;
    }

    /// Frees the slot of a frame whose lane broke before the payload was complete.
    pub fn slot_unplaced(b: *Board, credit: *Credit, index: u16) void {
        b.slot_give(index);
        credit.held -= 1;
    }

    /// Whether half of the slots or more wait for acknowledgements, so that the receiver must
    /// acknowledge this frame soon. Half of the slots keep senders busy until they hear of freed
    /// slots, in quarters.
    pub fn is_short(b: *const Board, move: *const Move) bool {
        if (move.slot == no_slot) return false;
        if (move.holder == nobody) return b.targets[move.to].held * 2 >= b.origin_share();
        return b.credits[move.holder].held * 2 >= b.slots_each;
    }

    /// Has `next_grant` announce the credits of these classes to their senders again.
    pub fn grant_again(b: *Board, classes: Classes) void {
        for (b.credits[classes.first..][0..classes.count]) |*credit| credit.announced = 0;
    }

    /// Notes that the neighbour has a fragment of a move. Returns whether the neighbour has all
    /// fragments of the slot now, which frees the slot.
    pub fn slot_left(b: *Board, move: *const Move, fragment: Fragment) bool {
        if (move.slot == no_slot) return false;
        const left = &b.left[move.slot];
        left.* |= fragment.mask();
        if (left.* != Fragment.all) return false;
        left.* = 0;
        if (move.holder != nobody) {
            b.slot_free(&b.credits[move.holder], move.slot);
        } else {
            b.targets[move.to].held -= 1;
            b.slot_give(move.slot);
        }
        return true;
    }

    /// The number of slots that contributions to one neighbour may take. Neighbours have equal
    /// shares, so that all links are busy at the same time, fast or slow.
    fn origin_share(b: *const Board) u16 {
        return switch (b.schedule) {
            .ring => b.origin_slots,
            .direct => @max(1, b.origin_slots / @max(1, b.members - 1)),
        };
    }

    // ---- contributions

    /// The job that makes this peer's contribution to a piece ready for the member at position
    /// `to`. It is null if no slot is free, if enough contributions for that member are ready, or
    /// if a job is at the piece. A job is at the piece if a liar sent its final bytes too early:
    /// that job saves the input first.
    pub fn contribution(b: *Board, piece: usize, to: u16) ?Job {
        const target = &b.targets[to];
        if (!target.has_room() or b.is_under_way(piece)) return null;
        var job: Job = b.job_of(.contribute, piece);
        job.to = to;
        if (b.converts(piece)) {
            // No further slot may be taken: senders have been promised the rest.
            if (b.free_count == 0 or target.held == b.origin_share()) return null;
            target.held += 1;
            job.slot = b.slot_take();
        }
        target.preparing += 1;
        return job;
    }

    pub fn contributed(b: *Board, job: *const Job, kind: wire.frame.Kind, class: u16) void {
        const target = &b.targets[job.to];
        target.preparing -= 1;
        target.push(.{
            .kind = kind,
            .piece = job.piece,
            .class = class,
            .reduced_attempt = if (kind == .final) b.attempt else 0,
            .place = if (job.slot == no_slot) .own else .slot,
            .slot = job.slot,
            .to = job.to,
        });
    }

    pub fn job_of(b: *const Board, kind: Job.Kind, piece: usize) Job {
        return .{
            .kind = kind,
            .piece = piece,
            .members = b.members,
            .position = b.position,
            .shift = b.shift(),
        };
    }

    /// With a codec, contributions to an average are encoded as 2^-shift of their value, so that no
    /// sum is greater than the greatest contribution. The shift loses the least numbers of f16, so
    /// averages with the codec f16 go directly if they can (schedule.zig): there the owner adds in
    /// f32, without a shift.
    fn shift(b: *const Board) u6 {
        const codec = b.ledger.partition.codec.kind;
        if (b.ledger.descriptor.op != .avg or codec == .none) return 0;
        if (codec == .f16 and b.schedule == .direct) return 0;
        return std.math.log2_int_ceil(u16, @max(1, b.members)); // `members` is 0 before an attempt
    }

    pub fn is_under_way(b: *const Board, piece: usize) bool {
        return std.mem.indexOfScalar(usize, b.under_way.items, piece) != null;
    }

    /// The next piece of `due` whose final bytes go out. A piece of which this peer is the source
    /// is first brought to the result by a job.
    pub inline fn next_final(b: *Board, due: *BitSet, cursor: *usize) Answer {
        if (due.count == 0) return .nothing;
        var from = cursor.*;
        var found: ?usize = null;
        for (0..b.ahead) |_| {
            const piece = due.next(from).?;
            from = piece + 1;
            if (!b.ledger.own_left.has(piece)) found = found orelse piece //
            else if (!b.is_under_way(piece)) return .{ .job = b.job_of(.bring, piece) };
        }
        const piece = found orelse return .nothing;
        due.unset_bit(piece);
        cursor.* = piece + 1;
        return .{ .move = .{
            .kind = .final,
            .piece = piece,
            .reduced_attempt = b.ledger.arriving[b.ledger.partition.chunk_of(piece)],
            .place = .result,
        } };
    }

    // ---- credits for members that send here

    /// A range of `credits` that a neighbour's frames count under: `count` entries from `first` on.
    pub const Classes = struct { first: u16, count: u16 };

    pub const Grant = struct { class: u16, allowed: u64 };

    /// The credit to announce to a sender next; null if there is none. Freed slots are announced in
    /// quarters of the window, so that few credit frames are sent.
    pub fn next_grant(b: *Board, classes: Classes) ?Grant {
        for (0..classes.count) |class| {
            const credit = &b.credits[classes.first + class];
            const window = b.slots_each;
            if (credit.freed - credit.announced < @max(1, window / 4)) continue;
            credit.announced = credit.freed;
            return .{ .class = @intCast(class), .allowed = credit.freed + window };
        }
        return null;
    }

    // ---- opens and credits from members that this peer sends to

    pub fn opened(b: *Board, to: u16, classes: Classes, credit: u64) void {
        if (b.targets[to].open) return;
        b.targets[to].open = true;
        for (b.credits[classes.first..][0..classes.count]) |*entry| {
            entry.allowed = @max(entry.used, credit, entry.granted);
        }
    }

    /// Whether all other members of the attempt have called.
    pub fn are_all_open(b: *const Board) bool {
        for (b.targets[0..b.members], 0..) |*target, position| {
            if (position != b.position and !target.open) return false;
        }
        return true;
    }

    pub fn credited(
        b: *Board,
        classes: Classes,
        class: u16,
        allowed: u64,
    ) error{UnknownPiece}!void {
        if (class >= classes.count) return error.UnknownPiece;
        const entry = &b.credits[classes.first + class];
        entry.granted = @max(entry.granted, allowed);
        entry.allowed = @max(entry.allowed, allowed);
    }
};

comptime {
    assert(nobody == no_slot); // one number means none for both
}
