"""An average lies between the least and the greatest of its inputs, but for the rounding of their
sum: for every dtype, plan, codec and world size, also where the sum is no number of the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl

COUNT = 1000
FLOATS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
PLANS = ("ring", "direct")
# A code can be off by so much, relative to the greatest magnitude of its block or range.
STEPS = {
    "bf16": 2**-8,
    "f16": 2**-10,
    "int8": 1 / 100,
    "int6": 1 / 25,
    "int5": 1 / 12,
    "int4": 1 / 5,
    "e3m0": 1 / 2,
    "fp8_e4m3": 1 / 12,
    "min_max_u8": 1 / 100,
    "zero_point_u8": 1 / 100,
}


@pytest.fixture(scope="module", params=[2, 3, 5, 7])
def world(request: pytest.FixtureRequest) -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(request.param, deadline=60) as made:
        yield made


def averages(world: pccl.LocalWorld, inputs: list[np.ndarray], **options: Any) -> np.ndarray:
    """The result of an all_reduce, which all hold bit by bit."""
    results = world.run(lambda comm: pnp.all_reduce(comm, inputs[comm.rank], op="avg", **options))
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()
    return np.asarray(results[0])


def check(result: np.ndarray, inputs: list[np.ndarray], slack: float) -> None:
    """`slack` is relative to the greatest magnitude of all inputs."""
    wide = np.array(inputs).astype(np.longdouble)
    room = slack * np.abs(wide).max(axis=0)
    got = result.astype(np.longdouble)
    assert np.isfinite(got).all(), (
        result[~np.isfinite(got)][:3],
        wide[:, ~np.isfinite(got)][:, :3],
    )
    assert (got >= wide.min(axis=0) - room).all()
    assert (got <= wide.max(axis=0) + room).all()


def info(dtype: Any) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def epsilon(dtype: Any) -> float:
    return float(info(dtype).eps)


def greatest(dtype: Any) -> float:
    return float(info(dtype).max)


def near_the_greatest(dtype: Any, world_size: int) -> list[list[np.ndarray]]:
    """Arrays of one rank each: all equal, all near, and of both signs."""
    random = np.random.default_rng(1)
    most = greatest(dtype)
    return [
        [np.full(COUNT, most * part).astype(dtype) for _ in range(world_size)] for part in (1, -1)
    ] + [
        [(most * random.uniform(least, 1, COUNT)).astype(dtype) for _ in range(world_size)]
        for least in (0.9, -1)
    ]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", FLOATS)
def test_floats_whose_sum_is_infinite(
    world: pccl.LocalWorld, name: str, plan: pccl.PlanName
) -> None:
    dtype = FLOATS[name]
    for inputs in near_the_greatest(dtype, len(world.comms)):
        # Each of the sums on the way is rounded.
        check(averages(world, inputs, plan=plan), inputs, len(world.comms) * epsilon(dtype))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", ["reduce", "reduce_scatter"])
def test_at_one_rank(world: pccl.LocalWorld, kind: str, plan: pccl.PlanName) -> None:
    size = len(world.comms)
    inputs = [np.full(size * 8, 60000, np.float16) for _ in range(size)]

    def program(comm: pccl.Communicator) -> np.ndarray | None:
        mine = inputs[comm.rank].copy()
        if kind == "reduce":
            comm.reduce(mine, root=0, op="avg", plan=plan)
            return mine if comm.rank == 0 else None
        out = np.zeros(8, np.float16)
        comm.reduce_scatter(mine, out, op="avg", plan=plan)
        return out

    for result in world.run(program):
        if result is not None:
            check(result, [each[: len(result)] for each in inputs], size * 2**-10)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_exact(world: pccl.LocalWorld, dtype: Any, plan: pccl.PlanName) -> None:
    limits = np.iinfo(dtype)
    random = np.random.default_rng(2)
    inputs = [
        random.integers(limits.min, limits.max, COUNT, dtype) for _ in range(len(world.comms))
    ]
    for each in inputs:
        each[:10], each[10:20] = limits.max, limits.min
    sums = [sum(int(each[at]) for each in inputs) for at in range(COUNT)]
    wanted = [abs(total) // len(world.comms) * (1 if total >= 0 else -1) for total in sums]
    assert averages(world, inputs, plan=plan).tolist() == wanted


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", FLOATS)
def test_what_was_exact_is(world: pccl.LocalWorld, name: str, plan: pccl.PlanName) -> None:
    """Small integers whose average is one, and the least number of all."""
    dtype, size = FLOATS[name], len(world.comms)
    random = np.random.default_rng(3)
    whole = random.integers(-9, 10, (size, COUNT))
    whole[0] -= whole.sum(axis=0) % size
    result = averages(world, [row.astype(dtype) for row in whole], plan=plan)
    assert (result.astype(np.int64) == whole.sum(axis=0) // size).all()

    least = float(info(dtype).smallest_subnormal)
    inputs = [np.full(COUNT, least).astype(dtype) for _ in range(size)]
    tiny = averages(world, inputs, plan=plan).astype(np.longdouble) / np.longdouble(least)
    # Round the ring each sum is rounded to a multiple of the least number.
    assert (tiny >= 1).all() and (tiny <= (2 if plan == "ring" else 1)).all(), tiny


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("codec", STEPS)
def test_codecs(world: pccl.LocalWorld, codec: str, plan: pccl.PlanName) -> None:
    """Numbers of a sum that the codec, or f32, has no code for."""
    most = 65504.0 if codec == "f16" else 2.0**126.9
    random = np.random.default_rng(4)
    for inputs in (
        [np.full(COUNT, most, np.float32) for _ in range(len(world.comms))],
        [(most * random.uniform(-1, 1, COUNT)).astype(np.float32) for _ in range(len(world.comms))],
    ):
        result = averages(world, inputs, plan=plan, codec=codec_of(codec))
        wide = np.array(inputs).astype(np.longdouble)
        room = STEPS[codec] * len(world.comms) * np.abs(wide).max()
        got = result.astype(np.longdouble)
        assert np.isfinite(got).all(), result[~np.isfinite(got)][:3]
        assert (got >= wide.min(axis=0) - room).all()
        assert (got <= wide.max(axis=0) + room).all()


def codec_of(name: Any) -> pccl.Codec:
    """Not rotated: the magnitudes of a rotated block are greater than its elements."""
    blocks = ("int8", "int6", "int5", "int4", "e3m0", "fp8_e4m3")
    return pccl.Codec(name, rotate=False) if name in blocks else pccl.Codec(name)


@pytest.mark.parametrize("plan", PLANS)
def test_a_codec_loses_no_small_numbers_to_room_for_great_ones(
    world: pccl.LocalWorld, plan: pccl.PlanName
) -> None:
    random = np.random.default_rng(5)
    inputs = [
        (random.normal(size=COUNT) * 1e-30).astype(np.float32) for _ in range(len(world.comms))
    ]
    for codec in ("int8", "bf16", "min_max_u8"):
        result = averages(world, inputs, plan=plan, codec=codec_of(codec))
        room = STEPS[codec] * len(world.comms) * np.abs(np.array(inputs)).max()
        assert (np.abs(result - np.mean(inputs, axis=0)) <= room).all()
