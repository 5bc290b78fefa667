"""hostile: what an attack costs those who go on working.

Three peers reduce 1 MiB of f32 in a loop (recovery_world.py), and harness/attacker.py does one
thing after another to them. Windows with and without the attack take turns, so that what else the
machine does is in both.

    throughput_ratio    calls that were completed in a window under attack, over those in the window
                        before it; the median of all pairs, and _min the least. Somebody who has the
                        token attacks for ten seconds before the window begins
    cpu_ratio           CPU seconds of coordinator and peers for a call in the window before, over
                        those under attack; the median
    cpu_seconds_per_call  the same under attack, beside the window before
    newcomer_seconds    from connect until somebody honest is in, under attack; the median, and _max
    connections_per_second, of all attackers
    grown_bytes         the coordinator's peak under attack, over what it held before

Attackers and run share the cores here, and a real attacker has a machine of its own. So the window
before a stranger's attack has the same attackers, at the same rate (1,000 connections a second,
nice 19), which attack a bystander. `undisturbed_ratio` is over a window without any attackers.

Throughput on a busy machine still says more of the scheduler than of the run: a call waits for each
of four processes in turn. CPU time is charged to whoever works, so `cpu_ratio` holds there, too: it
is what is left of the throughput of a run that the cores limit, when nobody else uses them.

Wanted: at least 0.9 under attack of a stranger, 0.5 of somebody who has the token, and newcomers in
within five seconds: `cpu_ratio` on any machine, `throughput_ratio` on one with cores to spare for
the attackers. A peer that is lost ends the benchmark with an error.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import pccl_py as pccl
from bench.common import KIB, MIB, Row
from bench.loopback import warn_if_busy
from bench.recovery_world import Peer, World
from bench.report import Report
from harness.attacker import Attackers, Job

BENCH = "hostile"
PEERS = 3
SIZE = MIB
SILENCE = 5.0
STRANGERS = ["garbage", "resets", "slow", "silent", "holds"]
INSIDERS = ["questions", "joins_nothing", "half_open", "groups", "statuses", "lanes"]
INSIDERS += ["zero_windows", "unread_decisions", "newcomers", "never_ready"]
CASES = STRANGERS + INSIDERS
# Newcomers that come at once, and then go.
CONNECTIONS = {"newcomers": 490}
STRANGERS_AT_ONCE = 2
STRANGER_CONNECTIONS_PER_SECOND = 1000


@dataclass(frozen=True)
class Plan:
    """The times of a case."""

    window: float = 3.0
    settle: float = 10.0  # of somebody who has the token, until it must be over
    tries: int = 3
    newcomers: bool = True


@dataclass(frozen=True)
class Window:
    """One stretch of time: calls of the slowest peer, and what the run used for each of them."""

    calls_per_second: float
    cpu_seconds_per_call: float


@dataclass
class Measured:
    """The windows and other numbers of one case."""

    case: str
    before: list[float] = field(default_factory=list)  # with a bystander attacked, of strangers
    under: list[float] = field(default_factory=list)
    cpu_before: list[float] = field(default_factory=list)  # seconds for each call
    cpu_under: list[float] = field(default_factory=list)
    undisturbed: list[float] = field(default_factory=list)
    newcomers: list[float] = field(default_factory=list)
    connections: list[float] = field(default_factory=list)
    grown_bytes: int = 0

    def note_before(self, window: Window) -> None:
        """A window that one under attack is compared with."""
        self.before.append(window.calls_per_second)
        self.cpu_before.append(window.cpu_seconds_per_call)

    def note_under(self, window: Window) -> None:
        """A window under attack."""
        self.under.append(window.calls_per_second)
        self.cpu_under.append(window.cpu_seconds_per_call)

    @property
    def ratios(self) -> list[float]:
        """Calls under attack over those before, for each pair of windows."""
        return [after / before for before, after in zip(self.before, self.under, strict=True)]

    @property
    def cpu_ratio(self) -> float:
        """CPU time for each call before, over that under attack: the median of all pairs."""
        pairs = zip(self.cpu_before, self.cpu_under, strict=True)
        return statistics.median(before / under for before, under in pairs)

    def rows(self) -> Iterator[Row]:
        """As everywhere in this folder."""
        calls = statistics.median(self.under), statistics.median(self.before)
        baseline = "bystander" if self.case in STRANGERS else "undisturbed"
        yield Row(BENCH, self.case, "calls_per_second", calls[0], "1/s", baseline, calls[1])
        yield Row(BENCH, self.case, "throughput_ratio", statistics.median(self.ratios), "")
        yield Row(BENCH, self.case, "throughput_ratio_min", min(self.ratios), "")
        cpu = statistics.median(self.cpu_under), statistics.median(self.cpu_before)
        yield Row(BENCH, self.case, "cpu_seconds_per_call", cpu[0], "s", baseline, cpu[1])
        yield Row(BENCH, self.case, "cpu_ratio", self.cpu_ratio, "")
        if self.undisturbed:
            pairs = zip(self.undisturbed, self.under, strict=True)
            ratio = statistics.median(after / before for before, after in pairs)
            yield Row(BENCH, self.case, "undisturbed_ratio", ratio, "")
        if self.newcomers:
            seconds = statistics.median(self.newcomers), max(self.newcomers)
            yield Row(BENCH, self.case, "newcomer_seconds", seconds[0], "s")
            yield Row(BENCH, self.case, "newcomer_seconds_max", seconds[1], "s")
        rate = statistics.median(self.connections)
        yield Row(BENCH, self.case, "connections_per_second", rate, "1/s")
        yield Row(BENCH, self.case, "grown_bytes", float(self.grown_bytes), "B")


class Bench:
    """One run, and what is done to it."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self._founders = list(world.peers)
        self._pause = threading.Event()  # nobody sets it: a wait of a given length

    def _window(self) -> Window:
        """Counts for as long as the plan says."""
        began, cpu_began = time.monotonic(), self._cpu_seconds()
        self._pause.wait(self._plan.window)
        ended, cpu_ended = time.monotonic(), self._cpu_seconds()

        def completed(peer: Peer) -> int:
            return sum(began < step.ended <= ended and step.error is None for step in peer.steps)

        calls = min(completed(peer) for peer in self._founders)
        if calls == 0:
            raise RuntimeError(f"no call was completed within {ended - began:.1f} s")
        return Window(calls / (ended - began), (cpu_ended - cpu_began) / calls)

    def _cpu_seconds(self) -> float:
        """CPU seconds of coordinator and founders so far."""
        processes = [self._world.coordinator, *self._founders]
        return sum(_cpu_seconds(process.pid) for process in processes)

    def _jobs(self, attack: str) -> list[Job]:
        parsed = pccl.token_parse(self._world.token)
        status = pccl.run_status(self._world.token, timeout=60)
        members = status["groups"][0]["epochs"][-1]["members"]
        coordinator = int(parsed.address.rpartition(":")[2])
        peers = [int(member["address"].rpartition(":")[2]) for member in members]
        to: dict[str, Any] = {"ports": [coordinator, *(peers if attack in STRANGERS else [])]}
        if attack == "lanes":  # to the one with the smallest id, which others dial
            meant = min(range(len(members)), key=lambda place: str(members[place]["peer_id"]))
            to = {"ports": [peers[meant]], "meant": members[meant]["peer_id"]}
        if attack in INSIDERS:
            run_id = parsed.run_id.hex()
            count = CONNECTIONS.get(attack, 0)
            return [Job(attack, run_id=run_id, nice=19, connections=count, **to)]
        rate = STRANGER_CONNECTIONS_PER_SECOND // STRANGERS_AT_ONCE
        seeds = range(STRANGERS_AT_ONCE)
        return [Job(attack, seed=seed, nice=19, rate=rate, **to) for seed in seeds]

    def _before(self, jobs: list[Job], measured: Measured) -> None:
        """Measures the windows that one under attack is compared with."""
        window = self._window()
        if measured.case in INSIDERS:
            measured.note_before(window)
            return
        measured.undisturbed.append(window.calls_per_second)
        with Attackers([Job("bystander", [0], nice=19)]) as bystander:
            port = bystander.said[0]["port"]
            with Attackers([replace(job, ports=[port]) for job in jobs]):
                measured.note_before(self._window())

    def measure(self, attack: str) -> Measured:
        """Measures one case."""
        measured = Measured(attack)
        for _ in range(self._plan.tries):
            self._world.settle(3)
            jobs = self._jobs(attack)
            held = _memory_bytes(self._world.coordinator.pid, "VmRSS")
            Path(f"/proc/{self._world.coordinator.pid}/clear_refs").write_text("5")
            self._before(jobs, measured)
            began = time.monotonic()
            with Attackers(jobs) as attackers:
                if attack in INSIDERS:
                    self._pause.wait(self._plan.settle)
                measured.note_under(self._window())
                if self._plan.newcomers:
                    measured.newcomers.append(self._newcomer())
                seconds = time.monotonic() - began
            connections = sum(told["connections"] for told in attackers.told)
            measured.connections.append(connections / seconds)
            peak = _memory_bytes(self._world.coordinator.pid, "VmHWM")
            measured.grown_bytes = max(measured.grown_bytes, peak - held)
        return measured

    def _newcomer(self) -> float:
        newcomer = self._world.start_peer(0)
        newcomer.await_step(1)
        self._world.remove(newcomer)
        return newcomer.said["entered"] - newcomer.said["connecting"]


def _memory_bytes(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.removesuffix("kB")) * KIB
    raise RuntimeError(f"/proc/{pid}/status has no {key}")


def _cpu_seconds(pid: int) -> float:
    """All that the threads of a process have used, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(cases: list[str], *, quick: bool, as_json: bool, out: Path) -> list[Row]:
    """Measures the cases, each in a run of its own; prints and writes the rows."""
    status = Console(stderr=True)
    warn_if_busy(status)
    plan = Plan(window=0.3, settle=0.2, tries=1, newcomers=False) if quick else Plan()
    report = Report(BENCH, out, as_json=as_json)
    everything: list[Measured] = []
    for case in cases:
        with World(PEERS, SIZE, SILENCE) as world:
            measured = Bench(world, plan).measure(case)
        everything.append(measured)
        report.add(measured.rows())
        status.print(f"{case}: measured", highlight=False)
    return report.finish(table(everything))


def table(everything: list[Measured]) -> Table:
    """For people: a line for each attack."""
    made = Table(title=f"{PEERS} peers, all_reduce of {SIZE // MIB} MiB, calls a second")
    headings = ("attack", "blows/s", "before", "under it", "ratio", "CPU", "newcomer s", "MiB")
    for heading in headings:
        made.add_column(heading, justify="left" if heading == "attack" else "right", no_wrap=True)
    for one in everything:
        made.add_row(
            one.case,
            f"{statistics.median(one.connections):.0f}",
            f"{statistics.median(one.before):.0f}",
            f"{statistics.median(one.under):.0f}",
            f"{statistics.median(one.ratios):.2f}",
            f"{one.cpu_ratio:.2f}",
            f"{max(one.newcomers):.2f}" if one.newcomers else "",
            f"{one.grown_bytes / MIB:.1f}",
        )
    return made
