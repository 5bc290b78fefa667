"""Shared by all benchmarks: the form of a row, sizes as people write them, cores, memory.

It owns no measurement; those are in the benchmarks' own files, for example `loopback.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
GIGABYTE = 1e9


@dataclass(frozen=True)
class Row:
    """One measured value, and the baseline's beside it where there is one.

    `case` is collective/dtype/codec/world/size, e.g. all_reduce/f32/none/w2/64MiB. `ratio` is ours
    over the baseline: more is better for rates, less for times and sizes.
    """

    bench: str
    case: str
    metric: str
    value: float
    unit: str
    baseline: str | None = None
    baseline_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the baseline; None without one, or where it is zero."""
        if self.baseline_value is None or self.baseline_value == 0:
            return None
        return self.value / self.baseline_value

    def to_json(self) -> str:
        """One line: the fields as keys, and the ratio."""
        return json.dumps({**asdict(self), "ratio": self.ratio})


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Writes rows as JSON lines."""
    path.write_text("".join(row.to_json() + "\n" for row in rows), encoding="utf-8")


def size_name(size: int) -> str:
    """4096 -> "4KiB"; in bytes where no larger unit fits evenly."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def size_of(name: str) -> int:
    """The inverse of `size_name`, for sizes of f32: whole multiples of 4. Raises ValueError."""
    for unit, suffix in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B")):
        count = name.removesuffix(suffix)
        if count != name and count.isdecimal():
            size = int(count) * unit
            if size > 0 and size % 4 == 0:
                return size
    raise ValueError(f"{name!r} is no size: a multiple of 4 bytes, as 4KiB, 64MiB or 1GiB")


def case_name(collective: str, dtype: str, codec: str, world: int, size: int) -> str:
    """The name of a case, the same form in all benchmarks."""
    return f"{collective}/{dtype}/{codec}/w{world}/{size_name(size)}"


def cores_of(rank: int, world: int, count: int = 0) -> list[int]:
    """The cores of one of `world` processes: `count`, or 0: an even share, or one with others.

    To be pinned before a process starts its threads, so that all threads of all libraries in it
    have the same cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    share = count or len(cores) // world
    return cores[rank * share : (rank + 1) * share] if share else [cores[rank % len(cores)]]


def memory_bytes() -> int:
    """Resident memory of this process now."""
    return _status_bytes("VmRSS")


def peak_memory_bytes() -> int:
    """The most that this process held since `peak_memory_reset`."""
    return _status_bytes("VmHWM")


def peak_memory_reset() -> None:
    """Lets the peak start again from what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.removesuffix("kB")) * KIB
    raise RuntimeError(f"/proc/self/status has no {key}")
