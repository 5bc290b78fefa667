"""A minute of chaos: real peers are killed, frozen, cut off and joined while they work.

The same with other seeds, for as long as you like: `make soak MINUTES=60`. The checks:
chaos_peer.py (values), ledger.py (agreement), orchestrator.py (everybody comes together again,
faults hit, memory and descriptors stay). Also that the judges see what they should.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import namespaces
import plan
import pytest
from ledger import Ledger
from orchestrator import Run
from soak import summary

SEED = 3
SECONDS = 60.0
SLOTS = 6

REPORT: dict[str, Any] = {
    "epoch": 3,
    "round": 7,
    "members": [0, 17],
    "state": "00ff",
    "moved": [0, 0, 0],
    "operations": [
        {
            "key": [3, 7, 0],
            "epoch": 3,
            "tag": 0,
            "sequence": 9,
            "digest": "aa",
            "attempts": 1,
            "ranges": [{"begin": 0, "end": 5, "contributors": [0, 17]}],
        }
    ],
}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_minute_of_faults_breaks_no_promise(record_property: Any) -> None:
    report = run(plan.draw(SEED, SECONDS, slots=SLOTS))
    told = summary(report)
    record_property("chaos", told)
    assert report["operations"] > 100 and report["kills"] > 5, told
    assert report["faults"]["points"] and report["state"]["leaves_moved"] > 0, told


def run(planned: plan.Plan) -> dict[str, Any]:
    """The report, in which nothing is wrong."""
    with Run(planned) as chaos:
        chaos.go()
        report = chaos.report()
    assert not report["violations"] and not report["complaints"], summary(report)
    return report


SILENCE = 1.0
# Every kind of lost packets; of an odd number the direction is the other one (strikes.py).
VANISHING = (
    plan.Fault(0, 0.2, "one_way_long", (1, 2), 2 * SILENCE),
    plan.Fault(1, 0.4, "control_one_way", (3, plan.COORDINATOR), 2 * SILENCE),
    plan.Fault(2, 0.6, "control_one_way", (4, plan.COORDINATOR), 2 * SILENCE),
    plan.Fault(3, 4.0, "isolate_long", (1,), 1.5 * SILENCE),
    plan.Fault(4, 4.2, "cut_long", (2, 3), 1.5 * SILENCE),
    plan.Fault(5, 4.4, "coordinator_kill", (plan.COORDINATOR,), 0.3),
)


def test_lost_packets_between_kernels_break_no_promise() -> None:
    namespaces.require()
    told = run(plan.Plan(SEED, 6.0, 5, SILENCE, namespaces=True, faults=VANISHING))
    assert told["faults"]["struck"] == len(VANISHING), told


def test_a_seed_is_a_plan() -> None:
    assert plan.draw(5, 600) == plan.draw(5, 600) != plan.draw(6, 600)
    kinds = kinds_of_seeds(namespaces=False)
    wanted = {
        *(*plan.PROCESS_KINDS, *plan.PAIR_KINDS, *plan.LINK_KINDS, *plan.ISOLATION_KINDS),
        *(*plan.CONTROL_KINDS, *plan.COORDINATOR_KINDS, "point"),
    }
    assert kinds == wanted
    assert kinds_of_seeds(namespaces=True) == wanted - set(plan.PROXY_KINDS)
    assert {plan.draw(seed, 1).slots for seed in range(50)} == {4, 5, 6, 7, 8}
    points = {fault.point.split(":")[0] for fault in plan.draw(1, 600).faults if fault.point}
    assert len(points) == len(plan.STRIKES)


def kinds_of_seeds(*, namespaces: bool) -> set[str]:
    plans = [plan.draw(seed, 600, namespaces=namespaces) for seed in range(4)]
    return {fault.kind for drawn in plans for fault in drawn.faults}


def test_slot_0_and_one_more_are_spared() -> None:
    for seed in range(20):
        for fault in plan.draw(seed, 300).faults:
            process = fault.kind not in plan.LINK_KINDS
            assert not (process and 0 in fault.slots), fault


def other(**changed: Any) -> dict[str, Any]:
    """The report of a second peer of the same round."""
    report = copy.deepcopy(REPORT)
    for key, value in changed.items():
        (report if key in report else report["operations"][0])[key] = value
    return report


def judged(*reports: tuple[int, dict[str, Any]]) -> list[str]:
    ledger = Ledger()
    for number, report in reports:
        ledger.take(number, json.loads(json.dumps(report)))
    return ledger.violations


def ended(kind: str, round_number: int = REPORT["round"]) -> dict[str, Any]:
    """A report of one operation that ended without a result; `kind` is "aborted" or "lost"."""
    entry = {"key": [3, round_number, 0], kind: "Expelled: frozen"}
    return {**REPORT, "round": round_number, "operations": [entry]}


def later() -> dict[str, Any]:
    return other(round=8, key=[3, 8, 0])


def test_the_ledger_accepts_what_agrees() -> None:
    assert not judged((0, REPORT), (17, other()))
    # One that lost its place where the other committed, and is not heard of again.
    assert not judged((0, REPORT), (17, ended("lost")), (0, later()))
    # Both failed, both go on.
    aborted = ended("aborted")
    assert not judged((0, aborted), (17, aborted), (0, later()), (17, later()))


def test_the_ledger_accepts_what_was_called_before_a_loss_was_known() -> None:
    # The operation carried across a safe point is lost, the one called behind it is not.
    carried = ended("lost", REPORT["round"] - 1)
    carried.update(round=REPORT["round"])
    carried["operations"] += REPORT["operations"]
    assert not judged((0, REPORT), (17, carried))


@pytest.mark.parametrize(
    "changed",
    [
        {"digest": "bb"},
        {"sequence": 10},
        {"ranges": [{"begin": 0, "end": 5, "contributors": [0]}]},
        {"state": "00fe"},
        {"members": [0, 17, 2]},
    ],
)
def test_the_ledger_sees_peers_that_differ(changed: dict[str, Any]) -> None:
    assert judged((0, REPORT), (17, other(**changed)))


@pytest.mark.parametrize("aborted_first", [False, True])
def test_the_ledger_sees_an_operation_that_aborted_at_one_of_two(aborted_first: bool) -> None:
    said = [(0, REPORT), (17, ended("aborted"))]
    if aborted_first:
        said.reverse()
    assert judged(*said)


def test_the_ledger_sees_a_peer_that_goes_on_without_its_place() -> None:
    assert judged((0, REPORT), (17, ended("lost")), (17, later()))
