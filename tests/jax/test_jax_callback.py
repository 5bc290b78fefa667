"""The way through the host, which programs for GPUs and TPUs take, on the CPU."""

from __future__ import annotations

import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pytest
from jax import lax
from jax._src.interpreters.mlir import ModuleContext
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from pccl_jax import host
from pccl_jax.errors import raised
from pccl_jax.host import PLATFORMS, through_host

import pccl_py as pccl


@pytest.fixture
def chosen(world: pccl.LocalWorld) -> Any:
    """Runs a function in each peer; the first one compiles it for the way through the host."""

    def run(function: Any, *args: Any) -> Any:
        def program(comm: pccl.Communicator) -> Any:
            with through_host():
                return jitted(comm, *(each(comm) for each in args))

        jitted = pj.jit(function)
        return world.run(program)

    return run


def test_every_collective_and_messages_in_the_order_of_the_program(chosen: Any) -> None:
    """Method: equal tags and shapes, so that another order would give other numbers."""

    def program(comm: pj.Comm, x: Any) -> Any:
        rank = x[0]
        total, outcome = pj.all_reduce(comm, {"a": x, "b": rank}, return_outcome=True)
        pj.all_reduce(comm, x)  # of which nobody uses the result
        first = pj.broadcast(comm, x, root=2)
        pj.barrier(comm)
        mine = pj.reduce_scatter(comm, x)
        every = pj.all_gather(comm, rank)
        swapped = pj.all_to_all(comm, x)
        rows = pj.scatter(comm, x, root=1)
        to_one = pj.reduce(comm, x, root=1, op="max")
        return total, outcome, first, mine, every, swapped, rows, to_one, pj.gather(comm, rank)

    made = chosen(program, lambda comm: jnp.arange(3, dtype=jnp.float32) + comm.rank)
    for rank, (total, outcome, first, mine, every, swapped, rows, to_one, all_) in enumerate(made):
        assert total["a"].tolist() == [3.0, 6.0, 9.0] and total["b"] == 3.0
        assert pj.decode(outcome).ranks == (0, 1, 2) and outcome.contributors == 3
        assert first.tolist() == [2.0, 3.0, 4.0] and mine.tolist() == [3.0 * (rank + 1)]
        assert every.tolist() == [0.0, 1.0, 2.0]
        assert swapped.tolist() == [rank, rank + 1.0, rank + 2.0]
        assert rows.tolist() == [rank + 1.0]
        assert to_one.tolist() == ([2.0, 3.0, 4.0] if rank == 1 else [0.0] * 3)
        assert all_.tolist() == ([0.0, 1.0, 2.0] if rank == 0 else [0.0] * 3)


def test_peers_through_the_host_and_others_meet_in_a_scan(world: pccl.LocalWorld) -> None:
    def steps(comm: pj.Comm, rows: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            carry = pj.all_reduce(comm, carry + row, op="avg")
            handle = pj.all_reduce_start(comm, row, tag=1)
            carry = lax.cond(carry[0] > 2, lambda c: pj.all_reduce(comm, c), lambda c: c, carry)
            return carry, pj.all_reduce_done(handle)

        return lax.scan(body, rows[0], rows)

    ours, others = pj.jit(steps), pj.jit(steps)

    def program(comm: pccl.Communicator) -> Any:
        rows = jnp.arange(10, dtype=jnp.float32).reshape(5, 2)
        if comm.rank > 0:
            return others(comm, rows)
        with through_host():
            return ours(comm, rows)

    made = world.run(program)
    np.testing.assert_array_equal(made[0][1], 3 * np.arange(10).reshape(5, 2))
    for carry, totals in made[1:]:
        np.testing.assert_array_equal(carry, made[0][0])
        np.testing.assert_array_equal(totals, made[0][1])


def test_psum_and_pmean_of_a_mesh(chosen: Any) -> None:
    """Method: a mesh of one device; the parts of several go the same way, one after the other."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    mapped = jax.shard_map(
        lambda comm, x: (pj.psum(comm, x, "d"), pj.pmean(comm, {"x": x}, "d", tag=7)),
        mesh=mesh,
        in_specs=(P(), P("d")),
        out_specs=P(),
    )
    for total, mean in chosen(mapped, lambda comm: jnp.full(5, float(comm.rank))):
        assert total.tolist() == [3.0] * 5 and mean["x"].tolist() == [1.0] * 5


def test_dtypes_that_only_move(chosen: Any) -> None:
    def program(comm: pj.Comm, x: Any) -> Any:
        small = pj.all_gather(comm, x.astype(jnp.float8_e4m3fn))
        return pj.all_gather(comm, x > 1), small, pj.all_reduce(comm, x.astype(jnp.bfloat16))

    for truth, small, half in chosen(program, lambda comm: jnp.float32(comm.rank)):
        assert truth.tolist() == [False, False, True]
        assert small.astype(jnp.float32).tolist() == [0.0, 1.0, 2.0]
        assert half.dtype == jnp.bfloat16 and half == 3


def test_errors_are_those_of_pccl_and_the_next_call_works(world: pccl.LocalWorld) -> None:
    shapes = pj.jit(lambda comm, x: pj.all_reduce(comm, x))

    def program(comm: pccl.Communicator) -> float:
        with through_host():
            with pytest.raises(pccl.Mismatch, match="called different things"):
                shapes(comm, jnp.ones(2 + comm.rank))
            # One for each thread: the first call of a function of jax.jit keeps other threads out.
            bare = jax.jit(lambda comm, x: pj.all_gather(comm, x))
            assert bare(comm, jnp.float32(comm.rank)).tolist() == [0.0, 1.0, 2.0]
            if comm.rank == 0:
                comm.close()
                return 2.0
            while not comm.admit().changed:
                comm.barrier()
            with pytest.raises(pccl.Mismatch, match="traced for 3, now 2 ranks"), pj.errors():
                bare(comm, jnp.float32(0))
            with pytest.raises(pccl.InvalidUsage, match="finished before"):
                pj.jit(_finishes_twice)(comm, jnp.float32(1))
            total: float = shapes(comm, jnp.ones(2))[0].item()
            return total

    assert world.run(program) == [2.0] * 3


def test_errors_that_are_kept_hold_no_arrays(world: pccl.LocalWorld) -> None:
    """Frames hold them: of the callback that raised, and of the program that was told."""
    step = pj.jit(lambda comm, x: pj.all_reduce(comm, x))

    def program(comm: pccl.Communicator) -> None:
        with through_host(), pytest.raises(pccl.Mismatch, match="called different things"):
            step(comm, jnp.ones(2 + comm.rank))

    before = len(raised._errors)
    world.run(program)
    kept = list(raised._errors.values())[before:]
    assert len(kept) == 3 and all(each.__traceback__ is None for each in kept)


def _finishes_twice(comm: pj.Comm, x: Any) -> Any:
    handle = pj.all_reduce_start(comm, x, tag=4)
    return pj.all_reduce_done(handle), pj.all_reduce_done(handle)


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_programs_for_gpus_take_this_way_and_it_is_said_once(
    world: pccl.LocalWorld,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
) -> None:
    """Method: lower for a GPU that this machine lacks; the text names what is called.

    JAX asks for the devices of the platform, and reads them only for a TPU, which has no such test.
    """
    monkeypatch.setattr(host._table, "platforms", set())
    monkeypatch.setattr(ModuleContext, "get_backend", lambda *_, **__: None)

    def twice(comm: pj.Comm, x: Any) -> Any:
        return pj.all_reduce(comm, pj.all_reduce(comm, x))

    traced = jax.jit(twice).trace(world.comms[0], jnp.ones(3))
    with caplog.at_level(logging.WARNING, "pccl"):
        texts = [traced.lower(lowering_platforms=(platform,)).as_text() for _ in range(2)]
    for text in texts:
        assert len(re.findall("custom_call @xla_ffi_python_gpu_callback", text)) == 2, text
        assert "pccl_collective" not in text
    said = [each.getMessage() for each in caplog.records if "through the host" in each.getMessage()]
    assert len(said) == 1 and f"programs for {platform} " in said[0]
    assert traced.lower(lowering_platforms=("cpu",)).as_text().count("@pccl_collective") == 2
    assert {platform, "tpu"} < set(PLATFORMS)
