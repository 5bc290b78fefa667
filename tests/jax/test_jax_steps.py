"""`pccl_jax.steps`: a tree that all begin a step with, and the way back from one that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pccl_numpy as pnp
import pytest

import pccl_py as pccl

LOOPBACK = "127.0.0.1:0"
STEPS = 6
# Whether the block fails behind the program: by its number, and in which turn it is.
Fails = Callable[[int, int], bool]


@pytest.fixture
def coordinator() -> Iterator[pccl.Coordinator]:
    with pccl.Coordinator(bind=LOOPBACK) as running:
        yield running


@partial(pj.jit, donate_argnums=(1,))
def add_one(comm: pj.Comm, held: Any) -> Any:
    ones = pj.all_reduce(comm, jnp.ones(held["w"].shape), op="avg")
    return {**held, "w": held["w"] + ones, "done": held["done"] + 1, "own": held["own"] + 1}


def train(token: str, number: int, peers: int, fails: Fails) -> tuple[Any, set[str]]:
    """The tree at the end, which began with other numbers on each peer, and its peer ids."""
    tree: Any = {"w": jnp.full(5, float(number)), "done": 0, "own": np.full(2, number)}
    options: Any = {"token": token, "bind": LOOPBACK, "initial_world_size": peers}
    ids: set[str] = set()
    for turn, step in enumerate(pj.steps(tree, may_differ=["own"], deadline=30.0, **options)):
        ids.add(str(step.comm.peer_id))
        # All members agree about both.
        if step.held["done"] >= STEPS and step.comm.world_size == peers:
            return step.held, ids
        before = jax.tree.map(np.asarray, jax.tree.map(jnp.copy, step.held))
        with step as comm:
            given = step.held
            step.held = add_one(comm, given)
            assert given["w"].is_deleted() and given["own"].is_deleted()
            if fails(number, turn):
                raise pccl.Aborted("made up")
            continue
        jax.tree.map(np.testing.assert_array_equal, step.held, before)
    raise AssertionError("steps has ended by itself")


def run_all(coordinator: pccl.Coordinator, fails: Fails) -> list[tuple[Any, set[str]]]:
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(train, coordinator.token, number, 2, fails) for number in range(2)]
        return [each.result(timeout=60) for each in running]


def test_peers_that_begin_with_other_numbers_end_with_the_same(
    coordinator: pccl.Coordinator,
) -> None:
    for number, (held, ids) in enumerate(run_all(coordinator, lambda *_: False)):
        assert held["done"] == STEPS and isinstance(held["done"], jax.Array)
        first = float(held["w"][0]) - STEPS  # of whoever was elected, the same on both
        assert first in (0, 1) and (held["w"] == first + STEPS).all() and len(ids) == 1
        assert (held["own"] == number + STEPS).all()


def test_a_block_that_fails_gives_back_what_its_program_was_given_for_good(
    coordinator: pccl.Coordinator,
) -> None:
    """Goal: no step counts twice or in half. Method: one peer fails alone behind its program."""
    ended = run_all(coordinator, lambda number, turn: number == 1 and turn == 2)
    trees = [held for held, _ in ended]
    assert [len(ids) for _, ids in ended] == [1, 2]  # it left, and came back
    np.testing.assert_array_equal(*(each["w"] for each in trees))
    assert trees[0]["done"] == trees[1]["done"] >= STEPS
    assert (trees[0]["w"] - trees[0]["done"] == trees[0]["w"][0] - trees[0]["done"]).all()


def test_errors_under_a_bare_jit_are_those_of_pccl(coordinator: pccl.Coordinator) -> None:
    """A Mismatch is raised, and says so: no step that is repeated mends a program."""

    @jax.jit
    def gives(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, x @ x)

    def differ(number: int) -> None:
        options: Any = {"token": coordinator.token, "bind": LOOPBACK, "initial_world_size": 2}
        for step in pj.steps({"x": jnp.ones((3, 3))}, deadline=30.0, **options):
            with step as comm:
                gives(comm, jnp.ones((3 + number, 3 + number)))

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(differ, number) for number in range(2)]:
            with pytest.raises(pccl.Mismatch, match="all_reduce"):
                each.result(timeout=60)


def test_calls_that_write_in_place_lead_to_those_of_pccl_jax() -> None:
    x = jnp.ones(3)
    with pccl.LocalWorld(1) as world:
        (comm,) = world.comms
        for call in (comm.all_reduce, lambda x: comm.shared_state({"x": x})):
            with pytest.raises(pccl.InvalidArgument, match="pccl_jax has the same calls"):
                call(x)
        for traced in (comm.all_reduce, partial(pnp.all_reduce, comm)):
            with pytest.raises(TypeError, match="while JAX traces.*pccl_jax"):
                jax.jit(traced)(x)


def test_arguments_are_checked_before_anything_is_sent() -> None:
    with pytest.raises(pccl.InvalidArgument, match="patience"):
        pj.steps({"x": jnp.ones(1)}, patience=0)
    with pytest.raises(pccl.InvalidUsage, match="traced"):
        jax.jit(lambda x: pj.steps({"x": x}))(jnp.ones(1))
