//! Coordinator: the end of a run that decides, as its driver sees it: net/, or tests/sim. The
//! driver has the sockets, the clock and the disk; it says what came in and what time it is.
//!
//! The state of the run is in run.zig: connections and peers (peer.zig), groups (group.zig), and
//! their epochs (epoch.zig). From there it goes on to:
//!   - door.zig: strangers become peers; hearing.zig: what peers say goes to whom it is for;
//!   - joining.zig: peers ask for groups; rounds.zig: newcomers become members;
//!   - votes.zig, reports.zig: operations are decided, or go on after a loss;
//!   - losses.zig: peers go; tick.zig: time passes, and silence is noticed;
//!   - journaling.zig, restoring.zig: the run outlives the coordinator.
//! The function that takes a message of a peer is named after it: `on_done` takes `done`.
//!
//! A member whose connection ends has the silence limit to come back, unless another member says
//! that its lanes to it are closed as well. Facts that a coordinator must know after it was killed
//! are in its journal (journal.zig) before anybody is told (hold.zig); after a restart all members
//! are away.

const std = @import("std");
const base = @import("base");
const addresses = @import("addresses.zig");
const door = @import("door.zig");
const finding = @import("finding.zig");
const hearing = @import("hearing.zig");
const journaling = @import("journaling.zig");
const losses = @import("losses.zig");
const restoring = @import("restoring.zig");
const run_file = @import("run.zig");
const seal = @import("seal.zig");
const tick_file = @import("tick.zig");
const Run = run_file.Run;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;

pub const Connection = @import("peer.zig").Connection;
pub const LogLevel = run_file.LogLevel;

pub const Coordinator = struct {
    run: Run,

    pub const Options = Run.Options;
    pub const Host = Run.Host;

    /// `seal_key` is random; a run that goes on keeps the one of its first start.
    pub fn create(
        gpa: Allocator,
        options: Options,
        host: Host,
        seal_key: seal.Key,
    ) Allocator.Error!*Coordinator {
        const c = try (options.secrets orelse gpa).create(Coordinator);
        c.run = .{
            .gpa = gpa,
            .options = options,
            .host = host,
            .seal_key = seal_key,
            .memory = .{ .bytes_max = options.memory },
            .prng = .init(seal.seed(&seal_key)),
        };
        return c;
    }

    /// The driver has closed all sockets.
    pub fn destroy(c: *Coordinator) void {
        c.run.deinit();
        (c.run.options.secrets orelse c.run.gpa).destroy(c);
    }

    /// Takes up the run that a journal holds, or begins one. Called once, before the first
    /// connection; afterwards the coordinator is of no use if it fails.
    pub fn restore(c: *Coordinator, now: Instant, bytes: []const u8) restoring.Error!void {
        return restoring.restore(&c.run, now, bytes);
    }

    /// A connection came in. Null: no memory, or no place that could be made; the driver closes it.
    pub fn accept(c: *Coordinator, now: Instant, source: base.Source) ?*Connection {
        return door.accept(&c.run, now, source);
    }

    /// Bytes were appended to connection.stream.
    pub fn received(c: *Coordinator, now: Instant, connection: *Connection) void {
        hearing.received(&c.run, now, connection);
        losses.sweep(&c.run, now);
    }

    /// Before more is read from somebody who was paused: what it has said is taken first, for as
    /// long as its rates go, so that it does not pile up here.
    pub fn take_said(c: *Coordinator, now: Instant, connection: *Connection) void {
        hearing.take_said(&c.run, now, connection);
        losses.sweep(&c.run, now);
    }

    /// The connection ended; it is invalid afterwards.
    pub fn closed(c: *Coordinator, now: Instant, connection: *Connection) void {
        losses.closed(&c.run, now, connection);
        losses.sweep(&c.run, now);
    }

    /// Takes what `Host.find` was to find out. The driver may be late: nobody need wait.
    pub fn answered(c: *Coordinator, now: Instant, number: u64, answer: addresses.Answer) void {
        finding.answered(&c.run, now, number, answer);
        losses.sweep(&c.run, now);
    }

    /// The journal has all that it was given up to this number on the disk.
    pub fn journal_written(c: *Coordinator, now: Instant, number: u64) void {
        journaling.written(&c.run, number);
        losses.sweep(&c.run, now);
    }

    /// It has not, and takes no more before it is written anew.
    pub fn journal_failed(c: *Coordinator, now: Instant, number: u64) void {
        journaling.not_written(&c.run, now, number);
        losses.sweep(&c.run, now);
    }

    pub fn tick(c: *Coordinator, now: Instant) void {
        tick_file.tick(&c.run, now);
    }

    /// The coordinator ends in order, before the driver closes all sockets.
    pub fn end(c: *Coordinator, now: Instant) void {
        losses.end_newcomers(&c.run, now);
    }

    pub fn next_deadline(c: *const Coordinator) Instant {
        return tick_file.next_deadline(&c.run);
    }
};
