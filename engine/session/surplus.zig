//! surplus: lanes beyond those that either side would like (spread.zig) serve nobody. One that has
//! been idle for a minute is closed by the side that has dialed it. Both sides know from pings how
//! many lanes there are to be, so neither sends on it, and neither dials it again; nothing is lost
//! with it, so to the other side it is a lane that broke and cost nothing (resend.zig). How lanes
//! come and go otherwise: links.zig.

const std = @import("std");
const Lane = @import("link.zig").Lane;
const Session = @import("session.zig").Session;

/// So many silence limits, a minute by default: long after both sides have heard how many lanes
/// there are to be, and rarely enough for a link that changes its mind.
pub const idle_silences = 12;

/// At each tick. Whether the lane is to be closed now.
pub fn is_over(s: *const Session, lane: *Lane, late: bool) bool {
    const unacked = &lane.unacked;
    const used = lane.taken +% unacked.acked +% unacked.count;
    const is_under_way = unacked.count > 0 or lane.into != null or lane.discard > 0;
    const is_idle = !late and !is_under_way and used == lane.used and lane.link.?.is_surplus(lane);
    lane.used = used;
    if (!is_idle) lane.used_at = s.now;
    return lane.is_ours and s.now -| lane.used_at >= idle_silences *| s.settings.silence_ns;
}
