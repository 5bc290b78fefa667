"""Objects as pickles: what comes, who is lost, what is too large; and what is not pickled."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl
from pccl_py import _pccl
from pccl_py.collectives import _HEAD

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
        lambda comm: comm.broadcast_object(unpicklable(comm.rank), 1),
        lambda comm: comm.all_gather_object(Rude() if comm.rank == 1 else 0),
    ]
    for told in refusals(calls):
        assert all("AttributeError: " in each or "PicklingError: " in each for each in told[:3])
        assert "ValueError: no\\x1b[2Jä" in told[3] and len(told[3]) < 300


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
        leaver = three.comms[2]
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(comm.all_gather_object, comm.rank) for comm in three.comms[:2]]
            leaver.all_gather(_HEAD.pack(40, b""), bytearray(3 * _HEAD.size), **AS_OBJECTS)
            leaver.close()
            for call in calls:
                with pytest.raises(pccl.Aborted, match="all_gather_object"):
                    call.result(20)


def test_a_part_of_an_object_is_not_to_be_had(world: pccl.LocalWorld) -> None:
    with pytest.raises(pccl.InvalidArgument, match="could leave a part of an object"):
        world.comms[0].all_gather_object(1, recovery="resume")
    with pytest.raises(pccl.InvalidArgument, match="unknown recovery 'none'"):
        world.comms[0].all_gather_object(1, recovery="none")  # type: ignore[arg-type]


def test_a_communicator_that_is_pickled_says_what_to_do_instead(world: pccl.LocalWorld) -> None:
    with pytest.raises(TypeError, match=r"connection of this process.*connect\("):
        pickle.dumps(world.comms[0])


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
def test_a_bad_deadline_is_refused_as_by_others(world: pccl.LocalWorld, deadline: float) -> None:
    comm = world.comms[0]
    with pytest.raises(pccl.InvalidArgument, match="deadline must be positive") as caught:
        comm.broadcast_object(1, deadline=deadline)
    assert caught.value.work is None
    with pytest.raises(pccl.InvalidArgument, match="deadline must be positive"):
        comm.all_gather_object(1, deadline=deadline)


def test_the_default_deadline_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]

    def pass_time() -> None:
        clock[0] += 4

    asked = deadlines_of_broadcasts(monkeypatch, pass_time)
    with pccl.LocalWorld(1, deadline=30) as alone:
        monkeypatch.setattr("pccl_py.collectives.time.monotonic", lambda: clock[0])
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


def test_an_option_that_they_do_not_have_is_a_type_error(world: pccl.LocalWorld) -> None:
    with pytest.raises(TypeError, match=r"broadcast_object\(\) has no option 'op'; it has tag"):
        world.comms[0].broadcast_object(1, op="sum")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"all_gather_object\(\) has no option 'plan'"):
        world.comms[0].all_gather_object(1, plan="ring")  # type: ignore[call-arg]
    for call in (world.comms[0].broadcast_object, world.comms[0].all_gather_object):
        with pytest.raises(TypeError, match="has no option 'async_op'; it has .*tag, deadline"):
            call(1, async_op=True)  # type: ignore[call-arg]
