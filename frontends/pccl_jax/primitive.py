"""Primitives: a JAX primitive for each kind of call, its shapes, and its lowering to a custom call.

    outs = primitive_of(Kind.ALL_REDUCE).bind(handle, *arrays, call=Call(Kind.ALL_REDUCE, ...))

`handle` is the communicator (communicators.py). `outs` has the results of the arrays, and after
them the extra arrays that the Call asks for (`Call.split`). The functions that users call are in
collectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from pccl_jax import eager, host, library
from pccl_jax.call import WHOLE, Call
from pccl_jax.effects import ORDERED
from pccl_jax.outcomes import WORDS
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
from pccl_py import InvalidArgument, ReduceOp
from pccl_py.call import Kind

Shape: TypeAlias = tuple[int, ...]
# u32 words of a handle, and of an origin: a call's handle and epoch. A derivative of the call takes
# the origin as its handle.
_HANDLE_WORDS, _ORIGIN_WORDS = 2, 4


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
    """Runs an eager call."""
    results, _ = _abstract(jax.typeof(handle), *map(jax.typeof, arrays), call=call)
    return eager.run(call, handle, arrays, results)


def _lower(context: Any, handle: Any, *arrays: Any, call: Call) -> Sequence[Any]:
    aliases = {}
    if call.kind in WHOLE:
        # Only a result whose operand's memory is free shares it: for an operand that is still used,
        # XLA and the library would each copy the operand first. The new residual never shares the
        # old residual's memory, which the library reads meanwhile.
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
    """Lowers a call to a custom call, with the token of `effect` as first operand and first result.

    `aliases`: operand number -> number of the result that uses its memory, not counting the token.
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
    # XLA of jaxlib 0.10.2 treats the last instruction of a loop's body as a tuple, even if it is a
    # call of several results: if operand i of the call is element i of the loop's state, XLA takes
    # this element for unchanged, and the loop's condition for constant. An optimization_barrier
    # prevents this (test_a_body_that_is_a_call_alone_is_not_taken_for_one_that_changes_nothing).
    return list(optimization_barrier(outs)) if len(outs) > 1 else outs


def register(
    primitive: Any,
    lowering: Any,
    function: Any,
    effect: Any = ORDERED,
    operands_max: int | None = None,
) -> None:
    """Lowers `primitive` by `lowering` on the CPU; on other platforms, and inside of
    `through_host`, to a callback of `function`.

    `operands_max`: a callback gets only this many first operands.
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
    """The JAX primitive for calls of `kind`."""
    return _primitives[kind]


def bind(handle: Any, arrays: Sequence[Any], call: Call) -> list[Any]:
    """Makes the call now, or, in a trace, adds it to the program."""
    outs: list[Any] = primitive_of(call.kind).bind(handle, *arrays, call=call)
    return outs
