"""loopback: collectives of f32 against gloo and MPI, on one machine, in one run.

It owns the plan, the processes, and what their samples come to; in each process runs
`loopback_worker.py`.

How it measures. Each process holds a PCCL communicator, a gloo group, a communicator of mpi4py and
a ring of bare sockets at once, and is pinned to its cores before any of them starts a thread. At
each size the libraries take turns, sample by sample. A sample begins after a barrier and times a
few calls in place, but for all_to_all, which has a buffer to receive. It counts from the last
process that entered to the last that left, divided by the calls. The value is the median. Where MPI
takes part mpiexec starts the processes; MPI is told to use TCP, as if between machines.

    seconds             of one call
    bus_bandwidth       size / seconds, times TRAFFIC (pccl_py/measure_collectives.py), as NCCL's
                        tests define it; the size of what has shards is that of all shards; in a
                        send_recv each even rank sends the size to the next
    cpu_seconds_per_gb  CPU seconds of all threads of all processes, for 10^9 bytes of the size;
                        the coordinator and gloo's store, which are in rank 0, count
    peak_memory_bytes   the most that a process took beside being idle and its buffer; measured in
                        processes that hold one library only, sizes ascending; of all_reduce
    peak_memory_apart   the same in bytes, of ours with the result in another array, which does not
                        count either; gloo's all_reduce is always in place

There is a row for each baseline that is installed, with our value in each. The rows of tcp_ring are
the ceiling: the same bytes over bare sockets, nothing reduced. Those of a codec have ours without
one as their baseline.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.table import Table

from bench import common, loopback_plot
from bench.common import KIB, MIB, Row
from bench.loopback_libraries import Case, Job, Mpi
from bench.loopback_worker import key_of
from bench.report import Report
from harness.child import Child
from pccl_py.measure_collectives import COLLECTIVES, TRAFFIC, encodes

BENCH = "loopback"
METRICS = (
    "seconds",
    "bus_bandwidth",
    "cpu_seconds_per_gb",
    "peak_memory_bytes",
    "peak_memory_apart",
)
SIZES = [4 * KIB << (2 * step) for step in range(9)]  # 4 KiB to 256 MiB, in steps of four
QUICK_SIZES = [4 * KIB, 1 * MIB]
WORLD_SECONDS_MAX = 3600.0
MPI_TRIAL_SECONDS_MAX = 60.0
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
        *,
        program: str = "bench.loopback_worker",
        cores: int = 0,
    ) -> None:
        self._failure: str | None = None
        self._files: dict[int, TextIO] = {}
        self._lines: list[queue.Queue[str | None]] = [queue.Queue() for _ in range(world)]
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        commands = []
        for rank in range(world):
            chosen = collectives or COLLECTIVES[:1]
            job = Job(purpose, rank, world, libraries, cases, port, codecs or [], chosen, cores)
            commands.append([sys.executable, "-m", program, job.to_json()])
        if "mpi4py" in libraries:
            commands = [under_mpiexec(commands)]
        environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **Mpi.ENVIRONMENT}
        self._running = [
            # Our standard output is for the rows.
            Child(command, heard=tell, environment=environment, log=sys.stderr)
            for command in commands
        ]
        self._threads = [threading.Thread(target=self._read) for _ in range(world)]
        self._threads += [threading.Thread(target=self._await, args=(p,)) for p in self._running]
        self._timer = threading.Timer(WORLD_SECONDS_MAX, self._on_late)

    def __enter__(self) -> Self:
        for thread in (*self._threads, self._timer):
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._fail("the benchmark was left")
        for thread in self._threads:
            thread.join()
        self._timer.cancel()
        self._listener.close()
        for process in self._running:
            process.end()
        if error is None and self._failure is not None:
            raise RuntimeError(self._failure)

    def introduce(self) -> None:
        """Tells each process where the others are."""
        offers = self.reports()
        ports = [offer.get("tcp_port") for offer in offers]
        found = {key: value for offer in offers for key, value in offer.items()}
        for file in self._files.values():
            file.write(json.dumps({**found, "tcp_ports": ports}) + "\n")
            file.flush()

    def reports(self) -> list[dict[str, Any]]:
        """The next report of each process, by rank. Raises RuntimeError when one has failed."""
        lines = [waiting.get() for waiting in self._lines]
        reports = [json.loads(line) for line in lines if line is not None]
        if len(reports) < len(lines):
            raise RuntimeError(self._failure or "a process of the benchmark ended early")
        return reports

    def _read(self) -> None:
        """Takes in one process, whichever comes, and what it tells."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # one has failed before all were there
            return
        with connection, connection.makefile("rw", encoding="utf-8") as file:
            rank = int(file.readline())
            self._files[rank] = file
            try:
                for line in file:
                    self._lines[rank].put(line)
            except ConnectionError:
                pass  # killed; what its end means is told by its status
        for process in self._running:
            if len(self._running) == 1 or process is self._running[rank]:
                self._await(process)
        self._lines[rank].put(None)

    def _await(self, process: Child) -> None:
        """Waits for the end of a process, or of mpiexec with all of them."""
        status = process.wait()
        if status == 0:
            return
        name = f"process {self._running.index(process)} of the benchmark"
        name = name if len(self._running) > 1 else "mpiexec"
        self._fail(f"{name} failed, status {status}")

    def _on_late(self) -> None:
        self._fail(f"the benchmark took more than {WORLD_SECONDS_MAX:.0f} s at one world size")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        for process in self._running:
            process.signal(signal.SIGTERM)  # mpiexec passes it on; the workers have no handler
        with contextlib.suppress(OSError):  # it may have been shut down
            self._listener.shutdown(socket.SHUT_RDWR)
        for waiting in self._lines:
            waiting.put(None)


def tell(line: str) -> None:
    sys.stderr.write(line)


def under_mpiexec(commands: list[list[str]]) -> list[str]:
    """One command that starts all, rank by rank."""
    made = [mpiexec()]
    for command in commands:
        made += [":", "-n", "1", *command] if made[1:] else ["-n", "1", *command]
    return made


def mpiexec() -> str:
    """The program of this environment, if it has one. Raises FileNotFoundError without any."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("mpiexec", path=places)
    if found is None:
        raise FileNotFoundError("there is no mpiexec")
    return found


def baselines_here(status: Console) -> list[str]:
    """The libraries to compare with; says which are missing, and what for."""
    found = gloo_here(status)
    missing = mpi_missing()
    if missing is None:
        found.append("mpi4py")
    else:
        status.print(f"no MPI to compare with (make bench installs one): {missing}")
    return found


def gloo_here(status: Console) -> list[str]:
    """gloo if it is there; says if it is missing."""
    if importlib.util.find_spec("torch") is not None:
        return ["gloo"]
    status.print("torch is not installed: no gloo to compare with (make bench installs it)")
    return []


def mpi_missing() -> str | None:
    """Why mpi4py does not run here; None where it does."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    trial = [sys.executable, "-c", "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2"]
    try:
        done = subprocess.run(
            under_mpiexec([trial, trial]),
            env={**os.environ, **Mpi.ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MPI_TRIAL_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else said[-1] if said else f"status {done.returncode}"


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
    cases = plan(sorted(sizes or (QUICK_SIZES if quick else SIZES)), quick)
    status = Console(stderr=True)
    baselines = baselines_here(status)
    warn_if_busy(status)
    report = Report(BENCH, out, as_json=as_json)
    for world in worlds:
        chosen = COLLECTIVES if collectives is None else collectives
        for measured in measure(world, baselines, cases, status, codecs or [], chosen):
            report.add(measured)
    picture = out / f"{BENCH}.png"
    loopback_plot.draw(report.rows, picture)
    tables = [table(report.rows), collective_table(report.rows)]
    encoded = codec_table(report.rows)
    return report.finish(*tables, *([encoded] if encoded else []), picture=picture)


def warn_if_busy(status: Console) -> None:
    """A library with more threads gets more of a busy machine: the ratios would say nothing."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 4:
        status.print(
            f"the machine is busy: load {load:.1f} on {cores} cores; large sizes will mislead"
        )


def measure(
    world: int,
    baselines: list[str],
    cases: list[Case],
    status: Console,
    codecs: list[str],
    collectives: list[str],
) -> Iterator[list[Row]]:
    """The rows of one world, size by size."""
    libraries = ["pccl", *baselines]
    peaks = {name: measure_peaks("memory", world, name, cases) for name in libraries}
    apart = measure_peaks("memory_apart", world, "pccl", cases)
    others = [collective for collective in collectives if collective != COLLECTIVES[0]]
    with Processes("time", world, [*libraries, "tcp"], cases, codecs, others) as processes:
        processes.introduce()
        for index, case in enumerate(cases):
            reports = processes.reports()
            status.print(f"world {world}, {common.size_name(case.size)}: measured", highlight=False)
            yield [
                *time_rows(world, case, reports, baselines, [COLLECTIVES[0], *others]),
                *codec_rows(world, case, reports, codecs, [COLLECTIVES[0], *others]),
                *peak_rows(
                    world, case, {name: peaks[name][index] for name in libraries}, baselines
                ),
                *peak_rows(world, case, {"pccl": apart[index]}, [], "peak_memory_apart"),
            ]


def measure_peaks(purpose: str, world: int, library: str, cases: list[Case]) -> list[int]:
    """Peak memory of one library alone at each size: of the process that took most."""
    with Processes(purpose, world, [library], cases) as processes:
        processes.introduce()
        return [max(report["peak"] for report in processes.reports()) for _ in cases]


def time_rows(
    world: int,
    case: Case,
    reports: list[dict[str, Any]],
    baselines: list[str],
    collectives: list[str],
) -> list[Row]:
    """The rows of the samples of one size."""
    rows: list[Row] = []
    for collective in collectives:
        keys = {name: key_of(name, collective) for name in ("pccl", *baselines)}
        values = values_of(world, case, reports, collective, keys)
        for metric, (unit, of) in values.items():
            rows += rows_of(world, case, metric, unit, of, baselines, collective)
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
        if encodes(collective)
        for codec in codecs
    ]


def peak_rows(
    world: int,
    case: Case,
    peaks: dict[str, int],
    baselines: list[str],
    metric: str = "peak_memory_bytes",
) -> list[Row]:
    """The rows of peak memory at one size."""
    values = {name: float(peak) for name, peak in peaks.items()}
    return rows_of(world, case, metric, "B", values, baselines, COLLECTIVES[0])


def rows_of(
    world: int,
    case: Case,
    metric: str,
    unit: str,
    of: dict[str, float],
    baselines: list[str],
    collective: str,
) -> list[Row]:
    """Our value beside that of each baseline; alone where there is none."""
    name = common.case_name(collective, "f32", "none", world, case.size)
    ours = of["pccl"]
    if not baselines:
        return [Row(BENCH, name, metric, ours, unit)]
    return [Row(BENCH, name, metric, ours, unit, other, of[other]) for other in baselines]


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
    """all_reduce for people: a line for each world and size, ours and the first baseline's."""
    baseline = next(iter(baselines_of(rows)), None)
    rows = [one for one in rows if one.baseline in (baseline, None)]
    made = Table(
        title="all_reduce of f32 over loopback",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    other = baseline or "baseline"
    headings = ["n", "size", "ms", other, "ratio", "GB/s", "TCP"]
    headings += ["s/GB", other, "MiB", other, "apart"]
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    by_name = {(one.case, one.metric): one for one in rows}
    for one in rows:
        collective, *_, world, size = one.case.split("/")
        if collective != "all_reduce" or one.metric != "seconds":
            continue
        rate, cpu, peak, apart = (by_name[one.case, metric] for metric in METRICS[1:])
        ceiling = by_name[one.case.replace("all_reduce/f32", "tcp_ring/bytes"), "bus_bandwidth"]
        made.add_row(
            world.removeprefix("w"),
            size,
            *(significant(value, 1e3) for value in (one.value, one.baseline_value)),
            significant(one.ratio),
            *(significant(value) for value in (rate.value, ceiling.value)),
            *(significant(value) for value in (cpu.value, cpu.baseline_value)),
            *(
                significant(value, 1 / MIB)
                for value in (peak.value, peak.baseline_value, apart.value)
            ),
        )
    return made


def collective_table(rows: list[Row]) -> Table:
    """All collectives, beside each baseline."""
    made = Table(
        title="collectives of f32 over loopback",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    baselines = baselines_of(rows)
    headings = [heading for other in baselines for heading in (other, "ratio")]
    for heading in ("n", "size", "collective", "ms", *headings, "GB/s"):
        made.add_column(heading, justify="right", no_wrap=True)
    timed: dict[str, dict[str | None, Row]] = {}
    for one in rows:
        plain = one.case.split("/")[0] in COLLECTIVES and one.baseline != "none"
        if plain and one.metric == "seconds":
            timed.setdefault(one.case, {})[one.baseline] = one
    rates = {one.case: one.value for one in rows if one.metric == "bus_bandwidth"}
    for case, by_baseline in timed.items():
        collective, *_, world, size = case.split("/")
        cells = []
        for other in baselines:
            cells += [significant(by_baseline[other].baseline_value, 1e3)]
            cells += [significant(by_baseline[other].ratio)]
        made.add_row(
            world.removeprefix("w"),
            size,
            collective,
            significant(next(iter(by_baseline.values())).value, 1e3),
            *cells,
            significant(rates[case]),
        )
    return made


def baselines_of(rows: list[Row]) -> list[str]:
    """The libraries beside ours, in the order of the rows."""
    return [
        name
        for name in dict.fromkeys(one.baseline for one in rows)
        if name is not None and name != "none"
    ]


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
