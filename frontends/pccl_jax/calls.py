"""Calls: one primitive of JAX for each collective, its shapes, and the custom call that it becomes.

    outs = primitive_of(Kind.ALL_REDUCE).bind(handle, *arrays, call=Call(Kind.ALL_REDUCE, ...))

`handle` is the communicator (communicators.py); the results are those of the arrays, and behind
them an outcome, if the call tells one. All that a rule for derivatives, for vmap or for another
platform needs is in `Call`, which can be compared and hashed: such rules replace parts of it and
bind again. Collectives as users call them: collectives.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from pccl_jax import eager, host, library
from pccl_jax.effects import ORDERED
from pccl_jax.kinds import ADDING, WHOLE, Kind
from pccl_jax.outcomes import WORDS
from pccl_jax.trees import form_with_shapes
from pccl_jax.versions import (
    Primitive,
    ShapedArray,
    TokenSet,
    abstract_token,
    is_given_away,
    lowering_function,
    optimization_barrier,
    register_lowering,
)
from pccl_py import InvalidArgument, PeerId, ReduceOp

Shape: TypeAlias = tuple[int, ...]
# An origin is the handle and the epoch of a call: its derivatives take it for their handle.
_HANDLE_WORDS, _ORIGIN_WORDS = 2, 4
# The version of the words of a call: CALL_VERSION of bindings/jax_handlers.h.
_WORDS_VERSION = 2


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


def _abstract(handle: Any, *arrays: Any, call: Call) -> tuple[list[Any], set[Any]]:
    if handle.shape not in ((_HANDLE_WORDS,), (_ORIGIN_WORDS,)) or handle.dtype != np.uint32:
        raise InvalidArgument("the communicator of a call is an array of two u32, or an origin")
    outs = [ShapedArray(shape, np.dtype(dtype)) for shape, dtype in call.results]
    if not outs and call.kind is not Kind.SEND:
        outs = [ShapedArray(call.shape_of_result(each.shape), each.dtype) for each in arrays]
    if call.tells_origin:
        if call.op is ReduceOp.AVG:
            outs += [ShapedArray(each.shape, np.dtype(np.uint16)) for each in outs]
        outs.append(ShapedArray((_ORIGIN_WORDS,), np.dtype(np.uint32)))
    if call.tells_outcome:
        outs.append(ShapedArray((WORDS,), np.dtype(np.uint32)))
    return outs, {ORDERED}


def _run(handle: Any, *arrays: Any, call: Call) -> Sequence[Any]:
    """A call that is not traced."""
    results, _ = _abstract(jax.typeof(handle), *map(jax.typeof, arrays), call=call)
    return eager.run(call, handle, arrays, results)


def _lower(context: Any, handle: Any, *arrays: Any, call: Call) -> Sequence[Any]:
    aliases = {}
    if call.kind in WHOLE:
        # An operand that lives on goes into memory of the result's own: in the same memory XLA
        # would copy it first, and the library once more. The next residual must not overlap the
        # one that is read.
        kept = arrays[: len(arrays) - call.feeds_back]
        aliases = {1 + number: number for number, each in enumerate(kept) if is_given_away(each)}
    given = context.avals_in[1 : len(context.avals_in) - call.feeds_back]
    words = call.words([each.shape for each in given] or call.shapes)
    return lower(context, library.TARGET, ORDERED, (handle, *arrays), words, aliases)


def lower(
    context: Any,
    target: str,
    effect: Any,
    operands: Sequence[Any],
    words: Any,
    aliases: dict[int, int],
) -> Sequence[Any]:
    """A custom call; XLA's token of the order is its first operand and result.

    `aliases`: which results lie where operands lay, without the token.
    """
    made = lowering_function(
        target,
        has_side_effect=True,
        operand_output_aliases={1 + one: 1 + two for one, two in aliases.items()},
    )(
        context.replace(
            avals_in=[abstract_token, *context.avals_in],
            avals_out=[abstract_token, *context.avals_out],
        ),
        context.tokens_in.get(effect),
        *operands,
        call=words,
    )
    token, *outs = made.results
    context.set_tokens_out(context.tokens_in.update_tokens(TokenSet({effect: token})))
    # XLA of 0.10.2 reads the last instruction of a loop's body as a tuple, also where it is a call
    # of several results: if the third operand is the third element of the loop's state, this
    # element passes for unchanged, and the loop's condition for that of its beginning. A barrier is
    # between (test_a_body_that_is_a_call_alone_is_not_taken_for_one_that_changes_nothing).
    return list(optimization_barrier(outs)) if len(outs) > 1 else outs


def register(
    primitive: Any,
    lowering: Any,
    function: Any,
    effect: Any = ORDERED,
    operands_max: int | None = None,
) -> None:
    """`lowering` for the CPU; elsewhere, and inside of `through_host`, a callback of `function`.

    `operands_max`: a callback gets these first operands alone.
    """

    def on_cpu(context: Any, *operands: Any, call: Call) -> Any:
        return (by_host if host.is_chosen() else lowering)(context, *operands, call=call)

    def by_host(context: Any, *operands: Any, call: Call) -> Any:
        return host.lower(context, call, effect, operands[:operands_max], function)

    register_lowering(primitive, on_cpu, platform="cpu", cacheable=False)
    for platform in host.PLATFORMS:
        register_lowering(primitive, by_host, platform=platform, cacheable=False)


def _primitive(kind: Kind) -> Any:
    primitive = Primitive(f"pccl_{kind.name.lower()}")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(_abstract)
    primitive.def_impl(_run)
    register(primitive, _lower, host.collective)
    return primitive


_primitives: dict[Kind, Any] = {kind: _primitive(kind) for kind in Kind}


def primitive_of(kind: Kind) -> Any:
    """The primitive of JAX that a call of this kind binds."""
    return _primitives[kind]


def bind(handle: Any, arrays: Sequence[Any], call: Call) -> list[Any]:
    """Makes the call now, or adds it to what is being traced."""
    outs: list[Any] = primitive_of(call.kind).bind(handle, *arrays, call=call)
    return outs
