"""PCCL for JAX: collectives inside compiled programs, run in program order, despite lost peers.

    import pccl_jax as pj

    @pj.jit
    def step(comm, params, batch):
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        grads = pj.all_reduce(comm, grads, op="avg")        # a pytree is one operation
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    for turn in pj.steps({"params": params}):               # equal on all members
        with turn as comm:
            params, loss = step(comm, turn.held["params"], batch)   # compiled once
            turn.held = {"params": params}

Functions have the names and arguments of pccl_numpy, take arrays and pytrees, and work eagerly, in
jit, scan, while_loop, cond and checkpoint. Collectives run in the order of the program. A
communicator is an argument of the jitted function, like an array. `return_outcome=True` returns the
outcome as arrays to branch on, which `decode` converts to a `pccl_py.Outcome`. `pccl_jax.jit` and
eager calls raise pccl_py's errors; around a bare jax.jit, `errors()` converts JAX's errors.

collectives.py has the functions, primitive.py the JAX primitives, communicators.py communicators as
operands, derivatives.py the rules of grad and jvp, batching.py the rules of vmap, shared_state.py
the state that newcomers fetch, steps.py the training loop that survives a lost peer. The users'
guide is docs/guides/JAX.md.
"""

try:
    import jax as _  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pccl_jax needs JAX: pip install 'pccl-py[jax]'", name=error.name
    ) from error

from pccl_jax import batching, derivatives
from pccl_jax.collectives import (
    Handle,
    all_gather,
    all_reduce,
    all_reduce_done,
    all_reduce_many,
    all_reduce_start,
    all_to_all,
    barrier,
    broadcast,
    gather,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    send,
)
from pccl_jax.communicators import Comm, Traced
from pccl_jax.compiled import Jitted, jit
from pccl_jax.devices import pmean, psum
from pccl_jax.errors import errors
from pccl_jax.library import EXPORT_CHECKS
from pccl_jax.outcomes import OutcomeArrays, decode
from pccl_jax.shared_state import SharedState, shared_state
from pccl_jax.steps import Step, steps

derivatives.register()
batching.register()

__all__ = [
    "EXPORT_CHECKS",
    "Comm",
    "Handle",
    "Jitted",
    "OutcomeArrays",
    "SharedState",
    "Step",
    "Traced",
    "all_gather",
    "all_reduce",
    "all_reduce_done",
    "all_reduce_many",
    "all_reduce_start",
    "all_to_all",
    "barrier",
    "broadcast",
    "decode",
    "errors",
    "gather",
    "jit",
    "pmean",
    "psum",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "shared_state",
    "steps",
]
