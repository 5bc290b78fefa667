"""vmap of collectives: one operation carries the whole batch.

In all_reduce, reduce and broadcast the batch becomes the first axis of an array. In collectives
where ranks have rows, the rows stay the first axis and the batch becomes the second: a rank's rows
hold all elements of the batch. A message carries the whole batch. vmap leaves the unbatched arrays
of a tree unchanged. All peers must batch the same arrays, with the same batch size.

The batch has one outcome, as it is one operation. vmap over a communicator raises InvalidArgument
while tracing; so does a call in a `cond` or `switch` with a batched predicate, because JAX then
runs all branches and batches the communicator.
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
    """Binds one call for the whole batch; returns its results and the batch axis of each."""
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
    """Binds one send or recv for the whole batch, also if only `x` or only a tie is batched."""
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
    """Registers the vmap rules of all collectives and messages with JAX."""
    for kind in TRANSPOSES:
        primitive_batchers[primitive_of(kind)] = _batch
    for kind in (Kind.SEND, Kind.RECV):
        primitive_batchers[primitive_of(kind)] = _batch_message
