"""Derivatives: against a program of one process, where lax.psum adds up, and by check_grads.

In the one process vmap runs all ranks at once, and the sum of their losses is differentiated
without any communication. Rows that differ from rank to rank have no such program: lists of arrays
stand for the ranks there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pytest
from jax import lax
from jax.test_util import check_grads

import pccl_py as pccl

RANKS = 3
ROOT = 1
COUNTS = [2, 0, 1]
SENT = [[1, 0, 2], [0, 1, 0], [1, 1, 0]]
AXIS = "peers"


@dataclass(frozen=True)
class Case:
    """The rows of each rank; the call; what lax makes of one rank's x, or lists of all of them."""

    rows: Sequence[int]
    run: Callable[[Any, int, Any], Any]
    lax: Callable[[Any], Any] | None = None
    alone: Callable[[list[Any]], list[Any]] | None = None


def only_root(made: Any) -> Any:
    return jnp.where(lax.axis_index(AXIS) == ROOT, made, 0)


def split(x: Any, counts: Sequence[int]) -> list[Any]:
    return jnp.split(x, np.cumsum(counts)[:-1])


def root_alone(made: Any) -> list[Any]:
    return [made if rank == ROOT else jnp.zeros_like(made) for rank in range(RANKS)]


EVEN = (3,) * RANKS
CASES: dict[str, Case] = {
    "all_reduce": Case(
        EVEN, lambda comm, _, x: pj.all_reduce(comm, x), lambda x: lax.psum(x, AXIS)
    ),
    "all_reduce avg": Case(
        EVEN, lambda comm, _, x: pj.all_reduce(comm, x, op="avg"), lambda x: lax.pmean(x, AXIS)
    ),
    "reduce": Case(
        EVEN, lambda comm, _, x: pj.reduce(comm, x, ROOT), lambda x: only_root(lax.psum(x, AXIS))
    ),
    "reduce avg": Case(
        EVEN,
        lambda comm, _, x: pj.reduce(comm, x, ROOT, op="avg"),
        lambda x: only_root(lax.pmean(x, AXIS)),
    ),
    "broadcast": Case(
        EVEN,
        lambda comm, _, x: pj.broadcast(comm, x, ROOT),
        lambda x: lax.all_gather(x, AXIS)[ROOT],
    ),
    "reduce_scatter": Case(
        EVEN,
        lambda comm, _, x: pj.reduce_scatter(comm, x),
        lambda x: lax.psum_scatter(x, AXIS, tiled=True),
    ),
    "reduce_scatter avg": Case(
        EVEN,
        lambda comm, _, x: pj.reduce_scatter(comm, x, op="avg"),
        lambda x: lax.psum_scatter(x, AXIS, tiled=True) / RANKS,
    ),
    "reduce_scatter counts avg": Case(
        EVEN,
        lambda comm, _, x: pj.reduce_scatter(comm, x, COUNTS, op="avg"),
        alone=lambda xs: split(sum(xs) / RANKS, COUNTS),
    ),
    "all_gather": Case(
        (2,) * RANKS,
        lambda comm, _, x: pj.all_gather(comm, x),
        lambda x: lax.all_gather(x, AXIS, tiled=True),
    ),
    "all_gather counts": Case(
        COUNTS,
        lambda comm, _, x: pj.all_gather(comm, x, COUNTS),
        alone=lambda xs: [jnp.concatenate(xs)] * RANKS,
    ),
    "scatter": Case(
        EVEN,
        lambda comm, _, x: pj.scatter(comm, x, root=ROOT),
        lambda x: lax.all_gather(x, AXIS)[ROOT][lax.axis_index(AXIS)][None],
    ),
    "scatter counts": Case(
        EVEN,
        lambda comm, _, x: pj.scatter(comm, x, root=ROOT, counts=COUNTS),
        alone=lambda xs: split(xs[ROOT], COUNTS),
    ),
    "gather": Case(
        EVEN,
        lambda comm, _, x: pj.gather(comm, x, root=ROOT),
        lambda x: only_root(lax.all_gather(x, AXIS, tiled=True)),
    ),
    "gather counts": Case(
        COUNTS,
        lambda comm, _, x: pj.gather(comm, x, root=ROOT, counts=COUNTS),
        alone=lambda xs: root_alone(jnp.concatenate(xs)),
    ),
    "all_to_all": Case(
        EVEN,
        lambda comm, _, x: pj.all_to_all(comm, x),
        lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True),
    ),
    "all_to_all counts": Case(
        [sum(counts) for counts in SENT],
        lambda comm, rank, x: pj.all_to_all(
            comm, x, SENT[rank], [counts[rank] for counts in SENT]
        ),
        alone=lambda xs: [
            jnp.concatenate([split(x, SENT[sender])[rank] for sender, x in enumerate(xs)])
            for rank in range(RANKS)
        ],
    ),
}


def results_alone(case: Case, xs: Sequence[Any]) -> list[Any]:
    """The result of each rank, in one process."""
    if case.alone is not None:
        return case.alone(list(xs))
    assert case.lax is not None
    return list(jax.vmap(case.lax, axis_name=AXIS)(jnp.stack(xs)))


def inputs(case: Case, seed: int = 7) -> tuple[Any, ...]:
    generator = np.random.default_rng(seed)
    return tuple(jnp.asarray(generator.standard_normal((rows, 2))) for rows in case.rows)


def loss_of(made: Any, rank: int) -> Any:
    """Another function of each rank and of each element, and not linear."""
    weights = jnp.arange(1.0, made.size + 1).reshape(made.shape)
    return (weights * jnp.cos(made)).sum() * (rank + 1)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_one_process(world: pccl.LocalWorld, name: str) -> None:
    """Goal: jvp, grad, and jvp of grad. Method: the sum of all losses, differentiated alone."""
    case = CASES[name]
    with jax.enable_x64(True):
        xs, directions = inputs(case), inputs(case, seed=8)

        def total(*xs: Any) -> Any:
            made = results_alone(case, [jnp.sin(x) for x in xs])
            return sum(loss_of(each, rank) for rank, each in enumerate(made))

        every = tuple(range(RANKS))
        gradient = jax.grad(total, argnums=every)
        wanted = [*jax.jvp(total, xs, directions), *jax.jvp(gradient, xs, directions)]

    def program(comm: pccl.Communicator) -> Any:
        rank = comm.rank

        def loss(x: Any) -> Any:
            return loss_of(case.run(comm, rank, jnp.sin(x)), rank)

        with jax.enable_x64(True):
            first = jax.jvp(loss, (xs[rank],), (directions[rank],))
            second = jax.jvp(jax.grad(loss), (xs[rank],), (directions[rank],))
            np.testing.assert_allclose(second[0], wanted[2][rank], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(second[1], wanted[3][rank], rtol=1e-10, atol=1e-12)
            return [float(each) for each in first]

    values, tangents = zip(*world.run(program), strict=True)
    np.testing.assert_allclose(sum(values), wanted[0], rtol=1e-10)
    np.testing.assert_allclose(sum(tangents), wanted[1], rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_check_grads(world: pccl.LocalWorld, name: str) -> None:
    """Goal: JVP and VJP of JVP and VJP. Method: a function of all ranks' inputs, alike on each.

    The average of equal inputs has the average of all peers' gradients, which are those of each
    rank's own part; the gathered results are on all, three times in the sum of the losses.
    """
    case = CASES[name]
    with jax.enable_x64(True):
        xs = inputs(case)
        sizes = [each.size for each in results_alone(case, xs)]

    def program(comm: pccl.Communicator) -> None:
        def everything(*xs: Any) -> Any:
            own = pj.all_reduce(comm, xs, op="avg")[comm.rank]
            made = case.run(comm, comm.rank, jnp.sin(own))
            return pj.all_gather(comm, jnp.cos(made).ravel(), sizes)

        with jax.enable_x64(True):
            check_grads(everything, xs, order=2, modes=["fwd", "rev"])

    world.run(program)
