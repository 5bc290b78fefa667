"""Several local devices: psum and pmean of two processes with 2, 4 and 8 devices on two cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

import pccl_py as pccl

PROGRAM = Path(__file__).with_name("devices_program.py")


def run(devices: int, first_seed: int, programs: int, seconds_max: float) -> None:
    """Two peers, of which both must check all programs; a hang is a failure."""
    with pccl.Coordinator(initial_world_size=2) as coordinator:
        command = [sys.executable, str(PROGRAM), str(devices), str(first_seed), str(programs)]
        environment = {**os.environ, "PCCL_TOKEN": coordinator.token, "NPROC": "2"}
        peers = [
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for _ in range(2)
        ]
        try:
            for peer in peers:
                said, _ = peer.communicate(timeout=seconds_max)
                assert peer.returncode == 0 and said.endswith(f"checked {programs}\n"), said
        finally:
            for peer in peers:
                peer.kill()
                peer.wait()


def test_random_programs_agree_with_numpy() -> None:
    run(2, 200, 3, 120)


@pytest.mark.long
@pytest.mark.parametrize("devices", [4, 8])
def test_twelve_random_programs_agree_with_numpy(devices: int) -> None:
    run(devices, 1000 * devices, 12, 600)


def test_psum_says_what_is_wrong(world: pccl.LocalWorld) -> None:
    comm, mesh = world.comms[0], Mesh(np.array(jax.devices()[:1]), ("d",))

    def lowered(function: Callable[[Any], Any]) -> None:
        mapped = jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        jax.jit(mapped).lower(jnp.ones(4, jnp.int32))

    with pytest.raises(pccl.InvalidArgument, match="'d' must name axes .* which has none"):
        pj.psum(comm, jnp.ones(2), "d")
    with pytest.raises(pccl.InvalidArgument, match="'e' must name axes .* which has 'd'"):
        lowered(lambda x: pj.psum(comm, x, "e"))
    with pytest.raises(pccl.InvalidArgument, match="dtype is int32: use psum"):
        lowered(lambda x: pj.pmean(comm, x, "d"))
    with pytest.raises(pccl.InvalidUsage, match="no derivative"):
        lowered(lambda x: jax.grad(lambda x: pj.psum(comm, x, "d")[0])(x.astype(float)))


def test_psum_refuses_axes_that_are_left_to_the_compiler(world: pccl.LocalWorld) -> None:
    """XLA would end the process while it compiles. Axes of one device do not matter."""
    comm = world.comms[0]

    def shape(b: int) -> Any:
        mesh = AbstractMesh((2, b), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
        mapped = jax.shard_map(
            lambda x: pj.psum(comm, x, "a"),
            mesh=mesh,
            in_specs=P("a"),
            out_specs=P(),
            axis_names={"a"},
        )
        return jax.eval_shape(jax.jit(mapped), jax.ShapeDtypeStruct((4,), jnp.float32)).shape

    assert shape(1) == (2,)
    with pytest.raises(pccl.InvalidUsage, match="leaves the axis 'b' of its mesh to the compiler"):
        shape(2)


def test_one_device_needs_no_other(world: pccl.LocalWorld) -> None:
    """A mesh of one device is a mesh, and an array without elements an array."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    step = pj.jit(
        jax.shard_map(
            lambda comm, x: (pj.psum(comm, x, "d"), pj.pmean(comm, x, "d")),
            mesh=mesh,
            in_specs=(P(), P("d")),
            out_specs=P(),
        )
    )

    def program(comm: pccl.Communicator) -> list[float]:
        assert [each.shape for each in step(comm, jnp.zeros((0, 2)))] == [(0, 2)] * 2
        total, mean = step(comm, jnp.full(5, float(comm.rank)))
        return [total[0].item(), mean[4].item()]

    assert world.run(program) == [[3.0, 1.0]] * 3
