"""Calls that need every member of the epoch (recovery "complete") through pccl_py.

Losses inside a call are in tests/processes (test_processes_shards.py), in C in tests/abi; the rule
itself is in tests/sim/scenarios/complete.txt.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl

Call = Callable[[pccl.Communicator], Any]

# In a world of three.
NEED_ALL: dict[str, Call] = {
    "all_reduce": lambda comm: comm.all_reduce(np.ones(6), recovery="complete"),
    "reduce": lambda comm: comm.reduce(np.ones(6), recovery="complete"),
    "broadcast": lambda comm: comm.broadcast(np.ones(6), recovery="complete"),
    "barrier": lambda comm: comm.barrier(recovery=pccl.Recovery.COMPLETE),
    "reduce_scatter": lambda comm: comm.reduce_scatter(np.ones(6), np.ones(2)),
    "an average": lambda comm: comm.reduce_scatter(np.ones(6), np.ones(2), op="avg"),
    "all_gather": lambda comm: comm.all_gather(np.ones(2), np.ones(6)),
    "scatter": lambda comm: comm.scatter(np.ones(6), np.ones(2)),
    "gather": lambda comm: comm.gather(np.ones(2), np.ones(6)),
    "all_to_all": lambda comm: comm.all_to_all(np.ones(6), np.empty(6)),
    "of a frontend": lambda comm: pnp.all_gather(comm, np.ones(2)),
    "a barrier of a frontend": lambda comm: pnp.barrier(comm, recovery="complete"),
}


def without(gone: pccl.Communicator, call: Call, world: pccl.LocalWorld) -> list[Any]:
    """The answers of the others, by rank."""
    answers = world.run(lambda comm: None if comm is gone else (call(comm),))
    return [answer[0] for answer in answers if answer is not None]


def raises_aborted(call: Call) -> Call:
    def program(comm: pccl.Communicator) -> str:
        with pytest.raises(pccl.Aborted) as caught:
            call(comm)
        return str(caught.value)

    return program


def test_each_call_fails_at_once_until_the_next_safe_point() -> None:
    """One of three has left. Calls that need nobody in particular go on meanwhile, in step."""
    with pccl.LocalWorld(3, deadline=30) as world:
        for call in NEED_ALL.values():
            world.run(call)
        gone = world.comms[2]
        gone_name = str(gone.peer_id)[:8]
        gone.close()
        for call in NEED_ALL.values():
            for message in without(gone, raises_aborted(call), world):
                assert gone_name in message and 'recovery "complete"' in message
                assert "call admit, as all members must, and then repeat the call" in message
            sums = without(gone, lambda comm: pnp.all_reduce(comm, np.ones(3)), world)
            assert [each.tolist() for each in sums] == [[2, 2, 2]] * 2
        without(gone, lambda comm: comm.admit(), world)
        assert without(gone, lambda comm: comm.world_size, world) == [2, 2]
        without(gone, lambda comm: comm.all_gather(np.ones(2), np.ones(4)), world)


def test_a_root_that_is_lost_is_told_with_the_remedy() -> None:
    with pccl.LocalWorld(3, deadline=30) as world:
        gone = world.comms[1]
        gone.close()
        call = raises_aborted(lambda comm: comm.reduce(np.ones(2), root=1))
        for message in without(gone, call, world):
            assert "because its root, rank 1" in message
            assert (
                "call admit, as all members must, and then name a root that is still there"
                in message
            )
        without(gone, lambda comm: comm.admit(), world)
        without(gone, lambda comm: comm.reduce(np.ones(2), root=1), world)


def test_a_loop_of_failing_calls_costs_nobody_its_place() -> None:
    """Nobody is told of a call that fails for a loss that all know."""
    with pccl.LocalWorld(3, deadline=30) as world:
        gone = world.comms[0]
        gone.close()

        def program(comm: pccl.Communicator) -> int:
            row, rows = np.ones(2), np.empty(6)
            for _ in range(5000):
                with pytest.raises(pccl.Aborted):
                    comm.all_gather(row, rows)
            return len(comm.all_reduce(np.ones(1)).contributors)

        assert without(gone, program, world) == [2, 2]


def test_a_call_that_a_member_has_passed_by_fails(coordinator: pccl.Coordinator) -> None:
    """One member enters the next epoch without the barrier in which the other waits."""

    def enter(comm: pccl.Communicator) -> pccl.Admission:
        while not (admission := comm.admit()).changed:
            continue
        return admission

    def connect(world_size: int | None) -> pccl.Communicator:
        token = coordinator.token
        return pccl.connect(token, bind="127.0.0.1:0", deadline=60, initial_world_size=world_size)

    with ThreadPoolExecutor(3) as pool:
        first, second = pool.map(connect, [2, 2])
        admissions = [pool.submit(comm.admit) for comm in (first, second)]
        assert [admission.result().world_size for admission in admissions] == [2, 2]
        newcomer = connect(None)
        entering = pool.submit(newcomer.admit)
        waiting = pool.submit(first.barrier)
        while not second.info().pending:
            continue
        assert enter(second).world_size == 3
        passed = r"rank \d.* has passed the next safe point without it: call admit and go on"
        with pytest.raises(pccl.Aborted, match=passed):
            waiting.result()
        assert enter(first).world_size == 3
        assert entering.result().world_size == 3
        for comm in (newcomer, second, first):
            comm.close()


def test_who_asks_for_it_gets_zeros_for_a_lost_rank() -> None:
    with pccl.LocalWorld(3, deadline=30) as world:
        gone = world.comms[1]
        gone.close()

        def program(comm: pccl.Communicator) -> list[float]:
            rows = pnp.all_gather(comm, np.array([comm.rank + 1.0]), recovery="restart")
            return list(rows)

        assert without(gone, program, world) == [[1, 0, 3]] * 2


def test_an_input_is_kept_in_place() -> None:
    with pccl.LocalWorld(2, deadline=30) as world:
        world.comms[1].close()
        whole = np.arange(8.0)
        with pytest.raises(pccl.Aborted):
            world.comms[0].all_gather(whole[:4], whole)
        assert whole.tolist() == list(range(8))


def test_another_recovery_is_another_call() -> None:
    def program(comm: pccl.Communicator) -> str:
        recovery: pccl.RecoveryName = "restart" if comm.rank == 0 else "complete"
        with pytest.raises(pccl.Mismatch) as caught:
            comm.all_reduce(np.ones(3), recovery=recovery)
        return str(caught.value)

    with pccl.LocalWorld(2, deadline=30) as world:
        for message in world.run(program):
            assert "recovery complete" in message
