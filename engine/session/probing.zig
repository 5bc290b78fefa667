//! probing: probes of links of which nobody knows what they carry (probe.zig), as the coordinator
//! asks for them (protocol/measurement.zig). A probe is frames that mean nothing, which its
//! receiver throws away. They go where nothing else is to be sent, and end as soon as a call begins
//! at either end. The rate of the link then follows as from any other bytes: measure.zig. Free
//! functions on Session.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const measure = @import("measure.zig");
const probe = @import("probe.zig");
const Group = @import("group.zig").Group;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Session = @import("session.zig").Session;
const Header = wire.frame.Header;
const limits = base.limits;

/// Whether the coordinator may ask this peer to take part in a probe: where all others are near, no
/// link needs any.
pub fn may_begin(s: *const Session) bool {
    const is_quiet = s.measure_at == base.never and !is_called(s);
    return s.probe.bytes_max > 0 and is_quiet and measure.any_far(s.links.items);
}

fn is_called(s: *const Session) bool {
    for (s.operations.items) |operation| if (!operation.is_over()) return true;
    return false;
}

/// The coordinator does not know what the link to this member carries.
pub fn on_probe(
    s: *Session,
    group: *const Group,
    body: *const wire.control.Probe,
) error{Unexpected}!void {
    const epoch = group.member.epoch_of(body.epoch) orelse return; // it is over
    if (body.rank >= epoch.ids.len or body.rank == epoch.rank) return error.Unexpected;
    const link = s.link_to(epoch.ids[body.rank]) orelse return;
    // It is told with the next account.
    link.is_asked = link.flow.carries() > 0;
    if (link.is_asked or link.open_count == 0 or !link.flow.is_far()) return;
    if (is_called(s) or s.probe.is_under_way(s.now)) return;
    const left = s.probe.allowed(link.probe_left);
    if (left == 0) return;
    end(s); // one whose link has lost its lanes
    s.probe.under_way = .{
        .to = link.peer,
        .left = left,
        .until = s.now +| limits.probe_ns_max,
    };
    link.flow.is_probed = true;
    s.wake(link);
}

/// A connection begins slowly, so a probe that is cut short says nothing of the link.
pub fn end(s: *Session) void {
    const under_way = s.probe.under_way orelse return;
    s.probe.under_way = null;
    const link = s.link_to(under_way.to) orelse return;
    link.flow.is_probed = false;
    if (!under_way.is_whole(s.now)) link.flow.carried = .{};
}

/// Puts the next frame of a probe on a lane for which there is nothing else, if there is one.
pub fn next(s: *Session, lane: *Lane, link: *Link) void {
    if (link.declines) {
        link.declines = false;
        return put(lane, "");
    }
    const under_way = &(s.probe.under_way orelse return);
    if (!under_way.to.eql(link.peer)) return;
    if (under_way.is_whole(s.now) or is_called(s) or !is_fellow(s, link)) return end(s);
    const count: usize = @intCast(@min(under_way.left, s.probe.frame_bytes()));
    under_way.left -= count;
    s.probe.budget.spend(&link.probe_left, count);
    put(lane, probe.filler[0..count]);
}

fn put(lane: *Lane, payload: []const u8) void {
    lane.put_head(&wire.frame.encode(std.mem.zeroInit(Header, .{
        .kind = .probe,
        .payload_bytes = @as(u32, @intCast(payload.len)),
        .acked = lane.answer(),
    })));
    lane.out_payload = payload;
    lane.out_busy = true;
}

pub const Error = error{ TooLong, ProbeOfNoMember };

/// A frame of one comes in, and is thrown away.
pub fn on_frame(s: *Session, lane: *Lane, header: *const Header) Error!void {
    const link = lane.link.?;
    if (header.payload_bytes == 0) {
        const under_way = &(s.probe.under_way orelse return);
        return if (under_way.to.eql(link.peer)) end(s);
    }
    if (header.payload_bytes > limits.probe_frame_bytes_max) return error.TooLong;
    if (!is_fellow(s, link)) return error.ProbeOfNoMember;
    lane.discard = header.payload_bytes;
    if (s.probe.bytes_max > 0 and !is_called(s)) return;
    link.declines = true;
    s.wake(link);
}

/// Whether both are members of some epoch that this peer is in.
fn is_fellow(s: *const Session, link: *const Link) bool {
    for (s.groups.items) |group| {
        if (group.state != .joined) continue;
        for (group.member.epochs) |slot| {
            const epoch = slot orelse continue;
            if (epoch.alive.has(epoch.rank_of(link.peer) orelse continue)) return true;
        }
    }
    return false;
}
