//! greeting: how a connection becomes a lane. Whoever comes is a stranger until it has said who it
//! is, and strangers have few places; one that this peer has dialed must be answered. Where both
//! sides dial, one of the two lanes stays. Free functions on Session. Which lanes are wanted, and
//! how they end: links.zig; the bytes: wire/hello.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Session = @import("session.zig").Session;
const Spread = @import("spread.zig").Spread;
const dial_back = @import("dial_back.zig");
const labels = @import("labels.zig");
const links = @import("links.zig");
const measure = @import("measure.zig");
const rounds = @import("rounds.zig");
const PeerId = base.PeerId;
const limits = base.limits;

/// A system that hears no answer asks again after a second.
const connect_ns_max = std.time.ns_per_s;

pub fn accept(s: *Session, source: base.Source) ?*Lane {
    if (!make_place(s, source)) return null;
    s.strangers.ensureUnusedCapacity(s.gpa, 1) catch return null;
    const lane = s.gpa.create(Lane) catch return null;
    lane.* = .accepted(s.gpa, source, s.now + links.greet_ns_max);
    s.strangers.appendAssumeCapacity(lane);
    return lane;
}

/// As at the coordinator: strangers have few places, and each lane that is to come has one besides
/// (base/places.zig).
fn make_place(s: *Session, source: base.Source) bool {
    const taken = s.strangers.items.len;
    var door: base.places.Door = .{ .places = s.strangers_max };
    var is_known = false;
    for (s.links.items) |link| for (link.places()) |place| {
        const is_open = if (place) |lane| lane.state == .open else false;
        if (link.wanted and !is_open and door.expected < limits.peers_max) door.expected += 1;
        const lane = place orelse continue;
        if (lane.state == .open and base.places.same_network(lane.source, source)) is_known = true;
    };
    switch (door.answer(&s.prng, taken, is_known)) {
        .enter => return true,
        .turn_away => return false,
        .make_room => {},
    }
    for (s.strangers.items) |lane| lane.is_fresh = lane.deadline == s.now + links.greet_ns_max;
    while (s.strangers.items.len >= door.places + door.expected) {
        const lane = base.places.draw(Lane, s.strangers.items, Lane.guest, &s.prng) orelse
            return false;
        links.fail(s, lane, "others wait for its place");
    }
    return true;
}

pub fn dialed(s: *Session, lane: *Lane) void {
    const link = lane.link orelse return dial_back.dialed(s, lane);
    lane.state = .greeting;
    const connect_ns = s.now -| (lane.deadline -| links.greet_ns_max);
    lane.connect_ns = if (connect_ns < connect_ns_max) connect_ns else 0;
    lane.out_busy = true;
    lane.put_head(&wire.hello.encode(.{
        .purpose = .lane,
        .lane = lane.number,
        .run_id = s.run_id,
        .from = s.self,
        .to = link.peer,
    }));
    s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// The 96 bytes of a stranger. False when the lane is gone.
pub fn greet(s: *Session, lane: *Lane) bool {
    const hello = wire.hello.decode(&lane.head) catch |err| switch (err) {
        error.VersionMismatch => return refuse(s, lane, .version_mismatch),
        error.NotPccl, error.BadValue => {
            links.fail(s, lane, "it does not speak PCCL");
            return false;
        },
    };
    if (hello.purpose == .probe) return show(s, lane, &hello);
    // In a time that does not tell how much of it was right.
    if (!std.crypto.timing_safe.eql(base.RunId, hello.run_id, s.run_id))
        return refuse(s, lane, .wrong_run);
    const expected = hello.purpose == .lane and hello.to.eql(s.self) and
        !s.self.eql(hello.from) and links.is_in_run(s) and
        hello.lane < s.lanes_max();
    if (!expected) return refuse(s, lane, .wrong_peer);
    if (must_wait(s, &hello)) {
        lane.state = .waiting;
        lane.head_need = 1;
        return true;
    }
    const link = links.obtain(s, hello.from) catch return refuse(s, lane, .refused);
    if (link.lanes[hello.lane]) |old| links.fail(s, old, "the peer opened it again");
    links.stranger_forget(s, lane);
    lane.link = link;
    lane.number = hello.lane;
    link.put(lane);
    std.crypto.secureZero(u8, &lane.head); // the run id is in the hello
    lane.out_busy = true;
    lane.put_head(&wire.hello.encode_answer(.welcome));
    opened(s, lane);
    return true;
}

/// Whether a hello is not to be answered yet.
fn must_wait(s: *const Session, hello: *const wire.hello.Hello) bool {
    // The other side may have been told of a round first.
    if (!is_named(s, hello.from)) return true;
    const link = s.link_to(hello.from) orelse return false;
    const lane = link.lanes[hello.lane] orelse return false;
    return !gives_way(link, lane);
}

/// Whether the other side's lane may take the place of this one at once. Where both have dialed,
/// exactly one side gives way: the one that wins keeps its own, unless it comes to nothing.
fn gives_way(link: *const Link, lane: *const Lane) bool {
    // Whoever has dialed before knows first that its old connection is gone.
    if (!link.wins or !lane.is_ours) return true;
    return switch (lane.state) {
        // Our hello has not left, so no answer of theirs can be under way.
        .dialing => true,
        // Theirs may have crossed ours, and then they take ours and end their own. If it has not,
        // ours is broken, and this side will know soon.
        .greeting, .open => false,
        .stranger, .waiting, .refusing => unreachable, // they have no place in a link
    };
}

/// Whether the coordinator has named this peer as one to have lanes to, or did so lately.
fn is_named(s: *const Session, id: PeerId) bool {
    if (s.link_to(id) != null) return true;
    for (s.groups.items) |group| {
        if (group.state == .joined and group.knows(id)) return true;
    }
    return false;
}

/// Those that had to wait when they came, and need not any more. Lanes may end by it, so it is not
/// for the midst of what one brings.
pub fn greet_waiting(s: *Session) void {
    var index: usize = 0;
    while (index < s.strangers.items.len) {
        const lane = s.strangers.items[index];
        const is_due = lane.state == .waiting and
            !must_wait(s, &(wire.hello.decode(&lane.head) catch unreachable));
        if (!is_due) {
            index += 1;
            continue;
        }
        lane.state = .stranger;
        _ = greet(s, lane);
        index = 0; // it is in the list no more, or being refused
    }
}

/// The coordinator looks whether this peer is where it says. Then it closes the lane.
fn show(s: *Session, lane: *Lane, hello: *const wire.hello.Hello) bool {
    if (!hello.to.eql(s.self)) return refuse(s, lane, .wrong_peer);
    const proof = wire.hello.proof(&s.address_key, s.run_id, s.self, hello.nonce);
    return say_last(s, lane, &wire.hello.encode_proof(proof));
}

/// The answer to our hello. False when the lane is gone.
pub fn answered(s: *Session, lane: *Lane) bool {
    const link = lane.link orelse {
        dial_back.answered(s, lane);
        return false;
    };
    const answer = lane.head[0..wire.hello.answer_bytes];
    const verdict = wire.hello.decode_answer(answer) catch .refused;
    if (verdict != .welcome) {
        link.dialed = .other_answers;
        links.fail(s, lane, @tagName(verdict));
        return false;
    }
    std.crypto.secureZero(u8, &lane.out_head); // the run id is in the hello, which has left
    opened(s, lane);
    return true;
}

fn opened(s: *Session, lane: *Lane) void {
    const link = lane.link.?;
    lane.open(s.now);
    link.open_count += 1;
    link.was_open = true;
    link.retries = 0;
    link.leads = lane.is_ours;
    link.dialed = .pending;
    s.unreached.forget(link.peer);
    link.flow.told = Spread.near; // whoever is there now may have heard nothing yet
    labels.limit(s, link);
    measure.opened(s.host, s.links.items, link, lane, s.rates.all);
    s.host.vtable.lane_wake(s.host.ctx, lane);
    rounds.check_ready(s);
}

/// The answer is sent, then the lane is closed; nothing more is read from it.
fn refuse(s: *Session, lane: *Lane, verdict: wire.hello.Verdict) bool {
    return say_last(s, lane, &wire.hello.encode_answer(verdict));
}

fn say_last(s: *Session, lane: *Lane, answer: *const [wire.hello.answer_bytes]u8) bool {
    lane.state = .refusing;
    lane.head_need = 1;
    lane.out_busy = true;
    lane.put_head(answer);
    s.host.vtable.lane_wake(s.host.ctx, lane);
    return true;
}
