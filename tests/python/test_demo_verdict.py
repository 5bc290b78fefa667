"""The demo's judgement of itself: a good story passes, and each way to fall short fails its claim.

The stories here are written by hand, so that every failure can be told; the real run is
test_demo_run.py.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from examples.demo import plot, report, view
from examples.demo.model import Model
from examples.demo.orchestrator import Orchestrator, Processes
from examples.demo.settings import Settings
from examples.demo.story import COORDINATOR, Event, Story, names, peer_name, shares
from examples.demo.verdict import Check, covers, judge

SETTINGS = Settings(
    rounds=6,
    kill_round=3,
    restart_round=4,
    join_round=4,
    model=Model(context=2, embedding=2, hidden=2),
)
ELEMENTS = SETTINGS.model.size
IDS = [f"{index:032x}" for index in range(5)]


def of_peer(index: int, kind: str, seconds: float, **fields: object) -> Event:
    return {
        "source": peer_name(index),
        "index": index,
        "kind": kind,
        "seconds": seconds,
        **fields,
    }


def admitted(index: int, epoch: int, members: list[int], seconds: float, **fields: object) -> Event:
    known: Event = {
        "epoch": epoch,
        "rank": members.index(index),
        "world_size": len(members),
        "members": [IDS[member] for member in members],
        "joined": [],
        "left": [],
        "digest": f"state {epoch}",
        "rounds_done": 0,
        "held_out_loss": 5.5,
    }
    return of_peer(index, "admitted", seconds, **{**known, **fields})


def one_round(number: int, members: list[int]) -> list[Event]:
    """The members' reports in a round; in the round of the loss the victim says its part too."""
    seconds = float(number)
    victim = SETTINGS.victim
    lost = number == SETTINGS.kill_round
    ranges = [{"begin": 0, "end": ELEMENTS, "contributors": [IDS[member] for member in members]}]
    if lost:
        survivors = [IDS[member] for member in members if member != victim]
        half = ELEMENTS // 2
        ranges = [
            {**ranges[0], "end": half},
            {"begin": half, "end": ELEMENTS, "contributors": survivors},
        ]
    events = []
    for index in members:
        events.append(of_peer(index, "training", seconds, round=number))
        events.append(
            of_peer(index, "reducing", seconds, round=number, train_loss=5 - 0.5 * number)
        )
        if lost and index == victim:
            events.append(of_peer(index, "exited", seconds, exit_code=-signal.SIGKILL))
            continue
        done = of_peer(
            index,
            "round",
            seconds + 0.5,
            round=number,
            train_loss=5 - 0.5 * number,
            held_out_loss=5 - 0.5 * number,
            digest=f"round {number}",
            epoch=1,
            sequence=number - 1,
            attempts=2 if lost else 1,
            result_digest=f"result {number}",
            ranges=ranges,
            reduce_seconds=0.25,
            reduce_bytes_sent=1000,
            reduce_bytes_received=1000,
            bytes_sent=1000 * number,
            bytes_received=1000 * number,
        )
        events.append(done)
    return events


def good_events() -> list[Event]:
    events: list[Event] = [
        {"source": COORDINATOR, "kind": "started", "seconds": 0.0, "pid": 100},
        {"source": COORDINATOR, "kind": "listening", "seconds": 0.1},
    ]
    for index in range(5):
        events.append(of_peer(index, "started", 0.2, pid=200 + index))
    for index in range(4):
        events.append(of_peer(index, "connected", 0.5, peer_id=IDS[index]))
    events += [admitted(index, 1, [0, 1, 2, 3], 0.6) for index in range(4)]
    for number in (1, 2, 3):
        events += one_round(number, [0, 1, 2, 3])
    left = {"rounds_done": 3, "held_out_loss": 3.5, "left": [IDS[2]]}
    events += [admitted(index, 2, [0, 1, 3], 3.6, **left) for index in (0, 1, 3)]
    training, reducing, *rest = one_round(4, [0, 1, 3])
    events += [
        training,
        reducing,
        {"source": COORDINATOR, "kind": "exited", "seconds": 3.7, "exit_code": -signal.SIGKILL},
        {"source": COORDINATOR, "kind": "started", "seconds": 3.7, "pid": 101},
        {"source": COORDINATOR, "kind": "listening", "seconds": 3.9},
        *rest,
    ]
    events.append(of_peer(4, "joining", 4.6))
    events.append(of_peer(4, "connected", 4.7, peer_id=IDS[4]))
    joined = {"rounds_done": 4, "held_out_loss": 3.0, "joined": [IDS[4]]}
    events += [admitted(index, 3, [0, 1, 3, 4], 4.8, **joined) for index in (0, 1, 3)]
    events.append(admitted(4, 3, [0, 1, 3, 4], 4.8, **joined))
    for number in (5, 6):
        events += one_round(number, [0, 1, 3, 4])
    for index in (0, 1, 3, 4):
        events.append(of_peer(index, "finished", 7.0, digest="round 6", text="main(self):"))
        events.append(of_peer(index, "exited", 7.1, exit_code=0))
    events.append({"source": COORDINATOR, "kind": "exited", "seconds": 7.2, "exit_code": 0})
    return events


def told(events: list[Event]) -> Story:
    story = Story(SETTINGS)
    for event in events:
        story.take(event)
    return story


def failed(checks: list[Check]) -> list[str]:
    return [check.claim for check in checks if not check.holds]


def test_a_good_run_holds_all_claims() -> None:
    checks = judge(told(good_events()))
    assert failed(checks) == [], checks
    assert len(checks) == 8


def spoil(
    change: Callable[[Event], Event | None], index: int | None = None, kind: str | None = None
) -> list[Event]:
    """The good events; those of a peer and kind changed, or left away where that gives None."""
    events = []
    hits = 0
    for event in good_events():
        fits = (index is None or event.get("index") == index) and event["kind"] == kind
        changed = change(event) if fits else event
        hits += changed is not event
        if changed is not None:
            events.append(changed)
    assert hits > 0, "the test changes nothing"
    return events


def in_round(number: int, **changes: object) -> Callable[[Event], Event]:
    return lambda event: {**event, **changes} if event["round"] == number else event


def whole(contributors: list[int]) -> list[Event]:
    return [{"begin": 0, "end": ELEMENTS, "contributors": [IDS[index] for index in contributors]}]


def halves(first: list[int], second: list[int], gap: int = 0) -> list[Event]:
    half = ELEMENTS // 2
    return [
        {"begin": 0, "end": half, "contributors": [IDS[index] for index in first]},
        {"begin": half + gap, "end": ELEMENTS, "contributors": [IDS[index] for index in second]},
    ]


LOSS = "the loss on held-out text fell"
DIED = "peer 2 died inside the all_reduce of round 3"
WENT_ON = "that all_reduce kept the finished part and redid the rest"
BACK = "the coordinator died in round 4, came back, nobody noticed"
JOINED = "peer 4 joined and got the state"
EVERY_ROUND = "in every round all peers held the same bytes"
END = "at the end all peers hold the same bytes"
NOBODY = "nobody else failed, no survivor saw an exception"

EVERYBODY, SURVIVORS = [0, 1, 2, 3], [0, 1, 3]

SPOILT = {
    "the loss stays": (spoil(in_round(6, held_out_loss=5.4), kind="round"), LOSS),
    "a round is missing": (
        spoil(lambda event: None if event["round"] == 6 else event, kind="round"),
        LOSS,
    ),
    "the victim lives": (spoil(lambda e: {**e, "exit_code": 0}, 2, "exited"), DIED),
    "the victim fails in another way": (spoil(lambda e: {**e, "exit_code": 1}, 2, "exited"), DIED),
    "the victim dies while it trains": (
        spoil(lambda event: None if event["round"] == 3 else event, 2, "reducing"),
        DIED,
    ),
    "all is averaged with the victim": (
        spoil(in_round(3, ranges=whole(EVERYBODY)), kind="round"),
        WENT_ON,
    ),
    "all is redone": (spoil(in_round(3, ranges=whole(SURVIVORS)), kind="round"), WENT_ON),
    "a survivor is left out": (
        spoil(in_round(3, ranges=halves(EVERYBODY, [0, 1])), kind="round"),
        WENT_ON,
    ),
    "a range is missing": (
        spoil(in_round(3, ranges=halves(EVERYBODY, SURVIVORS, gap=1)), kind="round"),
        WENT_ON,
    ),
    "the outcomes differ": (spoil(in_round(3, result_digest="other"), 1, "round"), WENT_ON),
    "the contributors differ": (
        spoil(in_round(3, ranges=halves(SURVIVORS, EVERYBODY)), 1, "round"),
        WENT_ON,
    ),
    "another operation is hit": (spoil(in_round(3, sequence=7), kind="round"), WENT_ON),
    "the newcomer has a state from before it started": (
        spoil(lambda e: {**e, "rounds_done": 3}, 4, "admitted"),
        JOINED,
    ),
    "the newcomer was there before": (spoil(lambda e: {**e, "joined": []}, 0, "admitted"), JOINED),
    "the newcomer has another state": (
        spoil(lambda e: {**e, "digest": "x"}, 4, "admitted"),
        JOINED,
    ),
    "the newcomer never enters": (spoil(lambda e: None, 4, "admitted"), JOINED),
    "the newcomer misses the end": (
        spoil(lambda event: None if event["round"] == 6 else event, 4, "round"),
        JOINED,
    ),
    "one round differs": (spoil(in_round(2, digest="x"), 3, "round"), EVERY_ROUND),
    "the end differs": (spoil(lambda e: {**e, "digest": "x"}, 3, "finished"), END),
    "a peer does not finish": (spoil(lambda e: None, 3, "finished"), END),
    "a survivor fails": (spoil(lambda e: {**e, "exit_code": 1}, 0, "exited"), NOBODY),
    "the coordinator fails": ([*good_events()[:-1], {**good_events()[-1], "exit_code": 1}], NOBODY),
    "the coordinator is never killed": (
        [event for event in good_events() if event.get("exit_code") != -signal.SIGKILL],
        BACK,
    ),
    "the coordinator does not come back": (
        [event for event in good_events() if event.get("pid") != 101 and event["seconds"] != 3.9],
        BACK,
    ),
    "a survivor ends with it": (
        spoil(lambda event: None if event["round"] >= 4 else event, 3, "round"),
        BACK,
    ),
    "a survivor is lost with it": (
        spoil(lambda e: {**e, "left": [IDS[3]]} if e["epoch"] == 3 else e, 0, "admitted"),
        BACK,
    ),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_run_that_falls_short_fails_the_claim_it_breaks(how: str) -> None:
    events, claim = SPOILT[how]
    assert claim in failed(judge(told(events)))


def test_an_exception_on_a_survivor_fails_the_run() -> None:
    events = good_events()
    events.insert(40, of_peer(1, "error", 3.5, error="Aborted", message="peer 2 is gone"))
    story = told(events)
    assert failed(judge(story)) == [NOBODY]
    assert any("Aborted: peer 2 is gone" in moment.text for moment in story.timeline)


def test_a_run_that_was_stopped_says_why_and_can_still_be_shown(tmp_path: Path) -> None:
    # Goal: a failure at any time is reported, not hidden behind another. Method: every prefix of a
    # good run, judged, written down and shown; none of them passes.
    events = good_events()
    for end in range(0, len(events), 17):
        story = told(events[:end])
        story.fail(9.0, "not done after 9 s")
        checks = judge(story)
        assert NOBODY in failed(checks)
        written = report.summarise(story, checks, 9.0)
        assert written["failure"] == "not done after 9 s" and not written["passed"]
        console = Console(file=io.StringIO(), width=120)
        console.print(view.screen(story))
        console.print(view.summary(story, checks, []))
        assert "not done after 9 s" in console.file.getvalue()  # type: ignore[attr-defined]
        plot.draw(story, tmp_path / "loss.png")


class Started(Processes):
    """Processes that are only written down: who would be started, with what in the environment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0.0)
        self.environments: dict[str, dict[str, str]] = {}
        self.killed: list[str] = []
        self.said: list[tuple[str, str]] = []

    def start(
        self, source: str, command: list[str], environment: dict[str, str], **fields: int
    ) -> None:
        assert source not in self.environments, f"{source} is started twice"
        self.environments[source] = environment

    def say(self, source: str, line: str) -> None:
        self.said.append((source, line))

    def kill(self, source: str) -> None:
        self.killed.append(source)


def orchestrated(events: list[Event], folder: Path) -> tuple[Story, Started]:
    orchestrator = Orchestrator(SETTINGS, folder, view.View(), 60.0)
    processes = Started(folder)
    for event in events:
        token = {"token": "secret"} if event["kind"] == "listening" else {}
        orchestrator._take({**event, **token}, processes)
    return orchestrator.story, processes


def test_the_orchestrator_starts_each_peer_once_and_faults_only_the_victim(tmp_path: Path) -> None:
    story, processes = orchestrated(good_events()[:-1], tmp_path)
    assert story.failure is None
    assert list(processes.environments) == [*map(peer_name, range(5)), COORDINATOR]
    assert processes.said == [(peer_name(4), "join")]
    assert processes.killed == [COORDINATOR]
    del processes.environments[COORDINATOR]
    for source, environment in processes.environments.items():
        assert environment["PCCL_TOKEN"] == "secret"
        fault = "operation.partial:2:0.5" if source == "peer 2" else None
        assert environment.get("PCCL_FAULT_POINT") == fault
    assert "secret" not in json.dumps(story.events), "a token is nothing to write down"


def test_a_newcomer_that_comes_too_late_fails_the_run_at_once(tmp_path: Path) -> None:
    # Goal: no wait for a peer that nobody will ever admit.
    events = spoil(lambda event: None, 4, "admitted")
    story, _ = orchestrated(events[:-1], tmp_path)
    assert story.failure is not None
    assert story.failure.startswith("peer 4 came too late: the others were done")


@pytest.mark.parametrize(
    ("index", "code"), [(0, 1), (2, 0), (2, 1), (3, -signal.SIGKILL), (4, -signal.SIGSEGV)]
)
def test_a_peer_that_ends_otherwise_fails_the_run_at_once(
    index: int, code: int, tmp_path: Path
) -> None:
    events = spoil(lambda event: {**event, "exit_code": code}, index, "exited")
    story, _ = orchestrated(events[:-1], tmp_path)
    log = tmp_path / f"peer-{index}.log"
    assert story.failure == f"peer {index} ended early, exit status {code}: see {log}"


def test_a_coordinator_that_ends_early_fails_the_run_at_once(tmp_path: Path) -> None:
    events = good_events()
    story, _ = orchestrated([*events[:20], events[-1]], tmp_path)
    assert (
        story.failure == f"coordinator ended early, exit status 0: see {tmp_path}/coordinator.log"
    )


def test_the_report_holds_what_happened(tmp_path: Path) -> None:
    story = told(good_events())
    paths = report.write(story, judge(story), 7.2, tmp_path)
    assert [path.name for path in paths] == ["report.json", "events.jsonl"]
    written = json.loads(paths[0].read_text())
    assert written["passed"] is True
    assert written["held_out_loss"] == [5.5, 4.5, 4.0, 3.5, 3.0, 2.5, 2.0]
    assert [peer["digest"] for peer in written["peers"]].count("round 6") == 4
    assert len(written["lost_operation"]["ranges"]) == 2
    assert len(paths[1].read_text().splitlines()) == len(good_events())


def test_the_plain_view_tells_each_round_and_each_moment_once() -> None:
    console = Console(file=io.StringIO(), width=120)
    plain = view.PlainView(console)
    story = Story(SETTINGS)
    for event in good_events():
        story.take(event)
        plain.take(story, event)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert sum("held-out loss" in line for line in lines) == SETTINGS.rounds
    assert len(lines) == SETTINGS.rounds + len(story.timeline)
    assert any("epoch 3: peers 0, 1, 3 and 4" in line for line in lines)
    given = "peer 4 gets parameters and momentum of 4 rounds"
    assert sum(given in line for line in lines) == 1


def test_ranges_cover_without_gap_or_overlap() -> None:
    def parts(*edges: tuple[int, int]) -> list[Event]:
        return [{"begin": begin, "end": end} for begin, end in edges]

    assert covers(parts((0, 3), (3, 9)), 9)
    assert not covers(parts((0, 3), (4, 9)), 9)
    assert not covers(parts((0, 3), (2, 9)), 9)
    assert not covers(parts((0, 3)), 9)
    assert not covers(parts((0, 0), (0, 9)), 9)
    assert not covers([], 9)


def test_shares_and_names_read_well() -> None:
    assert shares(halves(EVERYBODY, SURVIVORS)) == "50 % of it averages 4 peers, 50 % 3"
    assert names(["peer 3", "peer 0", "peer 1"]) == "peers 0, 1 and 3"
    assert names(["peer 2"]) == "peer 2"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_499, "99.5 kB"),
        (123_456, "123 kB"),
        (999_600, "1.0 MB"),
        (5e12, "5000 GB"),
    ],
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert view.human_bytes(count) == text
