"""Collectives with a root or with shards through pccl_py: values, shards, outcomes, refusals.

Values are such that their sums are exact in every order; every dtype and op, bit by bit, and losses
are tested in tests/processes, the C calls in tests/abi.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_api_collectives import rows_for

import pccl_py as pccl

PLANS = ["ring", "direct"]
WORLDS = [(1, "ring"), *((size, plan) for size in (3, 5) for plan in PLANS)]


@pytest.fixture(scope="module")
def world() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(3, deadline=30) as made:
        yield made


@pytest.fixture
def pair() -> Iterator[list[pccl.Communicator]]:
    with pccl.LocalWorld(2, deadline=30) as made:
        yield made.comms


def uneven(world_size: int) -> list[int]:
    """Elements for each rank: none, one, several pieces, and in between."""
    return [70_001] if world_size == 1 else [0, 70_001, 1, 5, 300][:world_size]


def shard(array: np.ndarray, rank: int, counts: Sequence[int]) -> np.ndarray:
    """The part of that rank, in the memory of the array."""
    first = sum(counts[:rank])
    return array[first : first + counts[rank]]


def shard_cases(world_size: int) -> list[tuple[list[int], bool]]:
    """Elements of each rank, and whether the call says them."""
    return [
        ([1001] * world_size, False),
        ([64] * world_size, True),
        ([700_001] * world_size, False),  # a source's own is brought to the result in steps
        (uneven(world_size), True),
    ]


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "plan"), WORLDS)
def test_a_reduction_arrives_at_its_root_and_is_written_nowhere_else(
    world_size: int, plan: pccl.PlanName
) -> None:
    rows = rows_for(world_size, 5001)
    untouched = np.full(5001, -1.0)
    with pccl.LocalWorld(world_size, deadline=60) as world:
        members = world.comms[0].members
        for root in range(world_size):
            for in_place in (True, False):
                arrays = [row.copy() for row in rows]
                outs = arrays if in_place else [untouched.copy() for _ in rows]

                def program(
                    comm: pccl.Communicator,
                    arrays: Any = arrays,
                    outs: Any = outs,
                    root: int = root,
                ) -> pccl.Outcome:
                    by = root if comm.rank % 2 else members[root]
                    return comm.reduce(arrays[comm.rank], outs[comm.rank], by, plan=plan)

                outcomes = world.run(program)
                assert np.array_equal(outs[root], rows.sum(axis=0))
                for rank, outcome in enumerate(outcomes):
                    if rank != root:
                        assert np.array_equal(outs[rank], rows[rank] if in_place else untouched)
                        assert outcome.ranges == ()
                    assert outcome.attempts == 1
                assert outcomes[root].ranges == (pccl.Range(0, 5001, members),)
                assert outcomes[root].contributors == members


@pytest.mark.parametrize(("world_size", "plan"), WORLDS)
@pytest.mark.parametrize("in_place", [True, False])
def test_each_rank_receives_its_shard_of_the_reduction(
    world_size: int, in_place: bool, plan: pccl.PlanName
) -> None:
    """Even shards without and with counts, and uneven ones, of which the first is empty."""
    with pccl.LocalWorld(world_size, deadline=60) as world:
        members = world.comms[0].members
        for counts, says_counts in shard_cases(world_size):
            rows = rows_for(world_size, sum(counts)).astype(np.float32)
            arrays = [row.copy() for row in rows]
            outs = [
                shard(arrays[rank], rank, counts)
                if in_place
                else np.full(counts[rank], -1, np.float32)
                for rank in range(world_size)
            ]

            def program(
                comm: pccl.Communicator,
                given: Any = (arrays, outs),
                counts: Any = counts if says_counts else None,
            ) -> pccl.Outcome:
                array, out = (each[comm.rank] for each in given)
                return comm.reduce_scatter(array, out, counts, plan=plan)

            outcomes = world.run(program)
            total = rows.sum(axis=0)
            for rank, outcome in enumerate(outcomes):
                assert np.array_equal(outs[rank], shard(total, rank, counts))
                expected = (pccl.Range(0, counts[rank], members),) if counts[rank] else ()
                assert outcome.ranges == expected
                rest = arrays[rank].copy()
                if in_place:  # the other shards are only read
                    shard(rest, rank, counts)[:] = shard(rows[rank], rank, counts)
                assert np.array_equal(rest, rows[rank])


@pytest.mark.parametrize(("world_size", "plan"), WORLDS)
@pytest.mark.parametrize("in_place", [True, False])
def test_everybody_gathers_the_shards_of_all(
    world_size: int, in_place: bool, plan: pccl.PlanName
) -> None:
    with pccl.LocalWorld(world_size, deadline=60) as world:
        members = world.comms[0].members
        for counts, says_counts in shard_cases(world_size):
            whole = np.arange(sum(counts), dtype=np.int32)
            outs = [np.full(sum(counts), -1, np.int32) for _ in members]
            arrays = [shard(whole, rank, counts).copy() for rank in range(world_size)]
            if in_place:
                for rank, out in enumerate(outs):
                    shard(out, rank, counts)[:] = arrays[rank]
                    arrays[rank] = shard(out, rank, counts)

            def program(
                comm: pccl.Communicator,
                given: Any = (arrays, outs),
                counts: Any = counts if says_counts else None,
            ) -> pccl.Outcome:
                array, out = (each[comm.rank] for each in given)
                return comm.all_gather(array, out, counts, plan=plan)

            outcomes = world.run(program)
            ends = np.cumsum(counts)
            expected = tuple(
                pccl.Range(int(end) - count, int(end), (member,))
                for end, count, member in zip(ends, counts, members, strict=True)
                if count
            )
            for rank, outcome in enumerate(outcomes):
                assert np.array_equal(outs[rank], whole)
                assert np.array_equal(arrays[rank], shard(whole, rank, counts))
                assert outcome.ranges == expected
                assert outcome.digest == outcomes[0].digest


@pytest.mark.parametrize(("world_size", "plan"), WORLDS)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_root_deals_out_the_shards_that_it_has(
    world_size: int, in_place: bool, plan: pccl.PlanName
) -> None:
    """Every rank as the root; nobody else has an array for the whole."""
    with pccl.LocalWorld(world_size, deadline=60) as world:
        members = world.comms[0].members
        for root, (counts, says_counts) in itertools.product(
            range(world_size), shard_cases(world_size)
        ):
            whole = np.arange(sum(counts), dtype=np.float32)
            given = whole.copy()
            outs = [np.full(count, -1, np.float32) for count in counts]
            if in_place:
                outs[root] = shard(given, root, counts)

            def program(
                comm: pccl.Communicator,
                arrays: Any = (given, outs),
                counts: Any = counts if says_counts else None,
                root: int = root,
            ) -> pccl.Outcome:
                array, out = arrays[0] if comm.rank == root else None, arrays[1][comm.rank]
                by = root if comm.rank % 2 else members[root]
                return comm.scatter(array, out, by, counts, plan=plan)

            for rank, outcome in enumerate(world.run(program)):
                assert np.array_equal(outs[rank], shard(whole, rank, counts))
                expected = (
                    pccl.Range(
                        0,
                        counts[rank],
                        (members[root],),
                    ),
                )
                assert outcome.ranges == (expected if counts[rank] else ())
                assert outcome.attempts == 1
            assert np.array_equal(given, whole)


@pytest.mark.parametrize(("world_size", "plan"), WORLDS)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_root_collects_the_shards_of_all(
    world_size: int, in_place: bool, plan: pccl.PlanName
) -> None:
    """Every rank as the root; nobody else has an array for the whole."""
    with pccl.LocalWorld(world_size, deadline=60) as world:
        members = world.comms[0].members
        for root, (counts, says_counts) in itertools.product(
            range(world_size), shard_cases(world_size)
        ):
            whole = np.arange(sum(counts), dtype=np.int16)
            arrays = [shard(whole, rank, counts).copy() for rank in range(world_size)]
            made = np.full(sum(counts), -1, np.int16)
            if in_place:
                shard(made, root, counts)[:] = arrays[root]
                arrays[root] = shard(made, root, counts)

            def program(
                comm: pccl.Communicator,
                given: Any = (arrays, made),
                counts: Any = counts if says_counts else None,
                root: int = root,
            ) -> pccl.Outcome:
                array, out = given[0][comm.rank], given[1] if comm.rank == root else None
                by = root if comm.rank % 2 else members[root]
                return comm.gather(array, out, by, counts, plan=plan)

            outcomes = world.run(program)
            assert np.array_equal(made, whole)
            ends = np.cumsum(counts)
            expected = tuple(
                pccl.Range(int(end) - count, int(end), (member,))
                for end, count, member in zip(ends, counts, members, strict=True)
                if count
            )
            for rank, outcome in enumerate(outcomes):
                assert np.array_equal(arrays[rank], shard(whole, rank, counts))
                assert outcome.ranges == (expected if rank == root else ())
                assert outcome.attempts == 1


@pytest.mark.parametrize(("world_size", "plan"), WORLDS)
def test_each_gets_from_each_the_shard_that_is_its_own(
    world_size: int, plan: pccl.PlanName
) -> None:
    """Shard r of the result of rank q is shard q of rank r: the transpose of a square of shards."""
    with pccl.LocalWorld(world_size, deadline=60) as world:
        members = world.comms[0].members
        for count in (1, 1001, 20_000):
            shape = (world_size, world_size, count)
            square = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
            given, made = square.copy(), np.full_like(square, -1)

            def program(
                comm: pccl.Communicator, given: Any = given, made: Any = made
            ) -> pccl.Outcome:
                return comm.all_to_all(given[comm.rank], made[comm.rank], plan=plan)

            outcomes = world.run(program)
            assert np.array_equal(given, square)
            assert np.array_equal(made, square.transpose(1, 0, 2))
            expected = tuple(
                pccl.Range(rank * count, (rank + 1) * count, (member,))
                for rank, member in enumerate(members)
            )
            assert [outcome.ranges for outcome in outcomes] == [expected] * world_size


OPS = {
    "sum": lambda rows: rows.sum(axis=0),
    "avg": lambda rows: rows.mean(axis=0),
    "prod": lambda rows: rows.prod(axis=0),
    "min": lambda rows: rows.min(axis=0),
    "max": lambda rows: rows.max(axis=0),
}


@pytest.mark.parametrize("op", OPS)
def test_every_op_is_exact_where_arithmetic_is(world: pccl.LocalWorld, op: pccl.OpName) -> None:
    rows, dtype = rows_for(3, 99), ml_dtypes.bfloat16
    arrays = [row.astype(dtype) for row in rows]
    sums, shards = ([np.zeros(count, dtype) for _ in world.comms] for count in (99, 33))
    gathered = [np.zeros(99, dtype) for _ in world.comms]

    def program(comm: pccl.Communicator) -> None:
        comm.reduce(arrays[comm.rank], sums[comm.rank], 1, op=op)
        comm.reduce_scatter(arrays[comm.rank], shards[comm.rank], op=op)
        comm.all_gather(shards[comm.rank], gathered[comm.rank])

    world.run(program)
    for array in (sums[1], *gathered):
        assert np.array_equal(array.astype(np.float64), OPS[op](rows))


@pytest.mark.parametrize("plan", PLANS)
def test_integers_are_averaged_toward_zero_and_nan_wins(
    world: pccl.LocalWorld, plan: pccl.PlanName
) -> None:
    integers = [np.array([-1, 5, rank - 9, 127, -128, 0], np.int8) for rank in range(3)]
    floats = [
        np.array([np.nan if rank == 1 else rank, -0.0 if rank else 0.0, rank] * 2)
        for rank in range(3)
    ]

    def program(comm: pccl.Communicator) -> tuple[Any, ...]:
        rank = comm.rank
        means, least, most = np.zeros(2, np.int8), np.zeros(6), np.zeros(2)
        comm.reduce_scatter(integers[rank], means, op="avg", plan=plan)
        comm.reduce(floats[rank], least, 2, op="min", plan=plan)
        comm.reduce_scatter(floats[rank], most, op="max", plan=plan)
        return means, least, most

    results = world.run(program)
    assert np.concatenate([means for means, _, _ in results]).tolist() == [-1, 5, -8, 127, -128, 0]
    least, most = results[2][1], np.concatenate([most for _, _, most in results])
    assert np.isnan(least[[0, 3]]).all() and np.isnan(most[[0, 3]]).all()
    assert least[1] == 0 and np.signbit(least[1]) and not np.signbit(most[1])
    assert (least[2], most[2]) == (0, 2)


def test_gathering_keeps_every_bit(world: pccl.LocalWorld) -> None:
    bits = np.array([0x7FC00001, 0xFF800001, 0x80000000, 0x00000001], np.uint32)
    outs = [np.zeros(12, np.float32) for _ in world.comms]
    world.run(lambda comm: comm.all_gather(bits.view(np.float32), outs[comm.rank]))
    for out in outs:
        assert np.array_equal(out.view(np.uint32), np.tile(bits, 3))


def test_nothing_is_reduced_and_gathered(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> list[pccl.Outcome]:
        none = np.empty(0)
        return [
            comm.reduce(none, None, 1),
            comm.reduce_scatter(none, none),
            comm.reduce_scatter(none, none, [0, 0, 0]),
            comm.all_gather(none, none),
            comm.scatter(none, none, 1),
            comm.scatter(none, none, 1, [0, 0, 0]),
            comm.gather(none, none),
            comm.all_to_all(none, none),
        ]

    for outcomes in world.run(program):
        assert [outcome.ranges for outcome in outcomes] == [()] * 8


def test_what_is_only_read_may_be_read_only(world: pccl.LocalWorld) -> None:
    """And elsewhere than at the root of a reduce or a gather `out` is not looked at, nor `array`
    of a scatter."""
    inputs = np.arange(6.0)
    inputs.flags.writeable = False

    def program(comm: pccl.Communicator) -> None:
        out: Any = np.zeros(6) if comm.rank == 0 else "no array"
        comm.reduce(inputs, out, 0)
        part = np.zeros(2)
        comm.reduce_scatter(inputs, part)
        gathered = np.zeros((3, 6))
        comm.all_gather(inputs, gathered)
        assert np.array_equal(gathered, np.tile(inputs, (3, 1)))
        assert np.array_equal(part, 3 * inputs[2 * comm.rank : 2 * comm.rank + 2])
        if comm.rank == 0:
            assert np.array_equal(out, 3 * inputs)
        array: Any = inputs if comm.rank == 2 else "no array"
        comm.scatter(array, part, 2)
        assert np.array_equal(part, inputs[2 * comm.rank : 2 * comm.rank + 2])
        part.flags.writeable = False
        out = np.zeros(6) if comm.rank == 1 else "no array"
        comm.gather(part, out, 1)
        assert comm.rank != 1 or np.array_equal(out, inputs)
        exchanged = np.zeros(6)
        comm.all_to_all(inputs, exchanged)
        assert np.array_equal(exchanged, np.tile(part, 3))

    world.run(program)


@pytest.mark.parametrize("plan", PLANS)
def test_operations_of_all_kinds_are_under_way_at_once(
    world: pccl.LocalWorld, plan: pccl.PlanName
) -> None:
    """In another order on each peer, with a tag for each."""
    count = 30_000
    wholes = [np.full(3 * count, comm.rank + 1, np.int64) for comm in world.comms]
    made = [
        {tag: np.zeros(count if tag % 6 in (1, 3) else 3 * count, np.int64) for tag in range(18)}
        for _ in world.comms
    ]

    def begin(comm: pccl.Communicator, tag: int) -> Any:
        whole, out = wholes[comm.rank], made[comm.rank][tag]
        chosen: dict[str, Any] = {"tag": 500 + tag, "plan": plan, "async_op": True}
        kind, root = tag % 6, tag // 6
        if kind == 0:
            return comm.reduce(whole, out, root, **chosen)
        if kind == 1:
            return comm.reduce_scatter(whole, out, **chosen)
        if kind == 2:
            return comm.all_gather(whole[:count], out, **chosen)
        if kind == 3:
            return comm.scatter(whole if comm.rank == root else None, out, root, **chosen)
        if kind == 4:
            return comm.gather(whole[:count], out, root, **chosen)
        return comm.all_to_all(whole, out, **chosen)

    def program(comm: pccl.Communicator) -> None:
        order = [int(tag) for tag in np.random.default_rng(comm.rank).permutation(18)]
        works = [begin(comm, tag) for tag in order]
        for work in reversed(works):
            work.wait()

    world.run(program)
    for rank, outs in enumerate(made):
        for tag, out in outs.items():
            kind, root = tag % 6, tag // 6
            if kind == 0:
                assert (out == (6 if root == rank else 0)).all(), (rank, tag)
            elif kind == 1:
                assert (out == 6).all(), (rank, tag)
            elif kind == 3:
                assert (out == root + 1).all(), (rank, tag)
            elif kind == 4 and rank != root:
                assert (out == 0).all(), (rank, tag)
            else:
                assert np.array_equal(out, np.repeat([1, 2, 3], count)), (rank, tag)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_as_many_bytes_travel_as_documented(world_size: int, plan: pccl.PlanName) -> None:
    """docs/internals/ALGORITHMS.md: what travels round the ring passes those between."""
    count = 6400
    whole, shard_bytes = 8 * count * world_size, 8 * count

    def program(comm: pccl.Communicator) -> list[tuple[int, int]]:
        array, part = np.ones(count * world_size), np.ones(count)
        outcomes = [
            comm.reduce_scatter(array, part, plan=plan),
            comm.all_gather(part, array, plan=plan),
            comm.reduce(array, None, 1, plan=plan),
            comm.scatter(array, part, 1, plan=plan),
            comm.gather(part, array, 1, plan=plan),
            comm.all_to_all(array, np.ones_like(array), plan=plan),
        ]
        return [(outcome.bytes_sent, outcome.bytes_received) for outcome in outcomes]

    with pccl.LocalWorld(world_size, deadline=30) as world:
        for rank, results in enumerate(world.run(program)):
            scattered, gathered, reduced, dealt, collected, exchanged = results
            others = (world_size - 1) * shard_bytes
            # Hops round the ring from the root to this rank, and from here to the root.
            behind, before = (rank - 1) % world_size, (1 - rank) % world_size
            if plan == "ring":
                onward = (world_size - 1 - behind) * shard_bytes if behind else others
                assert dealt == (onward, onward + shard_bytes if behind else 0)
                inward = (world_size - before) * shard_bytes
                assert collected == ((inward, inward - shard_bytes) if before else (0, others))
                passed = world_size * (world_size - 1) // 2 * shard_bytes
                assert exchanged == (passed, passed)
            else:
                assert dealt == ((0, shard_bytes) if behind else (others, 0))
                assert collected == ((shard_bytes, 0) if before else (0, others))
                assert exchanged == (others, others)
            assert scattered == gathered == (others, others)
            sent = 0 if rank == 1 else whole
            first = rank == 2 % world_size
            if plan == "ring":
                assert reduced == (sent, 0 if first else whole)
            else:
                assert reduced == (sent, 0 if rank != 1 else (world_size - 1) * whole)


# ---- refusals: nothing is sent, and the sentence names what is wrong ----------------------------


def refusals() -> dict[str, tuple[Callable[[pccl.Communicator], object], type[Exception], str]]:
    """A call of rank 0 of two, the error that it raises, and words of the sentence."""
    invalid, usage = pccl.InvalidArgument, pccl.InvalidUsage
    ones, locked = np.ones, np.ones(4)
    locked.flags.writeable = False
    whole = ones(8)
    return {
        "reduce: root": (lambda c: c.reduce(ones(3), None, 2), invalid, "root must be a rank"),
        "reduce: stranger": (
            lambda c: c.reduce(ones(3), None, pccl.PeerId(bytes(16))),
            invalid,
            "not a member of epoch",
        ),
        "reduce: out": (lambda c: c.reduce(ones(3), ones(4)), invalid, "out has 4 .* array has 3"),
        "reduce: dtype": (
            lambda c: c.reduce(ones(3), ones(3, np.float32)),
            TypeError,
            "out is f32, array is f64",
        ),
        "reduce: read-only": (lambda c: c.reduce(locked), invalid, "read-only"),
        "reduce: overlap": (lambda c: c.reduce(whole[:4], whole[1:5]), invalid, "overlap"),
        "reduce: op": (lambda c: c.reduce(ones(3), op="and"), invalid, "op"),
        "scatter: even": (
            lambda c: c.reduce_scatter(ones(5), ones(2)),
            invalid,
            "array has 5 elements, out has 2: with 2 ranks array needs 4, or pass counts",
        ),
        "gather: even": (
            lambda c: c.all_gather(ones(2), ones(5)),
            invalid,
            "out has 5 elements, array has 2: with 2 ranks out needs 4, or pass counts",
        ),
        "scatter: entries": (
            lambda c: c.reduce_scatter(ones(4), ones(2), [2, 1, 1]),
            invalid,
            "counts has 3 entries, but must have one for each of 2 ranks",
        ),
        "gather: entries": (
            lambda c: c.all_gather(ones(2), ones(4), []),
            invalid,
            "counts has 0 entries",
        ),
        "scatter: sum": (
            lambda c: c.reduce_scatter(ones(4), ones(2), [2, 3]),
            invalid,
            "counts add up to 5, array has 4",
        ),
        "gather: sum": (
            lambda c: c.all_gather(ones(2), ones(4), [2, 3]),
            invalid,
            "counts add up to 5, out has 4",
        ),
        "scatter: own": (
            lambda c: c.reduce_scatter(ones(4), ones(2), [3, 1]),
            invalid,
            r"counts\[0\], of this rank, is 3; out has 2",
        ),
        "gather: own": (
            lambda c: c.all_gather(ones(2), ones(4), [3, 1]),
            invalid,
            r"counts\[0\], of this rank, is 3; array has 2",
        ),
        "gather: negative": (
            lambda c: c.all_gather(ones(2), ones(4), [-2, 6]),
            invalid,
            "counts",
        ),
        "gather: no number": (
            lambda c: c.all_gather(ones(2), ones(4), ["2", 2]),
            TypeError,
            "counts",
        ),
        "scatter: read-only": (lambda c: c.reduce_scatter(whole, locked), invalid, "read-only"),
        "gather: dtype": (
            lambda c: c.all_gather(ones(2, np.int8), ones(4, np.uint8)),
            TypeError,
            "out is u8, array is i8",
        ),
        "scatter: strided": (
            lambda c: c.reduce_scatter(whole[::2], ones(2)),
            invalid,
            "C-contiguous",
        ),
        "scatter: overlap": (
            lambda c: c.reduce_scatter(whole, whole[1:5]),
            invalid,
            "overlap: out must be this rank's shard of array, or lie apart",
        ),
        "gather: overlap": (
            lambda c: c.all_gather(whole[4:], whole),
            invalid,
            "overlap: array must be this rank's shard of out, or lie apart",
        ),
        "scatter: tag": (lambda c: c.reduce_scatter(whole, ones(4), tag=-1), invalid, "tag"),
        "gather: plan": (lambda c: c.all_gather(ones(4), whole, plan="star"), invalid, "plan"),
        "dealt: root": (lambda c: c.scatter(whole, ones(4), 2), invalid, "root must be a rank"),
        "dealt: nothing": (
            lambda c: c.scatter(None, ones(4)),
            invalid,
            "root of a scatter needs array",
        ),
        "dealt: even": (
            lambda c: c.scatter(ones(5), ones(2)),
            invalid,
            "array has 5 elements, out has 2: with 2 ranks array needs 4, or pass counts",
        ),
        "dealt: sum": (
            lambda c: c.scatter(ones(4), ones(2), 0, [2, 3]),
            invalid,
            "counts add up to 5, array has 4",
        ),
        "dealt: entries, not root": (
            lambda c: c.scatter(None, ones(2), 1, [2]),
            invalid,
            "counts has 1 entry, but must have one for each of 2 ranks",
        ),
        "dealt: own, not root": (
            lambda c: c.scatter(None, ones(2), 1, [3, 1]),
            invalid,
            r"counts\[0\], of this rank, is 3; out has 2",
        ),
        "dealt: read-only": (lambda c: c.scatter(None, locked, 1), invalid, "read-only"),
        "dealt: overlap": (
            lambda c: c.scatter(whole, whole[4:]),
            invalid,
            "overlap: out must be this rank's shard of array, or lie apart",
        ),
        "dealt: dtype": (
            lambda c: c.scatter(whole, ones(4, np.float32)),
            TypeError,
            "out is f32, array is f64",
        ),
        "collected: stranger": (
            lambda c: c.gather(ones(4), whole, pccl.PeerId(bytes(16))),
            invalid,
            "not a member of epoch",
        ),
        "collected: nothing": (
            lambda c: c.gather(ones(4)),
            invalid,
            "root of a gather needs out",
        ),
        "collected: even": (
            lambda c: c.gather(ones(2), ones(5)),
            invalid,
            "out has 5 elements, array has 2: with 2 ranks out needs 4, or pass counts",
        ),
        "collected: own": (
            lambda c: c.gather(ones(2), ones(4), 0, [3, 1]),
            invalid,
            r"counts\[0\], of this rank, is 3; array has 2",
        ),
        "collected: own, not root": (
            lambda c: c.gather(ones(2), None, 1, [3, 1]),
            invalid,
            r"counts\[0\], of this rank, is 3; array has 2",
        ),
        "collected: overlap": (
            lambda c: c.gather(whole[4:], whole),
            invalid,
            "overlap: array must be this rank's shard of out, or lie apart",
        ),
        "collected: plan": (lambda c: c.gather(ones(4), whole, plan="star"), invalid, "plan"),
        "exchange: sizes": (
            lambda c: c.all_to_all(ones(4), ones(6)),
            invalid,
            "array has 4 elements and out has 6",
        ),
        "exchange: shards": (
            lambda c: c.all_to_all(ones(5), ones(5)),
            invalid,
            "a multiple of world_size, which is 2",
        ),
        "exchange: in place": (
            lambda c: c.all_to_all(whole, whole),
            invalid,
            "must not overlap in",
        ),
        "exchange: overlap": (lambda c: c.all_to_all(whole[:6], whole[2:]), invalid, "overlap"),
        "exchange: dtype": (
            lambda c: c.all_to_all(ones(4), ones(4, np.int64)),
            TypeError,
            "out is i64, array is f64",
        ),
        "gather: in use": (
            lambda c: (
                c.reduce(whole, None, 0, tag=1, async_op=True),
                c.all_gather(ones(4), whole, tag=2),
            ),
            usage,
            "own memory",
        ),
    }


@pytest.fixture(scope="module")
def two() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(2, deadline=30) as made:
        yield made


@pytest.mark.parametrize("what", refusals())
def test_a_call_that_makes_no_sense_is_refused(two: pccl.LocalWorld, what: str) -> None:
    call, kind, words = refusals()[what]
    with pytest.raises(kind, match=words) as caught:
        call(two.comms[0])
    assert "_buffer" not in str(caught.value), "a word that only C knows"


# ---- peers that do not agree, deadlines, doubt --------------------------------------------------


def disagreements() -> dict[str, tuple[Any, Any]]:
    def scatter(c: pccl.Communicator, counts: list[int] | None, count: int = 6, **more: Any) -> Any:
        own = counts[c.rank] if counts else count // 3
        return c.reduce_scatter(np.ones(count), np.full(own, 7.0), counts, **more)

    def gather(c: pccl.Communicator, counts: list[int] | None, count: int = 6, **more: Any) -> Any:
        own = counts[c.rank] if counts else count // 3
        return c.all_gather(np.ones(own), np.full(count, 7.0), counts, **more)

    return {
        "scatter: counts": (lambda c: scatter(c, [1, 2, 3]), lambda c: scatter(c, [3, 2, 1])),
        "gather: counts": (lambda c: gather(c, [1, 2, 3]), lambda c: gather(c, [1, 1, 4])),
        "scatter: even": (lambda c: scatter(c, None), lambda c: scatter(c, [1, 2, 3])),
        "gather: sum": (lambda c: gather(c, None), lambda c: gather(c, None, 9)),
        "scatter: op": (lambda c: scatter(c, None), lambda c: scatter(c, None, op="max")),
        "reduce: root": (
            lambda c: c.reduce(np.ones(6), None, 0),
            lambda c: c.reduce(np.ones(6), None, 1),
        ),
        "dealt: root": (
            lambda c: c.scatter(np.ones(6), np.full(2, 7.0), 0),
            lambda c: c.scatter(np.ones(6), np.full(2, 7.0), 1),
        ),
        "dealt: counts": (
            lambda c: c.scatter(np.ones(6), np.ones(c.rank + 1), 0, [1, 2, 3]),
            lambda c: c.scatter(None, np.ones(2), 0, [2, 2, 2]),
        ),
        "collected: even": (
            lambda c: c.gather(np.ones(2), np.full(6, 7.0)),
            lambda c: c.gather(np.ones(3), None, 0, [1, 3, 2]),
        ),
        "exchange: size": (
            lambda c: c.all_to_all(np.ones(6), np.full(6, 7.0)),
            lambda c: c.all_to_all(np.ones(9), np.full(9, 7.0)),
        ),
        "kind": (lambda c: gather(c, None), lambda c: scatter(c, None)),
        "reduce: all": (lambda c: c.reduce(np.ones(6)), lambda c: c.all_reduce(np.ones(6))),
    }


@pytest.mark.parametrize("what", disagreements())
def test_peers_that_disagree_are_told_how(what: str) -> None:
    """All of them, and the group goes on afterwards."""
    agreed, other = disagreements()[what]
    with pccl.LocalWorld(3, deadline=30) as world:

        def program(comm: pccl.Communicator) -> str:
            with pytest.raises(pccl.Mismatch) as caught:
                (other if comm.rank == 1 else agreed)(comm)
            out = np.zeros(3)
            comm.all_gather(np.full(1, comm.rank + 0.0), out)
            assert out.tolist() == [0, 1, 2]
            return str(caught.value)

        odd = world.comms[1].peer_id.short
        for rank, message in enumerate(world.run(program)):
            named = "rank 1 (this peer)" if rank == 1 else f", {odd})"
            assert named in message, message
            kinds = {
                "scatter": "reduce_scatter(",
                "gather": "all_gather(",
                "reduce": "reduce(",
                "dealt": " scatter(",
                "collected": " gather(",
                "exchange": "all_to_all(",
            }
            kind = kinds.get(what.split(":")[0], "all_gather(")
            assert kind in message, message
            assert ("shards of different sizes" in message) == (
                ": counts" in what or ": even" in what
            )


def test_a_root_in_the_place_of_out_is_refused_on_every_rank(world: pccl.LocalWorld) -> None:
    """reduce(x, 1) means root=1 to nobody: no rank may begin with another one."""

    def program(comm: pccl.Communicator) -> None:
        for call in (comm.reduce, comm.gather):
            for root in (1, comm.members[1]):
                with pytest.raises(TypeError, match="root="):
                    call(np.ones(4), root)  # type: ignore[arg-type]

    world.run(program)


def test_counts_may_be_arrays(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> list[float]:
        to_each: Any = np.array([1, 2, 0])
        from_each: Any = np.full(3, to_each[comm.rank])
        sent = np.full(3, comm.rank + 1.0)
        received = np.zeros(int(from_each.sum()))
        comm.all_to_all(sent, received, to_each, from_each)
        return [float(each) for each in received]

    assert world.run(program) == [[1, 2, 3], [1, 1, 2, 2, 3, 3], []]


def test_equal_counts_are_those_of_a_call_without(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> list[float]:
        out = np.zeros(6)
        part = np.full(2, comm.rank + 1.0)
        comm.all_gather(part, out, [2, 2, 2] if comm.rank == 1 else None)
        comm.reduce_scatter(out, part, None if comm.rank == 1 else (2, 2, 2))
        return part.tolist()

    assert world.run(program) == [[3.0, 3.0], [6.0, 6.0], [9.0, 9.0]]


CALLS: dict[str, Callable[[pccl.Communicator, np.ndarray, np.ndarray], Any]] = {
    "reduce": lambda c, whole, _: c.reduce(whole, None, 0, async_op=True, deadline=0.3),
    "reduce_scatter": lambda c, whole, part: c.reduce_scatter(
        whole, part, recovery="restart", async_op=True, deadline=0.3
    ),
    "all_gather": lambda c, whole, part: c.all_gather(
        part, whole, recovery="restart", async_op=True, deadline=0.3
    ),
    "gather": lambda c, whole, part: c.gather(part, whole, async_op=True, deadline=0.3),
    "scatter": lambda c, whole, part: c.scatter(whole, part, async_op=True, deadline=0.3),
    "all_to_all": lambda c, whole, part: c.all_to_all(
        whole, np.empty_like(whole), recovery="restart", async_op=True, deadline=0.3
    ),
}

# Rank 0, which gives up, is their root.
ROOTED = ("reduce", "gather", "scatter")


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("how", ["deadline", "cancel"])
@pytest.mark.parametrize("what", CALLS)
def test_who_gives_up_has_its_input(
    pair: list[pccl.Communicator], what: str, how: str, in_place: bool
) -> None:
    """Larger than what is sent ahead of time, so that nobody has voted."""
    count = 100_000
    whole = np.arange(2.0 * count)
    part = whole[:count] if in_place else np.full(count, 5.0)
    before = whole.copy(), part.copy()
    work = CALLS[what](pair[0], whole, part)
    if how == "cancel":
        work.cancel()
    with pytest.raises(pccl.Cancelled if how == "cancel" else pccl.DeadlineExceeded):
        work.wait()
    gathers = what in ("all_gather", "gather")
    if in_place or not gathers:
        assert np.array_equal(whole, before[0])
    if in_place or gathers:
        assert np.array_equal(part, before[1])
    theirs = np.full(2 * count, 3.0), np.full(count, 4.0)
    work = CALLS[what](pair[1], *theirs)
    if how == "cancel" and what not in ROOTED:  # the other goes on alone
        theirs_alone = {peer for each in work.wait().ranges for peer in each.contributors}
        assert theirs_alone == {pair[1].peer_id}
        return
    with pytest.raises(pccl.Aborted):
        work.wait()
    assert (theirs[1] == 4).all() if gathers else (theirs[0] == 3).all()


def test_a_doubt_about_a_private_result_is_resolved(pair: list[pccl.Communicator]) -> None:
    """A peer has voted once it has sent its small part of a reduce to the root: it knows no more.

    The other case is when somebody is lost meanwhile, and it is aborted: docs/internals/PROMISE.md.
    """
    given = np.arange(100.0)
    for resolves in (True, False):
        with pytest.raises(pccl.InDoubt) as caught:
            pair[1].reduce(given, None, 0, deadline=0.2)
        assert caught.value.work is not None
        if resolves:
            out = np.zeros(100)
            pair[0].reduce(given, out, 0)
            assert caught.value.work.resolve(20).ranges == ()
            assert np.array_equal(out, 2 * given)
        else:
            with pytest.raises(pccl.Mismatch):
                pair[0].reduce(given[1:], np.zeros(99), 0)
            with pytest.raises((pccl.Aborted, pccl.Mismatch)):
                caught.value.work.resolve(20)
