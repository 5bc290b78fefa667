"""recovery: what a loss, a join and a coordinator that dies cost those who go on working.

It owns the cases and what their times come to; the processes are `recovery_world.py`'s. Four peers
reduce 64 MiB of f32 in a loop (avg, so what is in flight resumes). Each case does its harm ten
times, at a random place of an operation; what has ended is replaced, and all work together again
before the next time.

    failed_calls        calls of survivors that failed, over all tries
    seconds             kill: from the signal to the last survivor's next completed call
                        freeze: to the first that is completed without the frozen peer
                        coordinator_kill: from when it is back to everybody's next completed call
                        join: from the newcomer's connect to its first completed call
    undisturbed_steps   the same as a multiple of the median call when nothing happens
                        state: to its first sync, of a state of 256 MiB that three peers hold,
                        or with _one_holder one; they let it be fetched while they work
    gap_seconds         join, state: the longest time an incumbent spent between two calls then;
                        else: the longest that a call in flight took beyond an undisturbed one

A row gives the median of the tries; metrics that end in _p90 and _max are of the same tries.
"""

from __future__ import annotations

import itertools
import math
import random
import signal
import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.common import MIB, Row
from bench.loopback import warn_if_busy
from bench.recovery_world import Peer, Step, World
from bench.report import Report

BENCH = "recovery"
PEERS = 4
STATE_SIZES = 4  # the state of a newcomer, in sizes of what is reduced
UNITS = {"seconds": "s", "undisturbed_steps": "steps", "gap_seconds": "s"}


@dataclass
class Tries:
    """The results of the tries of one case."""

    case: str
    step: float  # seconds of an undisturbed call
    suffix: str = ""
    failed_calls: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, seconds: float, gap: float, failed_calls: int = 0) -> None:
        """One try."""
        told = {"seconds": seconds, "undisturbed_steps": seconds / self.step, "gap_seconds": gap}
        for name, value in told.items():
            self.values.setdefault(name, []).append(value)
        self.failed_calls += failed_calls

    def rows(self) -> list[Row]:
        """As everywhere in this folder."""
        failed = f"failed_calls{self.suffix}"
        made = [Row(BENCH, self.case, failed, float(self.failed_calls), "calls")]
        for name, values in self.values.items():
            unit, metric = UNITS[name], name + self.suffix
            made.append(Row(BENCH, self.case, metric, statistics.median(values), unit))
            made.append(Row(BENCH, self.case, f"{metric}_p90", quantile(values, 0.9), unit))
            made.append(Row(BENCH, self.case, f"{metric}_max", max(values), unit))
        return made


def quantile(values: list[float], part: float) -> float:
    """The smallest value that so large a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * part) - 1]


class Bench:
    """One world, and the harm that is done to it."""

    def __init__(self, world: World, tries: int, source: random.Random) -> None:
        self._world = world
        self._tries = tries
        self._source = source
        self._pause = threading.Event()  # nobody sets it: a wait of a drawn length
        self.step = self._undisturbed()

    def _undisturbed(self) -> float:
        first = self._world.peers[0]
        first.await_steps(11)
        return statistics.median(step.seconds for step in first.steps[-10:])

    def _into_a_call(self) -> None:
        """Somewhere inside of one, everywhere equally likely."""
        self._world.peers[0].await_steps(1)
        self._pause.wait(self._source.uniform(0, self.step))

    def _victim(self) -> tuple[Peer, list[Peer]]:
        victim = self._source.choice(self._world.peers[1:])
        return victim, [peer for peer in self._world.peers if peer is not victim]

    def _replace(self, victim: Peer) -> None:
        place = victim.place
        self._world.remove(victim)
        self._world.start_peer(place)
        self._world.settle(3)

    def _after(
        self, at: float, survivors: list[Peer], *, lost: bool = False
    ) -> tuple[list[Step], int]:
        steps = [peer.first_after(at, lost=lost) for peer in survivors]
        return steps, sum(peer.failures_after(at) for peer in survivors)

    def _lost(self, name: str, number: int) -> Tries:
        tries = Tries(name, self.step)
        for _ in range(self._tries):
            victim, survivors = self._victim()
            self._into_a_call()
            at = victim.signal(number)
            # Operations that the frozen one has voted for are completed without it at once.
            steps, failed = self._after(at, survivors, lost=number == signal.SIGSTOP)
            if number == signal.SIGSTOP:
                victim.signal(signal.SIGCONT)
                victim.await_expelled()
            longest = max(step.seconds for step in steps)
            tries.add(max(step.ended for step in steps) - at, longest - self.step, failed)
            self._replace(victim)
        return tries

    def kill(self) -> Tries:
        """SIGKILL of one of four."""
        return self._lost("kill", signal.SIGKILL)

    def freeze(self) -> Tries:
        """SIGSTOP of one, which is told that it is out when it thaws."""
        return self._lost("freeze", signal.SIGSTOP)

    def coordinator_kill(self) -> Tries:
        """SIGKILL of the coordinator, and a new one at once."""
        tries = Tries("coordinator_kill", self.step)
        for _ in range(self._tries):
            self._into_a_call()
            back = self._world.kill_coordinator()
            steps, failed = self._after(back, self._world.peers)
            longest = max(step.seconds for step in steps)
            tries.add(max(step.ended for step in steps) - back, longest - self.step, failed)
            self._world.settle(3)
        return tries

    def state(self) -> Tries:
        """A newcomer of a state of many leaves, as `join`; the time is that of its first sync."""
        return self._newcomers("state", lambda newcomer: newcomer.said["synced"])

    def join(self) -> Tries:
        """A newcomer, which is killed when it is in, so that the next one finds four again."""
        return self._newcomers("join", lambda newcomer: newcomer.steps[0].ended)

    def _newcomers(self, name: str, when_in: Callable[[Peer], float]) -> Tries:
        tries = Tries(name, self.step)
        for _ in range(self._tries):
            incumbents = list(self._world.peers)
            newcomer = self._world.start_peer(self._source.randrange(len(incumbents)))
            newcomer.await_step(1)
            began, first = newcomer.said["connecting"], newcomer.steps[0]
            gap = max(longest_gap(peer, began, first.ended) for peer in incumbents)
            failed = sum(peer.failures_after(began) for peer in incumbents)
            tries.add(when_in(newcomer) - began, gap, failed)
            self._world.remove(newcomer)
            self._world.settle(3)
        return tries


def longest_gap(peer: Peer, since: float, until: float) -> float:
    """Between two of its calls, of which the first ended after `since`."""
    peer.first_after(until)
    steps = [step for step in peer.steps if step.ended >= since and step.began <= until]
    gaps = [after.began - before.ended for before, after in itertools.pairwise(steps)]
    return max(gaps, default=0.0)


@dataclass(frozen=True)
class Setting:
    """The world of a case. `suffix` goes to the names of its metrics."""

    peers: int = PEERS
    with_state: bool = False
    suffix: str = ""


@dataclass(frozen=True)
class Case:
    """An act, and the worlds in which it is done."""

    act: Callable[[Bench], Tries]
    settings: tuple[Setting, ...] = (Setting(),)


CASES = {
    "kill": Case(Bench.kill),
    "freeze": Case(Bench.freeze),
    "coordinator_kill": Case(Bench.coordinator_kill),
    "join": Case(Bench.join),
    "state": Case(
        Bench.state,
        (
            Setting(peers=3, with_state=True),
            Setting(peers=1, with_state=True, suffix="_one_holder"),
        ),
    ),
}


def run(
    cases: list[str], *, size: int, tries: int, silence: float, as_json: bool, out: Path
) -> list[Row]:
    """Measures the cases, each in a world of its own; prints and writes the rows."""
    status = Console(stderr=True)
    warn_if_busy(status)
    report = Report(BENCH, out, as_json=as_json)
    measured: list[Tries] = []
    for name, setting in [(case, one) for case in cases for one in CASES[case].settings]:
        state = STATE_SIZES * size if setting.with_state else 0
        with World(setting.peers, size, silence, state) as world:
            done = CASES[name].act(Bench(world, tries, random.Random(name)))
        done.suffix = setting.suffix
        measured.append(done)
        status.print(f"{name}: measured, undisturbed {done.step:.3f} s", highlight=False)
        report.add(done.rows())
    return report.finish(table(measured, size))


def table(measured: list[Tries], size: int) -> Table:
    """The distributions, for people."""
    made = Table(
        title=f"{PEERS} peers, all_reduce of {size // MIB} MiB, avg",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("case", "metric", "min", "median", "p90", "max"):
        made.add_column(heading, justify="left" if heading in ("case", "metric") else "right")
    for case in measured:
        made.add_row(case.case, "failed_calls", "", str(case.failed_calls), "", "")
        made.add_row("", "undisturbed call, s", "", f"{case.step:.3f}", "", "")
        for metric, values in case.values.items():
            told = (min(values), statistics.median(values), quantile(values, 0.9), max(values))
            made.add_row("", metric + case.suffix, *(f"{value:.3f}" for value in told))
    return made
