"""Shared state of pytrees, and safe points: outside of programs, and new arrays as results."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pccl_numpy as pnp
import pytest
from pccl_jax.shared_state import EachOwn

import pccl_py as pccl


@jax.tree_util.register_dataclass
@dataclass
class Own(EachOwn):
    """A part that each member keeps for itself."""

    seen: Any


def test_what_does_not_change_is_returned_itself(world: pccl.LocalWorld) -> None:
    """Goal: no copy where nothing moves. Method: rank 2 differs in one leaf."""

    def program(comm: pccl.Communicator) -> None:
        other = 5.0 if comm.rank == 2 else 1.0
        tree = {
            "layer": {
                "w": jnp.full((300, 300), other, jnp.float32),
                "b": jnp.zeros(7, jnp.bfloat16),
            }
        }
        with pj.shared_state(comm, tree) as state:
            made, outcome = state.sync(tree, return_outcome=True)
            assert outcome.revision == state.revision == 1
            assert made["layer"]["b"] is tree["layer"]["b"]
            assert (made["layer"]["w"] is tree["layer"]["w"]) == (comm.rank != 2)
            assert (np.asarray(made["layer"]["w"]) == 1.0).all()
            # The array that rank 2 had is as it was.
            assert (np.asarray(tree["layer"]["w"]) == other).all()
            again = state.sync(made)
            assert jax.tree.all(jax.tree.map(lambda x, y: x is y, again, made))
            later = jax.tree.map(lambda x: x + 1, again)
            moved, outcome = state.sync(later, return_outcome=True)
            assert outcome.leaves_moved == 0 and moved["layer"]["w"] is later["layer"]["w"]

    world.run(program)


def test_a_peer_of_numpy_has_the_same_state_under_the_same_names(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        if comm.rank == 0:
            arrays = {"layer.w": np.full((4, 3), 2.0, np.float32), "step": np.array(7, np.int32)}
            pnp.shared_state(comm, arrays).sync("send_only")
            return
        tree: Any = {"layer": {"w": jnp.ones((4, 3))}, "step": jnp.int32(comm.rank)}
        made: Any = pj.shared_state(comm, tree).sync(tree, "receive_only")
        assert (np.asarray(made["layer"]["w"]) == 2.0).all() and made["step"].item() == 7

    world.run(program)


def test_numbers_are_taken_and_no_result_is_weakly_typed(world: pccl.LocalWorld) -> None:
    """A weak type on one member alone would make another program, of other dtypes perhaps."""

    def program(comm: pccl.Communicator) -> None:
        tree: Any = {"rate": 0.5 if comm.rank else 0.25, "step": jnp.asarray(3)}
        made = pj.shared_state(comm, tree).sync(tree, "popular", revision=int(comm.rank == 1))
        assert made["rate"].item() == 0.5 and made["step"].item() == 3
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(made))

    world.run(program)


def test_an_interrupt_behind_the_commit_leaves_no_members_that_differ() -> None:
    """Goal: memory that was elected does not pass for the tree. Method: fail before the return."""

    def program(comm: pccl.Communicator) -> Any:
        tree = {"w": jnp.full(4, comm.rank, jnp.float32)}
        with pj.shared_state(comm, tree) as state:
            if comm.rank == 1:

                def interrupted(*_: Any) -> Any:
                    raise KeyboardInterrupt

                state._made_anew = interrupted  # type: ignore[method-assign, assignment]
                with pytest.raises(KeyboardInterrupt):
                    state.sync(tree)
                del state._made_anew
            else:
                tree = state.sync(tree)
            return state.sync(tree)["w"].tolist()

    with pccl.LocalWorld(2, deadline=20) as world:
        first, second = world.run(program)
    assert first == second


def test_a_state_refuses_what_was_donated_and_keeps_no_array_alive() -> None:
    """Method: donate the very array of the last sync, then let go of the one after it."""
    with pccl.LocalWorld(1, deadline=20) as world:
        (comm,) = world.comms
        tree = {"w": jnp.ones(1000)}
        with pj.shared_state(comm, tree) as state:
            tree = state.sync(tree)
            given = jax.jit(lambda w: w + 1, donate_argnums=0)(tree["w"])
            assert tree["w"].is_deleted()
            with pytest.raises(pccl.InvalidArgument, match="leaf 'w' was donated"):
                state.sync(tree)
            tree = state.sync({"w": given})
            assert tree["w"] is given
            alive = weakref.ref(given)
            del tree, given
            gc.collect()
            assert alive() is None


def test_parts_of_the_tree_may_stay_each_members_own(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        mine = jnp.full(3, comm.rank, jnp.int32)
        tree: Any = {"rng": {"a": mine, "b": mine}, "rng_of_all": jnp.zeros(2), "opt": (Own(mine),)}
        made = pj.shared_state(comm, tree, may_differ=["rng"]).sync(tree)
        assert made["rng"]["a"] is mine and made["rng"]["b"] is mine and made["opt"][0].seen is mine

    world.run(program)


def test_other_trees_than_that_of_the_state_are_refused(world: pccl.LocalWorld) -> None:
    (comm, *_) = world.comms
    tree = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
    state = pj.shared_state(comm, tree)
    with pytest.raises(pccl.InvalidArgument, match="another structure"):
        state.sync({"a": jnp.zeros(3)})
    with pytest.raises(pccl.InvalidArgument, match=r"leaf 'b' is float32\[4\], .*float32\[2\]"):
        state.sync({"a": jnp.zeros(3), "b": jnp.zeros(4)})
    with pytest.raises(pccl.InvalidArgument, match="may_differ names 'c'.*it has a, b"):
        pj.shared_state(comm, tree, name="c", may_differ=["c"])
    with pytest.raises(pccl.InvalidArgument, match="two leaves of the tree have the name 'a.b'"):
        pj.shared_state(comm, {"a": {"b": jnp.zeros(1)}, "a.b": jnp.zeros(1)}, name="d")
    with pytest.raises(TypeError, match="leaf 'key': dtype key"):
        pj.shared_state(comm, {"key": jax.random.key(0)}, name="e")


@pytest.mark.parametrize("jit", [jax.jit, pj.jit, jax.vmap])
def test_safe_points_and_syncs_are_refused_while_jax_traces(jit: Any) -> None:
    """Also of a communicator that the function closes over, in a loop of the program."""
    with pccl.LocalWorld(1, deadline=20) as world:
        (comm,) = world.comms
        x = jnp.zeros(2)
        state = pj.shared_state(comm, x)

        def body(carry: Any, _: Any) -> Any:
            comm.admit()
            return carry, None

        with pytest.raises(pccl.InvalidUsage, match="admit.. inside of a traced function"):
            jit(lambda x: jax.lax.scan(body, x, length=3)[0])(x)
        with pytest.raises(pccl.InvalidUsage, match="sync.. inside of a traced function"):
            jit(state.sync)(x)
        comm.admit()
        assert (np.asarray(state.sync(x)) == 0).all()


def test_an_admit_waits_for_the_programs_before_it(world: pccl.LocalWorld) -> None:
    """Else a newcomer's epoch could begin before a collective that the program has yet to call."""

    def program(comm: pccl.Communicator) -> None:
        step = jax.jit(lambda comm, x: pj.all_reduce(comm, x, return_outcome=True))
        for _ in range(20):
            _, outcome = step(comm, jnp.ones(1000))
            comm.admit()
            assert comm.info().operations_in_flight == 0
        assert pj.decode(outcome).ranks == (0, 1, 2)

    world.run(program)
