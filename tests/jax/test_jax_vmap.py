"""vmap: the whole batch is one operation, which the sequence numbers of operations tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pccl_numpy as pnp
import pytest
from jax import lax

import pccl_py as pccl

RANKS = 3
ROOT = 1
BATCH = 4
COUNTS = [2, 0, 1]


@dataclass(frozen=True)
class Case:
    """A call, and its result on `rank` of the arrays of all ranks, of NumPy."""

    run: Callable[[Any, Any], Any]
    alone: Callable[[list[Any], int], Any]


def third(x: Any, rank: int) -> Any:
    return np.split(x, RANKS)[rank]


CASES: dict[str, Case] = {
    "all_reduce": Case(lambda comm, x: pj.all_reduce(comm, x), lambda xs, _: sum(xs)),
    "all_reduce max": Case(
        lambda comm, x: pj.all_reduce(comm, x, op="max"), lambda xs, _: np.max(xs, axis=0)
    ),
    "reduce": Case(
        lambda comm, x: pj.reduce(comm, x, ROOT),
        lambda xs, rank: sum(xs) * (rank == ROOT),
    ),
    "broadcast": Case(lambda comm, x: pj.broadcast(comm, x, ROOT), lambda xs, _: xs[ROOT]),
    "reduce_scatter": Case(
        lambda comm, x: pj.reduce_scatter(comm, x, op="avg"),
        lambda xs, rank: third(sum(xs) / RANKS, rank),
    ),
    "reduce_scatter counts": Case(
        lambda comm, x: pj.reduce_scatter(comm, x, COUNTS),
        lambda xs, rank: np.split(sum(xs), [2, 2])[rank],
    ),
    "all_gather": Case(lambda comm, x: pj.all_gather(comm, x), lambda xs, _: np.concatenate(xs)),
    "scatter": Case(
        lambda comm, x: pj.scatter(comm, x, root=ROOT), lambda xs, rank: third(xs[ROOT], rank)
    ),
    "gather": Case(
        lambda comm, x: pj.gather(comm, x, root=ROOT),
        lambda xs, rank: np.concatenate(xs) * (rank == ROOT),
    ),
    "all_to_all": Case(
        lambda comm, x: pj.all_to_all(comm, x),
        lambda xs, rank: np.concatenate([third(x, rank) for x in xs]),
    ),
}


def inputs(axis: int, *batch: int) -> list[Any]:
    """An array of each rank: 3 rows of 2, and batches, the first of which is this axis."""
    generator = np.random.default_rng(5)
    made = generator.integers(-9, 9, (RANKS, *batch, 3, 2)).astype(np.float32)
    return [np.moveaxis(each, 0, axis) for each in made]


def operations(comm: pccl.Communicator, run: Any, *args: Any) -> tuple[Any, int]:
    """The result of a call, and how many operations it made."""
    before = comm.barrier().sequence
    made = jax.block_until_ready(run(*args))
    return made, comm.barrier().sequence - before - 1


def either_way(loss: Callable[[Any], Any]) -> list[Any]:
    """The gradients of a batch: vmap of grad, and grad of vmap."""
    mapped: Any = jax.vmap(loss)
    return [jax.vmap(jax.grad(loss)), jax.grad(lambda x: mapped(x).sum())]


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_one_operation(world: pccl.LocalWorld, name: str) -> None:
    """Goal: the result of each element is that of the call for it alone."""
    case = CASES[name]
    axis = list(CASES).index(name) % 3  # of the batch, before, between or behind the others

    @pj.jit
    def mapped(comm: pj.Comm, x: Any) -> Any:
        return jax.vmap(lambda x: case.run(comm, x), in_axes=axis)(x)

    def program(comm: pccl.Communicator) -> None:
        xs = [np.moveaxis(each, axis, 0) for each in inputs(axis, BATCH)]
        wanted = [case.alone([x[index] for x in xs], comm.rank) for index in range(BATCH)]
        made, count = operations(comm, mapped, comm, inputs(axis, BATCH)[comm.rank])
        np.testing.assert_allclose(made, np.stack(wanted), rtol=1e-6)
        assert count == 1

    world.run(program)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_to_all"])
def test_a_batch_of_batches_is_one_operation(world: pccl.LocalWorld, name: str) -> None:
    case = CASES[name]

    def mapped(comm: pj.Comm, x: Any) -> Any:
        return jax.vmap(jax.vmap(lambda x: case.run(comm, x), in_axes=2), in_axes=1)(x)

    def program(comm: pccl.Communicator) -> None:
        # (3, 5, 2, 4): rows, the outer batch, columns, the inner batch.
        xs = [np.transpose(each, (2, 1, 3, 0)) for each in inputs(0, 4, 5)]
        made, count = operations(comm, mapped, comm, xs[comm.rank])
        assert count == 1
        for outer in range(5):
            for inner in range(4):
                wanted = case.alone([x[:, outer, :, inner] for x in xs], comm.rank)
                np.testing.assert_allclose(made[outer, inner], wanted)

    world.run(program)


def test_scalars_trees_and_outcomes(world: pccl.LocalWorld) -> None:
    """Goal: leaves without a batch stay without, and an outcome is that of the one operation."""

    def mapped(comm: pj.Comm, x: Any, b: Any) -> Any:
        def each(x: Any) -> Any:
            total, outcome = pj.all_reduce(comm, {"b": b, "x": x}, return_outcome=True)
            return total, outcome, pj.all_gather(comm, x)

        return jax.vmap(each, out_axes=({"b": None, "x": 0}, None, 0))(x)

    def program(comm: pccl.Communicator) -> None:
        x, b = jnp.arange(4.0) + comm.rank, jnp.ones(2)
        for call in (mapped, pj.jit(mapped)):
            (total, outcome, gathered), count = operations(comm, call, comm, x, b)
            assert count == 2
            assert total["b"].tolist() == [3.0, 3.0] and total["x"].tolist() == [
                3.0,
                6.0,
                9.0,
                12.0,
            ]
            assert gathered.tolist() == [[i, i + 1.0, i + 2.0] for i in range(4)]
            decoded = pj.decode(outcome)
            assert decoded.ranks == (0, 1, 2) and decoded.ranges[0].end == 2 + 4

    world.run(program)


def test_derivatives_of_batches_and_batches_of_derivatives(world: pccl.LocalWorld) -> None:
    """Goal: the same gradients either way, a forward and a backward each; jacobians too."""

    def loss(comm: pj.Comm, x: Any) -> Any:
        mean = pj.all_reduce(comm, x, op="avg")
        return (jnp.sin(mean) * pj.reduce_scatter(comm, x, op="avg").sum()).sum()

    def alone(xs: Any) -> Any:
        """The sum of all losses, of one element of the batch."""
        mean = xs.sum(0) / RANKS
        return sum((jnp.sin(mean) * mean[rank].sum()).sum() for rank in range(RANKS))

    def program(comm: pccl.Communicator) -> None:
        every = jnp.asarray(inputs(0, BATCH)) / 9
        x = every[comm.rank]
        wanted = jax.vmap(jax.grad(alone), in_axes=1, out_axes=1)(every)[comm.rank]

        def one(x: Any) -> Any:
            return loss(comm, x)

        for function in either_way(one):
            made, count = operations(comm, pj.jit(function), x)
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
            assert count == 4

        def means(x: Any) -> Any:
            return pj.all_reduce(comm, x, op="avg") ** 2

        # All peers' tangents are alike, and so are their cotangents: the average has a slope of 1.
        mean = every[:, 0, :, 0].sum(0) / RANKS
        for jacobian in (jax.jacfwd(means), jax.jacrev(means)):
            made, count = operations(comm, jacobian, x[0, :, 0])
            np.testing.assert_allclose(made, np.diag(2 * mean), rtol=1e-5, atol=1e-6)
            assert count == 2

    world.run(program)


def test_a_batch_of_messages_is_one(world: pccl.LocalWorld) -> None:
    """Goal: a pipeline under vmap, and its gradients either way: a message there and one back."""

    def stage(comm: Any, rank: int, w: Any) -> Any:
        if rank == 0:
            return pj.send(comm, jnp.sin(w), 1, return_tie=True)
        if rank == 1:
            return (pj.recv(comm, (2,), w.dtype, 0, tie=w) ** 2 * w).sum()
        return w.sum() * 0

    def alone(ws: Any) -> Any:
        return (jnp.sin(ws[0]) ** 2 * ws[1]).sum()

    def probe(comm: pccl.Communicator, src: int) -> int:
        """The number of the next message from `src` to the other of the two."""
        data = np.zeros(1, np.uint8)
        outcome = comm.send(data, 1 - src) if comm.rank == src else comm.recv(data, src)
        return outcome.sequence

    def program(comm: pccl.Communicator) -> None:
        ws = jnp.asarray(np.random.default_rng(2).standard_normal((RANKS, BATCH, 2)), jnp.float32)
        wanted = jax.grad(alone)(ws)[comm.rank]

        def one(w: Any) -> Any:
            return stage(comm, comm.rank, w)

        for function in either_way(one):
            for call in (function, pj.jit(function)):
                before = [probe(comm, src) for src in (0, 1) if comm.rank < 2]
                made = jax.block_until_ready(call(ws[comm.rank]))
                np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)
                after = [probe(comm, src) for src in (0, 1) if comm.rank < 2]
                # One each way between the probes.
                assert after == [number + 2 for number in before]

    world.run(program)


@pytest.mark.parametrize("compile", [lambda f: f, pj.jit], ids=["eager", "jit"])
def test_a_batch_meets_an_array_of_its_shape(world: pccl.LocalWorld, compile: Any) -> None:
    """Rank 0 maps over rows of 3 or over columns, and the others have the whole in NumPy."""
    over = {
        axis: compile(lambda comm, x, axis=axis: jax.vmap(partial(pj.all_reduce, comm), axis)(x))
        for axis in (0, 1)
    }
    whole = np.arange(6, dtype=np.float32).reshape(2, 3)

    def program(comm: pccl.Communicator) -> None:
        for axis, call in over.items():
            x = whole if axis == 0 else whole.T
            made = pnp.all_reduce(comm, whole) if comm.rank else call(comm, jnp.asarray(x))
            assert np.array_equal(made, RANKS * whole)
        with pytest.raises(pccl.Mismatch, match=r"\(here \((2, 3|3, 2)\)\): pass arrays of one"):
            pnp.all_reduce(comm, whole.T) if comm.rank else over[0](comm, jnp.asarray(whole))

    world.run(program)


def test_loops_of_batches_make_one_operation_a_step(world: pccl.LocalWorld) -> None:
    """Goal: scan, and a while_loop that goes on until all elements are done."""

    def scanned(comm: pj.Comm, x: Any) -> Any:
        def body(x: Any, _: None) -> Any:
            return pj.all_reduce(comm, x, op="avg") + 1, None

        return lax.scan(body, x, None, length=3)[0]

    def repeated(comm: pj.Comm, x: Any) -> Any:
        return lax.while_loop(lambda x: x < 5, lambda x: pj.all_reduce(comm, x, op="avg") + 1, x)

    def program(comm: pccl.Communicator) -> None:
        x = jnp.arange(4.0)
        for mapped, wanted, calls in (
            (scanned_batch, [3.0, 4.0, 5.0, 6.0], 3),
            (repeated_batch, [5.0] * 4, 5),
        ):
            made, count = operations(comm, mapped, comm, x)
            assert made.tolist() == wanted and count == calls

    scanned_batch = pj.jit(jax.vmap(scanned, in_axes=(None, 0)))
    repeated_batch = pj.jit(jax.vmap(repeated, in_axes=(None, 0)))
    world.run(program)


def test_a_batch_of_communicators_is_refused() -> None:
    with pccl.LocalWorld(1, deadline=20) as world:
        (comm,) = world.comms
        handles, treedef = jax.tree.flatten(comm)
        both = jax.tree.unflatten(treedef, [jnp.stack([jnp.asarray(handles[0])] * 2)])
        with pytest.raises(pccl.InvalidArgument, match="all_reduce: vmap maps over communicators"):
            jax.vmap(lambda comm, x: pj.all_reduce(comm, x))(both, jnp.ones(2))


def test_a_branch_that_is_batched_is_refused() -> None:
    def branched(comm: pj.Comm, x: Any) -> Any:
        return lax.cond(x > 1, lambda x: pj.all_reduce(comm, x), lambda x: x, x)

    with pccl.LocalWorld(1, deadline=20) as world:
        mapped = jax.vmap(branched, in_axes=(None, 0))
        with pytest.raises(pccl.InvalidArgument, match="a predicate that is batched"):
            jax.make_jaxpr(mapped)(world.comms[0], jnp.arange(4.0))
