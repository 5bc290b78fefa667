//! sentence: what an error or a failed operation of the engine means to its caller: a status code,
//! and a sentence that names the peer, the cause and the remedy. Only this file turns errors into
//! codes and words: a new error does not compile until `row` has a sentence for it.
//!
//! In a template `{x}` is a fact: a limit of base/limits.zig, a field of the facts or of one of
//! these fields (`{call.tag}`), or what a function of the facts returns or writes. An unknown fact
//! does not compile.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const protocol = @import("protocol");
const session = @import("session");
const wire = @import("wire");
const status = @import("status.zig");
const Descriptor = wire.control.Descriptor;
const Endpoint = net.address.Endpoint;
const Error = status.Error;
const Status = status.Status;
const Trouble = net.journal.Trouble;
const Writer = std.Io.Writer;

// ---- templates

const Row = struct { Status, []const u8 };

fn usage(template: []const u8) Row {
    return .{ .invalid_usage, template };
}

fn argument(template: []const u8) Row {
    return .{ .invalid_argument, template };
}

fn system(template: []const u8) Row {
    return .{ .system_error, template };
}

fn unreached(template: []const u8) Row {
    return .{ .coordinator_unreachable, template };
}

/// Keeps a sentence for pccl_last_error.
fn say(comptime code: Status, comptime template: []const u8, facts: anytype) Error {
    return status.fail(code, "{f}", .{Filled(template, @TypeOf(facts)){ .facts = facts }});
}

/// Keeps the sentence that `row` has for an error.
fn told(err: anytype, facts: anytype) Error {
    switch (err) {
        inline else => |known| {
            const found: Row = comptime row(known);
            return say(found[0], found[1], facts);
        },
    }
}

/// A template with its facts put in.
fn Filled(comptime template: []const u8, comptime Facts: type) type {
    return struct {
        facts: Facts,

        pub fn format(it: @This(), writer: *Writer) Writer.Error!void {
            @setEvalBranchQuota(10_000);
            comptime var rest = template;
            inline while (comptime std.mem.indexOfScalar(u8, rest, '{')) |open| {
                const end = comptime std.mem.indexOfScalar(u8, rest, '}').?;
                try writer.writeAll(comptime rest[0..open]);
                try put(it.facts, comptime rest[open + 1 .. end], writer);
                rest = comptime rest[end + 1 ..];
            }
            try writer.writeAll(comptime rest);
        }
    };
}

fn put(facts: anytype, comptime name: []const u8, writer: *Writer) Writer.Error!void {
    const Facts = @TypeOf(facts);
    if (@hasDecl(base.limits, name)) return writer.print("{d}", .{@field(base.limits, name)});
    if (comptime std.mem.indexOfScalar(u8, name, '.')) |dot|
        return put(set(@field(facts, name[0..dot])), name[dot + 1 ..], writer);
    if (@typeInfo(Facts) != .@"struct" or !@hasDecl(Facts, name))
        return print(set(@field(facts, name)), writer);
    const function = @field(Facts, name);
    if (@typeInfo(@TypeOf(function)).@"fn".params.len == 2) return function(facts, writer);
    return print(function(facts), writer);
}

/// Unwraps a fact that may be null. A template names a fact that may be null only where it is set.
fn set(fact: anytype) Set(@TypeOf(fact)) {
    return if (@typeInfo(@TypeOf(fact)) == .optional) fact.? else fact;
}

fn Set(comptime Fact: type) type {
    return if (@typeInfo(Fact) == .optional) @typeInfo(Fact).optional.child else Fact;
}

fn print(fact: anytype, writer: *Writer) Writer.Error!void {
    return writer.print(switch (@typeInfo(@TypeOf(fact))) {
        .int, .comptime_int => "{d}",
        .@"enum" => "{t}",
        .@"struct" => "{f}",
        else => "{s}",
    }, .{fact});
}

// ---- errors

const Any = session.CallError || net.Membership.JoinError || net.Membership.AdmitError ||
    net.SharedState.CreateError || net.SharedState.SyncError || net.PeerEngine.Error ||
    net.status_client.Error || net.CoordinatorEngine.Error || net.journal.JournalFile.OpenError ||
    protocol.journal.Error;

/// The status and the sentence of each error. Functions below have further sentences for an error
/// that means several things.
fn row(err: Any) Row {
    return switch (err) {
        error.OutOfMemory => .{ .out_of_memory, status.no_memory },
        error.SystemLimit => system("the operating system has no more descriptors for this " ++
            "process: raise its limit of open files (ulimit -n)"),
        error.ThreadLimit => system("the operating system gives this process no more threads"),
        error.Interrupted => .{ .cancelled, "the call was withdrawn by its `interrupted` " ++
            "function" },
        error.Closed, error.Left => usage("this communicator is closed: connect again"),
        error.Busy => usage("another thread is in {busy}: one call at a time"),

        // ---- groups
        error.AlreadyJoined => usage("this peer is in group \"{name}\" already: use the " ++
            "communicator it has, or close it first"),
        error.NotReady => usage("sub-group \"{name}\" is made of members of an epoch: call " ++
            "admit on this communicator first"),
        error.BadFounders => argument("the founders of sub-group \"{name}\" must be members of " ++
            "the communicator's epoch, this peer among them, each named once"),
        error.NotAdmitted => usage("this peer has not entered the group yet: call admit first"),

        // ---- calls
        error.TagInUse => usage("{operation} with tag {call.tag} is in flight on this " ++
            "communicator: wait for it, or use another tag"),
        error.TooManyOperations => usage("{operations_in_flight_max} operations of this kind " ++
            "are in flight in this group and {operations_queued_max} calls wait for their turn, " ++
            "which is the limit: wait for some of them"),
        error.TooManyGivenUp => unreached("{given_up_max} operations that this peer gave up " ++
            "wait for an answer of the coordinator, which is the limit: call again when it is " ++
            "back"),
        error.TooManyTags => usage("{tag_runs_max} tags far from each other were used since the " ++
            "last new epoch, which is the limit: use tags again, or take the next number for a " ++
            "new one"),
        error.BufferInUse => usage("an operation in flight uses a buffer of this call: wait for " ++
            "it first, or give each its own memory"),
        error.TagReserved => argument("tag {call.tag} belongs to messages or shared states: use " ++
            "one below 254 * 2**56"),
        error.TagTooLarge => argument("tag {call.tag} is too large for {call.part}: use one " ++
            "below 2**38"),
        error.PartnerOutOfRange => argument("there is no rank {call.partner_rank} to {way} in " ++
            "this epoch: it must be below world_size"),
        error.PartnerIsSelf => argument("rank {call.partner_rank} is this peer itself, and " ++
            "there is nobody to {way}: copy the array instead"),
        error.RootOutOfRange => argument("root {call.root_rank} is not a rank of this epoch: it " ++
            "must be below world_size"),
        error.CountsOfAnotherWorld => argument("there are {counts} counts: there must be one " ++
            "for each rank of this epoch"),
        error.OwnCountsDiffer => argument("this rank would send itself another number of " ++
            "elements than it would receive from itself: send_counts and recv_counts must agree " ++
            "there"),
        error.TooManyRanks => usage("{all_to_all} works in a world of at most {ranks_max}: use " ++
            "smaller groups"),
        error.TooManyElements => argument("{elements}; one operation has at most {elements_max} " ++
            "elements, over all ranks"),
        error.TooManyArrays => argument("{call.arrays.len} arrays have too many shards for one " ++
            "operation, which has at most {chunks_max} of all arrays and ranks: call several " ++
            "times, with different tags"),
        error.ArraysOverlap => argument("two buffers of this call overlap, and one of them is " ++
            "written: each must lie apart from all others, save an array and its own result in " ++
            "place"),
        error.SendMissing => argument("the buffer to send is NULL"),
        error.RecvMissing => argument("the buffer to receive is NULL"),
        error.BeyondMemory => argument("{elements}, and so many {dtype} do not fit into memory " ++
            "behind the buffer"),
        error.BuffersOverlap => argument("send_buffer and recv_buffer overlap: {lie_apart}"),
        error.ResidualOverlaps => argument("residual_out overlaps another buffer of the call: " ++
            "what it holds counts only once the operation has succeeded, so it must lie apart"),
        error.ResidualInWritten => argument("residual_in overlaps recv_buffer, which is written"),

        // ---- shared states
        error.NameInUse => usage("this peer has a shared state named \"{name}\" in this group: " ++
            "close it first, or give this one another name, the same on every peer"),
        error.TooManyTensors => argument("a shared state has at most {state_tensors_max} " ++
            "tensors, not {count}"),
        error.TooManyLeaves => argument("the tensors of a shared state have at most " ++
            "{state_leaves_max} leaves of {state_leaf_bytes} bytes together"),
        error.BadName => argument("the name of a tensor must be 1 to {name_bytes_max} bytes of " ++
            "UTF-8, without control characters, line ends and marks that turn the writing"),
        error.DuplicateName => argument("two tensors have the name \"{name}\""),
        error.TooManyDimensions => argument("tensor \"{name}\" has more than " ++
            "{state_dimensions_max} dimensions"),
        error.TooLarge => argument("the shape of tensor \"{name}\" is larger than memory can be"),
        error.NoData => argument("tensor \"{name}\" has elements, but no memory"),
        error.RevisionTooLarge => argument("the revision of a shared state must be below 2**62"),
        error.Overlap => argument("tensor \"{name}\" overlaps another one in memory: each needs " ++
            "its own"),
        error.Ended => .{ .cancelled, "the shared state is closed: make a new one" },

        // ---- the way to a coordinator
        error.Refused => unreached("nothing listens at {at}: connections were refused, one " ++
            "after the other, until the timeout. Start the coordinator there, or check host and " ++
            "port of the token{itself}"),
        error.Unreachable => unreached("the coordinator at {at} did not answer in time: check " ++
            "that the host is up and that no firewall is between"),
        error.NameNotFound => unreached("the host of the coordinator, {at}, is not known here: " ++
            "check the name in the token"),
        error.NameLookupFailed => unreached("the host of the coordinator, {at}, could not be " ++
            "looked up: check the name service of this machine"),
        error.BadAddress => argument("the address of the coordinator, \"{at}\", is not " ++
            "understood: it must be " ++ address_forms),
        error.NotPccl => .{ .version_mismatch, "what listens at {at} is not PCCL: it did not " ++
            "answer as a coordinator does; check host and port{itself}" },
        error.NoAnswer => unreached("what listens at {at} accepted the connection but said " ++
            "nothing: the coordinator or its machine is frozen, or something else listens " ++
            "there; check host and port"),
        error.VersionMismatch => .{ .version_mismatch, "the coordinator at {at} speaks another " ++
            "wire version; this library speaks {wire_version}: use the same release everywhere" },
        error.WrongRun => .{ .authentication_failed, "the coordinator at {at} belongs to " ++
            "another run: get a fresh token from it" },
        error.TurnedAway => usage("the coordinator at {at} turned this peer away: a live peer " ++
            "has the same peer_id"),
        error.RunFull => .{ .deadline_exceeded, "the coordinator at {at} had no room for " ++
            "another peer until the timeout: its run is full ({peers_max} peers), or too many " ++
            "came from this address at once" },
        error.IdHeld => .{ .deadline_exceeded, "the coordinator at {at} keeps this peer_id for " ++
            "a member that is away and may come back, and kept it until the timeout: use " ++
            "another peer_id, or wait for longer" },
        error.AskedTooOften => unreached("the coordinator at {at} has answered this host too " ++
            "often: a large answer comes once a second, so ask again later"),
        error.TimedOut => unreached("the coordinator at {at} accepted the connection but did " ++
            "not answer in time"),

        // ---- listening
        error.FamilyUnsupported => system("this system has no support for addresses like " ++
            "{own.bind}"),
        error.AddressInUse => system("the port of {own.bind} is in use by another program: " ++
            "choose another one, or 0 for any free one"),
        error.AddressNotAvailable => system("{own.bind} is not an address of this machine: bind " ++
            "to one that is, or to 0.0.0.0 for all"),
        error.PermissionDenied => system("listening on {own.bind} is not permitted: choose a " ++
            "port above 1023"),
        error.ListenNameNotFound => system("the host to listen on, {own.bind}, is not known here"),
        error.NoPortFree => system("no port of {own.ports.first}-{own.ports.last} is free to " ++
            "listen on: widen the range (ports, PCCL_PORTS), or end the programs that have them"),

        // ---- the journal of a coordinator
        error.JournalInUse => system("another coordinator is using {path}: end it first, or " ++
            another_directory),
        error.JournalFailed => system("the state directory {path} cannot be used: " ++
            "{trouble.system}"),
        error.JournalMoved => argument("the peers of the run in {path} look for their " ++
            "coordinator at {reached}, and this one would be reached at {moved}: leave bind and " ++
            "advertise out, or give them as at first, or advertise the old address if it leads " ++
            "here"),
        error.NotAJournal => system("{path} holds a file named journal that PCCL did not write: " ++
            "give another directory"),
        error.UnknownVersion => .{ .version_mismatch, "the journal in {path} was written by " ++
            "another version of PCCL: use that version, or " ++ another_directory },
        error.UnknownRecord => .{ .version_mismatch, "the journal in {path} has a record at " ++
            "byte {offset} that this version of PCCL does not know: use the version that wrote " ++
            "it, or " ++ another_directory },
        error.Damaged => system("the journal in {path} is damaged at byte {offset} (a disk that " ++
            "lost or changed bytes, or another program that wrote to it): " ++ another_directory),
        error.BadRecord => system("the journal in {path} has a record at byte {offset} that " ++
            "makes no sense: " ++ another_directory),

        // Functions below have the sentences of these errors.
        error.DeadlineExceeded, error.Failed, error.JournalExposed, error.JournalRefused => //
        unreachable,
    };
}

const address_forms = "host:port, 1.2.3.4:port or [v6]:port";
const another_directory = "give another directory to begin a new run, with whose token the " ++
    "peers then connect";

// ---- any call

pub fn closed() Error {
    return told(error.Closed, .{});
}

pub fn system_limit() Error {
    return told(error.SystemLimit, .{});
}

pub fn forked() Error {
    return say(.invalid_usage, "this handle belongs to the parent of this process: after fork() " ++
        "a child must create its own", .{});
}

// ---- groups

pub fn join(
    err: net.Membership.JoinError,
    failure: *const net.Membership.Failure,
    name: []const u8,
) Error {
    const why = failure.why();
    const facts = .{ .name = name, .why = why };
    return switch (err) {
        error.DeadlineExceeded => if (failure.attendance) |*count|
            too_few_came(name, count)
        else if (why.len > 0)
            say(.deadline_exceeded, late ++ ": {why}", facts)
        else
            say(.deadline_exceeded, late ++ ": fewer than initial_world_size peers came, or no " ++
                "connection to one of them could be made; check that peers can reach each " ++
                "other", facts),
        error.Failed => if (failure.status) |ended| switch (ended) {
            .mismatch => say(.mismatch, "the sub-group was not made: {why}", facts),
            else => membership(ended, why),
        } else say(.invalid_usage, "the coordinator refused group \"{name}\": {why}", facts),
        else => |other| told(other, facts),
    };
}

const late = "group \"{name}\" timed out before it was ready";

/// The sentence for a newcomer whose deadline passed before its group had enough peers to begin.
pub fn too_few_came(name: []const u8, count: *const session.Group.Attendance) Error {
    return say(.deadline_exceeded, "group \"{name}\" timed out before it began: {count.here} of " ++
        "{count.needed} peers are here, counting this one{emptied}. It begins when " ++
        "{count.needed} are: initial_world_size says so, or the variable " ++
        "PCCL_INITIAL_WORLD_SIZE, which pccl run -n N sets to N", .{
        .name = name,
        .count = count.*,
        .emptied = if (count.emptied) ", and all that were in it before are gone" else "",
    });
}

pub fn admit(err: net.Membership.AdmitError) Error {
    const call: session.Call = .{ .kind = .all_reduce, .deadline = 0 };
    return told(err, Asked{ .call = &call, .busy = "admit of this communicator" });
}

pub fn pending(err: session.CallError) Error {
    const call: session.Call = .{ .kind = .all_reduce, .deadline = 0 };
    return switch (err) {
        error.TagInUse => told(error.Busy, .{ .busy = "pending_agreed of this communicator" }),
        else => |other| told(other, Asked{ .call = &call }),
    };
}

pub fn optimize(err: net.Membership.OptimizeError) Error {
    return switch (err) {
        error.DeadlineExceeded => say(.deadline_exceeded, "optimize_topology timed out before " ++
            "the coordinator had answered: it has links probed first, and is perhaps away. " ++
            "Operations go on, and a better plan may still begin: call again, with more time", .{}),
        else => |other| told(other, .{}),
    };
}

/// Begins a sentence about a peer that is no member any more; the reason follows, in the
/// coordinator's words if the coordinator removed this peer.
const removed = "this peer is no longer a member of the group: ";
const too_few = "fewer than min_world_size peers are left in the group";
const admit_equally = "every member must call admit equally often. ";
const connect_again = "Close this communicator and connect again";
/// A coordinator with a state directory goes on with its run; without one it begins a new run.
const start_again = "If it has ended, start it again on the same address (`pccl coordinator " ++
    "--state DIR` goes on with the run) and call again; for another run, or once " ++
    "reconnect_timeout has passed, close this communicator and connect again";

/// The sentence about a peer that is not a member any more, or did not pass a safe point. `said`:
/// the reason in the coordinator's words, if the coordinator removed this peer.
pub fn membership(why: session.Status, said: []const u8) Error {
    const facts = .{ .why = why, .said = said };
    return switch (why) {
        .coordinator_unreachable => say(
            .coordinator_unreachable,
            "the connection to the coordinator was lost. " ++ start_again,
            facts,
        ),
        .expelled => say(.expelled, removed ++ "{said}. " ++ connect_again, facts),
        .deadline_exceeded => if (said.len > 0)
            say(.deadline_exceeded, "timed out: the deadline passed before this safe point, " ++
                "which was not passed: {said}. Then call admit again", facts)
        else
            say(.deadline_exceeded, "timed out: the deadline passed before all members had come " ++
                "to this safe point: " ++ admit_equally ++ "The safe point was not passed; call " ++
                "admit again", facts),
        .too_few_peers => say(.too_few_peers, too_few, facts),
        .cancelled => say(.cancelled, "the communicator was closed meanwhile", facts),
        .mismatch => say(.mismatch, "a member has passed another number of safe points than " ++
            "this one: " ++ admit_equally ++ connect_again, facts),
        .aborted => say(.aborted, "another member gave up this safe point, which nobody has " ++
            "passed: call admit again", facts),
        .ok, .in_doubt, .state_unavailable => say(.aborted, "the safe point failed: {why}", facts),
    };
}

// ---- calls

pub fn begin(err: session.CallError, call: *const session.Call) Error {
    return told(err, Asked{ .call = call });
}

/// The facts of a call that was refused.
const Asked = struct {
    call: *const session.Call,
    busy: []const u8 = "",

    fn operation(it: Asked) []const u8 {
        if (it.call.kind != .send_recv) return "an operation";
        return if (it.call.part == .send) "a message to this rank" else "a message from this rank";
    }

    fn way(it: Asked) []const u8 {
        return if (it.call.part == .send) "send to" else "receive from";
    }

    fn counts(it: Asked) usize {
        return if (it.call.exchanged) |*exchanged| exchanged.send.len else it.call.counts.?.len;
    }

    fn all_to_all(it: Asked) []const u8 {
        return if (it.call.exchanged == null) "all_to_all" else "all_to_all with counts";
    }

    fn ranks_max(it: Asked) u64 {
        return session.all_to_all_ranks_max(it.call.exchanged != null);
    }

    fn dtype(it: Asked) []const u8 {
        return it.call.dtype.name();
    }

    /// Writes how many elements the call has: "count is 7".
    fn elements(it: Asked, writer: *Writer) Writer.Error!void {
        const call = it.call;
        var total: u64 = 0;
        if (call.exchanged) |*exchanged| {
            for (exchanged.send, exchanged.recv) |send, recv| total +|= send +| recv;
        } else if (call.counts) |each| {
            for (each) |count| total +|= count;
        } else if (call.arrays.len == 0) return writer.print("count is {d}", .{call.count});
        for (call.arrays) |*array| total +|= array.count;
        try writer.print("counts are {d} together", .{total});
        if (call.arrays.len > 0) try writer.writeAll(", of each rank's shard if there are any");
    }

    fn lie_apart(it: Asked) []const u8 {
        return switch (it.call.kind) {
            .all_gather => "send_buffer must be this rank's part of recv_buffer, or lie apart",
            .reduce_scatter => "recv_buffer must be this rank's part of send_buffer, or lie apart",
            .scatter => "recv_buffer must be the root's part of send_buffer, or lie apart",
            .gather => "send_buffer must be the root's part of recv_buffer, or lie apart",
            .all_to_all => "they must lie apart",
            .all_reduce, .broadcast, .reduce, .send_recv, .barrier, .sync => "they must be the " ++
                "same, or lie apart",
        };
    }
};

// ---- shared states

/// `name`: the tensor that the error is about, else the state.
pub fn state(err: net.SharedState.CreateError, name: []const u8, count: usize) Error {
    return told(err, .{ .name = name, .count = count });
}

pub fn sync(err: net.SharedState.SyncError) Error {
    return switch (err) {
        error.Failed => error.Failed, // `operation` has said why
        error.TagInUse => say(.invalid_usage, "a sync of a shared state of this name is under " ++
            "way on this communicator", .{}),
        else => |other| told(other, .{ .busy = "sync of this shared state" }),
    };
}

// ---- the way to a coordinator, and listening

pub const Place = struct {
    /// The address of the coordinator.
    at: []const u8,
    own: Own,

    fn wire_version(_: Place) u32 {
        return wire.version;
    }

    /// Ends a sentence about a coordinator that is not found.
    fn itself(place: Place) []const u8 {
        const endpoint = Endpoint.parse(place.at) catch return "";
        return if (!endpoint.is_loopback()) "" else ". That address leads every machine to " ++
            "itself: if the coordinator runs on another machine, start it with the address that " ++
            "peers reach it at (advertise)";
    }
};

/// The options of a peer or a coordinator for its own addresses.
pub const Own = struct {
    bind: []const u8,
    advertise: ?[]const u8 = null,
    /// The ports that a peer may listen on. A coordinator has one port, that of `bind`.
    ports: ?net.socket.PortRange = null,
};

const hung_up = "what listens at {at} closed the connection without an answer: the coordinator " ++
    "ended just then, or something else listens there; check host and port";

pub fn create(err: net.PeerEngine.Error, place: Place) Error {
    return switch (err) {
        error.Closed => say(.coordinator_unreachable, hung_up, place),
        error.BadAddress => bad_address(place.own) orelse told(error.BadAddress, place),
        else => |other| told(other, place),
    };
}

pub fn ask_status(err: net.status_client.Error, at: []const u8) Error {
    const place: Place = .{ .at = at, .own = .{ .bind = at } };
    return switch (err) {
        error.Closed => say(.coordinator_unreachable, hung_up, place),
        error.TurnedAway => say(.coordinator_unreachable, "the coordinator at {at} has no room " ++
            "for another connection just now; ask again later", place),
        else => |other| told(other, place),
    };
}

/// The options with which a coordinator was to start.
pub const Start = struct {
    own: Own,
    /// The state directory.
    path: []const u8 = "",
    /// The settings of the run in the state directory; null: there is no run.
    settings: ?*const protocol.journal.Settings = null,
    /// The trouble with the journal, if the error is about the journal.
    trouble: Trouble = undefined,

    fn bound(start: Start) []const u8 {
        return start.settings.?.bind.data;
    }

    fn reached(start: Start) []const u8 {
        return start.settings.?.address.data;
    }

    fn moved(start: Start) []const u8 {
        return start.trouble.moved.slice();
    }
};

pub fn start_coordinator(err: net.CoordinatorEngine.Error, start: *const Start) Error {
    return switch (err) {
        error.AddressInUse => if (start.settings == null) told(error.AddressInUse, start.*) else //
        say(.system_error, "the port of {bound} is in use by another program, and the peers of " ++
            "the run in {path} look for their coordinator there: end that program and start " ++
            "again", start.*),
        error.NameNotFound, error.NameLookupFailed => told(error.ListenNameNotFound, start.*),
        error.BadAddress => bad_address(start.own) orelse system_limit(),
        error.JournalRefused => refused(start.path, &start.trouble),
        else => |other| told(other, start.*),
    };
}

pub fn open_journal(
    err: net.journal.JournalFile.OpenError,
    path: []const u8,
    trouble: *const Trouble,
) Error {
    return switch (err) {
        error.JournalExposed => status.fail(.system_error, "{f}", .{trouble.exposed.told(path)}),
        error.JournalRefused => refused(path, trouble),
        else => |other| told(other, .{ .path = path, .trouble = trouble }),
    };
}

fn refused(path: []const u8, trouble: *const Trouble) Error {
    const offset = trouble.refused.offset orelse return say(
        .system_error,
        "the journal in {path} contradicts itself: " ++ another_directory,
        .{ .path = path },
    );
    return told(trouble.refused.why, .{ .path = path, .offset = offset });
}

/// Keeps a sentence that quotes the address which is not understood; null if both are understood.
fn bad_address(own: Own) ?Error {
    _ = Endpoint.parse_with_port(own.bind, 0) catch return say(.invalid_argument, "bind is " ++
        "\"{bind}\", which is not understood: it must be " ++ address_forms ++ ", or one of " ++
        "them without port, which is then any free one", own);
    if (can_be_dialed(own.advertise orelse return null)) return null;
    return say(.invalid_argument, "advertise is \"{advertise}\", which nobody can dial: it must " ++
        "be " ++ address_forms ++ ", or one of them without port, which is then the one " ++
        "bound", own);
}

fn can_be_dialed(text: []const u8) bool {
    const port_longest = 65535; // the longest port that may be added
    const endpoint = Endpoint.parse_to_dial(text, port_longest) catch return false;
    return std.fmt.count("{f}", .{endpoint}) <= base.limits.address_bytes_max;
}

// ---- operations

/// Keeps the sentence of a finished operation that has failed.
pub fn operation(op: *const session.Operation) Error {
    const it: Ended = .{ .op = op };
    return switch (op.status) {
        .ok => unreachable, // only a failed operation has a sentence
        .aborted, .mismatch => decided(it),
        .expelled => say(.expelled, "{name}: " ++ removed ++ "{why}. {kept}. " ++
            connect_again, it),
        .in_doubt => if (op.sync() != null)
            say(.in_doubt, "{name} ended without an answer of the coordinator{away}, so the " ++
                "others may have committed it. The tensors are as they were; sync again, which " ++
                "brings this peer to the state of the others", it)
        else
            say(.in_doubt, "{name}{doubtful}{waited} after this peer had voted, so the others " ++
                "may have committed it; resolve its work to know. {kept}", it),
        .deadline_exceeded => if (it.is_message())
            say(.deadline_exceeded, "{name}" ++ timed_out ++ "{waited}. {kept}", it)
        else
            say(.deadline_exceeded, "{name}" ++ timed_out ++ "{waited}. The operation is " ++
                "aborted on every member. {kept}", it),
        .too_few_peers => say(.too_few_peers, "{name}: " ++ too_few ++ ". {kept}", it),
        .coordinator_unreachable => say(
            .coordinator_unreachable,
            "{name}: {lost}. {kept}. " ++ start_again,
            it,
        ),
        .state_unavailable => nobody_holds(it),
        .cancelled => if (op.group.why_removed().len > 0)
            say(.cancelled, "{name} was withdrawn here, and the others go on without this peer. " ++
                "{kept}. " ++ connect_again, it)
        else
            say(.cancelled, "{name} was withdrawn here, by a cancellation, a close, or for lack " ++
                "of memory. {kept}", it),
    };
}

/// Programs look for "timed out", as errors of PyTorch say it.
const timed_out = " timed out: the deadline passed";

fn nobody_holds(it: Ended) Error {
    return say(.state_unavailable, "{name}: nobody holds the shared state: all members that are " ++
        "left only receive, or a holder sent other bytes than it offered (do not write to " ++
        "tensors during a sync){out_of_rule}. " ++ tensors_kept, it);
}

const tensors_kept = "The tensors are as they were";

/// Keeps the sentence of an operation that the coordinator aborted for all members.
fn decided(it: Ended) Error {
    const reason = it.op.failure.reason orelse return if (it.op.status == .aborted)
        say(.aborted, "{name} was aborted. {kept}", it)
    else // Without a reason, the coordinator refused this peer alone; its words name the call.
        say(.mismatch, "{word}: this peer was refused, and is no member any more; the members " ++
            "go on without it: {why}. {arrays}{kept}. Correct that, then connect again", it);
    return switch (reason) {
        .deadline => because(it, "it timed out: the deadline of {peer} passed{waited}; it may " ++
            "be called again"),
        .cancelled => because(it, "{peer} withdrew it; it may be called again"),
        .mismatch => if (it.is_message())
            say(.mismatch, "{name}: the two called different things: {calls}. Both must name as " ++
                "many elements of one dtype, after equally many calls of admit. {kept}", it)
        else
            say(.mismatch, "{name}: the members called different things: {calls}. {arrays}All " ++
                "members must make the same calls in the same order on each tag. {kept}", it),
        .contradiction => say(.mismatch, "{name}: {peer} and {other} made the same call, but " ++
            "cut it into different numbers of chunks: one of them has another build of this " ++
            "library or other settings than this run. {kept}", it),
        .structure => say(.mismatch, "{name}: the shared states of the members differ in " ++
            "structure: {differs}. All members must share the same names, shapes and dtypes", it),
        .state_conflict => say(.mismatch, "{name}: {peer} and {other} both insist on their " ++
            "content (send_only), and it differs: at most one content can be sent. " ++
            tensors_kept, it),
        .state_strategy => say(.mismatch, "{name}: {peer} and {other} both give their content, " ++
            "and one of them sends it (send_only): by the rule one_sender all others must only " ++
            "receive (receive_only). " ++ tensors_kept, it),
        .state_unavailable => nobody_holds(it),
        .digest => because(it, "{peer} and {other} hold different results: its buffer was " ++
            "written while the call ran (by another call in flight?), or one of them has faulty " ++
            "memory or another build of this library"),
        .peer_lost => if (it.is_message())
            because(it, "{peer} has left or was lost: " ++ admit_then ++ "name a rank that is " ++
                "still there. Until then each call that names that one fails")
        else if (it.op.op.descriptor.recovery == .complete)
            because(it, "{peer} has left or was lost and it needs every member (recovery " ++
                "\"complete\"): " ++ admit_then ++ "repeat the call. Until then each such call " ++
                "fails; one with recovery \"restart\" needs the survivors alone")
        else
            because(it, "{peer} has left or was lost, and its recovery is \"raise\"; if you " ++
                "call it again, it runs among the other members"),
        // `peer` need not be the root: it may be a member that made the call after the root was
        // lost.
        .root_lost => because(it, "its root, {root}, has left or was lost{data}: " ++ admit_then ++
            "name a root that is still there. Until then each call with that one fails"),
        .passed => because(it, "{peer} has passed the next safe point without it: call admit " ++
            "and go on from there. Until then each such call fails; between two calls of admit " ++
            "all ranks must make the same calls"),
        .link_broken => because(it, "{link} is broken: nothing came through for the silence " ++
            "limit, and this kind of operation takes no other way (others go around such a link)"),
        .too_few_peers => say(.too_few_peers, "{name}: " ++ too_few ++ ". {kept}", it),
    };
}

const admit_then = "call admit, as all members must, and then ";

fn because(it: Ended, comptime why: []const u8) Error {
    return say(.aborted, "{name} was aborted, because " ++ why ++ ". {kept}", it);
}

/// The facts of an operation that has failed.
const Ended = struct {
    op: *const session.Operation,

    fn is_message(it: Ended) bool {
        return it.op.op.descriptor.kind == .send_recv;
    }

    fn name(it: Ended) session.Operation.Named {
        return it.op.named(&it.op.names);
    }

    /// The operation as its caller names it, without tag and sequence.
    fn word(it: Ended) []const u8 {
        const kind = it.op.op.descriptor.kind;
        const object_name = if (it.op.form == wire.form_object) wire.object_name(kind) else null;
        return object_name orelse @tagName(kind);
    }

    fn peer(it: Ended) session.Names.Who {
        return it.op.names.who(it.op.failure.peer);
    }

    fn other(it: Ended) session.Names.Who {
        return it.op.names.who(it.op.failure.other);
    }

    fn root(it: Ended) session.Names.Who {
        return it.op.names.who(it.op.op.descriptor.root);
    }

    fn data(it: Ended) []const u8 {
        const is_broadcast = it.op.op.descriptor.kind == .broadcast;
        return if (is_broadcast) " and nobody else holds all of its data" else "";
    }

    /// Why the coordinator removed this peer, in the coordinator's words.
    fn why(it: Ended) []const u8 {
        return it.op.group.why_removed();
    }

    fn differs(it: Ended) []const u8 {
        return if (it.op.sync()) |moved| moved.differs() else "";
    }

    /// The state of the memory that the caller gave (docs/internals/PROMISE.md, P3).
    fn kept(it: Ended) []const u8 {
        // The leaves of a state wait apart until the commit, so the tensors are as they were.
        if (it.op.sync() != null) return "The input is as it was";
        const memory = &it.op.work.movement.memory.arrays;
        if (!memory.has_apart()) return "The input is as it was";
        if (it.is_message()) return "Its array may hold a part of the message";
        if (!memory.has_input()) return "The output may hold a part of the result";
        return "The input is as it was; an output apart from it may hold a part of the result";
    }

    fn link(it: Ended, writer: *Writer) Writer.Error!void {
        const broken: ?base.PeerId = if (it.op.unreachable_peer.eql(.none))
            it.op.partner()
        else
            it.op.unreachable_peer;
        const id = broken orelse return writer.print("a link of {f}", .{it.peer()});
        try writer.print("the link between this peer and {f}", .{it.op.names.who(id)});
    }

    fn doubtful(it: Ended) []const u8 {
        const reason = it.op.failure.reason orelse
            return ": the connection to the coordinator was lost";
        return if (reason == .deadline) timed_out else " was withdrawn here";
    }

    fn lost(it: Ended, writer: *Writer) Writer.Error!void {
        try writer.writeAll("the connection to the coordinator was lost");
        const away_ns = it.op.failure.coordinator_away_ns orelse return;
        try writer.print(" {d} s ago", .{away_ns / std.time.ns_per_s});
    }

    /// Writes " (the connection to the coordinator was lost 12 s ago)"; nothing while the
    /// coordinator answers.
    fn away(it: Ended, writer: *Writer) Writer.Error!void {
        const silent_ns = it.op.failure.coordinator_silent_ns;
        if (it.op.failure.coordinator_away_ns != null) {
            try writer.writeAll(" (");
            try it.lost(writer);
            try writer.writeAll(")");
        } else if (silent_ns > 0) try writer.print(
            " (nothing was heard from the coordinator for {d} s)",
            .{silent_ns / std.time.ns_per_s},
        );
    }

    /// Writes what a call waited for whose deadline passed: " (waiting for rank 3, 7f3a01c2, which
    /// has not called it)".
    fn waited(it: Ended, writer: *Writer) Writer.Error!void {
        const op = it.op;
        const failure = &op.failure;
        const names = &op.names;
        if (failure.reason != .deadline) return;
        // No member is blamed: only the coordinator could tell what the members have done.
        if (failure.coordinator_away_ns != null or failure.coordinator_silent_ns > 0)
            return it.away(writer);
        if (op.ended_queued) return writer.print(
            " before its turn came: {d} operations of this kind were in flight in the group, " ++
                "and beyond that members must call them in one order",
            .{base.limits.operations_in_flight_max},
        );
        const missing = &failure.missing;
        const elsewhere = &failure.elsewhere;
        if (missing.is_empty() and elsewhere.count > 0) return writer.print(
            " (all have called it, but {f})",
            .{session.membership.Stuck{ .names = names, .operation = op, .told = elsewhere }},
        );
        if (missing.is_empty()) return writer.print(
            " (probably {s} has not called {s}, or is stuck)",
            .{ if (it.is_message()) "that rank" else "another member", it.called() },
        );
        const waited_ns = op.finished_at -| op.started_at;
        const is_short = waited_ns < std.time.ns_per_s;
        try writer.print(" (waiting for {d} {s} for {f}, which {s} not called {s}{f}{f})", .{
            waited_ns / @as(u64, if (is_short) std.time.ns_per_ms else std.time.ns_per_s),
            if (is_short) "ms" else "s",
            session.membership.Ranks{ .names = names, .operation = op, .ranks = missing },
            if (missing.count() == 1) "has" else "have",
            it.called(),
            session.membership.Outside{
                .names = names,
                .operation = op,
                .ranks = &failure.outside,
            },
            session.membership.Elsewhere{
                .names = names,
                .operation = op,
                .missing = missing,
                .told = elsewhere,
            },
        });
    }

    /// The call that the other members have not made.
    fn called(it: Ended) []const u8 {
        if (!it.is_message()) return "it";
        const roles = &it.op.work.movement.board.ledger.roles;
        return if (roles.rank == roles.pair.src) "recv" else "send";
    }

    /// Writes ", or none brings the revision that is expected (rule successive); this peer brought
    /// 10 …"
    fn out_of_rule(it: Ended, writer: *Writer) Writer.Error!void {
        if (!it.op.op.descriptor.rules.successive) return;
        try writer.writeAll(", or none brings the revision that is expected (rule successive)");
        const moved = it.op.sync() orelse return;
        if (moved.expected == 0) return;
        try writer.print("; this peer brought {d} and expected {d}", .{
            moved.brought,
            moved.expected,
        });
    }

    /// Writes "rank 0 (this peer) all_reduce(sum, 1000 f32), rank 1 (7f3a01c2) barrier()".
    fn calls(it: Ended, writer: *Writer) Writer.Error!void {
        const first = it.op.failure.descriptor;
        const second = it.op.failure.other_descriptor;
        try writer.print("{f} ", .{it.peer()});
        try describe(first, second, &it.op.names, writer);
        try writer.print(", {f} ", .{it.other()});
        try describe(second, first, &it.op.names, writer);
    }

    /// Writes in which array of a list, or in which shard, the two calls of a mismatch differ:
    /// "arrays[1] has 1000 f32 at rank 0 (this peer) and 999 f32 at rank 2 (7f3a01c2). "
    fn arrays(it: Ended, writer: *Writer) Writer.Error!void {
        const op = it.op;
        const first = op.failure.descriptor orelse return;
        const second = op.failure.other_descriptor orelse return;
        // The descriptions of the calls show any other difference.
        const alike = first.kind == second.kind and first.arrays == second.arrays;
        if (!alike) return;
        if (first.uneven and second.uneven) {
            try exchanged(it.peer(), first.count, it.other(), second.counts, writer);
            return exchanged(it.other(), second.count, it.peer(), first.counts, writer);
        }
        if (first.counts == second.counts or first.uneven) return;
        if (session.call.differ_in_form(&first, &second)) {
            // The calls differ in their element types, which the descriptions have already.
            if (!std.mem.eql(u8, wire.dtype_name(&first), wire.dtype_name(&second))) return;
            const is_shape = session.call.differ_in_shape(&first, &second);
            return writer.writeAll(if (is_shape) differ_in_shape else differ_in_form);
        }
        if (!session.call.has_list(&first) or !session.call.has_list(&second)) return;
        const what = if (first.arrays > 0) "arrays" else "counts";
        const found = op.difference() orelse
            return writer.print("More than one of the {s} differ. ", .{what});
        if (found.swapped) |place| return writer.print(
            "{s}[{d}] and {s}[{d}] of one are in each other's place at the other. ",
            .{ what, found.change.index, what, place },
        );
        try writer.print("{s}[{d}] has {d} {s} at {f} and {d} {s} at {f}. ", .{
            what,
            found.change.index,
            found.own.count,
            found.own.dtype.name(),
            if (found.is_peer) it.peer() else it.other(),
            found.change.item.count,
            found.change.item.dtype.name(),
            if (found.is_peer) it.other() else it.peer(),
        });
    }

    /// Writes the counts of one direction of an uneven exchange, if they differ.
    fn exchanged(
        from: session.Names.Who,
        sent: u64,
        to: session.Names.Who,
        wanted: u64,
        writer: *Writer,
    ) Writer.Error!void {
        if (sent == wanted) return;
        try writer.print("{f} sends {d} elements to {f}, whose recv_counts say {d}. ", .{
            from,
            sent,
            to,
            wanted,
        });
    }
};

/// Frontends look for this sentence, and add to it (pccl_py/kit/frontend.py).
const differ_in_form =
    "The arrays of these two differ in name, in structure or in the kind of their elements. ";

/// Frontends add the shapes of their own arrays to this sentence (pccl_py/words.py).
const differ_in_shape =
    "The arrays of these two differ in shape: pass arrays of one shape, or flatten them. ";

/// Writes a call with the options in which the other call differs: "all_reduce(sum, 1000 f32, codec
/// int8)" (engine/wire/described.zig).
fn describe(
    maybe: ?Descriptor,
    other: ?Descriptor,
    names: *const session.Names,
    writer: *Writer,
) Writer.Error!void {
    const descriptor = maybe orelse return writer.writeAll("something else");
    try writer.print("{f}", .{wire.Described(*const session.Names){
        .descriptor = &descriptor,
        .other = if (other) |*it| it else null,
        .names = names,
    }});
}

// ---- tests

const expect = std.testing.expect;
const second_ns = std.time.ns_per_s;

/// Expects that the last sentence has the status of the error, and all these parts.
fn expect_says(code: Status, err: Error, parts: []const []const u8) !void {
    try std.testing.expectEqual(code, status.code(err));
    for (parts) |part| if (!is_said(part)) try std.testing.expectEqualStrings(part, last());
}

fn is_said(part: []const u8) bool {
    return std.mem.indexOf(u8, last(), part) != null;
}

fn last() []const u8 {
    return std.mem.span(status.pccl_last_error());
}

/// Makes `op` an operation that moves nothing, knows no names, and has failed.
fn fail_with(op: *session.Operation, descriptor: Descriptor, failure: protocol.Failure) void {
    op.names = .{};
    op.work = .{ .movement = &op.room };
    op.room.memory.arrays = .{
        .list = &.{},
        .places = &.{},
        .is_kept = &.{},
        .result_bytes = 0,
        .encoded_bytes = 0,
    };
    op.op = .{ .descriptor = descriptor, .chunks = 1 };
    op.status = failure.status;
    op.failure = failure;
}

/// The descriptor of a call of this kind, of 6 elements.
fn called(kind: wire.control.OpKind) Descriptor {
    return .{
        .kind = kind,
        .dtype = .f32,
        .op = .sum,
        .recovery = .restart,
        .count = 6,
        .safe_points = 3,
    };
}

test "no sentence about a group or an operation has a word that only C knows" {
    var group: session.Group = undefined;
    group.removed("it was away");
    for (std.enums.values(session.Status)) |value| {
        try expect_words_of_both_languages(membership(value, "it was away"));
        if (value == .ok) continue;
        var op: session.Operation = undefined;
        fail_with(&op, called(.barrier), .{ .status = value });
        op.group = &group;
        try expect_words_of_both_languages(operation(&op));
    }
    const call: session.Call = .{ .kind = .barrier, .deadline = 0 };
    try expect_words_of_both_languages(admit(error.Busy));
    try expect_words_of_both_languages(begin(error.NotAdmitted, &call));
}

fn expect_words_of_both_languages(err: Error) !void {
    try expect(status.code(err) != .ok);
    for ([_][]const u8{ "pccl_", "_ns", "NULL" }) |word| try expect(!is_said(word));
}

test "a peer that the coordinator removed is told why, in its words" {
    var group: session.Group = undefined;
    group.removed("it was away\x1b");
    var op: session.Operation = undefined;
    op.group = &group;
    fail_with(&op, called(.barrier), .{ .status = .expelled });
    const wanted = "this peer is no longer a member of the group: it was away\\x1b. ";
    try expect_says(.expelled, operation(&op), &.{wanted});
    try expect_says(.expelled, membership(.expelled, group.why_removed()), &.{wanted});
    // The coordinator has refused the call of a newcomer.
    const why = "it called all_gather(999 f32) where the members called all_gather(1000 f32)";
    group.removed(why);
    fail_with(&op, called(.all_gather), .{ .status = .mismatch });
    try expect_says(.mismatch, operation(&op), &.{"go on without it: " ++ why});
}

test "a call whose deadline passed names those it waited for, or says what is probable" {
    var ids: [6]base.PeerId = undefined;
    for (&ids, 0..) |*id, rank| id.* = .from_int(@as(u128, 0x7f3a0100 + rank) << 96);
    var op: session.Operation = undefined;
    op.ids = &ids;
    op.started_at = 5 * second_ns;
    op.finished_at = 12 * second_ns;
    const Case = struct {
        missing: base.Mask,
        outside: base.Mask = .empty,
        wanted: []const u8,
    };
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
        .{
            .missing = .full(6),
            .outside = one,
            .wanted = "which have not called it; rank 3 (node7:42, 7f3a0103) has not " ++
                "entered the epoch, as a member from before does when its program calls admit)",
        },
    }) |case| for ([_]session.Status{ .deadline_exceeded, .aborted, .in_doubt }) |value| {
        fail_with(&op, called(.barrier), .{
            .status = value,
            .reason = .deadline,
            .missing = case.missing,
            .outside = case.outside,
        });
        name_all(&op, ids[0..4]);
        op.names.items[3].label = .shown("node7:42");
        const parts = [_][]const u8{ case.wanted, " timed out: " };
        try expect_says(status.of(value), operation(&op), &parts);
    };
    // The member that a call waited for waits in another call itself.
    fail_with(&op, called(.barrier), .{ .status = .deadline_exceeded, .reason = .deadline });
    name_all(&op, ids[0..3]);
    op.op.epoch = 4;
    op.failure.missing.set(1);
    op.failure.elsewhere.count = 2; // rank 2 has made the call meanwhile
    for (op.failure.elsewhere.items[0..2], 1..) |*waits, rank| waits.* = .{
        .rank = @intCast(rank),
        .kind = .all_gather,
        .op = .{ .tag = 9, .sequence = 2 },
        .waits_for = 0,
        .count = 2,
    };
    try expect_says(.deadline_exceeded, operation(&op), &.{"for rank 1 (7f3a0101), " ++
        "which has not called it; rank 1 (7f3a0101) waits in all_gather (tag 9, sequence 2 of " ++
        "epoch 4) for rank 0 (this peer) and 1 more)"});
}

fn name_all(op: *session.Operation, ids: []const base.PeerId) void {
    op.names.self = ids[0];
    op.names.count = ids.len;
    for (op.names.items[0..ids.len], ids, 0..) |*name, id, rank|
        name.* = .{ .id = id, .rank = @intCast(rank), .label = .{} };
}

test "a group and a safe point whose deadline passed say that they timed out" {
    const code = Status.deadline_exceeded;
    const words = [_][]const u8{"timed out"};
    const count: session.Group.Attendance = .{ .here = 1, .needed = 2, .emptied = false };
    try expect_says(code, membership(late_member, ""), &words);
    try expect_says(code, membership(late_member, "rank 1 must call admit"), &words);
    try expect_says(code, too_few_came("g", &count), &.{ "timed out", "It begins when " ++
        "2 are: initial_world_size says so, or the variable PCCL_INITIAL_WORLD_SIZE" });
    for ([_]?session.Group.Attendance{ null, count }) |attendance| {
        const why: net.Membership.Failure = .{ .status = late_member, .attendance = attendance };
        try expect_says(code, join(error.DeadlineExceeded, &why, "g"), &words);
    }
}

const late_member = session.Status.deadline_exceeded;

test "with the coordinator gone, no member is blamed, and the error says since when" {
    var op: session.Operation = undefined;
    const Case = struct { away_ns: ?u64, wanted: []const u8 };
    for ([_]Case{
        .{ .away_ns = 12 * second_ns, .wanted = "connection to the coordinator was lost 12 s ago" },
        .{ .away_ns = null, .wanted = "nothing was heard from the coordinator for 15 s" },
    }) |case| for ([_]session.Status{ .in_doubt, .deadline_exceeded }) |value| {
        fail_with(&op, called(.barrier), .{
            .status = value,
            .reason = .deadline,
            .missing = .full(3),
            .coordinator_away_ns = case.away_ns,
            .coordinator_silent_ns = 15 * second_ns,
        });
        try expect_says(status.of(value), operation(&op), &.{case.wanted});
        try expect(!is_said("has not called"));
    };
    const gone = session.Status.coordinator_unreachable;
    fail_with(&op, called(.barrier), .{ .status = gone, .coordinator_away_ns = 7 * second_ns });
    try expect_says(status.of(gone), operation(&op), &.{"was lost 7 s ago. "});
}

test "a sync is named by its state, also where others wait in one" {
    var ids: [2]base.PeerId = .{ .from_int(1 << 120), .from_int(2 << 120) };
    var op: session.Operation = undefined;
    op.ids = &ids;
    var moved: session.Sync = undefined;
    op.started_at = 0;
    op.finished_at = second_ns;
    fail_with(&op, called(.sync), .{ .status = .deadline_exceeded, .reason = .deadline });
    op.work = .{ .sync = &moved };
    op.op.epoch = 4;
    op.op.id = .{ .tag = 7, .sequence = 2 };
    const longest = "x" ** base.limits.label_bytes_max;
    op.names = .{ .self = ids[0], .states_count = 2 };
    op.names.states[0] = .{ .tag = 7, .name = .shown("weights") };
    op.names.states[1] = .{ .tag = 9, .name = .shown(longest) };
    op.failure.missing.set(1);
    op.failure.elsewhere.count = 1;
    op.failure.elsewhere.items[0] = .{
        .rank = 1,
        .kind = .sync,
        .op = .{ .tag = 9, .sequence = 0 },
        .waits_for = 0,
        .count = 1,
    };
    try expect_says(.deadline_exceeded, operation(&op), &.{
        "sync of \"weights\" (sequence 2 of epoch 4) timed out: the",
        "waits in sync of \"" ++ longest ++ "\" (sequence 0 ",
    });
}

test "a mismatch names both peers and both calls" {
    var op: session.Operation = undefined;
    fail_with(&op, called(.all_reduce), .{
        .status = .mismatch,
        .reason = .mismatch,
        .peer = .from_int(0xaabbccdd << 96),
        .other = .from_int(0x11223344 << 96),
        .descriptor = called(.all_reduce),
        .other_descriptor = called(.all_reduce),
    });
    op.failure.other_descriptor.?.count = 999;
    op.op.id = .{ .tag = 5, .sequence = 7 };
    const parts = [_][]const u8{ "tag 5", "aabbccdd", "11223344", "6 f32", "999 f32" };
    try expect_says(.mismatch, operation(&op), &parts);
    // The peers agree about the call, but not about its chunks.
    op.failure.reason = .contradiction;
    const chunks = [_][]const u8{ "aabbccdd", "11223344", "chunks" };
    try expect_says(.mismatch, operation(&op), &chunks);
}

test "a mismatch of kinds and shapes says what each has, as far as the form tells it" {
    const Case = struct { form: u64, other: []const u8, more: []const u8 = differ_in_shape };
    for ([_]Case{
        .{ .form = 2 << 32, .other = "all_reduce(sum, 6 f32, rows of 2)" },
        .{ .form = 0, .other = "all_reduce(sum, 6 f32, one dimension)" },
        .{ .form = 9 << 60, .other = "all_reduce(sum, 6 f32, three or more dimensions)" },
        .{ .form = 3 << 32 | 7, .other = "all_reduce(sum, 6 f32)", .more = differ_in_form },
        .{ .form = 2 << 32 | 7, .other = "all_reduce(sum, 6 f32)", .more = differ_in_form },
    }) |case| {
        var own = called(.all_reduce);
        own.counts = 3 << 32;
        // Calls of the same shape do not show their shape.
        const shown = if (case.form >> 32 == 3) "(sum, 6 f32)" else "(sum, 6 f32, rows of 3)";
        try expect_mismatch(own, case.form, &.{ shown, case.other, case.more });
    }
    var bytes = called(.broadcast);
    bytes.dtype = .u8;
    try expect_mismatch(bytes, 7, &.{ "broadcast(6 u8 from", differ_in_form });
    // If the element types differ, no other difference is told.
    try expect_mismatch(bytes, wire.form_bool, &.{ "(6 u8 from", "broadcast(6 bool from" });
    try expect(!is_said(differ_in_form));
}

fn expect_mismatch(own: Descriptor, other_form: u64, parts: []const []const u8) !void {
    var op: session.Operation = undefined;
    fail_with(&op, own, .{ .status = .mismatch, .reason = .mismatch, .descriptor = own });
    op.failure.other_descriptor = own;
    op.failure.other_descriptor.?.counts = other_form;
    try expect_says(.mismatch, operation(&op), parts);
}

test "a mismatch of objects names the call that their user made, and none of its bytes" {
    const Case = struct { kind: wire.control.OpKind, form: u64, words: []const u8 };
    for ([_]Case{
        .{ .kind = .broadcast, .form = 0, .words = "broadcast(6 u8 from peer 01000000)" },
        .{ .kind = .all_gather, .form = wire.form_object, .words = "all_gather_object()" },
        .{ .kind = .barrier, .form = wire.form_object, .words = "barrier()" },
    }) |case| {
        var op: session.Operation = undefined;
        var own = called(.broadcast);
        own.dtype = .u8;
        own.root = .from_int(1 << 120);
        var other = own;
        own.counts = wire.form_object;
        other.kind = case.kind;
        other.counts = case.form;
        fail_with(&op, own, .{
            .status = .mismatch,
            .reason = .mismatch,
            .descriptor = own,
            .other_descriptor = other,
        });
        op.names.ranks = 2;
        op.form = wire.form_object;
        try expect_says(.mismatch, operation(&op), &.{
            "broadcast_object (tag 0, ",
            "broadcast_object(from peer 01000000)",
            case.words,
        });
        try expect(!is_said(differ_in_form));
    }
}

/// The words of a call, beside those of another one (engine/wire/described.zig).
fn described(own: Descriptor, other: ?Descriptor, ranks: usize, room: *[320]u8) []const u8 {
    const names: session.Names = .{ .ranks = ranks };
    return std.fmt.bufPrint(room, "{f}", .{wire.Described(*const session.Names){
        .descriptor = &own,
        .other = if (other) |*it| it else null,
        .names = &names,
    }}) catch unreachable;
}

test "a mismatch of shards that are alike says how large one is, as their callers do" {
    const Case = struct { wire.control.OpKind, u64, u32, []const u8 };
    for ([_]Case{
        .{ .all_gather, 6, 0, "all_gather(3 f32 of each rank)" },
        .{ .gather, 6, 0, "gather(3 f32 of each rank to peer 01000000)" },
        .{ .scatter, 6, 0, "scatter(3 f32 for each rank from peer 01000000)" },
        .{ .all_to_all, 12, 0, "all_to_all(3 f32 for each rank)" },
        .{ .reduce_scatter, 6, 0, "reduce_scatter(sum, 6 f32)" },
        .{ .all_gather, 6, 2, "all_gather(6 f32 together, shards of different sizes)" },
    }) |case| {
        var descriptor = called(case[0]);
        descriptor.count = case[1];
        descriptor.root = .from_int(1 << 120);
        descriptor.outline.dtypes = case[2];
        var room: [320]u8 = undefined;
        try std.testing.expectEqualStrings(case[3], described(descriptor, descriptor, 2, &room));
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
    var room: [320]u8 = undefined;
    const whole = "all_reduce(prod, 1099511627776 bf16, recovery resume, codec fp8_e4m3 block " ++
        "256 not rotated stochastic, plan direct, after 18446744073709551615 safe points)";
    try std.testing.expectEqualStrings(whole, described(full, null, 0, &room));
    var further: [320]u8 = undefined;
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
        const one = described(full, differs, 0, &room);
        try expect(!std.mem.eql(u8, one, described(differs, full, 0, &further)));
    }
    for (std.enums.values(wire.control.OpKind)) |kind| {
        var differs = full;
        differs.kind = kind;
        try expect(std.mem.endsWith(u8, described(differs, null, 0, &room), "safe points)"));
    }
}

test "a mismatch names only the options that its caller has chosen and in which the calls differ" {
    const plain = called(.all_reduce);
    var mean = plain;
    mean.op = .avg;
    mean.recovery = .resume_chunks;
    var careful = plain;
    careful.recovery = .raise;
    var ahead = careful;
    ahead.safe_points = 26;
    var meeting = careful;
    meeting.kind = .barrier;
    var room: [320]u8 = undefined;
    for ([_]struct { Descriptor, Descriptor, []const u8 }{
        .{ plain, mean, "all_reduce(sum, 6 f32)" },
        .{ mean, plain, "all_reduce(avg, 6 f32)" },
        .{ plain, careful, "all_reduce(sum, 6 f32)" },
        .{ careful, plain, "all_reduce(sum, 6 f32, recovery raise)" },
        .{ ahead, careful, "all_reduce(sum, 6 f32, after 26 safe points)" },
        .{ meeting, plain, "barrier(recovery raise)" },
        .{ meeting, careful, "barrier()" },
    }) |case| try std.testing.expectEqualStrings(case[2], described(case[0], case[1], 0, &room));
}
