"""Averages of gradients as a transformation of optax: values, error feedback, losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pytest

import pccl_py as pccl

optax = pytest.importorskip("optax", reason="optax is not installed", exc_type=ModuleNotFoundError)
import pccl_jax.optax as pj_optax  # noqa: E402

SHAPES = {"w": (50, 41), "b": (300,)}
STEPS = 4


def gradients(rank: int, step: int) -> dict[str, Any]:
    rng = np.random.default_rng((rank, step))
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def zeros() -> dict[str, Any]:
    return {name: jnp.zeros(shape) for name, shape in SHAPES.items()}


def test_sgd_over_three_members_is_that_over_all_their_data(world: pccl.LocalWorld) -> None:
    optimizer = optax.chain(pj_optax.average_gradients(), optax.sgd(0.5))

    @pj.jit
    def step(comm: pj.Comm, params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params, comm=comm)
        return optax.apply_updates(params, updates), state

    def program(comm: pccl.Communicator) -> Any:
        params = zeros()
        state = optimizer.init(params)
        assert pj_optax.outcome(state) is None
        for number in range(STEPS):
            params, state = step(comm, params, state, gradients(comm.rank, number))
            outcome = pj_optax.outcome(state)
            assert outcome is not None and outcome.ranks == (0, 1, 2)
            assert outcome.contributors == comm.members and int(state[0].contributors) == 3
        return params

    wanted = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    for number in range(STEPS):
        for rank in range(3):
            for name, grad in gradients(rank, number).items():
                wanted[name] -= 0.5 * grad / 3
    for made in world.run(program):
        for name in SHAPES:
            np.testing.assert_allclose(made[name], wanted[name], atol=1e-5)
    assert step.compiled == 1


def through_pccl_py(comm: pccl.Communicator) -> list[Any]:
    """The averages of each step, and the residual after it."""
    feedback, told = comm.error_feedback(), []
    for number in range(STEPS):
        grads = gradients(comm.rank, number)
        flat = [grads[name].copy() for name in sorted(SHAPES)]
        comm.all_reduce(flat, op="avg", codec="int4")
        told.append((*flat, np.frombuffer(feedback.save(), np.float32)))
    return told


def test_error_feedback_is_that_of_pccl_py_to_the_bit() -> None:
    """Goal: the residual is right, and is in the state. Method: the same gradients through
    `Group.error_feedback`; between two steps the state goes through a checkpoint."""
    average = pj_optax.average_gradients(codec="int4")

    def update(comm: pj.Comm, grads: Any, state: Any) -> Any:
        return average.update(grads, state, comm=comm)

    def through_jax(call: Any, comm: pccl.Communicator) -> list[Any]:
        state, told = average.init(zeros()), []
        for number in range(STEPS):
            made, state = call(comm, gradients(comm.rank, number), state)
            leaves, treedef = jax.tree.flatten(state)
            saved = [np.array(leaf) for leaf in leaves]
            state = jax.tree.unflatten(treedef, [jnp.asarray(leaf) for leaf in saved])
            told.append((*(made[name] for name in sorted(SHAPES)), state.residual))
        return told

    programs: list[Any] = [
        through_pccl_py,
        partial(through_jax, update),
        partial(through_jax, pj.jit(update)),
    ]
    answers = []
    for program in programs:  # what is rounded how depends on the epoch and the tag
        with pccl.LocalWorld(3, deadline=20) as world:
            answers.append(jax.tree.leaves(world.run(program)))
    for wanted, eager, jitted in zip(*answers, strict=True):
        assert np.abs(wanted).max() > 0
        np.testing.assert_array_equal(eager, wanted)
        np.testing.assert_array_equal(jitted, wanted)


def test_after_a_loss_the_average_says_over_whom_it_is(world: pccl.LocalWorld) -> None:
    average = pj_optax.average_gradients(codec="int8")

    @pj.jit
    def step(comm: pj.Comm, state: Any) -> Any:
        made, state = average.update({"x": jnp.full(9, 1.0)}, state, comm=comm)
        alone = jax.lax.cond(state.arrays.contributors < 3, lambda: True, lambda: False)
        return made["x"], state, alone

    def program(comm: pccl.Communicator) -> Any:
        state = average.init({"x": jnp.zeros(9)})
        step(comm, state)
        if comm.rank == 2:
            comm.close()
            return None
        members = comm.members[:2]
        while True:
            x, state, alone = step(comm, state)
            outcome = pj_optax.outcome(state)
            assert outcome is not None
            np.testing.assert_allclose(x, 1.0, rtol=1e-2)
            if alone:
                assert outcome.contributors == members and int(state.contributors) == 2
                return outcome.digest

    first, second, _ = world.run(program)
    assert first == second


def test_the_residual_stays_with_its_member_in_a_shared_state(world: pccl.LocalWorld) -> None:
    optimizer = optax.chain(pj_optax.average_gradients(codec="int4"), optax.adam(1e-3))

    def program(comm: pccl.Communicator) -> None:
        grads = gradients(comm.rank, 0)
        state: Any = optimizer.init(grads)
        _, state = optimizer.update(grads, state, grads, comm=comm)
        before = np.array(state[0].residual)
        made, outcome = pj.shared_state(comm, state).sync(state, return_outcome=True)
        assert outcome.leaves_moved == 0  # Adam's moments are equal, and the rest does not count
        np.testing.assert_array_equal(made[0].residual, before)

    world.run(program)


def test_derivatives_and_batches_of_an_average_are_right_or_refused() -> None:
    """Method: without a codec against what one member computes; with one there is a reason."""
    grads, many = {"x": jnp.arange(4.0)}, {"x": jnp.arange(12.0).reshape(3, 4)}
    with pccl.LocalWorld(1, deadline=20) as world:
        (comm,) = world.comms
        plain, coded = pj_optax.average_gradients(), pj_optax.average_gradients(codec="int8")

        def squares(average: Any, state: Any) -> Any:
            return lambda x: jnp.sum(average.update(x, state, comm=comm)[0]["x"] ** 2)

        def stacked(state: Any) -> Any:
            return jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state)

        state = plain.init(grads)
        assert jax.grad(squares(plain, state))(grads)["x"].tolist() == [0.0, 2.0, 4.0, 6.0]
        made, _ = jax.vmap(partial(plain.update, comm=comm))(many, stacked(state))
        np.testing.assert_array_equal(made["x"], many["x"])
        state = coded.init(grads)
        with pytest.raises(pccl.InvalidArgument, match="int8 has no derivative"):
            jax.grad(squares(coded, state))(grads)
        for states, axes in ((stacked(state), 0), (state, None)):
            mapped = jax.vmap(partial(coded.update, comm=comm), in_axes=(0, axes))
            for call in (mapped, jax.jit(mapped)):
                with pytest.raises(pccl.InvalidArgument, match="a codec outside of vmap"):
                    call(many, states)


def test_bad_arguments_are_named(world: pccl.LocalWorld) -> None:
    (comm, *_) = world.comms
    average = pj_optax.average_gradients(codec="int8")
    state = average.init(zeros())
    with pytest.raises(pccl.InvalidArgument, match="no communicator: pass it one"):
        average.update(zeros(), state)
    with pytest.raises(pccl.InvalidArgument, match="have 3 elements, .* made for 2350"):
        average.update({"x": jnp.zeros(3)}, state, comm=comm)
    with pytest.raises(pccl.InvalidArgument, match="has 2 of average_gradients"):
        pj_optax.outcome((state, state))
    with pytest.raises(pccl.InvalidArgument, match="int3"):
        pj_optax.average_gradients(codec="int3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pass codec to average_gradients"):
        average.update(zeros(), state, comm=comm, codec="int8")
    with comm_feedback(comm), pytest.raises(pccl.InvalidUsage, match="error feedback by Group"):
        average.update(zeros(), state, comm=comm)


class comm_feedback:
    """Error feedback of a group's own on tag 0."""

    def __init__(self, comm: pccl.Communicator) -> None:
        self.feedback = comm.error_feedback()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.feedback.close()
