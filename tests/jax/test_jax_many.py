"""all_reduce_many: results, outcomes, peers of other frontends, repeats, where it is refused.

The order of operations in flight is that of pccl_py: tests/python/test_api_many.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pccl_numpy as pnp
import pytest

import pccl_py as pccl

DEADLINE_SECONDS = 20


def test_each_array_has_an_operation_of_its_own_beside_numpy(world: pccl.LocalWorld) -> None:
    """Goal: arrays, scalars and trees get their results. Method: one peer is one of NumPy."""

    def program(comm: pccl.Communicator) -> None:
        number = comm.rank + 1.0
        xs = [
            np.full((7, 3), number, np.float32),
            np.float32(number),
            {"w": np.full(5, number, "f4")},
        ]
        if comm.rank == 0:
            pnp.tree.all_reduce_many(comm, xs, tag=5, in_flight=2)
            return
        ours = jax.tree.map(jnp.asarray, xs)
        made, outcomes = pj.all_reduce_many(comm, ours, tag=5, in_flight=1, return_outcome=True)
        wide: Any = made[0]
        assert wide.shape == (7, 3) and (wide == 6.0).all()
        scalar: Any = made[1]
        assert isinstance(scalar, jax.Array) and scalar.shape == () and scalar == 6.0
        tree: Any = made[2]
        assert (tree["w"] == 6.0).all()
        assert [pj.decode(each).tag for each in outcomes] == [5, 6, 7]
        assert all(pj.decode(each).ranks == (0, 1, 2) for each in outcomes)

    world.run(program)


def test_what_a_loss_has_aborted_is_made_again() -> None:
    """Method: one of three leaves while four operations are in flight that raise after a loss."""
    with pccl.LocalWorld(3, deadline=DEADLINE_SECONDS) as world, ThreadPoolExecutor(2) as pool:
        *stay, leaver = world.comms
        xs = [jnp.full(100, float(each)) for each in range(6)]

        def call(comm: pccl.Communicator) -> Any:
            return pj.all_reduce_many(comm, xs, recovery="raise", in_flight=4, return_outcome=True)

        running = [pool.submit(call, comm) for comm in stay]
        for comm in stay:
            while comm.info().operations_in_flight < 4:
                continue
        leaver.close()
        for each in running:
            made, outcomes = each.result(DEADLINE_SECONDS)
            assert [x[0].item() for x in made] == [2.0 * number for number in range(6)]
            assert [int(outcome.sequence) for outcome in outcomes] == [1] * 4 + [0] * 2


def test_where_it_is_refused_and_what_is_no_array() -> None:
    with pccl.LocalWorld(1, deadline=DEADLINE_SECONDS) as world:
        (comm,) = world.comms
        x = jnp.ones(3)
        with pytest.raises(pccl.InvalidUsage, match="outside of jit; or begin each array"):
            pj.jit(lambda comm, x: pj.all_reduce_many(comm, [x, x]))(comm, x)
        with pytest.raises(pccl.InvalidUsage, match="inside of a traced function"):
            jax.grad(lambda x: pj.all_reduce_many(comm, [x])[0].sum())(x)
        with pytest.raises(TypeError, match=r"xs\[1\]: dtype complex\d+ is not supported"):
            pj.all_reduce_many(comm, [x, x * 1j])
        with pytest.raises(pccl.InvalidArgument, match=r"in_flight must be between 1 and 64"):
            pj.all_reduce_many(comm, [x], in_flight=0)
        with pytest.raises(pccl.InvalidArgument, match="xs is empty"):
            pj.all_reduce_many(comm, [])
        with pytest.raises(TypeError, match="must be a Communicator or a Group, not int"):
            pj.all_reduce_many(3, [x])  # type: ignore[call-overload]
        (same, twice) = pj.all_reduce_many(comm, [x, x])
        assert (same == x).all() and (twice == x).all()
