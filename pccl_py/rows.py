"""Rows: how the rows of an array, along axis 0, are shared among ranks, in rank order.

This file knows shapes and counts, and no arrays; collectives.py counts each element as a row.
Errors are InvalidArgument, or TypeError for a count that is no integer.
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
    """The part of a group that Rows needs: its rank and world size."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...


@dataclass(frozen=True)
class Rows:
    """Rows [first, first + own) of `whole`, which are this rank's; each row has shape `tail`."""

    first: int
    own: int
    whole: int
    tail: Shape
    # Number of elements of each rank; None if all ranks have equally many.
    elements: list[int] | None

    @property
    def end(self) -> int:
        """The number of the row behind this rank's last row."""
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
        """This rank's rows of an array of `shape`, which has the rows of all ranks."""
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
        """This rank's rows, where an array of `shape` has only these; errors name it by `name`."""
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
        """This rank's rows, where `counts` has the number of rows of each rank."""
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
