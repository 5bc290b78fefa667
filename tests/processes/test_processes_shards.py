"""A peer is lost inside an operation with a root or with shards: who goes on, and with what.

As in test_processes_losses.py the victim kills itself at a fault point of the engine, and the
digit oracle judges every result by its outcome. Where each member has a result of its own, each is
judged; a lost root ends the operation, a lost rank's shard is given to nobody, or is missing.
"""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

import contributions
import numpy as np
import oracle
import pytest
from peers import Peer, Raised, World

# Elements of each rank's shard; one is empty. About 200 chunks.
COUNTS = [30_001, 0, 40_000, 25_003]
WHOLE = sum(COUNTS)
# Elements of each rank for each, where all get something from all.
EACH = 40_000
ROOT = 2
SETTINGS: dict[str, Any] = {
    "chunk_bytes": 4096,
    "window_bytes": 64 * 1024,
    "heartbeat": 0.2,
    "silence": 10,
}
VICTIM = 3
SALT = 8
HALF_WAY = ("settled", 0.5)
WAYS = [("ring", "resume"), ("ring", "restart"), ("direct", "resume"), ("direct", "restart")]
TWO_WAYS = [WAYS[0], WAYS[3]]
POINTS = [("called", 0.0), ("settled", 0.0), ("voted", 0.0)]
# Half-way in every way; other points, and what has one root, in two that have everything.
LOSSES = [
    *((HALF_WAY, *way) for way in WAYS),
    *((point, *way) for point in POINTS for way in TWO_WAYS),
]


GATHERS = ("all_gather", "gather")
LOST_AT = [("called", 0.0), HALF_WAY]


@dataclasses.dataclass
class Scene:
    """A world in which `victim` meets its fault in the first operation."""

    kind: str
    world: World
    victim: Peer

    @property
    def survivors(self) -> list[Peer]:
        return [peer for peer in self.world.peers if peer is not self.victim]

    def prepare(self, peers: list[Peer]) -> None:
        """In place on even peers: the shard is a part of the whole. Apart on odd ones."""
        for peer in peers:
            in_place, own = peer.number % 2 == 0, COUNTS[peer.number]
            given = {"of": "digits", "salt": SALT}
            if self.kind in GATHERS:
                peer.ask("zeros", name="out", count=WHOLE)
                peer.ask("zeros", name="x", count=own)
                if in_place:
                    peer.ask("part", name="x", of="out", counts=COUNTS)
                peer.ask("fill", name="x", count=own, **given)
            elif self.kind == "all_to_all":
                peer.ask("make", name="x", count=4 * EACH, **given)
                peer.ask("zeros", name="out", count=4 * EACH)
            else:
                peer.ask("make", name="x", count=WHOLE, **given)
                size = WHOLE if self.kind == "reduce" else own
                peer.ask("zeros", name="out", count=size)
                if in_place and self.kind != "reduce":
                    peer.ask("part", name="out", of="x", counts=COUNTS)

    def begin(self, peer: Peer, **options: Any) -> None:
        """The answer is still to be taken."""
        if self.kind == "reduce":
            options.update(root=ROOT, out=None if peer.number % 2 == 0 else "out")
        elif self.kind == "all_to_all":
            options.update(out="out")
        else:
            options.update(counts=COUNTS, out="out")
            if self.kind in ("gather", "scatter"):
                options.update(root=ROOT)
        peer.send("run", kind=self.kind, array="x", **options)

    def strike(self, **options: Any) -> list[dict[str, Any] | Raised]:
        """Runs the operation in which the victim dies, and what its survivors answer."""
        self.prepare(self.world.peers)
        for peer in self.world.peers:
            self.begin(peer, **options)
        assert self.victim.ended() == -signal.SIGKILL
        assert self.victim.silent(), "the operation had returned before the fault hit"
        return [answer_of(peer) for peer in self.survivors]

    def succeed(self, answers: list[dict[str, Any] | Raised]) -> list[dict[str, Any]]:
        """The outcomes of all survivors, each judged against what that one holds."""
        outcomes = [answer for answer in answers if not isinstance(answer, Raised)]
        assert len(outcomes) == len(answers), f"some failed: {answers}"
        for peer, outcome in zip(self.survivors, outcomes, strict=True):
            if self.kind == "scatter":
                self.judge_dealt_out(peer, outcome)
            elif self.kind == "all_to_all":
                self.judge_exchanged(peer, outcome)
            elif self.kind == "all_gather" or (self.kind == "gather" and peer.number == ROOT):
                self.judge_gathered(peer, outcome)
            elif self.kind in ("reduce", "gather") and peer.number != ROOT:
                assert outcome["ranges"] == []
                self.check_input(peer)
                if self.kind == "reduce":
                    assert not peer.read("out").any()  # nobody writes to it
            else:
                self.judge_sum(peer, outcome)
        return outcomes

    def judge_gathered(self, peer: Peer, outcome: dict[str, Any]) -> None:
        wanted = oracle.expected_gathered(outcome, COUNTS, SALT)
        self.check(peer, "out", wanted)
        self.check(peer, "x", contributions.digits(peer.number, COUNTS[peer.number], SALT))

    def judge_exchanged(self, peer: Peer, outcome: dict[str, Any]) -> None:
        first = peer.number * EACH  # of what each has, that is for this peer
        self.check(peer, "out", oracle.expected_gathered(outcome, [EACH] * 4, SALT, first))
        self.check(peer, "x", contributions.digits(peer.number, 4 * EACH, SALT))

    def judge_dealt_out(self, peer: Peer, outcome: dict[str, Any]) -> None:
        first, own = sum(COUNTS[: peer.number]), COUNTS[peer.number]
        whole = contributions.digits(ROOT, WHOLE, SALT)
        self.check(peer, "out", whole[first : first + own])
        assert oracle.contributor_sets(outcome) == ({(ROOT,)} if own else set())

    def judge_sum(self, peer: Peer, outcome: dict[str, Any]) -> None:
        in_place = peer.number % 2 == 0
        given = contributions.digits(peer.number, WHOLE, SALT)
        if self.kind == "reduce":
            self.check(peer, "x" if in_place else "out", oracle.expected(outcome, WHOLE, SALT))
            return
        first, own = sum(COUNTS[: peer.number]), COUNTS[peer.number]
        wanted = oracle.expected(outcome, own, SALT, first)
        self.check(peer, "out", wanted)
        if in_place:  # the shards of others are only read
            given[first : first + own] = wanted
        self.check(peer, "x", given)

    def check_aborted(self, answers: list[dict[str, Any] | Raised]) -> None:
        """On all, because of the victim, with the input as it was."""
        for peer, answer in zip(self.survivors, answers, strict=True):
            assert isinstance(answer, Raised), f"peer {peer.number} succeeded: {answer}"
            assert answer.kind == "Aborted" and self.victim.name in answer.message, answer
            self.check_input(peer)

    def check_input(self, peer: Peer) -> None:
        """The buffer that it sends is as it was; in place, all of it is."""
        in_place = peer.number % 2 == 0
        if self.kind in GATHERS:
            own = contributions.digits(peer.number, COUNTS[peer.number], SALT)
            self.check(peer, "x", own)
            if in_place:
                first = sum(COUNTS[: peer.number])
                gathered = np.zeros(WHOLE, np.uint64)
                gathered[first : first + len(own)] = own
                self.check(peer, "out", gathered)
            return
        count = 4 * EACH if self.kind == "all_to_all" else WHOLE
        self.check(peer, "x", contributions.digits(peer.number, count, SALT))

    def check(self, peer: Peer, name: str, wanted: np.ndarray) -> None:
        got = peer.read(name)
        assert np.array_equal(got, wanted), f"peer {peer.number}: {oracle.explain(got, wanted)}"

    def go_on(self) -> list[dict[str, Any]]:
        """The operation after the loss, before any safe point: ranks are those of the epoch."""
        self.prepare(self.survivors)
        for peer in self.survivors:
            self.begin(peer, recovery="restart")
        return self.succeed([answer_of(peer) for peer in self.survivors])


def answer_of(peer: Peer) -> dict[str, Any] | Raised:
    try:
        answer: dict[str, Any] = peer.answer()
    except Raised as raised:
        return raised
    return answer


def scene(kind: str, point: tuple[str, float], victim: int = VICTIM) -> Scene:
    fault = f"operation.{point[0]}:0:{point[1]}"
    world = World(4, environments={victim: {"PCCL_FAULT_POINT": fault}}, **SETTINGS)
    return Scene(kind, world, world.peers[victim])


def sets_of(outcomes: list[dict[str, Any]]) -> set[tuple[int, ...]]:
    return set().union(*(oracle.contributor_sets(outcome) for outcome in outcomes))


@pytest.mark.parametrize(("point", "plan", "recovery"), LOSSES)
@pytest.mark.parametrize("kind", ["reduce", "reduce_scatter"])
def test_a_peer_killed_inside_a_reduction_that_arrives_at_one_rank(
    kind: str, point: tuple[str, float], plan: str, recovery: str
) -> None:
    """The result of everybody who is left has the victim's contribution, or has not."""
    if kind == "reduce" and point[0] == "settled":
        point = ("partial", 0.0)  # nothing settles but at the root
    made = scene(kind, point)
    with made.world:
        outcomes = made.succeed(made.strike(plan=plan, recovery=recovery))
        everybody, left = (0, 1, 2, 3), (0, 1, 2)
        assert sets_of(outcomes) <= {everybody, left}
        if recovery == "restart":
            assert len(sets_of(outcomes)) == 1, "one contributor set, for the shards of all"
        if point[0] == "called":
            assert sets_of(outcomes) == {left}, "what had not moved was counted"
        assert sets_of(made.go_on()) == {left}


@pytest.mark.parametrize(("point", "plan", "recovery"), LOSSES)
def test_a_peer_killed_inside_an_all_gather(
    point: tuple[str, float], plan: str, recovery: str
) -> None:
    """Shards of the others are there; of the victim's what survivors have got, alike on all."""
    made = scene("all_gather", point)
    with made.world:
        outcomes = made.succeed(made.strike(plan=plan, recovery=recovery))
        oracle.check_agreement(outcomes)
        sets = sets_of(outcomes)
        assert {(0,), (2,)} <= sets <= {(0,), (2,), (3,), ()}
        if recovery == "restart":
            assert not {(3,), ()} <= sets, "a part of a shard"
        if point[0] == "called":
            assert () in sets and (3,) not in sets
        elif point[0] == "voted":
            assert () not in sets, "the victim had everything, so all had what it had sent"
        outcomes = made.go_on()
        oracle.check_agreement(outcomes)
        missing = {"begin": WHOLE - COUNTS[VICTIM], "end": WHOLE, "contributors": []}
        assert outcomes[0]["ranges"][-1] == missing


@pytest.mark.parametrize(("plan", "recovery"), TWO_WAYS)
@pytest.mark.parametrize("point", [("called", 0.0), ("voted", 0.0)])
def test_a_peer_killed_inside_a_gather(point: tuple[str, float], plan: str, recovery: str) -> None:
    """The root has the shards of the others, and of the victim's what has come."""
    made = scene("gather", point)
    with made.world:
        sets = sets_of(made.succeed(made.strike(plan=plan, recovery=recovery)))
        assert {(0,), (2,)} <= sets <= {(0,), (2,), (3,), ()}
        if recovery == "restart":
            assert not {(3,), ()} <= sets, "a part of a shard"
        if point[0] == "called":
            assert (3,) not in sets
        assert sets_of(made.go_on()) == {(0,), (2,), ()}


@pytest.mark.parametrize(("plan", "recovery"), TWO_WAYS)
@pytest.mark.parametrize("point", [("called", 0.0), HALF_WAY])
def test_a_peer_killed_inside_a_scatter(point: tuple[str, float], plan: str, recovery: str) -> None:
    """The shards of the others arrive; its own is given to nobody."""
    made = scene("scatter", point)
    with made.world:
        made.succeed(made.strike(plan=plan, recovery=recovery))
        made.go_on()


@pytest.mark.parametrize(("point", "plan", "recovery"), LOSSES)
def test_a_peer_killed_inside_an_all_to_all(
    point: tuple[str, float], plan: str, recovery: str
) -> None:
    """Everybody has what the others had for it, and of the victim's what has come."""
    made = scene("all_to_all", point)
    with made.world:
        for outcome in made.succeed(made.strike(plan=plan, recovery=recovery)):
            sets = oracle.contributor_sets(outcome)
            assert {(0,), (1,), (2,)} <= sets <= {(0,), (1,), (2,), (3,), ()}
            if recovery == "restart":
                assert not {(3,), ()} <= sets, "a part of a shard"
            if point[0] == "called":
                assert (3,) not in sets
        for outcome in made.go_on():
            missing = {"begin": VICTIM * EACH, "end": 4 * EACH, "contributors": []}
            assert outcome["ranges"][-1] == missing


@pytest.mark.parametrize(
    ("kind", "point", "plan"),
    [
        *(("reduce", point, plan) for point in LOST_AT for plan in ("ring", "direct")),
        *(
            (kind, LOST_AT[0], plan)
            for kind in ("gather", "scatter")
            for plan in ("ring", "direct")
        ),
        ("gather", HALF_WAY, "ring"),
        ("gather", HALF_WAY, "direct"),
    ],
)
def test_a_lost_root_ends_the_operation_for_all(
    kind: str, point: tuple[str, float], plan: str
) -> None:
    """And so it ends the next one that names it."""
    made = scene(kind, point, victim=ROOT)
    with made.world:
        made.check_aborted(made.strike(plan=plan, recovery="restart"))
        for peer in made.survivors:
            made.begin(peer, plan=plan, recovery="restart")
        made.check_aborted([answer_of(peer) for peer in made.survivors])


@pytest.mark.parametrize("kind", ["reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_a_loss_aborts_what_shall_raise_and_keeps_the_arrays(kind: str) -> None:
    # Half-way in what it gets of an all_to_all, the victim may have sent all that it had.
    points = {"reduce": ("partial", 0.0), "all_to_all": ("called", 0.0)}
    made = scene(kind, points.get(kind, HALF_WAY))
    with made.world:
        made.check_aborted(made.strike(recovery="raise"))
        made.go_on()


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_gather", "gather", "all_to_all"])
def test_a_loss_aborts_what_needs_every_member_until_the_next_safe_point(kind: str) -> None:
    """The default of what ranks gather, scatter or exchange: nothing stands in for a lost part."""
    made = scene(kind, HALF_WAY if kind in ("reduce_scatter", "all_gather") else ("called", 0.0))
    with made.world:
        made.check_aborted(made.strike())
        for _ in range(2):
            for peer in made.survivors:
                made.begin(peer)
            made.check_aborted([answer_of(peer) for peer in made.survivors])
        made.go_on()


def test_a_loss_ends_a_reduce_that_somebody_doubts() -> None:
    """Its inputs are the caller's again, so it cannot be done a second time.

    Rank 1 begins the sum and has voted once that has left; its deadline passes. Rank 2, which is to
    add to it, dies before it calls.
    """
    with World(3, **SETTINGS) as world:
        root, doubter, victim = world.peers
        for peer in world.peers:
            peer.ask("make", name="x", of="digits", count=100, salt=SALT)
        doubter.ask("begin", work="w", kind="reduce", array="x", root=0, deadline=0.3)
        doubter.send("wait", work="w")
        assert doubter.failure().kind == "InDoubt"
        victim.signal(signal.SIGKILL)
        assert victim.ended() == -signal.SIGKILL
        root.send("run", kind="reduce", array="x", root=0)
        raised = root.failure()
        assert raised.kind == "Aborted", raised
        assert np.array_equal(root.read("x"), contributions.digits(0, 100, SALT))
        doubter.send("resolve", work="w", timeout=20)
        assert doubter.failure().kind == "Aborted"
