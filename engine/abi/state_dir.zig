//! state_dir: the directory of a coordinator's journal among its options. It opens the directory,
//! and lets the run in it decide the options that the caller left open. An option that contradicts
//! the run is an error: peers were told one value, and would meet the other. The file:
//! net/journal_file.zig; sentences about it: sentence.zig.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const protocol = @import("protocol");
const argument = @import("argument.zig");
const sentence = @import("sentence.zig");
const status = @import("status.zig");
const CoordinatorOptions = @import("coordinator.zig").CoordinatorOptions;
const JournalFile = net.JournalFile;
const Settings = protocol.journal.Settings;

const gpa = std.heap.c_allocator;

pub const StateDir = struct {
    path: [:0]const u8,
    file: *JournalFile,
    /// The settings of the run that is there already; they refer to bytes of the file.
    settings: ?Settings,
    /// Peers were told the settings, so no option may differ from them.
    is_used: bool,

    /// Null if the options name none.
    pub fn open(path: ?[*:0]const u8) status.Error!?StateDir {
        const dir = try argument.optional_path(path, "state_dir") orelse return null;
        var trouble: net.journal_file.Trouble = undefined;
        const file = JournalFile.open(gpa, dir, &trouble) catch |err|
            return sentence.open_journal(err, dir, &trouble);
        // `open` has read all records.
        return .{
            .path = dir,
            .file = file,
            .settings = protocol.journal.settings_of(file.content()) catch unreachable,
            .is_used = !(protocol.journal.is_unused(file.content()) catch unreachable),
        };
    }

    /// Fills in what the caller left open, and refuses what differs, if a peer has been told
    /// otherwise.
    pub fn settle(
        state: *const StateDir,
        given: *CoordinatorOptions,
        run_id: *base.RunId,
        endpoint: *net.address.Endpoint,
        own: *sentence.Own,
    ) status.Error!void {
        const settings = &(state.settings orelse return);
        inline for (.{
            .{ "min_world_size", "min_world_size" },
            .{ "initial_world_size", "initial_world_size" },
            .{ "lanes_per_link", "lanes" },
            .{ "chunk_bytes", "chunk_bytes" },
            .{ "window_bytes", "windows_bytes" },
            .{ "heartbeat_ns", "heartbeat_ns" },
            .{ "silence_ns", "silence_ns" },
            .{ "prepare_ns", "prepare_ns" },
            .{ "stall_warning_ns", "stall_warning_ns" },
            .{ "stall_ns", "stall_ns" },
        }) |pair| {
            const option = &@field(given, pair[0]);
            const decided = @field(settings, pair[1]);
            if (option.* == 0) option.* = decided;
            if (state.is_used and option.* != decided)
                return state.differs(pair[0], option.*, decided);
        }
        const same = if (given.run_id) |id|
            std.crypto.timing_safe.eql(base.RunId, id.*, settings.run_id)
        else
            true;
        // Whoever knows the rest of an id can join.
        if (state.is_used and !same) return status.fail(
            .invalid_argument,
            "run_id begins with {s}, but {s} holds the run {s}: leave run_id out to go on with " ++
                "that run, or give another directory to begin a new one",
            .{ &base.short_run(given.run_id.?), state.path, &base.short_run(&settings.run_id) },
        );
        if (given.run_id == null) run_id.* = settings.run_id;
        const before = net.address.Endpoint.parse(settings.bind.data) catch {
            const makes_no_sense: net.journal_file.Trouble =
                .{ .refused = .{ .why = error.BadRecord, .offset = null } };
            return sentence.open_journal(
                error.JournalRefused,
                state.path,
                &makes_no_sense,
            );
        };
        if (given.bind == null) {
            endpoint.* = before;
            own.bind = settings.bind.data;
        }
        if (endpoint.port == 0) endpoint.port = before.port;
        if (state.is_used and endpoint.port != before.port)
            return state.differs("the port of bind", endpoint.port, before.port);
        const advertised = settings.advertise.data;
        if (own.advertise == null and advertised.len > 0) own.advertise = advertised;
    }

    fn differs(
        state: *const StateDir,
        comptime name: []const u8,
        given: u64,
        decided: u64,
    ) status.Error {
        const unit = "_ns";
        if (comptime std.mem.endsWith(u8, name, unit)) return state.differs_by(
            name[0 .. name.len - unit.len],
            .{ "{d} s", "{d} s" },
            in_seconds(given),
            in_seconds(decided),
        );
        // No option is 0 here, but the run may have let its links choose.
        if (comptime std.mem.eql(u8, name, "lanes_per_link")) if (decided == 0)
            return state.differs_by(name, .{ "{d}", "{s}" }, given, "auto");
        return state.differs_by(name, .{ "{d}", "{d}" }, given, decided);
    }

    fn differs_by(
        state: *const StateDir,
        comptime name: []const u8,
        comptime formats: [2][]const u8,
        given: anytype,
        decided: anytype,
    ) status.Error {
        return status.fail(
            .invalid_argument,
            name ++ " is " ++ formats[0] ++ ", but the run in {s} was begun with " ++ formats[1] ++
                ": give the same, or leave it out; another directory begins a new run",
            .{ given, state.path, decided },
        );
    }
};

fn in_seconds(duration_ns: u64) f64 {
    return @as(f64, @floatFromInt(duration_ns)) / std.time.ns_per_s;
}
