"""Work: waiting, awaiting, withdrawing, dropping; who holds the buffers; the GIL is free."""

from __future__ import annotations

import asyncio
import gc
import logging.handlers
import os
import queue
import selectors
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import pccl_py as pccl


@pytest.fixture
def pair() -> Iterator[list[pccl.Communicator]]:
    with pccl.LocalWorld(2, deadline=30) as world:
        yield world.comms


def begin(comm: pccl.Communicator, array: np.ndarray, tag: int = 0) -> pccl.Work:
    return comm.all_reduce(array, tag=tag, async_op=True)


def test_waiting_is_not_giving_up(pair: list[pccl.Communicator]) -> None:
    arrays = [np.ones(1000), np.ones(1000)]
    work = begin(pair[0], arrays[0])
    assert not work.done()
    with pytest.raises(TimeoutError) as caught:
        work.wait(0)
    assert not isinstance(caught.value, pccl.PcclError)
    with pytest.raises(TimeoutError):
        work.wait(0.12)
    with pytest.raises(pccl.InvalidUsage, match="not done"):
        _ = work.outcome
    with pytest.raises(TimeoutError):
        work.exception(0)
    assert "in flight" in repr(work)
    assert pair[0].info().operations_in_flight == 1
    begin(pair[1], arrays[1]).wait()
    outcome = work.wait()
    assert work.done()
    assert work.outcome is outcome is work.wait(0)
    assert work.exception() is None
    assert work.resolve() == outcome  # nothing is in doubt
    assert outcome.digest in repr(work)
    assert np.array_equal(arrays, np.full((2, 1000), 2.0))
    assert pair[0].info().operations_in_flight == 0


def test_the_work_of_a_blocking_call_answers_like_any_other(
    pair: list[pccl.Communicator],
) -> None:
    """The library keeps nothing of it; an exception that comes after the commit carries it."""

    def finish(outcome: pccl.Outcome) -> None:
        outcomes.append(outcome)
        raise ZeroDivisionError

    outcomes: list[pccl.Outcome] = []
    others, all_reduce = begin(pair[1], np.ones(3)), cast("Any", pair[0].all_reduce)
    with pytest.raises(ZeroDivisionError) as caught:
        all_reduce(np.ones(3), _finish=finish)
    others.wait()
    work = caught.value.work  # type: ignore[attr-defined]
    assert work.done() and work.exception(0) is None
    assert work.outcome is outcomes[0]
    assert work.resolve(copy=False) is outcomes[0]
    work.cancel()  # nothing happens
    with selectors.DefaultSelector() as selector:
        selector.register(work, selectors.EVENT_READ)
        assert [key.fileobj for key, _ in selector.select(0)] == [work]
    called: list[pccl.Work] = []
    work.add_done_callback(called.append)
    assert called == [work]
    for ask in (work.wait, work.resolve):
        with pytest.raises(ZeroDivisionError):
            ask()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(awaited(work))
    fd = work.fileno()
    assert fd == work.fileno()
    del work, ask, caught, called
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


async def awaited(work: pccl.Work) -> object:
    return await work


def test_a_work_that_failed_says_so_every_time(pair: list[pccl.Communicator]) -> None:
    works = [begin(pair[0], np.ones(3)), begin(pair[1], np.ones(4))]
    for work in works:
        for _ in range(2):
            with pytest.raises(pccl.Mismatch):
                work.wait()
        assert work.done()
        assert isinstance(work.exception(), pccl.Mismatch)
        with pytest.raises(pccl.Mismatch):
            _ = work.outcome
        with pytest.raises(pccl.Mismatch):  # nothing is in doubt
            work.resolve()


def test_a_withdrawn_operation_keeps_inputs_and_costs_the_others_what_a_death_does(
    pair: list[pccl.Communicator],
) -> None:
    array = np.full(200_000, 5.0)
    work = begin(pair[0], array)
    work.cancel()
    with pytest.raises(pccl.Cancelled, match="the others go on without this peer"):
        work.wait()
    work.cancel()  # of a finished one: nothing happens
    assert np.array_equal(array, np.full(200_000, 5.0))
    others = np.ones(200_000)
    pair[1].all_reduce(others)
    assert np.array_equal(others, np.ones(200_000))
    with pytest.raises(pccl.Expelled, match="withdrew an operation in which others take part"):
        pair[0].all_reduce(array)


def test_of_two_alone_in_a_message_the_other_is_told_and_both_stay(
    pair: list[pccl.Communicator],
) -> None:
    receiving = pair[0].recv(np.empty(4), 1, async_op=True)
    receiving.cancel()
    with pytest.raises(pccl.Cancelled):
        receiving.wait()
    with pytest.raises(pccl.Aborted):
        pair[1].send(np.ones(4), 0)
    works = [begin(comm, np.ones(3)) for comm in pair]
    assert [len(work.wait().ranges[0].contributors) for work in works] == [2, 2]


def test_a_dropped_work_goes_on_and_keeps_its_array_until_it_is_done(
    pair: list[pccl.Communicator],
) -> None:
    array, freed = np.ones(1000), threading.Event()
    weakref.finalize(array, freed.set)
    work = begin(pair[0], array)
    del array, work
    gc.collect()
    assert not freed.is_set(), "the memory of an operation in flight was freed"
    other = np.ones(1000)
    pair[1].all_reduce(other)
    assert np.array_equal(other, np.full(1000, 2.0))
    assert freed.wait(20), "the memory of an operation that is done is kept"


def test_a_dropped_work_that_fails_says_so_in_the_log(
    pair: list[pccl.Communicator],
) -> None:
    told: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = logging.handlers.QueueHandler(told)
    logger = logging.getLogger("pccl")
    logger.addHandler(handler)
    try:
        begin(pair[0], np.ones(3))
        with pytest.raises(pccl.Mismatch):
            pair[1].all_reduce(np.ones(4))
        while "whose Work was dropped has failed" not in told.get(timeout=20).getMessage():
            pass
    finally:
        logger.removeHandler(handler)


def test_a_work_that_is_done_lets_go_of_its_arrays(pair: list[pccl.Communicator]) -> None:
    given, made = np.ones(10), np.empty(10)
    alive = [weakref.ref(given), weakref.ref(made)]
    work = pair[0].all_reduce(given, made, async_op=True)
    pair[1].all_reduce(np.ones(10))
    work.wait()
    del given, made
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    assert work.outcome.sequence == 0


def test_closing_ends_what_is_in_flight(pair: list[pccl.Communicator]) -> None:
    works = [begin(pair[0], np.ones(10), tag) for tag in range(4)]
    pair[0].close()
    for work in works:
        with pytest.raises(pccl.Cancelled):
            work.wait()


def test_closing_frees_a_thread_that_waits(pair: list[pccl.Communicator]) -> None:
    caught: list[type[BaseException]] = []
    begun = threading.Event()

    def wait() -> None:
        work = begin(pair[0], np.ones(10))
        begun.set()
        try:
            work.wait()
        except pccl.PcclError as error:
            caught.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    pair[0].close()
    thread.join()
    assert caught == [pccl.Cancelled]


def test_a_work_outlives_its_communicator() -> None:
    """Goal: no order of destruction crashes. Method: drop everything but the works, then those."""
    world = pccl.LocalWorld(2, deadline=30)
    unfinished = begin(world.comms[0], np.ones(10), tag=1)
    finished = [begin(comm, np.ones(10)) for comm in world.comms]
    for work in finished:
        work.wait()
    world.close()
    del world
    gc.collect()
    assert finished[0].outcome.digest == finished[1].outcome.digest
    assert isinstance(unfinished.exception(), pccl.Cancelled)
    del finished, unfinished
    gc.collect()


def test_other_threads_run_while_one_is_blocked(pair: list[pccl.Communicator]) -> None:
    """The GIL is free during a blocking call: only a thread that runs meanwhile can end it."""
    counted = 0

    def count_then_answer() -> None:
        nonlocal counted
        while pair[0].info().operations_in_flight == 0:
            continue
        for _ in range(10_000):
            counted += 1
        pair[1].all_reduce(np.ones(10))

    thread = threading.Thread(target=count_then_answer)
    thread.start()
    pair[0].all_reduce(np.ones(10))
    assert counted == 10_000
    thread.join()


def test_other_threads_run_while_one_connects(coordinator: pccl.Coordinator) -> None:
    def join() -> pccl.Communicator:
        return pccl.connect(
            coordinator.token, bind="127.0.0.1:0", initial_world_size=2, deadline=30
        )

    comms: list[pccl.Communicator] = []
    thread = threading.Thread(target=lambda: comms.append(join()))
    thread.start()
    comms.append(join())  # returns only if the other thread got there
    thread.join()
    for comm in comms:
        comm.close()


def test_a_buffer_that_is_in_use_is_refused(pair: list[pccl.Communicator]) -> None:
    """Two calls in flight would write each other's results over; reading together is fine."""
    comm, other = pair
    shared, apart = np.ones(1000), np.zeros(1000)
    first = begin(comm, shared, tag=1)
    clashes: list[Callable[[], object]] = [
        lambda: begin(comm, shared, tag=2),
        lambda: begin(comm, shared[500:], tag=2),
        lambda: comm.all_reduce(shared, apart, tag=2, async_op=True),
        lambda: comm.all_reduce(apart, shared, tag=2, async_op=True),
        lambda: comm.broadcast(shared, 0, tag=2, async_op=True),
    ]
    for clash in clashes:
        with pytest.raises(pccl.InvalidUsage, match="own memory"):
            clash()
    begin(other, np.ones(1000), tag=1).wait()
    first.wait()
    assert (shared == 2).all()

    # Only read: as the contribution of two calls, and as the root's of two broadcasts.
    outs = [np.empty(1000) for _ in range(2)]
    works = [comm.all_reduce(shared, out, tag=tag, async_op=True) for tag, out in enumerate(outs)]
    works += [comm.broadcast(shared, 0, tag=tag, async_op=True) for tag in (2, 3)]
    for tag in range(2):
        other.all_reduce(np.ones(1000), tag=tag)
        other.broadcast(np.empty(1000), 0, tag=tag + 2)
    for work in works:
        work.wait()
    assert all((out == 3).all() for out in outs)
    assert (shared == 2).all()


# ---- in doubt --------------------------------------------------------------------------------
#
# The root of a broadcast has everything from the start, so it votes at once if that is a window or
# 2 MiB at most; a deadline that passes after that leaves it in doubt, until the others decide.


def in_doubt(comm: pccl.Communicator, array: np.ndarray) -> pccl.Work:
    # A machine that is busy may have no time to say who it is.
    why = (
        r" timed out: the deadline passed \((waiting for .* for rank 1 \(|probably another member)"
    )
    with pytest.raises(pccl.InDoubt, match=why) as caught:
        comm.broadcast(array, 0, deadline=0.2)
    assert caught.value.work is not None
    with pytest.raises(TimeoutError):
        caught.value.work.resolve(0.06)
    return caught.value.work


def test_doubt_is_resolved_by_the_others_success(pair: list[pccl.Communicator]) -> None:
    sent, received = np.arange(1000.0), np.zeros(1000)
    work = in_doubt(pair[0], sent)
    with pytest.raises(pccl.InDoubt) as again:
        work.wait()
    assert again.value.work is work
    assert isinstance(work.exception(), pccl.InDoubt)
    pair[1].broadcast(received, 0)
    outcome = work.resolve(20)
    assert np.array_equal(received, sent)
    assert outcome.contributors and outcome.tag == 0
    assert work.wait() == work.resolve() == outcome


def test_a_coordinator_that_is_gone_is_in_the_log_at_once_and_in_the_doubt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The root of a broadcast has voted; the other member does not call, and is not blamed."""
    caplog.set_level("WARNING", logger="pccl")
    with pccl.LocalWorld(2) as world:
        work = world.comms[0].broadcast(np.arange(10.0), 0, deadline=4, async_op=True)
        token = world.coordinator.token
        while not [
            operation
            for epoch in pccl.run_status(token)["groups"][0]["epochs"]
            for operation in epoch["operations"]
            if operation["done"] == 1
        ]:
            continue
        world.coordinator.close()
        while "has lost the coordinator" not in caplog.text:
            assert not work.done()
        assert f"; trying {pccl.token_parse(token).address} again" in caplog.text
        one = world.comms[0].peer_id.short
        assert f"peer {one} ({world.comms[0].labels[0]}) has lost the coordinator" in caplog.text
        why = r" timed out: .* \(the connection to the coordinator was lost \d s ago\)"
        with pytest.raises(pccl.InDoubt, match=why):
            work.wait()


def test_doubt_is_resolved_by_the_others_failure(pair: list[pccl.Communicator]) -> None:
    sent, received = np.arange(1000.0), np.zeros(1000)
    work = in_doubt(pair[0], sent)
    with pytest.raises(pccl.Mismatch):
        pair[1].broadcast(received[1:], 0)
    with pytest.raises((pccl.Aborted, pccl.Mismatch)):
        work.resolve(20)
    assert not received.any()
    works = [comm.barrier(tag=1, async_op=True) for comm in pair]
    for other in works:
        other.wait()


def test_the_buffer_is_held_while_in_doubt(pair: list[pccl.Communicator]) -> None:
    sent = np.arange(1000.0)
    alive = weakref.ref(sent)
    work = in_doubt(pair[0], sent)
    del sent
    gc.collect()
    assert alive() is not None
    pair[1].broadcast(np.zeros(1000), 0)
    work.resolve()
    gc.collect()
    assert alive() is None


def test_the_buffer_is_held_as_long_as_the_result_may_be_asked_for(
    pair: list[pccl.Communicator],
) -> None:
    sent = np.arange(1000.0)
    alive = weakref.ref(sent)
    work = in_doubt(pair[0], sent)
    del sent
    pair[1].broadcast(np.zeros(1000), 0)
    work.resolve(20, copy=False)
    gc.collect()
    assert alive() is not None
    work.resolve()
    gc.collect()
    assert alive() is None


def test_the_root_of_a_broadcast_is_only_read_also_after_a_doubt(
    pair: list[pccl.Communicator], tmp_path: Path
) -> None:
    sent, received = np.arange(1000.0), np.zeros(1000)
    work = in_doubt(pair[0], sent)
    sent[:] = 5  # its caller's again
    pair[1].broadcast(received, 0)
    work.resolve(20)
    assert np.array_equal(received, np.arange(1000.0))
    assert (sent == 5).all()

    # Memory that cannot be written.
    path = tmp_path / "numbers"
    path.write_bytes(received.tobytes())
    mapped = np.memmap(path, mode="r")
    work = in_doubt(pair[0], mapped)
    copy = np.zeros_like(mapped)
    pair[1].broadcast(copy, 0)
    work.resolve(20)
    assert np.array_equal(mapped, copy)


def test_doubt_that_nobody_resolves_is_dropped_safely(pair: list[pccl.Communicator]) -> None:
    sent = np.arange(1000.0)
    alive = weakref.ref(sent)
    work = in_doubt(pair[0], sent)
    del sent, work
    gc.collect()
    assert alive() is None
    received = np.zeros(1000)
    pair[1].broadcast(received, 0)  # the vote stands: it is not taken back
    assert np.array_equal(received, np.arange(1000.0))


def test_a_barrier_that_others_never_reach_is_in_doubt(pair: list[pccl.Communicator]) -> None:
    """Having come is a vote: the others may still pass, also after this peer's deadline."""
    with pytest.raises(pccl.InDoubt) as caught:
        pair[0].barrier(deadline=0.2)
    assert caught.value.work is not None
    pair[1].barrier()
    assert caught.value.work.resolve(20).tag == 0


# ---- asyncio ---------------------------------------------------------------------------------


def test_a_selector_waits_for_works_beside_other_things(pair: list[pccl.Communicator]) -> None:
    """A Work has a fileno, so it is registered as a socket is."""
    works = [begin(pair[0], np.ones(10), tag) for tag in range(2)]
    ours, theirs = os.pipe()
    with selectors.DefaultSelector() as selector:
        registered: list[pccl.Work | int] = [*works, ours]
        for waited_for in registered:
            selector.register(waited_for, selectors.EVENT_READ)

        def ready() -> list[object]:
            return [key.fileobj for key, _ in selector.select(60)]

        os.write(theirs, b"x")
        assert ready() == [ours]
        os.read(ours, 1)
        begin(pair[1], np.ones(10), 1).wait()
        assert ready() == [works[1]]
        assert works[1].wait(0).tag == 1
        assert ready() == [works[1]]  # as long as it is registered
        selector.unregister(works[1])
        works[0].cancel()
        assert ready() == [works[0]]
    os.close(ours)
    os.close(theirs)


def test_works_are_awaited_without_blocking_the_loop(pair: list[pccl.Communicator]) -> None:
    arrays = [[np.full(100, float(tag + rank)) for tag in range(20)] for rank in range(2)]

    async def program() -> list[pccl.Outcome]:
        first = [begin(pair[0], arrays[0][tag], tag) for tag in range(20)]
        awaiting = asyncio.gather(*first)
        ran = asyncio.Event()
        asyncio.get_running_loop().call_soon(ran.set)
        await ran.wait()  # the loop runs while all of them are in flight
        assert not any(work.done() for work in first)
        second = [begin(pair[1], arrays[1][tag], tag) for tag in reversed(range(20))]
        await asyncio.gather(*second)
        return await awaiting

    outcomes = asyncio.run(program())
    assert [outcome.tag for outcome in outcomes] == list(range(20))
    for tag in range(20):
        assert np.array_equal(arrays[0][tag], np.full(100, 2.0 * tag + 1))
    assert len([t for t in threading.enumerate() if t.name == "pccl-watcher"]) <= 2


def test_awaiting_a_finished_work_answers_at_once(pair: list[pccl.Communicator]) -> None:
    works = [begin(comm, np.ones(3)) for comm in pair]
    for work in works:
        work.wait()

    async def program() -> None:
        assert await works[0] == await works[0] == works[0].outcome

    asyncio.run(program())


def test_awaiting_raises_the_error_of_the_operation(pair: list[pccl.Communicator]) -> None:
    async def program() -> None:
        work = begin(pair[0], np.ones(3))
        task = asyncio.ensure_future(_outcome(work))
        other = begin(pair[1], np.ones(4))
        for awaited in (task, other):
            with pytest.raises(pccl.Mismatch):
                await awaited

    asyncio.run(program())


async def _outcome(work: pccl.Work) -> pccl.Outcome:
    return await work


def test_cancelling_the_task_does_not_withdraw_the_operation(
    pair: list[pccl.Communicator],
) -> None:
    async def program() -> None:
        work = begin(pair[0], np.ones(3))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_outcome(work), 0.05)
        assert not work.done()
        other = begin(pair[1], np.ones(3))
        first, second = await asyncio.gather(work, other)
        assert first.digest == second.digest

    asyncio.run(program())


def test_a_work_that_nobody_awaits_any_more_goes_on(pair: list[pccl.Communicator]) -> None:
    array = np.ones(3)

    async def program() -> None:
        work = begin(pair[0], array)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_outcome(work), 0.01)

    asyncio.run(program())
    gc.collect()
    other = np.ones(3)
    pair[1].all_reduce(other)
    assert np.array_equal(other, np.full(3, 2.0))


def test_two_tasks_may_await_one_work(pair: list[pccl.Communicator]) -> None:
    async def program() -> None:
        work = begin(pair[0], np.ones(3))
        tasks = [asyncio.ensure_future(_outcome(work)) for _ in range(3)]
        await asyncio.sleep(0)  # lets all three begin to await
        begin(pair[1], np.ones(3)).wait()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert outcomes == [work.outcome] * 3

    asyncio.run(program())


def test_a_loop_that_ends_early_disturbs_nobody(
    pair: list[pccl.Communicator], caplog: pytest.LogCaptureFixture
) -> None:
    work = begin(pair[0], np.ones(3))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_outcome(work), 0.01)

    asyncio.run(give_up())
    begin(pair[1], np.ones(3)).wait()
    work.wait()

    async def later() -> None:
        works = [begin(comm, np.ones(3)) for comm in pair]
        await asyncio.gather(*works)

    asyncio.run(later())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_exception_of_a_log_handler_does_not_end_the_watching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log server that is away raises in its handler, on the thread that tells of completions."""

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ConnectionError("the log server is away")

    reported = threading.Event()
    errors: list[BaseException | None] = []

    def report(args: threading.ExceptHookArgs) -> None:
        errors.append(args.exc_value)
        reported.set()

    monkeypatch.setattr(threading, "excepthook", report)
    logger, handler = logging.getLogger("pccl"), Raising(logging.INFO)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        with pccl.LocalWorld(2) as world:
            assert reported.wait(20)

            async def both() -> None:
                await asyncio.gather(
                    *[comm.all_reduce(np.ones(4), async_op=True) for comm in world.comms]
                )

            asyncio.run(asyncio.wait_for(both(), 20))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert all(isinstance(error, ConnectionError) for error in errors)
