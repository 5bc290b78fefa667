//! calls: the record of an operation, from the first word that a member says of it. All must say
//! the same of it, but for newcomers (misfit.zig).

const base = @import("base");
const wire = @import("wire");
const decisions = @import("decisions.zig");
const misfit = @import("misfit.zig");
const Epoch = @import("epoch.zig").Epoch;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Pair = base.Pair;
const Turns = base.Turns;
const control = wire.control;
const Descriptor = control.Descriptor;
const OpId = control.OpId;

/// The record of an operation, new if need be; null if the descriptors differ: then it is
/// aborted, or one of two is a newcomer, whose word does not count (misfit.zig).
pub fn record_of(
    run: *Run,
    epoch: *Epoch,
    id: OpId,
    descriptor: *const Descriptor,
    rank: u16,
) ProtocolError!?*Record {
    if ((descriptor.kind == .send_recv) != (Pair.of(id.tag) != null)) return error.Unexpected;
    try epoch.check_party(id, rank);
    if (epoch.find(id)) |index| {
        const known = epoch.records.items[index];
        switch (try misfit.hear(run, epoch, known, descriptor, rank)) {
            .fits => return known,
            .misfit => return null,
            .contradicts => {},
        }
        if (known.from == rank) return error.Unexpected; // nobody calls one thing twice
        try decisions.abort(run, epoch, id, .{
            .reason = .mismatch,
            .peer = epoch.members[known.from].id,
            .other = epoch.members[rank].id,
            .descriptor = known.descriptor,
            .other_descriptor = descriptor.*,
        }, decisions.spendthrift(epoch, rank));
        return null;
    }
    var begun: usize = 0;
    const turns: Turns = .of(id.tag, rank);
    for (epoch.records.items) |known| {
        begun += @intFromBool(known.from == rank and Turns.of(known.id.tag, rank) == turns);
    }
    if (begun >= base.limits.operations_in_flight_max) return error.Unexpected;
    const new = try epoch.gpa.create(Record);
    errdefer epoch.gpa.destroy(new);
    new.* = .{ .id = id, .descriptor = descriptor.*, .from = rank };
    try epoch.records.append(epoch.gpa, new);
    return new;
}
