"""NumPy arrays for the kit: checks, layout, dtypes; and the functions that take arrays.

The kit (pccl_py.kit) has the functions' types, docstrings and code. A collective that only reads an
argument takes anything array_like. An array that is not contiguous and in native byte order is
packed into a copy, and the thread that waits for a committed operation copies the result back. On
an error every input is as it was, in place too (docs/internals/PROMISE.md, P3); a separate `out`
may hold anything. After an InDoubt `work.resolve()` returns the result of the call. A shared state
uses contiguous arrays in native byte order in place, and packed copies of other arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pccl_py import Group, InvalidArgument, Outcome, Work
from pccl_py.buffers import OPAQUE, check_array
from pccl_py.call import MessageOptions, documented
from pccl_py.collectives import Root
from pccl_py.kit import Frontend, Functions, Single
from pccl_py.kit import SharedState as KitState
from pccl_py.words import StateRules, not_added_up

Array = NDArray[Any]

_SUPPORTED = frozenset(
    ["bfloat16"]
    + [f"float{bits}" for bits in (16, 32, 64)]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


class NumPy(Frontend[Array]):
    """Arrays of any strides and byte order; array_like arguments where they are only read."""

    def array(self, x: object, adds: bool) -> Array:
        check_array(x)
        array: Array = np.asarray(x)
        check_dtype(array, adds=adds)
        return array

    def target(self, x: object, adds: bool, only_read: bool = False) -> Array:
        if not isinstance(x, np.ndarray):
            raise TypeError(f"an operation in place needs a numpy.ndarray, not {type(x).__name__}")
        check_array(x)
        check_dtype(x, adds=adds)
        if not only_read and not x.flags.writeable:
            raise InvalidArgument("the array is read-only, but receives the result")
        return x

    def shape(self, x: Array) -> tuple[int, ...]:
        shape: tuple[int, ...] = x.shape
        return shape

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x.reshape(shape)

    def rows(self, x: Array, first: int, end: int) -> Array:
        return x[first:end]

    def is_packed(self, x: Array) -> bool:
        return bool(x.flags.c_contiguous and x.dtype.isnative)

    def copy(self, x: Array) -> Array:
        return np.array(x, dtype=x.dtype.newbyteorder("="), order="C", copy=True)

    def empty(self, shape: tuple[int, ...], like: Array) -> Array:
        return np.empty(shape, like.dtype.newbyteorder("="))

    def write(self, target: Array, source: Array) -> None:
        target[...] = source

    def check_dtypes(self, out: Array, x: Array) -> None:
        if out.dtype.newbyteorder("=") != x.dtype.newbyteorder("="):
            raise TypeError(f"out is {out.dtype.name}, x is {x.dtype.name}")

    def bounds(self, x: Array) -> tuple[int, int]:
        low = high = x.ctypes.data
        if x.size == 0:
            return low, high
        for length, stride in zip(x.shape, x.strides, strict=True):
            low += min(0, (length - 1) * stride)
            high += max(0, (length - 1) * stride)
        return low, high + x.itemsize

    def overlaps(self, x: Array, y: Array) -> bool:
        return np.shares_memory(x, y)

    def is_same(self, x: Array, y: Array) -> bool:
        return bool(x.ctypes.data == y.ctypes.data and x.strides == y.strides)


NUMPY = NumPy()


def check_dtype(x: Array, *, adds: bool) -> None:
    """Raises TypeError for a dtype that no collective takes or, with `adds`, none that adds up."""
    # By name, as ml_dtypes has further float types, which are not supported.
    moves = x.dtype == np.bool_ or OPAQUE.fullmatch(x.dtype.name) is not None
    if x.dtype.name in _SUPPORTED or (moves and not adds):
        return
    name = x.dtype.name
    if moves:
        raise not_added_up(name)
    trees = "; trees, for pccl_numpy.tree, are of dicts, lists, tuples, named tuples and arrays"
    raise TypeError(
        f"dtype {name} is not supported; supported are float16, float32, float64, bfloat16 "
        "(ml_dtypes) and the integers of 8 to 64 bits; and where nothing is added up, bool and the "
        f"types of ml_dtypes of 8 bits or less{trees if name == 'object' else ''}"
    )


S = TypeVar("S", bound=np.generic)
DTypeOf: TypeAlias = type[S] | np.dtype[S]
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]

_arrays: Functions[Single] = Functions(NUMPY)
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
    """Receives the array that `src` sends, as a new array of this `shape` and `dtype`.

    Number and dtype of the elements must be those of the `x` that `src` sends, or both peers get
    `Mismatch`; the shapes may differ. Bool and floats of eight bits travel as u8: a difference
    between dtypes that travel as u8 is not noticed.
    """
    made: NDArray[Any] = np.empty(shape, np.dtype(dtype).newbyteorder("="))
    check_dtype(made, adds=False)
    return _arrays.received(comm, made, src, options)


class SharedState(KitState[Array]):
    """Named arrays that `sync` makes equal on all members; see `pccl_py.Group.shared_state`.

    Raises TypeError for anything but numpy.ndarray, or for a dtype that is not in `pccl_py.DType`,
    ValueError for a read-only array that is not among `may_differ`, and the errors of
    `Group.shared_state`. With `prefetch`, newcomers get an array that had to be packed as it was at
    the last sync.
    """

    def __init__(
        self,
        comm: Group,
        arrays: Mapping[str, Array],
        *,
        name: str = "state",
        revision: int = 0,
        may_differ: Iterable[str] = (),
        prefetch: bool = False,
        rules: StateRules = (),
    ) -> None:
        super().__init__(
            NUMPY,
            comm,
            arrays,
            name=name,
            revision=revision,
            may_differ=may_differ,
            prefetch=prefetch,
            rules=rules,
        )


def shared_state(
    comm: Group,
    arrays: Mapping[str, Array],
    *,
    name: str = "state",
    revision: int = 0,
    may_differ: Iterable[str] = (),
    prefetch: bool = False,
    rules: StateRules = (),
) -> SharedState:
    """Named arrays, of any strides, that `SharedState.sync` makes equal on all members."""
    return SharedState(
        comm,
        arrays,
        name=name,
        revision=revision,
        may_differ=may_differ,
        prefetch=prefetch,
        rules=rules,
    )
