"""Callbacks of works (`Work.add_done_callback`): when, where, how often, and that they may wait."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

import pccl_py as pccl

SECONDS = 30  # that nothing here needs


@pytest.fixture
def pair() -> Iterator[list[pccl.Communicator]]:
    with pccl.LocalWorld(2, deadline=SECONDS) as world:
        yield world.comms


def begin(comm: pccl.Communicator, tag: int = 0, count: int = 3) -> pccl.Work:
    return comm.all_reduce(np.ones(count), tag=tag, async_op=True)


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pccl-watcher"]


def test_it_is_called_once_with_the_work_on_another_thread(pair: list[pccl.Communicator]) -> None:
    work, called = begin(pair[0]), Future[tuple[object, threading.Thread]]()
    work.add_done_callback(lambda done: called.set_result((done, threading.current_thread())))
    assert not called.done()
    begin(pair[1]).wait()
    done, thread = called.result(SECONDS)
    assert done is work and thread in watchers()
    assert len(work.outcome.contributors) == 2


def test_of_a_work_that_is_done_it_is_called_here_and_now(pair: list[pccl.Communicator]) -> None:
    works = [begin(comm) for comm in pair]
    for work in works:
        work.wait()
    threads: list[threading.Thread] = []
    works[0].add_done_callback(lambda _: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]
    with pytest.raises(ZeroDivisionError):
        works[0].add_done_callback(lambda _: 1 // 0)


def test_a_failure_is_done_too(pair: list[pccl.Communicator]) -> None:
    work, error = begin(pair[0]), Future[pccl.PcclError | None]()
    work.add_done_callback(lambda done: error.set_result(done.exception()))
    with pytest.raises(pccl.Mismatch):
        begin(pair[1], count=4).wait()
    assert isinstance(error.result(SECONDS), pccl.Mismatch)


def test_those_of_one_work_come_in_order_and_exceptions_stop_none(
    pair: list[pccl.Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda it: reported.append(it.exc_type))
    work, order, last = begin(pair[0]), list[int](), Future[None]()
    work.add_done_callback(lambda _: order.append(0))
    work.add_done_callback(lambda _: 1 // 0)
    work.add_done_callback(lambda _: order.append(1))
    work.add_done_callback(lambda _: last.set_result(None))
    begin(pair[1]).wait()
    last.result(SECONDS)
    assert order == [0, 1]
    assert reported == [ZeroDivisionError]


def test_a_callback_may_wait_for_the_callbacks_of_other_works(
    pair: list[pccl.Communicator],
) -> None:
    """As PowerSGD waits inside of `then`: each waits for the callback of the next work."""
    depth = 8
    works = [begin(pair[0], tag) for tag in range(depth)]
    called = [Future[int]() for _ in range(depth + 1)]
    called[depth].set_result(0)

    def after(tag: int) -> None:
        called[tag].set_result(called[tag + 1].result(SECONDS) + 1)

    for work in works:
        work.add_done_callback(lambda done: after(done.outcome.tag))
    for tag in range(depth):
        begin(pair[1], tag).wait()
    assert called[0].result(SECONDS) == depth


def test_a_callback_may_begin_an_operation_and_wait_for_it(pair: list[pccl.Communicator]) -> None:
    sums = Future[float]()

    def again(_: object) -> None:
        array = np.ones(1)
        pair[0].all_reduce(array, tag=1)
        sums.set_result(array[0])

    work = begin(pair[0])
    work.add_done_callback(again)
    begin(pair[1]).wait()
    begin(pair[1], tag=1, count=1).wait()
    assert sums.result(SECONDS) == 2


def test_a_work_that_is_dropped_lives_until_its_callback(pair: list[pccl.Communicator]) -> None:
    work, outcome = begin(pair[0]), Future[pccl.Outcome]()
    work.add_done_callback(lambda done: outcome.set_result(done.outcome))
    alive = weakref.ref(work)
    del work
    gc.collect()
    assert alive() is not None
    begin(pair[1]).wait()
    assert len(outcome.result(SECONDS).contributors) == 2
    while alive() is not None:  # until the thread has let go of it
        gc.collect()


def test_awaiting_and_callbacks_go_together(pair: list[pccl.Communicator]) -> None:
    async def program() -> int:
        work, calls = begin(pair[0]), Future[int]()
        waiting, ran = asyncio.gather(work), asyncio.Event()
        asyncio.get_running_loop().call_soon(ran.set)
        await ran.wait()  # it waits by now
        work.add_done_callback(lambda done: calls.set_result(len(done.outcome.contributors)))
        begin(pair[1])
        return len((await waiting)[0].contributors) + await asyncio.wrap_future(calls)

    assert asyncio.run(program()) == 4


def test_many_callbacks_need_two_threads(pair: list[pccl.Communicator]) -> None:
    rounds, tags, called = 50, 20, threading.Semaphore(0)
    for _ in range(rounds):
        works = [begin(pair[0], tag) for tag in range(tags)]
        for work in works:
            work.add_done_callback(lambda _: called.release())
        others = [begin(pair[1], tag) for tag in range(tags)]
        for _ in range(tags):
            assert called.acquire(timeout=SECONDS)
        for work in others:
            work.wait()
    while len(watchers()) > 2:  # the others are ending
        continue


ENDS_INSIDE_A_CALLBACK = """
import threading
import numpy as np
import pccl_py as pccl
world = pccl.LocalWorld(2)
inside, never = threading.Event(), threading.Event()
def callback(work):
    inside.set()
    never.wait()
work = world.comms[0].all_reduce(np.ones(1), async_op=True)
work.add_done_callback(callback)
world.comms[1].all_reduce(np.ones(1))
inside.wait()
print("the end")
"""


def test_a_process_ends_while_a_callback_waits() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_INSIDE_A_CALLBACK],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("the end\n", "")
