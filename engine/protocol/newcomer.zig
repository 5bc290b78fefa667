//! Newcomer: a peer that waits to become a member of a group, as the coordinator keeps it. Which of
//! them a round takes: candidates.zig.

const Peer = @import("peer.zig").Peer;

pub const Newcomer = struct {
    peer: *Peer,
    in_round: bool = false,
    /// It has its lanes.
    prepared: bool = false,
    /// Its user waits to enter.
    entering: bool = false,
    /// The same over all rounds, and that it had its lanes in one of them (awaited.zig).
    wants: bool = false,
    was_ready: bool = false,
    /// Others would not wait for it any more: it is left out until its user comes, or it is alone.
    dawdles: bool = false,
    /// The next round is for those who could go on when this one ended.
    chosen: bool = false,
    /// How many it was told are there (attendance.zig); 0: it was not.
    here_told: u32 = 0,
};
