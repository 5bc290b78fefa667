"""Call: what each rank passes to one collective, and what it must get, in plain Python.

Elements are small integers, so that every dtype holds them, their sums over sixteen ranks and, with
`spread`, their averages: results are compared exactly. Shards are rows along axis 0, in rank order.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from adapter import Shape

WHOLE = ("all_reduce", "reduce", "broadcast")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "scatter", "gather")
# A member that is lost ends them, unless they ask for something else.
NEED_ALL = ("reduce_scatter", "all_gather", "scatter", "gather", "all_to_all")
# Those that may share rows unevenly.
COUNTED = ("reduce_scatter", "all_gather", "scatter", "gather")

OPS: dict[str, Callable[[list[int]], float]] = {
    "sum": sum,
    "prod": math.prod,
    "min": min,
    "max": max,
    "avg": lambda numbers: sum(numbers) / len(numbers),
    "band": lambda numbers: functools.reduce(operator.and_, numbers),
    "bor": lambda numbers: functools.reduce(operator.or_, numbers),
    "bxor": lambda numbers: functools.reduce(operator.xor, numbers),
}
# Integers and bool have them.
BITWISE = ("band", "bor", "bxor")


@dataclass(frozen=True)
class Call:
    """`rows` of each rank, of shape `tail`; what is no shard has the rows of all (WHOLE).

    `scalar`: of no dimension. `spread`: all elements are multiples of it. `bits`: all
    are 0 or 1. `uneven`: in an
    all_to_all rank s has (s + 2 r) % 3 rows for rank r, and `rows` says nothing but the world.
    """

    collective: str
    rows: tuple[int, ...]
    tail: Shape = ()
    root: int = 0
    op: str = "sum"
    scalar: bool = False
    spread: int = 1
    bits: bool = False
    uneven: bool = False

    @property
    def world(self) -> int:
        return len(self.rows)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the frontend's function."""
        made: dict[str, Any] = {}
        if self.collective in ROOTED:
            made["root"] = self.root
        if self.collective in REDUCING:
            made["op"] = self.op
        if self.collective in COUNTED and len(set(self.rows)) > 1:
            made["counts"] = self.rows
        return made

    def options_of(self, rank: int) -> dict[str, Any]:
        """With those that differ from rank to rank."""
        if not self.uneven:
            return self.options
        ranks = range(self.world)
        return {
            **self.options,
            "send_counts": [self._between(rank, other) for other in ranks],
            "recv_counts": [self._between(other, rank) for other in ranks],
        }

    def _between(self, source: int, to: int) -> int:
        """Rows that one has for another."""
        return (source + 2 * to) % 3 if self.uneven else self.rows[to]

    def _sent_by(self, rank: int) -> int:
        return sum(self._between(rank, other) for other in range(self.world))

    # ---- what goes in

    def given(self, rank: int) -> list[float] | None:
        if self.collective in ("all_gather", "gather"):
            return self._part(self._all_of(rank), rank)
        if self.collective == "scatter" and rank != self.root:
            return None
        return self._all_of(rank)

    def given_shape(self, rank: int) -> Shape:
        parts = self.collective in ("all_gather", "gather")
        return self._shape(self.rows[rank] if parts else self._sent_by(rank))

    # ---- what comes out

    def wanted(self, rank: int, lost: Collection[int] = ()) -> list[float] | None:
        """None where this rank gets nothing. `lost`: who has given nothing."""
        if self.collective in ("reduce", "gather") and rank != self.root:
            return None
        if self.collective == "broadcast":
            return self._all_of(self.root)
        if self.collective == "scatter":
            return self._part(self._all_of(self.root), rank)
        if self.collective in REDUCING:
            given = [self._all_of(r) for r in range(self.world) if r not in lost]
            total = [OPS[self.op](list(column)) for column in zip(*given, strict=True)]
            return self._part(total, rank) if self.collective == "reduce_scatter" else total
        got: list[float] = []
        for source in range(self.world):
            index = rank if self.collective == "all_to_all" else source
            part = self._part(self._all_of(source), index, source)
            got += [0] * len(part) if source in lost else part
        return got

    def wanted_shape(self, rank: int) -> Shape:
        parts = self.collective in ("reduce_scatter", "scatter")
        if self.scalar and self.collective in ("all_gather", "gather"):
            return (self.world,)
        if self.uneven:
            return self._shape(sum(self._between(other, rank) for other in range(self.world)))
        return self._shape(self.rows[rank] if parts else sum(self.rows))

    # ---- of the form that writes into its argument

    def given_in_place(self, rank: int) -> list[float]:
        given = self.given(rank) or []
        if self.collective != "all_gather":
            return given
        before, after = sum(self.rows[:rank]), sum(self.rows[rank + 1 :])
        each = math.prod(self.tail)
        return [0] * (before * each) + given + [0] * (after * each)

    def wanted_in_place(self, rank: int, lost: Collection[int] = ()) -> list[float]:
        wanted = self.wanted(rank, lost)
        if wanted is None:
            return self.given_in_place(rank)
        if self.collective != "reduce_scatter":
            return wanted
        given = self.given_in_place(rank)
        first = sum(self.rows[:rank]) * math.prod(self.tail)
        return [*given[:first], *wanted, *given[first + len(wanted) :]]

    def shape_in_place(self) -> Shape:
        return self._shape(sum(self.rows))

    def _shape(self, rows: int) -> Shape:
        return () if self.scalar else (rows, *self.tail)

    def _all_of(self, rank: int) -> list[Any]:
        count = self._sent_by(rank) * math.prod(self.tail)
        if self.scalar and self.collective in WHOLE:
            count = 1
        made = [(2 * rank + 3 * index) % 5 + 1 for index in range(count)]
        return [number % 2 if self.bits else number * self.spread for number in made]

    def _part(self, numbers: list[Any], rank: int, source: int = 0) -> list[Any]:
        """The part that `source` has for `rank`, of all that it has."""
        each = math.prod(self.tail)
        first = sum(self._between(source, other) for other in range(rank)) * each
        return numbers[first : first + self._between(source, rank) * each]
