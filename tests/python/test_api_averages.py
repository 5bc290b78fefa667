"""An average lies between the least and the greatest of its inputs, but for the rounding of their
sum: for every dtype, plan, codec and world size, also where the sum is no number of the dtype.
"""

from __future__ import annotations

import math
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

BLOCKS = ("int8", "int6", "int5", "int4", "e3m0", "fp8_e4m3")


@pytest.fixture(scope="module", params=[2, 3, 5, 7])
def world(request: pytest.FixtureRequest) -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(request.param, deadline=60) as made:
        yield made


@pytest.fixture(scope="module", params=[3, 7, 16, 24])
def any_world(request: pytest.FixtureRequest) -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(request.param, deadline=60) as made:
        yield made


def averages(world: pccl.LocalWorld, inputs: list[np.ndarray], **options: Any) -> np.ndarray:
    return all_reduced(world, inputs, op="avg", **options)


def all_reduced(world: pccl.LocalWorld, inputs: list[np.ndarray], **options: Any) -> np.ndarray:
    """The result of an all_reduce, which all hold bit by bit."""
    results = world.run(lambda comm: pnp.all_reduce(comm, inputs[comm.rank], **options))
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
    """Small integers whose average is one."""
    dtype, size = FLOATS[name], len(world.comms)
    random = np.random.default_rng(3)
    whole = random.integers(-9, 10, (size, COUNT))
    whole[0] -= whole.sum(axis=0) % size
    result = averages(world, [row.astype(dtype) for row in whole], plan=plan)
    assert (result.astype(np.int64) == whole.sum(axis=0) // size).all()


SMALL = {
    "f16": (1e-7, 1e-5),
    "bf16": (1e-40, 1e-37),
    "f32": (1e-44, 1e-37),
    "f64": (1e-322, 1e-307),
}


def small(dtype: Any, size: int, least: float, most: float) -> list[list[np.ndarray]]:
    """Arrays of one rank each: the least number of all, equal small ones, and any small ones."""
    random = np.random.default_rng(6)
    unit = float(info(dtype).smallest_subnormal)
    drawn = np.exp(random.uniform(math.log(least), math.log(most), (size, COUNT))).astype(dtype)
    return [
        [np.full(COUNT, unit).astype(dtype)] * size,
        [drawn[0]] * size,
        list(drawn),
        [-row if rank % 2 else row for rank, row in enumerate(drawn)],
    ]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", FLOATS)
def test_small_numbers_do_not_vanish(any_world: pccl.LocalWorld, name: str, plan: Any) -> None:
    """Round the ring floats that travel in their own width lose least numbers, half as many as
    there are members; float16 does not.
    """
    dtype, size = FLOATS[name], len(any_world.comms)
    unit = np.longdouble(float(info(dtype).smallest_subnormal))
    loses = plan == "ring" and name != "f16"
    # There is no rounding of sums that an average of float16 could have seen.
    slack = 0 if name == "f16" else size * epsilon(dtype)
    for inputs in small(dtype, size, *SMALL[name]):
        wide = np.array(inputs).astype(np.longdouble)
        result = averages(any_world, inputs, plan=plan)
        room = np.maximum(unit * (size if loses else 1), epsilon(dtype) * np.abs(wide.mean(0))) / 2
        room += slack * np.abs(wide).max(axis=0)
        assert (np.abs(result.astype(np.longdouble) - wide.mean(axis=0)) <= room * 1.001).all()
        if not loses:
            check(result, inputs, slack)


@pytest.mark.parametrize("plan", PLANS)
def test_the_codec_f16_keeps_small_numbers(any_world: pccl.LocalWorld, plan: Any) -> None:
    for inputs in small(np.float16, len(any_world.comms), *SMALL["f16"]):
        given = [each.astype(np.float32) for each in inputs]
        result = averages(any_world, given, plan=plan, codec="f16")
        check(result, given, 0)
        assert (np.abs(result - np.mean(given, axis=0, dtype=np.float64)) <= 2**-25 * 1.001).all()


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
    """Not rotated: the error of each element is that of its own code."""
    return pccl.Codec(name, rotate=False) if name in BLOCKS else pccl.Codec(name)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("codec", BLOCKS)
def test_rotated_blocks_take_every_finite_number(
    world: pccl.LocalWorld, codec: Any, plan: pccl.PlanName
) -> None:
    """Rounding is spread over the elements of a block."""
    size = len(world.comms)
    random = np.random.default_rng(7)
    most = float(np.finfo(np.float32).max)
    beside_ones = np.ones(COUNT)
    beside_ones[::300] = -most
    for row in (np.full(COUNT, most), most * random.uniform(-1, 1, COUNT), beside_ones):
        for op, part in (("avg", 1), ("sum", size)):
            given = (row / part).astype(np.float32)
            inputs = [given] * size
            result = all_reduced(world, inputs, op=op, plan=plan, codec=pccl.Codec(codec))
            assert np.isfinite(result).all()
            lost = np.sqrt(np.mean((result / most - row / most) ** 2))
            assert lost <= STEPS[codec] * np.sqrt(size) * np.sqrt(np.mean((row / most) ** 2))


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
