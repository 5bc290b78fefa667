"""Derivatives: against a program of one process, where lax.psum adds up.

In the one process vmap runs all ranks at once, and the sum of their losses is differentiated
without any communication. Rows that differ from rank to rank have no such program: lists of arrays
stand for the ranks there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pytest
from jax import lax

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
        lambda comm, rank, x: pj.all_to_all(comm, x, SENT[rank], [counts[rank] for counts in SENT]),
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
    """Goal: jvp, grad, and each of both. Method: the sum of all losses, differentiated alone.

    The second derivatives are alike in both arguments: grad of the grad along the directions, and
    grad of jvp, are jvp of grad, whose product with the directions is jvp of jvp.
    """
    case = CASES[name]
    with jax.enable_x64(True):
        xs, directions = inputs(case), inputs(case, seed=8)

        def total(*xs: Any) -> Any:
            made = results_alone(case, [jnp.sin(x) for x in xs])
            return sum(loss_of(each, rank) for rank, each in enumerate(made))

        every = tuple(range(RANKS))
        gradient = jax.grad(total, argnums=every)
        wanted = [*jax.jvp(total, xs, directions), *jax.jvp(gradient, xs, directions)]
        bent = sum((a * b).sum() for a, b in zip(wanted[3], directions, strict=True))

    def program(comm: pccl.Communicator) -> Any:
        rank = comm.rank

        def loss(x: Any) -> Any:
            return loss_of(case.run(comm, rank, jnp.sin(x)), rank)

        def along(function: Callable[[Any], Any]) -> Any:
            return jax.jvp(function, (xs[rank],), (directions[rank],))

        def slope(x: Any) -> Any:
            return (jax.grad(loss)(x) * directions[rank]).sum()

        def tangent(x: Any) -> Any:
            return jax.jvp(loss, (x,), (directions[rank],))[1]

        with jax.enable_x64(True):
            gradient, jvp_of_grad = along(jax.grad(loss))
            np.testing.assert_allclose(gradient, wanted[2][rank], rtol=1e-10, atol=1e-12)
            for made in (jvp_of_grad, jax.grad(slope)(xs[rank]), jax.grad(tangent)(xs[rank])):
                np.testing.assert_allclose(made, wanted[3][rank], rtol=1e-10, atol=1e-12)
            return [float(each) for each in (loss(xs[rank]), *along(tangent))]

    sums = np.sum(world.run(program), axis=0)
    np.testing.assert_allclose(sums, [wanted[0], wanted[1], bent], rtol=1e-10)


# ---- programs ------------------------------------------------------------------------------------


def one_step(reduce: Callable[[Any], Any], mean: Callable[[Any], Any], x: Any, w: Any) -> Any:
    """A loss through checkpoint, scan, cond and independent calls, with the same in lax or here."""

    @jax.checkpoint
    def layer(h: Any, w: Any) -> Any:
        return jnp.tanh(reduce(h @ w))

    def body(h: Any, w: Any) -> Any:
        h = layer(h, w)
        return h, mean(h * h).sum()

    h, means = lax.scan(body, x, w)
    h = lax.cond(means[0] >= 0.0, lambda h: reduce(h * 0.1), lambda h: reduce(h), h)
    left, right = reduce(jnp.sin(h)), mean(jnp.cos(h))
    return (left * right).sum() + means.sum()


def test_a_jitted_step_has_the_gradients_of_one_process(world: pccl.LocalWorld) -> None:
    """Goal: jit, checkpoint, scan and cond, differentiated twice, by one program for all ranks."""
    generator = np.random.default_rng(3)
    xs = generator.standard_normal((RANKS, 2, 4)).astype(np.float32)
    ws = (0.3 * generator.standard_normal((RANKS, 3, 4, 4))).astype(np.float32)

    def total(xs: Any, ws: Any) -> Any:
        step: Any = jax.vmap(
            lambda x, w: one_step(lambda h: lax.psum(h, AXIS), lambda h: lax.pmean(h, AXIS), x, w),
            axis_name=AXIS,
        )
        return step(xs, ws).sum()

    def both(total: Any, xs: Any, ws: Any) -> Any:
        gradients = jax.grad(total, argnums=(0, 1))
        return jax.jvp(gradients, (xs, ws), (xs, ws))

    wanted = jax.jit(lambda xs, ws: both(total, xs, ws))(xs, ws)

    @pj.jit
    def distributed(comm: pj.Comm, x: Any, w: Any) -> Any:
        def loss(x: Any, w: Any) -> Any:
            return one_step(
                lambda h: pj.all_reduce(comm, h),
                lambda h: pj.all_reduce(comm, h, op="avg"),
                x,
                w,
            )

        return both(loss, x, w)

    def program(comm: pccl.Communicator) -> None:
        made = distributed(comm, xs[comm.rank], ws[comm.rank])
        own = jax.tree.map(lambda each: each[comm.rank], wanted)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), made, own)

    world.run(program)
    assert distributed.compiled == 1


def test_a_custom_vjp_may_have_collectives(world: pccl.LocalWorld) -> None:
    """Goal: a codec forward, and a backward of one's own; the remedy that the error names."""

    @jax.custom_vjp
    def rounded_sum(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, x, codec="bf16")

    def forward(comm: pj.Comm, x: Any) -> Any:
        return rounded_sum(comm, x), comm

    def backward(comm: pj.Comm, cotangent: Any) -> Any:
        return None, pj.all_reduce(comm, cotangent)

    rounded_sum.defvjp(forward, backward)
    step = pj.jit(jax.grad(lambda x, comm: (rounded_sum(comm, x) ** 2).sum()))

    def program(comm: pccl.Communicator) -> None:
        for call in (step, jax.grad(lambda x, comm: (rounded_sum(comm, x) ** 2).sum())):
            assert call(jnp.ones(4), comm).tolist() == [18.0] * 4

    world.run(program)


def test_the_backward_pass_has_one_order(world: pccl.LocalWorld) -> None:
    """Goal: all calls go back, in one order, also those that a rank's loss does not need.

    Method: independent calls of different sizes, so that any other order is a Mismatch; each rank
    uses one of them alone.
    """

    def loss(comm: pj.Comm, used: int, x: Any) -> Any:
        made = [
            pj.all_reduce(comm, x),
            pj.all_gather(comm, x[:1]),
            pj.broadcast(comm, x[:2], 2),
            pj.reduce_scatter(comm, jnp.tile(x, 3), op="avg"),
        ]
        return made[used].sum() if used < len(made) else jnp.float32(0)

    def program(comm: pccl.Communicator) -> Any:
        x = jnp.arange(3.0)
        eager = jax.grad(lambda x: loss(comm, comm.rank + 1, x))(x)
        jitted = pj.jit(jax.grad(lambda x: loss(comm, 4 * comm.rank, x)))(x)
        return eager.tolist(), jitted.tolist()

    # Rank 0 uses the gather, of which each rank's first element is a part; rank 1 the broadcast of
    # rank 2; rank 2 its third of the averages, which are of all three elements of each tile.
    third = 1 / 3
    eager = [[1 + third] + [third] * 2] * 2 + [[2 + third, 1 + third, third]]
    for rank, (first, second) in enumerate(world.run(program)):
        np.testing.assert_allclose(first, eager[rank], rtol=1e-6)
        assert second == [1.0] * 3  # rank 0 alone has a loss


def test_a_tree_moves_its_floats_alone(world: pccl.LocalWorld) -> None:
    """Goal: integers have no tangents, and their neighbours keep their names in errors."""

    def loss(x: Any, n: Any, h: Any, comm: pj.Comm) -> Any:
        tree = {"h": h, "n": n, "x": [x]}
        made, outcome = pj.all_reduce(comm, tree, op="avg", return_outcome=True)
        total = (made["x"][0] ** 2).sum() + made["h"].astype(jnp.float32).sum() + made["n"].sum()
        return total, outcome

    def program(comm: pccl.Communicator) -> None:
        given = jnp.ones(3), jnp.arange(2), jnp.ones(2, jnp.float16)
        for transform in (lambda function: function, pj.jit):
            gradients, outcome = transform(jax.grad(loss, argnums=(0, 2), has_aux=True))(
                *given, comm
            )
            assert pj.decode(outcome).ranks == (0, 1, 2)
            assert [each.tolist() for each in gradients] == [[2.0] * 3, [1.0] * 2]
            assert [each.dtype for each in gradients] == [np.float32, np.float16]

    world.run(program)


# ---- messages ------------------------------------------------------------------------------------


def stages(comm: Any, rank: int, w: Any, x: Any) -> Any:
    """A pipeline of three: each passes its activations on, and the last has the loss."""
    h = jnp.sin(x * w)
    if rank > 0:
        h = h * pj.recv(comm, x.shape, x.dtype, src=rank - 1, tie=w)
    if rank < RANKS - 1:
        return pj.send(comm, h, dst=rank + 1, return_tie=True)
    return (h**3).sum()


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_gradients_go_the_way_back_of_messages(world: pccl.LocalWorld, jitted: bool) -> None:
    xs = jnp.asarray(np.random.default_rng(1).standard_normal((RANKS, 4)), jnp.float32)

    def alone(xs: Any) -> Any:
        h = jnp.ones(4)
        for x in xs:
            h = h * jnp.sin(x * x)
        return (h**3).sum()

    with jax.default_matmul_precision("highest"):
        first = jax.grad(alone)(xs)
        second = jax.jvp(jax.grad(alone), (xs,), (xs,))[1]
        third = jax.grad(lambda xs: (jax.grad(alone)(xs) ** 2).sum())(xs)

    def program(comm: pccl.Communicator) -> None:
        gradient = jax.grad(lambda x: stages(comm, comm.rank, x, x))
        found = [
            gradient,
            lambda x: jax.jvp(gradient, (x,), (x,))[1],
            jax.grad(lambda x: (gradient(x) ** 2).sum()),
        ]
        for wanted, function in zip((first, second, third), found, strict=True):
            call: Any = pj.jit(function) if jitted else function
            made = call(xs[comm.rank])
            np.testing.assert_allclose(made, wanted[comm.rank], rtol=1e-4, atol=1e-5)

    world.run(program)


def test_a_send_without_a_tie_is_refused_while_it_is_traced() -> None:
    def program(comm: pccl.Communicator) -> None:
        x = jnp.ones(3)
        with pytest.raises(pccl.InvalidArgument, match="return_tie=True"):
            jax.make_jaxpr(jax.grad(lambda x: (pj.send(comm, x, 1), x.sum())[1]))(x)
        with pytest.raises(pccl.InvalidArgument, match="int32 has none"):
            pj.send(comm, jnp.arange(3), 1, return_tie=True)
        with pytest.raises(pccl.InvalidArgument, match="must be an array of floats, not of int32"):
            pj.recv(comm, 3, jnp.float32, 1, tie=jnp.arange(3))

    with pccl.LocalWorld(2, deadline=20) as world:
        world.run(program)


def test_a_tie_and_an_outcome_come_together() -> None:
    def program(comm: pccl.Communicator) -> Any:
        if comm.rank == 0:
            tie, outcome = pj.send(comm, jnp.ones(3), 1, return_tie=True, return_outcome=True)
            assert tie.shape == () and tie.dtype.name == "float32" and tie.item() == 0.0
        else:
            made, outcome = pj.recv(comm, 3, jnp.float32, 0, tie=jnp.ones(2), return_outcome=True)
            assert made.tolist() == [1.0] * 3
        return pj.decode(outcome).sequence

    with pccl.LocalWorld(2, deadline=20) as world:
        assert len(set(world.run(program))) == 1


# ---- what has none -------------------------------------------------------------------------------


def test_calls_without_a_derivative_say_why_while_they_are_traced() -> None:
    options: tuple[tuple[dict[str, Any], str], ...] = (
        ({"op": "min"}, "op min has no derivative: it is that of those ranks alone"),
        ({"op": "max"}, "op max has no derivative: it is that of those ranks alone"),
        ({"op": "prod"}, "op prod has no derivative: for each rank it is the product"),
        ({"codec": "int8"}, "codec int8 has no derivative: rounding is constant"),
        ({"codec": "bf16"}, "codec bf16 has no derivative: rounding is constant"),
    )
    x = jnp.ones(3)

    def check(comm: pccl.Communicator, named: dict[str, Any], said: str) -> None:
        def loss(x: Any) -> Any:
            return pj.all_reduce(comm, x, **named).sum()

        before = comm.barrier().sequence
        for transform in (
            lambda x: jax.jvp(loss, (x,), (x,)),
            jax.grad(loss),
            jax.grad(jax.jit(loss)),
            jax.grad(jax.checkpoint(loss)),
        ):
            with pytest.raises(pccl.InvalidArgument, match=said):
                jax.make_jaxpr(transform)(x)
        stopped = jax.grad(lambda x: loss(lax.stop_gradient(x)) + x.sum())
        assert stopped(x).tolist() == [1.0] * 3
        # Nothing was called but this one.
        assert comm.barrier().sequence == before + 2, said

    with pccl.LocalWorld(1, deadline=20) as world:
        for named, said in options:
            check(world.comms[0], named, said)


def test_transposes_that_cannot_be_say_why() -> None:
    with pccl.LocalWorld(1, deadline=20) as world:
        (comm,) = world.comms
        small = jnp.ones(3, jnp.float8_e5m2)
        moved = jax.grad(lambda x: pj.broadcast(comm, x).astype(jnp.float32).sum())
        with pytest.raises(TypeError, match="backward pass of broadcast adds up: dtype float8"):
            jax.make_jaxpr(moved)(small)
        with pytest.raises(TypeError, match="float4_e2m1fn has no derivatives here"):
            jax.make_jaxpr(moved)(jnp.ones(3, jnp.float4_e2m1fn))
        average = jax.linear_transpose(lambda x: pj.all_reduce(comm, x, op="avg"), jnp.ones(3))
        with pytest.raises(pccl.InvalidArgument, match="not transposed by itself"):
            average(jnp.ones(3))
        total = jax.linear_transpose(lambda x: pj.all_reduce(comm, x), jnp.ones(3))
        assert total(jnp.ones(3))[0].tolist() == [1.0] * 3


# ---- losses and epochs between the passes --------------------------------------------------------


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_a_loss_between_the_passes_keeps_the_divisor(world: pccl.LocalWorld, jitted: bool) -> None:
    """Goal: backward divides by the contributors of the call, not by those that are left."""

    def forward(comm: pj.Comm, x: Any) -> Any:
        return jax.vjp(lambda x: pj.all_reduce(comm, x, op="avg"), x)

    ahead, back = (pj.jit(forward), pj.jit(lambda vjp, y: vjp(y))) if jitted else (forward, None)

    def program(comm: pccl.Communicator) -> Any:
        y, vjp = ahead(comm, jnp.float32(3 * comm.rank))
        assert y.item() == 3.0
        if comm.rank == 2:
            comm.close()
            return None
        (x,) = back(vjp, jnp.float32(3)) if back else vjp(jnp.float32(3))
        return x.item(), pj.all_reduce(comm, jnp.float32(1), op="avg", return_outcome=True)[1]

    for made, outcome in world.run(program)[:2]:
        assert made == 2.0  # (3 + 3) / 3
        assert int(outcome.contributors) == 2


def test_tangents_and_cotangents_of_an_average_keep_to_float16(world: pccl.LocalWorld) -> None:
    """Goal: neither a sum of float16 overflows, nor does a part of one vanish."""

    def check(comm: pccl.Communicator, kind: str, value: float) -> None:
        options: dict[str, Any] = {"root": 0} if kind == "reduce" else {}
        x = jnp.full(RANKS, value, jnp.float16)

        def call(x: Any) -> Any:
            return getattr(pj, kind)(comm, x, op="avg", **options)

        y, tangent = jax.jvp(call, (x,), (x,))
        made, vjp = jax.vjp(call, x)
        (cotangent,) = vjp(jnp.full(made.shape, value, jnp.float16))
        assert tangent.dtype == cotangent.dtype == jnp.float16
        if kind == "all_reduce":
            assert (cotangent == x).all(), value
        else:  # of one rank's result alone
            third = (np.float32(value) / RANKS).astype(np.float16)
            assert (cotangent == third).all(), (kind, value)
        if kind != "reduce" or comm.rank == 0:
            assert (tangent == value).all() and (y == value).all(), (kind, value)

    def program(comm: pccl.Communicator) -> None:
        for kind in ("all_reduce", "reduce", "reduce_scatter"):
            for value in (60000, 2**-24, -(2**-20)):
                check(comm, kind, value)

    world.run(program)


def test_a_loss_inside_of_an_average_is_divided_range_by_range() -> None:
    """Goal: where ranges have different contributors, so has the backward pass.

    Method: a peer leaves in the middle, later from world to world until its loss splits the result.
    Its elements are such that a value tells who is in it, wherever the loss falls.
    """
    elements = 1 << 22

    @pj.jit
    def step(comm: pj.Comm, x: Any) -> Any:
        y, vjp = jax.vjp(lambda x: pj.all_reduce(comm, x, op="avg"), x)
        return y, vjp(jnp.ones(elements))[0]

    def program(comm: pccl.Communicator, wait_seconds: float) -> Any:
        if comm.rank == 2:
            work = comm.all_reduce(np.full(elements, 4, np.float32), op="avg", async_op=True)
            with contextlib.suppress(TimeoutError):
                work.wait(wait_seconds)
            comm.close()
            return []
        y, gradient = map(np.asarray, step(comm, jnp.ones(elements)))
        assert np.isin(y, [1, 2]).all()
        np.testing.assert_allclose(gradient, np.where(y == 2, 2 / 3, 1), rtol=1e-6)
        return np.unique(y).tolist()

    for attempt in range(40):
        with pccl.LocalWorld(3, deadline=20) as world:
            if world.run(functools.partial(program, wait_seconds=0.001 * attempt))[0] == [1, 2]:
                return
    pytest.fail("no loss fell into the middle of an average of 16 MiB")


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_a_backward_of_another_epoch_is_refused(world: pccl.LocalWorld, jitted: bool) -> None:
    def forward(comm: pj.Comm, x: Any) -> Any:
        return jax.vjp(lambda x: pj.broadcast(comm, x, 0), x)[1]

    ahead, back = (pj.jit(forward), pj.jit(lambda vjp, y: vjp(y))) if jitted else (forward, None)

    def program(comm: pccl.Communicator) -> None:
        x = jnp.float32(1)
        vjp = ahead(comm, x)
        if comm.rank == 2:
            comm.close()
            return
        while not comm.admit().changed:
            comm.barrier()
        with pytest.raises(pccl.InvalidUsage, match=r"broadcast|reduce") as raised:
            back(vjp, x) if back else vjp(x)
        assert "derivative is of a call in epoch 1" in str(raised.value)
        assert pj.all_reduce(comm, x).item() == 2.0

    world.run(program)
