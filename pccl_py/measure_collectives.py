"""Measures the collectives of a group over its links, and checks their results.

`pccl bench all_reduce` and its like, which every peer of a run calls, use this file.
bench/loopback.py, which compares PCCL with other libraries, takes the names and the traffic of
collectives from it. No array library is needed: memory is mapped, and patterns are bytes.

Calls are not in place: the input stays, so all calls of a size are equal, and every result can be
checked. The time of a size is the time from a barrier to the end of the last call on the slowest
peer, divided by the number of calls.
"""

from __future__ import annotations

import array
import math
import mmap
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pccl_py import buffers
from pccl_py.codec import Codec, CodecKind, CodecName, parse_codec
from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument, PcclError
from pccl_py.words import DType, RecoveryName, counted, parse_dtype

COLLECTIVES = [
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "reduce",
    "broadcast",
    "scatter",
    "gather",
    "all_to_all",
    "send_recv",
]
# Collectives whose size counts the shards of all ranks.
SHARDED = ("reduce_scatter", "all_gather", "scatter", "gather", "all_to_all")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
ROOT = 0
# The part of the size that a peer must send in a world of n. Bus bandwidth is this part over the
# time, as NCCL's tests define it.
TRAFFIC: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce": lambda n: 1.0,
    "broadcast": lambda n: 1.0,
    "scatter": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1.0,
}

# A pattern repeats after this number of elements, a prime, so that a chunk in a wrong place differs
# from the chunk that belongs there.
PERIOD = 65_521
# Integers and sums up to this limit are exact in the dtype; EXACT_OF_OTHERS is for other dtypes.
EXACT = {DType.I8: 127, DType.U8: 255, DType.BF16: 256, DType.F16: 2048}
EXACT_OF_OTHERS = 1 << 15
# The largest error of a codec that passes: the root mean square of the error over that of the
# result. This limit only tells wrong results from rounded ones; docs/reference/CODECS.md has the
# accuracy of codecs.
CODEC_ERROR_MAX = 0.5
FORMATS = {
    DType.F32: "f",
    DType.F64: "d",
    DType.F16: "e",
    DType.I8: "b",
    DType.U8: "B",
    DType.I16: "h",
    DType.U16: "H",
    DType.I32: "i",
    DType.U32: "I",
    DType.I64: "q",
    DType.U64: "Q",
}


def encodes(collective: str) -> bool:
    """Whether the collective can have a codec."""
    return collective not in ("broadcast", "send_recv")


def partner_of(rank: int, world: int) -> int | None:
    """The rank that an even `rank` sends to, or an odd one receives from; None for no partner."""
    partner = rank ^ 1
    return partner if partner < world else None


def receives(collective: str, rank: int, world: int) -> bool:
    """Whether this rank gets a result."""
    if collective in ("reduce", "gather"):
        return rank == ROOT
    return collective != "send_recv" or (rank % 2 == 1 and partner_of(rank, world) is not None)


def call(
    comm: Group,
    collective: str,
    send: Any,
    recv: Any,
    *,
    codec: Codec | CodecKind | CodecName = "none",
    recovery: RecoveryName | None = None,
) -> None:
    """Calls a collective: `send` is what this rank gives, `recv` where its result goes.

    `send` and `recv` may be the same array if the collective can be in place. A rank that gives no
    input, or gets no result, leaves that array unused.
    """
    at_root = comm.rank == ROOT
    if collective == "all_reduce":
        comm.all_reduce(send, recv, codec=codec, recovery=recovery)
    elif collective == "reduce":
        comm.reduce(send, recv, ROOT, codec=codec, recovery=recovery)
    elif collective == "broadcast":
        comm.broadcast(send if at_root else recv, ROOT, recovery=recovery)
    elif collective == "reduce_scatter":
        comm.reduce_scatter(send, recv, codec=codec, recovery=recovery)
    elif collective == "all_gather":
        comm.all_gather(send, recv, codec=codec, recovery=recovery)
    elif collective == "scatter":
        comm.scatter(send if at_root else None, recv, ROOT, codec=codec, recovery=recovery)
    elif collective == "gather":
        comm.gather(send, recv if at_root else None, ROOT, codec=codec, recovery=recovery)
    elif collective == "all_to_all":
        comm.all_to_all(send, recv, codec=codec, recovery=recovery)
    else:
        pass_on(comm, send, recv)


def pass_on(comm: Group, send: Any, recv: Any) -> None:
    """Sends a message from each even rank to the next rank."""
    partner = partner_of(comm.rank, comm.world_size)
    if partner is None:
        return
    if comm.rank % 2:
        comm.recv(recv, partner)
    else:
        comm.send(send, partner)


@dataclass(frozen=True)
class Result:
    """The measurement of one size, the same on every peer.

    `wrong`: number of wrong elements over all peers, 0 with a codec. `error`: with a codec, the
    root mean square of the error over that of the result; else 0.
    """

    collective: str
    dtype: str
    codec: str
    world_size: int
    size: int
    count: int
    iterations: int
    seconds: float
    wrong: int
    error: float

    @property
    def algorithm_bandwidth(self) -> float:
        """The size over the time of a call, in bytes per second."""
        return self.size / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes that a peer must send, per second: to be compared with the rate of its link."""
        return self.algorithm_bandwidth * TRAFFIC[self.collective](self.world_size)

    def check(self) -> None:
        """Raises PcclError if a result was wrong."""
        peers = counted(self.world_size, "peer")
        what = f"{self.collective} of {counted(self.size, 'byte')} of {self.dtype}, {peers}"
        if self.wrong:
            raise PcclError(f"{what}: {counted(self.wrong, 'element')} wrong")
        if not self.error <= CODEC_ERROR_MAX:
            raise PcclError(f"{what}: the codec {self.codec} lost {self.error:.2g} of the result")


class Benchmark:
    """Measures one collective in `comm`, size by size. All members must make the same calls."""

    def __init__(
        self,
        comm: Group,
        collective: str,
        *,
        dtype: DType | str = DType.F32,
        codec: Codec | CodecKind | CodecName = "none",
        size_max: int,
    ) -> None:
        self._comm, self._collective = comm, collective
        self._dtype, self._codec = parse_dtype(dtype), parse_codec(codec)
        if self._codec.encodes and not encodes(collective):
            raise InvalidArgument(f"{collective} has no codec")
        world = comm.world_size
        if collective == "send_recv" and world < 2:
            raise InvalidArgument("send_recv needs two peers; this group has one")
        self._pattern = Pattern(self._dtype, world)
        needed = max(size_max, world * self._dtype.size)
        self._send, self._recv = (mmap.mmap(-1, needed) for _ in range(2))

    def measure(self, size: int, *, iterations: int, warmup: int) -> Result:
        """Fills the memory, warms up, measures, and checks the results of first and last call."""
        count = self._count(size)
        send, recv = self._arrays(count)
        self._fill(count)
        self._call(send, recv)
        judged = [self._judge(count)]
        for _ in range(warmup - 1):
            self._call(send, recv)
        self._comm.barrier()
        begin = time.monotonic()
        for _ in range(iterations):
            self._call(send, recv)
        seconds = (time.monotonic() - begin) / iterations
        judged.append(self._judge(count))
        wrong, error = (max(values) for values in zip(*judged, strict=True))
        told = self._share(seconds, wrong, error)
        return Result(
            self._collective,
            self._dtype.name.lower(),
            self._codec.name,
            self._comm.world_size,
            count * self._dtype.size,
            count,
            iterations,
            max(seconds for seconds, _, _ in told),
            int(sum(wrong for _, wrong, _ in told)),
            max(error for _, _, error in told),
        )

    def _count(self, size: int) -> int:
        """Number of elements of `size` bytes, rounded so that shards are equal and not empty."""
        count = size // self._dtype.size
        least = self._comm.world_size if self._collective in SHARDED else 1
        return max(count - count % least, least)

    def _arrays(self, count: int) -> tuple[buffers.Buffer, buffers.Buffer]:
        shard = count // self._comm.world_size
        gives_shard = self._collective in ("all_gather", "gather")
        gets_shard = self._collective in ("reduce_scatter", "scatter")
        return (
            _buffer(self._send, self._dtype, shard if gives_shard else count),
            _buffer(self._recv, self._dtype, shard if gets_shard else count),
        )

    def _call(self, send: buffers.Buffer, recv: buffers.Buffer) -> None:
        # With another recovery, sizes after a loss would be measured in a smaller group.
        call(self._comm, self._collective, send, recv, codec=self._codec, recovery="raise")

    def _fill(self, count: int) -> None:
        """Fills the input with this rank's pattern, the output with bytes that no result has."""
        size = self._dtype.size
        for begin, part in self._pattern.parts(self._pattern.of(self._comm.rank), 0, count):
            self._send[begin * size : begin * size + len(part)] = part
            self._recv[begin * size : begin * size + len(part)] = b"\xff" * len(part)

    def _expected(self, count: int) -> list[tuple[int, bytes, int, int]]:
        """The right result in parts: (first element, pattern, first element of that, how many)."""
        comm, pattern = self._comm, self._pattern
        rank, world, shard = comm.rank, comm.world_size, count // comm.world_size
        if not receives(self._collective, rank, world):
            return []
        if self._collective in ("all_reduce", "reduce"):
            return [(0, pattern.summed(), 0, count)]
        if self._collective == "reduce_scatter":
            return [(0, pattern.summed(), rank * shard, shard)]
        if self._collective == "broadcast":
            return [] if rank == ROOT else [(0, pattern.of(ROOT), 0, count)]
        if self._collective == "scatter":
            return [(0, pattern.of(ROOT), rank * shard, shard)]
        if self._collective == "send_recv":
            return [(0, pattern.of(rank - 1), 0, count)]
        begin = rank * shard if self._collective == "all_to_all" else 0
        return [(other * shard, pattern.of(other), begin, shard) for other in range(world)]

    def _judge(self, count: int) -> tuple[int, float]:
        """Returns (number of wrong elements, 0), or with a codec (0, relative error)."""
        size, wrong, lost, total = self._dtype.size, 0, 0.0, 0.0
        for at, period, phase, length in self._expected(count):
            # Comparing floats is slow in Python, so with a codec only PERIOD elements are checked.
            judged = min(length, PERIOD) if self._codec.encodes else length
            for begin, part in self._pattern.parts(period, phase, judged):
                got = self._recv[(at + begin) * size : (at + begin) * size + len(part)]
                if self._codec.encodes:
                    values = zip(self._pattern.read(got), self._pattern.read(part), strict=True)
                    for value, right in values:
                        lost, total = lost + (value - right) ** 2, total + right**2
                elif got != part:
                    pairs = zip(self._pattern.read(got), self._pattern.read(part), strict=True)
                    wrong += sum(1 for value, right in pairs if value != right)
        return wrong, math.sqrt(lost / total) if total else 0.0

    def _share(self, seconds: float, wrong: int, error: float) -> list[tuple[float, float, float]]:
        told = array.array("d", [0.0] * (3 * self._comm.world_size))
        own = array.array("d", [seconds, wrong, error])
        self._comm.all_gather(own, told, recovery="raise")
        return [(told[at], told[at + 1], told[at + 2]) for at in range(0, len(told), 3)]


@cache
def _drawn(steps: int) -> bytes:
    """Draws a number below `steps` for each element of a period."""
    draw = random.Random(PERIOD)
    return bytes(draw.randrange(steps) for _ in range(PERIOD))


class Pattern:
    """The inputs of ranks: small integers that differ between ranks and have exact sums."""

    def __init__(self, dtype: DType, world: int) -> None:
        self._dtype, self._world = dtype, world
        self._steps = min(4, EXACT.get(dtype, EXACT_OF_OTHERS) // world + 1)
        self._drawn = _drawn(self._steps)
        self._periods: dict[int, bytes] = {}  # by rank % _steps

    def of(self, rank: int) -> bytes:
        """The elements of a rank's input, one period."""
        turn = rank % self._steps
        if turn not in self._periods:
            values = [(step + turn) % self._steps for step in range(self._steps)]
            self._periods[turn] = self._made(values)
        return self._periods[turn]

    def summed(self) -> bytes:
        """The elements of the sum over all ranks, one period."""
        sums = [
            sum((step + rank) % self._steps for rank in range(self._world))
            for step in range(self._steps)
        ]
        return self._made(sums)

    def _made(self, values: list[int]) -> bytes:
        table = [self.written(value) for value in values]
        return b"".join(table[step] for step in self._drawn)

    def parts(self, period: bytes, phase: int, count: int) -> Iterator[tuple[int, bytes]]:
        """Yields `count` elements of `period` from `phase` on as (first element, bytes)."""
        size = self._dtype.size
        turn = phase % PERIOD * size
        turned = period[turn:] + period[:turn]
        for begin in range(0, count, PERIOD):
            yield begin, turned[: min(PERIOD, count - begin) * size]

    def written(self, value: int) -> bytes:
        """Encodes an element in little-endian order, as all machines that PCCL supports have it."""
        if self._dtype is DType.BF16:
            return struct.pack("<f", value)[2:]
        return struct.pack("<" + FORMATS[self._dtype], value)

    def read(self, data: bytes) -> list[float]:
        """Decodes little-endian elements."""
        if self._dtype is DType.BF16:
            data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
            return list(struct.unpack(f"<{len(data) // 4}f", data))
        return list(struct.unpack(f"<{len(data) // self._dtype.size}{FORMATS[self._dtype]}", data))


def _buffer(memory: mmap.mmap, dtype: DType, count: int) -> buffers.Buffer:
    whole = buffers.writable(memory)
    return buffers.Buffer(whole.address, count, dtype, owner=whole.owner)


def size_of(text: str) -> int:
    """Parses bytes: "4096", "4KiB", or "4K" as in NCCL's tests. Raises InvalidArgument."""
    digits = text.rstrip("KMGiB")
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMG", 1):
        units |= dict.fromkeys((letter, f"{letter}iB"), 1 << (10 * power))
    unit = units.get(text[len(digits) :])
    if not digits.isdecimal() or not digits.isascii() or unit is None or int(digits) == 0:
        raise InvalidArgument(f"{text!r} is not a size: say 4096, 4KiB, 64MiB or 1GiB")
    return int(digits) * unit


def sizes(least: int, most: int, factor: int) -> list[int]:
    """Sizes from `least` to `most`, each `factor` times the last. Raises InvalidArgument."""
    if most < least:
        raise InvalidArgument(
            f"the largest size, {counted(most, 'byte')}, is below the least, {least}"
        )
    if factor < 2:
        raise InvalidArgument(f"a factor must be 2 or more, not {factor}")
    made = [least]
    while made[-1] * factor <= most:
        made.append(made[-1] * factor)
    return made
