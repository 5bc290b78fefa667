"""scatter, gather and all_to_all over NumPy arrays: rows go from the rank that has them to another.

Rows are along axis 0, in rank order, and which rank has which is decided in shards.py; layout as in
collectives.py. Everything else is pccl_py's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike

from pccl_numpy.collectives import (
    Array,
    check_dtype,
    check_out,
    check_target,
    into,
    is_root,
    is_same,
    moved,
    packed,
)
from pccl_numpy.shards import Rows
from pccl_py import Codec, CodecKind, Group, InvalidArgument, Outcome, PeerId, Plan, Recovery
from pccl_py.collectives import check_no_root


@overload
def scatter(
    comm: Group,
    x: ArrayLike | None,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
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
def scatter(
    comm: Group,
    x: ArrayLike | None,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
    counts: Sequence[int] | None = None,
    *,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[True],
) -> tuple[Array, Outcome]: ...
def scatter(
    comm: Group,
    x: ArrayLike | None,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
    counts: Sequence[int] | None = None,
    *,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
    return_outcome: bool = False,
) -> Array | tuple[Array, Outcome]:
    """This rank's rows of `x` of `root`: there a new array or `out`, elsewhere `out`, and needed.

    `x`: on the root, array_like of n * k rows in a world of n ranks, or with `counts` of
    sum(counts); `out` may be this rank's rows of it, or overlap it. Elsewhere it is not looked at,
    and nobody there knows its shape: that of `out` says it. A lost root ends the operation with
    Aborted on all. Otherwise as `reduce_scatter`.
    """
    send: Array | None = None
    if is_root(comm, root):
        if x is None:
            raise InvalidArgument("the root of a scatter needs x, with the rows of all ranks")
        source = np.asarray(x)
        check_dtype(source, moves=True)
        rows = Rows.of_whole(comm, source, counts)
        send = packed(source)
        shape = (rows.own, *source.shape[1:])
        target = np.empty(shape, send.dtype) if out is None else out
        check_out(target, shape, source.dtype, "this rank's part of x", moves=True)
        if np.may_share_memory(send, target) and not is_same(send[rows.place], target):
            send = send.copy()
    else:
        if out is None:
            raise InvalidArgument(
                "out is needed except on the root: only the root knows the shape of x"
            )
        target = out
        check_target(target, moves=True)
        rows = Rows.of_part(comm, target, counts, "out")
    outcome = into(
        target,
        lambda recv: comm.scatter(
            None if send is None else moved(send),
            moved(recv),
            root,
            rows.elements,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        ),
    )
    return (target, outcome) if return_outcome else target


@overload
def gather(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
    counts: Sequence[int] | None = None,
    *,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[False] = ...,
) -> Array | None: ...
@overload
def gather(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
    counts: Sequence[int] | None = None,
    *,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[True],
) -> tuple[Array | None, Outcome]: ...
def gather(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
    counts: Sequence[int] | None = None,
    *,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
    return_outcome: bool = False,
) -> Array | tuple[Array | None, Outcome] | None:
    """`x` of all members on `root`, as `all_gather` has it; elsewhere None, and `out` is unused.

    Elements of a lost member that the root has not got are zeros; the outcome names no contributor
    for them. A lost root ends the operation with Aborted on all.
    """

    def call(recv: Array | None) -> Outcome:
        return comm.gather(
            moved(part),
            None if recv is None else moved(recv),
            root,
            rows.elements,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        )

    source = np.asarray(x)
    check_dtype(source, moves=True)
    part = packed(source).reshape(1) if source.ndim == 0 else packed(source)
    rows = Rows.of_part(comm, part, counts)
    check_no_root(out)
    if not is_root(comm, root):
        outcome = call(None)
        return (None, outcome) if return_outcome else None
    shape = (rows.whole, *part.shape[1:])
    target = np.empty(shape, part.dtype) if out is None else out
    check_out(target, shape, part.dtype, "what all members have", moves=True)
    if np.may_share_memory(part, target) and not is_same(target[rows.place], part):
        part = part.copy()
    outcome = into(target, call)
    return (target, outcome) if return_outcome else target


@overload
def all_to_all(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
    *,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[False] = ...,
) -> Array: ...
@overload
def all_to_all(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
    *,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[True],
) -> tuple[Array, Outcome]: ...
def all_to_all(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    send_counts: Sequence[int] | None = None,
    recv_counts: Sequence[int] | None = None,
    *,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
    return_outcome: bool = False,
) -> Array | tuple[Array, Outcome]:
    """This rank's rows of `x` of each member, in rank order; a new array, or `out`.

    `x`: array_like of n * k rows in a world of n ranks, of which k go to each; the same shape and
    dtype on every peer. Or `send_counts` says how many rows go to each rank, and `recv_counts` how
    many come from each: every two must agree about those between them, else Mismatch, and the rows
    have one shape everywhere. `out`: of the result's shape and dtype; it may be `x`, or overlap it.
    Otherwise as `all_reduce`. Elements of a lost member for this one that have not come are zeros;
    the outcome names no contributor for them.
    """
    source = np.asarray(x)
    check_dtype(source, moves=True)
    each = math.prod(source.shape[1:])
    sent = received = None
    shape, shaped = source.shape, "x"
    if send_counts is None and recv_counts is None:
        Rows.of_whole(comm, source, None, takes_counts=False)
    else:
        if send_counts is None or recv_counts is None:
            raise InvalidArgument("send_counts and recv_counts go together: pass both, or none")
        Rows.of_whole(comm, source, send_counts, counts_name="send_counts")
        sent = [index(count) * each for count in send_counts]
        received = [index(count) * each for count in recv_counts]
        shape = (sum(index(count) for count in recv_counts), *source.shape[1:])
        shaped = "what this rank receives"
    send = packed(source)
    target = np.empty(shape, send.dtype) if out is None else out
    check_out(target, shape, source.dtype, shaped, moves=True)
    if np.may_share_memory(send, target):
        send = send.copy()
    outcome = into(
        target,
        lambda recv: comm.all_to_all(
            moved(send),
            moved(recv),
            sent,
            received,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        ),
    )
    return (target, outcome) if return_outcome else target
