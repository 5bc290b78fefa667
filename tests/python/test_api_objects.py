"""Objects as pickles: what comes, who is lost, what is too large; and what is not pickled."""

from __future__ import annotations

import asyncio
import gc
import logging
import logging.handlers
import pickle
import queue
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest

import pccl_py as pccl
from pccl_py import _pccl
from pccl_py._in_turn import Turn
from pccl_py.objects import _HEAD

# For one of the two operations of such a call, alone.
AS_OBJECTS: Any = {"_form": _pccl.FORM_OBJECT}


@pytest.fixture(scope="module")
def world() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(3, deadline=30) as made:
        yield made


def value(rank: int) -> Any:
    return {"rank": rank, "text": "x" * rank * 1000, "array": np.arange(rank)}


def same(got: Any, wanted: Any) -> bool:
    return bool(
        got["rank"] == wanted["rank"]
        and got["text"] == wanted["text"]
        and np.array_equal(got["array"], wanted["array"])
    )


def test_every_member_has_the_objects_of_all_in_rank_order(world: pccl.LocalWorld) -> None:
    for gathered in world.run(lambda comm: comm.all_gather_object(value(comm.rank), tag=3)):
        assert len(gathered) == 3
        assert all(same(got, value(rank)) for rank, got in enumerate(gathered))
    assert world.run(lambda comm: comm.all_gather_object(None)) == [[None] * 3] * 3


def test_every_member_has_the_object_of_the_root(world: pccl.LocalWorld) -> None:
    root = world.comms[2].peer_id
    results = world.run(lambda comm: comm.broadcast_object(value(comm.rank), root))
    assert all(same(got, value(2)) for got in results)
    nothing = object()  # which others pass is not looked at, not even pickled
    made = world.run(lambda comm: comm.broadcast_object("x" if comm.rank == 0 else lambda: nothing))
    assert made == ["x"] * 3


def test_objects_that_are_too_large_are_refused_on_all(world: pccl.LocalWorld) -> None:
    """Nobody waits for one that raised, and the next call of the tag succeeds."""

    def program(comm: pccl.Communicator) -> None:
        text = "x" * (600 if comm.rank == 1 else 1)
        with pytest.raises(pccl.InvalidArgument, match="size_max is 500") as caught:
            comm.all_gather_object(text, size_max=500)
        assert str(caught.value).startswith("all_gather_object (tag 0): the objects have together")
        assert (caught.value.operation, caught.value.group) == ("all_gather_object", "default")
        with pytest.raises(pccl.InvalidArgument, match="size_max is 500"):
            comm.broadcast_object(text, 1, size_max=500)
        with pytest.raises(pccl.InvalidArgument, match="size_max"):
            comm.broadcast_object(text, size_max=0)
        assert comm.broadcast_object(comm.rank, 2) == 2

    world.run(program)


def test_a_mismatch_says_which_call_its_user_made() -> None:
    """Not the broadcast of sizes that is a part of it."""

    def program(comm: pccl.Communicator) -> str:
        call = comm.broadcast_object if comm.rank == 0 else comm.all_gather_object
        with pytest.raises(pccl.Mismatch) as caught:
            call(1)
        name = "broadcast_object" if comm.rank == 0 else "all_gather_object"
        assert caught.value.operation == name
        assert str(caught.value).startswith(f"{name} (tag 0, ")
        return str(caught.value)

    with pccl.LocalWorld(2, deadline=30) as two:
        for told in two.run(program):
            assert "broadcast_object(from rank 0" in told and "all_gather_object()" in told, told
            assert "u8" not in told, told


def unpicklable(rank: int) -> Callable[[], int]:
    return lambda: rank


def refusals(calls: Iterable[Callable[[pccl.Communicator], Any]]) -> list[list[str]]:
    """Each of two peers makes these calls: the errors, which come long before the deadline."""

    def program(comm: pccl.Communicator) -> list[str]:
        told = []
        for call in calls:
            with pytest.raises(pccl.InvalidArgument, match="cannot be pickled") as caught:
                call(comm)
            told.append(str(caught.value))
            assert (caught.value.__cause__ is not None) == (comm.rank == 1)
        assert comm.all_gather_object(comm.rank) == [0, 1]
        return told

    with pccl.LocalWorld(2, deadline=600) as two:
        names = two.comms[0].labels[1], two.comms[1].peer_id.short
        told = two.run(program)
        who = f"the object of rank 1 ({', '.join(names)})"
        assert all(who in each for told_one in told for each in told_one)
    return told


def test_an_object_that_cannot_be_pickled_is_an_error_on_all_at_once() -> None:
    class Rude:
        def __reduce__(self) -> Any:
            raise ValueError("no\x1b[2J" + 300 * "ä")

    calls: list[Callable[[pccl.Communicator], Any]] = [
        lambda comm: comm.broadcast_object(unpicklable(1) if comm.rank == 1 else None, 1),
        lambda comm: comm.all_gather_object(unpicklable(1) if comm.rank == 1 else 0),
        lambda comm: comm.broadcast_object(unpicklable(comm.rank), 1, async_op=True).wait(),
        lambda comm: comm.all_gather_object(Rude() if comm.rank == 1 else 0),
    ]
    for told in refusals(calls):
        assert all("AttributeError: " in each or "PicklingError: " in each for each in told[:3])
        assert "ValueError: no\\x1b[2Jä" in told[3] and len(told[3]) < 300


def test_a_dropped_work_that_fails_says_so_in_the_log() -> None:
    """In its first operation, in its second, and where there is no second."""
    told: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = logging.handlers.QueueHandler(told)
    logger = logging.getLogger("pccl")

    def expect(words: str) -> None:
        said = ""
        while "whose Work was dropped has failed" not in said:
            said = told.get(timeout=20).getMessage()
        assert words in said

    logger.addHandler(handler)
    try:
        with pccl.LocalWorld(2, deadline=30) as two:
            one, other = two.comms
            one.all_gather_object(1, async_op=True)
            with pytest.raises(pccl.Mismatch):
                other.barrier()
            expect("all_gather_object")
            one.broadcast_object(unpicklable(1), async_op=True)
            with pytest.raises(pccl.InvalidArgument):
                other.broadcast_object()
            expect("cannot be pickled")
            one.all_gather_object(1, async_op=True)
            other.all_gather(_HEAD.pack(5, b""), bytearray(2 * _HEAD.size), **AS_OBJECTS)
            with pytest.raises(pccl.Mismatch):
                other.barrier()
            expect("barrier")
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("recovery", [None, "complete", pccl.Recovery.DEFAULT])
def test_no_object_takes_the_place_of_a_lost_one_unless_asked_for(recovery: Any) -> None:
    """The call ends on all, and so does the next; after a safe point the others go on."""
    options: Any = {} if recovery is None else {"recovery": recovery}
    called = threading.Barrier(3)

    def program(comm: pccl.Communicator) -> list[Any]:
        called.wait()
        if comm.rank == 1:
            comm.close()
            return []
        for _ in range(2):
            with pytest.raises(pccl.Aborted, match="all_gather_object"):
                comm.all_gather_object(comm.rank, **options)
        got = [comm.all_gather_object(comm.rank + 10, recovery="restart")]
        assert comm.admit().changed
        return [*got, comm.all_gather_object(comm.rank, **options)]

    with pccl.LocalWorld(3, deadline=30) as three:
        wanted = [[10, None, 12], [0, 1]]
        assert three.run(program) == [wanted, [], wanted]


def test_a_member_lost_between_sizes_and_pickles_ends_the_call() -> None:
    """All know how large its object is, and nobody has it."""
    with pccl.LocalWorld(3, deadline=30) as three:
        works = [comm.all_gather_object(comm.rank, async_op=True) for comm in three.comms[:2]]
        leaver = three.comms[2]
        leaver.all_gather(_HEAD.pack(40, b""), bytearray(3 * _HEAD.size), **AS_OBJECTS)
        leaver.close()
        for work in works:
            with pytest.raises(pccl.Aborted, match="all_gather_object"):
                work.wait()


def test_a_part_of_an_object_is_not_to_be_had(world: pccl.LocalWorld) -> None:
    with pytest.raises(pccl.InvalidArgument, match="could leave a part of an object"):
        world.comms[0].all_gather_object(1, recovery="resume")
    with pytest.raises(pccl.InvalidArgument, match="unknown recovery 'none'"):
        world.comms[0].all_gather_object(1, recovery="none")  # type: ignore[call-overload]


def test_a_communicator_that_is_pickled_says_what_to_do_instead(world: pccl.LocalWorld) -> None:
    with pytest.raises(TypeError, match=r"connection of this process.*connect\("):
        pickle.dumps(world.comms[0])


# ---- async_op


def test_works_have_the_objects(world: pccl.LocalWorld) -> None:
    """Waited for in other orders on each rank: none needs the wait of another to go on."""

    def program(comm: pccl.Communicator) -> list[Any]:
        works = [
            comm.broadcast_object(value(comm.rank), 1, tag=0, async_op=True),
            comm.all_gather_object(comm.rank, tag=1, async_op=True),
            comm.broadcast_object(comm.rank, 2, tag=2, async_op=True),
        ]
        got = {turn: works[turn].wait() for turn in ((comm.rank + k) % 3 for k in range(3))}
        assert all(work.done() and work.exception() is None for work in works)
        assert got[0] is works[0].wait() is works[0].resolve()
        assert works[1].outcome.tag == 1
        return [got[turn] for turn in range(3)]

    for received in world.run(program):
        assert same(received[0], value(1))
        assert received[1:] == [[0, 1, 2], 2]


def test_a_work_begins_at_once_and_says_when_it_is_done() -> None:
    """Nobody waits for rank 0's: its second operation begins by itself, so rank 1 gets its own."""
    with pccl.LocalWorld(2, deadline=30) as two:
        one, other = two.comms
        work = one.all_gather_object("a", async_op=True)
        assert not work.done()
        with pytest.raises(TimeoutError):
            work.wait(0.01)
        with pytest.raises(pccl.InvalidUsage, match="not done"):
            assert work.outcome
        assert not select.select([work], [], [], 0)[0]
        assert other.all_gather_object("b") == ["a", "b"]
        assert select.select([work], [], [], 60)[0] == [work]
        assert work.done() and work.wait(0) == ["a", "b"]


def test_a_dropped_work_goes_on(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> Any:
        if comm.rank == 0:
            comm.all_gather_object(comm.rank, async_op=True)
            gc.collect()
            return [0, 1, 2]
        return comm.all_gather_object(comm.rank)

    assert world.run(program) == [[0, 1, 2]] * 3


def test_works_are_awaited_and_too_large_is_the_same_error_each_time() -> None:
    async def both(comms: list[pccl.Communicator]) -> list[Any]:
        works = [comm.broadcast_object(comm.rank, 1, async_op=True) for comm in comms]
        return list(await asyncio.gather(*works))

    async def one(work: pccl.Work[Any]) -> Any:
        return await work

    with pccl.LocalWorld(2, deadline=30) as two:
        assert asyncio.run(both(two.comms)) == [1, 1]
        works = [
            comm.all_gather_object("x" * 100, size_max=50, async_op=True) for comm in two.comms
        ]
        for work in works:
            for ask in (work.wait, work.wait, work.resolve, lambda work=work: work.outcome):
                with pytest.raises(pccl.InvalidArgument, match="size_max is 50"):
                    ask()
            with pytest.raises(pccl.InvalidArgument, match="size_max is 50"):
                asyncio.run(one(work))
            assert work.done() and isinstance(work.exception(), pccl.InvalidArgument)
        assert two.run(lambda comm: comm.broadcast_object(comm.rank)) == [0, 0]


def test_a_work_is_withdrawn_in_either_of_its_operations() -> None:
    """Rank 1 receives. The root has not called; or it has, and only for the first operation."""
    with pccl.LocalWorld(2, deadline=30) as two:
        work = two.comms[1].broadcast_object(async_op=True)
        work.cancel()
        for _ in range(2):
            with pytest.raises(pccl.Cancelled):
                work.wait()
        assert work.done() and isinstance(work.exception(), pccl.Cancelled)
        assert two.comms[0].broadcast_object("a") == "a"
    with pccl.LocalWorld(2, deadline=30) as two:
        work = two.comms[1].broadcast_object(async_op=True)
        two.comms[0].broadcast(_HEAD.pack(100, b""), **AS_OBJECTS)
        assert not work.done()
        work.cancel()
        with pytest.raises((pccl.Cancelled, pccl.InDoubt)) as caught:
            work.wait()
        if isinstance(caught.value, pccl.InDoubt):  # of the first, after this peer's vote
            assert caught.value.work is work


def test_a_safe_point_waits_until_the_second_operation_has_begun() -> None:
    """Rank 1 comes later, so rank 0 is in `admit` before the sizes are known."""

    def program(comm: pccl.Communicator) -> Any:
        if comm.rank == 1:
            work = comm.all_gather_object(comm.rank, tag=5, async_op=True)
            with pytest.raises(pccl.DeadlineExceeded, match="sizes of the objects with tag 5"):
                comm.admit(deadline=0.05)
            in_admit.set()
        else:
            assert in_admit.wait(30)
            work = comm.all_gather_object(comm.rank, tag=5, async_op=True)
        comm.admit()
        return work.wait(20)

    in_admit = threading.Event()
    with pccl.LocalWorld(2, deadline=30) as two:
        assert two.run(program) == [[0, 1], [0, 1]]


def test_the_second_operation_begins_in_the_epoch_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the watcher, which would begin it, does not; `admit` does, and the sums are equal."""
    monkeypatch.setattr(Turn, "_go_on", lambda turn: None)

    def program(comm: pccl.Communicator) -> Any:
        work = comm.all_gather_object(comm.rank, async_op=True)
        if comm.rank == 0:
            return work.wait(20), comm.admit()
        comm.admit()
        return work.wait(20), None

    with pccl.LocalWorld(2, deadline=30) as two:
        assert [gathered for gathered, _ in two.run(program)] == [[0, 1], [0, 1]]


def test_the_tag_is_in_use_until_the_second_operation_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the first is done and the second has not begun: the watcher does not begin it."""
    monkeypatch.setattr(Turn, "_go_on", lambda turn: None)
    with pccl.LocalWorld(2, deadline=30) as two:
        works = [comm.all_gather_object(comm.rank, tag=5, async_op=True) for comm in two.comms]
        for work in works:
            work._turn.first.wait(20)  # type: ignore[attr-defined]
        one = two.comms[0]
        calls: list[Callable[[], Any]] = [
            lambda: one.barrier(tag=5),
            lambda: one.all_reduce(np.ones(4), tag=5),
            lambda: one.broadcast_object(1, tag=5),
        ]
        for call in calls:
            with pytest.raises(pccl.InvalidUsage, match="tag 5 is in flight"):
                call()
        assert [work.wait(20) for work in works[::-1]] == [[0, 1], [0, 1]]
        assert two.run(lambda comm: comm.broadcast_object(comm.rank, 1, tag=5)) == [1, 1]


def test_a_doubt_about_the_sizes_is_resolved_to_the_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The root of a broadcast votes at once; the other one calls after its deadline."""
    asked = deadlines_of_broadcasts(monkeypatch, lambda: None)
    with pccl.LocalWorld(2, deadline=30) as two:
        one, other = two.comms
        with pytest.raises(pccl.InDoubt) as caught:
            one.broadcast_object({"the": "object"}, deadline=0.2)
        work = caught.value.work
        assert work is not None and work.done()
        with ThreadPoolExecutor(1) as pool:
            received = pool.submit(other.broadcast_object)
            assert work.resolve(20) == {"the": "object"} == received.result(20)
        ours = [seconds for seconds in asked if seconds < 1]
        assert len(ours) == 2 and min(ours) > 0.1, "the rest of the call has no time"
        assert work.wait() == work.resolve() == {"the": "object"}
        assert two.run(lambda comm: comm.broadcast_object(comm.rank, 1)) == [1, 1]


@pytest.mark.parametrize("deadline", [-1, 0, float("nan")])
@pytest.mark.parametrize("async_op", [False, True])
def test_a_bad_deadline_is_refused_as_by_others(
    world: pccl.LocalWorld, deadline: float, async_op: bool
) -> None:
    comm = world.comms[0]
    with pytest.raises(pccl.InvalidArgument, match="deadline must be positive") as caught:
        comm.broadcast_object(1, deadline=deadline, async_op=async_op)
    assert caught.value.work is None
    with pytest.raises(pccl.InvalidArgument, match="deadline must be positive"):
        comm.all_gather_object(1, deadline=deadline, async_op=async_op)


def test_the_default_deadline_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]

    def pass_time() -> None:
        clock[0] += 4

    asked = deadlines_of_broadcasts(monkeypatch, pass_time)
    with pccl.LocalWorld(1, deadline=30) as alone:
        monkeypatch.setattr("pccl_py.objects.time.monotonic", lambda: clock[0])
        assert alone.comms[0].broadcast_object(7) == 7
    assert asked == [30, 26]


def deadlines_of_broadcasts(
    monkeypatch: pytest.MonkeyPatch, at_each: Callable[[], None]
) -> list[float]:
    """The list gets the deadline of each broadcast, before which `at_each` is called."""
    asked: list[float] = []
    broadcast = pccl.Communicator.broadcast

    def watch(comm: Any, *given: Any, **options: Any) -> Any:
        asked.append(options["deadline"])
        at_each()
        return broadcast(comm, *given, **options)

    monkeypatch.setattr(pccl.Communicator, "broadcast", watch)
    return asked


def test_a_signal_handler_that_asks_while_the_second_operation_begins_begins_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: as a handler does, it asks on the thread that begins the second operation."""
    monkeypatch.setattr(Turn, "_go_on", lambda turn: None)
    works: list[pccl.Work[Any]] = []

    def handle() -> None:
        if works:
            assert not works[0].done()
            with pytest.raises(pccl.InvalidUsage, match="signal handler"):
                works[0].wait()

    asked = deadlines_of_broadcasts(monkeypatch, handle)
    with pccl.LocalWorld(1, deadline=30) as alone:
        works.append(alone.comms[0].broadcast_object(7, async_op=True))
        assert works[0].wait(20) == 7
    assert len(asked) == 2


class Asking:
    """An object that asks, as it is unpickled, for the Work that brings it."""

    works: ClassVar[list[pccl.Work[Any]]] = []
    errors: ClassVar[list[Exception]] = []

    def __setstate__(self, state: object) -> None:
        try:
            self.works[-1].wait(0)
        except pccl.InvalidUsage as error:
            self.errors.append(error)

    def __getstate__(self) -> object:
        return 1


def test_an_object_that_asks_for_its_own_work_is_told_to_ask_later() -> None:
    with pccl.LocalWorld(1, deadline=30) as alone:
        Asking.works.append(alone.comms[0].all_gather_object(Asking(), async_op=True))
        assert isinstance(Asking.works[-1].wait(20)[0], Asking)
    assert "ask for it later" in str(Asking.errors.pop())


def test_an_option_that_they_do_not_have_is_a_type_error(world: pccl.LocalWorld) -> None:
    with pytest.raises(TypeError, match=r"broadcast_object\(\) has no option 'op'; it has tag"):
        world.comms[0].broadcast_object(1, op="sum")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"all_gather_object\(\) has no option 'plan'"):
        world.comms[0].all_gather_object(1, plan="ring")  # type: ignore[call-overload]
