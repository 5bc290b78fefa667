//! Requests: what one peer asks another for of a shared state: leaves and pages of their hashes,
//! from when they are wanted until they are sent, or answered, first in first out. How they are
//! made, and where the answers go: asking.zig.

const std = @import("std");
const limits = @import("base").limits;

/// Classes of requests, as they travel: `index` is a leaf, or a page of hashes.
pub const class_leaf = 0;
pub const class_hashes = 1;

/// A page and a few leaves at most are on request at the same time.
pub const Requests = struct {
    items: [limits.state_asked_max + 1]Item = undefined,
    count: u32 = 0,

    pub const Item = struct {
        class: u16,
        index: u32,
        // Where the answer belongs; of requests in the background only (prefetch.zig).
        group: u16 = 0,
        tag: u64 = 0,
        number: u32 = 0,
        fingerprint: u32 = 0,
    };

    pub fn push(requests: *Requests, item: Item) bool {
        if (requests.count == requests.items.len) return false;
        requests.items[requests.count] = item;
        requests.count += 1;
        return true;
    }

    pub fn pop(requests: *Requests) ?Item {
        if (requests.count == 0) return null;
        const first = requests.items[0];
        requests.count -= 1;
        const left = requests.items[0..requests.count];
        std.mem.copyForwards(Item, left, requests.items[1..][0..left.len]);
        return first;
    }

    /// Null: any of the class.
    pub fn has(requests: *const Requests, class: u16, index: ?u32) bool {
        for (requests.items[0..requests.count]) |*item| {
            if (item.class == class and (index orelse item.index) == item.index) return true;
        }
        return false;
    }
};
