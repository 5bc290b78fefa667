"""LocalWorld: what users' own tests stand on. Threads, results, errors, and that it always ends."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import pccl_py as pccl


def test_run_returns_the_results_in_rank_order() -> None:
    with pccl.LocalWorld(4, group="own", deadline=30) as world:
        assert [comm.rank for comm in world.comms] == [0, 1, 2, 3]
        assert {comm.name for comm in world.comms} == {"own"}
        assert world.run(lambda comm: comm.rank * 10) == [0, 10, 20, 30]
    assert all(comm.closed for comm in world.comms)
    with pytest.raises(pccl.CoordinatorUnreachable):
        pccl.run_status(world.coordinator.token, timeout=0.2)


def test_options_reach_the_coordinator() -> None:
    with pccl.LocalWorld(2, min_world_size=2, chunk_bytes=4096, lanes_per_link=3) as world:
        assert pccl.run_status(world.coordinator.token)["min_world_size"] == 2
        arrays = [np.ones(100_000), np.ones(100_000)]
        world.run(lambda comm: comm.all_reduce(arrays[comm.rank]))
        assert np.array_equal(arrays, np.full((2, 100_000), 2.0))


def test_the_first_error_comes_back_and_nobody_waits_for_who_failed() -> None:
    """The others are in an all_reduce that the failed one never calls: they go on without it."""
    results: dict[int, float] = {}

    def program(comm: pccl.Communicator) -> None:
        if comm.rank == 1:
            raise KeyError("a bug in the user's program")
        array = np.ones(3)
        comm.all_reduce(array)
        results[comm.rank] = array[0]

    with (
        pccl.LocalWorld(3, deadline=30) as world,
        pytest.raises(KeyError, match="a bug in the user's program") as caught,
    ):
        world.run(program)
    assert caught.value.__notes__ == ["Raised by rank 1 of a LocalWorld."]
    assert results == {0: 2.0, 2: 2.0}


@pytest.mark.parametrize("n", [0, -1])
def test_a_world_has_at_least_one_peer(n: int) -> None:
    with pytest.raises(pccl.InvalidArgument, match="at least 1"):
        pccl.LocalWorld(n)


def test_a_bad_option_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with pytest.raises(pccl.InvalidArgument):
        pccl.LocalWorld(2, lanes_per_link=1000)
    with pytest.raises(TypeError):
        pccl.LocalWorld(2, colour="red")
    with pytest.raises(pccl.InvalidArgument):
        pccl.LocalWorld(2, group="x" * 300)
    assert threading.active_count() <= before + 1  # the watcher stays


def test_worlds_are_apart() -> None:
    with pccl.LocalWorld(2, deadline=30) as one, pccl.LocalWorld(2, deadline=30) as other:
        first = [np.ones(3), np.ones(3)]
        second = [np.full(3, 10.0), np.full(3, 10.0)]
        works = [comm.all_reduce(first[comm.rank], async_op=True) for comm in one.comms]
        other.run(lambda comm: comm.all_reduce(second[comm.rank]))
        for work in works:
            work.wait()
    assert np.array_equal(first, np.full((2, 3), 2.0))
    assert np.array_equal(second, np.full((2, 3), 20.0))


def test_events_reach_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="pccl")
    with pccl.LocalWorld(2) as world:
        names = {comm.peer_id.short for comm in world.comms}
    from pccl_py._watcher import watcher

    watcher.drain_log()
    said = " ".join(record.getMessage() for record in caplog.records if record.name == "pccl")
    assert all(name in said for name in names), said
