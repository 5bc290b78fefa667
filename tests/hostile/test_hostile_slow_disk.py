"""A disk of the coordinator that takes seconds for each write, which nobody must notice but those
who wait for a record on it.

Which message waits for which record: engine/protocol/log_test.zig, and the simulator.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from honest import Run

import pccl_py as pccl

DELAY = 5
#: Until the first group has its first epoch: a record of each.
PROMPT_WRITES = 2
FOUNDERS = 3


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pccl.Coordinator]:
    """Nobody may be silent for as long as its disk takes."""
    monkeypatch.setenv("PCCL_FAULT_DISK", f"{DELAY}:{PROMPT_WRITES}")
    with pccl.Coordinator(state=tmp_path / "state", heartbeat=0.2, silence=2.5) as coordinator:
        yield coordinator


def enter(token: str, world_size: int) -> pccl.Communicator:
    comm = pccl.connect(token, initial_world_size=world_size)
    comm.admit()
    return comm


def work(comm: pccl.Communicator, stop: threading.Event, admits: bool) -> list[float]:
    """Adds until somebody says stop. How long each sum took."""
    waits = []
    while True:
        if admits:
            comm.admit()
        array = np.array([1, stop.is_set()], np.float32)
        began = time.monotonic()
        comm.all_reduce(array)
        waits.append(time.monotonic() - began)
        assert array[0] == comm.world_size
        if array[1] > 0:
            return waits


@contextlib.contextmanager
def two_at_work(
    coordinator: pccl.Coordinator, admits: bool
) -> Iterator[tuple[list[pccl.Communicator], list[Future[list[float]]]]]:
    stop = threading.Event()
    with ThreadPoolExecutor(2) as threads, contextlib.ExitStack() as open_ones:
        comms = list(threads.map(enter, [coordinator.token] * 2, [2] * 2))
        for comm in comms:
            open_ones.enter_context(comm)
        loops = [threads.submit(work, comm, stop, admits) for comm in comms]
        try:
            yield comms, loops
        finally:
            stop.set()
            for loop in loops:
                loop.exception(timeout=60)


@pytest.mark.long
def test_a_new_group_waits_for_the_disk_and_nobody_else_does(
    coordinator: pccl.Coordinator,
) -> None:
    """The group and its first epoch are a record each, so it takes two writes; sums go on."""
    with two_at_work(coordinator, admits=False) as (comms, loops):
        began = time.monotonic()
        with pccl.connect(coordinator.token, group="another") as third:
            third.admit()
            third.barrier()
        took = time.monotonic() - began
        assert not any(loop.done() for loop in loops)
    assert took >= 2 * DELAY
    for comm, loop in zip(comms, loops, strict=True):
        waits = loop.result()
        assert len(waits) > 20 and max(waits) < DELAY / 2, (len(waits), max(waits))
        assert comm.world_size == 2


def test_a_newcomer_waits_for_the_disk_and_nobody_is_lost(coordinator: pccl.Coordinator) -> None:
    """The record of its epoch takes longer than anybody may be silent; all enter it together."""
    with two_at_work(coordinator, admits=True) as (_, loops):
        began = time.monotonic()
        with pccl.connect(coordinator.token) as third:
            admission = third.admit()
            took = time.monotonic() - began
            assert (admission.epoch, admission.world_size, len(admission.left)) == (2, 3, 0)
            last = threading.Event()
            last.set()
            work(third, last, admits=False)
    assert took >= DELAY
    for loop in loops:
        assert len(loop.result()) > 1


def test_a_refused_call_does_not_wait_for_the_disk(coordinator: pccl.Coordinator) -> None:
    """The members differ, and hear so at once, because decisions are not synced."""

    def refused(comm: pccl.Communicator, size: int) -> float:
        began = time.monotonic()
        with pytest.raises(pccl.Mismatch, match="called different things"):
            comm.all_reduce(np.zeros(size, np.float32))
        took = time.monotonic() - began
        array = np.ones(1, np.float32)
        comm.all_reduce(array)
        assert array[0] == 2
        return took

    with ThreadPoolExecutor(2) as threads, contextlib.ExitStack() as open_ones:
        comms = list(threads.map(enter, [coordinator.token] * 2, [2] * 2))
        for comm in comms:
            open_ones.enter_context(comm)
        assert max(threads.map(refused, comms, [1, 2])) < DELAY / 2


@pytest.mark.long
def test_a_coordinator_is_killed_while_its_disk_takes_its_time(tmp_path: Path) -> None:
    """It writes the epoch of a newcomer, of which nobody has heard yet, and dies. All founders are
    members of the next one, and the newcomer is in."""
    disk = {"PCCL_FAULT_DISK": f"{DELAY}:{PROMPT_WRITES}"}
    with (
        Run(FOUNDERS, tmp_path, silence=2.5, environment=disk) as run,
        ThreadPoolExecutor(1) as thread,
    ):
        for _ in range(3):
            run.go_on()
            newcomer = thread.submit(run.newcomer)
            until = time.monotonic() + 60
            while not newcomer.done() and run.world_size() == FOUNDERS:
                assert time.monotonic() < until
            run.restart_coordinator()
            newcomer.result(60)
        run.go_on()
        run.until_whole()


def test_what_is_mistyped_about_the_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCCL_FAULT_DISK", "slow")
    with pytest.raises(pccl.InvalidArgument, match="PCCL_FAULT_DISK"):
        pccl.Coordinator()
