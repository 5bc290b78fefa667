"""Measures the kernels on this machine, and loops with the same loads and stores.

`pccl bench kernels` uses this file, and so does bench/kernels.py, which measures other libraries as
well. kernels/measure.zig lists the kernels; docs/internals/KERNELS.md says what they compute.
"""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from pccl_py import _pccl, errors
from pccl_py.words import counted

PREPARE, KERNEL, SKELETON = range(3)

ROUNDS = 15
ROUND_NS = 2_000_000
"""Calls are repeated until a round takes about so long."""


@dataclass(frozen=True)
class Rate:
    """Medians over the rounds, in bytes of f32 per second of processor time."""

    name: str
    size: int
    kernel: float
    skeleton: float
    other: float | None = None

    @property
    def ratio(self) -> float:
        """The kernel's rate over that of the loop without arithmetic."""
        return self.kernel / self.skeleton


def kernel_names() -> list[str]:
    """The kernels that can be measured, e.g. "encode/int8_rotated"."""
    return _pccl.kernel_names()


class Measurement:
    """Measures kernels on `size` bytes of f32, in memory of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = size // 4
        needed = _pccl.kernel_memory(self.count) if size % 4 == 0 else 0
        if needed == 0:
            raise errors.InvalidArgument(
                f"the size must be a multiple of 16 KiB, up to 4 GiB, not {counted(size, 'byte')}"
            )
        self._memory = mmap.mmap(-1, needed)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)

    def _run(self, name: str, what: int, repeats: int) -> int:
        return _pccl.kernel_run(name, what, self._memory, self.count, repeats)

    def rate(
        self, name: str, *, rounds: int = ROUNDS, other: Callable[[int], int] | None = None
    ) -> Rate:
        """Measures a kernel, in turns with `other(repeats)`, the time of another library in ns."""
        self._run(name, PREPARE, 1)
        once = max(self._run(name, KERNEL, 1), 1)
        repeats = max(1, ROUND_NS // once)
        taken: tuple[list[int], list[int], list[int]] = ([], [], [])
        for _ in range(rounds):
            taken[0].append(self._run(name, KERNEL, repeats))
            taken[1].append(self._run(name, SKELETON, repeats))
            if other is not None:
                taken[2].append(other(1))
        done = self.size * repeats * 1e9
        return Rate(
            name,
            self.size,
            done / max(statistics.median(taken[0]), 1),
            done / max(statistics.median(taken[1]), 1),
            None if other is None else self.size * 1e9 / max(statistics.median(taken[2]), 1),
        )
