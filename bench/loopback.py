"""loopback: collectives of f32 against gloo, on one machine, in one run.

It owns the plan, the processes, and what their samples come to; in each process runs
`loopback_worker.py`.

How it measures. Each process holds a PCCL communicator, a gloo group and a ring of bare sockets at
once, and is pinned to its cores before any of them starts a thread. At each size the libraries take
turns, sample by sample. A sample begins after a barrier and times a few calls in place. It counts
from the last process that entered to the last that left, divided by the calls. The value is the
median.

    seconds             of one call
    bus_bandwidth       size / seconds, times TRAFFIC below, as NCCL's tests define it; the size of
                        a reduce_scatter or an all_gather is that of the shards of all ranks
    cpu_seconds_per_gb  CPU seconds of all threads of all processes, for 10^9 bytes of the size;
                        the coordinator and gloo's store, which are in rank 0, count
    peak_memory_bytes   the most that a process took beside being idle and its buffer; measured in
                        processes that hold one library only, sizes ascending; of all_reduce

The rows of tcp_ring are the ceiling: the same bytes over bare sockets, nothing reduced. Those of a
codec have ours without one as their baseline.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from bench import common, loopback_plot
from bench.common import KIB, MIB, Row
from bench.loopback_worker import COLLECTIVES, Case, Job, key_of
from bench.report import Report

BENCH = "loopback"
METRICS = ("seconds", "bus_bandwidth", "cpu_seconds_per_gb", "peak_memory_bytes")
SIZES = [4 * KIB << (2 * step) for step in range(9)]  # 4 KiB to 256 MiB, in steps of four
QUICK_SIZES = [4 * KIB, 1 * MIB]
# What a peer must send of the size, by world size.
TRAFFIC: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce": lambda n: 1.0,
}
WORLD_SECONDS_MAX = 1800.0
ITERATIONS_MAX = 32  # in place, 4 peers: 4^32 times the values, which f32 holds


def plan(sizes: list[int], quick: bool) -> list[Case]:
    """How often each size is called: many times for small ones, few times for large ones."""
    if quick:
        return [Case(size, iterations=2, samples=2) for size in sizes]
    return [
        Case(
            size,
            iterations=max(1, min(ITERATIONS_MAX, 4 * MIB // size)),
            samples=25 if size <= 4 * MIB else 11 if size <= 64 * MIB else 7,
        )
        for size in sizes
    ]


class Processes:
    """The processes of one world. None outlives this; when one fails, the others are ended."""

    def __init__(
        self,
        purpose: str,
        world: int,
        libraries: list[str],
        cases: list[Case],
        codecs: list[str] | None = None,
        collectives: list[str] | None = None,
    ) -> None:
        self._failure: str | None = None
        self._running: list[subprocess.Popen[str]] = []
        self._lines: list[queue.Queue[str | None]] = [queue.Queue() for _ in range(world)]
        for rank in range(world):
            chosen = collectives or COLLECTIVES[:1]
            job = Job(purpose, rank, world, libraries, cases, codecs or [], chosen)
            command = [sys.executable, "-m", "bench.loopback_worker", job.to_json()]
            self._running.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        self._readers = [threading.Thread(target=self._read, args=(r,)) for r in range(world)]
        self._timer = threading.Timer(WORLD_SECONDS_MAX, self._on_late)

    def __enter__(self) -> Self:
        for thread in (*self._readers, self._timer):
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._kill()
        for reader in self._readers:
            reader.join()
        self._timer.cancel()
        if error is None and self._failure is not None:
            raise RuntimeError(self._failure)

    def introduce(self) -> None:
        """Tells each process where the others are."""
        offers = self.reports()
        meeting = {**offers[0], "tcp_ports": [offer.get("tcp_port") for offer in offers]}
        for process in self._running:
            assert process.stdin is not None
            process.stdin.write(json.dumps(meeting) + "\n")
            process.stdin.flush()

    def reports(self) -> list[dict[str, Any]]:
        """The next report of each process, by rank. Raises RuntimeError when one has failed."""
        lines = [waiting.get() for waiting in self._lines]
        reports = [json.loads(line) for line in lines if line is not None]
        if len(reports) < len(lines):
            raise RuntimeError(self._failure or "a process of the benchmark ended early")
        return reports

    def _read(self, rank: int) -> None:
        process = self._running[rank]
        assert process.stdout is not None
        for line in process.stdout:
            self._lines[rank].put(line)
        if process.wait() != 0:
            self._fail(f"process {rank} of the benchmark failed, status {process.returncode}")
        self._lines[rank].put(None)

    def _on_late(self) -> None:
        self._fail(f"the benchmark took more than {WORLD_SECONDS_MAX:.0f} s at one world size")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._kill()

    def _kill(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()


def run(
    worlds: list[int],
    sizes: list[int] | None,
    *,
    quick: bool,
    as_json: bool,
    out: Path,
    codecs: list[str] | None = None,
    collectives: list[str] | None = None,
) -> list[Row]:
    """Measures all worlds, at all sizes where none are named; prints and writes the rows."""
    baseline = "gloo" if importlib.util.find_spec("torch") is not None else None
    cases = plan(sorted(sizes or (QUICK_SIZES if quick else SIZES)), quick)
    status = Console(stderr=True)
    if baseline is None:
        status.print("torch is not installed: no baseline (make bench installs it)")
    warn_if_busy(status)
    report = Report(BENCH, out, as_json=as_json)
    for world in worlds:
        chosen = COLLECTIVES if collectives is None else collectives
        for measured in measure(world, baseline, cases, status, codecs or [], chosen):
            report.add(measured)
    picture = out / f"{BENCH}.png"
    loopback_plot.draw(report.rows, picture)
    more = [collective_table(report.rows), codec_table(report.rows)]
    tables = [table(report.rows), *(one for one in more if one is not None)]
    return report.finish(*tables, picture=picture)


def warn_if_busy(status: Console) -> None:
    """A library with more threads gets more of a busy machine: the ratios would say nothing."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 4:
        status.print(
            f"the machine is busy: load {load:.1f} on {cores} cores; large sizes will mislead"
        )


def measure(
    world: int,
    baseline: str | None,
    cases: list[Case],
    status: Console,
    codecs: list[str],
    collectives: list[str],
) -> Iterator[list[Row]]:
    """The rows of one world, size by size."""
    libraries = ["pccl", *([baseline] if baseline else [])]
    peaks = {name: measure_peaks(world, name, cases) for name in libraries}
    others = [collective for collective in collectives if collective != COLLECTIVES[0]]
    with Processes("time", world, [*libraries, "tcp"], cases, codecs, others) as processes:
        processes.introduce()
        for index, case in enumerate(cases):
            reports = processes.reports()
            status.print(f"world {world}, {common.size_name(case.size)}: measured", highlight=False)
            yield [
                *time_rows(world, case, reports, baseline, [COLLECTIVES[0], *others]),
                *codec_rows(world, case, reports, codecs, [COLLECTIVES[0], *others]),
                peak_row(world, case, {name: peaks[name][index] for name in libraries}, baseline),
            ]


def measure_peaks(world: int, library: str, cases: list[Case]) -> list[int]:
    """Peak memory of one library alone at each size: of the process that took most."""
    with Processes("memory", world, [library], cases) as processes:
        processes.introduce()
        return [max(report["peak"] for report in processes.reports()) for _ in cases]


def time_rows(
    world: int,
    case: Case,
    reports: list[dict[str, Any]],
    baseline: str | None,
    collectives: list[str],
) -> list[Row]:
    """What the samples of one size come to."""
    rows: list[Row] = []
    compared = ["pccl", *([baseline] if baseline else [])]
    for collective in collectives:
        keys = {name: key_of(name, collective) for name in compared}
        values = values_of(world, case, reports, collective, keys)
        for metric, (unit, of) in values.items():
            rows.append(row(world, case, metric, unit, of, baseline, collective))
    ceiling = common.case_name("tcp_ring", "bytes", "none", world, case.size)
    values = values_of(world, case, reports, COLLECTIVES[0], {"tcp": "tcp"})
    rows += [Row(BENCH, ceiling, metric, of["tcp"], unit) for metric, (unit, of) in values.items()]
    return rows


def values_of(
    world: int,
    case: Case,
    reports: list[dict[str, Any]],
    collective: str,
    keys: dict[str, str],
) -> dict[str, tuple[str, dict[str, float]]]:
    """Unit and value of each metric, by library. `keys`: where its samples are in the reports."""
    gigabytes = case.size / common.GIGABYTE
    traffic = TRAFFIC[collective](world) * gigabytes
    seconds = {name: seconds_of(case, reports, key) for name, key in keys.items()}
    cpu = {name: cpu_seconds_of(case, reports, key) for name, key in keys.items()}
    return {
        "seconds": ("s", seconds),
        "bus_bandwidth": ("GB/s", {name: traffic / seconds[name] for name in seconds}),
        "cpu_seconds_per_gb": ("s/GB", {name: cpu[name] / gigabytes for name in cpu}),
    }


def codec_rows(
    world: int,
    case: Case,
    reports: list[dict[str, Any]],
    codecs: list[str],
    collectives: list[str],
) -> list[Row]:
    """Ours with each codec, beside ours without one."""
    return [
        Row(
            BENCH,
            common.case_name(collective, "f32", codec, world, case.size),
            "seconds",
            seconds_of(case, reports, key_of(codec, collective)),
            "s",
            "none",
            seconds_of(case, reports, key_of("pccl", collective)),
        )
        for collective in collectives
        for codec in codecs
    ]


def peak_row(world: int, case: Case, peaks: dict[str, int], baseline: str | None) -> Row:
    """The row of peak memory at one size."""
    values = {name: float(peak) for name, peak in peaks.items()}
    return row(world, case, "peak_memory_bytes", "B", values, baseline, COLLECTIVES[0])


def row(
    world: int,
    case: Case,
    metric: str,
    unit: str,
    of: dict[str, float],
    baseline: str | None,
    collective: str,
) -> Row:
    """Our value beside the baseline's."""
    name = common.case_name(collective, "f32", "none", world, case.size)
    return Row(BENCH, name, metric, of["pccl"], unit, baseline, of[baseline] if baseline else None)


def seconds_of(case: Case, reports: list[dict[str, Any]], library: str) -> float:
    """Median time of one call: from the last process that enters to the last that leaves."""
    by_sample = zip(*(report[library] for report in reports), strict=True)
    spans: list[float] = [
        max(one["end"] for one in sample) - max(one["begin"] for one in sample)
        for sample in by_sample
    ]
    return statistics.median(spans) / case.iterations


def cpu_seconds_of(case: Case, reports: list[dict[str, Any]], library: str) -> float:
    """Median CPU time of one call, of all processes together."""
    by_sample = zip(*(report[library] for report in reports), strict=True)
    sums: list[float] = [sum(one["cpu"] for one in sample) for sample in by_sample]
    return statistics.median(sums) / case.iterations


def table(rows: list[Row]) -> Table:
    """The rows for people: one line for each world and size, ours and the baseline side by side."""
    baseline = next((one.baseline for one in rows if one.baseline is not None), "baseline")
    made = Table(
        title="all_reduce of f32 over loopback",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    headings = ["n", "size", "ms", baseline, "ratio", "GB/s", "TCP"]
    headings += ["s/GB", baseline, "MiB", baseline]
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    by_name = {(one.case, one.metric): one for one in rows}
    for one in rows:
        collective, *_, world, size = one.case.split("/")
        if collective != "all_reduce" or one.metric != "seconds" or one.baseline == "none":
            continue
        rate, cpu, peak = (by_name[one.case, metric] for metric in METRICS[1:])
        ceiling = by_name[one.case.replace("all_reduce/f32", "tcp_ring/bytes"), "bus_bandwidth"]
        made.add_row(
            world.removeprefix("w"),
            size,
            *(significant(value, 1e3) for value in (one.value, one.baseline_value)),
            significant(one.ratio),
            *(significant(value) for value in (rate.value, ceiling.value)),
            *(significant(value) for value in (cpu.value, cpu.baseline_value)),
            *(significant(value, 1 / MIB) for value in (peak.value, peak.baseline_value)),
        )
    return made


def collective_table(rows: list[Row]) -> Table | None:
    """The collectives beside all_reduce; None where none was measured."""
    others = COLLECTIVES[1:]
    timed = [
        one
        for one in rows
        if one.metric == "seconds" and one.case.split("/")[0] in others and one.baseline != "none"
    ]
    if not timed:
        return None
    baseline = next((one.baseline for one in timed if one.baseline is not None), "baseline")
    made = Table(
        title="other collectives of f32",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("n", "size", "collective", "ms", baseline, "ratio", "GB/s"):
        made.add_column(heading, justify="right", no_wrap=True)
    rates = {one.case: one.value for one in rows if one.metric == "bus_bandwidth"}
    for one in timed:
        collective, *_, world, size = one.case.split("/")
        made.add_row(
            world.removeprefix("w"),
            size,
            collective,
            significant(one.value, 1e3),
            significant(one.baseline_value, 1e3),
            significant(one.ratio),
            significant(rates[one.case]),
        )
    return made


def codec_table(rows: list[Row]) -> Table | None:
    """Times with codecs, and their ratio to ours without one; None where none was measured."""
    encoded = [one for one in rows if one.baseline == "none"]
    if not encoded:
        return None
    made = Table(
        title="with a codec, over the time without",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("n", "size", "collective", "codec", "ms", "without", "ratio"):
        made.add_column(heading, justify="right", no_wrap=True)
    for one in encoded:
        collective, _, codec, world, size = one.case.split("/")
        made.add_row(
            world.removeprefix("w"),
            size,
            collective,
            codec,
            significant(one.value, 1e3),
            significant(one.baseline_value, 1e3),
            significant(one.ratio),
        )
    return made


def significant(value: float | None, scale: float = 1.0) -> str:
    """A value in another unit, three digits or, where it is small, one; nothing for none."""
    if value is None:
        return ""
    scaled = value * scale
    return (
        f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.3g}" if scaled >= 0.1 else f"{scaled:.1g}"
    )
