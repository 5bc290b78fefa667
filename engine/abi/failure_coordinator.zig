//! failure_coordinator: what fails on the way to a coordinator, when one starts to listen, and in
//! its journal (failure.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const net = @import("net");
const protocol = @import("protocol");
const failure = @import("failure.zig");
const StateDir = @import("state_dir.zig").StateDir;
const status = @import("status.zig");
const Error = status.Error;
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
    ports: ?net.socket.PortRange = null,
};

pub fn create(err: net.PeerEngine.Error, place: Place) Error {
    const at = place.address;
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.SystemLimit => failure.system_limit(),
        error.ThreadLimit => failure.thread_limit(),
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
        error.SystemLimit => failure.system_limit(),
        error.ThreadLimit => failure.thread_limit(),
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
        error.Interrupted => failure.interrupted(),
    };
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

/// The options that a coordinator was to start with.
pub const Start = struct {
    own: Own,
    state: ?*const StateDir = null,
    /// The journal's, if the error is about it.
    trouble: net.journal.Trouble = undefined,

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
        error.SystemLimit => failure.system_limit(),
        error.ThreadLimit => failure.thread_limit(),
        error.AddressInUse => if (start.settings()) |settings| fail(
            .system_error,
            "the port of {s} is in use by another program, and the peers of the run in {s} look " ++
                "for their coordinator there: end that program and start again",
            .{ settings.bind.data, start.state.?.path },
        ) else listen(error.AddressInUse, own.bind),
        error.FamilyUnsupported,
        error.AddressNotAvailable,
        error.PermissionDenied,
        => |listen_error| listen(listen_error, own.bind),
        error.NameNotFound, error.NameLookupFailed => listen(error.ListenNameNotFound, own.bind),
        error.BadAddress => bad_address(own) orelse failure.system_limit(),
        error.JournalMoved => fail(
            .invalid_argument,
            "the peers of the run in {s} look for their coordinator at {s}, and this one would " ++
                "be reached at {s}: leave bind and advertise out, or give them as at first, or " ++
                "advertise the old address if it leads here",
            .{
                start.state.?.path,
                start.settings().?.address.data,
                start.trouble.moved.slice(),
            },
        ),
        error.JournalRefused => refused(start.state.?.path, &start.trouble),
        error.JournalFailed => cannot_be_used(start.state.?.path, &start.trouble),
    };
}

// ---- the journal of a coordinator

pub fn open_journal(
    err: net.journal.JournalFile.OpenError,
    path: []const u8,
    trouble: *const net.journal.Trouble,
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

fn cannot_be_used(path: []const u8, trouble: *const net.journal.Trouble) Error {
    return fail(
        .system_error,
        "the state directory {s} cannot be used: {f}",
        .{ path, trouble.system },
    );
}

fn refused(path: []const u8, trouble: *const net.journal.Trouble) Error {
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
    _ = net.address.Endpoint.parse_with_port(own.bind, 0) catch return fail(
        .invalid_argument,
        "bind is \"{s}\", which is not understood: it must be host:port, 1.2.3.4:port or " ++
            "[v6]:port, or one of them without port, which is then any free one",
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
