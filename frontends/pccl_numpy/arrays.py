"""NumPy's arrays as the kit of frontends asks for them: what is an array, its layout, its dtype.

The collectives that follow from it are pccl_py.kit's; their types and docstrings are in
collectives.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pccl_py import InvalidArgument
from pccl_py.buffers import OPAQUE, check_array
from pccl_py.kit import Frontend
from pccl_py.words import not_added_up

Array = NDArray[Any]

_SUPPORTED = frozenset(
    ["bfloat16"]
    + [f"float{bits}" for bits in (16, 32, 64)]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


class NumPy(Frontend[Array]):
    """Arrays of any strides and byte order, and what is like an array where it is only read."""

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
    """Raises TypeError for a dtype without collectives, or without any that add elements up."""
    # By name, as ml_dtypes has more types that call themselves floats.
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
