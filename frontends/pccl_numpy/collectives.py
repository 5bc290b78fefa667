"""The collectives over NumPy arrays. Only layout is decided here: packing, shapes, new arrays.

A packed array is a contiguous copy in native byte order; the result is copied back only when the
operation has committed, so that on an error every array is as it was (docs/PROMISE.md, P3). An
InDoubt names the array that `error.work.resolve()` fills, `error.result`: the caller's own where it
is packed, else the copy or the new array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pccl_py import Codec, CodecKind, Group, InDoubt, Outcome, PeerId, Plan, Recovery, ReduceOp

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
    send = _packed(source)
    target = np.empty(source.shape, send.dtype) if out is None else out
    _check_out(source, target)
    if np.may_share_memory(send, target) and not _is_same(send, target):
        send = send.copy()

    def reduce(recv: Array) -> Outcome:
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

    outcome = _into(target, reduce)
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
    _check_target(x)

    def reduce(recv: Array) -> Outcome:
        if recv is not x:
            recv[...] = x
        return comm.all_reduce(
            recv, op=op, tag=tag, codec=codec, plan=plan, recovery=recovery, deadline=deadline
        )

    return _into(x, reduce)


def broadcast(
    comm: Group,
    x: ArrayLike,
    root: SupportsIndex | PeerId = 0,
    *,
    tag: int = 0,
    deadline: float | None = None,
) -> Array:
    """A new array, equal to `x` of `root` (a rank of the epoch, or a peer id), on every member.

    Every member passes an array of the same shape and dtype; its values matter on the root only.
    """
    source = np.asarray(x)
    check_dtype(source)
    result = np.array(source, dtype=source.dtype.newbyteorder("="), order="C", copy=True)
    _into(result, lambda recv: comm.broadcast(recv, root, tag=tag, deadline=deadline))
    return result


def broadcast_(
    comm: Group,
    x: Array,
    root: SupportsIndex | PeerId = 0,
    *,
    tag: int = 0,
    deadline: float | None = None,
) -> Outcome:
    """Overwrites `x`, of any strides, with `x` of `root` on every member. Returns the Outcome.

    A read-only `x` is a ValueError, except on the root, where it is only read.
    """
    if _is_root(comm, root):
        check_dtype(checked_array(x))
        return comm.broadcast(_packed(x), root, tag=tag, deadline=deadline)
    _check_target(x)
    return _into(x, lambda recv: comm.broadcast(recv, root, tag=tag, deadline=deadline))


def barrier(comm: Group, *, tag: int = 0, deadline: float | None = None) -> Outcome:
    """Returns once every member has called it."""
    return comm.barrier(tag=tag, deadline=deadline)


def _into(target: Array, operation: Callable[[Array], Outcome]) -> Outcome:
    """Runs `operation` on `target`, or on a packed array that is copied there if it succeeds."""
    native = target.dtype.newbyteorder("=")
    recv = target if is_packed(target) else np.empty(target.shape, native)
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


def _packed(x: Array) -> Array:
    return x if is_packed(x) else np.array(x, dtype=x.dtype.newbyteorder("="), order="C")


def _is_root(comm: Group, root: SupportsIndex | PeerId) -> bool:
    if isinstance(root, PeerId):
        return root == comm.peer_id
    return root.__index__() == comm.rank


def checked_array(x: object) -> Array:
    if not isinstance(x, np.ndarray):
        raise TypeError(f"an operation in place needs a numpy.ndarray, not {type(x).__name__}")
    return x


def _check_target(x: object) -> None:
    array = checked_array(x)
    check_dtype(array)
    if not array.flags.writeable:
        raise ValueError("the array is read-only, but receives the result")


def check_dtype(x: Array) -> None:
    # By name, as ml_dtypes has more types that call themselves floats.
    if x.dtype.name not in _SUPPORTED:
        raise TypeError(
            f"dtype {x.dtype.name} is not supported; supported are float16, float32, float64, "
            "bfloat16 (ml_dtypes) and the integers of 8 to 64 bits"
        )


def _check_out(source: Array, out: Array) -> None:
    _check_target(out)
    if out.dtype.newbyteorder("=") != source.dtype.newbyteorder("="):
        raise TypeError(f"out is {out.dtype.name}, x is {source.dtype.name}")
    if out.shape != source.shape:
        raise ValueError(f"out has shape {out.shape}, x has shape {source.shape}")


def _is_same(x: Array, y: Array) -> bool:
    """True if both are the same elements in the same order."""
    return x.ctypes.data == y.ctypes.data and x.strides == y.strides
