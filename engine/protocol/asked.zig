//! Asked: questions that a member must answer by itself, and since when it could. A question may
//! lie behind many other messages to the member for as long as its line takes, and others can make
//! that long; so the member's time begins when the question has left for it. A healthy engine
//! answers within a moment, whatever its user does: after the silence limit the member is let go.
//! It is also let go after twelve times that limit, whatever it reads. The questions are about the
//! lanes and safe points of a round (rounds.zig), and about the decisions that the member has seen
//! (decisions.zig).

const std = @import("std");
const base = @import("base");
const Peer = @import("peer.zig").Peer;
const Instant = base.Instant;

/// When a question ends that has not left, or whose answer waits at the coordinator, in silence
/// limits.
const silences_max = 12;

pub const Asked = struct {
    /// When it was asked, or the first of several of which none has left.
    at: Instant = 0,
    /// When it had not left yet.
    since: Instant = 0,
    /// It has left when so many bytes of the connection have.
    mark: u64 = 0,
    has_left: bool = true,

    /// Whoever asks anew before the last question has left gives no more time for reading.
    pub fn ask(asked: *Asked, peer: *const Peer, now: Instant) void {
        asked.look(peer, now);
        if (asked.has_left) asked.at = now;
        asked.put(peer, now);
    }

    fn put(asked: *Asked, peer: *const Peer, now: Instant) void {
        asked.since = now;
        asked.mark = if (peer.connection) |connection| connection.stream.told_bytes() else 0;
        asked.has_left = false;
    }

    /// At a tick. Others could not go on without the answer for longer. `late`: the coordinator was
    /// frozen, or the disk holds up the question, and nobody is judged by the time that passed.
    pub fn is_overdue(
        asked: *Asked,
        peer: *const Peer,
        now: Instant,
        silence_ns: u64,
        late: bool,
    ) bool {
        if (late) {
            asked.at = now;
            asked.put(peer, now);
        }
        asked.look(peer, now);
        if (now -| asked.at >= silences_max *| silence_ns) return true;
        // An answer may be behind something that the coordinator has left unread for a while.
        const could_answer = @max(asked.since, peer.unread_until);
        return asked.has_left and now -| could_answer >= silence_ns;
    }

    fn look(asked: *Asked, peer: *const Peer, now: Instant) void {
        if (asked.has_left) return;
        const connection = peer.connection orelse return;
        // On another connection less may have been told.
        asked.mark = @min(asked.mark, connection.stream.told_bytes());
        asked.has_left = connection.stream.sent_bytes >= asked.mark;
        if (!asked.has_left) asked.since = now;
    }
};

test "a question that does not leave is overdue after twelve silence limits, asked anew or not" {
    const silence_ns = 1000;
    var peer: Peer = .{ .id = .from_int(1), .connection = null, .instance = 0, .last_heard = 0 };
    var asked: Asked = .{};
    asked.ask(&peer, 500);
    for (1..12) |count| {
        asked.ask(&peer, 500 + count * silence_ns);
        try std.testing.expect(!asked.is_overdue(
            &peer,
            500 + count * silence_ns,
            silence_ns,
            false,
        ));
    }
    const last = 500 + silences_max * silence_ns;
    try std.testing.expect(!asked.is_overdue(&peer, last - 1, silence_ns, false));
    try std.testing.expect(asked.is_overdue(&peer, last, silence_ns, false));
}
