"""Call: a collective or a message without its operands, as a value that can be compared.

The rules for derivatives, vmap and other platforms copy a Call with some fields changed, and bind
the copy (primitive.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pccl_jax.trees import form_with_shapes
from pccl_py import PeerId, ReduceOp
from pccl_py.call import ADDING, Kind

Shape: TypeAlias = tuple[int, ...]
# Version of the layout of `Call.words`: CALL_VERSION of bindings/jax_handlers.h.
_WORDS_VERSION = 2


# Kinds of calls whose results have the shapes of their operands.
WHOLE = frozenset([Kind.ALL_REDUCE, Kind.BROADCAST, Kind.REDUCE])


class Outs(NamedTuple):
    """The outputs of a bound call: a result for each array, and the extra arrays asked for."""

    results: list[Any]
    # For each result of an average, if `tells_origin`: number of contributors of each element, u16.
    contributors: list[Any]
    origin: list[Any]  # the origin (handle and epoch) of the call, if `tells_origin`; else empty
    outcome: list[Any]  # the words of the outcome, if `tells_outcome`; else empty


@dataclass(frozen=True)
class Call:
    """A collective or a message without its operands.

    `options`: op, tag, deadline_ns, recovery, plan, codec, block, rotate, rounding, form, numbered
    as in bindings/jax_handlers.h. `root`: rank or peer id of the root, or of a message's other
    side. `counts`: rows of each rank; for an all_to_all the rows sent to each rank, then the rows
    received from each rank. `world_size` and `rank`: the world the call was traced for; 0 and -1
    mean any. `results`: shape and dtype of each result that no operand determines (recv, scatter
    without x, the tie of a send). `tells_origin`: also returns the call's origin, and for an
    average the numbers of contributors, for derivatives.py. `tells_outcome`: also returns the
    words of the outcome.
    """

    kind: Kind
    options: tuple[int, ...]
    root: int | PeerId = 0
    counts: tuple[int, ...] = ()
    world_size: int = 0
    rank: int = -1
    results: tuple[tuple[Shape, str], ...] = ()
    tells_origin: bool = False
    tells_outcome: bool = False
    # Error feedback: the last array is the old residual (f32), the last result the new residual.
    feeds_back: bool = False

    @property
    def tag(self) -> int:
        """The tag of the call's operation."""
        return self.options[1]

    @property
    def op(self) -> ReduceOp | None:
        """How contributions are combined; None for a kind of call that only moves data."""
        return ReduceOp(self.options[0]) if self.kind in ADDING else None

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of `results`, the results that no operand determines."""
        return [shape for shape, _ in self.results]

    def replace(self, **changes: Any) -> Call:
        """A copy of this Call with some fields changed."""
        return dataclasses.replace(self, **changes)

    def shape_of_result(self, shape: Shape) -> Shape:
        """The shape of the result for an array of `shape` that this rank passes."""
        if self.kind in WHOLE:
            return shape
        rows, tail = shape[0], shape[1:]
        world = self.world_size
        if self.kind in (Kind.ALL_GATHER, Kind.GATHER):
            return (sum(self.counts) if self.counts else rows * world, *tail)
        if self.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER):
            return (self.counts[self.rank] if self.counts else rows // world, *tail)
        assert self.kind is Kind.ALL_TO_ALL
        return (sum(self.counts[world:]) if self.counts else rows, *tail)

    def split(self, outs: Sequence[Any]) -> Outs:
        """Sorts the outputs of this call, as its primitive returns them, into an `Outs`."""
        rest = list(outs)
        outcome = [rest.pop()] if self.tells_outcome else []
        origin = [rest.pop()] if self.tells_origin else []
        results = len(rest)
        if self.tells_origin and self.op is ReduceOp.AVG:
            results //= 2
        return Outs(rest[:results], rest[results:], origin, outcome)

    def words(self, shapes: Sequence[Shape]) -> Any:
        """This call as call_t of bindings/jax_handlers.h, for arrays of `shapes`.

        `counts` become elements, by the row size of the first array."""
        each = math.prod(shapes[0][1:]) if shapes else 1
        options = (*self.options[:-1], form_with_shapes(self.options[-1], shapes))
        is_peer = isinstance(self.root, PeerId)
        peer = np.frombuffer(self.root, np.int64) if isinstance(self.root, PeerId) else (0, 0)
        words = [
            *(_WORDS_VERSION, self.kind, *options),
            *(0 if isinstance(self.root, PeerId) else self.root, int(is_peer), *peer),
            *(self.world_size, self.rank, int(self.tells_origin), int(self.tells_outcome)),
            *(int(self.feeds_back), len(self.counts)),
            *(count * each for count in self.counts),
        ]
        return np.array([_signed(int(word)) for word in words], np.int64)


def _signed(word: int) -> int:
    """The signed number with the same 64 bits."""
    return word - (1 << 64) if word >= 1 << 63 else word
