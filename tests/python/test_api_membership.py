"""Membership through pccl_py: connecting, safe points, joining and leaving, several groups."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl
from pccl_py import coordinator as coordinator_file
from pccl_py import outcome as outcome_file

LOOPBACK = "127.0.0.1:0"


def join(coordinator: pccl.Coordinator, **options: Any) -> pccl.Communicator:
    return pccl.connect(coordinator.token, bind=LOOPBACK, **{"deadline": 30.0, **options})


def admit_all(comms: list[pccl.Communicator]) -> list[pccl.Admission]:
    with ThreadPoolExecutor(len(comms)) as pool:
        return list(pool.map(lambda comm: comm.admit(), comms))


def connect_all(coordinator: pccl.Coordinator, count: int) -> list[pccl.Communicator]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: join(coordinator, initial_world_size=count), range(count)))


def test_the_first_epoch_is_the_same_for_all(coordinator: pccl.Coordinator) -> None:
    comms = connect_all(coordinator, 3)
    admissions = admit_all(comms)
    assert sorted(admission.rank for admission in admissions) == [0, 1, 2]
    for comm, admission in zip(comms, admissions, strict=True):
        assert admission.epoch == comm.epoch == 1
        assert admission.world_size == comm.world_size == 3
        assert admission.changed
        assert admission.left == ()
        assert set(admission.joined) == {other.peer_id for other in comms}
        assert comm.members[comm.rank] == comm.peer_id
        info = comm.info()
        assert (info.epoch, info.rank, info.world_size) == (1, comm.rank, 3)
        assert (info.alive, info.pending, info.operations_in_flight) == (3, 0, 0)
        assert info.peer_id == comm.peer_id
    for comm in comms:
        comm.close()


def test_a_coordinator_lives_until_it_is_closed_and_no_longer() -> None:
    token = pccl.Coordinator().token
    gc.collect()
    with pccl.connect(token, bind="127.0.0.1:0", connect_timeout=10) as comm:
        comm.admit()
        (running,) = (one for one in coordinator_file._running if one.token == token)
        running.close()
        left = weakref.ref(running)
        del running
        gc.collect()
        assert left() is None
        with pytest.raises(pccl.CoordinatorUnreachable):
            pccl.run_status(token, timeout=0.1)


def test_a_safe_point_without_news_changes_nothing(coordinator: pccl.Coordinator) -> None:
    comms = connect_all(coordinator, 2)
    admit_all(comms)
    for admission in admit_all(comms):
        assert not admission.changed
        assert (admission.epoch, admission.joined, admission.left) == (1, (), ())
    for comm in comms:
        comm.close()


def test_a_newcomer_enters_at_a_safe_point(coordinator: pccl.Coordinator) -> None:
    """Incumbents keep their order; everybody learns the same who has joined."""
    comms = connect_all(coordinator, 2)
    admit_all(comms)
    before = comms[0].members
    stop = threading.Event()

    def work(comm: pccl.Communicator) -> pccl.Admission:
        while not stop.is_set():
            admission = comm.admit()
            array = np.ones(100)
            comm.all_reduce(array)
            assert array[0] == admission.world_size
            if admission.changed:
                return admission
        raise AssertionError("the newcomer never came")

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work, comm) for comm in comms]
        newcomer = join(coordinator)
        entered = pool.submit(work, newcomer)
        admissions = [future.result() for future in [*working, entered]]
        stop.set()
    for comm, admission in zip([*comms, newcomer], admissions, strict=True):
        assert admission.epoch == 2
        assert admission.world_size == 3
        assert admission.joined == (newcomer.peer_id,)
        assert comm.members == (*before, newcomer.peer_id)
        comm.close()


def reduce_ones(comm: pccl.Communicator) -> tuple[float, pccl.Outcome]:
    array = np.ones(10)
    outcome = comm.all_reduce(array, recovery="restart")
    return array[0], outcome


def admit_until_changed(comms: list[pccl.Communicator]) -> list[pccl.Admission]:
    """Safe points, equally many for all, until one enters a new epoch."""

    def work(comm: pccl.Communicator) -> pccl.Admission:
        while not (admission := comm.admit()).changed:
            comm.barrier()
        return admission

    with ThreadPoolExecutor(len(comms)) as pool:
        return list(pool.map(work, comms))


def test_the_others_go_on_without_a_peer_that_leaves(coordinator: pccl.Coordinator) -> None:
    """Operations are without it at once; the next epoch has dense ranks again."""
    comms = connect_all(coordinator, 3)
    admit_all(comms)
    leaver = next(comm for comm in comms if comm.rank == 1)
    stay = sorted((comm for comm in comms if comm is not leaver), key=rank_of)
    ids = tuple(comm.peer_id for comm in stay)
    leaver.close()
    with ThreadPoolExecutor(2) as pool:
        for total, outcome in pool.map(reduce_ones, stay):
            assert total == 2
            assert outcome.contributors == ids
    assert [comm.world_size for comm in stay] == [3, 3]
    assert [comm.info().alive for comm in stay] == [2, 2]
    for rank, admission in enumerate(admit_until_changed(stay)):
        assert (admission.epoch, admission.rank, admission.world_size) == (2, rank, 2)
        assert (admission.left, admission.joined) == ((leaver.peer_id,), ())
    assert stay[0].members == stay[1].members == ids
    for comm in stay:
        comm.close()


def rank_of(comm: pccl.Communicator) -> int:
    return comm.rank


def test_the_last_peer_goes_on_alone(coordinator: pccl.Coordinator) -> None:
    comms = connect_all(coordinator, 2)
    admit_all(comms)
    comms[0].close()
    total, outcome = reduce_ones(comms[1])
    assert total == 1
    assert outcome.contributors == (comms[1].peer_id,)
    assert comms[1].info().alive == 1
    admission = admit_until_changed(comms[1:])[0]
    assert (admission.rank, admission.world_size) == (0, 1)
    assert admission.left == (comms[0].peer_id,)
    comms[1].close()


def test_groups_of_one_run_are_apart(coordinator: pccl.Coordinator) -> None:
    """Two groups over one connection each: epochs, ranks, tags and closing are their own."""
    comms = connect_all(coordinator, 2)
    admit_all(comms)
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda comm: comm.group("evaluation", initial_world_size=2), comms))
        admissions = list(pool.map(lambda group: group.admit(), groups))
        assert [admission.epoch for admission in admissions] == [1, 1]
        values = [np.full(4, 10.0**index) for index in range(4)]
        works = [group.all_reduce(values[i], async_op=True) for i, group in enumerate(groups)]
        works += [comm.all_reduce(values[2 + i], async_op=True) for i, comm in enumerate(comms)]
        for work in works:
            work.wait()
    assert [value[0] for value in values] == [11.0, 11.0, 1100.0, 1100.0]
    assert [group.name for group in groups] == ["evaluation"] * 2
    assert groups[0].peer_id == comms[0].peer_id
    groups[0].close()
    with pytest.raises(pccl.InvalidUsage, match="evaluation"):
        groups[0].barrier()
    comms[0].info()  # the communicator is still open
    comms[0].close()
    comms[1].close()
    with pytest.raises(pccl.InvalidUsage, match="evaluation"):  # close leaves all groups
        groups[1].admit()


def test_a_peer_may_choose_its_id(coordinator: pccl.Coordinator) -> None:
    with join(coordinator, peer_id="ab" * 16) as comm:
        comm.admit()
        assert comm.peer_id == pccl.PeerId("ab" * 16)
        assert comm.members == (pccl.PeerId("ab" * 16),)
        assert "rank 0 of 1 in epoch 1" in repr(comm)
    assert "closed" in repr(comm)
    assert comm.closed


def test_a_second_peer_of_the_same_id_is_refused(coordinator: pccl.Coordinator) -> None:
    with join(coordinator, peer_id=b"x" * 16) as comm:
        comm.admit()
        with pytest.raises(pccl.PcclError, match="same peer_id"):
            join(coordinator, peer_id=b"x" * 16, connect_timeout=3.0)
        comm.barrier()  # the first one is not disturbed


def test_the_environment_says_where_to_connect(
    coordinator: pccl.Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCCL_TOKEN", coordinator.token)
    monkeypatch.setenv("PCCL_GROUP", "from-environment")
    monkeypatch.setenv("PCCL_INITIAL_WORLD_SIZE", "1")
    monkeypatch.setenv("PCCL_BIND", LOOPBACK)
    with pccl.connect() as comm:
        assert comm.name == "from-environment"
        assert comm.admit().world_size == 1


def test_the_status_shows_groups_members_and_strangers(coordinator: pccl.Coordinator) -> None:
    empty = pccl.run_status(coordinator.token)
    assert empty["schema"] == 1
    assert empty["groups"] == []
    assert empty["run"] == pccl.token_parse(coordinator.token).run_id.hex()[:8]
    assert empty["address"].endswith(f":{coordinator.port}")
    comms = connect_all(coordinator, 2)
    admit_all(comms)
    status = pccl.run_status(coordinator.token, timeout=10)
    assert status["peers"] == 2
    assert status["uptime_ns"] > empty["uptime_ns"]
    (group,) = status["groups"]
    (epoch,) = group["epochs"]
    assert (group["name"], group["pending"]) == ("default", [])
    assert (epoch["epoch"], epoch["running"]) == (1, True)
    assert [member["rank"] for member in epoch["members"]] == [0, 1]
    assert [member["peer_id"] for member in epoch["members"]] == [
        str(peer) for peer in comms[0].members
    ]
    for comm in comms:
        comm.close()


def test_a_peer_that_comes_alone_is_told_how_many_are_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In its log, in the status and in its error; also where the group has had members before."""
    caplog.set_level("INFO", logger="pccl")
    with pccl.Coordinator(initial_world_size=2) as coordinator:

        def alone() -> None:
            with pytest.raises(pccl.DeadlineExceeded, match="1 of 2 peers are here, counting this"):
                join(coordinator, deadline=2)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(alone)
            while not any(
                "here" in group for group in pccl.run_status(coordinator.token)["groups"]
            ):
                continue
            (group,) = pccl.run_status(coordinator.token)["groups"]
            assert (group["here"], group["needed"], group["emptied"]) == (1, 2, False)
            waiting.result()
        # One line of the coordinator, one of the peer.
        while caplog.text.count("1 of 2 peers are here; group default") < 2:
            continue
        first = join(coordinator, initial_world_size=1)
        first.admit()
        # It waits with a member, which then goes.
        second = join(coordinator, initial_world_size=2)
        first.close()
        with pytest.raises(pccl.DeadlineExceeded, match="all that were in it before are gone"):
            second.admit(deadline=2)
        second.close()


def test_an_admit_that_waits_says_whose_admit_it_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In its error, its log and the status, after half of a short stall warning."""
    caplog.set_level("WARNING", logger="pccl")
    options: dict[str, Any] = {"heartbeat": 0.1, "stall_warning": 1.0}
    with pccl.Coordinator(initial_world_size=2, **options) as coordinator:
        with ThreadPoolExecutor(2) as pool:
            first, slow = pool.map(lambda label: join(coordinator, label=label), ("a", "slow"))
            waiting = pool.submit(first.admit, deadline=4)
            while not (awaited := pccl.run_status(coordinator.token)["groups"][0]["awaited"]):
                continue
            assert awaited == [str(slow.peer_id)]
            says = rf"peer {slow.peer_id.short} \(slow\) must call admit first"
            with pytest.raises(pccl.DeadlineExceeded, match=says):
                waiting.result()
            assert re.search(says, caplog.text)
            assert [one.changed for one in pool.map(lambda c: c.admit(), (first, slow))] == [
                True
            ] * 2
        first.close()
        slow.close()


def test_outcomes_and_admissions_name_peers_as_they_were() -> None:
    """Goal: names of the epoch in which a call was committed, though it is asked after the next.

    Method: three with labels sum; the first of them leaves, so that ranks move up.
    """
    with pccl.Coordinator(initial_world_size=3) as coordinator, ThreadPoolExecutor(3) as pool:
        labels = ("a", "b", "c")
        comms = list(pool.map(lambda label: join(coordinator, label=label), labels))
        first = list(pool.map(lambda comm: comm.admit(), comms))
        comms.sort(key=lambda comm: comm.rank)
        names = comms[0].labels
        assert [*names] != [""] * 3 and sorted(names) == ["a", "b", "c"]
        for admission in first:
            assert sorted(admission.joined_labels) == ["a", "b", "c"]
            for peer, label in zip(admission.joined, admission.joined_labels, strict=True):
                assert label == comms[0].label(peer) and f"{label} ({peer.short})" in str(admission)
        works = [comm.all_reduce(np.ones(4), async_op=True) for comm in comms]
        for work in works:
            work.wait()
        gone = comms.pop(0)
        gone.close()
        outcomes = [work.outcome for work in works[1:]]
        late = list(pool.map(lambda comm: comm.all_reduce(np.ones(4)), comms))
        second = list(pool.map(lambda comm: comm.admit(), comms))
        for outcome in outcomes:
            assert (outcome.labels, outcome.ranks) == (names, (0, 1, 2))
            assert f"rank 0 ({names[0]}, {gone.peer_id.short})" in str(outcome)
        for outcome in late:  # without the one that has left, whose epoch it still is
            assert (outcome.labels, outcome.ranks) == (names[1:], (1, 2))
            assert f"[0, 4): rank 1 ({names[1]}, " in str(outcome.ranges[0])
        for admission in second:
            assert (admission.left, admission.left_labels) == ((gone.peer_id,), (names[0],))
            assert f"left: {names[0]} ({gone.peer_id.short})" in str(admission)
        after = list(pool.map(lambda comm: comm.all_reduce(np.ones(4)), comms))
        assert all((one.labels, one.ranks) == (names[1:], (0, 1)) for one in after)
        for comm in comms:
            comm.close()


def test_an_outcome_that_is_read_while_another_thread_is_in_admit_has_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The native library is in the new epoch, and the thread has not come back from there."""
    read = threading.Event()
    learn = outcome_file.Rosters.learn

    def learn_late(rosters: outcome_file.Rosters) -> None:
        if threading.current_thread().name == "admitting":
            assert read.wait(30)
        learn(rosters)

    monkeypatch.setattr(outcome_file.Rosters, "learn", learn_late)
    with pccl.Coordinator(initial_world_size=1) as coordinator, join(coordinator) as comm:
        admitting = threading.Thread(target=comm.admit, name="admitting")
        admitting.start()
        while comm.epoch == 0:
            continue
        outcome = comm.barrier()
        read.set()
        admitting.join()
        assert outcome.roster.members == comm.members


def test_an_outcome_without_its_epoch_names_peers_by_their_ids() -> None:
    peers = tuple(pccl.PeerId(bytes([n]) * 16) for n in (1, 2))
    epochs = iter(range(1, 40))
    rosters = outcome_file.Rosters(
        lambda: next((pccl.Roster(epoch, peers, ("a", "b")) for epoch in epochs), None)
    )
    for _ in range(1, 40):
        rosters.learn()
    assert rosters.of(39).labels == ("a", "b")
    assert rosters.of(24).epoch == 24 and rosters.of(23).members == ()
    parts = (pccl.Range(0, 4, peers, rosters.of(1)),)
    outcome = pccl.Outcome(1, 0, 7, 2, "00" * 16, parts, 0, 0, 0.0, roster=rosters.of(1))
    assert outcome.labels == ("01010101", "02020202")
    assert str(outcome) == (
        "tag 0 sequence 7 of epoch 1 committed in attempt 2: [0, 4): peer 01010101, peer 02020202"
    )
    with pytest.raises(pccl.InvalidUsage, match="epoch 1 are not known"):
        _ = outcome.ranks
