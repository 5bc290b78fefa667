"""The collectives and messages over NumPy arrays; arrays.py says what these are.

Types, docstrings and all that they do are the kit's (pccl_py.kit). Where a collective only reads an
array, it may be array_like. A packed array is a contiguous copy in native byte order; the result is
copied back only when the operation has committed, by whoever waits for it. On an error every input
is as it was, in place too (docs/PROMISE.md, P3); an `out` apart from it may hold anything. After an
InDoubt `work.resolve()` returns the result of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pccl_numpy.arrays import NUMPY, check_dtype
from pccl_py import Group, Outcome, Work
from pccl_py.collectives import Root
from pccl_py.kit import Functions, Single, one
from pccl_py.options import MessageOptions, documented

S = TypeVar("S", bound=np.generic)
DTypeOf: TypeAlias = type[S] | np.dtype[S]
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]

_arrays: Functions[Single] = Functions(NUMPY, one)
all_reduce = _arrays.all_reduce
all_reduce_ = _arrays.all_reduce_
all_reduce_many = _arrays.all_reduce_many
all_reduce_many_ = _arrays.all_reduce_many_
reduce = _arrays.reduce
reduce_ = _arrays.reduce_
broadcast = _arrays.broadcast
broadcast_ = _arrays.broadcast_
reduce_scatter = _arrays.reduce_scatter
reduce_scatter_ = _arrays.reduce_scatter_
all_gather = _arrays.all_gather
all_gather_ = _arrays.all_gather_
scatter = _arrays.scatter
gather = _arrays.gather
all_to_all = _arrays.all_to_all
barrier = _arrays.barrier
send = _arrays.send
recv_ = _arrays.recv_


@overload
def recv(
    comm: Group, shape: Shape, dtype: DTypeOf[S], src: Root, **_: Unpack[MessageOptions]
) -> NDArray[S]: ...
@overload
def recv(
    comm: Group,
    shape: Shape,
    dtype: DTypeOf[S],
    src: Root,
    *,
    return_outcome: Literal[True],
    **_: Unpack[MessageOptions],
) -> tuple[NDArray[S], Outcome]: ...
@overload
def recv(
    comm: Group,
    shape: Shape,
    dtype: DTypeOf[S],
    src: Root,
    *,
    async_op: Literal[True],
    **_: Unpack[MessageOptions],
) -> Work[NDArray[S]]: ...
@overload
def recv(
    comm: Group,
    shape: Shape,
    dtype: DTypeLike,
    src: Root,
    *,
    async_op: bool = ...,
    return_outcome: bool = ...,
    **_: Unpack[MessageOptions],
) -> Any: ...
@documented(MessageOptions, "async_op", "return_outcome")
def recv(comm: Group, shape: Shape, dtype: DTypeLike, src: Root, **options: Any) -> Any:
    """The array that `src` sends, as a new array of this shape and dtype.

    Its elements must be as many and of the same dtype as those of the `x` that `src` sends, or both
    get `Mismatch`; the shape is this peer's alone. Bool and floats of eight bits go as u8: nobody
    compares such dtypes.
    """
    made: NDArray[Any] = np.empty(shape, np.dtype(dtype).newbyteorder("="))
    check_dtype(made, adds=False)
    return _arrays.received(comm, made, src, options)
