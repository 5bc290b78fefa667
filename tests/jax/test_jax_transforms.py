"""Transformations: what JAX makes of a function has each call of it, as often as the function does.

A member that made a call more or less would wait for the others, or take their next one for it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pccl_jax as pj
import pytest

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


def test_a_function_of_pj_jit_is_transformed_like_any_other() -> None:
    """Goal: grad, vmap, jvp and another program of it. Method: two peers that add up, and an error."""

    def program(comm: pccl.Communicator) -> None:
        # One for each thread, as it is called like a function of jax.jit here.
        step = pj.jit(lambda comm, x: (pj.all_reduce(comm, x) ** 2).sum())
        x = jnp.array([1.0, 2.0])
        grad = jax.grad(step, argnums=1)
        for run in (grad, pj.jit(grad)):
            assert run(comm, x).tolist() == [8.0, 16.0]
        assert jax.vmap(lambda x: step(comm, x))(x[:, None]).tolist() == [4.0, 16.0]
        assert [float(each) for each in jax.jvp(lambda x: step(comm, x), (x,), (x,))] == [20.0, 40.0]
        assert float(pj.jit(lambda comm, x: step(comm, 2 * x))(comm, x)) == 80.0
        with pytest.raises(pccl.Mismatch), pj.errors():
            grad(comm, jnp.ones(1 + comm.rank))
        assert float(step(comm, x)) == 20.0

    with pccl.LocalWorld(2, deadline=5) as world:
        world.run(program)
