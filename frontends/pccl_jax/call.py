"""Call: all of a collective or a message but its operands, as a value that can be compared.

All that a rule for derivatives, for vmap or for another platform needs is in a Call: such rules
replace parts of it and bind it again (primitive.py).
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
# The version of the words of a call: CALL_VERSION of bindings/jax_handlers.h.
_WORDS_VERSION = 2


# Their results have the shapes of their operands.
WHOLE = frozenset([Kind.ALL_REDUCE, Kind.BROADCAST, Kind.REDUCE])


class Outs(NamedTuple):
    """The results of a bound call: those of its arrays, and what it tells beside them."""

    results: list[Any]
    contributors: list[Any]  # u16 of each element of each result, of an average
    origin: list[Any]  # none, or one; the same of the outcome
    outcome: list[Any]


@dataclass(frozen=True)
class Call:
    """All of a call but its operands.

    `options`: op, tag, deadline_ns, recovery, plan, codec, block, rotate, rounding, form, as
    bindings/jax_handlers.h has them. `root`: a rank or a peer id, also of a message's other side.
    `counts`: rows of each rank; of an all_to_all those to each, and then those from each.
    `world_size` and `rank`: what it was traced for, 0 and -1 for any. `results`: shape and dtype of
    each where no operand says them (recv, scatter without x, the tie of a send). `tells_origin`:
    for derivatives.py, what they need of this call.
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
    # The last array is the residual of error feedback, f32, and the last result the next one.
    feeds_back: bool = False

    @property
    def tag(self) -> int:
        """The tag of the operation."""
        return self.options[1]

    @property
    def op(self) -> ReduceOp | None:
        """How contributions are combined; None where nothing is."""
        return ReduceOp(self.options[0]) if self.kind in ADDING else None

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of the results whose shape no operand has."""
        return [shape for shape, _ in self.results]

    def replace(self, **changes: Any) -> Call:
        """Another call, with some parts changed."""
        return dataclasses.replace(self, **changes)

    def shape_of_result(self, shape: Shape) -> Shape:
        """The shape that comes of an array that this rank passes."""
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
        """The parts of its outs."""
        rest = list(outs)
        outcome = [rest.pop()] if self.tells_outcome else []
        origin = [rest.pop()] if self.tells_origin else []
        results = len(rest)
        if self.tells_origin and self.op is ReduceOp.AVG:
            results //= 2
        return Outs(rest[:results], rest[results:], origin, outcome)

    def words(self, shapes: Sequence[Shape]) -> Any:
        """As the handler reads it (call_t), of arrays of these shapes; counts are of the first."""
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
    """64 bits as a signed number."""
    return word - (1 << 64) if word >= 1 << 63 else word
