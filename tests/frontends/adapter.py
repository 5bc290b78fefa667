"""Adapter: what a frontend must show of itself to be tested by this folder.

One adapter per frontend (numpy_adapter.py), and conftest.py lists them; the tests know no array
library. Arrays are spoken of as flat lists of numbers in row-major order, shapes and dtypes by
their names in `pccl_py.DType`, lower case. model.py says what results must be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pccl_py as pccl

Shape = tuple[int, ...]

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "reduce_scatter",
    "all_gather",
    "scatter",
    "gather",
    "all_to_all",
)


class Adapter(ABC):
    """A frontend. `Any` stands for its arrays."""

    name: str
    # That arrays can have; and what only moves, and is never added up, by names of the frontend;
    # in tests they hold 0 and 1.
    dtypes: Sequence[str]
    moving_dtypes: Sequence[str]
    # The collectives with a form that writes into its argument, and those that take `out`.
    in_place: frozenset[str]
    with_out: frozenset[str]
    # Whether calls take `async_op`.
    has_works: bool = True

    def close(self) -> None:  # noqa: B027
        """After the last test: raises AssertionError if the whole run has cost too much."""

    @abstractmethod
    def make(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        """A new array."""

    @abstractmethod
    def strided(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        """One whose elements do not lie one behind the other; None if there is no such thing."""

    @abstractmethod
    def frozen(self, values: Sequence[float], shape: Shape, dtype: str = "f32") -> Any:
        """One that must not be written to; None if nothing can be."""

    @abstractmethod
    def unsupported(self, count: int) -> Any:
        """One of a dtype that has no collectives; None if all have."""

    @abstractmethod
    def read(self, array: Any) -> list[float]:
        """Its elements as numbers."""

    @abstractmethod
    def shape(self, array: Any) -> Shape: ...

    @abstractmethod
    def dtype(self, array: Any) -> str: ...

    @abstractmethod
    def is_same_memory(self, x: Any, y: Any) -> bool:
        """Whether what is written to one is read from the other, element by element."""

    @abstractmethod
    def call(
        self, collective: str, comm: pccl.Group, x: Any, out: Any = None, **options: Any
    ) -> Any:
        """The form that returns an array, or None where this rank gets none.

        `options`: of root, counts, send_counts, recv_counts, op, tag, async_op, return_outcome,
        what it takes. A rank that is not the root of a scatter passes None for `x`, and as `out` an
        array of its shard's shape.
        """

    @abstractmethod
    def call_in_place(self, collective: str, comm: pccl.Group, x: Any, **options: Any) -> Any:
        """The form that writes into `x`, and returns the outcome, or a Work."""

    @abstractmethod
    def call_tree(
        self, collective: str, comm: pccl.Group, x: Any, out: Any = None, **options: Any
    ) -> Any:
        """As `call`, of a dict, list or tuple of arrays as one operation, of the same structure."""

    @abstractmethod
    def call_tree_in_place(self, collective: str, comm: pccl.Group, x: Any, **options: Any) -> Any:
        """As `call_in_place`, of a tree; of all_reduce and broadcast."""

    @abstractmethod
    def send(self, comm: pccl.Group, x: Any, dst: int, **options: Any) -> Any: ...

    @abstractmethod
    def recv(self, comm: pccl.Group, shape: Shape, dtype: str, src: int, **options: Any) -> Any:
        """The array that comes, as a new one."""
