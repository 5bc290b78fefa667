"""A peer is lost inside an all_reduce: what the survivors hold is what their outcomes list.

The victim kills or freezes itself at a named fault point of the engine (engine/net/fault.zig) in
its second operation; the first one, and what the victim did not answer, show that it hit there.
Sums are of digits, so that the oracle sees a contribution that is missing, doubled or stale.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from typing import Any

import contributions
import numpy as np
import oracle
import pytest
from peers import Peer, Raised, World, ask_all

COUNT = 100_003  # about 200 chunks
# Small chunks, and a window much smaller than the operation, so that half-way is half-way.
SETTINGS: dict[str, Any] = {
    "chunk_bytes": 4096,
    "window_bytes": 64 * 1024,
    "heartbeat": 0.2,
    "silence": 10,
}
WARM_UP, STRUCK, AFTER = 0, 1, 2  # sequence numbers

# Point, and how many of the chunks the victim has settled then.
BEFORE_MOVING = [("called", 0.0), ("opened", 0.0)]
EARLY = [("partial", 0.0), ("settled", 0.0)]
MIDDLE = [("partial", 0.5), ("settled", 0.25), ("settled", 0.5), ("settled", 0.75)]
LATE = [("settled", 1.0), ("voted", 0.0)]
DECIDED = [("committed", 0.0)]
POINTS = [*BEFORE_MOVING, *EARLY, *MIDDLE, *LATE, *DECIDED]

Record = Callable[[str, object], None]


def name_of(point: str, fraction: float) -> str:
    return f"operation.{point}:{STRUCK}:{fraction}"


@dataclasses.dataclass
class Scene:
    """A world in which `victim` will meet a fault in operation STRUCK."""

    world: World
    victim: Peer
    survivors: list[Peer]
    plan: str = "ring"

    @property
    def everybody(self) -> list[int]:
        return [peer.number for peer in self.world.peers]

    @property
    def survivor_numbers(self) -> list[int]:
        return [peer.number for peer in self.survivors]

    def make_arrays(self, salt: int, peers: list[Peer]) -> None:
        """In place on even peers, out of place on odd ones."""
        ask_all(peers, "make", name="x", of="digits", count=COUNT, salt=salt)
        ask_all(peers, "zeros", name="out", count=COUNT)

    def begin(self, peer: Peer, recovery: str) -> None:
        out = "out" if peer.number % 2 else None
        options = {"array": "x", "out": out, "recovery": recovery, "plan": self.plan}
        peer.send("run", kind="all_reduce", **options)

    def result(self, peer: Peer) -> np.ndarray:
        return peer.read("out" if peer.number % 2 else "x")

    def reduce(self, salt: int, peers: list[Peer], recovery: str) -> list[dict[str, Any]]:
        """One operation that succeeds on all of them, judged."""
        self.make_arrays(salt, peers)
        for peer in peers:
            self.begin(peer, recovery)
        outcomes = [peer.answer() for peer in peers]
        self.judge(outcomes, salt, peers)
        return outcomes

    def judge(self, outcomes: list[dict[str, Any]], salt: int, peers: list[Peer]) -> None:
        oracle.check_agreement(outcomes)
        for peer, outcome in zip(peers, outcomes, strict=True):
            oracle.check(outcome, self.result(peer), salt)

    def check_input(self, peer: Peer, salt: int) -> None:
        """After a failure, it is as it was."""
        digits = contributions.digits(peer.number, COUNT, salt)
        assert np.array_equal(peer.read("x"), digits)


def scene(
    world_size: int, victim: int, fault: str, *, plan: str = "ring", **settings: Any
) -> Scene:
    """The world, after a first operation in which nothing happened."""
    environments = {victim: {"PCCL_FAULT_POINT": fault}}
    world = World(world_size, environments=environments, **{**SETTINGS, **settings})
    survivors = [peer for peer in world.peers if peer.number != victim]
    made = Scene(world, world.peers[victim], survivors, plan)
    outcomes = made.reduce(7, world.peers, "default")
    assert outcomes[0]["sequence"] == WARM_UP
    oracle.check_contributors(outcomes[0], [made.everybody])
    return made


def strike(made: Scene, recovery: str) -> list[dict[str, Any] | Raised]:
    """Runs the operation in which the victim dies, and what its survivors answer."""
    made.make_arrays(8, made.world.peers)
    for peer in made.world.peers:
        made.begin(peer, recovery)
    assert made.victim.ended() == -signal.SIGKILL
    assert made.victim.silent(), "the operation had returned before the fault hit"
    answers: list[dict[str, Any] | Raised] = []
    for peer in made.survivors:
        try:
            answers.append(peer.answer())
        except Raised as raised:
            answers.append(raised)
    return answers


def successes(answers: list[dict[str, Any] | Raised]) -> list[dict[str, Any]]:
    outcomes = [answer for answer in answers if not isinstance(answer, Raised)]
    assert len(outcomes) == len(answers), f"some failed: {answers}"
    return outcomes


def note(record_property: Record, fault: str, outcome: dict[str, Any], victim: int) -> float:
    """Records where the fault hit: the part of the result that holds the victim's contribution."""
    lengths = {True: 0, False: 0}
    for part in outcome["ranges"]:
        lengths[victim in part["contributors"]] += part["end"] - part["begin"]
    share = lengths[True] / COUNT
    record_property("fault", f"{fault}, {outcome['attempts']} attempts, {share:.3f} with victim")
    return share


def go_on(made: Scene) -> None:
    """The operation after the loss: everybody who is left, once."""
    outcomes = made.reduce(9, made.survivors, "default")
    assert outcomes[0]["sequence"] == AFTER
    oracle.check_contributors(outcomes[0], [made.survivor_numbers])


@pytest.mark.parametrize(("point", "fraction"), POINTS)
def test_a_peer_killed_inside_an_all_reduce_that_resumes(
    point: str, fraction: float, record_property: Record
) -> None:
    fault = name_of(point, fraction)
    made = scene(4, 2, fault)
    with made.world:
        outcomes = successes(strike(made, "resume"))
        made.judge(outcomes, 8, made.survivors)
        oracle.check_contributors(outcomes[0], [made.everybody, made.survivor_numbers])
        share = note(record_property, fault, outcomes[0], made.victim.number)
        if point == "called":
            assert share == 0.0, "what had not moved was counted"
        elif point == "settled" and 0 < fraction < 1:
            assert 0 < share < 1, "the loss was not inside: no range with, or none without victim"
        elif point == "committed":
            assert share == 1.0
        attempts = max(outcome["attempts"] for outcome in outcomes)
        if point == "committed":
            assert attempts == 1
        elif (point, fraction) in [*EARLY, *MIDDLE]:
            # Whoever had sent something to the victim. Others may have called after its loss, and
            # survivors that had all voted need no new attempt.
            assert attempts >= 2
        go_on(made)


@pytest.mark.parametrize(("point", "fraction"), POINTS)
def test_a_peer_killed_inside_an_all_reduce_that_restarts(
    point: str, fraction: float, record_property: Record
) -> None:
    """One contributor set for the whole result, whatever had been settled before."""
    fault = name_of(point, fraction)
    made = scene(4, 1, fault)
    with made.world:
        outcomes = successes(strike(made, "restart"))
        made.judge(outcomes, 8, made.survivors)
        share = note(record_property, fault, outcomes[0], made.victim.number)
        assert len(outcomes[0]["ranges"]) == 1
        oracle.check_contributors(outcomes[0], [made.everybody, made.survivor_numbers])
        if (point, fraction) in [*BEFORE_MOVING, *EARLY, *MIDDLE]:
            assert share == 0.0, "nobody had voted, and the lost peer was counted"
        elif point == "committed":
            assert share == 1.0
        go_on(made)


@pytest.mark.parametrize(("point", "fraction"), POINTS)
def test_a_peer_killed_inside_an_all_reduce_that_raises(
    point: str, fraction: float, record_property: Record
) -> None:
    """Every survivor is told whom it lost, and keeps its input.

    Unless it came too late: survivors that have all voted hold a result of everybody's.
    """
    fault = name_of(point, fraction)
    made = scene(3, 2, fault)
    with made.world:
        answers = strike(made, "raise")
        too_late = (point, fraction) in LATE and not isinstance(answers[0], Raised)
        if point == "committed" or too_late:
            outcomes = successes(answers)
            made.judge(outcomes, 8, made.survivors)
            assert note(record_property, fault, outcomes[0], made.victim.number) == 1.0
        else:
            for peer, answer in zip(made.survivors, answers, strict=True):
                assert isinstance(answer, Raised), f"peer {peer.number} succeeded: {answer}"
                assert answer.kind == "Aborted" and made.victim.name in answer.message
                made.check_input(peer, 8)
            record_property("fault", f"{fault}, aborted")
        go_on(made)


@pytest.mark.parametrize("recovery", ["resume", "restart"])
@pytest.mark.parametrize(
    ("world_size", "victim", "crossed"),
    [(2, 0, False), (2, 1, True), (3, 0, False), (5, 4, True), (6, 3, False)],
)
def test_a_loss_half_way_in_worlds_of_any_size(
    world_size: int, victim: int, crossed: bool, recovery: str, record_property: Record
) -> None:
    """A peer that is left alone goes on alone. Each recovery has both plans, in worlds by turns."""
    plan = "ring" if (recovery == "resume") != crossed else "direct"
    fault = name_of("settled", 0.5)
    made = scene(world_size, victim, fault, plan=plan)
    with made.world:
        outcomes = successes(strike(made, recovery))
        made.judge(outcomes, 8, made.survivors)
        oracle.check_contributors(outcomes[0], [made.everybody, made.survivor_numbers])
        share = note(record_property, fault, outcomes[0], victim)
        assert 0 < share < 1 if recovery == "resume" else share == 0.0
        go_on(made)


def test_two_peers_killed_in_one_all_reduce(record_property: Record) -> None:
    """The second one dies while the others redo what the first one left."""
    world = World(
        5,
        environments={
            1: {"PCCL_FAULT_POINT": name_of("settled", 0.3)},
            3: {"PCCL_FAULT_POINT": name_of("settled", 0.6)},
        },
        **SETTINGS,
    )
    with world:
        victims = [world.peers[1], world.peers[3]]
        made = Scene(world, victims[0], [world.peers[number] for number in (0, 2, 4)])
        made.reduce(7, world.peers, "default")
        made.make_arrays(8, world.peers)
        for peer in world.peers:
            made.begin(peer, "resume")
        for victim in victims:
            assert victim.ended() == -signal.SIGKILL
            assert victim.silent()
        outcomes = [peer.answer() for peer in made.survivors]
        made.judge(outcomes, 8, made.survivors)
        oracle.check_contributors(outcomes[0], [range(5), (0, 2, 3, 4), (0, 2, 4), (0, 1, 2, 4)])
        sets = oracle.contributor_sets(outcomes[0])
        record_property("fault", f"two at 0.3 and 0.6: {sorted(sets)}")
        assert len(sets) > 1 and (0, 2, 4) in sets
        go_on(made)


@pytest.mark.parametrize("recovery", ["resume", "restart"])
def test_a_frozen_peer_is_lost_after_the_silence_and_learns_it_when_it_thaws(
    recovery: str, record_property: Record
) -> None:
    fault = "stop=" + name_of("settled", 0.5)
    made = scene(3, 1, fault, heartbeat=0.2, silence=1.5)
    with made.world:
        made.make_arrays(8, made.world.peers)
        for peer in made.world.peers:
            made.begin(peer, recovery)
        assert made.victim.stopped()
        outcomes = [peer.answer() for peer in made.survivors]
        made.judge(outcomes, 8, made.survivors)
        oracle.check_contributors(outcomes[0], [made.everybody, made.survivor_numbers])
        share = note(record_property, fault, outcomes[0], made.victim.number)
        assert 0 < share < 1 if recovery == "resume" else share == 0.0
        go_on(made)
        assert made.victim.silent()

        made.victim.signal(signal.SIGCONT)
        raised = made.victim.failure()
        assert raised.kind == "Expelled", raised
        assert "heard nothing of it for the silence limit" in raised.message, raised
        made.check_input(made.victim, 8)
        made.begin(made.victim, recovery)
        assert made.victim.failure().kind == "Expelled", "the next call says it too"


@pytest.mark.parametrize(("point", "fraction"), [("partial", 0.0), ("settled", 0.5)])
def test_a_peer_frozen_for_less_than_the_silence_is_not_lost(
    point: str, fraction: float, record_property: Record
) -> None:
    fault = "stop=" + name_of(point, fraction)
    made = scene(3, 0, fault, silence=20)
    with made.world:
        made.make_arrays(8, made.world.peers)
        for peer in made.world.peers:
            made.begin(peer, "restart")
        assert made.victim.stopped()
        made.victim.signal(signal.SIGCONT)
        outcomes = [peer.answer() for peer in made.world.peers]
        made.judge(outcomes, 8, made.world.peers)
        oracle.check_contributors(outcomes[0], [made.everybody])
        assert note(record_property, fault, outcomes[0], 0) == 1.0
