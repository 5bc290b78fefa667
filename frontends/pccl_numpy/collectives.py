"""The collectives over NumPy arrays. Only layout is decided here: packing, shapes, new arrays.

Those in which each rank has rows of its own are in shards.py.

A packed array is a contiguous copy in native byte order; the result is copied back only when the
operation has committed. On an error every input is as it was, in place too (docs/PROMISE.md, P3);
an `out` apart from it may hold anything. An InDoubt names the array that `error.work.resolve()`
fills, `error.result`: the caller's own where it is packed, else the copy or the new array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pccl_py import (
    Codec,
    CodecKind,
    Group,
    InDoubt,
    InvalidArgument,
    Outcome,
    PeerId,
    Plan,
    Recovery,
    ReduceOp,
)
from pccl_py.collectives import check_no_root

Array = NDArray[Any]

_SUPPORTED = frozenset(
    ["bfloat16"]
    + [f"float{bits}" for bits in (16, 32, 64)]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


@overload
def all_reduce(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
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
def all_reduce(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    *,
    op: ReduceOp | str = ...,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[True],
) -> tuple[Array, Outcome]: ...
def all_reduce(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    *,
    op: ReduceOp | str = ReduceOp.SUM,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
    return_outcome: bool = False,
) -> Array | tuple[Array, Outcome]:
    """The reduction of `x` over all members, as a new array of its shape and dtype, or in `out`.

    `x`: array_like of a dtype in `pccl_py.DType`, any layout; the same shape, dtype and op on every
    peer. `out`: an array of exactly that shape and dtype, any layout; it may be `x` or overlap it,
    as with NumPy's own functions. A new array is C-contiguous and in native byte order. With
    `return_outcome`, returns (array, Outcome). Raises TypeError for a dtype, ValueError for a shape
    or a read-only `out`, and the errors of `Group.all_reduce`.
    """
    source = np.asarray(x)
    check_dtype(source)
    send = packed(source)
    target = np.empty(source.shape, send.dtype) if out is None else out
    check_out(target, source.shape, source.dtype)
    if np.may_share_memory(send, target) and not is_same(send, target):
        send = send.copy()

    def call(recv: Array) -> Outcome:
        return comm.all_reduce(
            send,
            recv,
            op=op,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        )

    outcome = into(target, call)
    return (target, outcome) if return_outcome else target


def all_reduce_(
    comm: Group,
    x: Array,
    *,
    op: ReduceOp | str = ReduceOp.SUM,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Reduces `x` over all members in place; `x` may have any strides. Returns the Outcome.

    Arguments and errors as for `all_reduce`; a read-only `x` is a ValueError.
    """
    check_target(x)

    def call(array: Array) -> Outcome:
        return comm.all_reduce(
            array, op=op, tag=tag, codec=codec, plan=plan, recovery=recovery, deadline=deadline
        )

    return into(x, call, keeps=True)


@overload
def reduce(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
    *,
    op: ReduceOp | str = ...,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[False] = ...,
) -> Array | None: ...
@overload
def reduce(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
    *,
    op: ReduceOp | str = ...,
    tag: int = ...,
    codec: Codec | CodecKind | str = ...,
    plan: Plan | str = ...,
    recovery: Recovery | str | None = ...,
    deadline: float | None = ...,
    return_outcome: Literal[True],
) -> tuple[Array | None, Outcome]: ...
def reduce(
    comm: Group,
    x: ArrayLike,
    out: Array | None = None,
    root: SupportsIndex | PeerId = 0,
    *,
    op: ReduceOp | str = ReduceOp.SUM,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
    return_outcome: bool = False,
) -> Array | tuple[Array | None, Outcome] | None:
    """The reduction of `x` over all members, on `root` (a rank of the epoch, or a peer id).

    There it is a new array of the shape and dtype of `x`, or in `out`; elsewhere it is None, and
    `out` is not looked at. Arguments and errors as for `all_reduce`; a lost root ends the operation
    with Aborted on all.
    """

    def call(send: Array, recv: Array | None) -> Outcome:
        return comm.reduce(
            send,
            recv,
            root,
            op=op,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        )

    source = np.asarray(x)
    check_dtype(source)
    send = packed(source)
    check_no_root(out)
    if not is_root(comm, root):
        outcome = call(send, None)
        return (None, outcome) if return_outcome else None
    target = np.empty(source.shape, send.dtype) if out is None else out
    check_out(target, source.shape, source.dtype)
    if np.may_share_memory(send, target) and not is_same(send, target):
        send = send.copy()
    outcome = into(target, lambda recv: call(send, recv))
    return (target, outcome) if return_outcome else target


def reduce_(
    comm: Group,
    x: Array,
    root: SupportsIndex | PeerId = 0,
    *,
    op: ReduceOp | str = ReduceOp.SUM,
    tag: int = 0,
    codec: Codec | CodecKind | str = "none",
    plan: Plan | str = Plan.AUTO,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Reduces `x`, of any strides, over all members, into `x` of `root`. Returns the Outcome.

    Elsewhere `x` is only read, and may be read-only. Arguments and errors as for `reduce`.
    """

    def call(array: Array) -> Outcome:
        return comm.reduce(
            array,
            root=root,
            op=op,
            tag=tag,
            codec=codec,
            plan=plan,
            recovery=recovery,
            deadline=deadline,
        )

    if not is_root(comm, root):
        check_dtype(checked_array(x))
        return call(packed(x))
    check_target(x)
    return into(x, call, keeps=True)


def broadcast(
    comm: Group,
    x: ArrayLike,
    root: SupportsIndex | PeerId = 0,
    *,
    tag: int = 0,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
) -> Array:
    """A new array, equal to `x` of `root` (a rank of the epoch, or a peer id), on every member.

    Every member passes an array of the same shape and dtype; its values matter on the root only.
    """
    source = np.asarray(x)
    check_dtype(source, moves=True)
    result = np.array(source, dtype=source.dtype.newbyteorder("="), order="C", copy=True)

    def call(recv: Array) -> Outcome:
        return comm.broadcast(moved(recv), root, tag=tag, recovery=recovery, deadline=deadline)

    into(result, call)
    return result


def broadcast_(
    comm: Group,
    x: Array,
    root: SupportsIndex | PeerId = 0,
    *,
    tag: int = 0,
    recovery: Recovery | str | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Overwrites `x`, of any strides, with `x` of `root` on every member. Returns the Outcome.

    A read-only `x` is a ValueError, except on the root, where it is only read.
    """

    def call(array: Array) -> Outcome:
        return comm.broadcast(moved(array), root, tag=tag, recovery=recovery, deadline=deadline)

    if is_root(comm, root):
        check_dtype(checked_array(x), moves=True)
        return call(packed(x))
    check_target(x, moves=True)
    return into(x, call)


def barrier(comm: Group, *, tag: int = 0, deadline: float | None = None) -> Outcome:
    """Returns once every member has called it."""
    return comm.barrier(tag=tag, deadline=deadline)


def into(target: Array, operation: Callable[[Array], Outcome], *, keeps: bool = False) -> Outcome:
    """Runs `operation` on `target`, or on a packed array that is copied there if it succeeds.

    `keeps`: what is in `target` counts.
    """
    recv = target
    if not is_packed(target):
        recv = packed(target) if keeps else np.empty(target.shape, target.dtype.newbyteorder("="))
    try:
        outcome = operation(recv)
    except InDoubt as doubt:
        doubt.result = recv
        raise
    if recv is not target:
        target[...] = recv
    return outcome


def is_packed(x: Array) -> bool:
    return bool(x.flags.c_contiguous and x.dtype.isnative)


def packed(x: Array) -> Array:
    return x if is_packed(x) else np.array(x, dtype=x.dtype.newbyteorder("="), order="C")


def source_of(x: object, *, moves: bool = False) -> Array:
    """The array that travels for an array_like: itself, or packed."""
    array = np.asarray(x)
    check_dtype(array, moves=moves)
    return packed(array)


def is_root(comm: Group, root: SupportsIndex | PeerId) -> bool:
    if isinstance(root, PeerId):
        return root == comm.peer_id
    return root.__index__() == comm.rank


def checked_array(x: object) -> Array:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"an operation in place needs a numpy.ndarray, not {type(x).__name__}")
    return x


def check_target(x: object, *, moves: bool = False) -> None:
    array = checked_array(x)
    check_dtype(array, moves=moves)
    if not array.flags.writeable:
        raise InvalidArgument("the array is read-only, but receives the result")


def check_dtype(x: Array, *, moves: bool = False) -> None:
    """`moves`: its elements are not added up, only moved."""
    # By name, as ml_dtypes has more types that call themselves floats.
    if x.dtype.name in _SUPPORTED or (moves and is_opaque(x)):
        return
    raise TypeError(
        f"dtype {x.dtype.name} is not supported; supported are float16, float32, float64, "
        "bfloat16 (ml_dtypes) and the integers of 8 to 64 bits; and bool and the float8 types of "
        "ml_dtypes where nothing is added up; nested dicts and lists of arrays go with "
        "pccl_numpy.tree"
    )


def is_opaque(x: Array) -> bool:
    """Elements of one byte that no kernel knows: they travel as they are."""
    return x.dtype == np.bool_ or (x.dtype.itemsize == 1 and x.dtype.name.startswith("float8"))


def moved(x: Array) -> Array:
    """The same memory, as something that travels."""
    return x.view(np.uint8) if is_opaque(x) else x


def check_out(
    out: Array,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    what: str = "x",
    *,
    moves: bool = False,
) -> None:
    """`shape`: what it must be, which is that of `what`."""
    check_target(out, moves=moves)
    if out.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise TypeError(f"out is {out.dtype.name}, x is {dtype.name}")
    if out.shape != shape:
        raise InvalidArgument(f"out has shape {out.shape}, {what} has shape {shape}")


def is_same(x: Array, y: Array) -> bool:
    """True if both are the same elements in the same order."""
    return x.ctypes.data == y.ctypes.data and x.strides == y.strides
