"""Safe points that all members pass together, and newcomers beside members that are at work."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl

LOOPBACK = "127.0.0.1:0"


def join(coordinator: pccl.Coordinator, **options: Any) -> pccl.Communicator:
    return pccl.connect(coordinator.token, bind=LOOPBACK, **{"deadline": 60.0, **options})


def together(comm: pccl.Communicator) -> pccl.Admission:
    return comm.admit(together=True)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(6) as threads:
        yield threads


@pytest.fixture
def pair(coordinator: pccl.Coordinator, pool: ThreadPoolExecutor) -> Iterator[list[Any]]:
    """Two members, in the order of their ranks."""
    two = pool.map(lambda _: join(coordinator, initial_world_size=2), range(2))
    comms = sorted(two, key=lambda comm: comm.peer_id.short)
    list(pool.map(lambda comm: comm.admit(), comms))
    yield sorted(comms, key=lambda comm: comm.rank)
    for comm in comms:
        comm.close()


def all_of(pool: ThreadPoolExecutor, call: Callable[[Any], Any], comms: list[Any]) -> list[Any]:
    return list(pool.map(call, comms))


def enter_with(coordinator: pccl.Coordinator, **how: bool) -> Callable[[], pccl.Communicator]:
    def enter() -> pccl.Communicator:
        comm = join(coordinator)
        comm.admit(**how)
        return comm

    return enter


def wait_for_newcomer(comms: list[pccl.Communicator]) -> None:
    """Until all members know of an epoch with a newcomer; its user waits to enter."""
    for comm in comms:
        while comm.info().pending == 0:
            continue


def test_nobody_passes_a_safe_point_together_before_all_have_called(
    pair: list[pccl.Communicator], pool: ThreadPoolExecutor
) -> None:
    for first, second in (pair, pair[::-1]):
        waiting = pool.submit(together, first)
        # It says so once others have waited for long enough; then it has surely begun.
        while not (first.info().operations_in_flight or waiting.done()):
            continue
        assert not waiting.done()
        assert not together(second).changed
        assert not waiting.result().changed
    for comm in pair:
        assert comm.epoch == 1


def test_all_members_are_told_the_same_newcomers(
    coordinator: pccl.Coordinator, pair: list[pccl.Communicator], pool: ThreadPoolExecutor
) -> None:
    """The reference's loop: ask whether peers are pending, and let them in if they are."""
    assert all_of(pool, lambda comm: comm.pending_agreed(), pair) == [0, 0]
    entering = pool.submit(enter_with(coordinator, together=True))

    def step(comm: pccl.Communicator) -> list[Any]:
        said: list[Any] = []
        while True:
            said.append(comm.pending_agreed())
            if said[-1] > 0:
                return [*said, together(comm)]
            array = np.ones(10)
            comm.all_reduce(array)
            assert array[0] == 2

    said = all_of(pool, step, pair)
    assert said[0][:-1] == said[1][:-1]
    assert said[0][-2] == 1
    newcomer = entering.result()
    for admission in (said[0][-1], said[1][-1]):
        assert admission.changed
        assert (admission.world_size, admission.joined) == (3, (newcomer.peer_id,))
    assert newcomer.world_size == 3
    # All members from before have entered.
    assert set(newcomer.not_entered) <= {newcomer.peer_id}
    newcomer.close()


def test_a_newcomer_is_told_which_members_have_not_entered(
    coordinator: pccl.Coordinator, pair: list[pccl.Communicator], pool: ThreadPoolExecutor
) -> None:
    """It returns while they work: they may wait for something that only it can do."""
    newcomer = enter_with(coordinator)()
    assert newcomer.world_size == 3
    members = tuple(comm.peer_id for comm in pair)
    assert newcomer.not_entered == members
    wait_for_newcomer(pair)
    assert pair[0].world_size == 2
    assert pair[0].admit().changed
    while newcomer.not_entered != members[1:]:
        continue
    assert pair[1].admit().changed
    while any(comm.not_entered for comm in (newcomer, *pair)):
        continue
    newcomer.close()


def test_the_admission_of_a_newcomer_names_those_who_are_not_there(
    coordinator: pccl.Coordinator, pair: list[pccl.Communicator]
) -> None:
    newcomer = join(coordinator)
    admission = newcomer.admit()
    assert admission.not_entered == tuple(comm.peer_id for comm in pair)
    newcomer.close()


def test_one_thread_can_hold_a_member_and_a_newcomer(coordinator: pccl.Coordinator) -> None:
    """Why a newcomer does not wait by default: here nobody else could pass the safe point."""
    with join(coordinator, initial_world_size=1) as member:
        member.admit()
        with join(coordinator) as newcomer:
            assert newcomer.admit().world_size == 2
            while member.world_size == 1:
                member.admit()
            while newcomer.not_entered or member.not_entered:
                continue


def test_a_safe_point_that_one_has_no_time_for_is_passed_by_nobody(
    pair: list[pccl.Communicator], pool: ThreadPoolExecutor
) -> None:
    with pytest.raises(pccl.DeadlineExceeded, match="not passed"):
        pair[0].admit(0.2, together=True)
    with pytest.raises(pccl.Aborted, match="call admit again"):
        together(pair[1])
    assert [now.changed for now in all_of(pool, together, pair)] == [False, False]
    array = np.ones(4)
    all_of(pool, lambda comm: comm.all_reduce(np.ones(4)), pair)
    assert array[0] == 1


def test_a_member_that_dies_at_a_safe_point_is_not_waited_for(
    coordinator: pccl.Coordinator, pair: list[pccl.Communicator], pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(together, pair[0])
    while pair[0].info().operations_in_flight == 0:
        continue
    pair[1].close()
    assert not waiting.result().changed
    while not (admission := together(pair[0])).changed:
        continue
    assert (admission.world_size, len(admission.left)) == (1, 1)


def test_members_come_and_go_at_safe_points_that_all_pass_together(
    coordinator: pccl.Coordinator, pair: list[pccl.Communicator], pool: ThreadPoolExecutor
) -> None:
    """Goal: no call hangs. Method: one joins and leaves 20 times while two reduce."""
    over = threading.Event()

    def work(comm: pccl.Communicator) -> int:
        sizes = 0
        flag = np.zeros(1)
        while flag[0] == 0:
            admission = comm.admit(together=True)
            array = np.ones(100)
            comm.all_reduce(array)
            assert array[0] <= admission.world_size
            sizes += admission.changed
            flag[0] = comm.rank == 0 and over.is_set()
            comm.all_reduce(flag, op="max", tag=1)
        return sizes

    def visit(_: int) -> None:
        with join(coordinator) as comm:
            assert comm.admit(together=True).changed
            array = np.ones(100)
            comm.all_reduce(array)
            assert array[0] == 3

    working: list[Future[int]] = [pool.submit(work, comm) for comm in pair]
    try:
        for turn in range(20):
            visit(turn)
    finally:
        over.set()
    assert working[0].result() == working[1].result() >= 20


@pytest.mark.parametrize("is_agreed", [False, True], ids=["each", "all"])
def test_who_admits_only_where_somebody_is_pending_lets_newcomers_in_after_a_loss(
    is_agreed: bool, pool: ThreadPoolExecutor
) -> None:
    """The epoch that closes the gap has no newcomers, and keeps them out until it is entered."""
    with pccl.Coordinator(initial_world_size=3, heartbeat=0.1) as coordinator:
        comms = list(pool.map(lambda _: join(coordinator), range(3)))
        all_of(pool, lambda comm: comm.admit(), comms)
        lost, *left = comms
        lost.close()
        while any(comm.info().alive == 3 for comm in left):
            continue
        # The gap is to be closed before the newcomer comes.
        while len(pccl.run_status(coordinator.token)["groups"][0]["epochs"]) == 1:
            continue

        def let_in(comm: pccl.Communicator) -> None:
            while comm.info().alive < 3:
                if comm.pending_agreed() if is_agreed else comm.info().pending:
                    comm.admit(together=is_agreed)

        entering = pool.submit(enter_with(coordinator, together=is_agreed))
        all_of(pool, let_in, left)
        newcomer = entering.result()
        assert newcomer.world_size == 3
        for comm in (*left, newcomer):
            comm.close()


def test_a_group_that_lost_somebody_says_whose_safe_point_newcomers_wait_for(
    caplog: pytest.LogCaptureFixture, pool: ThreadPoolExecutor
) -> None:
    """In the status at once; in the log of the newcomer after half of a short stall warning."""
    caplog.set_level("WARNING", logger="pccl")
    options: dict[str, Any] = {"heartbeat": 0.1, "stall_warning": 1.0}
    with pccl.Coordinator(initial_world_size=3, **options) as coordinator:
        comms = list(pool.map(lambda label: join(coordinator, label=label), ("a", "b", "c")))
        all_of(pool, lambda comm: comm.admit(), comms)
        lost, busy, slow = sorted(comms, key=lambda comm: comm.rank)
        lost.close()
        entering = pool.submit(enter_with(coordinator))
        while not busy.admit().changed:
            continue
        # Until the coordinator has heard that the busy one has entered, both are awaited.
        while len((group := pccl.run_status(coordinator.token)["groups"][0])["awaited"]) != 1:
            continue
        assert (group["awaited"], group["awaits"]) == ([str(slow.peer_id)], "safe_point")
        label = slow.label(slow.peer_id)
        says = rf"rank 1 \({label}, {slow.peer_id.short}\) must pass the next safe point"
        while "must pass the next safe point" not in caplog.text:
            continue
        assert re.search(says, caplog.text)
        while busy.world_size != 3:
            slow.admit()
            busy.admit()
        entering.result().close()
        busy.close()
        slow.close()
