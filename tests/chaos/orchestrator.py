"""Runs a plan of faults against real processes, and judges what they say.

One loop: news of the processes, and things to do at their times. A Run begins when all peers work
in one epoch, strikes as the plan says while they go on, then heals everything, and asks that all
come together again and end in the same round. The verdict's basis: `Run.report`.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import json
import queue
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger import Ledger
from marker import Phase
from network import COORDINATOR, ProxyNetwork, SwitchNetwork
from plan import Plan
from processes import CoordinatorProcess, Ended, News, Said, Slot, Stopped
from strikes import Record, Strikes

import pccl_py as pccl
from pccl_py.closing import Closing

# Small chunks and windows, so that an operation is many frames.
SETTINGS = {"chunk-bytes": "16384", "window-bytes": "262144", "heartbeat": "0.2"}
WARM_UP_ROUNDS = 25
# All must be together again, or any round must be over, within this.
TOGETHER_SECONDS_MAX = 60.0
STALL_SECONDS_MAX = 30.0
# A fault point that is armed later than this before the end may be left.
POINT_SECONDS = 10.0
RESTART_SECONDS = 0.3
VIOLATIONS_MAX = 10
PEER_GROWTH_BYTES_MAX = 24 * 1024 * 1024
COORDINATOR_GROWTH_BYTES_MAX = 8 * 1024 * 1024
DESCRIPTORS_GROWTH_MAX = 2


class Failed(Exception):
    """The run cannot go on."""


class Run(Closing):
    """One run. `go` once."""

    def __init__(self, plan: Plan, progress: Callable[[Run], None] = lambda run: None) -> None:
        self.plan = plan
        self.ledger = Ledger()
        self.kills = self.joins = self.lost = self.coordinator_kills = 0
        self.errors: Counter[str] = Counter()
        self._progress = progress
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._todo: list[tuple[float, int, Callable[[], None]]] = []
        self._todo_number = itertools.count()
        self._traps: dict[tuple[int, Phase], Callable[[], None]] = {}
        self._expected: dict[int, set[int]] = {}  # codes with which a process may end, by pid
        self._last_round_at = 0.0
        self.quiet = False  # no more faults
        self._finishing = False  # who ends does not come back
        self._began = time.monotonic()
        self._folder = tempfile.TemporaryDirectory(prefix="pccl-chaos-")
        folder = Path(self._folder.name)
        names = [COORDINATOR, *map(str, range(plan.slots))]
        self.network = SwitchNetwork(names) if plan.namespaces else ProxyNetwork(names)
        options = {**SETTINGS, "silence": str(plan.silence)}
        self.coordinator = CoordinatorProcess(self.network, folder, options)
        self.network.refuse(COORDINATOR)  # until it is there
        self.slots = [Slot(index, self.network, folder) for index in range(plan.slots)]
        self.strikes = Strikes(self)
        self.start: dict[str, Any] = {}
        self.end: dict[str, Any] = {}

    # ---- what strikes ask for

    def now(self) -> float:
        return time.monotonic() - self._began

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._todo, (self.now() + seconds, next(self._todo_number), action))

    def on_phase(self, slot: Slot, phase: Phase, action: Callable[[], None]) -> None:
        """Once, when the slot says that it is there."""
        self._traps[(slot.index, phase)] = action

    def expect_end(self, slot: Slot, code: int) -> None:
        assert slot.process is not None
        self._expected.setdefault(slot.process.pid, set()).add(code)

    def ask_to_leave(self, slot: Slot) -> None:
        assert slot.process is not None
        self.expect_end(slot, 0)
        slot.process.say("leave")

    def kill_coordinator(self, back_after: float, *, gate_closes: bool = True) -> None:
        process = self.coordinator.process
        assert process is not None
        self._expected[process.pid] = {-signal.SIGKILL}
        if gate_closes:
            self.network.refuse(COORDINATOR)
        process.signal(signal.SIGKILL)
        self.coordinator_kills += 1
        self.later(back_after, self._start_coordinator)

    def status(self) -> dict[str, Any] | None:
        """None while the coordinator cannot answer; who freezes it must not wait for it."""
        if not self.coordinator.working:
            return None
        try:
            return self.network.inside(lambda: pccl.run_status(self.coordinator.own_token))
        except pccl.CoordinatorUnreachable:  # started, and not yet there
            return None

    # ---- the run

    def go(self) -> None:
        """Raises nothing that is the fault of what is tested: `report` says it."""
        try:
            self._start_coordinator()
            for slot in self.slots:
                self._start_slot(slot)
            self._wait_together("the beginning", rounds=WARM_UP_ROUNDS)
            self.start = self._footprints()
            self._began = time.monotonic()
            self._last_round_at = 0.0
            for fault in self.plan.faults:
                self.later(fault.at, functools.partial(self.strikes.begin, fault))
            self._work_until(lambda: self.now() >= self.plan.seconds)
            self._heal()
            self._wait_together("the end", rounds=WARM_UP_ROUNDS)
            self.end = self._footprints()
            self._finish()
        except Failed as error:
            self._complain(str(error))

    def _start_coordinator(self) -> None:
        if self.coordinator.process is not None:
            self.coordinator.ended()
        process = self.coordinator.start(self._news)
        self._expected[process.pid] = set()

    def _start_slot(self, slot: Slot) -> None:
        record: Record | None = slot.armed
        orders = {
            "token": self.coordinator.token,
            "seed": self.plan.seed,
            "initial_world_size": self.plan.slots,
        }
        if record is not None and record.struck:
            slot.armed = record = None  # the process that it was for is gone
        point = "" if record is None else record.fault.point
        process = slot.start(orders, point, self._news)
        self._expected.setdefault(process.pid, set()).clear()

    def _work_until(self, over: Callable[[], bool]) -> None:
        while not over():
            while self._todo and self._todo[0][0] <= self.now():
                heapq.heappop(self._todo)[2]()
            due = self._todo[0][0] - self.now() if self._todo else 0.5
            with contextlib.suppress(queue.Empty):
                self._take(self._news.get(timeout=min(max(due, 0.001), 0.5)))
            if self.now() - self._last_round_at > STALL_SECONDS_MAX:
                raise Failed(f"no round for {STALL_SECONDS_MAX} s at {self.now():.1f} s")
            if len(self.ledger.violations) > VIOLATIONS_MAX:
                raise Failed("enough violations")
            self._progress(self)

    def _wait_together(self, what: str, rounds: int) -> None:
        """Until everybody has done so many rounds in one epoch of them all."""
        self._last_round_at = self.now()
        limit = self.now() + TOGETHER_SECONDS_MAX

        def together() -> bool:
            if self.now() > limit:
                raise Failed(f"{what}: not all in one epoch within the limit\n{self.scene()}")
            numbers = {slot.number for slot in self.slots}
            newest = [slot.newest for slot in self.slots]
            if any(report is None for report in newest):
                return False
            epochs = {report["epoch"] for report in newest if report is not None}
            return len(epochs) == 1 and all(
                set(report["members"]) == numbers and report["round"] >= rounds
                for report in newest
                if report is not None
            )

        self._work_until(together)

    def scene(self) -> str:
        """Where everybody is, for whoever has to find out why."""
        lines = [f"{slot.index}: peer {slot.number}, {slot.where()}" for slot in self.slots]
        return "\n".join([*lines, json.dumps(self.status())])

    def _heal(self) -> None:
        """No more faults, nothing frozen, everybody up."""
        self.quiet = True
        self.network.heal()
        for slot in self.slots:
            if slot.frozen and slot.process is not None:
                slot.process.signal(signal.SIGCONT)
                slot.frozen = False
        self.strikes.thaw_coordinator()

    def _finish(self) -> None:
        self._finishing = True
        for slot in self.slots:
            assert slot.process is not None
            self.expect_end(slot, 0)
            slot.process.say("finish")
        self._last_round_at = self.now()
        self._work_until(lambda: not any(slot.running for slot in self.slots))

    def _footprints(self) -> dict[str, Any]:
        assert self.slots[0].process is not None and self.coordinator.process is not None
        return {
            "peer": self.slots[0].process.footprint(),
            "coordinator": self.coordinator.process.footprint(),
            "peer_pid": self.slots[0].process.pid,
            "coordinator_pid": self.coordinator.process.pid,
        }

    # ---- news

    def _take(self, news: News) -> None:
        slot = next((slot for slot in self.slots if slot.process is news.process), None)
        if slot is None:
            self._take_of_coordinator(news)
        elif isinstance(news, Said):
            self._take_line(slot, news.what)
        elif isinstance(news, Stopped):
            if not slot.frozen:
                self.strikes.point_struck(slot)
        else:
            self._take_end(slot, news)

    def _take_of_coordinator(self, news: News) -> None:
        if news.process is not self.coordinator.process:
            return
        if isinstance(news, Said):
            self.network.admit(COORDINATOR)
        elif isinstance(news, Ended) and news.code not in self._expected[news.process.pid]:
            raise Failed(f"the coordinator ended with {news.code}: {news.process.errors}")

    def _take_line(self, slot: Slot, what: dict[str, Any]) -> None:
        slot.number = max(slot.number, what["number"])
        kind = what["say"]
        if kind == "round":
            self._last_round_at = self.now()
            self.ledger.take(what["number"], what)
            if "members" in what:
                slot.newest = what
        elif kind == "violation":
            self._complain(what["text"])
        elif kind == "joined":
            self.joins += 1
        elif kind == "lost":
            self.lost += 1
            self.errors[what["error"].partition(":")[0]] += 1
            slot.newest = None
        elif kind == "phase":
            trap = self._traps.pop((slot.index, Phase[what["phase"]]), None)
            if trap is not None and slot.process is not None:
                trap()

    def _take_end(self, slot: Slot, news: Ended) -> None:
        record: Record | None = slot.armed
        expected = self._expected[news.process.pid]
        if news.code not in expected:
            if record is not None and news.code == -signal.SIGKILL:
                self.strikes.point_struck(slot)
            else:
                self._complain(f"slot {slot.index} ended with {news.code}: {news.process.errors}")
        slot.ended()
        if not self._finishing:
            self.later(0 if 0 in expected else RESTART_SECONDS, lambda: self._start_slot(slot))

    def _complain(self, text: str) -> None:
        self.ledger.violations.append(f"{self.now():.2f} s: {text}")

    # ---- the verdict

    def report(self) -> dict[str, Any]:
        records = self.strikes.records
        counted = [record for record in records if record.counts]
        return {
            "seed": self.plan.seed,
            "slots": self.plan.slots,
            "namespaces": self.plan.namespaces,
            "seconds": self.plan.seconds,
            "operations": self.ledger.committed,
            "split_results": self.ledger.split,
            "rounds": self.ledger.rounds,
            "epochs": self.ledger.newest_epoch,
            "outcomes": dict(self.ledger.outcomes),
            "state": dict(self.ledger.state),
            "kills": self.kills,
            "coordinator_kills": self.coordinator_kills,
            "joins": self.joins,
            "memberships_lost": self.lost,
            "errors": dict(self.errors),
            "faults": {
                "planned": len(self.plan.faults),
                "struck": sum(record.struck for record in records),
                "skipped": sum(bool(record.skipped) for record in records),
                "counted": len(counted),
                "hit": sum(record.hit for record in counted),
                "kinds": dict(Counter(r.fault.kind for r in records if r.struck)),
                "points": dict(
                    Counter(r.fault.point for r in records if r.struck and r.fault.point)
                ),
            },
            "start": self.start,
            "end": self.end,
            "violations": self.ledger.violations,
            "complaints": self.complaints(),
            "records": [record.to_json() for record in records],
        }

    def complaints(self) -> list[str]:
        """Complaints about the run itself: faults that missed, memory that grew."""
        found = []
        records = self.strikes.records
        counted = [record for record in records if record.counts]
        hit = sum(record.hit for record in counted)
        if 2 * hit < len(counted) or not counted:
            found.append(f"only {hit} of {len(counted)} faults hit an operation in flight")
        for record in records:
            wanted = record.fault.point and not record.skipped
            in_time = record.fault.at + POINT_SECONDS < self.plan.seconds
            if wanted and in_time and not record.struck:
                found.append(f"never hit: {record.fault}")
        if self.end:
            found += self._growth("peer", PEER_GROWTH_BYTES_MAX)
            found += self._growth("coordinator", COORDINATOR_GROWTH_BYTES_MAX)
        return found

    def _growth(self, who: str, bytes_max: int) -> list[str]:
        start, end = self.start[who], self.end[who]
        if who == "peer" and self.start["peer_pid"] != self.end["peer_pid"]:
            return ["slot 0 was to live through the run, and did not"]
        grown = {key: end[key] - start[key] for key in start}
        found = []
        if grown["bytes"] > bytes_max:
            found.append(f"the {who} grew by {grown['bytes']} bytes")
        if abs(grown["descriptors"]) > DESCRIPTORS_GROWTH_MAX:
            found.append(f"the {who} has {grown['descriptors']} descriptors more than at first")
        return found

    # ---- the end

    def close(self) -> None:
        for slot in self.slots:
            slot.close()
        self.coordinator.close()
        self.network.close()
        self._folder.cleanup()
