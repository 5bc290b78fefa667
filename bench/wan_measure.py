"""wan: one operation over long links, beside the least time that the network allows, and gloo.

It owns when what is called, and what the times come to. The cases are a table in wan_cases.py; the
network is bench/wan, an emulator that wan_network.py starts; the processes are in wan_peers.py.

How it measures. Each peer is a process in a network namespace of its own, the coordinator beside
rank 0, with default settings and nothing pinned. All begin at one instant of the clock that they
share, 1.5 s after the end of the operation before, unless the case says so; the time is that of the
slowest rank. The value is the median of 5, or of 10 small calls, after one operation to warm up.
With `--baseline gloo` the same processes hold four groups of gloo, each with a quarter of the
tensor. The libraries take turns in blocks, each with an operation to warm up, as an operation of
another library between two of ours would be a long pause.

    seconds               of one operation; of `kill`: from the kill on
    share                 the bound over the seconds; the baseline is the aim, if there is one
    retransmitted_share   bytes that TCP sent again, of all bytes that entered the network
    lanes_min, lanes_max  of the links of the last operation: lanes that carry (wan_lanes.py)
    attempts              of the operation, the most that any peer made
    cpu_seconds_per_peer  of all threads of a process, the mean of all
    peak_memory_bytes     the most that a process took beside being idle and its buffer
    late_p99_seconds      how late the emulator was with 1 % of the packets, or later
    busy_cores            of this machine, by everything on it
    counted_share         of the operations of which the row is made: those that count
    small_seconds         of the small operation beside the large one
    predicted_seconds     of the last operation, as its outcome has it: the median of the ranks
    bound_seconds         the same, the least by what members have found; the baseline is the bound

An operation counts if packets were less than 2 ms late (p99), no CPU was stolen by the hypervisor,
and less than 0.8 of the cores were busy. Another one takes its place, at most three in all. Where
the last one does not count either it is taken, and that is said.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import common, wan_lanes, wan_network, wan_plot
from bench.common import MIB, Row
from bench.loopback import gloo_here, significant
from bench.report import Report
from bench.wan_cases import LANE_LOSS, RESET_EVERY_SECONDS, Case, not_run
from bench.wan_network import Network
from bench.wan_peers import Operation, Peers
from bench.wan_worker import Job

BENCH = "wan"
OURS, GLOO = "pccl", "gloo"
TRIES_MAX, QUICK_TRIES_MAX = 3, 1
# Aims of the even network.
EVEN_RETRANSMITTED_SHARE = 0.005
EVEN_CPU_SECONDS = 0.35
KILLS_MAX = 3  # until one hits an operation that is under way
DISTURBED = (1, 2)  # the link whose lanes are disturbed: no coordinator is at its ends


@dataclass
class Measured:
    """The operations of one library in one case, and from when on each is timed."""

    case: Case
    operations: list[Operation] = field(default_factory=list)
    since: list[float] = field(default_factory=list)
    epoch: dict[str, Any] = field(default_factory=dict)  # at the end, as the status has it

    def add(self, operation: Operation, since: float | None = None) -> None:
        """`since`: an instant, or its beginning."""
        self.operations.append(operation)
        self.since.append(operation.begin if since is None else since)

    def seconds(self) -> float:
        """The median."""
        pairs = zip(self.operations, self.since, strict=True)
        return statistics.median(operation.end - since for operation, since in pairs)

    def small_seconds(self) -> float | None:
        """The time of the last call, if that is smaller than the first."""
        calls = self.case.calls
        if not calls or calls[-1].size == calls[0].size:
            return None
        last, after = len(calls) - 1, calls[-1].after
        return self.median(lambda one: one.seconds_of(last, after))

    def median(self, of: Callable[[Operation], float]) -> float:
        """The median of anything that an operation has."""
        return statistics.median(of(operation) for operation in self.operations)

    def most(self, of: Callable[[Operation], float]) -> float:
        """The same, the most of all."""
        return max(of(operation) for operation in self.operations)

    def counted(self) -> int:
        """How many of the operations count."""
        return sum(not operation.mood.complaint() for operation in self.operations)


def run(
    cases: list[Case], *, quick: bool, baseline: str | None, as_json: bool, out: Path
) -> list[Row]:
    """Measures the cases; prints and writes the rows. Raises RuntimeError if a case fails."""
    status = Console(stderr=True)
    baselines = gloo_here(status) if baseline else []
    program, algorithms = wan_network.build(), wan_network.algorithms_here()
    # A smoke run is no number, so a lane may have what it likes.
    allowed = algorithms if quick else wan_network.allowed_here()
    report, failed = Report(BENCH, out, as_json=as_json), []
    planned: dict[str, tuple[Case, dict[str, Any]]] = {}
    for case in cases:
        why_not = not_run(case, algorithms, allowed)
        if why_not:
            status.print(f"{case.name}: not run: {why_not}", highlight=False)
            continue
        try:
            measured = measure(case, program, baselines, status, quick=quick)
        except (RuntimeError, OSError, ValueError) as error:
            status.print(f"{case.name}: failed: {error}", highlight=False)
            failed.append(case.name)
            continue
        report.add(rows_of(case, measured))
        if measured[OURS].epoch:
            planned[case.name] = case, measured[OURS].epoch
    picture = None
    if report.rows:
        picture = out / f"{BENCH}.png"
        wan_plot.draw(report.rows, picture)
    if planned:
        wan_plot.draw_plans(list(planned.values()), out / f"{BENCH}-plans.png")
    rows = report.finish(*tables(report.rows), picture=picture)
    if quick:
        status.print("a smoke run: calls are too small for their shares to say anything")
    if failed:
        raise RuntimeError(f"cases failed: {', '.join(failed)}")
    return rows


def measure(
    case: Case, program: Path, baselines: list[str], status: Console, *, quick: bool
) -> dict[str, Measured]:
    """All operations of one case, by library."""
    libraries = [OURS, *(baselines if case.is_of_others else [])]
    measured = {library: Measured(case) for library in libraries}
    tries_max = QUICK_TRIES_MAX if quick else TRIES_MAX
    size = case.all_bytes
    job = Job(0, case.world, "", libraries, size, case.lanes, case.control, case.coordinator)
    with Network(program, case.topology) as network:
        say = Progress(case, status)
        if case.work == "kill":
            for _ in range(sum(case.blocks)):
                until_it_counts(lambda: killed(network, job, case), measured[OURS], tries_max, say)
            return measured
        with Peers(network, job) as peers:
            for count in case.blocks:
                for library in libraries:
                    once = operation(peers, case, library)
                    if case.work != "first" and not quick:
                        say(library, once(), None, "to warm up")
                    for _ in range(count):
                        until_it_counts(once, measured[library], tries_max, say, library)
            measured[OURS].epoch = peers.epoch()
    return measured


Timed = tuple[Operation, float | None]


def until_it_counts(
    once: Callable[[], Timed],
    into: Measured,
    tries_max: int,
    say: Progress,
    library: str = OURS,
) -> None:
    """Adds an operation that counts, or the last one of those that were tried."""
    for _ in range(tries_max):
        timed = once()
        complaint = timed[0].mood.complaint()
        say(library, timed, into, complaint and f"does not count: {complaint}")
        if not complaint:
            break
    into.add(*timed)


@dataclass
class Progress:
    """Tells people how far it is."""

    case: Case
    status: Console

    def __call__(self, library: str, timed: Timed, into: Measured | None, remark: str = "") -> None:
        operation, since = timed
        seconds = operation.end - (since or operation.begin)
        number = f" {len(into.operations) + 1}" if into is not None else ""
        share = f"{self.case.bound() / seconds:.0%} of the bound"
        line = f"{self.case.name}: {library}{number}: {seconds:.3g} s, {share}"
        self.status.print(f"{line} ({remark})" if remark else line, highlight=False, soft_wrap=True)


def operation(peers: Peers, case: Case, library: str) -> Callable[[], Timed]:
    """A function that makes one operation of the case, as often as it is called."""
    asked = asked_of(case, library)
    is_marked = False

    def once() -> Timed:
        nonlocal is_marked
        if case.work == "first":
            peers.part()
            peers.meet()
        if case.disturbance == "lossy" and not is_marked:
            source, target = DISTURBED
            peers.network.command(f"lossy {source} {target} {round(LANE_LOSS * 1e6)}")
            is_marked = True
        begun = peers.begin(asked, case.pause)
        with resetting(peers.network) if case.disturbance == "reset" else contextlib.nullcontext():
            begun.wait()
        return begun.end(), None

    return once


def asked_of(case: Case, library: str) -> dict[str, Any]:
    """An operation as each process is told it: an Asked, but for the instant."""
    return {
        "library": library,
        "work": case.work,
        "codec": case.codec,
        "plan": case.plan,
        "sizes": [call.size for call in case.calls] or [case.size],
        "after": [call.after for call in case.calls] or [0.0],
    }


@contextlib.contextmanager
def resetting(network: Network) -> Iterator[None]:
    """Resets one connection of a link every second."""
    over = threading.Event()

    def reset() -> None:
        while not over.wait(RESET_EVERY_SECONDS):
            network.command(f"reset {DISTURBED[0]} {DISTURBED[1]}")

    thread = threading.Thread(target=reset)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def killed(network: Network, job: Job, case: Case) -> Timed:
    """An operation in which the last peer is killed half way, and when; with peers of its own."""
    for _ in range(KILLS_MAX):
        with Peers(network, job) as peers:
            undisturbed, _ = operation(peers, case, OURS)()
            begun = peers.begin(asked_of(case, OURS), case.pause)
            time.sleep(undisturbed.seconds / 2)
            at = peers.kill(case.world - 1)
            begun.wait()
            done = begun.end()
        if done.end > at:
            return done, at
    raise RuntimeError("each time the operation had ended before the kill")


# ---- rows


def rows_of(case: Case, measured: dict[str, Measured]) -> list[Row]:
    """The rows of one case."""
    ours, gloo = measured[OURS], measured.get(GLOO)
    size = case.all_bytes
    collective = case.work if case.work in ("sync", "broadcast", "barrier") else "all_reduce"
    name = f"{common.case_name(collective, 'f32', case.codec, case.world, size)}/{case.name}"

    def row(metric: str, value: float, unit: str, aim: float | None = None) -> Row:
        baseline = ("aim", aim) if aim is not None else (None, None)
        return Row(BENCH, name, metric, value, unit, *baseline)

    def compared(
        metric: str, unit: str, of: Callable[[Measured], float], aim: float | None = None
    ) -> Row:
        if gloo is None:
            return row(metric, of(ours), unit, aim)
        return Row(BENCH, name, metric, of(ours), unit, GLOO, of(gloo))

    bound, seconds = case.bound(), ours.seconds()
    is_even = case.name.startswith("even-")
    rows = [Row(BENCH, name, "seconds", seconds, "s", "bound", bound)]
    if gloo is not None:
        rows.append(compared("seconds", "s", Measured.seconds))
    rows.append(row("share", bound / seconds, "share", aim_of(case)))
    small = ours.small_seconds()
    if small is not None:
        rows.append(row("small_seconds", small, "s"))
    lanes, last = ours.operations[-1].lanes, ours.operations[-1].samples.values()
    if lanes and size >= wan_lanes.OPERATION_BYTES_MIN:
        rows += [row("lanes_min", min(lanes), "lanes"), row("lanes_max", max(lanes), "lanes")]
    for metric, of in (("predicted_seconds", "predicted"), ("bound_seconds", "bound")):
        told = [value for value in (getattr(sample, of) for sample in last) if value is not None]
        if told:
            rows.append(Row(BENCH, name, metric, statistics.median(told), "s", "bound", bound))
    rows += [
        compared(
            "retransmitted_share",
            "share",
            lambda of: of.median(retransmitted_share),
            EVEN_RETRANSMITTED_SHARE if is_even else None,
        ),
        row("attempts", ours.most(attempts), "attempts", None if case.work == "kill" else 1),
        compared(
            "cpu_seconds_per_peer",
            "s",
            lambda of: of.median(cpu_seconds),
            EVEN_CPU_SECONDS if is_even else None,
        ),
        # Without gloo's: in the same process it would be beside what ours has kept.
        row("peak_memory_bytes", ours.most(peak_bytes), "B"),
        row("late_p99_seconds", ours.most(lambda one: one.mood.late_seconds), "s"),
        row("busy_cores", ours.most(lambda one: one.mood.busy_cores), "cores"),
        row("counted_share", ours.counted() / len(ours.operations), "share"),
    ]
    return rows


def aim_of(case: Case) -> float | None:
    """The aim as a share of the bound."""
    return case.bound() / case.seconds if case.seconds is not None else case.share


def retransmitted_share(operation: Operation) -> float:
    """The share of all bytes that entered the network."""
    return operation.retransmitted_bytes / max(1, operation.wire_bytes)


def attempts(operation: Operation) -> float:
    """The most of any peer."""
    return max(sample.attempts for sample in operation.samples.values())


def cpu_seconds(operation: Operation) -> float:
    """The mean of all peers."""
    return statistics.mean(sample.cpu for sample in operation.samples.values())


def peak_bytes(operation: Operation) -> float:
    """The most of any peer."""
    return max(sample.peak for sample in operation.samples.values())


def tables(rows: list[Row]) -> list[Table]:
    """For people: the times, and what they cost; a line for each case."""
    times = _table("one operation over emulated long links", "bound", "s", "share", "aim", GLOO)
    costs = _table(
        "what it cost", "lanes", "sent again", "attempts", "CPU s", "MiB", "late ms", "counts"
    )
    for case in dict.fromkeys(row.case for row in rows):
        found = {(row.metric, row.baseline): row for row in rows if row.case == case}
        plain = {metric: row for (metric, _), row in found.items()}
        seconds, share = found["seconds", "bound"], plain["share"]
        gloo, small = found.get(("seconds", GLOO)), plain.get("small_seconds")
        taken = gloo.baseline_value if gloo else None
        name = case.rsplit("/", 1)[1]
        times.add_row(
            name,
            f"{seconds.baseline_value:.3g}",
            f"{seconds.value:.3g}",
            f"{share.value:.0%}",
            "" if share.baseline_value is None else f"{share.baseline_value:.0%}",
            f"{significant(taken)} ({seconds.baseline_value / taken:.0%})"
            if taken and seconds.baseline_value
            else "",
        )
        if small is not None:
            times.add_row(f"{name}: the small one", "", significant(small.value), "", "", "")
        costs.add_row(
            name,
            lanes_text(plain.get("lanes_min"), plain.get("lanes_max")),
            f"{plain['retransmitted_share'].value:.1%}",
            f"{plain['attempts'].value:.0f}",
            significant(plain["cpu_seconds_per_peer"].value),
            significant(plain["peak_memory_bytes"].value, 1 / MIB),
            significant(plain["late_p99_seconds"].value, 1e3),
            f"{plain['counted_share'].value:.0%}",
        )
    return [times, costs]


def lanes_text(least: Row | None, most: Row | None) -> str:
    """ "8", or "4-8" where links differ; empty where they are not known."""
    numbers = [f"{row.value:.0f}" for row in (least, most) if row is not None]
    return "-".join(dict.fromkeys(numbers))


def _table(title: str, *headings: str) -> Table:
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("case", *headings):
        made.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    return made
