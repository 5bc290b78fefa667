"""More calls than may be in flight: they wait for their turn, and the caller does not.

The rules, one by one: engine/session/session_test.zig. A program that makes groups without end is
here too, because it met the same kind of limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pccl_py as pccl

# base/limits.zig: operations_in_flight_max, operations_queued_max.
AT_ONCE = 64
MOST = AT_ONCE + 1024


@pytest.fixture
def pair() -> Iterator[list[pccl.Communicator]]:
    with pccl.LocalWorld(2, deadline=60) as world:
        yield world.comms


def begin(
    comm: pccl.Communicator, arrays: list[np.ndarray], deadline: float | None = None
) -> list[pccl.Work]:
    return [
        comm.all_reduce(array, tag=tag, async_op=True, deadline=deadline)
        for tag, array in enumerate(arrays)
    ]


def ones(count: int) -> list[np.ndarray]:
    return [np.ones(10) for _ in range(count)]


def test_calls_beyond_those_in_flight_wait_and_succeed(pair: list[pccl.Communicator]) -> None:
    first, second = ones(500), ones(500)
    works = begin(pair[0], first)  # nobody else has called: a caller that had to wait would hang
    assert pair[0].info().operations_in_flight == 500
    works += begin(pair[1], second)
    for work in works:
        assert work.wait().epoch == pair[0].epoch
    assert all(np.array_equal(array, np.full(10, 2.0)) for array in first + second)
    assert pair[0].info().operations_in_flight == 0


def test_the_queue_has_a_bound_and_a_call_beyond_may_be_repeated(
    pair: list[pccl.Communicator],
) -> None:
    first, second = ones(MOST), ones(MOST)
    works = begin(pair[0], first)
    extra = np.ones(10)
    with pytest.raises(
        pccl.InvalidUsage, match="64 operations of this kind are in flight.*1024 calls wait"
    ):
        pair[0].all_reduce(extra, tag=MOST, async_op=True)
    works += begin(pair[1], second)
    for work in works:
        work.wait()
    works = begin(pair[0], [extra], None) + begin(pair[1], [np.ones(10)])
    for work in works:
        work.wait()
    assert np.array_equal(extra, np.full(10, 2.0))


def test_a_deadline_runs_from_the_call_and_says_what_it_waited_for(
    pair: list[pccl.Communicator],
) -> None:
    arrays = ones(AT_ONCE + 1)
    works = begin(pair[0], arrays[:AT_ONCE])
    late = pair[0].all_reduce(arrays[-1], tag=AT_ONCE, async_op=True, deadline=0.2)
    with pytest.raises(pccl.DeadlineExceeded, match="before its turn came: 64 operations"):
        late.wait()
    assert np.array_equal(arrays[-1], np.ones(10))
    for work in works + begin(pair[1], ones(AT_ONCE)):
        work.wait()
    with pytest.raises(pccl.Aborted):
        pair[1].all_reduce(np.ones(10), tag=AT_ONCE)
    retried = begin(pair[0], arrays) + begin(pair[1], ones(AT_ONCE + 1))
    for work in retried:
        work.wait()


@pytest.mark.parametrize("ends", ["close", "cancel"])
def test_what_waits_ends_with_its_communicator(pair: list[pccl.Communicator], ends: str) -> None:
    arrays = ones(AT_ONCE + 20)
    works = begin(pair[0], arrays)
    if ends == "close":
        pair[0].close()
    else:
        works[AT_ONCE].cancel()  # as any call in which others take part
    for work in works:
        assert isinstance(work.exception(), pccl.Cancelled), work.exception()
    assert all(np.array_equal(array, np.ones(10)) for array in arrays)
    # The other one goes on alone.
    for work in begin(pair[1], ones(AT_ONCE + 20)):
        work.wait()


def in_turn(token: str, enter_all: Callable[[str], Iterator[pccl.Group]], count: int) -> None:
    """Two peers enter and leave so many groups, one after the other, and sum in each."""
    sums: list[list[float]] = [[], []]

    def run(sums_of_one: list[float]) -> None:
        for group in enter_all(token):
            group.admit()
            array = np.ones(10)
            group.all_reduce(array)
            sums_of_one.append(float(array[0]))

    threads = [threading.Thread(target=run, args=(one,)) for one in sums]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [[2.0] * count] * 2


def test_a_run_has_room_for_any_number_of_groups_one_after_the_other() -> None:
    count = 150  # the run has numbers for 64

    def enter_all(token: str) -> Iterator[pccl.Group]:
        for number in range(count):
            with pccl.connect(token, group=f"g{number}", initial_world_size=2) as group:
                yield group

    with pccl.Coordinator() as coordinator:
        in_turn(coordinator.token, enter_all, count)


@pytest.mark.long  # a peer enters four new groups a second, after sixteen
def test_groups_of_one_peer_take_numbers_of_those_that_it_has_left() -> None:
    count = 80

    def enter_all(token: str) -> Iterator[pccl.Group]:
        with pccl.connect(token, initial_world_size=2) as base:
            base.admit()
            for number in range(count):
                with base.group(f"g{number}", initial_world_size=2) as group:
                    yield group

    with pccl.Coordinator() as coordinator:
        in_turn(coordinator.token, enter_all, count)
