"""Several arrays as one operation, and all_to_alls whose shards differ, through pccl_py.

Goal: a list gives in each array what a call of its own would give, bit for bit where nothing is
rounded; it is one operation, with one outcome; what cannot be is refused before anything is sent.
Trees of NumPy arrays: test_api_trees.py; the C calls: tests/abi; losses: the simulator.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pccl_py as pccl

PLANS = ["ring", "direct"]
# Dtypes and elements of each array, or of each rank's shard of it; one has several pieces.
SHAPES = [("f4", 70_001), ("bf16", 3), ("i1", 0), ("f8", 1), ("u2", 130)]


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bf16" else name)


def values(rank: int, count: int, dtype: str) -> np.ndarray:
    """Small whole numbers, whose sums are exact in every dtype."""
    return ((np.arange(count) * 7 + rank) % 11).astype(numpy_dtype(dtype))


def contributions(rank: int, shards: int) -> list[np.ndarray]:
    return [values(rank, shards * count, dtype) for dtype, count in SHAPES]


def empties(shards: int) -> list[np.ndarray]:
    return [np.full(shards * count, 9, numpy_dtype(dtype)) for dtype, count in SHAPES]


def same(got: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_list_is_what_its_arrays_are(world_size: int, plan: pccl.PlanName) -> None:
    n = world_size

    def program(comm: pccl.Communicator) -> None:
        rank = comm.rank
        parts = contributions(rank, 1)
        wholes = contributions(rank, n)

        summed = empties(1)
        outcome = comm.all_reduce(parts, summed, op="sum", plan=plan)
        assert outcome.sequence == 0
        assert [each.contributors for each in outcome.ranges] == [comm.members]
        assert outcome.ranges[0].end == sum(count for _, count in SHAPES)
        wanted = [sum_of(n, 1, index) for index in range(len(SHAPES))]
        assert same(summed, wanted)
        comm.all_reduce(parts, op="sum", plan=plan)  # in place
        assert same(parts, wanted)

        copied = contributions(rank, 1)
        comm.broadcast(copied, root=n - 1)
        assert same(copied, contributions(n - 1, 1))

        mine = empties(1)
        comm.reduce_scatter(wholes, mine, plan=plan)
        assert same(
            mine,
            [
                sum_of(n, n, index)[rank * count : (rank + 1) * count]
                for index, (_, count) in enumerate(SHAPES)
            ],
        )

        gathered = empties(n)
        comm.all_gather(contributions(rank, 1), gathered, plan=plan)
        everybody = [
            np.concatenate([contributions(other, 1)[index] for other in range(n)])
            for index in range(len(SHAPES))
        ]
        assert same(gathered, everybody)

        collected = empties(n)
        comm.gather(contributions(rank, 1), collected, 0, plan=plan)
        assert same(collected, everybody if rank == 0 else empties(n))
        rooted = empties(1)
        comm.reduce(contributions(rank, 1), rooted, 0, op="sum", plan=plan)
        assert same(rooted, wanted if rank == 0 else empties(1))

        dealt = empties(1)
        comm.scatter(everybody if rank == 0 else None, dealt, 0, plan=plan)
        assert same(dealt, contributions(rank, 1))

        swapped = empties(n)
        comm.all_to_all(wholes, swapped, plan=plan)
        assert same(
            swapped,
            [
                np.concatenate(
                    [
                        contributions(other, n)[index][rank * count : (rank + 1) * count]
                        for other in range(n)
                    ]
                )
                for index, (_, count) in enumerate(SHAPES)
            ],
        )
        assert same(wholes, contributions(rank, n))  # only read

    with pccl.LocalWorld(n, deadline=60) as world:
        world.run(program)


def sum_of(world_size: int, shards: int, index: int) -> np.ndarray:
    dtype, count = SHAPES[index]
    total: np.ndarray = sum(
        values(rank, shards * count, dtype).astype("f8") for rank in range(world_size)
    )  # type: ignore[assignment]
    return np.asarray(total, dtype="f8").astype(numpy_dtype(dtype))


def test_blocks_of_a_codec_begin_in_each_array_anew() -> None:
    """Goal: a list with a codec gives what calls of their own give. Method: a reduce, where the
    root adds up all chunks, without rotation, whose signs follow from the operation."""

    def program(comm: pccl.Communicator) -> None:
        rank, counts = comm.rank, (1000, 1, 257)
        mine = [np.sin(np.arange(count, dtype="f4") + rank) for count in counts]
        apart = [array.copy() for array in mine]
        codec = pccl.Codec("int8", rotate=False)
        comm.reduce(mine, op="avg", codec=codec, tag=1)
        for tag, array in enumerate(apart):
            comm.reduce(array, op="avg", codec=codec, tag=2 + tag)
        assert same(mine, apart)

    with pccl.LocalWorld(3, deadline=30) as world:
        world.run(program)


def test_error_feedback_spans_the_arrays_of_a_list() -> None:
    def program(comm: pccl.Communicator) -> None:
        arrays = [np.full(40, 0.3, "f4"), np.full((2, 30), -1.7, "f4")]
        arrays[0][0] = 90 * (comm.rank + 1)
        feedback = comm.error_feedback(5)
        comm.all_reduce(arrays, op="avg", codec="int4", tag=5)
        residual = np.frombuffer(feedback.save(), "f4")
        assert len(residual) == 100
        assert np.any(residual[:40]) and np.any(residual[40:])
        with pytest.raises(pccl.InvalidArgument, match=r"arrays of \[40, 60\] elements"):
            comm.all_reduce(arrays[::-1], op="avg", codec="int4", tag=5)
        feedback.close()

    with pccl.LocalWorld(2, deadline=30) as world:
        world.run(program)


def test_what_a_list_lost_is_kept_array_by_array() -> None:
    """Goal: in a reduce_scatter too, residuals lie one array behind the other, so that a world of
    another size adds to each what was lost of it. Method: a known residual, and zeros."""

    def program(comm: pccl.Communicator) -> None:
        first, second = np.array([1, 2, 3, 4], "f4"), np.array([10, 20, 30, 40], "f4")
        feedback = comm.error_feedback(6)
        feedback.load(np.concatenate([first, second]))
        given = [np.zeros(4, "f4"), np.zeros(4, "f4")]
        made = [np.zeros(2, "f4"), np.zeros(2, "f4")]
        codec = pccl.Codec("int8", rotate=False)
        comm.reduce_scatter(given, made, op="avg", codec=codec, tag=6)
        rows = slice(2 * comm.rank, 2 * comm.rank + 2)
        assert np.allclose(made[0], first[rows], atol=0.1)
        assert np.allclose(made[1], second[rows], atol=0.4)
        feedback.close()

    with pccl.LocalWorld(2, deadline=30) as world:
        world.run(program)


def test_more_elements_than_there_may_be_are_refused_either_way() -> None:
    with pccl.LocalWorld(2) as world:
        most = 2**40 - 1
        for send, recv in (([most, 2], [most, 0]), ([most, 0], [most, 2])):
            buffer = pccl.Buffer(4096, sum(send), pccl.DType.U8)  # never touched
            other = pccl.Buffer(2**45, sum(recv), pccl.DType.U8)
            with pytest.raises(pccl.InvalidArgument, match="elements"):
                world.comms[0].all_to_all(buffer, other, send, recv)


def test_lists_that_make_no_sense_are_refused_and_lose_nothing() -> None:
    with pccl.LocalWorld(1) as world:
        comm = world.comms[0]
        one, other = np.ones(4, "f4"), np.ones(4, "f4")
        cases: list[tuple[Callable[[], object], str]] = [
            (lambda: comm.all_reduce([]), "empty"),
            (lambda: comm.all_reduce([one, other], [one]), "list of 2 arrays"),
            (lambda: comm.all_reduce([one, other], one), "not a list"),
            (lambda: comm.all_reduce(one, [one]), "array is not"),
            (lambda: comm.all_reduce([one, one]), "lie apart"),
            (lambda: comm.all_gather([one], [other], [4]), "one array"),
            (lambda: comm.all_to_all(one, other, [4]), "both"),
            (lambda: comm.all_to_all(one, other, [4], [3]), "recv_counts add up to 3"),
            (lambda: comm.all_to_all(one, other, [4, 0], [4]), "send_counts has 2"),
        ]
        for call, word in cases:
            with pytest.raises(pccl.InvalidArgument, match=word):
                call()
        with pytest.raises(TypeError, match="array 1 of 2"):
            comm.all_reduce([one, "text"])  # type: ignore[list-item]
        assert list(one) == list(other) == [1] * 4


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (
            [(5, "f4"), (3, "f4"), (7, "f8")],
            r"arrays\[0\] and arrays\[1\] of one are in each other",
        ),
        ([(3, "f4"), (4, "f4"), (7, "f8")], r"arrays\[1\] has {5 f32|4 f32}"),
        ([(3, "f4"), (5, "f4"), (7, "i8")], r"arrays\[2\] has {7 f64|7 i64}"),
        ([(3, "f4"), (6, "f8"), (7, "f8")], r"arrays\[1\] has {5 f32|6 f64}"),
        ([(2, "f4"), (5, "f4"), (9, "f8")], r"More than one of the arrays differ"),
        ([(3, "f4"), (5, "f4")], r"2 arrays"),
    ],
)
def test_lists_that_differ_are_a_mismatch_that_says_which_array(
    theirs: list[tuple[int, str]], said: str
) -> None:
    """The peer of rank 1 differs; the one of rank 2 has called the same as that of rank 0."""

    def program(comm: pccl.Communicator) -> str:
        lists = [(3, "f4"), (5, "f4"), (7, "f8")] if comm.rank != 1 else theirs
        arrays = [np.ones(count, dtype) for count, dtype in lists]
        with pytest.raises(pccl.Mismatch) as caught:
            comm.all_reduce(arrays)
        assert all(np.all(array == 1) for array in arrays)
        return str(caught.value)

    with pccl.LocalWorld(3, deadline=30) as world:
        for message in world.run(program):
            wanted = said
            if found := re.search(r"\{(.*)\|(.*)\}", said):
                ours, other = (rf"{part} at rank \d \([^)]*\)" for part in found.groups())
                wanted = said[: found.start()] + rf"({ours} and {other}|{other} and {ours})\. "
            assert re.search(wanted, message), message
            assert "hash" not in message


# ---- what every two ranks agree about ------------------------------------------------------------


def exchanged(sender: int, receiver: int, scale: int) -> int:
    """Elements from one rank to another: none, few, or several pieces."""
    return 0 if (sender + receiver) % 3 == 0 else scale * (1 + 2 * sender + receiver)


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("scale", [1, 9001])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_every_two_ranks_exchange_what_they_agree_about(
    world_size: int, scale: int, codec: pccl.CodecName
) -> None:
    n = world_size

    def mine(sender: int, receiver: int) -> np.ndarray:
        count = exchanged(sender, receiver, scale)
        return np.full(count, 10 * sender + receiver, "f4")

    def program(comm: pccl.Communicator) -> None:
        rank = comm.rank
        send = np.concatenate([mine(rank, other) for other in range(n)])
        recv = np.full(sum(exchanged(other, rank, scale) for other in range(n)), -1, "f4")
        send_counts = [exchanged(rank, other, scale) for other in range(n)]
        recv_counts = [exchanged(other, rank, scale) for other in range(n)]
        coded = pccl.Codec(codec, rotate=False) if codec == "int8" else codec
        outcome = comm.all_to_all(send, recv, send_counts, recv_counts, codec=coded)
        wanted = np.concatenate([mine(other, rank) for other in range(n)])
        assert np.allclose(recv, wanted, atol=1)
        if codec == "none":
            assert recv.tobytes() == wanted.tobytes()
        listed = [(each.begin, each.end, each.contributors) for each in outcome.ranges]
        begin, expected = 0, []
        for other, count in enumerate(recv_counts):
            if count:
                expected.append((begin, begin + count, (comm.members[other],)))
            begin += count
        assert listed == expected

    with pccl.LocalWorld(n, deadline=60) as world:
        world.run(program)


def test_two_that_disagree_are_named_with_their_numbers() -> None:
    """Goal: a Mismatch on all three says who expected what of whom, and nothing is lost."""

    def program(comm: pccl.Communicator) -> str:
        wanted = [2, 2, 2]
        if comm.rank == 1:
            wanted[2] = 7  # of rank 2, which has 2 for it
        send, recv = np.ones(6, "i4"), np.full(sum(wanted), 5, "i4")
        with pytest.raises(pccl.Mismatch) as caught:
            comm.all_to_all(send, recv, [2, 2, 2], wanted)
        assert np.all(send == 1)
        said = str(caught.value)
        assert "2 elements for the other and 7 from it" in said
        assert "2 elements for the other and 2 from it" in said
        assert re.search(
            r"rank 2 \(.*\) sends 2 elements to rank 1 \(.*\), whose recv_counts say 7\.", said
        )
        assert said.count("recv_counts say") == 1
        return said

    with pccl.LocalWorld(3, deadline=30) as world:
        sentences = world.run(program)
    for rank in (0, 1, 2):
        assert sum(f"rank {rank} (this peer)" in said for said in sentences) == (rank > 0)


def test_an_even_and_an_uneven_exchange_are_not_the_same() -> None:
    def program(comm: pccl.Communicator) -> None:
        send, recv = np.ones(4, "f4"), np.zeros(4, "f4")
        counts = () if comm.rank == 0 else ([2, 2], [2, 2])
        with pytest.raises(pccl.Mismatch):
            comm.all_to_all(send, recv, *counts)

    with pccl.LocalWorld(2, deadline=30) as world:
        world.run(program)
