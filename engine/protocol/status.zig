//! status: the coordinator's view of the run as JSON, for `pccl status`. Schema:
//! docs/reference/STATUS.md. Any holder of the token may ask for the status, as often as it likes,
//! so a large status is made four times a second at most, and a status that does not fit into a
//! message is cut. `pccl doctor` asks here, too, whether members can dial a peer.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const wire = @import("wire");
const addresses = @import("address.zig");
const debt = @import("debt.zig");
const measurement = @import("measurement.zig");
const Elsewhere = @import("debt.zig").Elsewhere;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Told = @import("record.zig").Told;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const hello = wire.hello;
const limits = base.limits;

pub const schema = 1;

const keep_ns: u64 = 250 * std.time.ns_per_ms;
/// A status shorter than this is made anew for each question.
const keep_bytes_min = 64 * 1024;

/// The status as JSON; the text is valid until the next call.
pub fn get(run: *Run, now: base.Instant) error{OutOfMemory}![]const u8 {
    const last = &run.status;
    const fresh = now -| last.made_at < keep_ns;
    if (fresh and last.text.len >= keep_bytes_min) return last.text;
    const text = try render(run.gpa, run, now);
    run.gpa.free(last.text);
    last.* = .{ .text = text, .made_at = now };
    return text;
}

/// The JSON text so far, and whether there is room for another item of a list: an item and the end
/// of the text fit into the 64 KiB that `bytes_max` leaves of a message.
const Page = struct {
    text: std.Io.Writer.Allocating,
    json: std.json.Stringify,
    is_cut: bool = false,
    run: *const Run,

    const bytes_max = limits.control_message_bytes_max - 64 * 1024;

    fn has_room(page: *Page) bool {
        if (page.text.written().len < bytes_max) return true;
        page.is_cut = true;
        return false;
    }
};

fn render(
    gpa: std.mem.Allocator,
    run: *const Run,
    now: base.Instant,
) error{OutOfMemory}![]u8 {
    var page: Page = .{
        .text = .init(gpa),
        .json = undefined,
        .run = run,
    };
    defer page.text.deinit();
    page.json = .{ .writer = &page.text.writer };
    // The writer grows in memory, so it fails only when memory runs out.
    write_run(&page, now) catch return error.OutOfMemory;
    return page.text.toOwnedSlice();
}

fn write_run(page: *Page, now: base.Instant) !void {
    const run = page.run;
    const json = &page.json;
    try json.beginObject();
    try field(json, "schema", schema);
    try field(json, "run", &base.short_run(&run.options.run_id));
    try field(json, "address", run.options.address);
    try field(json, "uptime_ns", now -| run.started_at);
    try field(json, "wall_ns", now +| run.wall_ahead_ns);
    try field(json, "incarnation", run.incarnation);
    try field(json, "journal", @tagName(run.journal_state));
    if (run.journal_state == .failed)
        try field(json, "journal_failure", run.options.journal.?.why());
    try field(json, "min_world_size", run.options.min_world_size);
    try field(json, "peers", run.peers.items.len);
    try field(json, "strangers_refused", run.strangers_refused);
    try field(json, "queue_bytes", run.memory.bytes);
    try field(json, "memory", run.memory.bytes_max);
    try json.objectField("groups");
    try json.beginArray();
    for (run.groups.items) |group| if (page.has_room()) try write_group(page, group, now);
    try json.endArray();
    if (run.dial_back.is_shown(now)) try write_dial_back(page, now);
    try field(json, "cut", page.is_cut);
    try json.endObject();
}

fn write_group(page: *Page, group: *Group, now: base.Instant) !void {
    const json = &page.json;
    try json.beginObject();
    try field(json, "name", group.name);
    try field(json, "state", @tagName(group.phase));
    if (debt.attendance_of(page.run, group)) |count| {
        try field(json, "here", count.here);
        try field(json, "needed", count.needed);
        try field(json, "emptied", count.emptied);
    }
    try json.objectField("pending");
    try json.beginArray();
    for (group.newcomers.items) |*newcomer| if (page.has_room()) {
        try json.beginObject();
        try field(json, "peer_id", &newcomer.peer.id.hex());
        try field(json, "label", newcomer.peer.label.slice());
        try field(json, "address", newcomer.peer.address);
        try field(json, "prepared", newcomer.prepared);
        try json.endObject();
    };
    try json.endArray();
    try json.objectField("broken_links");
    try json.beginArray();
    for (group.broken.claims.items) |*claim| if (page.has_room()) {
        try json.beginObject();
        try field(json, "peer_id", &claim.from.hex());
        try field(json, "other", &claim.to.hex());
        try field(json, "state", @tagName(claim.health));
        try json.endObject();
    };
    try json.endArray();
    try write_unreached(page, group);
    try write_awaited(page, group, now);
    try json.objectField("epochs");
    try json.beginArray();
    for (group.epochs.items) |epoch| if (page.has_room()) try write_epoch(page, epoch, now);
    try json.endArray();
    try json.endObject();
}

fn write_awaited(page: *Page, group: *const Group, now: base.Instant) !void {
    const json = &page.json;
    var missing: debt.Missing = .{};
    debt.find_awaited(page.run, group, &missing);
    try json.objectField("awaited");
    try json.beginArray();
    for (missing.slice()) |*item| if (page.has_room()) try json.write(&item.peer.id.hex());
    try json.endArray();
    if (missing.count == 0) return;
    try field(json, "awaits", @tagName(missing.why));
    // `since` is set at ticks, so it may not be set yet.
    try field(json, "awaited_ns", now -| @min(group.awaited.since, now));
}

fn write_unreached(page: *Page, group: *Group) !void {
    const json = &page.json;
    try json.objectField("unreached");
    try json.beginArray();
    for (group.unreached.claims.items) |*claim| if (page.has_room()) {
        const from = page.run.peer_of(claim.from) orelse continue;
        const to = page.run.peer_of(claim.to) orelse continue;
        if (claim.dialed == .pending or to.connection == null) continue;
        var room: addresses.Room = undefined;
        try json.beginObject();
        try field(json, "peer_id", &claim.from.hex());
        try field(json, "other", &claim.to.hex());
        try field(json, "address", from.told_to(to, &room));
        var host: [base.source.text_bytes_max]u8 = undefined;
        try field(json, "from", base.source.write_host(claim.source, &host));
        try field(json, "why", claim.dialed.why());
        try json.endObject();
    };
    try json.endArray();
}

fn write_dial_back(page: *Page, now: base.Instant) !void {
    const run = page.run;
    const json = &page.json;
    try json.objectField("dial_back");
    try json.beginObject();
    try field(json, "peer_id", &run.dial_back.peer.hex());
    try field(json, "over", run.dial_back.is_over(now));
    try field(json, "left_out", run.dial_back.left_out);
    try json.objectField("members");
    try json.beginArray();
    for (run.dial_back.slice()) |*entry| {
        try json.beginObject();
        try field(json, "peer_id", &entry.id.hex());
        const answer = entry.answer;
        try field(json, "state", state_of(answer));
        var room: addresses.Room = undefined;
        const from = run.peer_of(entry.id);
        const to = run.peer_of(run.dial_back.peer);
        const is_told = from != null and to != null;
        try field(json, "address", if (is_told) from.?.told_to(to.?, &room) else "");
        if (answer) |dialed| if (dialed != .pending) try field(json, "why", dialed.why());
        try json.endObject();
    }
    try json.endArray();
    try json.endObject();
}

fn state_of(answer: ?wire.Dialed) []const u8 {
    const dialed = answer orelse return "asked";
    return if (dialed == .pending) "reached" else "failed";
}

fn write_epoch(page: *Page, epoch: *const Epoch, now: base.Instant) !void {
    const json = &page.json;
    try json.beginObject();
    try field(json, "epoch", epoch.number);
    try field(json, "attempt", epoch.attempt);
    try field(json, "running", epoch.running);
    try field(json, "committed", epoch.committed);
    try field(json, "order", epoch.paths.order.slice());
    try field(json, "has_ring", epoch.paths.has_ring);
    const hubs: base.Order = .of(&epoch.paths.hubs);
    try field(json, "hubs", hubs.slice());
    try field(json, "plan", @tagName(epoch.paths.plan));
    try field(json, "small_bytes", epoch.paths.small_bytes);
    try json.objectField("shares");
    try json.beginArray();
    const shares = &epoch.paths.shares;
    if (!shares.is_even()) for (shares.of[0..epoch.members.len]) |share| try json.write(share);
    try json.endArray();
    try write_plan(page, epoch);
    try json.objectField("members");
    try json.beginArray();
    for (epoch.members, 0..) |*member, rank| if (page.has_room()) {
        try json.beginObject();
        try field(json, "peer_id", &member.id.hex());
        try field(json, "label", member.label().slice());
        try field(json, "rank", rank);
        try field(json, "alive", member.peer != null);
        try field(json, "entered", epoch.activated.has(rank));
        try field(json, "waited_for", member.waited_for and member.peer != null);
        if (member.peer) |peer| {
            try field(json, "address", peer.address);
            try field(json, "silence_ns", now -| peer.last_heard);
            try field(json, "bytes_sent", peer.bytes_sent);
            try field(json, "bytes_received", peer.bytes_received);
            try write_measured(page, epoch, peer, now);
        }
        try json.endObject();
    };
    try json.endArray();
    const elsewhere: Elsewhere = .of(epoch, now, page.run.options.stall_warning_ns);
    try json.objectField("operations");
    try json.beginArray();
    for (epoch.records.items) |record| if (page.has_room()) {
        try json.beginObject();
        try field(json, "tag", base.Pair.user_tag_of(record.id.tag));
        if (base.Pair.of(record.id.tag)) |pair| {
            try field(json, "src_rank", pair.src);
            try field(json, "dst_rank", pair.dst);
        }
        try field(json, "sequence", record.id.sequence);
        try field(json, "kind", wire.name_of(record.descriptor.kind, record.id.tag));
        if (record.state().len > 0) try field(json, "state", record.state());
        try field(json, "dtype", @tagName(record.descriptor.dtype));
        try field(json, "op", @tagName(record.descriptor.op));
        try field(json, "count", record.descriptor.count);
        const has_all = epoch.missing_of(record).is_empty();
        try write_stuck(page, if (has_all) &record.stall.stuck else &.{});
        try field(json, "done", record.done.count());
        try field(json, "called", record.stall.called.count());
        try write_stall(page, &elsewhere, record, now);
        try json.endObject();
    };
    try json.endArray();
    try json.endObject();
}

/// Writes the rates of a member and its links, and how late its calls were.
fn write_measured(page: *Page, epoch: *const Epoch, peer: *const Peer, now: base.Instant) !void {
    const json = &page.json;
    const row = &peer.row;
    const is_fresh = row.is_fresh(now);
    try field(json, "sent_per_s", if (is_fresh) row.sent else 0);
    try field(json, "received_per_s", if (is_fresh) row.received else 0);
    try field(json, "span_ns", if (is_fresh) row.span_ns else 0);
    try field(json, "up", row.up);
    try field(json, "down", row.down);
    try field(json, "calls", peer.late.calls);
    try field(json, "last_to_call", peer.late.last);
    try field(json, "late_ns", peer.late.ns);
    try json.objectField("links");
    try json.beginArray();
    for (row.links.items) |*link| {
        const rank = epoch.ranks.get(link.peer) orelse continue; // a link of another group
        const moves = is_fresh and link.told_at == row.told_at;
        if (!moves and epoch.members.len > limits.measured_max) continue; // the page has no room
        try json.beginObject();
        try field(json, "rank", rank);
        try field(json, "sent_per_s", if (moves) link.sent else 0);
        try field(json, "received_per_s", if (moves) link.received else 0);
        try field(json, "rate", link.rate);
        try field(json, "rtt_ns", link.rtt_ns);
        try field(json, "retransmitted_ppm", link.again_ppm);
        try field(json, "lanes", link.lanes);
        try field(json, "age_ns", now -| link.told_at);
        try json.endObject();
    }
    try json.endArray();
}

/// Writes what the paths of an epoch bring, the ways that were compared for them, and the member
/// that is nearest to all others, beside which the coordinator would best be.
fn write_plan(page: *Page, epoch: *const Epoch) !void {
    const json = &page.json;
    var known = measurement.matrix_of(epoch) orelse return;
    const explained: plan.planner.Explained = .of(&known, &epoch.paths, 0);
    const tried = &epoch.planned.tried;
    try json.objectField("planned");
    try json.beginObject();
    try field(json, "predicted_ns", explained.figures.predicted_ns);
    try field(json, "bound_ns", explained.figures.bound_ns);
    try json.objectField("limits");
    try json.beginArray();
    for (explained.limited_by()) |*limit| {
        try json.beginObject();
        try field(json, "from", limit.from);
        try field(json, "to", limit.to);
        try json.endObject();
    }
    try json.endArray();
    try field(json, "ring_of_ranks_ns", tried.ranks_ns);
    try field(json, "best_ring_ns", tried.widest_ns);
    try field(json, "direct_even_ns", tried.even_ns);
    try field(json, "direct_shares_ns", tried.uneven_ns);
    if (plan.matrix.middle(&known, &epoch.alive)) |middle| {
        try field(json, "middle", middle.rank);
        try field(json, "middle_rtt_ns", middle.rtt_ns);
    }
    try json.endObject();
}

/// Writes the members that have not called an operation, for which other members have waited long.
fn write_stall(
    page: *Page,
    elsewhere: *const Elsewhere,
    record: *const Record,
    now: base.Instant,
) !void {
    const warning_ns = page.run.options.stall_warning_ns;
    const epoch = elsewhere.epoch;
    const stalled_ns = now -| record.stall.since;
    const is_named = stalled_ns >= warning_ns;
    const ranks: base.Order = .of(if (is_named) &epoch.missing_of(record) else &.empty);
    try field(&page.json, "waits_for", ranks.slice());
    if (is_named) try field(&page.json, "stalled_ns", stalled_ns);
    // `not_called` is written even if few have called: the missing members were asked before.
    const is_told = record.stall.has_waited(now, base.limits.wait_told_ns(warning_ns));
    const silent: base.Order = .of(if (is_told) &epoch.missing_of(record) else &.empty);
    try field(&page.json, "not_called", silent.slice());
    if (!is_told) return;
    try field(&page.json, "waited_ns", now -| record.stall.waits_since);
    try write_elsewhere(page, elsewhere, &epoch.missing_of(record));
}

/// Writes the links that move nothing of an operation that all members have called.
fn write_stuck(page: *Page, stuck: *const Told) !void {
    const json = &page.json;
    try json.objectField("stuck_links");
    try json.beginArray();
    for (stuck.slice()) |*link| {
        try json.beginObject();
        try field(json, "rank", link.rank);
        try field(json, "other", link.waits_for);
        try json.endObject();
    }
    try json.endArray();
}

/// Writes the operations in which the missing members wait.
fn write_elsewhere(page: *Page, elsewhere: *const Elsewhere, missing: *const base.Mask) !void {
    const json = &page.json;
    const told = elsewhere.told(missing);
    try json.objectField("elsewhere");
    try json.beginArray();
    for (told.slice()) |*waits| {
        try json.beginObject();
        try field(json, "rank", waits.rank);
        try field(json, "kind", wire.name_of(waits.kind, waits.op.tag));
        try field(json, "tag", base.Pair.user_tag_of(waits.op.tag));
        try field(json, "sequence", waits.op.sequence);
        const there = elsewhere.by_rank[waits.rank].?;
        if (there.state().len > 0) try field(json, "state", there.state());
        const whom: base.Order = .of(&elsewhere.epoch.missing_of(there));
        try field(json, "waits_for", whom.slice());
        try json.endObject();
    }
    try json.endArray();
}

fn field(json: *std.json.Stringify, name: []const u8, value: anytype) !void {
    try json.objectField(name);
    try json.write(value);
}

// ---- members dial a peer
//
// For `pccl doctor`, members dial a peer and report whether they can reach it. Members dial the
// address that rounds would tell them (door.zig): the peer's connection comes from that host, or
// the peer was found there, so no client can make members dial a third party. The request must come
// from the peer's own network. One peer is dialed at a time, each member dials it once, and only as
// many members dial as the peer has places for. No decision depends on the results of these dials.

/// A client at `source` asks that members dial peer `id`. If no dial may begin now, the status
/// shows the results of the last dial.
pub fn ask_doctor(run: *Run, now: Instant, source: base.Source, id: PeerId) void {
    const peer = run.peer_of(id) orelse return;
    const connection = peer.connection orelse return;
    if (!base.places.same_network(connection.source, source)) return;
    if (!peer.claim.is_settled() or !run.dial_back.may_begin(now, id)) return;
    run.dial_back = .{ .peer = id, .began_at = now };
    for (std.mem.bytesAsSlice(u64, &run.dial_back.nonce)) |*part| part.* = run.prng.next();
    for (run.groups.items) |group| for (group.epochs.items) |epoch| for (epoch.members) |*member| {
        const other = member.peer orelse continue;
        if (other != peer and other.connection != null) ask_member(run, other, peer);
    };
}

fn ask_member(run: *Run, member: *Peer, peer: *const Peer) void {
    const asked = &run.dial_back;
    // A member may be in several groups and epochs, and is asked once.
    for (asked.slice()) |*entry| if (entry.id.eql(member.id)) return;
    if (asked.count == asked.entries.len) {
        asked.left_out += 1;
        return;
    }
    var room: addresses.Room = undefined;
    const address = member.told_to(peer, &room);
    asked.entries[asked.count] = .{
        .id = member.id,
        .answer = if (address.len == 0) .no_address else null,
    };
    asked.count += 1;
    if (address.len > 0) run.say(member, .{ .dial_back = .{
        .peer = peer.id,
        .nonce = asked.nonce,
        .address = .of(address),
    } });
}

/// A member tells how its dial went. The member can make up a failure, but not the peer's proof of
/// a success.
pub fn doctor_told(run: *Run, member: *const Peer, body: *const control.DialedBack) void {
    const asked = &run.dial_back;
    if (!std.mem.eql(u8, &asked.nonce, &body.nonce)) return; // the answer to an earlier dial
    for (asked.entries[0..asked.count]) |*entry| {
        if (!entry.id.eql(member.id) or entry.answer != null) continue;
        const is_found = body.dialed == .pending and is_proof(run, &body.proof);
        entry.answer = if (body.dialed == .pending and !is_found) .other_answers else body.dialed;
    }
}

fn is_proof(run: *const Run, proof: *const hello.Proof) bool {
    const peer = run.peer_of(run.dial_back.peer) orelse return false; // the peer has gone
    const wanted = hello.proof(&peer.claim.key, run.options.run_id, peer.id, run.dial_back.nonce);
    return std.crypto.timing_safe.eql(hello.Proof, proof.*, wanted);
}
