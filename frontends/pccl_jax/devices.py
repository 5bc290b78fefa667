"""psum and pmean inside of shard_map: one reduction over the local devices and over the peers.

    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=P())
    def step(comm, params, batch):
        grads = jax.grad(loss_of)(params, batch)
        return pj.pmean(comm, grads, "d")       # of all devices of all peers

One communicator serves all local devices of a process. First a lax.psum_scatter adds up over the
local devices and leaves each device one part of the sum; then each device all_reduces its part with
the same part of the other peers; then the local devices gather all parts. So the network carries
the sum once. Part i has the call's tag plus i, and each device makes its calls in the order of the
program. The handler is in bindings/jax_parts.c.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias, TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pccl_jax import host, library
from pccl_jax.call import Call
from pccl_jax.communicators import Comm, Operand
from pccl_jax.effects import ORDERED_ON_DEVICES
from pccl_jax.options import asked_of, numbers_of
from pccl_jax.primitive import lower, register
from pccl_jax.trees import Leaves
from pccl_jax.versions import Primitive, primitive_batchers, primitive_jvps
from pccl_py import InvalidArgument, InvalidUsage, ReduceOp
from pccl_py.call import Kind, MoveOptions, documented

T = TypeVar("T")
AxisNames: TypeAlias = Hashable | Sequence[Hashable]

# Default tag of the first part: far above tags of other calls that may be in flight meanwhile.
TAG = 1 << 32


@documented(MoveOptions)
def psum(comm: Comm, x: T, axis_name: AxisNames, **options: Unpack[MoveOptions]) -> T:
    """The sum of `x` over the local devices along `axis_name` and over all members, on all.

    `x`: an array of a dtype in `pccl_py.DType`, or a pytree of such arrays, inside of shard_map.
    `axis_name`: one axis of the shard_map's mesh, or several. The mesh is of local devices; all
    peers must have equally many devices and make the same calls in the same order. Each device of
    the mesh uses a tag of its own, from `tag` on (default 2**32). Positions along an axis that is
    not named reduce separately, even if their values are equal. After a loss each device's part of
    the sum is recovered separately, so parts may differ in contributors. psum has no derivative.
    """
    result: T = _reduce("psum", comm, x, axis_name, options)
    return result


@documented(MoveOptions)
def pmean(comm: Comm, x: T, axis_name: AxisNames, **options: Unpack[MoveOptions]) -> T:
    """The mean of `x` over the local devices along `axis_name` and over all members, on all.

    `x` must be of floats. The sum is divided by the number of devices, and by the number of members
    that contributed. Everything else is as in `psum`.
    """
    result: T = _reduce("pmean", comm, x, axis_name, options)
    return result


def _reduce(name: str, comm: Comm, x: Any, axis_name: AxisNames, options: Any) -> Any:
    operand, rest = Operand.of(comm), dict(options)
    first = rest.pop("tag", TAG)
    op = ReduceOp.AVG if name == "pmean" else ReduceOp.SUM
    asked, _ = asked_of(Kind.ALL_REDUCE, {**rest, "op": op, "tag": first})
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(mesh.manual_axes)
    names = tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)
    if not names or not set(names) <= set(axes):
        raise InvalidArgument(
            f"{name}: {axis_name!r} must name axes of the shard_map around it, which has "
            f"{', '.join(map(repr, axes)) or 'none'}; outside of one call all_reduce"
        )
    left = [each for each, size in mesh.shape.items() if each not in axes and size > 1]
    if left:
        raise InvalidUsage(
            f"{name}: the shard_map around it leaves the axis {left[0]!r} of its mesh to the "
            "compiler, which cannot divide a collective: name all axes of the mesh in axis_names"
        )
    leaves = Leaves.of(x)
    leaves.check(op)
    lane = lax.axis_index(axes).astype(np.uint32)
    made = []
    call = Call(Kind.ALL_REDUCE, numbers_of(asked, leaves.form()))
    for array in leaves.arrays:
        if op is ReduceOp.AVG and not jnp.issubdtype(array.dtype, jnp.floating):
            raise InvalidArgument(f"pmean is of floats, and dtype is {array.dtype}: use psum")
        made.append(_whole(operand.handle, lane, array, names, op, call))
    return leaves.rebuild(made)


def _whole(
    handle: Any, lane: Any, array: Any, names: tuple[Hashable, ...], op: ReduceOp, call: Call
) -> Any:
    """Reduces one array: sums over the axes, all_reduces this device's part, gathers all parts."""
    count = math.prod(lax.axis_size(each) for each in names)
    flat = array.reshape(-1)
    # Padded so that each device gets a part, even of an empty array: psum_scatter needs elements.
    padded = jnp.pad(flat, (0, -flat.size % count if flat.size else count))
    missing = tuple(each for each in names if each not in jax.typeof(padded).mat.varying)
    if missing and jax.typeof(lane).mat.varying:
        padded = lax.pcast(padded, missing, to="varying")
    if op is ReduceOp.AVG:
        # Scaled down by a power of two before the sum, so that the sum cannot overflow.
        wide = jnp.promote_types(array.dtype, jnp.float32)
        down = 0.5 ** math.ceil(math.log2(count))
        part = lax.psum_scatter(padded.astype(wide) * np.array(down, wide), names, tiled=True)
        part = (part / np.array(count * down, wide)).astype(array.dtype)
    else:
        part = lax.psum_scatter(padded, names, tiled=True)
    (part,) = _part.bind(handle, lane, part, call=call)
    return lax.all_gather(part, names, tiled=True, to="invarying")[: flat.size].reshape(array.shape)


# ---- the primitive ------------------------------------------------------------------------------


def _abstract(_: Any, __: Any, part: Any, call: Call) -> tuple[list[Any], set[Any]]:
    return [part.update(weak_type=False)], {ORDERED_ON_DEVICES}


def _lower(context: Any, handle: Any, lane: Any, part: Any, call: Call) -> Any:
    words = call.words([context.avals_in[-1].shape])
    return lower(
        context, library.TARGET_PART, ORDERED_ON_DEVICES, (handle, lane, part), words, {2: 0}
    )


def _through_host(call: Call, handle: Any, given: list[Any], results: Sequence[Any]) -> list[Any]:
    lane, part = given
    numbers = list(call.options)
    numbers[1] += int(lane)
    return host.collective(call.replace(options=tuple(numbers)), handle, [part], results)


def _outside(*_: Any, **__: Any) -> Any:
    raise InvalidUsage("psum and pmean are for shard_map: call all_reduce outside of it")


def _refused(*_: Any, **__: Any) -> Any:
    raise InvalidUsage(
        "psum and pmean of pccl_jax have no derivative and no batches: call them on gradients, "
        "outside of grad and vmap"
    )


_part = Primitive("pccl_part")
_part.multiple_results = True
_part.def_effectful_abstract_eval(_abstract)
_part.def_impl(_outside)
primitive_jvps[_part] = _refused
primitive_batchers[_part] = _refused
register(_part, _lower, _through_host, ORDERED_ON_DEVICES)
