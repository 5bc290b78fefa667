"""send and recv over NumPy arrays: from one rank to another, while the rest work on.

Layout as in collectives.py. Everything else is pccl_py's.
"""

from __future__ import annotations

from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from pccl_numpy.collectives import Array, check_dtype, check_target, into, moved, source_of
from pccl_py import Group, Outcome, PeerId


def send(
    comm: Group,
    x: ArrayLike,
    dst: SupportsIndex | PeerId,
    *,
    tag: int = 0,
    deadline: float | None = None,
) -> Outcome:
    """Sends `x` to `dst`, another rank or the id of a member, which calls `recv` or `recv_`.

    `x`: array_like of a dtype in `pccl_py.DType`, any layout. Returns the Outcome when `dst` has
    all of it: so two that both send first wait for each other; `comm.send(array, dst,
    async_op=True)` does not. Errors are those of `pccl_py.Communicator.send`.
    """
    return comm.send(moved(source_of(x, moves=True)), dst, tag=tag, deadline=deadline)


def recv(
    comm: Group,
    shape: SupportsIndex | tuple[SupportsIndex, ...],
    dtype: DTypeLike,
    src: SupportsIndex | PeerId,
    *,
    tag: int = 0,
    deadline: float | None = None,
) -> Array:
    """The array that `src` sends, as a new array of this shape and dtype.

    Its elements must be as many and of the same dtype as those of the `x` that `src` sends, or both
    get `Mismatch`; the shape is this peer's alone.
    """
    result: Array = np.empty(shape, np.dtype(dtype).newbyteorder("="))
    check_dtype(result, moves=True)
    comm.recv(moved(result), src, tag=tag, deadline=deadline)
    return result


def recv_(
    comm: Group,
    x: Array,
    src: SupportsIndex | PeerId,
    *,
    tag: int = 0,
    deadline: float | None = None,
) -> Outcome:
    """Overwrites `x`, of any strides, with what `src` sends. Returns the Outcome.

    On any error `x` may hold anything. Otherwise as `recv`.
    """
    check_target(x, moves=True)
    return into(x, lambda array: comm.recv(moved(array), src, tag=tag, deadline=deadline))
