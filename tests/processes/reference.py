"""Reductions in plain NumPy: numbers and association order of docs/internals/ALGORITHMS.md.

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
    """The type in which sums are made: f32 for 16-bit floats, more bits for avg of integers."""
    if dtype in ("f16", "bf16"):
        return np.float32
    if op == "avg" and dtype in ("i64", "u64"):
        return object  # 128 bits, which NumPy has not: integers of Python
    if op == "avg" and dtype not in FLOATS:
        return np.int64 if dtype.startswith("i") else np.uint64
    return STORED[dtype]


def partial_bytes(op: str, dtype: str) -> int:
    """The size of an element of a partial sum as it travels."""
    if op == "avg" and dtype == "f16":
        return 4
    if op == "avg" and dtype not in FLOATS:
        return 16 if dtype in ("i64", "u64") else 8
    return np.dtype(STORED[dtype]).itemsize


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
    bytes_each = partial_bytes(op, dtype)
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


def _is_narrow(op: str, dtype: str) -> bool:
    """It is computed in more bits than it travels in."""
    return dtype == "bf16" or (dtype == "f16" and op != "avg")


def _owned(
    op: str,
    dtype: str,
    inputs: Sequence[np.ndarray],
    plan: str,
    parts: Iterable[tuple[int, slice]],
) -> np.ndarray:
    """The reduction, where parts of the elements belong to owners."""
    n = len(inputs)
    compute, narrow, combine = partial_type(op, dtype), _is_narrow(op, dtype), COMBINE[op]
    result = np.empty_like(inputs[0])
    is_mean = op == "avg" and dtype in FLOATS and dtype != "f16" and n > 1
    travels = plan == "ring"
    with np.errstate(all="ignore"):
        for owner, where in parts:
            first = owner + 1 if travels else 0
            order = [(first + step) % n for step in range(n)]
            if is_mean:
                parts_of = [load(dtype, compute, inputs[rank][where]) for rank in order]
                mean = mean_of_hops if travels else mean_of_all
                result[where] = store(dtype, mean(dtype, parts_of))
                continue
            total = load(dtype, compute, inputs[order[0]][where])
            for step, rank in enumerate(order[1:], start=2):
                total = combine(total, load(dtype, compute, inputs[rank][where]))
                if travels and narrow and step < n:  # a partial sum that travels is rounded
                    total = load(dtype, compute, store(dtype, total))
            if op == "avg":
                total = divide(total, n)
            result[where] = store(dtype, total)
    return result


def greatest(dtype: str) -> float:
    """The greatest finite number."""
    if dtype == "bf16":
        return float(np.uint32(0x7F7F0000).view(np.float32))
    return float(np.finfo(STORED[dtype]).max)


def power(contributors: int) -> int:
    """The least power of two that is this number or more."""
    return 1 << (contributors - 1).bit_length()


def fitting(
    dtype: str, plain: np.ndarray, smaller: np.ndarray, inputs: Sequence[np.ndarray]
) -> np.ndarray:
    """`plain` where that is a number of the dtype, else `smaller`, at most the greatest number."""
    most = plain.dtype.type(greatest(dtype))
    finite = np.logical_and.reduce([np.isfinite(each) for each in inputs])
    within = np.where(finite, np.clip(smaller, -most, most), smaller)
    return np.where(np.abs(plain) <= most, plain, within)


def mean_of_hops(dtype: str, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Round the ring: what travels is the sum so far over a power of two."""
    n, of = len(inputs), inputs[0].dtype.type
    partial = inputs[0]
    for count, own in enumerate(inputs[1:], start=2):
        up, down = of(power(count - 1)), of(1 / power(count))
        total = partial * up + own
        small = partial * (up * down) + own * down
        if count < n:
            partial = fitting(dtype, total * down, small, (partial, own))
            partial = load(dtype, inputs[0].dtype.type, store(dtype, partial))
            continue
        partial = fitting(dtype, total / of(n), small / (of(n) * down), (partial, own))
    return partial


def mean_of_all(dtype: str, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """At an owner that has all contributions."""
    n, of = len(inputs), inputs[0].dtype.type
    down = of(1 / power(n))
    total, small = inputs[0], inputs[0] * down
    for own in inputs[1:]:
        total, small = total + own, small + own * down
    return fitting(dtype, total / of(n), small / (of(n) * down), inputs)


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
    if total.dtype == object:
        return np.array([abs(x) // n * (1 if x >= 0 else -1) for x in total.tolist()], object)
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
