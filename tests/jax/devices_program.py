"""A peer with several local devices: random programs of psum and pmean, checked by NumPy.

    python tests/jax/devices_program.py DEVICES FIRST_SEED PROGRAMS

It joins the run of PCCL_TOKEN. The tests are in test_jax_devices.py.
"""

from __future__ import annotations

import os
import random
import sys
from functools import partial
from typing import Any

DEVICES, FIRST_SEED, PROGRAMS = map(int, sys.argv[1:4])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pccl_jax as pj  # noqa: E402
import pytest  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import pccl_py as pccl  # noqa: E402


class Drawn:
    """One random program, the same on all peers, and what it must give."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.steps = draw.choice([0, 0, 3])
        self.calls = draw.randint(1, 6)
        self.is_chained = draw.random() < 0.3
        self.is_mean = draw.random() < 0.4
        self.shape = (DEVICES * draw.randint(1, 3), *draw.choice([(), (1,), (7,), (3, 5)]))
        self.dtype = draw.choice(["float32", "bfloat16"] if self.is_mean else ["float32", "int32"])
        is_square = DEVICES >= 4 and draw.random() < 0.4
        self.mesh_shape = (2, DEVICES // 2) if is_square else (DEVICES,)
        self.names = ("a", "b")[: len(self.mesh_shape)]
        self.axes: Any = draw.choice([*self.names, self.names])
        self.numbers = np.random.default_rng(seed)

    def inputs(self, ranks: int) -> list[Any]:
        """Small whole numbers for each rank, so that any order of additions gives the same bits."""
        return [self.numbers.integers(-4, 5, self.shape) * 64 for _ in range(ranks)]

    def run(self, comm: pccl.Communicator) -> None:
        """Raises AssertionError where a device has other bytes than NumPy."""
        every = self.inputs(comm.world_size)
        mesh = Mesh(np.array(jax.devices()).reshape(self.mesh_shape), self.names)
        out = P(None, self.names) if self.steps else P(self.names)
        reduce = pj.pmean if self.is_mean else pj.psum

        @pj.jit
        @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(self.names)), out_specs=out)
        def program(comm: pj.Comm, x: Any) -> Any:
            def once(x: Any) -> list[Any]:
                made: list[Any] = []
                for number in range(self.calls):
                    given = x * (number + 1)
                    if self.is_chained and made:
                        given = given + 0 * made[-1]
                    made.append(reduce(comm, {"x": given}, self.axes)["x"])
                return [lax.pcast(each, self.missing(each), to="varying") for each in made]

            if self.steps == 0:
                return once(x)
            return lax.scan(lambda _, row: (0, once(row)), 0, jnp.stack([x] * self.steps))[1]

        made = program(comm, jnp.asarray(every[comm.rank], self.dtype))
        for number, each in enumerate(made):
            wanted = self.expected(every) * (number + 1)
            got = np.asarray(each).astype(np.float64)
            rows = got.reshape(self.steps or 1, -1)
            np.testing.assert_array_equal(rows, np.stack([wanted.ravel()] * len(rows)))

    def missing(self, array: Any) -> tuple[str, ...]:
        """The axes over which all devices have the same."""
        return tuple(each for each in self.names if each not in jax.typeof(array).mat.varying)

    def expected(self, every: list[Any]) -> Any:
        """All devices' rows, each the reduction over the axes and the ranks."""
        blocks = np.sum(every, axis=0).reshape(*self.mesh_shape, -1)
        which = tuple(self.names.index(each) for each in np.atleast_1d(self.axes))
        made = blocks.sum(axis=which, keepdims=True)
        if self.is_mean:
            made = made / len(every) / np.prod([self.mesh_shape[each] for each in which])
        return np.broadcast_to(made, blocks.shape)


def check_arrays_over_devices(comm: pccl.Communicator) -> None:
    """Outside of shard_map: whole in eager calls, refused in programs."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    x = jax.device_put(
        jnp.arange(4.0 * DEVICES) + comm.rank, jax.sharding.NamedSharding(mesh, P("d"))
    )
    total = pj.all_reduce(comm, x)
    np.testing.assert_array_equal(total, 2 * np.arange(4.0 * DEVICES) + 1)
    assert total.sharding == x.sharding
    every = pj.all_gather(comm, x)
    np.testing.assert_array_equal(every[: 4 * DEVICES], np.arange(4.0 * DEVICES))
    with pytest.raises(pccl.InvalidUsage, match="lie on several local devices"):
        pj.jit(lambda comm, x: pj.all_reduce(comm, x))(comm, x)


def check_errors(comm: pccl.Communicator) -> None:
    """An error of a part is one of PCCL, and the next call works."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    step = pj.jit(
        jax.shard_map(
            lambda comm, x: pj.psum(comm, x, "d"), mesh=mesh, in_specs=(P(), P("d")), out_specs=P()
        )
    )
    with pytest.raises(pccl.Mismatch, match="called different things"):
        step(comm, jnp.ones((DEVICES, DEVICES * (1 + comm.rank))))
    total = step(comm, jnp.ones((DEVICES, 3)))
    np.testing.assert_array_equal(total, np.full((1, 3), 2.0 * DEVICES))


def main() -> None:
    """Prints what has been checked."""
    assert len(jax.devices()) == DEVICES
    with pccl.connect(deadline=60) as comm:
        comm.admit()
        for seed in range(FIRST_SEED, FIRST_SEED + PROGRAMS):
            try:
                Drawn(seed).run(comm)
            except BaseException as error:
                error.add_note(f"seed {seed}, {vars(Drawn(seed))}")
                raise
        check_arrays_over_devices(comm)
        check_errors(comm)
    print(f"checked {PROGRAMS}", flush=True)


main()
