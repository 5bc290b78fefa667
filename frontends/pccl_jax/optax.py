"""Gradients averaged over all members, as a transformation of optax, with error feedback.

    optimizer = optax.chain(pccl_jax.optax.average_gradients(comm, codec="int8"), optax.adam(1e-3))

    @pccl_jax.jit
    def step(comm, params, opt_state, batch):
        grads = jax.grad(loss_of)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params, comm=comm)
        return optax.apply_updates(params, updates), opt_state

The transformation's state is a pytree with what a codec has rounded away, to be saved in
checkpoints with the rest of the optimizer's state. Importing this module needs optax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

try:
    import optax
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pccl_jax.optax needs optax: pip install optax", name=error.name
    ) from error

from pccl_jax.call import Call
from pccl_jax.communicators import Comm, Operand
from pccl_jax.options import asked_of, numbers_of
from pccl_jax.outcomes import WORDS, OutcomeArrays, decode
from pccl_jax.primitive import bind
from pccl_jax.shared_state import EachOwn
from pccl_jax.trees import Leaves
from pccl_py import Codec, CodecKind, CodecName, InvalidArgument, Outcome, Recovery, ReduceOp
from pccl_py.call import Kind, ReduceOptions
from pccl_py.codec import parse_codec
from pccl_py.words import RecoveryName

__all__ = ["AverageState", "average_gradients", "outcome"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AverageState(EachOwn):
    """The state of `average_gradients`; `pccl_jax.SharedState` never copies it between members.

    `residual`: f32, one element for each of the gradients': what the codec has rounded away of this
    member's gradients, to be added to the next gradients; empty without a codec. `contributors`:
    i32, number of members in the last average; 0 before the first. `words`: the outcome of the last
    average, for the function `outcome`.
    """

    residual: Any
    contributors: Any
    words: Any

    @property
    def arrays(self) -> OutcomeArrays:
        """The outcome of the last average, to branch on inside of jit."""
        return OutcomeArrays.of(self.words)


def average_gradients(
    comm: Comm | None = None,
    codec: Codec | CodecKind | CodecName | None = None,
    *,
    tag: int = 0,
    deadline: float | None = None,
    recovery: Recovery | RecoveryName | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Replaces each member's updates by the average of the updates of all contributing members.

    All members must call `update` equally often, with trees of the same names, shapes and dtypes;
    each `update` is one all_reduce. If a member is lost during an `update`, the average is over the
    other members; `outcome` names the contributors. `comm`: the communicator, unless `update` gets
    an argument `comm`. A jitted step should pass `comm` to `update`, so that one program serves
    every communicator.

    `codec`: the encoding of floats on the network, such as "int8", the same on all members; with a
    codec, what is rounded away is added to the next update. With a codec, `update` raises
    InvalidArgument if the updates have another number of elements than the parameters passed to
    `init`. `update` also raises the errors of `pccl_jax.all_reduce`. On an error the state is
    unchanged. `tag`, `deadline`, `recovery`: as in `pccl_jax.all_reduce`.
    """
    coded = None if codec is None else parse_codec(codec)
    feeds_back = coded is not None and coded.encodes
    options: dict[str, Any] = {"op": ReduceOp.AVG, "tag": tag, "return_outcome": True}
    if coded is not None:
        options["codec"] = coded
    if deadline is not None:
        options["deadline"] = deadline
    if recovery is not None:
        options["recovery"] = recovery
    asked, _ = asked_of(Kind.ALL_REDUCE, options)

    def init(params: Any) -> AverageState:
        count = sum(leaf.size for leaf in Leaves.of(params).arrays) if feeds_back else 0
        zero = jnp.zeros((), jnp.int32)
        return AverageState(jnp.zeros(count, jnp.float32), zero, jnp.zeros(WORDS, jnp.uint32))

    def update(
        updates: Any,
        state: AverageState,
        params: Any = None,
        *,
        comm: Comm | None = comm,
        **of_others: Any,
    ) -> tuple[Any, AverageState]:
        for name in ReduceOptions.__annotations__.keys() & of_others.keys():
            raise TypeError(f"update has no argument {name}: pass {name} to average_gradients")
        if comm is None:
            raise InvalidArgument(
                "average_gradients has no communicator: pass it one, or update(..., comm=comm)"
            )
        operand, leaves = Operand.of(comm), Leaves.of(updates)
        leaves.check(ReduceOp.AVG)
        arrays = list(leaves.arrays)
        if feeds_back:
            _check_count(leaves, state)
            arrays.append(state.residual)
        call = Call(
            Kind.ALL_REDUCE,
            numbers_of(asked, leaves.form()),
            tells_outcome=True,
            feeds_back=feeds_back,
        )
        *made, words = bind(operand.handle, arrays, call)
        residual = made.pop() if feeds_back else state.residual
        contributors = OutcomeArrays.of(words).contributors
        return leaves.rebuild(made), AverageState(residual, contributors, words)

    return optax.GradientTransformationExtraArgs(init, update)


def outcome(opt_state: Any) -> Outcome | None:
    """The outcome of the last average, outside of jit; None before the first average.

    `opt_state`: an optimizer's state with exactly one `average_gradients` in it, else
    InvalidArgument. `outcome` also raises the errors of `pccl_jax.decode`.
    """
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda each: isinstance(each, AverageState))
    states = [node for node in nodes if isinstance(node, AverageState)]
    if len(states) != 1:
        raise InvalidArgument(
            f"the state has {len(states)} of average_gradients, and must have one: pass its part"
        )
    (state,) = states
    return decode(state.arrays) if int(state.contributors) > 0 else None


def _check_count(leaves: Leaves, state: AverageState) -> None:
    count = sum(leaf.size for leaf in leaves.arrays)
    if state.residual.size != count:
        raise InvalidArgument(
            f"the updates have {count} elements, and the state was made for {state.residual.size}: "
            "make it anew with init(params)"
        )
