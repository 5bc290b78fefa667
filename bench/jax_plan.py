"""The plan of the benchmark of JAX: its cases, and how often each is called.

It imports no JAX, as the command line does not either. It is carried out by jax_steps.py and its
workers.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from bench import common
from bench.common import KIB, MIB

SIZES = [4 * KIB << (2 * step) for step in range(8)]  # 4 KiB to 64 MiB, in steps of four
QUICK_SIZES = [4 * KIB]
OVERLAP_SIZES = [4 * MIB, 64 * MIB]
CASES = ("dispatch", "all_reduce", "overlap", "compile")
# Foreign calls in one program.
CALLS = (1, 10)


@dataclass(frozen=True)
class Case:
    """One thing that is measured: how many calls a sample times, how many samples are taken.

    `kind`: "dispatch" of programs of `calls` foreign calls, in one process; "all_reduce" of `size`
    bytes, in two; "overlap" of the same with other work; "compile" of a scan of `calls`
    collectives, in one.
    """

    kind: str
    iterations: int
    samples: int
    size: int = 4 * KIB
    calls: int = 1

    @property
    def name(self) -> str:
        """As in rows."""
        if self.kind == "all_reduce":
            return common.case_name("all_reduce", "f32", "none", 2, self.size)
        if self.kind == "overlap":
            return f"overlap/{common.size_name(self.size)}"
        return f"{self.kind}/{self.calls}"

    @property
    def world(self) -> int:
        """The number of processes."""
        return 2 if self.kind in ("all_reduce", "overlap") else 1

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def plan(kinds: list[str], quick: bool, sizes: list[int] | None = None) -> list[Case]:
    """How often each case is called: many times for small ones, few times for large ones."""
    made = []
    for kind in kinds:
        if kind == "dispatch":
            made += [Case(kind, 300 // calls, 41, calls=calls) for calls in CALLS]
        elif kind == "all_reduce":
            for size in sizes or (QUICK_SIZES if quick else SIZES):
                iterations = max(1, min(50, 4 * MIB // size))
                made.append(Case(kind, iterations, 25 if size < 16 * MIB else 11, size))
        elif kind == "overlap":
            for size in sizes or (QUICK_SIZES if quick else OVERLAP_SIZES):
                made.append(Case(kind, 1, 25, size))
        elif kind == "compile":
            made.append(Case(kind, 1, 9, calls=10))
    if quick:
        return [Case(each.kind, 2, 2, each.size, each.calls) for each in made]
    return made
