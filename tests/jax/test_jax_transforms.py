"""Transformations: what JAX makes of a function has each call of it, as often as the function does.

A member that made a call more or less would wait for the others, or take their next one for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pccl_jax as pj
import pytest
from jax import lax

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
    """Goal: grad, vmap, jvp and another program of it. Method: a sum over two, and an error."""

    def program(comm: pccl.Communicator) -> None:
        # One for each thread, as it is called like a function of jax.jit here.
        step = pj.jit(lambda comm, x: (pj.all_reduce(comm, x) ** 2).sum())
        x = jnp.array([1.0, 2.0])
        grad = jax.grad(step, argnums=1)
        for run in (grad, pj.jit(grad)):
            assert run(comm, x).tolist() == [8.0, 16.0]
        assert jax.vmap(lambda x: step(comm, x))(x[:, None]).tolist() == [4.0, 16.0]
        made = jax.jvp(lambda x: step(comm, x), (x,), (x,))
        assert [float(each) for each in made] == [20.0, 40.0]
        assert float(pj.jit(lambda comm, x: step(comm, 2 * x))(comm, x)) == 80.0
        with pytest.raises(pccl.Mismatch), pj.errors():
            grad(comm, jnp.ones(1 + comm.rank))
        assert float(step(comm, x)) == 20.0

    with pccl.LocalWorld(2, deadline=5) as world:
        world.run(program)


@pytest.mark.parametrize("around", [lambda f: f, jax.checkpoint, jax.jit])
def test_a_differentiated_loop_makes_each_call_in_each_step(around: Callable[..., Any]) -> None:
    """Goal: a call of constants is not made once for all steps. Method: constants on one peer.

    The other peer broadcasts another value in each step, so that one of them is not enough.
    """

    def program(comm: pccl.Communicator) -> Any:
        def body(carry: Any, value: Any) -> tuple[Any, None]:
            pj.barrier(comm, tag=1)
            given = value if comm.rank == 0 else jnp.float32(0)
            return carry * pj.broadcast(comm, given), None

        def loss(x: Any) -> Any:
            return lax.scan(body, x, jnp.arange(1.0, 4.0))[0].sum()

        return jax.grad(around(loss))(jnp.ones(2)).tolist()

    with pccl.LocalWorld(2, deadline=5) as world:
        assert world.run(program) == [[6.0, 6.0]] * 2


def test_a_linearized_while_loop_repeats_its_calls() -> None:
    """A limit that the page names. Method: the sequence numbers of one peer's calls."""
    with pccl.LocalWorld(1, deadline=5) as world:
        (comm,) = world.comms

        def sequence() -> int:
            return pj.decode(pj.all_reduce(comm, 1.0, return_outcome=True)[1]).sequence

        def loop(x: Any) -> Any:
            def step(state: Any) -> Any:
                return pj.all_reduce(comm, state[0]), state[1] + 1

            return lax.while_loop(lambda state: state[1] < 3, step, (x, 0))[0]

        numbers = [sequence()]
        _, linear = jax.linearize(loop, jnp.ones(2))
        numbers.append(sequence())
        assert linear(jnp.ones(2)).tolist() == [1.0, 1.0]
        numbers.append(sequence())
    assert [later - each - 1 for each, later in itertools.pairwise(numbers)] == [3, 6]
