//! job: what movers answer with. A *move* is a frame to send; a *job* is work of a kernel, on a
//! piece and on slots, that must be done before something else can move. Both name places and
//! never have addresses, which memory.zig has. Made by ring.zig, direct.zig and message.zig;
//! movement.zig sends the ones and has the others done.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");

/// No slot, as a place.
pub const no_slot: u16 = std.math.maxInt(u16);
/// No rank and no position.
pub const nobody: u16 = std.math.maxInt(u16);

/// A frame for a neighbour.
pub const Move = struct {
    kind: wire.frame.Kind,
    piece: u64,
    /// Whose credit it takes (docs/internals/PROTOCOL.md).
    class: u16 = 0,
    reduced_attempt: u32 = 0,
    place: Place,
    /// A slot that is free again when the other side has the frame, and whose credit it is; nobody:
    /// it has a contribution of this peer.
    slot: u16 = no_slot,
    holder: u16 = nobody,
    /// The neighbour that a contribution in a slot is for.
    to: u16 = nobody,

    pub const Place = enum {
        slot,
        /// This peer's contribution, as its caller has it.
        own,
        /// The final bytes, as they travel.
        result,
    };
};

/// A mover's answer when it is asked for a frame.
pub const Answer = union(enum) {
    nothing,
    move: Move,
    /// First this; then ask again.
    job: Job,
};

pub const Job = struct {
    kind: Kind,
    piece: usize,
    /// Where a sum or a contribution lies, or comes.
    slot: u16 = no_slot,
    /// All of the attempt: an average is over them.
    members: u16 = 1,
    /// This peer's contribution is added after so many of the others'.
    position: u16 = 0,
    /// Contributions that are in the sum that has come in.
    before: u16 = 0,
    /// Contributions to an average are encoded as 2^-shift of what they are (kernels.Piece).
    shift: u6 = 0,
    /// The neighbour that a contribution is for.
    to: u16 = nobody,
    /// The attempt in which final bytes that came in were reduced.
    reduced_attempt: u32 = 0,
    /// By position: slots of contributions.
    inputs: [base.limits.full_mesh_max]u16 = undefined,

    pub const Kind = enum {
        /// This peer's contribution as it travels: slot <- own, or own as it lies there.
        contribute,
        /// slot <- slot + own
        add,
        /// result <- slot + own, the last contribution
        add_last,
        /// result <- inputs + own
        reduce,
        /// slot <- inputs + own, for another peer
        reduce_for_another,
        /// result <- slot
        take,
        /// The final bytes are there: they are decoded.
        finish,
        /// result <- own, of which this peer is the source
        bring,
        /// result <- own, in a world of one
        alone,
        /// result <- zeros
        clear,
        /// caller <- undo log
        restore,
        /// undo log <-> caller
        set_aside,

        /// It ends with bytes that all members have.
        pub fn ends_in_result(kind: Kind) bool {
            return switch (kind) {
                .add_last, .reduce, .take, .finish, .bring, .alone => true,
                .contribute, .add, .reduce_for_another => false,
                .clear, .restore, .set_aside => false,
            };
        }
    };
};
