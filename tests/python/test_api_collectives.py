"""Collectives through pccl_py over real sockets: values, outcomes, tags, roots, disagreements.

Sums here are exact in every order; every dtype and op, bit by bit, losses and large worlds are
tested in tests/processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pccl_py as pccl

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "u16": np.uint16,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
}


def rows_for(world_size: int, count: int) -> np.ndarray:
    """Small integers, so that sums and products are exact, and every mean is an integer."""
    rows = (np.arange(world_size)[:, None] + np.arange(count)[None, :]) % 3 + 1.0
    rows[-1] += (-rows.sum(axis=0)) % world_size
    return rows


@pytest.fixture(scope="module")
def world() -> Any:
    with pccl.LocalWorld(3, deadline=30) as made:
        yield made


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6])
def test_every_world_size_sums_and_reports_its_members(world_size: int) -> None:
    with pccl.LocalWorld(world_size, deadline=60) as world:
        rows = rows_for(world_size, 1001).astype(np.float32)
        arrays = [row.copy() for row in rows]
        outcomes = world.run(lambda comm: comm.all_reduce(arrays[comm.rank]))
        members = world.comms[0].members
        assert len(members) == len(set(members)) == world_size
        assert [comm.peer_id for comm in world.comms] == list(members)
        for array, outcome in zip(arrays, outcomes, strict=True):
            assert np.array_equal(array, rows.sum(axis=0))
            assert outcome.ranges == (pccl.Range(0, 1001, members),)
            assert outcome.contributors == members
            assert outcome.digest == outcomes[0].digest
            assert (outcome.epoch, outcome.tag, outcome.sequence) == (1, 0, 0)
            assert outcome.attempts == 1
            assert outcome.duration > 0
            assert (outcome.bytes_sent > 0) == (world_size > 1)


def test_an_outcome_says_which_way_was_taken_and_no_figure_that_nobody_knows() -> None:
    by_plan: dict[pccl.PlanName, str] = {"auto": "ring", "ring": "ring", "direct": "direct"}

    def reduced(comm: pccl.Communicator, plan: pccl.PlanName) -> pccl.Outcome:
        return comm.all_reduce(np.ones(9), plan=plan)

    def message(comm: pccl.Communicator) -> pccl.Outcome | None:
        if comm.rank == 0:
            return comm.send(np.ones(9), dst=1)
        return comm.recv(np.empty(9), src=0) if comm.rank == 1 else None

    with pccl.LocalWorld(3, deadline=30) as world:  # whose links have carried nothing yet
        for plan, taken in by_plan.items():
            for outcome in world.run(partial(reduced, plan=plan)):
                assert (outcome.plan, outcome.predicted, outcome.bound) == (taken, None, None)
        assert [one.plan for one in world.run(message) if one] == ["message", "message"]


BITS: dict[str, Callable[..., Any]] = {
    "band": np.bitwise_and.reduce,
    "bor": np.bitwise_or.reduce,
    "bxor": np.bitwise_xor.reduce,
}


@pytest.mark.parametrize("op", BITS)
@pytest.mark.parametrize("name", [name for name in DTYPES if name[0] in "iu"])
def test_bits_of_integers_are_combined(world: pccl.LocalWorld, name: str, op: pccl.OpName) -> None:
    """Alone, in a list, at one root and in shards."""
    dtype = np.dtype(DTYPES[name])
    random = np.random.default_rng(5).integers(0, 256, (3, 777 * dtype.itemsize), np.uint8)
    rows = random.view(dtype)
    wanted = BITS[op](rows)

    def program(comm: pccl.Communicator) -> list[np.ndarray]:
        alone, rooted, own = (rows[comm.rank].copy() for _ in range(3))
        listed = [rows[comm.rank][:5].copy(), rows[comm.rank][5:].copy()]
        shard = np.empty(259, dtype)
        comm.all_reduce(alone, op=op)
        comm.all_reduce(listed, op=op, recovery="resume")
        comm.reduce(rooted, root=1, op=op, recovery="raise")
        comm.reduce_scatter(own, shard, op=op)
        return [alone, np.concatenate(listed), rooted, shard]

    for rank, (alone, listed, rooted, shard) in enumerate(world.run(program)):
        assert np.array_equal(alone, wanted) and np.array_equal(listed, wanted)
        assert np.array_equal(rooted, wanted if rank == 1 else rows[rank])
        assert np.array_equal(shard, wanted[259 * rank :][:259])


@pytest.mark.parametrize("op", BITS)
@pytest.mark.parametrize("name", [name for name in DTYPES if name[0] not in "iu"])
def test_bits_of_floats_are_refused_before_anything_is_sent(
    world: pccl.LocalWorld, name: str, op: pccl.OpName
) -> None:
    """By one member alone: the next call of all is not the second of anybody."""
    floats = np.ones(6, DTYPES[name])
    refused = f"op {op} is of integers, and dtype is {name}: floats have no {op}"
    comm: Any = world.comms[0]
    calls: list[Callable[[], object]] = [
        lambda: comm.all_reduce(floats, op=op),
        lambda: comm.all_reduce([np.ones(2, np.int32), floats], op=op),
        lambda: comm.reduce(floats, op=op),
        lambda: comm.reduce_scatter(floats, np.ones(2, DTYPES[name]), op=op),
        lambda: comm.all_reduce_many([floats], op=op),
    ]
    for call in calls:
        with pytest.raises(pccl.InvalidArgument, match=refused):
            call()
    outcomes = world.run(lambda comm: comm.all_reduce(np.ones(2), deadline=20))
    assert len({outcome.sequence for outcome in outcomes}) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 255, 65_536, 65_537, 1_000_003])
def test_any_count_is_reduced(world: pccl.LocalWorld, count: int) -> None:
    arrays = [np.full(count, comm.rank + 1, np.int64) for comm in world.comms]
    outcomes = world.run(lambda comm: comm.all_reduce(arrays[comm.rank]))
    for array, outcome in zip(arrays, outcomes, strict=True):
        assert np.array_equal(array, np.full(count, 6))
        assert len(outcome.ranges) == (1 if count else 0)


def test_out_receives_the_result_and_the_input_stays(world: pccl.LocalWorld) -> None:
    inputs = [np.full((4, 5), comm.rank, np.float32) for comm in world.comms]
    outputs = [np.full(20, -1, np.float32) for _ in world.comms]
    world.run(lambda comm: comm.all_reduce(inputs[comm.rank], outputs[comm.rank], op="max"))
    for rank, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
        assert np.array_equal(given, np.full((4, 5), rank))
        assert np.array_equal(made, np.full(20, 2))


def test_memory_of_any_kind_is_reduced(world: pccl.LocalWorld) -> None:
    import array

    kinds: list[Any] = [
        bytearray(b"\1\2\3"),
        np.array([1, 2, 3], np.uint8),
        array.array("B", b"\1\2\3"),
    ]
    world.run(lambda comm: comm.all_reduce(kinds[comm.rank]))
    assert [bytes(kind) for kind in kinds] == [b"\3\6\11"] * 3


def test_memory_without_a_shape_meets_arrays_of_one_dimension_and_by_its_form_others(
    world: pccl.LocalWorld,
) -> None:
    """A Buffer is what a program in C has: pccl.h says which `form` meets a matrix."""

    def program(comm: pccl.Communicator) -> None:
        for shape, form in (((6,), 0), ((2, 3), 3 << 32)):
            array = np.arange(6, dtype=np.float32).reshape(shape)
            flat = pccl.Buffer(array.ctypes.data, 6, pccl.DType.F32, owner=array)
            all_reduce: Any = comm.all_reduce
            all_reduce(flat, _form=form) if comm.rank == 1 else all_reduce(array)
            assert array.ravel().tolist() == [0, 3, 6, 9, 12, 15]

    world.run(program)


def test_an_array_of_no_dimension_is_one_element(world: pccl.LocalWorld) -> None:
    arrays = [np.array(float(comm.rank)) for comm in world.comms]
    world.run(lambda comm: comm.all_reduce(arrays[comm.rank]))
    assert arrays == [3.0] * 3


@pytest.mark.parametrize("by", ["rank", "peer_id"])
@pytest.mark.parametrize("root", [0, 1, 2])
def test_broadcast_copies_the_bytes_of_the_root(world: pccl.LocalWorld, root: int, by: str) -> None:
    arrays = [np.full(100_001, comm.rank, np.int32) for comm in world.comms]
    arrays[root].flags.writeable = False  # the root only reads
    name = root if by == "rank" else world.comms[0].members[root]
    outcomes = world.run(lambda comm: comm.broadcast(arrays[comm.rank], name))
    for array, outcome in zip(arrays, outcomes, strict=True):
        assert np.array_equal(array, np.full(100_001, root))
        assert outcome.digest == outcomes[0].digest


def test_broadcast_keeps_every_bit(world: pccl.LocalWorld) -> None:
    """A broadcast copies: no NaN is made canonical and no zero loses its sign."""
    bits = np.array([0x7FC00001, 0xFF800001, 0x80000000, 0x00000001], np.uint32)
    arrays = [(bits if comm.rank == 0 else bits * 0).view(np.float32) for comm in world.comms]
    world.run(lambda comm: comm.broadcast(arrays[comm.rank]))
    for array in arrays:
        assert np.array_equal(array.view(np.uint32), bits)


def test_a_barrier_holds_everyone_until_the_last_comes(world: pccl.LocalWorld) -> None:
    arrived: list[int] = []
    released = threading.Event()

    def program(comm: pccl.Communicator) -> int:
        if comm.rank == 2:
            released.wait()
        arrived.append(comm.rank)
        outcome = comm.barrier()
        assert sorted(arrived) == [0, 1, 2], "a barrier returned before the last had come"
        assert outcome.ranges == ()
        return outcome.sequence

    works = [world.comms[rank].barrier(tag=9, async_op=True) for rank in (0, 1)]
    assert not works[0].done()
    world.comms[2].barrier(tag=9)
    works[0].wait()
    works[1].wait()
    released.set()
    world.run(program)


def test_sequences_count_per_tag(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> list[tuple[int, int]]:
        tags = [100, 101, 100, 2**63, 100]
        outcomes = [comm.all_reduce(np.ones(3), tag=tag) for tag in tags]
        return [(outcome.tag, outcome.sequence) for outcome in outcomes]

    expected = [(100, 0), (101, 0), (100, 1), (2**63, 0), (100, 2)]
    assert world.run(program) == [expected] * 3


def test_sixteen_tags_at_once_in_another_order_on_each_peer(world: pccl.LocalWorld) -> None:
    counts = [1, 10, 1000, 70_000]
    arrays = [
        [np.full(counts[tag % 4], tag + comm.rank, np.int64) for tag in range(16)]
        for comm in world.comms
    ]

    def program(comm: pccl.Communicator) -> None:
        order = np.random.default_rng(comm.rank).permutation(16)
        works = [
            comm.all_reduce(arrays[comm.rank][tag], tag=1000 + int(tag), async_op=True)
            for tag in order
        ]
        for work in reversed(works):
            work.wait()

    world.run(program)
    for of_peer in arrays:
        for tag, array in enumerate(of_peer):
            assert np.array_equal(array, np.full(counts[tag % 4], 3 * tag + 3))


def test_threads_of_one_peer_share_its_communicator(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> list[float]:
        results = [0.0] * 8

        def work(tag: int) -> None:
            for _ in range(5):
                array = np.array([float(comm.rank)])
                comm.all_reduce(array, tag=2000 + tag)
                results[tag] += array[0]

        threads = [threading.Thread(target=work, args=(tag,)) for tag in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    assert world.run(program) == [[15.0] * 8] * 3


def mismatching_calls() -> dict[str, tuple[Any, Any]]:
    """Two calls with ten float32."""
    return {
        "count": (lambda c, x: c.all_reduce(x), lambda c, x: c.all_reduce(x[:9])),
        "dtype": (lambda c, x: c.all_reduce(x), lambda c, x: c.all_reduce(x.view(np.int32))),
        "op": (lambda c, x: c.all_reduce(x), lambda c, x: c.all_reduce(x, op="max")),
        "recovery": (
            lambda c, x: c.all_reduce(x),
            lambda c, x: c.all_reduce(x, recovery="raise"),
        ),
        "kind": (lambda c, x: c.all_reduce(x), lambda c, x: c.broadcast(x)),
        "root": (lambda c, x: c.broadcast(x, 0), lambda c, x: c.broadcast(x, 1)),
    }


@pytest.mark.parametrize("what", mismatching_calls())
def test_peers_that_disagree_all_get_mismatch_and_keep_their_arrays(what: str) -> None:
    """Every peer, also the two that agree, and the group goes on afterwards."""
    with pccl.LocalWorld(3, deadline=30) as world:
        agreed, other = mismatching_calls()[what]

        def program(comm: pccl.Communicator) -> str:
            array = np.full(10, comm.rank + 1, np.float32)
            with pytest.raises(pccl.Mismatch) as caught:
                (other if comm.rank == 1 else agreed)(comm, array)
            assert (array == comm.rank + 1).all()
            comm.all_reduce(np.ones(3))
            return str(caught.value)

        messages = world.run(program)
        odd = world.comms[1].peer_id
        for rank, message in enumerate(messages):
            names = [
                "(this peer)" if rank == number else f", {peer.short})"
                for number, peer in enumerate(world.comms[0].members)
            ]
            assert f"rank 1 {names[1]}" in message or names[1] in message, message
            assert odd.short in message or rank == 1
            assert any(names[other] in message for other in (0, 2)), message
            assert world.comms[0].label(odd) in message or rank == 1


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ((2, 3), (3, 2), ("6 f32, rows of 3", "6 f32, rows of 2")),
        ((2, 3), (6,), ("6 f32, rows of 3", "6 f32, one dimension")),
        ((1, 6), (6,), ("6 f32, rows of 6", "6 f32, one dimension")),
        ((2, 3), (2, 1, 3), ("6 f32, rows of 3", "6 f32, three or more dimensions")),
        ((2, 3, 4), (2, 4, 3), ("all_reduce(sum, 24 f32)",)),
    ],
)
def test_arrays_of_other_shapes_are_a_mismatch_that_names_them(
    one: tuple[int, ...], other: tuple[int, ...], words: tuple[str, ...]
) -> None:
    with pccl.LocalWorld(2, deadline=30) as world:

        def program(comm: pccl.Communicator) -> None:
            shape = other if comm.rank else one
            array = np.ones(shape, np.float32)
            with pytest.raises(pccl.Mismatch) as caught:
                comm.all_reduce(array)
            assert (array == 1).all()
            here = f" (here {shape})" if len(shape) > 1 else ""
            told = f"The arrays of these two differ in shape{here}: pass arrays of one shape, or "
            for word in (*words, told):
                assert word in str(caught.value)
            comm.all_reduce(array.reshape(-1))
            assert (array == 2).all()

        world.run(program)


def test_a_mismatch_names_both_descriptors() -> None:
    with pccl.LocalWorld(2, deadline=30) as world:

        def program(comm: pccl.Communicator) -> str:
            array = np.full(100 + comm.rank, 7, np.float32)
            with pytest.raises(pccl.Mismatch) as caught:
                comm.all_reduce(array, op="avg", tag=42)
            assert np.array_equal(array, np.full(100 + comm.rank, 7))
            return str(caught.value)

        for message in world.run(program):
            for word in ("100", "101", "f32", "avg", "42"):
                assert word in message, message
