"""How long calls wait for a coordinator that is away: `reconnect_timeout`, or their deadlines.

The rules: engine/session/rules_test.zig. Coordinators that come back: test_api_journal.py.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl

LOOPBACK = "127.0.0.1:0"


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_calls_fail_once_the_coordinator_is_away_for_longer_than_the_timeout(
    timeout: float,
) -> None:
    with pccl.Coordinator(bind=LOOPBACK) as coordinator:
        comm = pccl.connect(coordinator.token, reconnect_timeout=timeout, deadline=300)
        comm.admit()
        array = np.ones(10)
        comm.all_reduce(array)
        assert comm.info().lost is None
        assert repr(comm) == "<Communicator 'default' rank 0 of 1 in epoch 1>"
        begun = time.monotonic()
        coordinator.close()
        with pytest.raises((pccl.CoordinatorUnreachable, pccl.InDoubt)):  # it may have voted
            comm.all_reduce(array)
        for call in (comm.admit, lambda: comm.all_reduce(array)):
            with pytest.raises(pccl.CoordinatorUnreachable):
                call()
        assert time.monotonic() - begun < 60  # not the deadline
        assert np.array_equal(array, np.ones(10))
        assert comm.info().lost == "CoordinatorUnreachable"
        lost = "lost (CoordinatorUnreachable), was rank 0 of 1 in epoch 1"
        assert repr(comm) == f"<Communicator 'default' {lost}>"
        comm.close()


def test_a_coordinator_that_is_back_in_time_is_waited_for(tmp_path: Path) -> None:
    state = str(tmp_path / "run")
    coordinator = pccl.Coordinator(bind=LOOPBACK, state=state)
    with pccl.connect(coordinator.token, reconnect_timeout=60) as comm:
        comm.admit()
        coordinator.close()
        work = comm.all_reduce(np.ones(10), async_op=True)
        with pytest.raises(TimeoutError):
            work.wait(0.3)
        with pccl.Coordinator(bind=LOOPBACK, state=state):
            work.wait()


def connect_in_vain(coordinator: pccl.Coordinator, pool: ThreadPoolExecutor) -> Future[Any]:
    """A newcomer that waits for another one."""
    connecting = pool.submit(pccl.connect, coordinator.token, deadline=60)
    while not pccl.run_status(coordinator.token)["groups"]:
        assert not connecting.done()
    return connecting


def test_a_newcomer_does_not_wait_for_a_coordinator_that_has_ended_without_a_state() -> None:
    coordinator = pccl.Coordinator(bind=LOOPBACK, initial_world_size=2)
    with ThreadPoolExecutor(1) as pool:
        with coordinator:
            connecting = connect_in_vain(coordinator, pool)
        with pytest.raises(pccl.Expelled, match="without a journal the run ends with it"):
            connecting.result()


def test_a_newcomer_waits_for_a_coordinator_with_a_state(tmp_path: Path) -> None:
    options: Any = {"bind": LOOPBACK, "state": str(tmp_path / "run"), "initial_world_size": 2}
    with ThreadPoolExecutor(1) as pool:
        with pccl.Coordinator(**options) as coordinator:
            connecting = connect_in_vain(coordinator, pool)
        with (
            pccl.Coordinator(**options) as coordinator,
            pccl.connect(coordinator.token) as other,
            connecting.result() as newcomer,
        ):
            entering = pool.submit(newcomer.admit)
            assert other.admit().world_size == entering.result().world_size == 2


def test_it_is_no_negative_time() -> None:
    with pytest.raises(
        pccl.InvalidArgument, match="reconnect_timeout must be 0, or positive, finite"
    ):
        pccl.connect("token", reconnect_timeout=-1)
