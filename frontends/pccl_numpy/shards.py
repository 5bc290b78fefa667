"""reduce_scatter and all_gather over NumPy arrays: each rank has a shard, some rows of the whole.

Rows are along axis 0, in rank order. Layout is decided as in collectives.py, and here what rows
there are; everything else is pccl_py's. Rows that only move: exchange.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from pccl_numpy.collectives import (
    Array,
    check_dtype,
    check_out,
    check_target,
    into,
    is_same,
    moved,
    packed,
)
from pccl_py import Codec, CodecKind, Group, InvalidArgument, Outcome, Plan, Recovery, ReduceOp


@overload
def reduce_scatter(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    counts: Sequence[int] | None = None,
    *,
    op: ReduceOp | str = ...,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[False] = ...,
) -> Array: ...
@overload
def reduce_scatter(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    counts: Sequence[int] | None = None,
    *,
    op: ReduceOp | str = ...,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[True],
) -> tuple[Array, Outcome]: ...
def reduce_scatter(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    counts: Sequence[int] | None = None,
    *,
    op: ReduceOp | str = ReduceOp.SUM,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
    return_outcome: bool = False,
) -> Array | tuple[Array, Outcome]:
    """This rank's rows of the reduction of `x` over all members, as a new array or in `out`.

    `x`: array_like of shape (n * k, ...) in a world of n ranks, for a result of shape (k, ...); or
    with `counts`, of sum(counts) rows, for one of counts[rank]. The same shape, dtype, op and
    `counts` on every peer. `out` may be those rows of `x`, or overlap it. Otherwise as
    `all_reduce`; ValueError also where rows cannot be shared so. A lost rank's rows are given to
    nobody.
    """
    source = np.asarray(x)
    check_dtype(source)
    rows = Rows.of_whole(comm, source, counts)
    send = packed(source)
    shape = (rows.own, *source.shape[1:])
    target = np.empty(shape, send.dtype) if out is None else out
    check_out(target, shape, source.dtype, "this rank's part of x")
    if np.may_share_memory(send, target) and not is_same(send[rows.place], target):
        send = send.copy()
    outcome = into(
        target,
        lambda recv: comm.reduce_scatter(
            send,
            recv,
            rows.elements,
            op=op,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        ),
    )
    return (target, outcome) if return_outcome else target


def reduce_scatter_(
    comm: Group,
    x: Array,
    counts: Sequence[int] | None = None,
    *,
    op: ReduceOp | str = ReduceOp.SUM,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Overwrites this rank's rows of `x`, of any strides, with their reduction over all members.

    The other rows are only read. Arguments and errors as for `reduce_scatter`.
    """
    check_target(x)
    rows = Rows.of_whole(comm, x, counts)
    send = packed(x)
    return into(
        x[rows.place],
        lambda recv: comm.reduce_scatter(
            send,
            recv,
            rows.elements,
            op=op,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        ),
    )


@overload
def all_gather(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    counts: Sequence[int] | None = None,
    *,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[False] = ...,
) -> Array: ...
@overload
def all_gather(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    counts: Sequence[int] | None = None,
    *,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[True],
) -> tuple[Array, Outcome]: ...
def all_gather(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    counts: Sequence[int] | None = None,
    *,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
    return_outcome: bool = False,
) -> Array | tuple[Array, Outcome]:
    """`x` of all members, one behind the other along axis 0 in rank order; a new array, or `out`.

    `x`: array_like of shape (k, ...) for a result of shape (n * k, ...) in a world of n ranks; or
    with `counts`, of counts[rank] rows, for one of sum(counts). One of no dimension is a row of
    one element: n of them make the shape (n,). Equal shapes but for the rows, equal dtype and
    `counts` on every peer. `out`: of exactly that shape and dtype; `x` may be this rank's rows of
    it, or overlap it. Otherwise as `all_reduce`.

    Elements of a lost member that no survivor got are zeros, on all alike; the outcome names no
    contributor for them.
    """
    source = np.asarray(x)
    check_dtype(source, moves=True)
    part = packed(source).reshape(1) if source.ndim == 0 else packed(source)
    rows = Rows.of_part(comm, part, counts)
    shape = (rows.whole, *part.shape[1:])
    target = np.empty(shape, part.dtype) if out is None else out
    check_out(target, shape, part.dtype, "what all members have", moves=True)
    if np.may_share_memory(part, target) and not is_same(target[rows.place], part):
        part = part.copy()
    outcome = into(
        target,
        lambda recv: comm.all_gather(
            moved(part),
            moved(recv),
            rows.elements,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        ),
    )
    return (target, outcome) if return_outcome else target


def all_gather_(
    comm: Group,
    x: Array,
    counts: Sequence[int] | None = None,
    *,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Fills `x`, of any strides, with the rows of all members; those of this rank are its own.

    With a codec they are rounded like all others, so that all members have equal bytes.
    `x` has n * k rows, or with `counts` sum(counts), on every peer. Otherwise as `all_gather`.
    """
    check_target(x, moves=True)
    rows = Rows.of_whole(comm, x, counts)
    part = packed(x[rows.place])
    return into(
        x,
        lambda recv: comm.all_gather(
            moved(part),
            moved(recv),
            rows.elements,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        ),
        keeps=True,
    )


@dataclass(frozen=True)
class Rows:
    """Which rows this rank has of the whole."""

    first: int
    own: int
    whole: int
    # Each rank's number of elements; None where all have as many.
    elements: list[int] | None

    @property
    def place(self) -> slice:
        return slice(self.first, self.first + self.own)

    @classmethod
    def of_whole(
        cls,
        comm: Group,
        x: Array,
        counts: Sequence[int] | None,
        *,
        takes_counts: bool = True,
        counts_name: str = "counts",
    ) -> Rows:
        """The rows of this rank in an array that has those of all."""
        if x.ndim == 0:
            raise InvalidArgument("x has no rows to share: its shape is ()")
        world, whole = comm.world_size, x.shape[0]
        if counts is not None:
            rows = cls._of_counts(comm, x, counts, counts_name)
            if rows.whole != whole:
                raise InvalidArgument(
                    f"{counts_name} are {rows.whole} rows together, x has {whole}"
                )
            return rows
        if whole % world:
            advice = "pass counts" if takes_counts else "all need as many"
            raise InvalidArgument(f"x has {whole} rows, which {world} ranks cannot share: {advice}")
        own = whole // world
        return cls(comm.rank * own, own, whole, None)

    @classmethod
    def of_part(cls, comm: Group, x: Array, counts: Sequence[int] | None, name: str = "x") -> Rows:
        """The rows of an array that has those of this rank; the caller calls it `name`."""
        if x.ndim == 0:
            raise InvalidArgument(f"{name} has no rows: its shape is ()")
        own = x.shape[0]
        if counts is None:
            return cls(comm.rank * own, own, comm.world_size * own, None)
        rows = cls._of_counts(comm, x, counts)
        if rows.own != own:
            raise InvalidArgument(
                f"counts[{comm.rank}], of this rank, is {rows.own}; {name} has {own} rows"
            )
        return rows

    @classmethod
    def _of_counts(cls, comm: Group, x: Array, counts: Sequence[int], name: str = "counts") -> Rows:
        rank, world = comm.rank, comm.world_size
        if len(counts) != world:
            raise InvalidArgument(
                f"{name} has {len(counts)} entries: one for each of {world} ranks"
            )
        listed = [index(count) for count in counts]
        if min(listed) < 0:
            raise InvalidArgument(f"{name} has {min(listed)}: a rank has no less than 0 rows")
        each = math.prod(x.shape[1:])
        elements = [count * each for count in listed]
        return cls(sum(listed[:rank]), listed[rank], sum(listed), elements)
