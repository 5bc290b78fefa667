"""The collectives and messages over NumPy arrays: their types, and what they promise.

They follow from arrays.py, in pccl_py.kit. A packed array is a contiguous copy in native
byte order; the result is copied back only when the operation has committed, by whoever waits for
it. On an error every input is as it was, in place too (docs/PROMISE.md, P3); an `out` apart from it
may hold anything. After an InDoubt `work.resolve()` returns what the call would have returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pccl_numpy.arrays import NUMPY, check_dtype
from pccl_py import Group, Outcome, Work
from pccl_py.collectives import Counts, Root
from pccl_py.kit import one
from pccl_py.options import (
    Broadcast,
    BroadcastOptions,
    Message,
    MessageOptions,
    Move,
    MoveOptions,
    Reduce,
    ReduceOptions,
    documented,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", bound=np.generic, default=Any)
else:
    from typing import TypeVar

    S = TypeVar("S", bound=np.generic)

Array: TypeAlias = NDArray[S]
Like: TypeAlias = NDArray[S] | ArrayLike
Out: TypeAlias = NDArray[S] | None
DTypeOf: TypeAlias = type[S] | np.dtype[S]
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]


@overload
def all_reduce(
    comm: Group, x: Array[S], out: Out[S] = None, **_: Unpack[Reduce.Wait]
) -> Array[S]: ...
@overload
def all_reduce(
    comm: Group, x: ArrayLike, out: Out[Any] = None, **_: Unpack[Reduce.Wait]
) -> Array[Any]: ...
@overload
def all_reduce(
    comm: Group, x: Like[S], out: Out[S] = None, **_: Unpack[Reduce.Both]
) -> tuple[Array[S], Outcome]: ...
@overload
def all_reduce(
    comm: Group, x: Like[S], out: Out[S] = None, **_: Unpack[Reduce.Begin]
) -> Work[Array[S]]: ...
@overload
def all_reduce(comm: Group, x: Like[S], out: Out[S] = None, **_: Unpack[Reduce.Told]) -> Any: ...
@documented(ReduceOptions, "return_outcome")
def all_reduce(
    comm: Group, x: ArrayLike, out: Out[Any] = None, **options: Unpack[Reduce.Any]
) -> Any:
    """The reduction of `x` over all members, as a new array of its shape and dtype, or in `out`.

    `x`: array_like of a dtype in `pccl_py.DType`, any layout; the same shape and dtype on every
    peer. `out`: an array of exactly that shape and dtype, any layout; it may be `x` or overlap it,
    as with NumPy's own functions. A new array is C-contiguous and in native byte order.
    """
    return NUMPY.all_reduce(comm, one(x), [out] if out is not None else None, options)


@overload
def all_reduce_(comm: Group, x: Array[Any], **_: Unpack[Reduce.Wait]) -> Outcome: ...
@overload
def all_reduce_(comm: Group, x: Array[Any], **_: Unpack[Reduce.Begin]) -> Work: ...
@overload
def all_reduce_(comm: Group, x: Array[Any], **_: Unpack[Reduce.Either]) -> Outcome | Work: ...
@documented(ReduceOptions)
def all_reduce_(comm: Group, x: Array[Any], **options: Unpack[Reduce.Either]) -> Any:
    """Reduces `x` over all members in place; `x` may have any strides. Returns the Outcome.

    `x`: an array of a dtype in `pccl_py.DType`; the same shape and dtype on every peer. On any
    error it is as it was.
    """
    return NUMPY.all_reduce_(comm, one(x), options)


@overload
def reduce(
    comm: Group, x: Array[S], out: Out[S] = None, root: Root = 0, **_: Unpack[Reduce.Wait]
) -> Array[S] | None: ...
@overload
def reduce(
    comm: Group, x: ArrayLike, out: Out[Any] = None, root: Root = 0, **_: Unpack[Reduce.Wait]
) -> Array[Any] | None: ...
@overload
def reduce(
    comm: Group, x: Like[S], out: Out[S] = None, root: Root = 0, **_: Unpack[Reduce.Both]
) -> tuple[Array[S] | None, Outcome]: ...
@overload
def reduce(
    comm: Group, x: Like[S], out: Out[S] = None, root: Root = 0, **_: Unpack[Reduce.Begin]
) -> Work[Array[S] | None]: ...
@overload
def reduce(
    comm: Group, x: Like[S], out: Out[S] = None, root: Root = 0, **_: Unpack[Reduce.Told]
) -> Any: ...
@documented(ReduceOptions, "return_outcome")
def reduce(
    comm: Group, x: ArrayLike, out: Out[Any] = None, root: Root = 0, **options: Unpack[Reduce.Any]
) -> Any:
    """The reduction of `x` over all members, on `root` (a rank of the epoch, or a peer id).

    There it is a new array of the shape and dtype of `x`, or in `out`; elsewhere it is None, and
    `out` is not looked at. `x` and `out` are as for `all_reduce`; a lost root ends the operation
    with Aborted on all.
    """
    return NUMPY.reduce(comm, one(x), [out] if out is not None else None, root, options)


@overload
def reduce_(comm: Group, x: Array[Any], root: Root = 0, **_: Unpack[Reduce.Wait]) -> Outcome: ...
@overload
def reduce_(comm: Group, x: Array[Any], root: Root = 0, **_: Unpack[Reduce.Begin]) -> Work: ...
@overload
def reduce_(
    comm: Group, x: Array[Any], root: Root = 0, **_: Unpack[Reduce.Either]
) -> Outcome | Work: ...
@documented(ReduceOptions)
def reduce_(comm: Group, x: Array[Any], root: Root = 0, **options: Unpack[Reduce.Either]) -> Any:
    """Reduces `x`, of any strides, over all members, into `x` of `root`. Returns the Outcome.

    Elsewhere `x` is only read, and may be read-only. Otherwise as `reduce`.
    """
    return NUMPY.reduce_(comm, one(x), root, options)


@overload
def broadcast(
    comm: Group, x: Array[S], root: Root = 0, **_: Unpack[Broadcast.Wait]
) -> Array[S]: ...
@overload
def broadcast(
    comm: Group, x: ArrayLike, root: Root = 0, **_: Unpack[Broadcast.Wait]
) -> Array[Any]: ...
@overload
def broadcast(
    comm: Group, x: Like[S], root: Root = 0, **_: Unpack[Broadcast.Both]
) -> tuple[Array[S], Outcome]: ...
@overload
def broadcast(
    comm: Group, x: Like[S], root: Root = 0, **_: Unpack[Broadcast.Begin]
) -> Work[Array[S]]: ...
@overload
def broadcast(comm: Group, x: Like[S], root: Root = 0, **_: Unpack[Broadcast.Told]) -> Any: ...
@documented(BroadcastOptions, "return_outcome")
def broadcast(comm: Group, x: ArrayLike, root: Root = 0, **options: Unpack[Broadcast.Any]) -> Any:
    """A new array, equal to `x` of `root` (a rank of the epoch, or a peer id), on every member.

    Every member passes an array of the same shape and dtype, which is one of `pccl_py.DType`, bool
    or a float8 of ml_dtypes; its values matter on the root only.
    """
    return NUMPY.broadcast(comm, one(x), root, options)


@overload
def broadcast_(
    comm: Group, x: Array[Any], root: Root = 0, **_: Unpack[Broadcast.Wait]
) -> Outcome: ...
@overload
def broadcast_(
    comm: Group, x: Array[Any], root: Root = 0, **_: Unpack[Broadcast.Begin]
) -> Work: ...
@overload
def broadcast_(
    comm: Group, x: Array[Any], root: Root = 0, **_: Unpack[Broadcast.Either]
) -> Outcome | Work: ...
@documented(BroadcastOptions)
def broadcast_(
    comm: Group, x: Array[Any], root: Root = 0, **options: Unpack[Broadcast.Either]
) -> Any:
    """Overwrites `x`, of any strides, with `x` of `root` on every member. Returns the Outcome.

    A read-only `x` is a ValueError, except on the root, where it is only read. Dtypes are those of
    `broadcast`.
    """
    return NUMPY.broadcast_(comm, one(x), root, options)


@overload
def barrier(comm: Group, **_: Unpack[Message.Wait]) -> Outcome: ...
@overload
def barrier(comm: Group, **_: Unpack[Message.Begin]) -> Work: ...
@overload
def barrier(comm: Group, **_: Unpack[Message.Either]) -> Outcome | Work: ...
@documented(MessageOptions)
def barrier(comm: Group, **options: Unpack[Message.Either]) -> Any:
    """Returns once every member has called it."""
    return comm.barrier(**options)


@overload
def reduce_scatter(
    comm: Group, x: Array[S], out: Out[S] = None, counts: Counts = None, **_: Unpack[Reduce.Wait]
) -> Array[S]: ...
@overload
def reduce_scatter(
    comm: Group, x: ArrayLike, out: Out[Any] = None, counts: Counts = None, **_: Unpack[Reduce.Wait]
) -> Array[Any]: ...
@overload
def reduce_scatter(
    comm: Group, x: Like[S], out: Out[S] = None, counts: Counts = None, **_: Unpack[Reduce.Both]
) -> tuple[Array[S], Outcome]: ...
@overload
def reduce_scatter(
    comm: Group, x: Like[S], out: Out[S] = None, counts: Counts = None, **_: Unpack[Reduce.Begin]
) -> Work[Array[S]]: ...
@overload
def reduce_scatter(
    comm: Group, x: Like[S], out: Out[S] = None, counts: Counts = None, **_: Unpack[Reduce.Told]
) -> Any: ...
@documented(ReduceOptions, "return_outcome")
def reduce_scatter(
    comm: Group,
    x: ArrayLike,
    out: Out[Any] = None,
    counts: Counts = None,
    **options: Unpack[Reduce.Any],
) -> Any:
    """This rank's rows of the reduction of `x` over all members, as a new array or in `out`.

    `x`: array_like of shape (n * k, ...) in a world of n ranks, for a result of shape (k, ...); or
    with `counts`, of sum(counts) rows, for one of counts[rank]. The same shape, dtype and `counts`
    on every peer. `out` may be those rows of `x`, or overlap it. Otherwise as `all_reduce`;
    ValueError also where rows cannot be shared so. A lost rank's rows are given to nobody.
    """
    return NUMPY.reduce_scatter(comm, one(x), [out] if out is not None else None, counts, options)


@overload
def reduce_scatter_(
    comm: Group, x: Array[Any], counts: Counts = None, **_: Unpack[Reduce.Wait]
) -> Outcome: ...
@overload
def reduce_scatter_(
    comm: Group, x: Array[Any], counts: Counts = None, **_: Unpack[Reduce.Begin]
) -> Work: ...
@overload
def reduce_scatter_(
    comm: Group, x: Array[Any], counts: Counts = None, **_: Unpack[Reduce.Either]
) -> Outcome | Work: ...
@documented(ReduceOptions)
def reduce_scatter_(
    comm: Group, x: Array[Any], counts: Counts = None, **options: Unpack[Reduce.Either]
) -> Any:
    """Overwrites this rank's rows of `x`, of any strides, with their reduction over all members.

    The other rows are only read. Otherwise as `reduce_scatter`. Returns the Outcome.
    """
    return NUMPY.reduce_scatter_(comm, one(x), counts, options)


@overload
def all_gather(
    comm: Group, x: Array[S], out: Out[S] = None, counts: Counts = None, **_: Unpack[Move.Wait]
) -> Array[S]: ...
@overload
def all_gather(
    comm: Group, x: ArrayLike, out: Out[Any] = None, counts: Counts = None, **_: Unpack[Move.Wait]
) -> Array[Any]: ...
@overload
def all_gather(
    comm: Group, x: Like[S], out: Out[S] = None, counts: Counts = None, **_: Unpack[Move.Both]
) -> tuple[Array[S], Outcome]: ...
@overload
def all_gather(
    comm: Group, x: Like[S], out: Out[S] = None, counts: Counts = None, **_: Unpack[Move.Begin]
) -> Work[Array[S]]: ...
@overload
def all_gather(
    comm: Group, x: Like[S], out: Out[S] = None, counts: Counts = None, **_: Unpack[Move.Told]
) -> Any: ...
@documented(MoveOptions, "return_outcome")
def all_gather(
    comm: Group,
    x: ArrayLike,
    out: Out[Any] = None,
    counts: Counts = None,
    **options: Unpack[Move.Any],
) -> Any:
    """`x` of all members, one behind the other along axis 0 in rank order; a new array, or `out`.

    `x`: array_like of shape (k, ...) for a result of shape (n * k, ...) in a world of n ranks; or
    with `counts`, of counts[rank] rows, for one of sum(counts). One of no dimension is a row of one
    element: n of them make the shape (n,). Equal shapes but for the rows, equal `counts` and equal
    dtype on every peer: one of `pccl_py.DType`, bool or a float8 of ml_dtypes. `out`: of exactly
    that shape and dtype; `x` may be this rank's rows of it, or overlap it.

    Elements of a lost member that no survivor got are zeros, on all alike; the outcome names no
    contributor for them.
    """
    return NUMPY.all_gather(comm, one(x), [out] if out is not None else None, counts, options)


@overload
def all_gather_(
    comm: Group, x: Array[Any], counts: Counts = None, **_: Unpack[Move.Wait]
) -> Outcome: ...
@overload
def all_gather_(
    comm: Group, x: Array[Any], counts: Counts = None, **_: Unpack[Move.Begin]
) -> Work: ...
@overload
def all_gather_(
    comm: Group, x: Array[Any], counts: Counts = None, **_: Unpack[Move.Either]
) -> Outcome | Work: ...
@documented(MoveOptions)
def all_gather_(
    comm: Group, x: Array[Any], counts: Counts = None, **options: Unpack[Move.Either]
) -> Any:
    """Fills `x`, of any strides, with the rows of all members; those of this rank are its own.

    With a codec they are rounded like all others, so that all members have equal bytes. `x` has n *
    k rows, or with `counts` sum(counts), on every peer. Otherwise as `all_gather`. Returns the
    Outcome.
    """
    return NUMPY.all_gather_(comm, one(x), counts, options)


@overload
def scatter(
    comm: Group,
    x: Array[S] | None,
    out: Out[S] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Wait],
) -> Array[S]: ...
@overload
def scatter(
    comm: Group,
    x: ArrayLike | None,
    out: Out[Any] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Wait],
) -> Array[Any]: ...
@overload
def scatter(
    comm: Group,
    x: Like[S] | None,
    out: Out[S] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Both],
) -> tuple[Array[S], Outcome]: ...
@overload
def scatter(
    comm: Group,
    x: Like[S] | None,
    out: Out[S] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Begin],
) -> Work[Array[S]]: ...
@overload
def scatter(
    comm: Group,
    x: Like[S] | None,
    out: Out[S] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Told],
) -> Any: ...
@documented(MoveOptions, "return_outcome")
def scatter(
    comm: Group,
    x: ArrayLike | None,
    out: Out[Any] = None,
    root: Root = 0,
    counts: Counts = None,
    **options: Unpack[Move.Any],
) -> Any:
    """This rank's rows of `x` of `root`: there a new array or `out`, elsewhere `out`, and needed.

    `x`: on the root, array_like of n * k rows in a world of n ranks, or with `counts` of
    sum(counts); `out` may be this rank's rows of it, or overlap it. Elsewhere it is not looked at,
    and nobody there knows its shape: that of `out` says it. A lost root ends the operation with
    Aborted on all. Dtypes are those of `all_gather`.
    """
    given = None if x is None else one(x)
    return NUMPY.scatter(comm, given, None if out is None else one(out), root, counts, options)


@overload
def gather(
    comm: Group,
    x: Array[S],
    out: Out[S] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Wait],
) -> Array[S] | None: ...
@overload
def gather(
    comm: Group,
    x: ArrayLike,
    out: Out[Any] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Wait],
) -> Array[Any] | None: ...
@overload
def gather(
    comm: Group,
    x: Like[S],
    out: Out[S] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Both],
) -> tuple[Array[S] | None, Outcome]: ...
@overload
def gather(
    comm: Group,
    x: Like[S],
    out: Out[S] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Begin],
) -> Work[Array[S] | None]: ...
@overload
def gather(
    comm: Group,
    x: Like[S],
    out: Out[S] = None,
    root: Root = 0,
    counts: Counts = None,
    **_: Unpack[Move.Told],
) -> Any: ...
@documented(MoveOptions, "return_outcome")
def gather(
    comm: Group,
    x: ArrayLike,
    out: Out[Any] = None,
    root: Root = 0,
    counts: Counts = None,
    **options: Unpack[Move.Any],
) -> Any:
    """`x` of all members on `root`, as `all_gather` has it; elsewhere None, and `out` is unused.

    Elements of a lost member that the root has not got are zeros; the outcome names no contributor
    for them. A lost root ends the operation with Aborted on all.
    """
    return NUMPY.gather(comm, one(x), [out] if out is not None else None, root, counts, options)


@overload
def all_to_all(
    comm: Group,
    x: Array[S],
    out: Out[S] = None,
    send_counts: Counts = None,
    recv_counts: Counts = None,
    **_: Unpack[Move.Wait],
) -> Array[S]: ...
@overload
def all_to_all(
    comm: Group,
    x: ArrayLike,
    out: Out[Any] = None,
    send_counts: Counts = None,
    recv_counts: Counts = None,
    **_: Unpack[Move.Wait],
) -> Array[Any]: ...
@overload
def all_to_all(
    comm: Group,
    x: Like[S],
    out: Out[S] = None,
    send_counts: Counts = None,
    recv_counts: Counts = None,
    **_: Unpack[Move.Both],
) -> tuple[Array[S], Outcome]: ...
@overload
def all_to_all(
    comm: Group,
    x: Like[S],
    out: Out[S] = None,
    send_counts: Counts = None,
    recv_counts: Counts = None,
    **_: Unpack[Move.Begin],
) -> Work[Array[S]]: ...
@overload
def all_to_all(
    comm: Group,
    x: Like[S],
    out: Out[S] = None,
    send_counts: Counts = None,
    recv_counts: Counts = None,
    **_: Unpack[Move.Told],
) -> Any: ...
@documented(MoveOptions, "return_outcome")
def all_to_all(
    comm: Group,
    x: ArrayLike,
    out: Out[Any] = None,
    send_counts: Counts = None,
    recv_counts: Counts = None,
    **options: Unpack[Move.Any],
) -> Any:
    """This rank's rows of `x` of each member, in rank order; a new array, or `out`.

    `x`: array_like of n * k rows in a world of n ranks, of which k go to each; the same shape and
    dtype on every peer. Or `send_counts` says how many rows go to each rank, and `recv_counts` how
    many come from each: every two must agree about those between them, else Mismatch, and the rows
    have one shape everywhere. `out`: of the result's shape and dtype; it may be `x`, or overlap it.
    Dtypes are those of `all_gather`. Elements of a lost member for this one that have not come are
    zeros; the outcome names no contributor for them.
    """
    outs = None if out is None else [out]
    return NUMPY.all_to_all(comm, one(x), outs, send_counts, recv_counts, options)


@overload
def send(comm: Group, x: ArrayLike, dst: Root, **_: Unpack[Message.Wait]) -> Outcome: ...
@overload
def send(comm: Group, x: ArrayLike, dst: Root, **_: Unpack[Message.Begin]) -> Work: ...
@overload
def send(comm: Group, x: ArrayLike, dst: Root, **_: Unpack[Message.Either]) -> Outcome | Work: ...
@documented(MessageOptions)
def send(comm: Group, x: ArrayLike, dst: Root, **options: Unpack[Message.Either]) -> Any:
    """Sends `x` to `dst`, another rank or the id of a member, which calls `recv` or `recv_`.

    `x`: array_like of a dtype in `pccl_py.DType`, bool or a float8 of ml_dtypes, any layout.
    Returns the Outcome when `dst` has all of it: so two that both send first wait for each other,
    unless with `async_op`. Errors are those of `pccl_py.Communicator.send`.
    """
    return NUMPY.send(comm, x, dst, options)


@overload
def recv(
    comm: Group, shape: Shape, dtype: DTypeOf[S], src: Root, **_: Unpack[Message.Wait]
) -> Array[S]: ...
@overload
def recv(
    comm: Group, shape: Shape, dtype: DTypeOf[S], src: Root, **_: Unpack[Message.Both]
) -> tuple[Array[S], Outcome]: ...
@overload
def recv(
    comm: Group, shape: Shape, dtype: DTypeOf[S], src: Root, **_: Unpack[Message.Begin]
) -> Work[Array[S]]: ...
@overload
def recv(
    comm: Group, shape: Shape, dtype: DTypeLike, src: Root, **_: Unpack[Message.Any]
) -> Any: ...
@documented(MessageOptions, "return_outcome")
def recv(
    comm: Group, shape: Shape, dtype: DTypeLike, src: Root, **options: Unpack[Message.Any]
) -> Any:
    """The array that `src` sends, as a new array of this shape and dtype.

    Its elements must be as many and of the same dtype as those of the `x` that `src` sends, or both
    get `Mismatch`; the shape is this peer's alone.
    """
    made: Array[Any] = np.empty(shape, np.dtype(dtype).newbyteorder("="))
    check_dtype(made, adds=False)
    return NUMPY.recv(comm, made, src, options)


@overload
def recv_(comm: Group, x: Array[Any], src: Root, **_: Unpack[Message.Wait]) -> Outcome: ...
@overload
def recv_(comm: Group, x: Array[Any], src: Root, **_: Unpack[Message.Begin]) -> Work: ...
@overload
def recv_(comm: Group, x: Array[Any], src: Root, **_: Unpack[Message.Either]) -> Outcome | Work: ...
@documented(MessageOptions)
def recv_(comm: Group, x: Array[Any], src: Root, **options: Unpack[Message.Either]) -> Any:
    """Overwrites `x`, of any strides, with what `src` sends. Returns the Outcome.

    On any error `x` may hold anything. Otherwise as `recv`.
    """
    return NUMPY.recv_(comm, x, src, options)
