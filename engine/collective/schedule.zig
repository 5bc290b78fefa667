//! schedule: the way that the data of one attempt takes, as a call asks for it. An attempt may get
//! another one: session/frames.zig. The ways themselves: ring.zig, direct.zig.

const control = @import("wire").control;

/// The way that the data of one attempt takes: from each to the next, or to the owners and back.
pub const Schedule = enum {
    ring,
    direct,

    /// The one that the call asks for. By default encoded contributions go straight to their
    /// owners, so that each is encoded once.
    pub fn of(descriptor: *const control.Descriptor) Schedule {
        return switch (descriptor.plan) {
            .auto => if (descriptor.codec.kind != .none or descriptor.kind.carries()) .direct //
            else .ring,
            .ring => .ring,
            .direct => .direct,
        };
    }
};
