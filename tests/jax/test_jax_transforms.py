"""Transformations: what JAX makes of a function has each call of it, as often as the function does.

A member that made a call more or less would wait for the others, or take their next one for it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pccl_jax as pj

import pccl_py as pccl


def test_a_checkpoint_keeps_the_backward_of_a_result_that_is_not_used() -> None:
    """Goal: all peers make the same calls backward. Method: one peer's loss uses another result."""

    def loss(comm: pj.Comm, is_used: bool, x: Any) -> Any:
        total, own = jax.checkpoint(lambda x: (jnp.sin(pj.all_reduce(comm, x)), 2 * x))(x)
        return total.sum() if is_used else own.sum()

    def program(comm: pccl.Communicator) -> Any:
        return jax.grad(lambda x: loss(comm, comm.rank == 0, x))(jnp.zeros(2)).tolist()

    with pccl.LocalWorld(2, deadline=5) as world:
        assert world.run(program) == [[1.0, 1.0], [3.0, 3.0]]
