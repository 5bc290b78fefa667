"""vmap of collectives: the whole batch is one operation, never one for each element.

Where results have the shapes of their operands (all_reduce, reduce, broadcast) the batch is one
more axis, the first. Where ranks have rows, those stay the first axis and the batch is behind them:
the rows of a rank are those of all elements. A message has the whole batch. Arrays of a tree that
are not batched stay as they are. All peers map the same arrays over as many elements.

Outcomes, and what else there is once for a call, are those of the one operation. A communicator is
not mapped over. JAX does so where the predicate of a `cond` or a `switch` is batched, as all of its
branches are run then: calls in them raise InvalidArgument while they are traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from pccl_jax.call import WHOLE, Call
from pccl_jax.derivatives import TRANSPOSES
from pccl_jax.primitive import bind, primitive_of
from pccl_jax.versions import primitive_batchers
from pccl_py import InvalidArgument
from pccl_py.call import Kind


def _batch(args: Sequence[Any], dims: Sequence[Any], *, call: Call) -> Any:
    """The call of a batch of arrays."""
    _check_one(dims[0], call)
    if call.feeds_back:
        raise InvalidArgument(
            "error feedback has one residual for a call, and under vmap the whole batch is one "
            "call: average gradients with a codec outside of vmap"
        )
    axis = 0 if call.kind in WHOLE else 1
    arrays = [
        array if dim is None else jnp.moveaxis(array, dim, axis)
        for array, dim in zip(args[1:], dims[1:], strict=True)
    ]
    outs = bind(args[0], arrays, call)
    batched = [None if dim is None else axis for dim in dims[1:]]
    split = call.split(outs)
    counted = batched if split.contributors else []
    return outs, [*batched, *counted, *(None for _ in (*split.origin, *split.outcome))]


def _batch_message(args: Sequence[Any], dims: Sequence[Any], *, call: Call) -> Any:
    """A send whose x alone, or whose ties alone, are batched is one of the whole batch as well."""
    _check_one(dims[0], call)
    handle, *arrays = args
    size = next(array.shape[dim] for array, dim in zip(args, dims, strict=True) if dim is not None)
    if call.kind is Kind.SEND:
        x, dim = arrays[0], dims[1]
        arrays[0] = (
            jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)
        )
    results = tuple(((size, *shape), dtype) for shape, dtype in call.results)
    outs = bind(handle, arrays, call.replace(results=results))
    return outs, [0 if index < len(results) else None for index in range(len(outs))]


def _check_one(dim: Any, call: Call) -> None:
    if dim is not None:
        raise InvalidArgument(
            f"{call.kind.name.lower()}: vmap maps over communicators, or a branch that has the "
            "call is taken by a predicate that is batched: pass one communicator, with in_axes "
            "None, and call outside of such a cond or switch"
        )


def register() -> None:
    """Gives JAX the rules."""
    for kind in TRANSPOSES:
        primitive_batchers[primitive_of(kind)] = _batch
    for kind in (Kind.SEND, Kind.RECV):
        primitive_batchers[primitive_of(kind)] = _batch_message
