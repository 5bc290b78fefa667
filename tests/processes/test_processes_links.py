"""Links that fail while both ends live: cut, deaf in one direction, black holes, crawling, reset.

Every connection goes through the faulty proxy (proxy.py, tested in test_processes_proxy.py). Peer
2 is slow to hear from peer 1, so that an operation of all is inside when its link is struck.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import oracle
import pytest
from linked import COORDINATOR, LinkedWorld, await_condition
from proxy import Fate, Rule
from reductions import COUNT, begin, check_untouched, judge, judge_cut_off, reduce, rejoin

BYTES = 8 * COUNT
SILENCE = 1.2
SETTINGS: dict[str, Any] = {
    "chunk_bytes": 4096,
    "window_bytes": 64 * 1024,
    "heartbeat": 0.2,
    "silence": SILENCE,
}
# An operation of COUNT takes about a second over such a link.
SLOW = Rule(rate=1.5 * BYTES)
HOLD = Rule(fate=Fate.HOLD)
SWALLOW = Rule(fate=Fate.SWALLOW)


@pytest.fixture
def world() -> Iterator[LinkedWorld]:
    with LinkedWorld(4, **SETTINGS) as made:
        reduce(made.peers, 0)
        yield made


def begin_inside(world: LinkedWorld, salt: int, **options: Any) -> None:
    """An operation of all, of which a part has gone over the slow link from 1 to 2."""
    world.proxy.set_rule("1", "2", SLOW)
    begin(world.peers, salt, **options)
    world.await_bytes(1, 2, BYTES // 8)


CUTS = {
    "both directions": [("1", "2", HOLD), ("2", "1", HOLD)],
    "one direction": [("1", "2", HOLD)],
    "the other direction": [("2", "1", HOLD)],
    "a black hole": [("1", "2", SWALLOW), ("2", "1", SWALLOW)],
    "a black hole in one direction": [("1", "2", SWALLOW)],
}


@pytest.mark.parametrize(
    ("cut", "recovery"), [("both directions", "restart"), *((cut, "resume") for cut in CUTS)]
)
def test_two_of_four_that_cannot_reach_each_other_stay_and_the_ring_goes_around(
    world: LinkedWorld, cut: str, recovery: str
) -> None:
    check_that_all_stay(world, cut, recovery)


@pytest.mark.parametrize(
    ("cut", "recovery"), [("both directions", "restart"), ("a black hole", "resume")]
)
def test_two_of_three_that_cannot_reach_each_other_go_through_the_third(
    cut: str, recovery: str
) -> None:
    """A ring of three needs every link; a hub needs only its own."""
    with LinkedWorld(3, **SETTINGS) as world:
        reduce(world.peers, 0)
        check_that_all_stay(world, cut, recovery)


def check_that_all_stay(world: LinkedWorld, cut: str, recovery: str) -> None:
    """Operations end within a bounded time, now and as long as the link is broken."""
    everybody = [peer.number for peer in world.peers]
    begin_inside(world, 1, recovery=recovery)
    for rule in CUTS[cut]:
        world.proxy.set_rule(*rule)
    began = time.monotonic()
    outcome = judge(world.peers, 1)
    seconds = time.monotonic() - began
    oracle.check_contributors(outcome, [everybody])
    assert outcome["attempts"] > 1 and seconds < 3 * SILENCE + 10, (outcome, seconds)
    # Longer than until the link counts as down on both sides; nobody is sent away for it.
    salt = 2
    while time.monotonic() - began < 4 * SILENCE:
        reduce(world.peers, salt)
        salt += 1
    world.proxy.heal()
    reduce(world.peers, salt)


def test_one_of_three_that_reaches_nobody_leaves_and_the_others_finish() -> None:
    """Though it reaches the coordinator. It is told, and may come back."""
    with LinkedWorld(3, **SETTINGS) as world:
        reduce(world.peers, 0)
        begin_inside(world, 1)
        for other in "01":
            world.proxy.set_rules(other, "2", HOLD)
        began = time.monotonic()
        victim, others = world.peers[2], world.peers[:2]
        outcome = judge(others, 1)
        seconds = time.monotonic() - began
        oracle.check_contributors(outcome, [range(3), (0, 1)])
        assert outcome["attempts"] > 1 and seconds < 3 * SILENCE + 10, (outcome, seconds)
        raised = victim.failure()
        assert raised.kind == "Expelled", raised
        check_untouched(victim, 1)

        reduce(others, 2)
        world.proxy.heal()
        rejoin(world, victim, others)
        assert reduce([*others, victim], 3)["attempts"] == 1


@pytest.mark.parametrize("cut", CUTS)
def test_a_link_that_is_cut_for_less_than_the_silence_loses_nobody(
    world: LinkedWorld, cut: str
) -> None:
    begin_inside(world, 1)
    for rule in CUTS[cut]:
        world.proxy.set_rule(*rule)
    world.await_bytes(3, 0, 1)  # at least; then the way is free again
    world.proxy.heal()
    outcome = judge(world.peers, 1)
    oracle.check_contributors(outcome, [range(4)])
    assert reduce(world.peers, 2)["attempts"] == 1


@pytest.mark.parametrize("how", ["reset", "half open here", "half open there"])
def test_lanes_that_break_are_opened_again_and_nobody_is_lost(world: LinkedWorld, how: str) -> None:
    begin_inside(world, 1)
    if how == "reset":
        broken = world.proxy.reset("1", "2")
    else:
        broken = world.proxy.half_open(*(("1", "2") if "here" in how else ("2", "1")))
    assert broken == 2, "two lanes"
    world.proxy.heal()
    outcome = judge(world.peers, 1)
    oracle.check_contributors(outcome, [range(4)])
    assert outcome["attempts"] > 1, "it was inside"
    assert reduce(world.peers, 2)["attempts"] == 1


def test_lanes_that_break_and_are_refused_cost_nobody_of_four_its_place(
    world: LinkedWorld,
) -> None:
    begin_inside(world, 1)
    world.proxy.set_rules("1", "2", Rule(refuse=True))
    world.proxy.reset("1", "2")
    oracle.check_contributors(judge(world.peers, 1), [range(4)])
    reduce(world.peers, 2)


def test_a_link_that_crawls_holds_up_and_loses_nothing() -> None:
    """It moves a little all the time, so it is no dead one: the operation ends with everybody.

    The limit is one that a busy machine keeps as well: it must not be silent for so long.
    """
    silence = 3.0
    with LinkedWorld(4, **{**SETTINGS, "silence": silence}) as world:
        reduce(world.peers, 0)
        world.proxy.set_rules("1", "2", Rule(rate=BYTES / (2 * silence)))
        began = time.monotonic()
        assert reduce(world.peers, 1)["attempts"] == 1
        assert time.monotonic() - began > silence


def test_a_deadline_ends_what_crawls_and_inputs_are_kept(world: LinkedWorld) -> None:
    world.proxy.set_rules("1", "2", Rule(rate=BYTES / 100))
    began = time.monotonic()
    begin(world.peers, 1, deadline=1.0)
    kinds = [peer.failure().kind for peer in world.peers]
    assert set(kinds) <= {"DeadlineExceeded", "Aborted"} and "DeadlineExceeded" in kinds, kinds
    assert time.monotonic() - began < 10
    for peer in world.peers:
        check_untouched(peer, 1)
    world.proxy.heal()
    reduce(world.peers, 2)


def test_delay_is_no_loss(world: LinkedWorld) -> None:
    for one in range(4):
        for other in range(one):
            world.proxy.set_rules(str(one), str(other), Rule(delay=0.02))
        world.proxy.set_rules(str(one), COORDINATOR, Rule(delay=0.02))
    outcomes = [reduce(world.peers, salt) for salt in range(1, 4)]
    assert all(outcome["attempts"] == 1 for outcome in outcomes)


def test_a_connection_to_the_coordinator_that_breaks_is_made_again_and_nobody_notices(
    world: LinkedWorld,
) -> None:
    """Inside an operation, at one peer after the other and at all at once."""
    begin_inside(world, 1)
    for number in range(4):
        assert world.proxy.reset(str(number), COORDINATOR) == 1
        await_connections(world, number)
    for number in range(4):
        assert world.proxy.reset(str(number), COORDINATOR) == 1
    world.proxy.heal()
    outcome = judge(world.peers, 1)
    oracle.check_contributors(outcome, [range(4)])
    assert not any(admission["changed"] for admission in world.all("admit"))
    reduce(world.peers, 2)


def await_connections(world: LinkedWorld, number: int) -> None:
    name = str(number)
    await_condition(lambda: world.proxy.connections(name, COORDINATOR) == 1, f"{name} to be back")


@dataclasses.dataclass(frozen=True)
class Away:
    """How a peer loses the coordinator."""

    to: Rule
    back: Rule


AWAY = {
    "both directions": Away(HOLD, HOLD),
    "what it says": Away(HOLD, Rule()),
    "what it hears": Away(Rule(), HOLD),
}


@pytest.mark.parametrize("away", AWAY)
def test_a_peer_that_cannot_reach_the_coordinator_is_lost_and_the_others_finish(
    world: LinkedWorld, away: str
) -> None:
    """Inside an operation, over lanes that work: the side with the coordinator decides."""
    begin_inside(world, 1)
    world.proxy.set_rule("3", COORDINATOR, AWAY[away].to)
    world.proxy.set_rule(COORDINATOR, "3", AWAY[away].back)
    victim, others = world.peers[3], world.peers[:3]
    outcome = judge(others, 1)
    oracle.check_contributors(outcome, [range(4), range(3)])
    reduce(others, 2)
    world.proxy.heal()
    judge_cut_off(victim, 1, outcome)
    rejoin(world, victim, others)
    assert reduce([*others, victim], 3)["attempts"] == 1
