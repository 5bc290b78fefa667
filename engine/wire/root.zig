//! wire: bytes <-> values. Every decoder is a total function: any bytes give a value or a named
//! error, and nothing is allocated. docs/internals/PROTOCOL.md describes the bytes. Next:
//! protocol/root.zig, which gives the values their meaning.

const std = @import("std");

pub const codec = @import("codec.zig");
pub const frame = @import("frame.zig");
pub const Fragment = @import("fragment.zig").Fragment;
pub const hello = @import("hello.zig");
pub const control = @import("control.zig");
pub const token = @import("token.zig");
pub const Described = @import("described.zig").Described;
pub const name_of = @import("described.zig").name_of;
pub const NamedCall = @import("described.zig").NamedCall;
pub const dtype_name = @import("described.zig").dtype_name;
pub const form_object = @import("described.zig").form_object;
pub const is_object = @import("described.zig").is_object;
pub const object_name = @import("described.zig").object_name;
pub const form_bool = @import("described.zig").form_bool;
pub const dialed = @import("dialed.zig");
pub const Dialed = dialed.Dialed;
pub const Stream = @import("stream.zig").Stream;
pub const Budget = @import("queue.zig").Budget;
pub const Queue = @import("queue.zig").Queue;

pub const version = hello.version;

test {
    std.testing.refAllDecls(@This());
    _ = @import("fragment.zig");
    _ = @import("stream.zig");
    _ = @import("queue.zig");
}
