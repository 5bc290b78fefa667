"""Reductions in plain NumPy: the numbers and the association order that docs/ALGORITHMS.md says.

Written from the documentation alone, to be compared with the library bit by bit. It knows no
losses (oracle.py does) and is not fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from contributions import STORED

KIB = 1024
CHUNKS_MAX = 16_384
PIECE_BYTES_MIN, PIECE_BYTES_MAX = KIB, 256 * KIB
WINDOW_BYTES = 16 * KIB * KIB

FLOATS = ("f32", "f64", "f16", "bf16")


def partial_type(op: str, dtype: str) -> type:
    """The type in which sums are made: f32 for 16-bit floats, 64 bits for avg of integers."""
    if dtype in ("f16", "bf16"):
        return np.float32
    if op == "avg" and dtype not in FLOATS:
        return np.int64 if dtype.startswith("i") else np.uint64
    return STORED[dtype]


def chunks(
    count: int, bytes_each: int, world_size: int, chunk_bytes: int, window_bytes: int
) -> Iterator[slice]:
    """How `count` elements are cut. `bytes_each` is the size of an element of a partial sum."""
    wanted = count * bytes_each // (4 * world_size)
    share = window_bytes // (2 * world_size)
    size = min(max(min(wanted, share), min(PIECE_BYTES_MIN, chunk_bytes)), chunk_bytes)
    elements = max(1, size // bytes_each)
    if elements > 64:
        elements -= elements % 64
    pieces = -(-count // elements)
    elements *= max(1, -(-pieces // CHUNKS_MAX))
    for begin in range(0, count, elements):
        yield slice(begin, min(begin + elements, count))


def all_reduce(
    op: str,
    dtype: str,
    inputs: Sequence[np.ndarray],
    *,
    plan: str = "ring",
    chunk_bytes: int = PIECE_BYTES_MAX,
    window_bytes: int = WINDOW_BYTES,
) -> np.ndarray:
    """The array that every peer must hold, from what they contribute in rank order."""
    n, count = len(inputs), len(inputs[0])
    bytes_each = np.dtype(STORED[dtype] if _is_narrow(dtype) else partial_type(op, dtype)).itemsize
    cut = enumerate(chunks(count, bytes_each, n, chunk_bytes, window_bytes))
    return _owned(op, dtype, inputs, plan, ((index % n, where) for index, where in cut))


def reduce(
    op: str, dtype: str, inputs: Sequence[np.ndarray], root: int, *, plan: str = "ring"
) -> np.ndarray:
    """The array that the root must hold: it owns every chunk, wherever it is cut."""
    return _owned(op, dtype, inputs, plan, [(root, slice(None))])


def reduce_scatter(
    op: str, dtype: str, inputs: Sequence[np.ndarray], counts: Sequence[int], *, plan: str = "ring"
) -> list[np.ndarray]:
    """The shard that each rank must hold: it owns every chunk of it."""
    ends = np.cumsum(counts)
    shards = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    result = _owned(op, dtype, inputs, plan, enumerate(shards))
    return [result[where] for where in shards]


def _is_narrow(dtype: str) -> bool:
    """It is computed in more bits than it travels in."""
    return dtype in ("f16", "bf16")


def _owned(
    op: str,
    dtype: str,
    inputs: Sequence[np.ndarray],
    plan: str,
    parts: Iterable[tuple[int, slice]],
) -> np.ndarray:
    """The reduction, where parts of the elements belong to owners."""
    n = len(inputs)
    compute, narrow, combine = partial_type(op, dtype), _is_narrow(dtype), COMBINE[op]
    result = np.empty_like(inputs[0])
    travels = plan == "ring"
    with np.errstate(all="ignore"):
        for owner, where in parts:
            first = owner + 1 if travels else 0
            order = [(first + step) % n for step in range(n)]
            total = load(dtype, compute, inputs[order[0]][where])
            for step, rank in enumerate(order[1:], start=2):
                total = combine(total, load(dtype, compute, inputs[rank][where]))
                if travels and narrow and step < n:  # a partial sum that travels is rounded
                    total = load(dtype, compute, store(dtype, total))
            if op == "avg":
                total = divide(total, n)
            result[where] = store(dtype, total)
    return result


def load(dtype: str, compute: type, stored: np.ndarray) -> np.ndarray:
    if dtype == "bf16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(compute)


def store(dtype: str, values: np.ndarray) -> np.ndarray:
    """Rounded once, to nearest even; any NaN as the positive quiet NaN without payload."""
    if dtype == "bf16":
        bits = values.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    stored = values.astype(STORED[dtype])
    if dtype in FLOATS:
        stored[np.isnan(stored)] = np.nan
    return stored


def divide(total: np.ndarray, n: int) -> np.ndarray:
    """Floats: a true division. Integers: the quotient is truncated toward zero."""
    if total.dtype.kind == "f":
        return total / total.dtype.type(n)
    divisor = total.dtype.type(n)
    quotient = total // divisor
    if total.dtype.kind == "i":
        quotient += (total < 0) & (total % divisor != 0)
    return quotient


def minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """IEEE 754-2019: NaN wins, -0 < +0."""
    if x.dtype.kind != "f":
        return np.minimum(x, y)
    smaller = np.where((x == y) & np.signbit(x), x, np.where((x == y), y, np.where(x < y, x, y)))
    return np.where(np.isnan(x) | np.isnan(y), x.dtype.type(np.nan), smaller)


def maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "f":
        return np.maximum(x, y)
    return -minimum(-x, -y)


COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": minimum,
    "max": maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
