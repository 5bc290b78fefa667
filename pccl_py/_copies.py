"""Copies of tensors that can be given back.

It is a file of its own because it needs ctypes, which is slow to import: elastic.py imports it when
the first step begins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from pccl_py import buffers


class Copies:
    """Room for a copy of each tensor that can be written."""

    def __init__(self, tensors: Iterable[object]) -> None:
        taken = [buffers.readable(tensor) for tensor in tensors]
        self._pairs = [
            (each, ctypes.create_string_buffer(each.end - each.address))
            for each in taken
            if not each.readonly
        ]

    def take(self) -> None:
        """Copies the tensors. Other threads may run meanwhile."""
        for tensor, copy in self._pairs:
            ctypes.memmove(copy, tensor.address, len(copy))

    def give_back(self) -> None:
        """Overwrites the tensors with what was copied last."""
        for tensor, copy in self._pairs:
            ctypes.memmove(tensor.address, copy, len(copy))
