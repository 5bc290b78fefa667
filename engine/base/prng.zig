//! Prng: SplitMix64. The creator of a state machine passes the seed, so that a simulation replays.
//! Not for secrets.

const std = @import("std");

pub const Prng = struct {
    state: u64,

    pub fn init(seed: u64) Prng {
        return .{ .state = seed };
    }

    pub fn next(prng: *Prng) u64 {
        prng.state +%= 0x9e3779b97f4a7c15;
        var z = prng.state;
        z = (z ^ z >> 30) *% 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) *% 0x94d049bb133111eb;
        return z ^ z >> 31;
    }

    /// Uniform in [0, bound); the bias of a multiply-shift is below 2^-32 for small bounds.
    pub fn below(prng: *Prng, bound: u64) u64 {
        return @intCast(@as(u128, prng.next()) * bound >> 64);
    }

    /// Returns true in one of `one_in` draws on average.
    pub fn chance(prng: *Prng, one_in: u64) bool {
        return prng.below(one_in) == 0;
    }

    pub fn between(prng: *Prng, low: u64, high: u64) u64 {
        return low + prng.below(high - low + 1);
    }
};

test "equal seeds give equal draws" {
    var a = Prng.init(7);
    var b = Prng.init(7);
    for (0..100) |_| try std.testing.expectEqual(a.next(), b.next());
    for (0..100) |_| try std.testing.expect(a.below(3) < 3);
}
