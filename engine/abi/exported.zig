//! exported: a function for C made of one that fails in Zig: the same arguments, and the error as a
//! status. root.zig exports it under the name that it is given.

/// `call` is the function. `code` makes the result of what `inner` returns.
pub fn Function(comptime code: anytype, comptime inner: anytype) type {
    const R = @typeInfo(@TypeOf(code)).@"fn".return_type.?;
    const params = @typeInfo(@TypeOf(inner)).@"fn".params;
    var types: [params.len]type = undefined;
    for (params, &types) |param, *to| to.* = param.type.?;
    const T = types;
    return switch (T.len) {
        0 => struct {
            pub fn call() callconv(.c) R {
                return code(inner());
            }
        },
        1 => struct {
            pub fn call(a: T[0]) callconv(.c) R {
                return code(inner(a));
            }
        },
        2 => struct {
            pub fn call(a: T[0], b: T[1]) callconv(.c) R {
                return code(inner(a, b));
            }
        },
        3 => struct {
            pub fn call(a: T[0], b: T[1], c: T[2]) callconv(.c) R {
                return code(inner(a, b, c));
            }
        },
        4 => struct {
            pub fn call(a: T[0], b: T[1], c: T[2], d: T[3]) callconv(.c) R {
                return code(inner(a, b, c, d));
            }
        },
        5 => struct {
            pub fn call(a: T[0], b: T[1], c: T[2], d: T[3], e: T[4]) callconv(.c) R {
                return code(inner(a, b, c, d, e));
            }
        },
        6 => struct {
            pub fn call(a: T[0], b: T[1], c: T[2], d: T[3], e: T[4], f: T[5]) callconv(.c) R {
                return code(inner(a, b, c, d, e, f));
            }
        },
        else => @compileError("write it out"),
    };
}
