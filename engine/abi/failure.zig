//! failure: what the errors and outcomes of the engine mean to a caller: a status code, and a
//! sentence that names the peer, the expectation and the remedy. Errors become codes and sentences
//! only here: each switch names every error, so a new error does not compile until it has both.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const wire = @import("wire");
const net = @import("net");
const protocol = @import("protocol");
const session = @import("session");
const StateDir = @import("state_dir.zig").StateDir;
const status = @import("status.zig");
const Error = status.Error;
const Descriptor = wire.control.Descriptor;
const fail = status.fail;

// ---- the way to a coordinator

pub const Place = struct {
    /// The coordinator's.
    address: []const u8,
    own: Own,
};

/// The options of a peer or a coordinator for its own addresses.
pub const Own = struct {
    bind: []const u8,
    advertise: ?[]const u8,
    /// A peer's; a coordinator has one port.
    ports: ?net.Ports = null,
};

pub fn create(err: net.PeerEngine.Error, place: Place) Error {
    const at = place.address;
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.SystemLimit => system_limit(),
        error.ThreadLimit => thread_limit(),
        error.FamilyUnsupported,
        error.AddressInUse,
        error.AddressNotAvailable,
        error.PermissionDenied,
        error.ListenNameNotFound,
        => |listen_error| listen(listen_error, place.own.bind),
        error.NoPortFree => fail(
            .system_error,
            "no port of {d}-{d} is free to listen on: widen the range (ports, PCCL_PORTS), or " ++
                "end the programs that have them",
            .{ place.own.ports.?.first, place.own.ports.?.last },
        ),
        error.BadAddress => bad_address(place.own) orelse reach(error.BadAddress, at),
        error.Refused,
        error.Unreachable,
        error.NameNotFound,
        error.NameLookupFailed,
        error.Interrupted,
        => |reach_error| reach(reach_error, at),
        error.NotPccl,
        error.NoAnswer,
        error.Closed,
        error.VersionMismatch,
        error.WrongRun,
        => |greet_error| greet(greet_error, at),
        error.TurnedAway => fail(
            .invalid_usage,
            "the coordinator at {s} turned this peer away: a live peer has the same peer_id",
            .{at},
        ),
        error.RunFull => fail(
            .deadline_exceeded,
            "the coordinator at {s} had no room for another peer until the timeout: its run is " ++
                "full ({d} peers), or too many came from this address at once",
            .{ at, base.limits.peers_max },
        ),
        error.IdHeld => fail(
            .deadline_exceeded,
            "the coordinator at {s} keeps this peer_id for a member that is away and may come " ++
                "back, and kept it until the timeout: use another peer_id, or wait for longer",
            .{at},
        ),
    };
}

pub fn ask_status(err: net.status_client.Error, at: []const u8) Error {
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.SystemLimit => system_limit(),
        error.ThreadLimit => thread_limit(),
        error.FamilyUnsupported => listen(error.FamilyUnsupported, at),
        error.Refused,
        error.Unreachable,
        error.NameNotFound,
        error.NameLookupFailed,
        error.BadAddress,
        error.Interrupted,
        => |reach_error| reach(reach_error, at),
        error.NotPccl, error.Closed, error.VersionMismatch, error.WrongRun => |e| greet(e, at),
        error.TurnedAway => fail(
            .coordinator_unreachable,
            "the coordinator at {s} has no room for another connection just now; ask again later",
            .{at},
        ),
        error.AskedTooOften => fail(
            .coordinator_unreachable,
            "the coordinator at {s} has answered this host too often: a large answer comes once " ++
                "a second, so ask again later",
            .{at},
        ),
        error.TimedOut => fail(
            .coordinator_unreachable,
            "the coordinator at {s} accepted the connection but did not answer in time",
            .{at},
        ),
    };
}

const ReachError = error{
    Refused,
    Unreachable,
    NameNotFound,
    NameLookupFailed,
    BadAddress,
    Interrupted,
};

/// Ends a sentence about a coordinator that is not found.
const at_itself = ". That address leads every machine to itself: if the coordinator runs on " ++
    "another machine, start it with the address that peers reach it at (advertise)";

fn note_of(at: []const u8) []const u8 {
    const endpoint = net.address.Endpoint.parse(at) catch return "";
    return if (endpoint.is_loopback()) at_itself else "";
}

fn reach(err: ReachError, at: []const u8) Error {
    return switch (err) {
        error.Refused => fail(
            .coordinator_unreachable,
            "nothing listens at {s}: connections were refused, one after the other, until the " ++
                "timeout. Start the coordinator there, or check host and port of the token{s}",
            .{ at, note_of(at) },
        ),
        error.Unreachable => fail(
            .coordinator_unreachable,
            "the coordinator at {s} did not answer in time: check that the host is up and that " ++
                "no firewall is between",
            .{at},
        ),
        error.NameNotFound => fail(
            .coordinator_unreachable,
            "the host of the coordinator, {s}, is not known here: check the name in the token",
            .{at},
        ),
        error.NameLookupFailed => fail(
            .coordinator_unreachable,
            "the host of the coordinator, {s}, could not be looked up: check the name service " ++
                "of this machine",
            .{at},
        ),
        error.BadAddress => fail(
            .invalid_argument,
            "the address of the coordinator, \"{s}\", is not understood: it must be host:port, " ++
                "1.2.3.4:port or [v6]:port",
            .{at},
        ),
        error.Interrupted => interrupted(),
    };
}

fn interrupted() Error {
    return fail(.cancelled, "the call was withdrawn by its `interrupted` function", .{});
}

const GreetError = error{ NotPccl, NoAnswer, Closed, VersionMismatch, WrongRun };

fn greet(err: GreetError, at: []const u8) Error {
    return switch (err) {
        error.NotPccl => fail(
            .version_mismatch,
            "what listens at {s} is not PCCL: it did not answer as a coordinator does; check " ++
                "host and port{s}",
            .{ at, note_of(at) },
        ),
        error.NoAnswer => fail(
            .coordinator_unreachable,
            "what listens at {s} accepted the connection but said nothing: the coordinator or " ++
                "its machine is frozen, or something else listens there; check host and port",
            .{at},
        ),
        error.Closed => fail(
            .coordinator_unreachable,
            "what listens at {s} closed the connection without an answer: the coordinator ended " ++
                "just then, or something else listens there; check host and port",
            .{at},
        ),
        error.VersionMismatch => fail(
            .version_mismatch,
            "the coordinator at {s} speaks another wire version; this library speaks {d}: use " ++
                "the same release everywhere",
            .{ at, wire.version },
        ),
        error.WrongRun => fail(
            .authentication_failed,
            "the coordinator at {s} belongs to another run: get a fresh token from it",
            .{at},
        ),
    };
}

// ---- listening

const ListenError = error{
    FamilyUnsupported,
    AddressInUse,
    AddressNotAvailable,
    PermissionDenied,
    ListenNameNotFound,
};

fn listen(err: ListenError, at: []const u8) Error {
    return switch (err) {
        error.FamilyUnsupported => fail(
            .system_error,
            "this system has no support for addresses like {s}",
            .{at},
        ),
        error.AddressInUse => fail(
            .system_error,
            "the port of {s} is in use by another program: choose another one, or 0 for any " ++
                "free one",
            .{at},
        ),
        error.AddressNotAvailable => fail(
            .system_error,
            "{s} is not an address of this machine: bind to one that is, or to 0.0.0.0 for all",
            .{at},
        ),
        error.PermissionDenied => fail(
            .system_error,
            "listening on {s} is not permitted: choose a port above 1023",
            .{at},
        ),
        error.ListenNameNotFound => fail(
            .system_error,
            "the host to listen on, {s}, is not known here",
            .{at},
        ),
    };
}

pub fn system_limit() Error {
    return fail(
        .system_error,
        "the operating system has no more descriptors for this process: raise its limit of open " ++
            "files (ulimit -n)",
        .{},
    );
}

fn thread_limit() Error {
    return fail(.system_error, "the operating system gives this process no more threads", .{});
}

/// The options that a coordinator was to start with.
pub const Start = struct {
    own: Own,
    state: ?*const StateDir = null,
    /// The journal's, if the error is about it.
    trouble: net.journal_file.Trouble = undefined,

    /// The settings of the run that it goes on with.
    pub fn settings(start: *const Start) ?*const protocol.journal.Settings {
        const dir = start.state orelse return null;
        return if (dir.settings) |*of_run| of_run else null;
    }
};

pub fn start_coordinator(err: net.CoordinatorEngine.Error, start: *const Start) Error {
    const own = start.own;
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.SystemLimit => system_limit(),
        error.ThreadLimit => thread_limit(),
        error.AddressInUse => if (start.settings()) |settings| fail(
            .system_error,
            "port {d} is in use by another program, and the peers of the run in {s} look for " ++
                "their coordinator there: end that program and start again",
            .{ settings.port, start.state.?.path },
        ) else listen(error.AddressInUse, own.bind),
        error.FamilyUnsupported,
        error.AddressNotAvailable,
        error.PermissionDenied,
        => |listen_error| listen(listen_error, own.bind),
        error.NameNotFound, error.NameLookupFailed => listen(error.ListenNameNotFound, own.bind),
        error.BadAddress => bad_address(own) orelse system_limit(),
        error.JournalMoved => fail(
            .invalid_argument,
            "the peers of the run in {s} look for their coordinator at {s}, and this one would " ++
                "be reached at {s}: give bind and advertise as at first, or advertise the old " ++
                "address if it leads here",
            .{
                start.state.?.path,
                start.settings().?.address.data,
                start.trouble.moved.storage[0..start.trouble.moved.length],
            },
        ),
        error.JournalRefused => refused(start.state.?.path, &start.trouble),
        error.JournalFailed => cannot_be_used(start.state.?.path, &start.trouble),
    };
}

// ---- the journal of a coordinator

pub fn open_journal(
    err: net.JournalFile.OpenError,
    path: []const u8,
    trouble: *const net.journal_file.Trouble,
) Error {
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.JournalInUse => fail(
            .system_error,
            "another coordinator is using {s}: end it first, or give another directory to begin " ++
                "another run",
            .{path},
        ),
        error.JournalFailed => cannot_be_used(path, trouble),
        error.JournalExposed => fail(.system_error, "{f}", .{trouble.exposed.told(path)}),
        error.JournalRefused => refused(path, trouble),
    };
}

fn cannot_be_used(path: []const u8, trouble: *const net.journal_file.Trouble) Error {
    return fail(
        .system_error,
        "the state directory {s} cannot be used: {f}",
        .{ path, trouble.system },
    );
}

fn refused(path: []const u8, trouble: *const net.journal_file.Trouble) Error {
    const journal = "the journal in {s} ";
    const way_out = ": give another directory to begin a new run, with whose token the peers " ++
        "then connect";
    const at = trouble.refused.offset orelse return fail(
        .system_error,
        journal ++ "contradicts itself" ++ way_out,
        .{path},
    );
    return switch (trouble.refused.why) {
        error.NotAJournal => fail(
            .system_error,
            "{s} holds a file named journal that PCCL did not write: give another directory",
            .{path},
        ),
        error.UnknownVersion => fail(
            .version_mismatch,
            journal ++ "was written by another version of PCCL: use that version, or give " ++
                "another directory to begin a new run",
            .{path},
        ),
        error.UnknownRecord => fail(
            .version_mismatch,
            journal ++ "has a record at byte {d} that this version of PCCL does not know: use " ++
                "the version that wrote it, or give another directory to begin a new run",
            .{ path, at },
        ),
        error.Damaged => fail(
            .system_error,
            journal ++ "is damaged at byte {d} (a disk that lost or changed bytes, or another " ++
                "program that wrote to it)" ++ way_out,
            .{ path, at },
        ),
        error.BadRecord => fail(
            .system_error,
            journal ++ "has a record at byte {d} that makes no sense" ++ way_out,
            .{ path, at },
        ),
    };
}

/// Quotes the one that is not understood; null if both are.
fn bad_address(own: Own) ?Error {
    _ = net.address.Endpoint.parse(own.bind) catch return fail(
        .invalid_argument,
        "bind is \"{s}\", which is not understood: it must be host:port, 1.2.3.4:port or " ++
            "[v6]:port",
        .{own.bind},
    );
    const advertise = own.advertise orelse return null;
    if (can_be_dialed(advertise)) return null;
    return fail(
        .invalid_argument,
        "advertise is \"{s}\", which nobody can dial: it must be host:port, 1.2.3.4:port or " ++
            "[v6]:port, or one of them without port, which is then the one bound",
        .{advertise},
    );
}

fn can_be_dialed(text: []const u8) bool {
    const port_longest = 65535; // of the port that is added where there is none
    const endpoint = net.address.Endpoint.parse_to_dial(text, port_longest) catch return false;
    return std.fmt.count("{f}", .{endpoint}) <= base.limits.address_bytes_max;
}

// ---- groups

pub fn join(
    err: net.Membership.JoinError,
    failure: *const net.Membership.Failure,
    name: []const u8,
) Error {
    if (err == error.DeadlineExceeded) if (failure.attendance) |*count|
        return too_few_came(name, count);
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.AlreadyJoined => fail(
            .invalid_usage,
            "this peer is in group \"{s}\" already: use the communicator it has, or close it first",
            .{name},
        ),
        error.NotReady => fail(
            .invalid_usage,
            "sub-group \"{s}\" is made of members of an epoch: call admit on this communicator " ++
                "first",
            .{name},
        ),
        error.BadFounders => fail(
            .invalid_argument,
            "the founders of sub-group \"{s}\" must be members of the communicator's epoch, " ++
                "this peer among them, each named once",
            .{name},
        ),
        error.Closed => closed(),
        error.DeadlineExceeded => if (failure.why().len > 0) fail(
            .deadline_exceeded,
            "group \"{s}\" was not ready before the deadline: {s}",
            .{ name, failure.why() },
        ) else fail(
            .deadline_exceeded,
            "group \"{s}\" was not ready before the deadline: fewer than initial_world_size " ++
                "peers came, or no connection to one of them could be made; check that peers " ++
                "can reach each other",
            .{name},
        ),
        error.Interrupted => interrupted(),
        error.Failed => switch (failure.status) {
            // A refusal is not the end of a membership that was: it never was one.
            .cancelled => fail(
                .invalid_usage,
                "the coordinator refused group \"{s}\": {s}",
                .{ name, failure.why() },
            ),
            .mismatch => fail(.mismatch, "the sub-group was not made: {s}", .{failure.why()}),
            .ok,
            .aborted,
            .expelled,
            .in_doubt,
            .deadline_exceeded,
            .too_few_peers,
            .coordinator_unreachable,
            .state_unavailable,
            => membership(failure.status, failure.why()),
        },
    };
}

/// A group without members has not begun.
pub fn too_few_came(name: []const u8, count: *const session.Group.Attendance) Error {
    return fail(
        .deadline_exceeded,
        "group \"{s}\" did not begin before the deadline: {d} of {d} peers are here, counting " ++
            "this one{s}. It begins when {d} are (initial_world_size)",
        .{
            name,
            count.here,
            count.needed,
            if (count.emptied) ", and all that were in it before are gone" else "",
            count.needed,
        },
    );
}

pub fn admit(err: net.Membership.AdmitError) Error {
    return switch (err) {
        error.Closed => closed(),
        error.Busy => fail(
            .invalid_usage,
            "another thread is in admit of this communicator: one call at a time",
            .{},
        ),
        error.Interrupted => interrupted(),
        else => |other| agreement(other),
    };
}

pub fn pending(err: session.Session.CallError) Error {
    return switch (err) {
        error.TagInUse => fail(
            .invalid_usage,
            "another thread is in pending_agreed of this communicator: one call at a time",
            .{},
        ),
        else => agreement(err),
    };
}

/// Why members cannot agree on a safe point: the operation for that is one of their operations.
fn agreement(err: session.Session.CallError) Error {
    return begin(err, &.{ .kind = .all_reduce, .deadline = 0 });
}

pub fn closed() Error {
    return fail(.invalid_usage, "this communicator is closed: connect again", .{});
}

pub fn forked() Error {
    return fail(
        .invalid_usage,
        "this handle belongs to the parent of this process: after fork() a child must create " ++
            "its own",
        .{},
    );
}

/// The reason follows, in the coordinator's words if it has removed this peer.
const removed = "this peer is no longer a member of the group: ";

/// A coordinator with its state is the one that was there; any other begins another run.
const start_again = "If it has ended, start it again on the same address (`pccl coordinator " ++
    "--state DIR` goes on with the run) and call again; for another run, or once " ++
    "reconnect_timeout has passed, close this communicator and connect again";

/// Why a peer is not a member any more, or did not pass a safe point. `said`: by the coordinator,
/// if it has removed this peer.
pub fn membership(why: session.Status, said: []const u8) Error {
    return switch (why) {
        .coordinator_unreachable => fail(
            .coordinator_unreachable,
            "the connection to the coordinator was lost. " ++ start_again,
            .{},
        ),
        .expelled => fail(
            .expelled,
            removed ++ "{s}. Close this communicator and connect again",
            .{said},
        ),
        .deadline_exceeded => if (said.len > 0) fail(
            .deadline_exceeded,
            "the deadline passed before this safe point, which was not passed: {s}. Then call " ++
                "admit again",
            .{said},
        ) else fail(
            .deadline_exceeded,
            "the deadline passed before all members had come to this safe point: every member " ++
                "must call admit equally often. The safe point was not passed; call admit again",
            .{},
        ),
        .too_few_peers => fail(
            .too_few_peers,
            "fewer than min_world_size peers are left in the group",
            .{},
        ),
        .cancelled => fail(.cancelled, "the communicator was closed meanwhile", .{}),
        .mismatch => fail(
            .mismatch,
            "a member has passed another number of safe points than this one: every member must " ++
                "call admit equally often. Close this communicator and connect again",
            .{},
        ),
        .aborted => fail(
            .aborted,
            "another member gave up this safe point, which nobody has passed: call admit again",
            .{},
        ),
        .ok, .in_doubt, .state_unavailable => fail(.aborted, "the safe point failed: {t}", .{why}),
    };
}

// ---- operations

/// How many elements a call names.
const Counted = struct {
    call: *const session.Session.Call,

    pub fn format(counted: Counted, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        var total: u64 = 0;
        if (counted.call.exchanged) |*exchanged| {
            for (exchanged.send, exchanged.recv) |send, recv| total +|= send +| recv;
        } else if (counted.call.counts) |counts| {
            for (counts) |count| total +|= count;
        } else if (counted.call.arrays.len > 0) {
            for (counted.call.arrays) |*array| total +|= array.count;
            return writer.print("counts are {d} together, of each rank's shard if there are any", .{
                total,
            });
        } else return writer.print("count is {d}", .{counted.call.count});
        return writer.print("counts are {d} together", .{total});
    }
};

pub fn begin(err: session.Session.CallError, call: *const session.Session.Call) Error {
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.TagInUse => fail(
            .invalid_usage,
            "{s} with tag {d} is in flight on this communicator: wait for it, or use another tag",
            .{
                switch (call.kind) {
                    .send_recv => switch (call.part) {
                        .send => "a message to this rank",
                        .recv => "a message from this rank",
                    },
                    else => "an operation",
                },
                call.tag,
            },
        ),
        error.TooManyOperations => fail(
            .invalid_usage,
            "{d} operations of this kind are in flight in this group and {d} calls wait for " ++
                "their turn, which is the limit: wait for some of them",
            .{ base.limits.operations_in_flight_max, base.limits.operations_queued_max },
        ),
        error.TooManyGivenUp => fail(
            .coordinator_unreachable,
            "{d} operations that this peer gave up wait for an answer of the coordinator, which " ++
                "is the limit: call again when it is back",
            .{base.limits.given_up_max},
        ),
        error.TooManyTags => fail(
            .invalid_usage,
            "{d} tags far from each other were used since the last new epoch, which is the " ++
                "limit: use tags again, or take the next number for a new one",
            .{base.limits.tag_runs_max},
        ),
        error.NotAdmitted => fail(
            .invalid_usage,
            "this peer has not entered the group yet: call admit first",
            .{},
        ),
        error.Left => closed(),
        error.BufferInUse => fail(
            .invalid_usage,
            "an operation in flight uses a buffer of this call: wait for it first, or give each " ++
                "its own memory",
            .{},
        ),
        error.TagReserved => fail(
            .invalid_argument,
            "tag {d} belongs to messages or shared states: use one below 254 * 2**56",
            .{call.tag},
        ),
        error.TagTooLarge => fail(
            .invalid_argument,
            "tag {d} is too large for {t}: use one below 2**38",
            .{ call.tag, call.part },
        ),
        error.PartnerOutOfRange => fail(
            .invalid_argument,
            "there is no rank {d} to {s} in this epoch: it must be below world_size",
            .{ call.partner_rank, way(call.part) },
        ),
        error.PartnerIsSelf => fail(
            .invalid_argument,
            "rank {d} is this peer itself, and there is nobody to {s}: copy the array instead",
            .{ call.partner_rank, way(call.part) },
        ),
        error.RootOutOfRange => fail(
            .invalid_argument,
            "root {d} is not a rank of this epoch: it must be below world_size",
            .{call.root_rank},
        ),
        error.CountsOfAnotherWorld => fail(
            .invalid_argument,
            "there are {d} counts: there must be one for each rank of this epoch",
            .{if (call.exchanged) |*exchanged| exchanged.send.len else call.counts.?.len},
        ),
        error.OwnCountsDiffer => fail(
            .invalid_argument,
            "this rank would send itself another number of elements than it would receive from " ++
                "itself: send_counts and recv_counts must agree there",
            .{},
        ),
        error.TooManyRanks => fail(
            .invalid_usage,
            "{s} works in a world of at most {d}: use smaller groups",
            .{
                if (call.exchanged == null) "all_to_all" else "all_to_all with counts",
                session.Session.all_to_all_ranks_max(call.exchanged != null),
            },
        ),
        error.TooManyElements => fail(
            .invalid_argument,
            "{f}; one operation has at most {d} elements, over all ranks",
            .{ Counted{ .call = call }, @as(u64, base.limits.elements_max) },
        ),
        error.TooManyArrays => fail(
            .invalid_argument,
            "{d} arrays have too many shards for one operation, which has at most {d} of all " ++
                "arrays and ranks: call several times, with different tags",
            .{ call.arrays.len, base.limits.chunks_max },
        ),
        error.ArraysOverlap => fail(
            .invalid_argument,
            "two buffers of this call overlap, and one of them is written: each must lie apart " ++
                "from all others, save an array and its own result in place",
            .{},
        ),
        error.SendMissing => status.is_null("the buffer to send"),
        error.RecvMissing => status.is_null("the buffer to receive"),
        error.BeyondMemory => fail(
            .invalid_argument,
            "{f}, and so many {s} do not fit into memory behind the buffer",
            .{ Counted{ .call = call }, call.dtype.name() },
        ),
        error.BuffersOverlap => fail(
            .invalid_argument,
            "send_buffer and recv_buffer overlap: {s}",
            .{switch (call.kind) {
                .all_gather => "send_buffer must be this rank's part of recv_buffer, or lie apart",
                .reduce_scatter => "recv_buffer must be this rank's part of send_buffer, or lie " ++
                    "apart",
                .scatter => "recv_buffer must be the root's part of send_buffer, or lie apart",
                .gather => "send_buffer must be the root's part of recv_buffer, or lie apart",
                .all_to_all => "they must lie apart",
                else => "they must be the same, or lie apart",
            }},
        ),
        error.ResidualOverlaps => fail(
            .invalid_argument,
            "residual_out overlaps another buffer of the call: what it holds counts only once " ++
                "the operation has succeeded, so it must lie apart",
            .{},
        ),
        error.ResidualInWritten => fail(
            .invalid_argument,
            "residual_in overlaps recv_buffer, which is written",
            .{},
        ),
    };
}

// ---- shared states

/// `name`: of the tensor that it is about, or of the state.
pub fn state(err: net.SharedState.CreateError, name: []const u8, count: usize) Error {
    const limits = base.limits;
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.Closed => closed(),
        error.NameInUse => fail(
            .invalid_usage,
            "this peer has a shared state named \"{s}\" in this group: close it first, or give " ++
                "this one another name, the same on every peer",
            .{name},
        ),
        error.TooManyTensors => fail(
            .invalid_argument,
            "a shared state has at most {d} tensors, not {d}",
            .{ limits.state_tensors_max, count },
        ),
        error.TooManyLeaves => fail(
            .invalid_argument,
            "the tensors of a shared state have at most {d} leaves of {d} bytes together",
            .{ limits.state_leaves_max, limits.state_leaf_bytes },
        ),
        error.BadName => fail(
            .invalid_argument,
            "the name of a tensor must be 1 to {d} bytes of UTF-8, without control characters, " ++
                "line ends and marks that turn the writing",
            .{limits.name_bytes_max},
        ),
        error.DuplicateName => fail(
            .invalid_argument,
            "two tensors have the name \"{s}\"",
            .{name},
        ),
        error.TooManyDimensions => fail(
            .invalid_argument,
            "tensor \"{s}\" has more than {d} dimensions",
            .{ name, limits.state_dimensions_max },
        ),
        error.TooLarge => fail(
            .invalid_argument,
            "the shape of tensor \"{s}\" is larger than memory can be",
            .{name},
        ),
        error.NoData => fail(
            .invalid_argument,
            "tensor \"{s}\" has elements, but no memory",
            .{name},
        ),
        error.RevisionTooLarge => fail(
            .invalid_argument,
            "the revision of a shared state must be below 2**62",
            .{},
        ),
        error.Overlap => fail(
            .invalid_argument,
            "tensor \"{s}\" overlaps another one in memory: each needs its own",
            .{name},
        ),
    };
}

pub fn sync(err: net.SharedState.SyncError) Error {
    return switch (err) {
        error.Failed => error.Failed, // `operation` has said why
        error.Busy => fail(
            .invalid_usage,
            "another thread is in sync of this shared state: one call at a time",
            .{},
        ),
        error.Ended => fail(.cancelled, "the shared state is closed: make a new one", .{}),
        error.RevisionTooLarge => state(error.RevisionTooLarge, "", 0),
        error.TagInUse => fail(
            .invalid_usage,
            "a sync of a shared state of this name is under way on this communicator",
            .{},
        ),
        error.OutOfMemory,
        error.TooManyOperations,
        error.TooManyGivenUp,
        error.TooManyTags,
        error.NotAdmitted,
        error.Left,
        error.BufferInUse,
        => |common| begin(common, &.{ .kind = .sync, .deadline = 0 }),
    };
}

/// The status of a finished operation that is not ok.
pub fn operation(op: *const session.Operation) Error {
    var text: [128 + base.limits.label_bytes_max]u8 = undefined;
    // Four numbers, some words, and the name of a state as far as `Names` has it.
    const name = std.fmt.bufPrint(&text, "{f}", .{op.named(&op.names)}) catch unreachable;
    return switch (op.status) {
        .ok => unreachable, // asked only of failures
        .mismatch => mismatch(op, name),
        .aborted => aborted(op, name),
        .expelled => fail(
            .expelled,
            "{s}: " ++ removed ++ "{s}. {s}. Close this communicator and connect again",
            .{ name, op.group.why_removed(), kept(op) },
        ),
        .in_doubt => if (op.sync() != null) fail(
            .in_doubt,
            "{s} ended without an answer of the coordinator{f}, so the others may have " ++
                "committed it. The tensors are as they were; sync again, which brings this peer " ++
                "to the state of the others",
            .{ name, Coordinator{ .failure = &op.failure } },
        ) else fail(
            .in_doubt,
            "{s}: {s}{f} after this peer had voted, so the others may have committed it; " ++
                "resolve its work to know. {s}",
            .{
                name,
                if (op.failure.reason) |reason| switch (reason) {
                    .deadline => "the deadline passed",
                    else => "it was withdrawn here",
                } else "the connection to the coordinator was lost",
                WaitedFor{ .op = op },
                kept(op),
            },
        ),
        .deadline_exceeded => if (op.op.descriptor.kind == .send_recv) fail(
            .deadline_exceeded,
            "{s}: the deadline passed{f}. {s}",
            .{ name, WaitedFor{ .op = op }, kept(op) },
        ) else fail(
            .deadline_exceeded,
            "{s}: the deadline passed{f}. The operation is aborted on every member. {s}",
            .{ name, WaitedFor{ .op = op }, kept(op) },
        ),
        .too_few_peers => fail(
            .too_few_peers,
            "{s}: fewer than min_world_size peers are left in the group. {s}",
            .{ name, kept(op) },
        ),
        .coordinator_unreachable => fail(
            .coordinator_unreachable,
            "{s}: {f}. {s}. " ++ start_again,
            .{ name, Lost{ .away_ns = op.failure.coordinator_away_ns }, kept(op) },
        ),
        .state_unavailable => fail(
            .state_unavailable,
            "{s}: nobody holds the shared state: all members that are left only receive, or " ++
                "a holder sent other bytes than it offered (do not write to tensors during a " ++
                "sync){f}. The tensors are as they were",
            .{ name, OutOfRule{ .op = op } },
        ),
        .cancelled => withdrawn(op, name),
    };
}

fn withdrawn(op: *const session.Operation, name: []const u8) Error {
    return if (op.group.why_removed().len > 0) fail(
        .cancelled,
        "{s} was withdrawn here, and the others go on without this peer. {s}. Close this " ++
            "communicator and connect again",
        .{ name, kept(op) },
    ) else fail(
        .cancelled,
        "{s} was withdrawn here, by a cancellation, a close, or for lack of memory. {s}",
        .{ name, kept(op) },
    );
}

/// The state of the memory that the caller gave (docs/PROMISE.md, P3).
fn kept(op: *const session.Operation) []const u8 {
    const arrays = &op.work.movement.memory.arrays;
    if (!arrays.has_apart()) return "The input is as it was";
    if (op.op.descriptor.kind == .send_recv) return "Its array may hold a part of the message";
    if (!arrays.has_input()) return "The output may hold a part of the result";
    return "The input is as it was; an output apart from it may hold a part of the result";
}

/// "the connection to the coordinator was lost 12 s ago"
const Lost = struct {
    /// Null: just now.
    away_ns: ?u64,

    pub fn format(lost: Lost, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.writeAll("the connection to the coordinator was lost");
        const away_ns = lost.away_ns orelse return;
        try writer.print(" {d} s ago", .{away_ns / std.time.ns_per_s});
    }
};

/// " (the connection to the coordinator was lost 12 s ago)"; nothing while it answers.
const Coordinator = struct {
    failure: *const protocol.Failure,

    fn is_away(it: Coordinator) bool {
        return it.failure.coordinator_away_ns != null or it.failure.coordinator_silent_ns > 0;
    }

    pub fn format(it: Coordinator, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (it.failure.coordinator_away_ns) |away_ns|
            return writer.print(" ({f})", .{Lost{ .away_ns = away_ns }});
        const silent_ns = it.failure.coordinator_silent_ns;
        if (silent_ns > 0) try writer.print(
            " (nothing was heard from the coordinator for {d} s)",
            .{silent_ns / std.time.ns_per_s},
        );
    }
};

const Elsewhere = session.waits.Elsewhere;

/// For a call whose deadline passed: " (waiting for rank 3, 7f3a01c2, which has not called it)"
const WaitedFor = struct {
    op: *const session.Operation,

    /// More are counted.
    const shown_max = session.labels.Names.missing_max;

    pub fn format(waited: WaitedFor, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const op = waited.op;
        if (op.failure.reason != .deadline) return;
        const missing = &op.failure.missing;
        const count = missing.count();
        // Others cannot be blamed: what they have done, the coordinator alone would tell.
        const coordinator: Coordinator = .{ .failure = &op.failure };
        if (coordinator.is_away()) return writer.print("{f}", .{coordinator});
        if (op.ended_queued) return writer.print(
            " before its turn came: {d} operations of this kind were in flight in the group, " ++
                "and beyond that members must call them in one order",
            .{base.limits.operations_in_flight_max},
        );
        if (count == 0) return writer.print(" (probably {s} has not called {s}, or is stuck)", .{
            if (op.op.descriptor.kind == .send_recv) "that rank" else "another member",
            called(op),
        });
        const waited_ns = op.finished_at -| op.started_at;
        if (waited_ns < std.time.ns_per_s)
            try writer.print(" (waiting for {d} ms for ", .{waited_ns / std.time.ns_per_ms})
        else
            try writer.print(" (waiting for {d} s for ", .{waited_ns / std.time.ns_per_s});
        for (0..@min(count, shown_max)) |index| {
            if (index > 0) try writer.writeAll(" and ");
            try writer.print("{f}", .{op.names.who(op.ids[missing.at(index)])});
        }
        if (count > shown_max) try writer.print(" and {d} more", .{count - shown_max});
        const verb = if (count == 1) "has" else "have";
        try writer.print(", which {s} not called {s}{f})", .{ verb, called(op), Elsewhere{
            .names = &op.names,
            .operation = op,
            .missing = missing,
            .told = &op.failure.elsewhere,
        } });
    }

    fn called(op: *const session.Operation) []const u8 {
        if (op.op.descriptor.kind != .send_recv) return "it";
        return switch (part_of(op)) {
            .send => "recv",
            .recv => "send",
        };
    }
};

/// This peer's part in a message.
fn part_of(op: *const session.Operation) Part {
    const roles = &op.work.movement.board.ledger.roles;
    return if (roles.rank == roles.pair.src) .send else .recv;
}

const Part = session.Session.Call.Part;

fn way(part: Part) []const u8 {
    return switch (part) {
        .send => "send to",
        .recv => "receive from",
    };
}

fn aborted(op: *const session.Operation, name: []const u8) Error {
    const peer = op.names.who(op.failure.peer);
    const other = op.names.who(op.failure.other);
    const reason = op.failure.reason orelse
        return fail(.aborted, "{s} was aborted. {s}", .{ name, kept(op) });
    return switch (reason) {
        .deadline => fail(
            .aborted,
            "{s} was aborted, because the deadline of {f} passed{f}; it may be called " ++
                "again. {s}",
            .{ name, peer, WaitedFor{ .op = op }, kept(op) },
        ),
        .cancelled => fail(
            .aborted,
            "{s} was aborted, because {f} withdrew it; it may be called again. {s}",
            .{ name, peer, kept(op) },
        ),
        .mismatch, .contradiction => mismatch(op, name),
        .structure, .state_conflict, .state_strategy => mismatch(op, name),
        .state_unavailable => fail(.state_unavailable, "{s}: nobody holds the state", .{name}),
        .digest => fail(
            .aborted,
            "{s} was aborted, because {f} and {f} hold different results: its buffer was " ++
                "written while the call ran (by another call in flight?), or one of them has " ++
                "faulty memory or another build of this library. {s}",
            .{ name, peer, other, kept(op) },
        ),
        .peer_lost => if (op.op.descriptor.kind == .send_recv) fail(
            .aborted,
            "{s} was aborted, because {f} was lost: call admit, as all members must, and then " ++
                "name a rank of those that are left. Until then each call that names that one " ++
                "fails. {s}",
            .{ name, peer, kept(op) },
        ) else if (op.op.descriptor.recovery == .complete) fail(
            .aborted,
            "{s} was aborted, because {f} is lost or has left and it needs every member " ++
                "(recovery \"complete\"): call admit, as all members must, and then repeat the " ++
                "call. Until then each such call fails; one with recovery \"restart\" needs the " ++
                "survivors alone. {s}",
            .{ name, peer, kept(op) },
        ) else fail(
            .aborted,
            "{s} was aborted, because {f} was lost and its recovery is \"raise\"; if you " ++
                "call it again, it runs among the survivors. {s}",
            .{ name, peer, kept(op) },
        ),
        // The reporter may be another member, which called it later.
        .root_lost => fail(
            .aborted,
            "{s} was aborted, because its root, {f}, was lost{s}: call admit, as all members " ++
                "must, and then name a root that is left. Until then each call with that one " ++
                "fails. {s}",
            .{
                name,
                op.names.who(op.op.descriptor.root),
                switch (op.op.descriptor.kind) {
                    .broadcast => " and nobody else holds all of its data",
                    else => "",
                },
                kept(op),
            },
        ),
        .passed => fail(
            .aborted,
            "{s} was aborted, because {f} has passed the next safe point without it: call admit " ++
                "and go on from there. Until then each such call fails; between two calls of " ++
                "admit all ranks must make the same calls. {s}",
            .{ name, peer, kept(op) },
        ),
        .link_broken => fail(
            .aborted,
            "{s} was aborted, because {s} {f} is broken: nothing came through for the " ++
                "silence limit, and this kind of operation takes no other way (others go around " ++
                "such a link). {s}",
            .{
                name,
                if (unreachable_peer(op) != null) "the link between this peer and" //
                else "a link of",
                if (unreachable_peer(op)) |id| op.names.who(id) else peer,
                kept(op),
            },
        ),
        .too_few_peers => fail(
            .too_few_peers,
            "{s}: fewer than min_world_size peers are left. {s}",
            .{ name, kept(op) },
        ),
    };
}

/// ", or none brings the revision that is expected (rule successive); this peer brought 10 and ..."
const OutOfRule = struct {
    op: *const session.Operation,

    pub fn format(it: OutOfRule, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (!it.op.op.descriptor.rules.successive) return;
        try writer.writeAll(", or none brings the revision that is expected (rule successive)");
        const moved = it.op.sync() orelse return;
        if (moved.expected == 0) return;
        try writer.print("; this peer brought {d} and expected {d}", .{
            moved.revision,
            moved.expected,
        });
    }
};

/// Whose link to this peer is broken, where it is one of this peer's.
fn unreachable_peer(op: *const session.Operation) ?base.PeerId {
    if (!op.unreachable_peer.eql(.none)) return op.unreachable_peer;
    return op.partner();
}

fn mismatch(op: *const session.Operation, name: []const u8) Error {
    var first: [description_bytes_max]u8 = undefined;
    var second: [description_bytes_max]u8 = undefined;
    const peer = op.names.who(op.failure.peer);
    const other = op.names.who(op.failure.other);
    // Decisions have a reason: this peer alone was told. Which call it was stands in the words.
    if (op.failure.reason == null) return fail(
        .mismatch,
        "{s}: this peer was refused, and is no member any more; the members go on without it: " ++
            "{s}. {f}{s}. Correct that, then connect again",
        .{ word_of(op), op.group.why_removed(), Arrays{ .op = op }, kept(op) },
    );
    if (op.failure.reason == .structure) return fail(
        .mismatch,
        "{s}: the shared states of the members differ in structure: {s}. All members must share " ++
            "the same names, shapes and dtypes",
        .{ name, if (op.sync()) |moved| moved.differs() else "" },
    );
    if (op.failure.reason == .state_conflict) return fail(
        .mismatch,
        "{s}: {f} and {f} both insist on their content (send_only), and it differs: at " ++
            "most one content can be sent. The tensors are as they were",
        .{ name, peer, other },
    );
    if (op.failure.reason == .state_strategy) return fail(
        .mismatch,
        "{s}: {f} and {f} both give their content, and one of them sends it (send_only): by the " ++
            "rule one_sender all others must only receive (receive_only). The tensors are as " ++
            "they were",
        .{ name, peer, other },
    );
    if (op.failure.reason == .contradiction) return fail(
        .mismatch,
        "{s}: {f} and {f} made the same call, but cut it into different numbers of " ++
            "chunks: one of them has another build of this library or other settings than this " ++
            "run. {s}",
        .{ name, peer, other, kept(op) },
    );
    if (op.op.descriptor.kind == .send_recv) return fail(
        .mismatch,
        "{s}: the two called different things: {f} {s}, {f} {s}. Both must name as " ++
            "many elements of one dtype, after equally many calls of admit. {s}",
        .{
            name,
            peer,
            describe(op.failure.descriptor, op.failure.other_descriptor, &op.names, &first),
            other,
            describe(op.failure.other_descriptor, op.failure.descriptor, &op.names, &second),
            kept(op),
        },
    );
    return fail(
        .mismatch,
        "{s}: the members called different things: {f} {s}, {f} {s}. {f}All members must " ++
            "make the same calls in the same order on each tag. {s}",
        .{
            name,
            peer,
            describe(op.failure.descriptor, op.failure.other_descriptor, &op.names, &first),
            other,
            describe(op.failure.other_descriptor, op.failure.descriptor, &op.names, &second),
            Arrays{ .op = op },
            kept(op),
        },
    );
}

fn word_of(op: *const session.Operation) []const u8 {
    const kind = op.op.descriptor.kind;
    const object_name = if (op.form == wire.form_object) wire.object_name(kind) else null;
    return object_name orelse @tagName(kind);
}

/// Frontends look for it, to say more (pccl_py/kit/frontend.py).
const differ_in_form =
    "The arrays of these two differ in name, in structure or in the kind of their elements. ";

/// Which array of a list, or which shard, the two of a mismatch have called differently: "arrays[1]
/// has 1000 f32 at rank 0 (this peer) and 999 f32 at rank 2 (node7:4242, 7f3a01c2). "
const Arrays = struct {
    op: *const session.Operation,

    pub fn format(it: Arrays, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const op = it.op;
        const first = op.failure.descriptor orelse return;
        const second = op.failure.other_descriptor orelse return;
        // Any other difference is seen in their descriptions.
        const alike = first.kind == second.kind and first.arrays == second.arrays;
        if (!alike or first.counts == second.counts or first.uneven) return;
        if (session.outline.differ_in_form(&first, &second)) {
            // Then the kind of their elements is all that differs, and stands there already.
            if (!std.mem.eql(u8, wire.dtype_name(&first), wire.dtype_name(&second))) return;
            return writer.writeAll(differ_in_form);
        }
        if (!session.outline.has_list(&first) or !session.outline.has_list(&second)) return;
        const what = if (first.arrays > 0) "arrays" else "counts";
        const found = session.outline.find(op) orelse
            return writer.print("More than one of the {s} differ. ", .{what});
        if (found.swapped) |other| return writer.print(
            "{s}[{d}] and {s}[{d}] of one are in each other's place at the other. ",
            .{ what, found.change.index, what, other },
        );
        const own, const there = if (found.is_peer)
            .{ op.failure.peer, op.failure.other }
        else
            .{ op.failure.other, op.failure.peer };
        try writer.print("{s}[{d}] has {d} {s} at {f} and {d} {s} at {f}. ", .{
            what,
            found.change.index,
            found.own.count,
            found.own.dtype.name(),
            op.names.who(own),
            found.change.item.count,
            found.change.item.dtype.name(),
            op.names.who(there),
        });
    }
};

/// More than the longest takes.
const description_bytes_max = 320;

/// "all_reduce(sum, 1000 f32, codec int8)", beside one without a codec (engine/wire/described.zig).
fn describe(
    maybe: ?Descriptor,
    other: ?Descriptor,
    names: *const session.labels.Names,
    text: *[description_bytes_max]u8,
) []const u8 {
    const descriptor = maybe orelse return "something else";
    var writer: std.Io.Writer = .fixed(text);
    writer.print("{f}", .{wire.Described(*const session.labels.Names){
        .descriptor = &descriptor,
        .other = if (other) |*it| it else null,
        .names = names,
    }}) catch {}; // cut
    return writer.buffered();
}

fn expect_words_of_both_languages(err: Error) !void {
    try std.testing.expect(status.code(err) != .ok);
    const sentence = std.mem.span(status.pccl_last_error());
    for ([_][]const u8{ "pccl_", "_ns", "NULL" }) |word| {
        try std.testing.expectEqual(null, std.mem.indexOf(u8, sentence, word));
    }
}

/// For an operation in a test, which has no memory.
const no_arrays: collective.Arrays = .{
    .list = &.{},
    .places = &.{},
    .is_kept = &.{},
    .result_bytes = 0,
    .encoded_bytes = 0,
};

test "no sentence about a group or an operation has a word that only C knows" {
    var group: session.Group = undefined;
    group.removed("it was away");
    for (std.enums.values(session.Status)) |value| {
        try expect_words_of_both_languages(membership(value, "it was away"));
        if (value == .ok) continue;
        var op: session.Operation = undefined;
        op.work = .{ .movement = undefined };
        op.names = .{};
        op.work.movement.memory.arrays = no_arrays;
        op.op = .{ .descriptor = undefined, .chunks = 1 };
        op.op.descriptor.kind = .barrier;
        op.status = value;
        op.failure = .{ .status = value };
        op.group = &group;
        try expect_words_of_both_languages(operation(&op));
    }
    try expect_words_of_both_languages(admit(error.Busy));
    try expect_words_of_both_languages(begin(error.NotAdmitted, &.{
        .kind = .barrier,
        .deadline = 0,
    }));
}

test "an operation and a safe point say the same of why the coordinator removed this peer" {
    const why = "it was away\x1b";
    var group: session.Group = undefined;
    group.removed(why);
    var op: session.Operation = undefined;
    op.group = &group;
    op.work = .{ .movement = undefined };
    op.names = .{};
    op.work.movement.memory.arrays = no_arrays;
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .barrier;
    op.status = .expelled;
    for ([_]bool{ true, false }) |is_operation| {
        const err = if (is_operation) operation(&op) else //
            membership(.expelled, group.why_removed());
        try std.testing.expectEqual(.expelled, status.code(err));
        const sentence = std.mem.span(status.pccl_last_error());
        const wanted = removed ++ "it was away\\x1b. ";
        try std.testing.expect(std.mem.indexOf(u8, sentence, wanted) != null);
    }
}

test "a call of a newcomer that was refused says what it called, and what the members did" {
    const why = "it called all_gather(999 f32) where the members called all_gather(1000 f32)";
    var group: session.Group = undefined;
    group.removed(why);
    var op: session.Operation = undefined;
    op.group = &group;
    op.work = .{ .movement = undefined };
    op.names = .{};
    op.work.movement.memory.arrays = no_arrays;
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .all_gather;
    op.status = .mismatch;
    op.failure = .{ .status = .mismatch };
    try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
    const sentence = std.mem.span(status.pccl_last_error());
    try std.testing.expect(std.mem.indexOf(u8, sentence, "go on without it: " ++ why) != null);
}

test "a call whose deadline passed names those it waited for, or says what is probable" {
    var ids: [6]base.PeerId = undefined;
    for (&ids, 0..) |*id, rank| id.* = .from_int(@as(u128, 0x7f3a0100 + rank) << 96);
    var op: session.Operation = undefined;
    op.ids = &ids;
    op.work = .{ .movement = undefined };
    op.names = .{};
    op.work.movement.memory.arrays = no_arrays;
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .barrier;
    op.started_at = 5 * std.time.ns_per_s;
    op.finished_at = 12 * std.time.ns_per_s;
    op.names = .{ .self = ids[0], .count = 4 };
    for (op.names.items[0..4], ids[0..4], 0..) |*name, id, rank|
        name.* = .{ .id = id, .rank = @intCast(rank), .label = .{} };
    op.names.items[3].label = .shown("node7:42");
    const Case = struct { missing: base.Mask, wanted: []const u8 };
    var one: base.Mask = .empty;
    one.set(3);
    for ([_]Case{
        .{
            .missing = .empty,
            .wanted = "(probably another member has not called it, or is stuck)",
        },
        .{
            .missing = one,
            .wanted = "(waiting for 7 s for rank 3 (node7:42, 7f3a0103), which has not called it)",
        },
        .{
            .missing = .full(6),
            .wanted = "(waiting for 7 s for rank 0 (this peer) and rank 1 (7f3a0101) and rank 2 " ++
                "(7f3a0102) and rank 3 (node7:42, 7f3a0103) and 2 more, which have not called it)",
        },
    }) |case| {
        for ([_]session.Status{ .deadline_exceeded, .aborted, .in_doubt }) |value| {
            op.status = value;
            op.failure = .{ .status = value, .reason = .deadline, .missing = case.missing };
            try std.testing.expect(status.code(operation(&op)) != .ok);
            const sentence = std.mem.span(status.pccl_last_error());
            try std.testing.expect(std.mem.indexOf(u8, sentence, case.wanted) != null);
        }
    }
}

test "a call whose deadline passed says what those it waited for waited in themselves" {
    var ids: [3]base.PeerId = undefined;
    for (&ids, 0..) |*id, rank| id.* = .from_int(@as(u128, 0x7f3a0100 + rank) << 96);
    var op: session.Operation = undefined;
    op.ids = &ids;
    op.work = .{ .movement = undefined };
    op.work.movement.memory.arrays = no_arrays;
    op.op = .{ .descriptor = undefined, .chunks = 1, .epoch = 4 };
    op.op.descriptor.kind = .barrier;
    op.started_at = 0;
    op.finished_at = 7 * std.time.ns_per_s;
    op.names = .{ .self = ids[0], .count = 3 };
    for (op.names.items[0..3], ids, 0..) |*name, id, rank|
        name.* = .{ .id = id, .rank = @intCast(rank), .label = .shown("n") };
    op.status = .deadline_exceeded;
    op.failure = .{ .status = .deadline_exceeded, .reason = .deadline };
    op.failure.missing.set(1);
    op.failure.elsewhere.count = 2; // of which one is not missing any more
    for (op.failure.elsewhere.items[0..2], 1..) |*waits, rank| waits.* = .{
        .rank = @intCast(rank),
        .kind = .all_gather,
        .op = .{ .tag = 9, .sequence = 2 },
        .waits_for = 0,
        .count = 2,
    };
    try std.testing.expect(status.code(operation(&op)) != .ok);
    const sentence = std.mem.span(status.pccl_last_error());
    const wanted = "for rank 1 (n, 7f3a0101), which has not called it; rank 1 (n, 7f3a0101) " ++
        "waits in all_gather (tag 9, sequence 2 of epoch 4) for rank 0 (this peer) and 1 more)";
    try std.testing.expect(std.mem.indexOf(u8, sentence, wanted) != null);
}

test "with the coordinator gone, no member is blamed, and the error says since when" {
    var op: session.Operation = undefined;
    op.work = .{ .movement = undefined };
    op.names = .{};
    op.work.movement.memory.arrays = no_arrays;
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .barrier;
    const second = std.time.ns_per_s;
    const Case = struct { away_ns: ?u64, silent_ns: u64, wanted: []const u8 };
    for ([_]Case{
        .{
            .away_ns = 12 * second,
            .silent_ns = 15 * second,
            .wanted = "the connection to the coordinator was lost 12 s ago",
        },
        .{
            .away_ns = null,
            .silent_ns = 15 * second,
            .wanted = "nothing was heard from the coordinator for 15 s",
        },
    }) |case| for ([_]session.Status{ .in_doubt, .deadline_exceeded }) |value| {
        op.status = value;
        op.failure = .{
            .status = value,
            .reason = .deadline,
            .missing = .full(3),
            .coordinator_away_ns = case.away_ns,
            .coordinator_silent_ns = case.silent_ns,
        };
        try std.testing.expect(status.code(operation(&op)) != .ok);
        const sentence = std.mem.span(status.pccl_last_error());
        try std.testing.expect(std.mem.indexOf(u8, sentence, case.wanted) != null);
        try std.testing.expectEqual(null, std.mem.indexOf(u8, sentence, "has not called"));
    };
    op.status = .coordinator_unreachable;
    op.failure = .{ .status = op.status, .coordinator_away_ns = 7 * second };
    try std.testing.expectEqual(.coordinator_unreachable, status.code(operation(&op)));
    const sentence = std.mem.span(status.pccl_last_error());
    try std.testing.expect(std.mem.indexOf(u8, sentence, "was lost 7 s ago. ") != null);
}

test "a sync is named by its state, also where others wait in one" {
    var ids: [2]base.PeerId = .{ .from_int(1 << 120), .from_int(2 << 120) };
    var op: session.Operation = undefined;
    op.ids = &ids;
    op.work = .{ .movement = undefined };
    op.work.movement.memory.arrays = no_arrays;
    op.op = .{ .descriptor = undefined, .chunks = 1, .epoch = 4 };
    op.op.id = .{ .tag = 7, .sequence = 2 };
    op.op.descriptor.kind = .sync;
    op.started_at = 0;
    op.finished_at = std.time.ns_per_s;
    op.names = .{ .self = ids[0], .states_count = 2 };
    op.names.states[0] = .{ .tag = 7, .name = .shown("weights") };
    op.names.states[1] = .{ .tag = 9, .name = .shown("x" ** base.limits.label_bytes_max) };
    op.status = .deadline_exceeded;
    op.failure = .{ .status = .deadline_exceeded, .reason = .deadline };
    op.failure.missing.set(1);
    op.failure.elsewhere.count = 1;
    op.failure.elsewhere.items[0] = .{
        .rank = 1,
        .kind = .sync,
        .op = .{ .tag = 9, .sequence = 0 },
        .waits_for = 0,
        .count = 1,
    };
    const long = "waits in sync of \"" ++ "x" ** base.limits.label_bytes_max ++ "\" (sequence 0 ";
    for ([_][]const u8{ "sync of \"weights\" (sequence 2 of epoch 4): the", long }) |part| {
        try std.testing.expect(status.code(operation(&op)) != .ok);
        const sentence = std.mem.span(status.pccl_last_error());
        try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
        op.names.states[0].name = op.names.states[1].name; // the longest takes no more room
    }
}

test "a contradiction about chunks names both peers" {
    var op: session.Operation = undefined;
    op.work = .{ .movement = undefined };
    op.names = .{};
    op.work.movement.memory.arrays = no_arrays;
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .all_reduce;
    op.status = .mismatch;
    op.failure = .{
        .status = .mismatch,
        .reason = .contradiction,
        .peer = .from_int(0xaabbccdd << 96),
        .other = .from_int(0x11223344 << 96),
    };
    try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
    const sentence = std.mem.span(status.pccl_last_error());
    for ([_][]const u8{ "aabbccdd", "11223344", "chunks" }) |part| {
        try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
    }
}

test "a mismatch names both peers and both calls" {
    var op: session.Operation = undefined;
    op.work = .{ .movement = undefined };
    op.names = .{};
    op.work.movement.memory.arrays = no_arrays;
    var descriptor: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .f32,
        .op = .sum,
        .recovery = .restart,
        .count = 1000,
        .safe_points = 3,
    };
    op.op = .{ .descriptor = descriptor, .chunks = 1, .epoch = 2 };
    op.op.id = .{ .tag = 5, .sequence = 7 };
    op.status = .mismatch;
    op.failure = .{
        .status = .mismatch,
        .reason = .mismatch,
        .peer = .from_int(0xaabbccdd << 96),
        .other = .from_int(0x11223344 << 96),
        .descriptor = descriptor,
    };
    descriptor.count = 999;
    op.failure.other_descriptor = descriptor;
    try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
    const sentence = std.mem.span(status.pccl_last_error());
    for ([_][]const u8{ "tag 5", "aabbccdd", "11223344", "1000 f32", "999 f32" }) |part| {
        try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
    }
}

test "a mismatch tells bool arrays from those of u8, and says no more where that is all" {
    var op: session.Operation = undefined;
    op.work = .{ .movement = undefined };
    op.names = .{};
    op.work.movement.memory.arrays = no_arrays;
    var descriptor: Descriptor = .{
        .kind = .broadcast,
        .dtype = .u8,
        .op = .sum,
        .recovery = .restart,
        .count = 10,
        .safe_points = 3,
    };
    op.op = .{ .descriptor = descriptor, .chunks = 1 };
    op.status = .mismatch;
    op.failure = .{ .status = .mismatch, .reason = .mismatch, .descriptor = descriptor };
    const Case = struct { form: u64, words: []const u8, is_all: bool };
    for ([_]Case{
        .{ .form = wire.form_bool, .words = "broadcast(10 bool from", .is_all = true },
        .{ .form = 7, .words = "broadcast(10 u8 from", .is_all = false },
    }) |case| {
        descriptor.counts = session.outline.hash_alone(case.form);
        op.failure.other_descriptor = descriptor;
        try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
        const sentence = std.mem.span(status.pccl_last_error());
        for ([_][]const u8{ "broadcast(10 u8 from", case.words }) |part|
            try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
        const more = std.mem.indexOf(u8, sentence, differ_in_form);
        try std.testing.expectEqual(case.is_all, more == null);
    }
}

test "a mismatch of objects names the call that their user made, and none of its bytes" {
    var op: session.Operation = undefined;
    op.work = .{ .movement = undefined };
    op.names = .{ .ranks = 2 };
    op.work.movement.memory.arrays = no_arrays;
    op.form = wire.form_object;
    var descriptor: Descriptor = .{
        .kind = .broadcast,
        .dtype = .u8,
        .op = .sum,
        .recovery = .restart,
        .count = 256,
        .root = .from_int(1 << 120),
        .safe_points = 3,
    };
    const Case = struct { kind: wire.control.OpKind, form: u64, words: []const u8 };
    for ([_]Case{
        .{ .kind = .broadcast, .form = 0, .words = "broadcast(256 u8 from peer 01000000)" },
        .{
            .kind = .all_gather,
            .form = wire.form_object,
            .words = "all_gather_object()",
        },
        .{ .kind = .barrier, .form = wire.form_object, .words = "barrier()" },
    }) |case| {
        op.op = .{ .descriptor = descriptor, .chunks = 1 };
        op.op.descriptor.counts = wire.form_object;
        op.status = .mismatch;
        op.failure = .{ .status = .mismatch, .reason = .mismatch };
        op.failure.descriptor = op.op.descriptor;
        descriptor.kind = case.kind;
        descriptor.counts = case.form;
        op.failure.other_descriptor = descriptor;
        descriptor.kind = .broadcast;
        try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
        const sentence = std.mem.span(status.pccl_last_error());
        for ([_][]const u8{
            "broadcast_object (tag 0, ",
            "broadcast_object(from peer 01000000)",
            case.words,
        }) |part| try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
        try std.testing.expectEqual(null, std.mem.indexOf(u8, sentence, differ_in_form));
    }
}

test "a mismatch of shards that are alike says how large one is, as their callers do" {
    const Kind = wire.control.OpKind;
    const Case = struct { kind: Kind, count: u64, dtypes: u32 = 0, words: []const u8 };
    for ([_]Case{
        .{ .kind = .all_gather, .count = 6, .words = "all_gather(3 f32 of each rank)" },
        .{ .kind = .gather, .count = 6, .words = "gather(3 f32 of each rank to peer 01000000)" },
        .{ .kind = .scatter, .count = 6, .words = "scatter(3 f32 for each rank from peer " ++
            "01000000)" },
        .{ .kind = .all_to_all, .count = 12, .words = "all_to_all(3 f32 for each rank)" },
        .{ .kind = .reduce_scatter, .count = 6, .words = "reduce_scatter(sum, 6 f32)" },
        .{
            .kind = .all_gather,
            .count = 6,
            .dtypes = 2,
            .words = "all_gather(6 f32 together, shards of different sizes)",
        },
    }) |case| {
        var descriptor: Descriptor = .{
            .kind = case.kind,
            .dtype = .f32,
            .op = .sum,
            .recovery = .restart,
            .count = case.count,
            .root = .from_int(1 << 120),
            .safe_points = 3,
        };
        descriptor.outline.dtypes = case.dtypes;
        var text: [description_bytes_max]u8 = undefined;
        const shown = describe(descriptor, descriptor, &.{ .ranks = 2 }, &text);
        try std.testing.expectEqualStrings(case.words, shown);
    }
}

test "a mismatch shows every option in which calls can differ, the longest whole" {
    const full: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .bf16,
        .op = .prod,
        .recovery = .resume_chunks,
        .codec = .{ .kind = .fp8_e4m3, .block = .b256, .rounding = .stochastic },
        .plan = .direct,
        .count = base.limits.elements_max,
        .root = .from_int(std.math.maxInt(u128)),
        .safe_points = std.math.maxInt(u64),
    };
    var text: [description_bytes_max]u8 = undefined;
    const whole = "all_reduce(prod, 1099511627776 bf16, recovery resume, codec fp8_e4m3 block " ++
        "256 not rotated stochastic, plan direct, after 18446744073709551615 safe points)";
    try std.testing.expectEqualStrings(whole, describe(full, null, &.{}, &text));
    var other: [description_bytes_max]u8 = undefined;
    inline for (.{ "recovery", "recovery", "codec", "codec", "plan", "safe_points" }, .{
        wire.control.Recovery.restart,
        wire.control.Recovery.raise,
        base.Codec.of(.int8),
        base.Codec.of(.fp8_e4m3),
        base.Plan.ring,
        0,
    }) |field, value| {
        var differs = full;
        @field(differs, field) = value;
        const one = describe(full, differs, &.{}, &text);
        try std.testing.expect(!std.mem.eql(u8, one, describe(differs, full, &.{}, &other)));
    }
    for (std.enums.values(wire.control.OpKind)) |kind| {
        if (kind == full.kind) continue;
        var differs = full;
        differs.kind = kind;
        const one = describe(differs, null, &.{}, &text);
        try std.testing.expect(std.mem.endsWith(u8, one, "safe points)"));
    }
}

test "a mismatch names only the options that its caller has chosen and in which the calls differ" {
    const Case = struct { own: Descriptor, other: Descriptor, words: []const u8 };
    const plain: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .f64,
        .op = .sum,
        .recovery = .restart,
        .count = 1000,
        .safe_points = 25,
    };
    var mean = plain;
    mean.op = .avg;
    mean.recovery = .resume_chunks;
    var careful = plain;
    careful.recovery = .raise;
    var ahead = careful;
    ahead.safe_points = 26;
    var meeting = careful;
    meeting.kind = .barrier;
    var text: [description_bytes_max]u8 = undefined;
    for ([_]Case{
        .{ .own = plain, .other = mean, .words = "all_reduce(sum, 1000 f64)" },
        .{ .own = mean, .other = plain, .words = "all_reduce(avg, 1000 f64)" },
        .{ .own = plain, .other = careful, .words = "all_reduce(sum, 1000 f64)" },
        .{ .own = careful, .other = plain, .words = "all_reduce(sum, 1000 f64, recovery raise)" },
        .{
            .own = ahead,
            .other = careful,
            .words = "all_reduce(sum, 1000 f64, after 26 safe points)",
        },
        .{ .own = meeting, .other = plain, .words = "barrier(recovery raise)" },
        .{ .own = meeting, .other = careful, .words = "barrier()" },
    }) |case| {
        const said = describe(case.own, case.other, &.{}, &text);
        try std.testing.expectEqualStrings(case.words, said);
    }
}
