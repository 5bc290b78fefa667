//! job: the answers of movers: moves and jobs. A *move* is a frame to send. A *job* is a kernel's
//! work on one piece and on slots, and must be done before something else can move. Moves and jobs
//! name places; memory.zig has the addresses. ring.zig, direct.zig and message.zig make moves and
//! jobs; movement.zig sends the moves and has the jobs done.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");

/// The value of a slot field that names no slot.
pub const no_slot: u16 = std.math.maxInt(u16);
/// The value of a rank or a position that names no member.
pub const nobody: u16 = std.math.maxInt(u16);

/// A frame to send to a neighbour.
pub const Move = struct {
    kind: wire.frame.Kind,
    piece: u64,
    /// The class of the receiver's credits that a partial uses up (docs/internals/PROTOCOL.md).
    class: u16 = 0,
    reduced_attempt: u32 = 0,
    place: Place,
    /// The slot that has the payload; the slot is free again once the neighbour has the frame.
    slot: u16 = no_slot,
    /// The index in `Board.credits` under which `slot` is held; `nobody`: `slot` has a contribution
    /// of this peer.
    holder: u16 = nobody,
    /// The position of the neighbour that a contribution in `slot` is for.
    to: u16 = nobody,

    pub const Place = enum {
        slot,
        /// This peer's contribution as it lies in memory, unconverted.
        own,
        /// The final bytes of the piece, encoded if there is a codec.
        result,
    };
};

/// A mover's answer when it is asked for a frame to send.
pub const Answer = union(enum) {
    nothing,
    move: Move,
    /// A job that must be done first; then the mover is asked again.
    job: Job,
};

pub const Job = struct {
    kind: Kind,
    piece: usize,
    /// The slot of the sum or contribution that the job reads or writes.
    slot: u16 = no_slot,
    /// The number of members in the attempt, by which an average divides.
    members: u16 = 1,
    /// The number of inputs that are added before this peer's contribution.
    position: u16 = 0,
    /// The number of contributions in the sum that has come in.
    before: u16 = 0,
    /// Contributions to an average are encoded as 2^-shift of their value (kernels.Piece).
    shift: u6 = 0,
    /// The position of the neighbour that a contribution is for.
    to: u16 = nobody,
    /// The attempt that reduced the final bytes which came in.
    reduced_attempt: u32 = 0,
    /// By position: the slot of that member's contribution, or `no_slot`.
    inputs: [base.limits.full_mesh_max]u16 = undefined,

    pub const Kind = enum {
        /// slot <- own (this peer's contribution), converted for the wire; without a slot, own
        /// travels as it lies in memory.
        contribute,
        /// slot <- slot + own (this peer's contribution)
        add,
        /// result <- slot, decoded if there is a codec + own (this peer's contribution, the last
        /// one)
        add_last,
        /// result <- inputs + own (this peer's contribution)
        reduce,
        /// slot <- inputs + own (this peer's contribution), for another peer
        reduce_for_another,
        /// result <- slot, decoded if there is a codec
        take,
        /// The final bytes of the piece have come in: the job decodes them, if there is a codec.
        finish,
        /// result <- own; this peer is the source of the piece.
        bring,
        /// result <- own (this peer's contribution), in a world of one
        alone,
        /// result <- zeros, for a void chunk
        clear,
        /// caller's array <- undo log
        restore,
        /// undo log <-> caller's array
        set_aside,

        /// Whether the job ends with final bytes of the piece, the same on all members.
        pub fn ends_in_result(kind: Kind) bool {
            return switch (kind) {
                .add_last, .reduce, .take, .finish, .bring, .alone => true,
                .contribute, .add, .reduce_for_another => false,
                .clear, .restore, .set_aside => false,
            };
        }
    };
};
