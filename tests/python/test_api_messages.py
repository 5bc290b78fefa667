"""send and recv through pccl_py: values, order, tags, refusals. Losses: tests/processes.

The C calls are in tests/abi, what the engine does of it in tests/sim.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pccl_numpy as pnp
import pytest
from test_api_collectives import DTYPES

import pccl_py as pccl


@pytest.fixture(scope="module")
def world() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(3, deadline=30) as made:
        yield made


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("count", [0, 1, 1001, 300_007])
def test_what_is_sent_arrives_bit_by_bit(world: pccl.LocalWorld, dtype: Any, count: int) -> None:
    """From the last rank to the first, while the one between them calls nothing."""
    bits = np.random.default_rng(count).integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8)
    given = bits.view(dtype)
    got = np.zeros_like(given)

    def program(comm: pccl.Communicator) -> Any:
        if comm.rank == 2:
            return comm.send(given, 0)
        return comm.recv(got, comm.members[2]) if comm.rank == 0 else None

    received, nothing, sent = world.run(program)
    assert nothing is None and got.tobytes() == given.tobytes()
    assert sent.ranges == () and sent.bytes_sent == given.nbytes
    sender = world.comms[2].peer_id
    expected = [(0, count, (sender,))] if count else []
    assert [(part.begin, part.end, part.contributors) for part in received.ranges] == expected


def test_messages_of_a_tag_arrive_in_order_and_tags_are_apart(world: pccl.LocalWorld) -> None:
    """Goal: no message is taken for another. Method: all pairs, both ways, three tags, at once."""
    tags = (0, 7, 2**38 - 1)

    def program(comm: pccl.Communicator) -> None:
        others = [rank for rank in range(3) if rank != comm.rank]
        for turn in range(3):
            works = []
            got: dict[tuple[int, int], np.ndarray] = {}
            for rank, tag in itertools.product(others, tags):
                value = np.full(5, 100 * comm.rank + 10 * rank + turn + tag % 5, np.int32)
                works.append(comm.send(value, rank, tag=tag, async_op=True))
            for rank, tag in reversed(list(itertools.product(others, tags))):
                got[rank, tag] = np.zeros(5, np.int32)
                works.append(comm.recv(got[rank, tag], rank, tag=tag, async_op=True))
            for work in works:
                assert work.wait().sequence >= turn
            for (rank, tag), array in got.items():
                assert (array == 100 * rank + 10 * comm.rank + turn + tag % 5).all()

    world.run(program)


def test_a_send_waits_for_its_recv_and_then_both_are_free(world: pccl.LocalWorld) -> None:
    first, second, _ = world.comms
    given, got = np.arange(9.0), np.zeros(9)
    work = first.send(given, 1, tag=3, async_op=True)
    world.run(lambda comm: comm.barrier(tag=4))  # others go on meanwhile
    assert not work.done()
    second.recv(got, 0, tag=3)
    work.wait()
    assert (got == given).all()


def test_two_that_send_to_each_other_first_wait_until_the_deadline(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> str | None:
        if comm.rank == 2:
            return None
        with pytest.raises((pccl.DeadlineExceeded, pccl.Aborted)) as failed:
            comm.send(np.ones(4), 1 - comm.rank, tag=8, deadline=0.3)
        return str(failed.value)

    for rank, said in enumerate(world.run(program)[:2]):
        assert said is not None and f"send to rank {1 - rank} (tag 8" in said
        assert "has not called recv" in said


MISMATCHES: dict[str, Callable[[], Any]] = {
    "count": lambda: np.full(5, 7.0),
    "dtype": lambda: np.full(4, 7, np.int64),
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_message_of_another_size_or_dtype_is_a_mismatch(
    world: pccl.LocalWorld, what: str
) -> None:
    got = MISMATCHES[what]()
    before = got.copy()

    def program(comm: pccl.Communicator) -> str | None:
        if comm.rank == 2:
            return None
        call = comm.send if comm.rank == 0 else comm.recv
        with pytest.raises(pccl.Mismatch) as failed:
            call(np.ones(4) if comm.rank == 0 else got, 1 - comm.rank)
        return str(failed.value)

    sent, received, _ = world.run(program)
    assert sent is not None and received is not None
    assert "send to rank 1" in sent and "recv from rank 0" in received
    for said in (sent, received):
        other = world.comms[1 if said == sent else 0]
        assert f"({other.label(other.peer_id)}, {other.peer_id.short})" in said
        assert f"rank {1 - other.rank} (this peer)" in said
        assert "4 f64" in said and f"{got.size} {'f64' if what == 'count' else 'i64'}" in said
    assert (got == before).all()


def test_a_wrong_partner_tag_or_array_is_named_before_anything_is_sent(
    world: pccl.LocalWorld,
) -> None:
    comm = world.comms[1]
    array = np.ones(4)
    fixed = np.ones(4)
    fixed.flags.writeable = False
    calls: list[tuple[Callable[..., Any], str]] = [(comm.send, "dst"), (comm.recv, "src")]
    for call, name in calls:
        with pytest.raises(pccl.InvalidArgument, match=f"{name} must be a rank from 0 to 2, not 3"):
            call(array, 3)
        with pytest.raises(
            pccl.InvalidArgument, match=f"{name} must be a rank from 0 to 2, not -1"
        ):
            call(array, -1)
        with pytest.raises(pccl.InvalidArgument, match="rank 1 is this peer itself"):
            call(array, 1)
        with pytest.raises(pccl.InvalidArgument, match="is not a member"):
            call(array, pccl.PeerId("ab" * 16))
        with pytest.raises(TypeError, match=f"{name} must be an integer"):
            call(array, 1.5)
        with pytest.raises(pccl.InvalidArgument, match="tag of a message must be between 0 and"):
            call(array, 0, tag=2**38)
    with pytest.raises(ValueError, match="read-only"):
        comm.recv(fixed, 0)
    assert comm.info().operations_in_flight == 0


def test_a_cancelled_recv_ends_the_send(world: pccl.LocalWorld) -> None:
    array = np.full(4, 5.0)
    receiving = world.comms[1].recv(array, 0, tag=11, async_op=True)
    receiving.cancel()
    with pytest.raises(pccl.Cancelled):
        receiving.wait()
    with pytest.raises(pccl.Aborted, match="withdrew it"):
        world.comms[0].send(np.ones(4), 1, tag=11)
    assert (array == 5).all()


def test_nobody_receives_from_whoever_sends_first(world: pccl.LocalWorld) -> None:
    """The refusal says what to do: the test behind this one does it."""
    array, sent = np.zeros(4), np.ones(4)
    comm: Any = world.comms[1]
    calls: list[Callable[[], object]] = [
        lambda: comm.recv(array, None),
        lambda: comm.recv(array, src=None, async_op=True),
        lambda: pnp.recv_(comm, array, None),  # type: ignore[call-overload]
        lambda: pnp.recv(comm, (4,), np.float64, None),  # type: ignore[call-overload]
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"all_gather who sends.*async_op=True for each"):
            call()
    sending = world.comms[0].send(sent, 1, async_op=True)
    comm.recv(array, 0)
    sending.wait()
    assert (array == 1).all()


def test_the_first_of_one_recv_from_each_is_taken_and_the_others_stay() -> None:
    """Each message arrives once, in the order of its sender, also after one of these is lost.

    Method: ranks 1 and 2 send by turns that rank 0 does not know; then 2 leaves.
    """
    turns = [1, 2, 2, 1, 2, 1, 1]
    done: queue.Queue[tuple[int, pccl.Work, np.ndarray]] = queue.Queue()

    def begin(comm: pccl.Communicator, src: int) -> None:
        array = np.zeros(1, np.int64)
        work = comm.recv(array, src, async_op=True, deadline=600)
        work.add_done_callback(lambda work: done.put((src, work, array)))

    with pccl.LocalWorld(3, deadline=30) as made:
        receiver, *senders = made.comms
        for src in (1, 2):
            begin(receiver, src)
        for number, rank in enumerate(turns):
            senders[rank - 1].send(np.array([number]), 0)
            src, work, array = done.get(timeout=60)
            assert (src, int(array[0])) == (rank, number)
            work.wait()
            begin(receiver, src)
        senders[1].close()
        src, work, _ = done.get(timeout=60)
        assert src == 2
        with pytest.raises(pccl.Aborted, match="has left or was lost"):
            work.wait()
        senders[0].send(np.array([77]), 0)
        src, work, array = done.get(timeout=60)
        work.wait()
        assert (src, int(array[0]), done.empty()) == (1, 77, True)


def test_a_sender_that_leaves_ends_the_recv_and_no_other() -> None:
    with pccl.LocalWorld(3, deadline=30) as made:
        first, second, third = made.comms
        receiving = second.recv(np.zeros(4), 0, async_op=True)
        got = np.zeros(4)
        other = second.recv(got, 2, async_op=True)
        leaver = first.peer_id.short
        first.close()
        why = "has left or was lost: call admit, as all members must, and then name a rank that is"
        with pytest.raises(pccl.Aborted, match=rf"rank 0 \(\S+, {leaver}\) {why} still there"):
            receiving.wait()
        with pytest.raises(pccl.Aborted, match="has left or was lost"):
            second.send(np.ones(4), 0)
        third.send(np.ones(4), 1)
        other.wait()
        assert (got == 1).all()


def test_numpy_packs_what_is_sent_and_unpacks_what_comes(world: pccl.LocalWorld) -> None:
    """Strides, byte order and shapes are each peer's own."""
    given = np.arange(24, dtype=">i4").reshape(4, 6)[:, ::2]
    grid = np.full((6, 8), -1, np.int32)

    def program(comm: pccl.Communicator) -> Any:
        if comm.rank == 0:
            pnp.send(comm, given, 1)
            return pnp.send(comm, [1.5, 2.5], 2, tag=1)
        if comm.rank == 1:
            return pnp.recv_(comm, grid[::2, ::2], 0)
        return pnp.recv(comm, 2, "f8", 0, tag=1)

    _, outcome, new = world.run(program)
    assert outcome.ranges[0].contributors == (world.comms[0].peer_id,)
    assert (grid[::2, ::2] == given.reshape(3, 4)).all()
    assert (grid[1::2] == -1).all() and (grid[:, 1::2] == -1).all()
    assert new.dtype == np.float64 and new.tolist() == [1.5, 2.5]
    with pytest.raises(TypeError, match="complex"):
        pnp.recv(world.comms[0], 3, complex, 1)
    with pytest.raises(ValueError, match="read-only"):
        pnp.recv_(world.comms[0], np.broadcast_to(1.0, 3), 1)
