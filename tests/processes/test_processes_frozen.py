"""Peers that are frozen (SIGSTOP) outside of operations, and losses that meet a join.

Frozen inside of an operation: test_processes_losses.py. A peer that thaws too late learns that it
is out, keeps its arrays, and may come back as a new one; the others never hear of what it wanted.
"""

from __future__ import annotations

import queue
import signal
from pathlib import Path
from typing import Any

import contributions
import numpy as np
import oracle
import pytest
from peers import Peer, World, ask_all

COUNT = 60_001
SETTINGS: dict[str, Any] = {"heartbeat": 0.2, "silence": 1.2, "chunk_bytes": 4096}


def make_and_run(peers: list[Peer], salt: int) -> None:
    ask_all(peers, "make", name="x", of="digits", count=COUNT, salt=salt)
    for peer in peers:
        peer.send("run", kind="all_reduce", array="x")


def judge(peers: list[Peer], salt: int, members: list[list[int]]) -> list[dict[str, Any]]:
    outcomes = [peer.answer() for peer in peers]
    oracle.check_agreement(outcomes)
    oracle.check_contributors(outcomes[0], members)
    for peer, outcome in zip(peers, outcomes, strict=True):
        oracle.check(outcome, peer.read("x"), salt)
    return outcomes


def freeze(peer: Peer) -> None:
    peer.signal(signal.SIGSTOP)
    assert peer.stopped()


def check_untouched(peer: Peer, salt: int) -> None:
    assert np.array_equal(peer.read("x"), contributions.digits(peer.number, COUNT, salt))


@pytest.mark.parametrize("called", [False, True])
def test_a_peer_frozen_before_an_operation_is_out_when_it_thaws(called: bool) -> None:
    """With its call on the way or not yet made: either way it never gets into the new view."""
    with World(3, **SETTINGS) as world:
        *others, victim = world.peers
        make_and_run(world.peers, 0)
        judge(world.peers, 0, [[0, 1, 2]])
        ask_all(world.peers, "make", name="x", of="digits", count=COUNT, salt=1)
        freeze(victim)
        if called:
            victim.send("run", kind="all_reduce", array="x")  # read when it thaws
        for peer in others:
            peer.send("run", kind="all_reduce", array="x")
        judge(others, 1, [[0, 1]])
        for salt in (2, 3):
            make_and_run(others, salt)
            judge(others, salt, [[0, 1]])
        ask_all(others, "make", name="x", of="digits", count=COUNT, salt=4)
        ask_all(others, "begin", work="w", kind="all_reduce", array="x")
        victim.signal(signal.SIGCONT)
        if not called:
            victim.send("run", kind="all_reduce", array="x")
        raised = victim.failure()
        assert raised.kind == "Expelled" and "silence" in raised.message, raised
        check_untouched(victim, 1)
        outcomes = ask_all(others, "wait", work="w")
        oracle.check_contributors(outcomes[0], [[0, 1]])
        for peer, outcome in zip(others, outcomes, strict=True):
            oracle.check(outcome, peer.read("x"), 4)


def test_a_peer_frozen_after_an_operation_keeps_its_result_and_may_come_back() -> None:
    with World(3, **SETTINGS) as world:
        *others, victim = world.peers
        make_and_run(world.peers, 0)
        (*_, outcome) = judge(world.peers, 0, [[0, 1, 2]])
        freeze(victim)
        make_and_run(others, 1)
        judge(others, 1, [[0, 1]])
        victim.signal(signal.SIGCONT)
        oracle.check(outcome, victim.read("x"), 0)
        victim.send("admit")
        assert victim.failure().kind == "Expelled"

        victim.become(victim.number + contributions.SLOTS)
        victim.answer()
        victim.send("join", token=world.coordinator.token, deadline=world.deadline)
        for peer in others:
            peer.send("admit_until_joined", number=victim.number)
        for peer in (victim, *others):
            assert victim.number in peer.answer()["joined"]
        make_and_run([*others, victim], 2)
        judge([*others, victim], 2, [[0, 1, victim.number]])


@pytest.mark.parametrize("taken", [False, True])
def test_a_peer_that_thaws_hears_why_it_is_out(taken: bool, tmp_path: Path) -> None:
    """It was silent, or another process has its id and its place meanwhile. With a journal the
    coordinator tells nobody whom it cannot reach, so it is told when it comes back."""
    second = Peer()
    try:
        with World(3, **SETTINGS, state=str(tmp_path / "state")) as world:
            *others, victim = world.peers
            make_and_run(world.peers, 0)
            judge(world.peers, 0, [[0, 1, 2]])
            freeze(victim)
            make_and_run(others, 1)
            judge(others, 1, [[0, 1]])
            if taken:
                second.become(victim.number)
                second.answer()
                second.send("join", token=world.coordinator.token, deadline=world.deadline)
                for peer in others:
                    peer.send("admit_until_joined", number=victim.number)
                for peer in (second, *others):
                    assert victim.number in peer.answer()["joined"]
            victim.signal(signal.SIGCONT)
            victim.send("run", kind="all_reduce", array="x")
            raised = victim.failure()
            assert raised.kind == "Expelled", raised
            why = "another process has taken its place" if taken else "it was silent for longer"
            assert why in raised.message, raised
    finally:
        second.end()


@pytest.mark.parametrize("silences", [0.5, 2.5])
def test_a_coordinator_that_is_frozen_and_thaws_loses_nobody(silences: float) -> None:
    """Also after longer than the silence limit: it hears everybody out before it judges."""
    coordinator = Peer()
    peers = [Peer() for _ in range(3)]
    try:
        coordinator.become(99)
        coordinator.answer()
        token = coordinator.ask("coordinate", **SETTINGS)
        for number, peer in enumerate(peers):
            peer.become(number)
            peer.answer()
        ask_all(peers, "join", token=token, initial_world_size=3)
        make_and_run(peers, 0)
        judge(peers, 0, [[0, 1, 2]])
        freeze(coordinator)
        make_and_run(peers, 1)
        with pytest.raises(queue.Empty):  # nothing is decided meanwhile
            peers[0].answers.get(timeout=silences * SETTINGS["silence"])
        coordinator.signal(signal.SIGCONT)
        judge(peers, 1, [[0, 1, 2]])
        assert not any(admission["changed"] for admission in ask_all(peers, "admit"))
        make_and_run(peers, 2)
        judge(peers, 2, [[0, 1, 2]])
    finally:
        coordinator.signal(signal.SIGCONT)
        for peer in (coordinator, *peers):
            peer.end()


def test_all_but_one_are_frozen_and_it_goes_on_alone() -> None:
    with World(3, **SETTINGS) as world:
        first, *others = world.peers
        for peer in others:
            freeze(peer)
        make_and_run([first], 1)
        judge([first], 1, [[0]])
        for peer in others:
            peer.signal(signal.SIGCONT)
            peer.send("run", kind="barrier")
            assert peer.failure().kind == "Expelled"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_below_min_world_size_a_group_fails_and_says_so(number: int) -> None:
    """Losses down to the minimum are survived; one more ends it, also for what is in flight."""
    with World(3, min_world_size=2, **SETTINGS) as world:
        first, second, third = world.peers
        third.signal(number)
        make_and_run([first, second], 1)
        judge([first, second], 1, [[0, 1]])
        ask_all([first, second], "make", name="x", of="digits", count=COUNT, salt=2)
        first.ask("begin", work="w", kind="all_reduce", array="x")
        second.signal(number)
        for request in ({"do": "wait", "work": "w"}, {"do": "run", "kind": "barrier"}):
            first.send(**request)
            raised = first.failure()
            assert raised.kind == "TooFewPeers" and "min_world_size" in raised.message, raised
        check_untouched(first, 2)
        if number == signal.SIGSTOP:
            for peer in (second, third):
                peer.signal(signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_is_lost_while_a_newcomer_prepares(number: int) -> None:
    """The newcomer waits for lanes to a member that dies: it gets in all the same, without it.

    It has to come before the member is lost, so the limit is one for busy machines.
    """
    with World(3, **{**SETTINGS, "silence": 4}) as world:
        first, second, victim = world.peers
        newcomer = world.start(3)
        freeze(victim)  # so that the newcomer's lanes to it do not open
        newcomer.send("join", token=world.coordinator.token, deadline=world.deadline)
        while not first.ask("pending"):
            assert newcomer.silent(), newcomer.answer()
        if number == signal.SIGKILL:
            victim.signal(number)
        for peer in (first, second):
            peer.send("admit_until_joined", number=3)
        for peer in (first, second, newcomer):
            admission = peer.answer()
            assert 3 in admission["joined"] and admission["world_size"] == 3, admission
        make_and_run([first, second, newcomer], 1)
        judge([first, second, newcomer], 1, [[0, 1, 3]])
        if number == signal.SIGSTOP:
            victim.signal(signal.SIGCONT)
            victim.send("run", kind="barrier")
            assert victim.failure().kind == "Expelled"


def test_a_newcomer_is_frozen_before_it_enters_and_holds_nobody_up() -> None:
    with World(2, **SETTINGS) as world:
        newcomer, other = world.start(2), world.start(3)
        newcomer.send("connect", token=world.coordinator.token, deadline=world.deadline)
        while not world.peers[0].ask("pending"):
            continue
        freeze(newcomer)
        founders = world.peers[:2]
        for salt in range(3):
            make_and_run(founders, salt)
            judge(founders, salt, [[0, 1]])
        other.send("join", token=world.coordinator.token, deadline=world.deadline)
        for peer in founders:
            peer.send("admit_until_joined", number=3)
        for peer in (*founders, other):
            assert peer.answer()["world_size"] in (3, 4)
        newcomer.signal(signal.SIGCONT)
