"""The contributions of every peer in these tests: arrays that follow from a few numbers.

The peer program makes its own array here and the test makes everybody's, so that no input travels
between them. Results of operations are judged by reference.py (bits) and oracle.py (who).
"""

from __future__ import annotations

from typing import Any

import numpy as np

# A u64 has so many digits.
SLOTS = 16

# How an element of each dtype lies in memory. bf16 is kept as its bits: NumPy has no such type.
STORED: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": np.uint16,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "u16": np.uint16,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
}

# Bits of a float type: all of them, and those of its significand.
_FLOAT_BITS = {"f32": (32, 23), "f64": (64, 52), "f16": (16, 10), "bf16": (16, 7)}


def digits(peer: int, count: int, salt: int) -> np.ndarray:
    """The digit oracle: peer r contributes m << 4r, where m is 1 to 7 and moves with `salt`.

    After a sum, digit r is m if r was counted once, 2m if twice, 0 if not at all, and another
    digit if it came from another operation. No digit overflows into the next. The digit of a peer
    number is its slot, and whoever had it before (told.py) contributes other values.
    """
    incarnation, slot = divmod(peer, SLOTS)
    shift = np.uint64((3 * salt + 2 * incarnation) % 7)
    return (1 + (np.arange(count, dtype=np.uint64) + shift) % np.uint64(7)) << np.uint64(4 * slot)


def mixed(dtype: str, peer: int, count: int, seed: int) -> np.ndarray:
    """Everything a dtype can hold: plain numbers, special ones, tiny ones, and any bits at all.

    The kinds alternate from element to element, alike on every peer: most sums of special values
    are NaN, and would hide what happens to the others.
    """
    random = np.random.default_rng([seed, peer, count])
    if dtype in _FLOAT_BITS:
        return _mixed_floats(random, dtype, count)
    limits = np.iinfo(STORED[dtype])
    array = random.integers(limits.min, limits.max, count, STORED[dtype], endpoint=True)
    special = np.array([limits.min, limits.max, 0, 1, limits.max - 1], STORED[dtype])
    array[::3] = random.choice(special, len(array[::3]))
    array[1::3] %= 100  # small ones, so that not every sum and product wraps
    return array


def _mixed_floats(random: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    width, significand = _FLOAT_BITS[dtype]
    unsigned = np.dtype(f"u{width // 8}")
    sign, infinity = 1 << (width - 1), (1 << (width - 1)) - (1 << significand)
    quiet = 1 << (significand - 1)
    special = np.array(
        [
            *(0, sign, infinity, infinity | sign),  # zeros and infinities
            *(infinity | quiet, infinity | quiet | sign | 5, infinity | 1),  # NaN, quiet and not
            *(1, sign | 1, (1 << significand) - 1, 1 << significand),  # about the subnormals
            *(infinity - 1, (infinity - 1) | sign),  # the largest
        ],
        unsigned,
    )
    array = np.frombuffer(random.bytes(count * unsigned.itemsize), unsigned).copy()
    array[::4] = _as_bits(random.normal(size=len(array[::4])) * 3, dtype)
    array[1::4] = random.choice(special, len(array[1::4]))
    array[2::4] &= unsigned.type(sign | ((1 << significand) - 1))  # subnormals of either sign
    return array.view(STORED[dtype])


def _as_bits(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(STORED[dtype]).view(f"u{np.dtype(STORED[dtype]).itemsize}")


def ramp(peer: int, count: int) -> np.ndarray:
    """Different in every element and on every peer, and quickly made; sums of it wrap."""
    return np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15 + 2 * peer)


def make(peer: int, what: dict[str, Any]) -> np.ndarray:
    """The array that a test asks of a peer: {"of": name of a function above, ...}."""
    arguments = {key: value for key, value in what.items() if key != "of"}
    functions: dict[str, Any] = {"digits": digits, "mixed": mixed, "ramp": ramp}
    array: np.ndarray = functions[what["of"]](peer=peer, **arguments)
    return array
