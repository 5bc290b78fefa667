//! journal: the format of the two files from which a coordinator goes on after it was killed. The
//! journal has the settings of the run, groups, epochs and removals: each record is synced to the
//! disk before a peer is told of it. The log has attempts, decisions and removals: each record is
//! written before a peer is told of it, but not synced, so it survives the end of the process and
//! not a loss of power. Here records become bytes, and bytes that were read back become records. A
//! torn end of a journal is cut off, and any other damage is refused; a log is read up to the first
//! record that is not whole. net/journal.zig reads and writes the files; log.zig knows the meaning
//! of the records. The bytes: docs/internals/PROTOCOL.md.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Bytes = wire.codec.Bytes;
const List = wire.codec.List;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;
const testing = std.testing;

// ---- what is kept

/// The first record of the journal. Peers were told these settings, so they hold after a restart.
pub const Settings = struct {
    run_id: base.RunId,
    lanes: u8,
    chunk_bytes: u32,
    /// Bytes for partial sums of all operations of a peer.
    windows_bytes: u64,
    heartbeat_ns: u64,
    silence_ns: u64,
    prepare_ns: u64,
    stall_warning_ns: u64,
    /// After this time without its call a member is let go; 0: no member is let go for a missing
    /// call.
    stall_ns: u64,
    min_world_size: u32,
    initial_world_size: u32,
    /// The option bind as "host:port", with the port that the coordinator listens on.
    bind: Bytes = .{},
    /// The option advertise; empty: none was given.
    advertise: Bytes = .{},
    /// The address in the token, as "host:port".
    address: Bytes = .{},

    pub const bounds = .{
        .lanes = limits.lanes_per_link_max,
        .chunk_bytes = limits.frame_payload_bytes_max,
        .windows_bytes = limits.windows_bytes_max,
        .heartbeat_ns = limits.interval_ns_max,
        .silence_ns = limits.interval_ns_max,
        .prepare_ns = limits.interval_ns_max,
        .stall_warning_ns = limits.interval_ns_max,
        .stall_ns = limits.interval_ns_max,
        .min_world_size = limits.peers_max,
        .initial_world_size = limits.peers_max,
        .bind = limits.address_bytes_max,
        .advertise = limits.address_bytes_max,
        .address = limits.address_bytes_max,
    };
};

/// A coordinator began to use this journal. `incarnation` counts the coordinators of the run from
/// 1.
pub const Start = struct {
    incarnation: u32,
    /// The largest number of an epoch of groups that have ended.
    ended_epoch: u64,

    pub const bounds = .{
        .incarnation = limits.incarnations_max,
        .ended_epoch = limits.epochs_max,
    };
};

/// A group was made. An earlier group with the same `id` has ended.
pub const GroupMade = struct {
    id: u16,
    name: Bytes,
    initial_world_size: u32,
    /// The group's next epoch has a larger number than this.
    last_epoch: u64,
    /// The group is a sub-group: only its founders enter it (door.zig).
    is_founded: bool = false,

    pub const bounds = .{
        .id = limits.groups_max - 1,
        .name = limits.name_bytes_max,
        .initial_world_size = limits.peers_max,
        .last_epoch = limits.epochs_max,
    };
};

/// An epoch begins. `told`: the message to its members. `instances`: the process of each member, so
/// that no other process can come back as that member. `attempt`: the epoch's attempt at the time
/// when the journal was last written as a whole, because the log may lose its end; 1 in an epoch
/// begun since.
pub const Activation = struct {
    told: wire.control.Activate,
    instances: List(u64),
    attempt: u32 = 1,

    pub const bounds = .{ .instances = limits.peers_max, .attempt = limits.attempts_max };
};

/// A peer was removed from its epochs, from an attempt of each on. One record has all these epochs,
/// because a write may be torn anywhere. A record without epochs keeps only the reason.
pub const Removal = struct {
    group: u16,
    peer: PeerId,
    epochs: List(From),
    /// The reason, for a peer that comes back. Empty: another record has it.
    why: Bytes = .{},

    pub const bounds = .{
        .group = limits.groups_max - 1,
        .epochs = 2,
        .why = limits.removal_why_bytes_max,
    };
};
pub const From = struct {
    epoch: u64,
    attempt: u32,

    pub const bounds = .{ .epoch = .any, .attempt = .any };
};

/// A record of the log: an epoch begins an attempt.
pub const Attempt = struct {
    group: u16,
    epoch: u64,
    attempt: u32,
    /// The number of the epoch's last decision before the attempt; 0: there was none.
    decision: u64,

    pub const bounds = .{
        .group = limits.groups_max - 1,
        .epoch = .any,
        .attempt = limits.attempts_max,
        .decision = .any,
    };
};

pub const Record = union(enum(u16)) {
    settings: Settings = 1,
    start: Start,
    group: GroupMade,
    activation: Activation,
    removal: Removal,
    // Records of the log:
    attempt: Attempt,
    commit: wire.control.Commit,
    abort: wire.control.Abort,

    const Files = struct { journal: bool, log: bool };

    fn files(record: *const Record) Files {
        return switch (record.*) {
            .settings, .start, .group, .activation => .{ .journal = true, .log = false },
            .removal => .{ .journal = true, .log = true },
            .attempt, .commit, .abort => .{ .journal = false, .log = true },
        };
    }
};

// ---- where it is kept

/// The two files, as the coordinator uses them: net/journal.zig, or a simulated disk. Each write to
/// the journal has a number, one larger than the last. The driver answers it later, in the order of
/// numbers, by Coordinator.journal_written or journal_failed. After a failure all appends fail,
/// until `replace` writes the whole journal anew. The functions for the log return when the log is
/// written.
pub const Journal = struct {
    ctx: *anyopaque,
    vtable: *const VTable,

    pub const VTable = struct {
        /// Replaces the journal by these bytes, which are synced when it returns. `begin` is called
        /// once, before the other functions.
        begin: *const fn (ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void,
        /// Queues bytes to append to the journal; the answer comes later. An error: the bytes were
        /// not queued.
        append: *const fn (
            ctx: *anyopaque,
            number: u64,
            bytes: []const u8,
        ) error{JournalFailed}!void,
        /// Queues the atomic replacement of the journal by these bytes; the answer comes later.
        /// Appends that still wait in the queue need not be written.
        replace: *const fn (
            ctx: *anyopaque,
            number: u64,
            bytes: []const u8,
        ) error{JournalFailed}!void,
        /// Appends to the log before it returns. After an error the log takes nothing before
        /// `log_anew`.
        log: *const fn (ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void,
        /// Replaces the log by these bytes before it returns.
        log_anew: *const fn (ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void,
        /// Names the step that failed last, for people.
        why: *const fn (ctx: *anyopaque) []const u8 = untold,
    };

    pub fn begin(journal: Journal, bytes: []const u8) error{JournalFailed}!void {
        return journal.vtable.begin(journal.ctx, bytes);
    }

    pub fn append(journal: Journal, number: u64, bytes: []const u8) error{JournalFailed}!void {
        return journal.vtable.append(journal.ctx, number, bytes);
    }

    pub fn replace(journal: Journal, number: u64, bytes: []const u8) error{JournalFailed}!void {
        return journal.vtable.replace(journal.ctx, number, bytes);
    }

    pub fn log(journal: Journal, bytes: []const u8) error{JournalFailed}!void {
        return journal.vtable.log(journal.ctx, bytes);
    }

    pub fn log_anew(journal: Journal, bytes: []const u8) error{JournalFailed}!void {
        return journal.vtable.log_anew(journal.ctx, bytes);
    }

    pub fn why(journal: Journal) []const u8 {
        return journal.vtable.why(journal.ctx);
    }

    fn untold(_: *anyopaque) []const u8 {
        return "it cannot be written";
    }
};

// ---- bytes

pub const version: u32 = 7;
const magic = "PCCLJRNL";
pub const header_bytes = magic.len + 8;

/// The first bytes of journal and log: magic, version, CRC-32 of both.
pub const header: [header_bytes]u8 = header_of(version);

/// The values of the first and the last byte of a record. One flipped bit makes neither byte zero,
/// so a zero there shows that the disk never wrote that part of the record.
const mark_begin: u8 = 0xd7;
const mark_end: u8 = 0x9b;
/// The head of a record: mark, number, length of the body, CRC-32 of these.
const head_bytes = 11;
const head_sum_at = head_bytes - 4;
/// The tail of a record: CRC-32 of head and body, mark.
const tail_bytes = 5;
const activation_bytes_max = 2 + 4 * 8 + 4 + 2 * (4 + limits.peers_max * @sizeOf(PeerId)) +
    4 + limits.peers_max * @sizeOf(u64) + 4;
pub const record_bytes_max = head_bytes + activation_bytes_max + tail_bytes;
/// The longest record of the log: a removal, or an abort with the two calls of a mismatch.
pub const log_record_bytes_max = head_bytes + tail_bytes + 128 +
    @max(limits.removal_why_bytes_max, 2 * wire.control.descriptor_bytes);
/// The bytes that a disk writes wholly or not at all. No record has so many zero bytes in a row:
/// records with a name are shorter, an address has no zero byte, members have different ids, and no
/// `instances` entry is 0.
const sector_bytes = 512;

comptime {
    std.debug.assert(@sizeOf(Settings) + limits.name_bytes_max < sector_bytes);
    std.debug.assert(@sizeOf(Settings) < sector_bytes);
    std.debug.assert(@popCount(mark_begin) > 1 and @popCount(mark_end) > 1);
}

/// The length of the first record in these bytes; the length of all bytes if that record is not
/// whole.
pub fn record_length(bytes: []const u8) usize {
    if (bytes.len < head_bytes) return bytes.len;
    const body_bytes: usize = std.mem.readInt(u32, bytes[3..7], .little);
    return @min(bytes.len, head_bytes + body_bytes + tail_bytes);
}

fn header_of(number: u32) [header_bytes]u8 {
    var bytes: [header_bytes]u8 = undefined;
    bytes[0..magic.len].* = magic.*;
    std.mem.writeInt(u32, bytes[magic.len..][0..4], number, .little);
    @setEvalBranchQuota(10_000);
    const sum = std.hash.Crc32.hash(bytes[0 .. header_bytes - 4]);
    std.mem.writeInt(u32, bytes[header_bytes - 4 ..][0..4], sum, .little);
    return bytes;
}

/// Encodes one record. error.TooLong: `bytes` is too small; `record_bytes_max` is enough for any
/// record within the limits.
pub fn encode(record: Record, bytes: []u8) wire.codec.Error![]u8 {
    var writer: wire.codec.Writer = .{ .bytes = bytes };
    try writer.put(&@as([head_bytes]u8, @splat(0)));
    switch (record) {
        inline else => |body| try wire.codec.write(@TypeOf(body), body, &writer),
    }
    bytes[0] = mark_begin;
    std.mem.writeInt(u16, bytes[1..3], @intFromEnum(record), .little);
    std.mem.writeInt(u32, bytes[3..7], @intCast(writer.offset - head_bytes), .little);
    sign_head(bytes[0..head_bytes]);
    var tail: [tail_bytes]u8 = undefined;
    const sum = std.hash.Crc32.hash(bytes[0..writer.offset]);
    std.mem.writeInt(u32, tail[0..4], sum, .little);
    tail[4] = mark_end;
    try writer.put(&tail);
    return bytes[0..writer.offset];
}

fn sign_head(head: *[head_bytes]u8) void {
    const sum = std.hash.Crc32.hash(head[0..head_sum_at]);
    std.mem.writeInt(u32, head[head_sum_at..], sum, .little);
}

/// Several records as bytes: a whole file, which begins with `header`, or one append.
pub const Image = struct {
    list: std.ArrayList(u8) = .empty,

    pub fn deinit(image: *Image, gpa: std.mem.Allocator) void {
        image.list.deinit(gpa);
    }

    pub fn begin_file(image: *Image, gpa: std.mem.Allocator) error{OutOfMemory}!void {
        image.list.clearRetainingCapacity();
        try image.list.appendSlice(gpa, &header);
    }

    pub fn add(
        image: *Image,
        gpa: std.mem.Allocator,
        record: Record,
    ) (error{OutOfMemory} || wire.codec.Error)!void {
        try image.list.ensureUnusedCapacity(gpa, record_bytes_max);
        image.list.items.len += (try encode(record, image.list.unusedCapacitySlice())).len;
    }

    pub fn bytes(image: *const Image) []const u8 {
        return image.list.items;
    }
};

pub const Error = error{
    /// The file does not begin with `magic`.
    NotAJournal,
    UnknownVersion,
    /// Bytes differ from those that were written.
    Damaged,
    /// A record is whole, and this version does not know its kind.
    UnknownRecord,
    BadRecord,
};

/// Reads a journal back. Records refer to `bytes`. Any bytes give records, and then the end or an
/// error.
pub const Replay = struct {
    bytes: []const u8,
    /// The length of the header and of the records read so far. After the last record appending
    /// goes on here; after an error the damage begins here. 0: the file needs a new header.
    good_bytes: usize = 0,
    records: usize = 0,

    pub fn init(bytes: []const u8) Replay {
        return .{ .bytes = bytes };
    }

    /// The number of bytes at the end of the file from a write that never finished. Valid after
    /// `next` gave null.
    pub fn cut_bytes(replay: *const Replay) usize {
        return replay.bytes.len - replay.good_bytes;
    }

    pub fn next(replay: *Replay) Error!?Record {
        if (replay.good_bytes == 0) {
            if (!try check_header(replay.bytes)) return null;
            replay.good_bytes = header_bytes;
        }
        const rest = replay.bytes[replay.good_bytes..];
        switch (frame(rest)) {
            .whole => |framed| {
                const record = try decode(framed.number, framed.body);
                // The settings are the first record of a journal, and no later one.
                if ((replay.records == 0) != (record == .settings)) return error.BadRecord;
                if (!record.files().journal) return error.BadRecord;
                replay.records += 1;
                replay.good_bytes += framed.bytes;
                return record;
            },
            .short => if (has_record(rest)) return error.Damaged else return null,
            .bad_head => if (replay.head_is_unwritten()) return null else return error.Damaged,
            .bad_body => |bytes| {
                return if (replay.body_is_unwritten(bytes)) null else error.Damaged;
            },
        }
    }

    /// Whether a sector with a part of the record's head was never written: all bytes of that
    /// sector in the file are zero. The length of the record is not known.
    fn head_is_unwritten(replay: *const Replay) bool {
        const at = replay.good_bytes;
        const rest = replay.bytes[at..];
        const written = std.mem.trimEnd(u8, rest, &.{0});
        if (written.len == 0) return true;
        if (written.len > record_bytes_max or has_record(written)) return false;
        if (written.len < head_bytes) return true;
        const boundary = std.mem.alignForward(usize, at + 1, sector_bytes) - at;
        if (all_zero(rest[0..@min(boundary, rest.len)])) return true;
        if (boundary >= head_bytes) return false;
        return all_zero(rest[boundary..@min(boundary + sector_bytes, rest.len)]);
    }

    /// Whether a sector of the record was never written, and all bytes after the record are zero.
    fn body_is_unwritten(replay: *const Replay, record_bytes: usize) bool {
        const at = replay.good_bytes;
        const record = replay.bytes[at..][0..record_bytes];
        if (!all_zero(replay.bytes[at + record_bytes ..])) return false;
        if (record[record_bytes - 1] == 0) return true;
        var sector = std.mem.alignForward(usize, at, sector_bytes) - at;
        while (sector + sector_bytes <= record_bytes) : (sector += sector_bytes) {
            if (all_zero(record[sector..][0..sector_bytes])) return true;
        }
        return false;
    }
};

/// Reads a log back, up to the first record that is not whole. A coordinator that was killed has
/// told peers of no decision after that record; a coordinator whose machine lost power may have.
pub const LogReplay = struct {
    rest: []const u8,

    pub fn init(bytes: []const u8) LogReplay {
        const is_log = std.mem.startsWith(u8, bytes, &header);
        return .{ .rest = if (is_log) bytes[header_bytes..] else &.{} };
    }

    pub fn next(replay: *LogReplay) ?Record {
        switch (frame(replay.rest)) {
            .whole => |framed| {
                const record = decode(framed.number, framed.body) catch return null;
                if (!record.files().log) return null;
                replay.rest = replay.rest[framed.bytes..];
                return record;
            },
            .short, .bad_head, .bad_body => return null,
        }
    }
};

/// The settings of a journal; null if they were never written whole.
pub fn settings_of(bytes: []const u8) Error!?Settings {
    var replay: Replay = .init(bytes);
    const first = try replay.next() orelse return null;
    return first.settings;
}

/// Whether no group of the run has had an epoch, so that no member relies on the settings. Peers
/// may wait for a first epoch.
pub fn is_unused(bytes: []const u8) Error!bool {
    var replay: Replay = .init(bytes);
    while (try replay.next()) |entry| switch (entry) {
        .settings => {},
        .start => |body| if (body.ended_epoch > 0) return false,
        .group => |body| if (body.last_epoch > 0) return false,
        else => return false,
    };
    return true;
}

/// Checks the header of a journal. False: it was not written, or only in part.
fn check_header(bytes: []const u8) Error!bool {
    if (bytes.len < header_bytes) {
        return if (std.mem.startsWith(u8, &header, bytes)) false else error.NotAJournal;
    }
    if (!std.mem.startsWith(u8, bytes, magic)) return error.NotAJournal;
    const found = std.mem.readInt(u32, bytes[magic.len..][0..4], .little);
    if (!std.mem.eql(u8, bytes[0..header_bytes], &header_of(found))) return error.Damaged;
    if (found != version) return error.UnknownVersion;
    return true;
}

const Framed = union(enum) {
    whole: struct { number: u16, body: []const u8, bytes: usize },
    /// The file ends inside the record.
    short,
    /// The head is not whole, so the length is not known.
    bad_head,
    /// The head is whole and the rest is not; this is the length of the record.
    bad_body: usize,
};

fn frame(rest: []const u8) Framed {
    if (rest.len < head_bytes) return .short;
    var head = rest[0..head_bytes].*;
    sign_head(&head);
    if (rest[0] != mark_begin or !std.mem.eql(u8, &head, rest[0..head_bytes])) return .bad_head;
    const body_bytes = std.mem.readInt(u32, rest[3..7], .little);
    if (body_bytes > record_bytes_max - head_bytes - tail_bytes) return .bad_head;
    const end = head_bytes + body_bytes + tail_bytes;
    if (rest.len < end) return .short;
    const sum = std.mem.readInt(u32, rest[end - tail_bytes ..][0..4], .little);
    const good = rest[end - 1] == mark_end and
        sum == std.hash.Crc32.hash(rest[0 .. end - tail_bytes]);
    if (!good) return .{ .bad_body = end };
    return .{ .whole = .{
        .number = std.mem.readInt(u16, rest[1..3], .little),
        .body = rest[head_bytes..][0..body_bytes],
        .bytes = end,
    } };
}

/// Whether a whole record lies in these bytes. If so, the record before them, which is not whole,
/// was whole before and is damaged now.
fn has_record(bytes: []const u8) bool {
    for (0..bytes.len) |index| if (frame(bytes[index..]) == .whole) return true;
    return false;
}

fn decode(number: u16, body: []const u8) Error!Record {
    const kind = std.enums.fromInt(std.meta.Tag(Record), number) orelse return error.UnknownRecord;
    var reader: wire.codec.Reader = .{ .bytes = body };
    const record: Record = switch (kind) {
        inline else => |tag| @unionInit(
            Record,
            @tagName(tag),
            wire.codec.read(@FieldType(Record, @tagName(tag)), &reader) catch
                return error.BadRecord,
        ),
    };
    if (reader.offset != body.len or !is_sensible(&record)) return error.BadRecord;
    return record;
}

/// Checks the rules on a record that bounds of single fields (wire/codec.zig) cannot express.
fn is_sensible(record: *const Record) bool {
    return switch (record.*) {
        .settings, .start, .removal, .attempt, .commit, .abort => true,
        .group => |*group| group.name.data.len > 0,
        .activation => |*it| it.told.members.count > 0 and
            it.told.joined <= it.told.members.count and
            it.instances.count == it.told.members.count and
            it.told.epoch <= limits.epochs_max,
    };
}

fn all_zero(bytes: []const u8) bool {
    return std.mem.allEqual(u8, bytes, 0);
}

// ---- tests

const test_settings: Settings = .{
    .run_id = @splat(7),
    .lanes = 2,
    .chunk_bytes = 1 << 18,
    .windows_bytes = 1 << 28,
    .heartbeat_ns = 500,
    .silence_ns = 5000,
    .prepare_ns = 30_000,
    .stall_warning_ns = 10_000,
    .stall_ns = 120_000,
    .min_world_size = 1,
    .initial_world_size = 3,
    .bind = .of("127.0.0.1:4711"),
    .advertise = .of("localhost"),
    .address = .of("localhost:4711"),
};

/// A journal of every kind of record, the last of which spans several sectors.
const Sample = struct {
    image: Image = .{},
    /// Where each record ends; the first is the header.
    ends: [10]usize = undefined,
    count: usize = 0,
    members: [100]PeerId = undefined,

    fn init(sample: *Sample) !void {
        sample.* = .{};
        errdefer sample.deinit();
        for (&sample.members, 1..) |*id, index| id.* = .from_int(@as(u128, index) << 100 | index);
        try sample.image.begin_file(testing.allocator);
        sample.mark();
        try sample.add(.{ .settings = test_settings });
        try sample.add(.{ .start = .{ .incarnation = 1, .ended_epoch = 3 } });
        const long_name: Bytes = .of("train" ** 50);
        for ([_]u16{ 0, 1 }) |id| try sample.add(.{ .group = .{
            .id = id,
            .name = long_name,
            .initial_world_size = 4 * @as(u32, id),
            .last_epoch = 9 * @as(u64, id),
        } });
        try sample.add(.{ .activation = activation(sample.members[0..3], &.{}) });
        try sample.add(.{ .removal = .{
            .group = 0,
            .peer = sample.members[1],
            .epochs = .of(&.{.{ .epoch = 1, .attempt = 2 }}),
            .why = .of("it left"),
        } });
        try sample.add(.{ .activation = activation(&sample.members, sample.members[1..2]) });
    }

    fn deinit(sample: *Sample) void {
        sample.image.deinit(testing.allocator);
    }

    fn add(sample: *Sample, record: Record) !void {
        try sample.image.add(testing.allocator, record);
        sample.mark();
    }

    fn mark(sample: *Sample) void {
        sample.ends[sample.count] = sample.image.bytes().len;
        sample.count += 1;
    }

    /// Reads `bytes` and demands that each record is the one that was written.
    fn replay(sample: *const Sample, bytes: []const u8) !Replay {
        var it: Replay = .init(bytes);
        var again: [record_bytes_max]u8 = undefined;
        var from: usize = header_bytes;
        while (try it.next()) |record| {
            const encoded = try encode(record, &again);
            const original = sample.image.bytes()[from..][0..encoded.len];
            try testing.expectEqualSlices(u8, original, encoded);
            from += encoded.len;
            try testing.expectEqual(from, it.good_bytes);
        }
        return it;
    }

    /// The length of the whole records in the first `size` bytes.
    fn whole(sample: *const Sample, size: usize) usize {
        var good: usize = 0;
        for (sample.ends[0..sample.count]) |end| {
            if (end <= size) good = end;
        }
        return good;
    }
};

fn activation(members: []const PeerId, left: []const PeerId) Activation {
    return .{
        .told = .{
            .group = 0,
            .round = 2,
            .epoch = 1,
            .safe_point = 0,
            .members = .of(members),
            .joined = 1,
            .left = .of(left),
        },
        .instances = .of(test_instances[0..members.len]),
    };
}

const test_instances: [limits.peers_max]u64 = @splat(1 << 63);

const test_commit: wire.control.Commit = .{
    .group = 0,
    .epoch = 1,
    .op = .{ .tag = 7, .sequence = 1 },
    .attempt = 2,
    .digest = 3,
    .decision = 4,
};
const test_abort: wire.control.Abort = .{
    .group = 0,
    .epoch = 1,
    .op = .{ .tag = 7, .sequence = 2 },
    .reason = .deadline,
    .peer = .none,
    .other = .none,
    .descriptor = .blank,
    .other_descriptor = .blank,
    .decision = 5,
};

test "a journal is read back, and its settings are found" {
    var sample: Sample = undefined;
    try sample.init();
    defer sample.deinit();
    const it = try sample.replay(sample.image.bytes());
    try testing.expectEqual(sample.image.bytes().len, it.good_bytes);
    try testing.expectEqual(0, it.cut_bytes());
    const settings = (try settings_of(sample.image.bytes())).?;
    try testing.expectEqualStrings("localhost:4711", settings.address.data);
    try testing.expectEqualStrings("127.0.0.1:4711", settings.bind.data);
    try testing.expectEqualStrings("localhost", settings.advertise.data);
    try testing.expectEqual(null, try settings_of(""));
}

test "a run is unused until a group has had an epoch" {
    const starts = [_]Start{
        .{ .incarnation = 1, .ended_epoch = 0 },
        .{ .incarnation = 2, .ended_epoch = 1 },
    };
    const made: GroupMade = .{
        .id = 0,
        .name = .of("g"),
        .initial_world_size = 1,
        .last_epoch = 0,
    };
    var had_one = made;
    had_one.last_epoch = 7;
    const members = [_]PeerId{.from_int(1)};
    for ([_]struct { ?Record, bool }{
        .{ null, true },
        .{ .{ .start = starts[1] }, false },
        .{ .{ .group = made }, true },
        .{ .{ .group = had_one }, false },
        .{ .{ .activation = activation(&members, &members) }, false },
    }) |case| {
        const more, const expected = case;
        var image: Image = .{};
        defer image.deinit(testing.allocator);
        try testing.expect(try is_unused(image.bytes()));
        try image.begin_file(testing.allocator);
        try image.add(testing.allocator, .{ .settings = test_settings });
        try image.add(testing.allocator, .{ .start = starts[0] });
        if (more) |record| try image.add(testing.allocator, record);
        try testing.expectEqual(expected, try is_unused(image.bytes()));
    }
}

test "the largest activation fits" {
    var members: [limits.peers_max]PeerId = undefined;
    for (&members, 1..) |*id, index| id.* = .from_int(index);
    var bytes: [record_bytes_max]u8 = undefined;
    const record: Record = .{ .activation = activation(&members, &members) };
    try testing.expectEqual(record_bytes_max, (try encode(record, &bytes)).len);
    try testing.expectError(error.TooLong, encode(record, bytes[1..]));
}

test "a log that ends anywhere, or has any bit changed, gives the records before" {
    var image: Image = .{};
    defer image.deinit(testing.allocator);
    try image.begin_file(testing.allocator);
    var ends: [4]usize = undefined;
    ends[0] = image.bytes().len;
    for ([_]Record{
        .{ .attempt = .{ .group = 0, .epoch = 1, .attempt = 2, .decision = 3 } },
        .{ .commit = test_commit },
        .{ .abort = test_abort },
    }, ends[1..]) |record, *end| {
        try image.add(testing.allocator, record);
        end.* = image.bytes().len;
    }
    const whole = image.list.items;
    var replay: LogReplay = .init(whole);
    try testing.expectEqual(2, replay.next().?.attempt.attempt);
    try testing.expectEqualDeep(test_commit, replay.next().?.commit);
    try testing.expectEqualDeep(test_abort, replay.next().?.abort);
    try testing.expectEqual(null, replay.next());
    for (0..whole.len) |size| try expect_records_before(&ends, whole[0..size], size);
    for (0..8 * whole.len) |place| {
        const mask = @as(u8, 1) << @intCast(place % 8);
        whole[place / 8] ^= mask;
        defer whole[place / 8] ^= mask;
        try expect_records_before(&ends, whole, place / 8);
    }
}

/// Expects the records that end before the byte `good`, the first that is missing or wrong.
fn expect_records_before(ends: []const usize, log: []const u8, good: usize) !void {
    var replay: LogReplay = .init(log);
    var count: usize = 0;
    while (replay.next()) |_| count += 1;
    var wanted: usize = 0;
    for (ends[1..]) |end| wanted += @intFromBool(end <= good);
    try testing.expectEqual(if (good < ends[0]) 0 else wanted, count);
}

test "a record of the journal ends a log" {
    var image: Image = .{};
    defer image.deinit(testing.allocator);
    try image.begin_file(testing.allocator);
    try image.add(testing.allocator, .{ .start = .{ .incarnation = 1, .ended_epoch = 0 } });
    try image.add(testing.allocator, .{ .commit = test_commit });
    var replay: LogReplay = .init(image.bytes());
    try testing.expectEqual(null, replay.next());
}

test "a journal that ends anywhere, in nothing or in zeros, gives the records before" {
    // Goal: whatever a crash leaves of the last write costs no earlier record. Method: the journal
    // cut at every length, as it is, filled with zeros to its old length, and far beyond.
    var sample: Sample = undefined;
    try sample.init();
    defer sample.deinit();
    const whole = sample.image.bytes();
    var file: [16 * 1024]u8 = undefined;
    for (0..whole.len + 1) |size| {
        const cut = try sample.replay(whole[0..size]);
        try testing.expectEqual(sample.whole(size), cut.good_bytes);
        if (size < header_bytes) continue; // a header is written whole, by replace
        @memset(&file, 0);
        @memcpy(file[0..size], whole[0..size]);
        // Bytes of the journal that are zero need not be written.
        var written = size;
        while (written < whole.len and whole[written] == 0) written += 1;
        for ([_]usize{ whole.len, file.len }) |length| {
            const zeros = try sample.replay(file[0..length]);
            try testing.expectEqual(sample.whole(written), zeros.good_bytes);
            try testing.expectEqual(length - zeros.good_bytes, zeros.cut_bytes());
        }
    }
}

test "sectors of the last record that were not written cut it off, wherever it begins" {
    // Method: the last record at every place relative to the sectors, and each set of its sectors
    // unwritten, in a file that ends with it or in zeros.
    var members: [70]PeerId = undefined;
    for (&members, 1..) |*id, index| id.* = .from_int(@as(u128, index) << 64 | index);
    const last: Record = .{ .activation = activation(&members, &.{}) };
    var name: [limits.name_bytes_max]u8 = @splat('n');
    var image: Image = .{};
    defer image.deinit(testing.allocator);
    for (0..sector_bytes) |shift| {
        try image.begin_file(testing.allocator);
        try image.add(testing.allocator, .{ .settings = test_settings });
        for (0..3) |part| {
            const length = (shift + part) / 3 + 1;
            const group: GroupMade = .{
                .last_epoch = 0,
                .id = 1,
                .name = .of(name[0..length]),
                .initial_world_size = 0,
            };
            try image.add(testing.allocator, .{ .group = group });
        }
        const at = image.bytes().len;
        try image.add(testing.allocator, last);
        const whole = image.bytes();
        const first_sector = at / sector_bytes;
        const sectors = (whole.len - 1) / sector_bytes - first_sector + 1;
        for (0..@as(usize, 1) << @intCast(sectors)) |set| {
            var file: [4096]u8 = @splat(0);
            @memcpy(file[0..whole.len], whole);
            for (0..sectors) |sector| if (set >> @intCast(sector) & 1 == 1) {
                const from = @max(at, (first_sector + sector) * sector_bytes);
                @memset(file[from..@min((first_sector + sector + 1) * sector_bytes, whole.len)], 0);
            };
            for ([_]usize{ whole.len, file.len }) |length| {
                var replay: Replay = .init(file[0..length]);
                var count: usize = 0;
                while (try replay.next()) |_| count += 1;
                try testing.expectEqual(@as(usize, if (set == 0) 5 else 4), count);
                try testing.expectEqual(if (set == 0) whole.len else at, replay.good_bytes);
            }
        }
    }
}

test "a flipped bit is refused where it is, and in an unfinished end costs no earlier record" {
    var sample: Sample = undefined;
    try sample.init();
    defer sample.deinit();
    const whole = sample.image.bytes();
    var file: [16 * 1024]u8 = @splat(0);
    const last = sample.ends[sample.count - 2];
    // A whole file; a file without its last byte; a torn last record at the end, in a file of full
    // size, and in a longer one.
    const Case = struct { written: usize, length: usize };
    for ([_]Case{
        .{ .written = whole.len, .length = whole.len },
        .{ .written = whole.len - 1, .length = whole.len - 1 },
        .{ .written = last + 3, .length = last + 3 },
        .{ .written = last + 40, .length = whole.len },
        .{ .written = last + 600, .length = file.len },
    }) |case| {
        @memset(&file, 0);
        @memcpy(file[0..case.written], whole[0..case.written]);
        const finished = sample.whole(case.written);
        for (0..case.written * 8) |bit| {
            const byte = bit / 8;
            file[byte] ^= @as(u8, 1) << @intCast(bit % 8);
            defer file[byte] ^= @as(u8, 1) << @intCast(bit % 8);
            var it: Replay = .init(file[0..case.length]);
            const end = while (it.next()) |record| {
                if (record == null) break true;
            } else |_| false;
            if (byte < finished) {
                try testing.expect(!end);
                try testing.expectEqual(sample.whole(byte), it.good_bytes);
            } else try testing.expectEqual(finished, it.good_bytes);
        }
    }
}

test "a record that was lost before whole ones is refused, not cut" {
    var sample: Sample = undefined;
    try sample.init();
    defer sample.deinit();
    var file: [16 * 1024]u8 = undefined;
    const whole = sample.image.bytes();
    for (1..sample.count - 1) |index| {
        // Zeros in place of the record; then the record without its second half, and the later
        // records moved up.
        const from, const to = .{ sample.ends[index - 1], sample.ends[index] };
        @memcpy(file[0..whole.len], whole);
        @memset(file[from..to], 0);
        try testing.expectError(error.Damaged, sample.replay(file[0..whole.len]));
        const gap = (to - from) / 2;
        @memcpy(file[to - gap ..][0 .. whole.len - to], whole[to..]);
        @memcpy(file[from .. to - gap], whole[from .. to - gap]);
        try testing.expectError(error.Damaged, sample.replay(file[0 .. whole.len - gap]));
        // Only the first sector of the record is zero.
        const boundary = std.mem.alignForward(usize, from, sector_bytes);
        if (boundary >= sample.ends[sample.count - 2]) continue;
        @memcpy(file[0..whole.len], whole);
        @memset(file[from..boundary], 0);
        try testing.expectError(error.Damaged, sample.replay(file[0..whole.len]));
    }
    // The first byte alone of the last record is zero.
    @memcpy(file[0..whole.len], whole);
    file[sample.ends[sample.count - 2]] = 0;
    try testing.expectError(error.Damaged, sample.replay(file[0..whole.len]));
    // By its length the torn record ends after the whole record behind it, so it looks unfinished.
    try sample.add(.{ .start = .{ .incarnation = 2, .ended_epoch = 0 } });
    const longer = sample.image.bytes();
    const last = sample.ends[sample.count - 2];
    const end = sample.ends[sample.count - 3] + 100;
    @memcpy(file[0..end], longer[0..end]);
    @memcpy(file[end..][0 .. longer.len - last], longer[last..]);
    try testing.expectError(error.Damaged, sample.replay(file[0 .. end + longer.len - last]));
    // More bytes than a record can have are written behind the torn head.
    var large: [2 * record_bytes_max]u8 = @splat('x');
    @memcpy(large[0..end], longer[0..end]);
    const from = sample.ends[sample.count - 3];
    @memset(large[from..std.mem.alignForward(usize, from, sector_bytes)], 0);
    try testing.expectError(error.Damaged, sample.replay(&large));
    _ = try sample.replay(large[0..record_bytes_max]);
}

test "what another version wrote is named, and a stranger's file is none" {
    var file: [512]u8 = undefined;
    file[0..header_bytes].* = header_of(version + 1);
    var replay: Replay = .init(file[0..header_bytes]);
    try testing.expectError(error.UnknownVersion, replay.next());
    for ([_][]const u8{ "x", "PCCLJRNX", "#!/bin/sh\nexit 0\n", "\x00" ** 64 }) |text| {
        replay = .init(text);
        try testing.expectError(error.NotAJournal, replay.next());
        try testing.expectEqual(0, replay.good_bytes);
    }
    // Header and checksums are right, but the record has an unknown kind or breaks a rule.
    var image: Image = .{};
    defer image.deinit(testing.allocator);
    try image.begin_file(testing.allocator);
    try image.add(testing.allocator, .{ .settings = test_settings });
    const at = image.bytes().len;
    @memcpy(file[0..at], image.bytes());
    const start: Record = .{ .start = .{ .incarnation = 1, .ended_epoch = 0 } };
    const removal: Record = .{ .removal = .{ .group = 1, .peer = .none, .epochs = .{} } };
    const outside: Record = .{ .removal = .{
        .group = limits.groups_max,
        .peer = .none,
        .epochs = .{},
    } };
    const nameless: Record = .{ .group = .{
        .last_epoch = 0,
        .id = 1,
        .name = .of(""),
        .initial_world_size = 0,
    } };
    const of_nobody: Record = .{ .activation = activation(&.{}, &.{}) };
    const Case = struct { written: Record, number: u16, wanted: Error };
    for ([_]Case{
        .{ .written = start, .number = 9, .wanted = error.UnknownRecord },
        .{ .written = start, .number = 0, .wanted = error.UnknownRecord },
        .{ .written = start, .number = 5, .wanted = error.BadRecord }, // too short
        .{ .written = removal, .number = 2, .wanted = error.BadRecord }, // too long
        .{ .written = outside, .number = 5, .wanted = error.BadRecord },
        .{ .written = nameless, .number = 3, .wanted = error.BadRecord },
        .{ .written = of_nobody, .number = 4, .wanted = error.BadRecord },
        .{ .written = .{ .commit = test_commit }, .number = 7, .wanted = error.BadRecord },
        .{ .written = .{ .abort = test_abort }, .number = 8, .wanted = error.BadRecord },
        .{ .written = .{ .settings = test_settings }, .number = 1, .wanted = error.BadRecord },
    }) |case| {
        const record = try encode(case.written, file[at..]);
        std.mem.writeInt(u16, record[1..3], case.number, .little);
        repair(file[0 .. at + record.len]);
        replay = .init(file[0 .. at + record.len]);
        try testing.expect(try replay.next() != null);
        try testing.expectError(case.wanted, replay.next());
        try testing.expectEqual(at, replay.good_bytes);
    }
    const first = try encode(start, file[header_bytes..]);
    try testing.expectError(error.BadRecord, settings_of(file[0 .. header_bytes + first.len]));
}

test "any bytes give records and an end, or an error" {
    // Method: a journal in which stretches are overwritten, moved, repeated or taken out, its
    // checksums sometimes made right again; and bytes of no meaning behind a right header.
    const seeds = 20_000;
    var sample: Sample = undefined;
    try sample.init();
    defer sample.deinit();
    for (0..seeds) |seed| {
        read_mangled(&sample, seed) catch try testing.expectEqual(null, @as(?usize, seed));
    }
}

fn read_mangled(sample: *const Sample, seed: usize) !void {
    var prng: base.Prng = .init(seed);
    var file: [8 * 1024]u8 = undefined;
    var size = sample.image.bytes().len;
    @memcpy(file[0..size], sample.image.bytes());
    if (prng.chance(4)) {
        size = @intCast(prng.between(header_bytes, file.len));
        for (file[header_bytes..size]) |*byte| byte.* = @truncate(prng.next());
        if (prng.chance(2)) file[header_bytes] = mark_begin;
    }
    for (0..prng.between(1, 4)) |_| size = mangle(&prng, &file, size);
    if (prng.chance(2)) repair(file[0..size]);
    var replay: Replay = .init(file[0..size]);
    var last: usize = 0;
    while (replay.next() catch null) |record| {
        try testing.expect(replay.good_bytes > last);
        last = replay.good_bytes;
        // A record that was read can be written: nothing in it is beyond its limits.
        var again: [record_bytes_max]u8 = undefined;
        _ = try encode(record, &again);
    }
    try testing.expect(replay.good_bytes <= size);
}

fn mangle(prng: *base.Prng, file: []u8, size: usize) usize {
    if (size == 0) return 0;
    const from: usize = @intCast(prng.below(size));
    const length: usize = @intCast(prng.between(1, @min(64, size - from)));
    switch (prng.below(4)) {
        0 => for (file[from..][0..length]) |*byte| {
            byte.* = @truncate(prng.next());
        },
        1 => @memset(file[from..][0..length], 0),
        2 => {
            @memmove(file[from .. size - length], file[from + length .. size]);
            return size - length;
        },
        else => {
            const moved = @min(size - from, file.len - from - length);
            @memmove(file[from + length ..][0..moved], file[from..][0..moved]);
            return from + length + moved;
        },
    }
    return size;
}

/// Corrects the checksums of all that looks like a record, so that reading goes on behind it.
fn repair(file: []u8) void {
    var at: usize = header_bytes;
    while (at + head_bytes + tail_bytes <= file.len and file[at] == mark_begin) {
        const rest = file[at..];
        const body_bytes = std.mem.readInt(u32, rest[3..7], .little);
        if (body_bytes > rest.len - head_bytes - tail_bytes) return;
        sign_head(rest[0..head_bytes]);
        const end = head_bytes + body_bytes;
        const sum = std.hash.Crc32.hash(rest[0..end]);
        std.mem.writeInt(u32, rest[end..][0..4], sum, .little);
        rest[end + 4] = mark_end;
        at += end + tail_bytes;
    }
}
