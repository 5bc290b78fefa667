"""Codecs of everything but all_reduce over real sockets, compared bit by bit with a model in NumPy.

The model says which contribution is encoded, how often and by whom (docs/internals/ALGORITHMS.md),
for codecs that need no random numbers; rotation, whose signs follow from the operation, is judged
by its error. Refusals in C are tested in tests/abi, all_reduce in test_api_codecs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl

WORLD_SIZES = [1, 2, 3, 4]
PLANS = ["ring", "direct", "auto"]
CODECS = [
    pccl.Codec("bf16"),
    pccl.Codec("f16"),
    pccl.Codec("int8", rotate=False),
    pccl.Codec("int4", rotate=False, block=32),
]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]

Array = np.ndarray


def through(values: Array, codec: pccl.Codec) -> Array:
    """f32 that were encoded and decoded."""
    if codec.name == "bf16":
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)
    if codec.name == "f16":
        return values.astype(np.float16).astype(np.float32)
    block = codec.block or 128
    greatest_code = np.float32({"int8": 127, "int4": 7}[codec.name])
    blocks = np.zeros((-(-len(values) // block), block), np.float32)
    blocks.ravel()[: len(values)] = values
    greatest = np.abs(blocks).max(axis=1, initial=0)
    scale = (greatest * (np.float32(1) / greatest_code)).astype(ml_dtypes.bfloat16)
    wide = scale.astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(wide > 0, np.float32(1) / wide, np.float32(0))
    codes = np.rint(blocks * inverse[:, None]) + np.float32(0)  # integers have no -0
    decoded = codes * wide[:, None]
    return np.asarray(decoded.ravel()[: len(values)], np.float32)


def reduced(
    inputs: list[Array], owner: int, codec: pccl.Codec, plan: pccl.PlanName, op: pccl.OpName
) -> Array:
    """The sum of what all have, as its owner alone gets it."""
    n = len(inputs)
    if n == 1:
        return inputs[0]
    # Smaller contributions would lose their least bits as f16: an average goes directly.
    if op == "avg" and codec.name == "f16":
        plan = "direct"
    # No sum on the way to an average is too great; f32 has room for all that travels as f16.
    is_smaller = op == "avg" and codec.name != "f16"
    down = np.float32(0.5 ** (n - 1).bit_length() if is_smaller else 1)
    wide = [array.astype(np.float32) * down for array in inputs]
    if plan == "ring":
        total = through(wide[(owner + 1) % n], codec)
        for distance in range(2, n):
            total = through(total + wide[(owner + distance) % n], codec)
        total = total + wide[owner]
    else:
        parts = [wide[rank] if rank == owner else through(wide[rank], codec) for rank in range(n)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
    if op == "avg":
        return (total / (np.float32(n) * down)).astype(inputs[0].dtype)
    return total.astype(inputs[0].dtype)


def carried(array: Array, codec: pccl.Codec) -> Array:
    return through(array.astype(np.float32), codec).astype(array.dtype)


def same(got: Array, wanted: Array) -> None:
    assert got.dtype == wanted.dtype
    assert got.tobytes() == wanted.tobytes()


def split(array: Array, counts: list[int]) -> list[Array]:
    return np.split(array, np.cumsum(counts)[:-1])


def arrays(n: int, count: int, dtype: Any = np.float32) -> list[Array]:
    return [np.random.default_rng(rank).standard_normal(count).astype(dtype) for rank in range(n)]


@pytest.fixture(scope="module", params=WORLD_SIZES)
def world(request: pytest.FixtureRequest) -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(request.param, deadline=60) as made:
        yield made


def size_of(world: pccl.LocalWorld) -> int:
    return len(world.comms)


def layouts(n: int) -> list[list[int]]:
    """Elements of each rank: equal ones, of no whole block; and some, many, one, none."""
    return [[1001] * n, [300, 70_001, 1, 0][:n], [0] * n]


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CODECS, ids=str)
def codec(request: pytest.FixtureRequest) -> pccl.Codec:
    return request.param  # type: ignore[no-any-return]


# ---- what is added up ---------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_a_reduce_encodes_each_contribution_and_keeps_the_sum(
    world: pccl.LocalWorld, codec: pccl.Codec, plan: pccl.PlanName, op: pccl.OpName
) -> None:
    n = size_of(world)
    for root, count in ((0, 1001), (n - 1, 70_001), (0, 1), (0, 0)):
        inputs = arrays(n, count)

        def run(
            comm: pccl.Communicator, inputs: list[Array] = inputs, root: int = root
        ) -> Array | None:
            mine = inputs[comm.rank]
            return pnp.reduce(comm, mine, root=root, op=op, codec=codec, plan=plan)

        results = world.run(run)
        at_root = results[root]
        assert at_root is not None
        same(at_root, reduced(inputs, root, codec, plan, op))
        assert [result for rank, result in enumerate(results) if rank != root] == [None] * (n - 1)


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_reduce_scatter_encodes_each_contribution_and_keeps_the_sums(
    world: pccl.LocalWorld, codec: pccl.Codec, plan: pccl.PlanName, op: pccl.OpName, in_place: bool
) -> None:
    n = size_of(world)
    for counts in layouts(n):
        inputs = arrays(n, sum(counts))
        parts = [split(array, counts) for array in inputs]
        wanted = [
            reduced([parts[rank][owner] for rank in range(n)], owner, codec, plan, op)
            for owner in range(n)
        ]

        def run(
            comm: pccl.Communicator,
            inputs: list[Array] = inputs,
            counts: list[int] = counts,
        ) -> Array:
            mine = inputs[comm.rank].copy()
            if not in_place:
                return pnp.reduce_scatter(comm, mine, counts=counts, op=op, codec=codec, plan=plan)
            pnp.reduce_scatter_(comm, mine, counts, op=op, codec=codec, plan=plan)
            return split(mine, counts)[comm.rank]

        for result, of_rank in zip(world.run(run), wanted, strict=True):
            same(result, of_rank)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_other_floats_are_rounded_once_more(
    world: pccl.LocalWorld, plan: pccl.PlanName, dtype: Any
) -> None:
    n, codec = size_of(world), CODECS[2]
    inputs = arrays(n, 3000, dtype)
    results = world.run(
        lambda comm: pnp.reduce(comm, inputs[comm.rank], op="avg", codec=codec, plan=plan)
    )
    assert results[0] is not None
    same(results[0], reduced(inputs, 0, codec, plan, "avg"))


def test_a_reduce_scatter_of_bf16_in_bf16_is_the_one_without_a_codec(
    world: pccl.LocalWorld,
) -> None:
    """Nothing is lost, and the direct schedule adds and divides in the same order either way."""
    n = size_of(world)
    inputs = arrays(n, n * 500, ml_dtypes.bfloat16)

    def run(comm: pccl.Communicator) -> list[Array]:
        mine = inputs[comm.rank]
        codecs: list[pccl.CodecName] = ["none", "bf16"]
        return [
            pnp.reduce_scatter(comm, mine, op="avg", codec=codec, plan="direct") for codec in codecs
        ]

    for plain, encoded in world.run(run):
        same(encoded, plain)


# ---- what comes from one ------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [True, False])
def test_an_all_gather_gives_all_the_same_and_the_source_too(
    world: pccl.LocalWorld, codec: pccl.Codec, plan: pccl.PlanName, in_place: bool
) -> None:
    n = size_of(world)
    for counts in layouts(n):
        parts = [array[:count] for array, count in zip(arrays(n, 70_001), counts, strict=True)]
        wanted = np.concatenate(parts if n == 1 else [carried(part, codec) for part in parts])

        def run(
            comm: pccl.Communicator, parts: list[Array] = parts, counts: list[int] = counts
        ) -> Array:
            mine = parts[comm.rank]
            if not in_place:
                return pnp.all_gather(comm, mine, counts=counts, codec=codec, plan=plan)
            whole = np.zeros(sum(counts), np.float32)
            split(whole, counts)[comm.rank][:] = mine
            pnp.all_gather_(comm, whole, counts, codec=codec, plan=plan)
            return whole

        for result in world.run(run):
            same(result, wanted)


def test_what_a_scatter_and_a_gather_move_is_encoded_but_for_the_roots_own(
    world: pccl.LocalWorld, codec: pccl.Codec, plan: pccl.PlanName
) -> None:
    n = size_of(world)
    for counts in layouts(n):
        for root in {0, n - 1}:
            (whole,) = arrays(1, sum(counts))
            parts = split(whole, counts)
            moved = [
                part if rank == root else carried(part, codec) for rank, part in enumerate(parts)
            ]

            def run(
                comm: pccl.Communicator,
                parts: list[Array] = parts,
                whole: Array = whole,
                counts: list[int] = counts,
                root: int = root,
            ) -> tuple[Array, Array | None]:
                options: dict[str, Any] = {"codec": codec, "plan": plan}
                mine = np.empty(counts[comm.rank], np.float32)
                given = whole if comm.rank == root else None
                dealt = pnp.scatter(comm, given, mine, root, counts, **options)
                own = parts[comm.rank]
                return dealt, pnp.gather(comm, own, root=root, counts=counts, **options)

            results = world.run(run)
            for rank, (dealt, collected) in enumerate(results):
                same(dealt, moved[rank])
                if rank == root:
                    assert collected is not None
                    same(collected, np.concatenate(moved))
                else:
                    assert collected is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_all_to_all_is_encoded_but_for_ones_own(
    world: pccl.LocalWorld, codec: pccl.Codec, plan: pccl.PlanName, dtype: Any
) -> None:
    n = size_of(world)
    for count in (1001, 1, 0):
        inputs = arrays(n, n * count, dtype)

        def run(comm: pccl.Communicator, inputs: list[Array] = inputs) -> Array:
            return pnp.all_to_all(comm, inputs[comm.rank], codec=codec, plan=plan)

        for rank, result in enumerate(world.run(run)):
            shards = [inputs[source].reshape(n, count)[rank] for source in range(n)]
            wanted = [
                shard if source == rank else carried(shard, codec)
                for source, shard in enumerate(shards)
            ]
            same(result, np.concatenate(wanted))


# ---- everything ---------------------------------------------------------------------------------

CALLS: dict[str, Callable[..., Any]] = {
    "reduce": lambda comm, array, **options: comm.reduce(array, array.copy(), **options),
    "reduce_scatter": lambda comm, array, **options: comm.reduce_scatter(
        array, np.empty(len(array) // comm.world_size, array.dtype), **options
    ),
    "all_gather": lambda comm, array, **options: comm.all_gather(
        array, np.empty(len(array) * comm.world_size, array.dtype), **options
    ),
    "scatter": lambda comm, array, **options: comm.scatter(
        array, np.empty(len(array) // comm.world_size, array.dtype), **options
    ),
    "gather": lambda comm, array, **options: comm.gather(
        array, np.empty(len(array) * comm.world_size, array.dtype), **options
    ),
    "all_to_all": lambda comm, array, **options: comm.all_to_all(
        array, np.empty(len(array), array.dtype), **options
    ),
}


@pytest.fixture(scope="module")
def three() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(3, deadline=60) as made:
        yield made


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return CALLS[request.param]


def test_a_codec_sends_fewer_bytes(three: pccl.LocalWorld, call: Callable[..., Any]) -> None:
    def sent(codec: pccl.CodecName) -> int:
        outcomes = three.run(lambda comm: call(comm, arrays(3, 30_000)[comm.rank], codec=codec))
        return sum(int(outcome.bytes_sent) for outcome in outcomes)

    plain = sent("none")
    assert 0.25 < sent("int8") / plain < 0.27
    assert 0.125 < sent("int4") / plain < 0.14


def test_integers_are_refused(three: pccl.LocalWorld, call: Callable[..., Any]) -> None:
    def run(comm: pccl.Communicator) -> None:
        with pytest.raises(pccl.InvalidArgument, match="for floats, and dtype is i32"):
            call(comm, np.ones(30, np.int32), codec="int8")

    three.run(run)


def test_peers_with_other_codecs_are_told_both(
    three: pccl.LocalWorld, call: Callable[..., Any]
) -> None:
    def run(comm: pccl.Communicator) -> str:
        with pytest.raises(pccl.Mismatch) as caught:
            call(comm, np.ones(30, np.float32), codec="int8" if comm.rank == 0 else "int4")
        return str(caught.value)

    for message in three.run(run):
        assert "int8" in message and "int4" in message, message


def test_rotated_pieces_lose_what_a_sum_of_them_may(
    three: pccl.LocalWorld, plan: pccl.PlanName
) -> None:
    """The sum is formed of rotated blocks, and rotated back once."""
    inputs = arrays(3, 30_003)
    exact = sum(array.astype(np.float64) for array in inputs)
    limits: dict[pccl.CodecName, float] = {
        "int8": 1e-2,
        "int4": 1.8e-1,
        "fp8_e4m3": 4e-2,
        "e3m0": 3e-1,
    }
    for name, limit in limits.items():

        def run(comm: pccl.Communicator, name: pccl.CodecName = name) -> Array:
            return pnp.reduce_scatter(comm, inputs[comm.rank], codec=name, plan=plan)

        shards = three.run(run)
        lost = np.linalg.norm(np.concatenate(shards) - exact) / np.linalg.norm(exact)
        assert 1e-4 < lost < limit, (name, lost)


def test_random_rounding_is_no_less_right_and_differs_between_shards(
    three: pccl.LocalWorld,
) -> None:
    codec = pccl.Codec("int4", rotate=False, rounding="stochastic")
    array = np.tile(arrays(1, 999)[0], 3)
    (first, *_) = three.run(lambda comm: pnp.all_to_all(comm, array, codec=codec))
    own, one, other = first.reshape(3, -1)
    same(own, array[:999])
    for got in (one, other):
        assert np.linalg.norm(got - own) < 0.4 * np.linalg.norm(own)
    assert not np.array_equal(one, other), "two sources round alike"


def test_a_nan_spoils_its_block_of_the_sum_alone(
    three: pccl.LocalWorld, plan: pccl.PlanName
) -> None:
    inputs = arrays(3, 3 * 1000)
    inputs[1][300] = np.nan
    shards = three.run(
        lambda comm: pnp.reduce_scatter(comm, inputs[comm.rank], codec="int8", plan=plan)
    )
    block = np.zeros(1000, bool)
    block[256:384] = True
    assert np.isnan(shards[0][300]) and np.isfinite(shards[0][~block]).all()
    assert np.isfinite(shards[1]).all() and np.isfinite(shards[2]).all()


# ---- error feedback -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reduce", "reduce_scatter"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_the_residuals_are_all_that_was_lost(
    three: pccl.LocalWorld, name: str, op: pccl.OpName, plan: pccl.PlanName
) -> None:
    """By all members together; and the next call gives it back."""
    inputs = arrays(3, 3 * 1003)
    codec = pccl.Codec("int4", rotate=False)

    def run(comm: pccl.Communicator) -> list[tuple[Array, Array]]:
        options: dict[str, Any] = {"op": op, "codec": codec, "plan": plan, "tag": 3}
        mine = inputs[comm.rank]
        feedback = comm.error_feedback(tag=3)
        answers = []
        for _ in range(2):
            if name == "reduce":
                got = pnp.reduce(comm, mine, root=1, **options)
            else:
                got = pnp.reduce_scatter(comm, mine, **options)
            kept = np.empty(0, np.float32) if got is None else got
            answers.append((kept, residual_of(feedback)))
        feedback.close()
        return answers

    given = sum(array.astype(np.float64) for array in inputs)
    for answers in zip(*three.run(run), strict=True):
        result = np.concatenate([kept for kept, _ in answers]).astype(np.float64)
        lost = sum(residual.astype(np.float64) for _, residual in answers)
        assert np.linalg.norm(lost) > 0.05 * np.linalg.norm(given)
        assert np.allclose(result * (3 if op == "avg" else 1) + lost, given, atol=1e-4)
        given = sum(array.astype(np.float64) for array in inputs) + lost


def residual_of(feedback: pccl.ErrorFeedback) -> Array:
    return np.frombuffer(feedback.save(), np.float32)


@pytest.mark.parametrize("name", ["all_gather", "scatter", "gather", "all_to_all"])
def test_what_adds_nothing_up_has_no_error_feedback(three: pccl.LocalWorld, name: str) -> None:
    def run(comm: pccl.Communicator) -> None:
        feedback = comm.error_feedback(tag=4)
        with pytest.raises(pccl.InvalidArgument, match="tag 4 has error feedback, which is"):
            CALLS[name](comm, np.ones(30, np.float32), codec="int8", tag=4)
        CALLS[name](comm, np.ones(30, np.float32), tag=4)  # nothing is encoded
        feedback.close()

    three.run(run)
