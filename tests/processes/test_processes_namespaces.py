"""Partitions between kernels: packets vanish, sockets stay open, and nobody is told.

Each peer and the coordinator has a network namespace of its own (switched.py; the switch is tested
in test_processes_switch.py). Faults that the proxy cannot make are here: acknowledgements that are
lost with the data, retransmissions that back off, dials without an answer. Links that are slow,
reset or half open: test_processes_links.py. Peers that the coordinator alone does not reach, or
does not hear: tests/chaos, and test_processes_links.py.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

import namespaces
import oracle
import pytest
from linked import COORDINATOR
from peers import Peer
from reductions import begin, judge, judge_cut_off, reduce, rejoin
from switched import Stage, SwitchedWorld

# With chunks as small as they can be, half a second: long enough to be cut inside.
COUNT = 1_500_003
SILENCE = 1.2
SETTINGS: dict[str, Any] = {
    "chunk_bytes": 1024,
    "window_bytes": 16 * 1024,
    "heartbeat": 0.2,
    "silence": SILENCE,
}
# Time on top of the silence limit: the way back of the news, and a busy machine.
LATE = 10.0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    namespaces.require()
    with Stage(4) as made:
        yield made


@pytest.fixture
def world(stage: Stage) -> Iterator[SwitchedWorld]:
    with SwitchedWorld(stage, 4, **SETTINGS) as made:
        reduce(made.peers, 0)
        yield made


def begin_inside(world: SwitchedWorld, salt: int, **options: Any) -> None:
    """An operation of all, of which peer 2 has heard a part."""
    begin(world.peers, salt, COUNT, **options)
    world.await_bytes(2, COUNT)


def go_on(peers: list[Peer]) -> None:
    """Soon with a plan for the links that work, so that nothing breaks."""
    reduce(peers, 2)
    assert reduce(peers, 3)["attempts"] == 1


CUTS = {"both directions": [(1, 2), (2, 1)], "one direction": [(1, 2)], "the other": [(2, 1)]}


@pytest.mark.parametrize("cut", CUTS)
def test_the_ring_goes_around_two_whose_packets_do_not_arrive(
    world: SwitchedWorld, cut: str
) -> None:
    *others, last = world.peers
    begin(others, 1, COUNT)
    world.await_bytes(2, 1024)
    for sender, receiver in CUTS[cut]:
        world.switch.cut(str(sender), str(receiver))
    began = time.monotonic()
    begin([last], 1, COUNT)  # before it calls, no more than a window moves
    outcome = judge(world.peers, 1, COUNT)
    seconds = time.monotonic() - began
    oracle.check_contributors(outcome, [range(4)])
    assert outcome["attempts"] > 1 and seconds < 3 * SILENCE + LATE, (outcome, seconds)
    go_on(world.peers)
    world.switch.heal()
    reduce(world.peers, 4)


def test_a_peer_that_is_cut_off_is_lost_within_the_silence_and_comes_back(
    world: SwitchedWorld,
) -> None:
    begin_inside(world, 1)
    world.switch.isolate("3")
    began = time.monotonic()
    *others, victim = world.peers
    outcome = judge(others, 1, COUNT)
    seconds = time.monotonic() - began
    oracle.check_contributors(outcome, [range(4), range(3)])
    assert seconds < SILENCE + LATE, (outcome, seconds)
    go_on(others)
    world.switch.heal()
    assert judge_cut_off(victim, 1, outcome, COUNT) == "Expelled"
    rejoin(world, victim, others)
    assert reduce([*others, victim], 4)["attempts"] == 1


def test_of_two_halves_the_one_with_the_coordinator_goes_on(world: SwitchedWorld) -> None:
    """The other half is whole, and decides nothing."""
    begin_inside(world, 1)
    for here in ("0", "1", COORDINATOR):
        for there in ("2", "3"):
            world.switch.cut_both(here, there)
    present, gone = world.peers[:2], world.peers[2:]
    outcome = judge(present, 1, COUNT)
    oracle.check_contributors(outcome, [range(4), (0, 1, 2), (0, 1, 3), (0, 1)])
    go_on(present)
    world.switch.heal()
    for peer in gone:
        assert judge_cut_off(peer, 1, outcome, COUNT) == "Expelled"
    for peer in gone:
        rejoin(world, peer, present)
        present = [*present, peer]
    reduce(present, 4)


@pytest.mark.parametrize("name", ["3", COORDINATOR])
def test_nobody_notices_an_isolation_that_is_shorter_than_the_silence(
    stage: Stage, name: str
) -> None:
    """A part of it: what the kernel sends again, it sends later each time."""
    with SwitchedWorld(stage, 4, **{**SETTINGS, "silence": 4}) as world:
        begin_inside(world, 1)
        world.switch.isolate(name)
        with pytest.raises(queue.Empty):  # without this one nothing can be decided
            world.peers[0].answers.get(timeout=0.5)
        world.switch.heal()
        outcome = judge(world.peers, 1, COUNT)
        oracle.check_contributors(outcome, [range(4)])
        assert outcome["attempts"] == 1
        assert not any(admission["changed"] for admission in world.all("admit"))
        go_on(world.peers)


def test_a_coordinator_that_was_isolated_for_longer_has_lost_nobody(world: SwitchedWorld) -> None:
    """It cannot know whether all are gone or itself. Nothing is decided meanwhile."""
    begin_inside(world, 1)
    world.switch.isolate(COORDINATOR)
    with pytest.raises(queue.Empty):
        world.peers[0].answers.get(timeout=3 * SILENCE)
    assert all(peer.silent() for peer in world.peers)
    world.switch.heal()
    oracle.check_contributors(judge(world.peers, 1, COUNT), [range(4)])
    reduce(world.peers, 2)
