"""Sparse: SparseLoCo's exchange (arXiv 2508.15706), the greatest elements of each chunk.

A worker adds the elements that it has not sent to a residual, which replaces an outer momentum.
Each element is averaged over only the workers that sent it, as in the program of SparseLoCo's
authors (tplr-ai/templar, compress/topk.py); the paper has a sum over all workers. The native
library encodes and adds up the pieces (kernels/sparse.zig).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pccl_py import _pccl
from pccl_py.errors import InvalidArgument
from pccl_train.outer import Vector, address

CHUNK_MAX = 4096


@dataclass(frozen=True, slots=True)
class Sparse:
    """Sends the `kept` greatest of each `chunk` elements, as codes of 2 bits or, with
    `quantized=False`, as f32. `decay`: factor of the residual before the next pseudo-gradient is
    added to it. Raises InvalidArgument unless `chunk` is 1 to CHUNK_MAX, `kept` is 1 to `chunk`,
    and `decay` is 0 to 1.
    """

    kept: int = 64
    chunk: int = CHUNK_MAX
    decay: float = 0.95
    quantized: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= CHUNK_MAX:
            raise InvalidArgument(f"chunk must be 1 to {CHUNK_MAX} elements, not {self.chunk}")
        if not 1 <= self.kept <= self.chunk:
            raise InvalidArgument(f"kept must be 1 to {self.chunk} elements, not {self.kept}")
        if not 0 <= self.decay <= 1:
            raise InvalidArgument(f"decay must lie between 0 and 1, not {self.decay}")

    def bytes(self, count: int) -> int:
        """Bytes of an encoded piece that stands for `count` elements."""
        return _pccl.sparse_bytes(*self._options(), count)

    def encode(self, values: Vector, piece: NDArray[np.uint8]) -> None:
        """Encodes the greatest elements of `values` into `piece`."""
        self._check(values, piece)
        if values.size:
            _pccl.sparse_encode(address(values), values.size, *self._options(), address(piece))

    def add(
        self, into: Vector, piece: NDArray[np.uint8], scale: float, weights: Vector | None = None
    ) -> None:
        """Adds `scale` times the elements of `piece` to `into`, and `scale` to `weights` wherever
        `piece` has an element.

        Raises InvalidArgument, and adds nothing, if `encode` cannot have made `piece`.
        """
        self._check(into, piece)
        if into.size:
            to, all_weights = address(into), 0 if weights is None else address(weights)
            _pccl.sparse_add(to, all_weights, into.size, *self._options(), address(piece), scale)

    def _check(self, values: Vector, piece: NDArray[np.uint8]) -> None:
        if piece.size != self.bytes(values.size):
            raise InvalidArgument(
                f"a piece of {values.size} elements has {self.bytes(values.size)} bytes, not "
                f"{piece.size}"
            )

    def _options(self) -> tuple[int, int, int]:
        return self.chunk, self.kept, 0 if self.quantized else 1
