//! lanes: what a driver says of the connections to other peers, and asks for them: which came and
//! went, and where bytes go and come from. Free functions on Session. A connection as bytes:
//! link.zig; how it becomes a lane: dial.zig; what the bytes mean: frame.zig;
//! which leave: frame.zig.

const base = @import("base");
const wire = @import("wire");
const control = @import("control.zig");
const dial = @import("dial.zig");
const frame = @import("frame.zig");
const measure = @import("measure.zig");
const Lane = @import("link.zig").Lane;
const Session = @import("session.zig").Session;
const Instant = base.Instant;

/// An inbound connection. Null: no memory or place for it; the driver closes it.
pub fn accept(s: *Session, now: Instant, source: base.Source) ?*Lane {
    s.reach(now);
    return dial.accept(s, source);
}

/// A dialed connection is up.
pub fn opened(s: *Session, now: Instant, lane: *Lane) void {
    s.reach(now);
    dial.lane_dialed(s, lane);
}

/// A connection ended, or could not be made. The lane is invalid afterwards.
pub fn closed(s: *Session, now: Instant, lane: *Lane) void {
    s.reach(now);
    // Whatever takes the connection and ends it at once is no peer of this run.
    if (lane.state == .greeting) dial.note_dialed(s, lane, .other_answers);
    dial.lane_gone(s, lane);
    control.run_deferred(s);
}

/// A lane is being dialed from this address of the machine; one of nobody has no link.
pub fn dials_from(lane: *Lane, source: base.Source) void {
    if (lane.link) |link| link.dialed_from = source;
}

/// A lane that could not be dialed. It is invalid afterwards.
pub fn failed(s: *Session, now: Instant, lane: *Lane, why: wire.Dialed) void {
    dial.note_dialed(s, lane, why);
    closed(s, now, lane);
}

/// Where the next bytes of this lane go.
pub fn recv_slices(s: *Session, lane: *Lane, slices: *[2][]u8) usize {
    return lane.recv_slices(&s.sink, slices);
}

/// `count` bytes were put there, in order. The lane may be closed by this.
pub fn received(s: *Session, now: Instant, lane: *Lane, count: usize) void {
    s.reach(now);
    s.bytes_received += count;
    if (lane.link) |link| link.received += count;
    lane.heard_at = now;
    if (lane.takes()) begin_measuring(s);
    frame.received(s, lane, count);
    control.run_deferred(s);
}

/// The bytes to send on this lane now; 0 slices if none.
pub fn send_slices(
    s: *Session,
    now: Instant,
    lane: *Lane,
    slices: *[2][]const u8,
) usize {
    s.reach(now);
    if (!lane.out_busy) frame.next_outgoing(s, lane);
    return lane.send_slices(slices);
}

/// `count` bytes of these slices have left.
pub fn sent(s: *Session, now: Instant, lane: *Lane, count: usize) void {
    s.reach(now);
    s.bytes_sent += count;
    if (lane.link) |link| link.sent += count;
    lane.spoke_at = now;
    if (lane.out_payload.len > 0) begin_measuring(s);
    if (lane.sent(count)) frame.outgoing_sent(s, lane);
}

/// A payload moves: a sign of life is nothing to measure by.
fn begin_measuring(s: *Session) void {
    if (s.measure_at != base.never) return;
    measure.begin_after(s.links.items, &s.node, s.now -| s.measured_at);
    s.measured_at = s.now;
    s.measure_at = s.now +| measure.every_ns;
}
