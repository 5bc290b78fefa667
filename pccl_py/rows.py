"""Rows: how the rows of an array, along axis 0, are shared among ranks, in rank order.

It knows shapes and counts, and no arrays; to collectives.py each element is a row. Errors are
InvalidArgument, or TypeError for a count that is no integer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pccl_py.errors import InvalidArgument
from pccl_py.words import counted, unsigned

Shape: TypeAlias = tuple[int, ...]
Counts: TypeAlias = Sequence[int] | None


class World(Protocol):
    """A group, of which sizes alone matter here."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...


@dataclass(frozen=True)
class Rows:
    """The rows that this rank has of the whole."""

    first: int
    own: int
    whole: int
    tail: Shape
    # Each rank's number of elements; None where all have as many.
    elements: list[int] | None

    @property
    def end(self) -> int:
        """The row behind the last one of this rank."""
        return self.first + self.own

    @classmethod
    def of_whole(
        cls,
        comm: World,
        shape: Shape,
        counts: Counts,
        *,
        takes_counts: bool = True,
        name: str = "counts",
    ) -> Rows:
        """The rows of this rank in an array that has those of all."""
        if not shape:
            raise InvalidArgument("x has no rows to share: its shape is ()")
        world, (whole, *tail) = comm.world_size, shape
        if counts is not None:
            rows = cls.of_counts(comm, tail, counts, name)
            if rows.whole != whole:
                together = counted(rows.whole, "row")
                raise InvalidArgument(f"{name} are {together} together, but x has {whole}")
            return rows
        if whole % world:
            advice = "pass counts" if takes_counts else "all need as many"
            raise InvalidArgument(
                f"x has {counted(whole, 'row')}, which {world} ranks cannot share: {advice}"
            )
        own = whole // world
        return cls(comm.rank * own, own, whole, tuple(tail), None)

    @classmethod
    def of_part(
        cls, comm: World, shape: Shape, counts: Counts, name: str = "x", unit: str = "row"
    ) -> Rows:
        """The rows of an array that has those of this rank; the caller calls it `name`."""
        if not shape:
            raise InvalidArgument(f"{name} has no rows: its shape is ()")
        own, *tail = shape
        if counts is None:
            return cls(comm.rank * own, own, comm.world_size * own, tuple(tail), None)
        rows = cls.of_counts(comm, tail, counts)
        if rows.own != own:
            raise InvalidArgument(
                f"counts[{comm.rank}], of this rank, is {rows.own}; {name} has {counted(own, unit)}"
            )
        return rows

    @classmethod
    def of_counts(
        cls, comm: World, tail: Sequence[int], counts: Sequence[int], name: str = "counts"
    ) -> Rows:
        """The rows of this rank where `counts` has those of each."""
        rank, world = comm.rank, comm.world_size
        if len(counts) != world:
            raise InvalidArgument(
                f"{name} has {counted(len(counts), 'entry', 'entries')}, but must have one for "
                f"each of {counted(world, 'rank')}"
            )
        listed = [unsigned(count, f"each of {name}", 64) for count in counts]
        each = math.prod(tail)
        elements = [count * each for count in listed]
        return cls(sum(listed[:rank]), listed[rank], sum(listed), tuple(tail), elements)
