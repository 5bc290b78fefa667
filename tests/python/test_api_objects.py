"""Objects as pickles: what comes, who is lost, what is too large; and what is not pickled."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl


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
        with pytest.raises(pccl.InvalidArgument, match="size_max is 500"):
            comm.all_gather_object(text, size_max=500)
        with pytest.raises(pccl.InvalidArgument, match="size_max is 500"):
            comm.broadcast_object(text, 1, size_max=500)
        with pytest.raises(pccl.InvalidArgument, match="size_max"):
            comm.broadcast_object(text, size_max=0)
        assert comm.broadcast_object(comm.rank, 2) == 2

    world.run(program)


def test_a_lost_member_has_none_in_the_list() -> None:
    called = threading.Barrier(3)

    def program(comm: pccl.Communicator) -> list[Any] | None:
        called.wait()
        if comm.rank == 1:
            comm.close()
            return None
        return comm.all_gather_object(comm.rank + 10)

    with pccl.LocalWorld(3, deadline=30) as three:
        assert three.run(program) == [[10, None, 12], None, [10, None, 12]]


def test_a_communicator_that_is_pickled_says_what_to_do_instead(world: pccl.LocalWorld) -> None:
    with pytest.raises(TypeError, match=r"connection of this process.*connect\("):
        pickle.dumps(world.comms[0])
