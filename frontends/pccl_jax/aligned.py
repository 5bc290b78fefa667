"""Memory of the host that XLA takes as it is, without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# XLA takes memory as it is from this alignment on.
_ALIGNED = 64


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """A NumPy array that nobody has written to."""
    return _of(np.empty(_size(shape, dtype), np.uint8), shape, dtype)


def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """A NumPy array of zeros."""
    return _of(np.zeros(_size(shape, dtype), np.uint8), shape, dtype)


def _size(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * int(dtype.itemsize) + _ALIGNED


def _of(memory: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    size = memory.size - _ALIGNED
    first = -memory.__array_interface__["data"][0] % _ALIGNED
    return memory[first : first + size].view(dtype).reshape(shape)
