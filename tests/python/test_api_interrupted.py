"""Calls that an exception of a signal handler ends: with real signals, and what can be asked after.

Goal: an exception says by its `work` what became of the operation, wherever the signal came, and
the array agrees. Handlers run in the main thread only, so rank 0 is there.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pccl_numpy as pnp
import pytest

import pccl_py as pccl
from pccl_py import _pccl, collectives

SIZE = 1000


@pytest.fixture
def pair() -> Iterator[list[pccl.Communicator]]:
    with pccl.LocalWorld(2, deadline=30) as world:
        yield world.comms


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every native call of the main thread has a signal when it returns, before Python goes on."""
    native = _pccl.call

    def call(*arguments: Any) -> None:
        native(*arguments)
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_pccl, "call", call)


def beside(program: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Rank 1, in a thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(program()))
    thread.start()
    return thread, results


@pytest.mark.usefixtures("signalled")
def test_ctrl_c_after_the_commit_leaves_a_work_that_has_the_outcome(
    pair: list[pccl.Communicator],
) -> None:
    """The others have succeeded, and so has this peer: the array is the sum; the Work says it."""
    mine = np.full(SIZE, 3.0)
    other, theirs = beside(lambda: pair[1].all_reduce(np.ones(SIZE)))
    with pytest.raises(KeyboardInterrupt) as caught:
        pair[0].all_reduce(mine)
    other.join()
    work = caught.value.work  # type: ignore[attr-defined]
    assert work.exception() is None
    assert work.outcome.digest == theirs[0].digest
    assert (mine == 4).all()
    assert pair[0].info().alive == 2, "this peer has left, though the operation was done"


@pytest.mark.usefixtures("signalled")
def test_ctrl_c_as_a_call_begins_leaves_a_work_that_is_withdrawn(
    pair: list[pccl.Communicator],
) -> None:
    """Nobody would wait for a Work that its caller has not got."""
    mine = np.full(SIZE, 3.0)
    with pytest.raises(KeyboardInterrupt) as caught:
        pair[0].all_reduce(mine, async_op=True)
    work = caught.value.work  # type: ignore[attr-defined]
    assert isinstance(work.exception(), pccl.Cancelled)
    assert (mine == 3).all()


@pytest.mark.usefixtures("signalled")
def test_ctrl_c_before_a_result_is_unpacked_leaves_a_work_that_unpacks_it(
    pair: list[pccl.Communicator],
) -> None:
    """Asking what became of it writes nothing; waiting for it does, as without the signal."""
    mine = np.full(2 * SIZE, 3.0)[::2]
    other, _ = beside(lambda: pair[1].all_reduce(np.ones(SIZE)))
    with pytest.raises(KeyboardInterrupt) as caught:
        pnp.all_reduce_(pair[0], mine)
    other.join()
    work = caught.value.work  # type: ignore[attr-defined]
    assert work.exception() is None and len(work.outcome.contributors) == 2
    assert (mine == 3).all()
    assert work.wait() == work.outcome
    assert (mine == 4).all()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_while_a_call_waits_withdraws_it_and_its_work_says_so(
    pair: list[pccl.Communicator], number: signal.Signals
) -> None:
    class Stop(Exception):
        """The handler's exception."""

    def handle(_number: int, _frame: object) -> None:
        raise Stop

    def send_when_it_waits() -> None:
        while pair[0].info().operations_in_flight == 0:
            continue
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    mine = np.full(SIZE, 3.0)
    before = signal.signal(number, handle)
    try:
        sender, _ = beside(send_when_it_waits)
        with pytest.raises(Stop) as caught:
            pair[0].all_reduce(mine)
        sender.join()
    finally:
        signal.signal(number, before)
    work = caught.value.work  # type: ignore[attr-defined]
    with pytest.raises(pccl.Cancelled):
        _ = work.outcome
    assert (mine == 3).all()
    theirs = np.ones(SIZE)
    pair[1].all_reduce(theirs)
    assert (theirs == 1).all(), "the others go on without it"


def test_a_failed_call_carries_its_work_and_a_refused_one_does_not(
    pair: list[pccl.Communicator],
) -> None:
    arrays = [np.ones(SIZE), np.ones(SIZE + 1)]

    def fail(rank: int) -> pccl.PcclError:
        with pytest.raises(pccl.Mismatch) as caught:
            pair[rank].all_reduce(arrays[rank])
        return caught.value

    other, _ = beside(lambda: fail(1))
    error = fail(0)
    other.join()
    assert error.work is not None and isinstance(error.work.exception(), pccl.Mismatch)
    with pytest.raises(pccl.InvalidArgument) as caught:
        pair[0].all_reduce(np.ones(4)[::2])
    assert caught.value.work is None


def test_ctrl_c_between_the_two_operations_of_an_object_withdraws_both(
    pair: list[pccl.Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes are known to all, and the others do not wait for the bytes of this peer."""
    sizes = collectives._ObjectCall.sizes

    def signal_once(*given: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            monkeypatch.setattr(collectives._ObjectCall, "sizes", sizes)
            signal.raise_signal(signal.SIGINT)
        return sizes(*given)

    def gather() -> Any:
        return pair[1].all_gather_object(1, recovery="restart")

    monkeypatch.setattr(collectives._ObjectCall, "sizes", signal_once)
    other, theirs = beside(gather)
    with pytest.raises(KeyboardInterrupt) as caught:
        pair[0].all_gather_object(0, recovery="restart")
    work = caught.value.work  # type: ignore[attr-defined]
    error = work.exception()
    other.join(10)
    if error is None:  # it was committed before it could be withdrawn
        assert theirs == [work.wait()] == [[0, 1]]
    else:
        assert isinstance(error, (pccl.Cancelled, pccl.InDoubt))
        assert theirs in ([[None, 1]], [[0, 1]])


class Alarm(Exception):
    """The exception of the handler of an alarm."""


def test_wherever_a_signal_comes_the_memory_agrees_with_the_work() -> None:
    """Goal: no moment is forgotten. Method: alarms at 300 moments of a call, a microsecond apart.

    A peer that is alone commits by itself. Without a Work the call has returned, or begun nothing.
    """

    def handle(_number: int, _frame: object) -> None:
        raise Alarm

    world = pccl.LocalWorld(1)
    before = signal.signal(signal.SIGALRM, handle)
    gc.collect()
    gc.disable()  # Python swallows what a handler raises inside of a finalizer
    try:
        for microseconds in range(1, 301):
            if world.comms[0].closed:
                world = pccl.LocalWorld(1)
            given, out = np.full(SIZE, float(microseconds)), np.zeros(SIZE)
            comm, outcome, work = world.comms[0], None, None
            try:
                signal.setitimer(signal.ITIMER_REAL, microseconds * 1e-6)
                outcome = comm.all_reduce(given, out)
                until = time.monotonic() + 20
                while time.monotonic() < until:
                    continue
                pytest.fail("the exception of the handler was swallowed")
            except Alarm as error:
                work = getattr(error, "work", None)
            error_of_work = None if work is None else work.exception()
            if outcome is None and work is None:
                assert not out.any(), "something was begun, and there is no Work"
            elif error_of_work is None:
                assert np.array_equal(out, given)
            else:
                assert isinstance(error_of_work, (pccl.Cancelled, pccl.InDoubt))
                world.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
        world.close()
