"""cores: all_reduce between two peers on 1, 2, 4, 8 cores each, against gloo and bare TCP.

It owns the plan, and what samples come to. In each process runs `cores_worker.py`; how processes
are started, and how libraries take turns sample by sample, is told in `loopback.py`.

Each process is pinned to its cores before a thread starts. It holds PCCL once without workers, by
PCCL_WORKERS=0, and once for each other number of them, a gloo group, and as many bare TCP streams
as it has cores. A case is collective/dtype/codec/world/size/cores/workers, as
all_reduce/f32/none/w2/256MiB/c4/t3. int8 is rotated. The case of bf16 is an average, which gloo
does as a sum and a division; gloo has no codec, so beside int8 are its f32.

    bus_bandwidth       bytes of the size by the time, as NCCL's tests define it; beside gloo's, and
                        beside that of the streams
    cpu_seconds_per_gb  CPU seconds of all threads of both processes, for 10^9 bytes of the size;
                        beside the same
    seconds             of one call, beside that without workers: on cores that are all busy it says
                        what workers cost

The values are medians.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import common
from bench.common import MIB, Row
from bench.cores_worker import KINDS, PREFIX, Kind
from bench.loopback import (
    Processes,
    cpu_seconds_of,
    gloo_here,
    seconds_of,
    significant,
    warn_if_busy,
)
from bench.loopback_libraries import Case
from bench.report import Report
from pccl_py.measure_collectives import TRAFFIC

BENCH = "cores"
WORLD = 2
CORES = [1, 2, 4, 8]
SIZE = 256 * MIB
QUICK_SIZE = 1 * MIB
SAMPLES = 9
WORKERS_MAX = 8  # as the library chooses by itself (engine/net/worker.zig)


def run(
    cores: list[int] | None,
    workers: list[int] | None,
    sizes: list[int] | None,
    *,
    quick: bool,
    as_json: bool,
    out: Path,
) -> list[Row]:
    """Measures on each number of cores that this machine has; prints and writes the rows."""
    status = Console(stderr=True)
    gloo = gloo_here(status)
    warn_if_busy(status)
    default = [QUICK_SIZE if quick else SIZE]
    cases = [Case(size, 1, 2 if quick else SAMPLES) for size in sizes or default]
    report = Report(BENCH, out, as_json=as_json)
    for count in cores_here(cores or CORES, status):
        numbers = sorted({0, *(workers or [workers_on(count)])})
        for measured in measure(count, numbers, gloo, cases):
            report.add(measured)
        status.print(f"{count} cores for each peer: measured", highlight=False)
    return report.finish(table(report.rows))


def cores_here(wanted: list[int], status: Console) -> list[int]:
    """Those that there are twice; says which are left out."""
    found = len(os.sched_getaffinity(0))
    fitting = [count for count in wanted if WORLD * count <= found]
    if len(fitting) < len(wanted):
        missing = ", ".join(str(count) for count in wanted if count not in fitting)
        status.print(f"{found} cores are too few for two peers with {missing}", highlight=False)
    return fitting


def workers_on(cores: int) -> int:
    """As the library chooses by itself, but on one or two cores one, to show what it costs."""
    return min(max(1, cores - 1), WORKERS_MAX)


def measure(
    cores: int, workers: list[int], gloo: list[str], cases: list[Case]
) -> Iterator[list[Row]]:
    """The rows of one number of cores, size by size."""
    libraries = [*(f"{PREFIX}{number}" for number in workers), *gloo, "tcp"]
    with Processes(
        "time", WORLD, libraries, cases, program="bench.cores_worker", cores=cores
    ) as processes:
        processes.introduce()
        for case in cases:
            reports = processes.reports()
            yield [
                row
                for kind in KINDS
                for number in workers
                for row in rows_of(case, reports, kind, cores, number)
            ]


def rows_of(
    case: Case, reports: list[dict[str, Any]], kind: Kind, cores: int, workers: int
) -> Iterator[Row]:
    """Ours with one number of workers, beside everything that was measured with it."""
    collective = "all_reduce"
    size = common.case_name(collective, kind.dtype, kind.codec, WORLD, case.size)
    name = f"{size}/c{cores}/t{workers}"
    gigabytes = case.size / common.GIGABYTE
    traffic = TRAFFIC[collective](WORLD) * gigabytes
    own = f"{PREFIX}{workers}/{kind.name}"
    seconds = seconds_of(case, reports, own)
    cpu = cpu_seconds_of(case, reports, own)
    plain = f"{kind.dtype}/none"
    others = {"gloo": f"gloo/{plain}", "tcp": f"tcp/{KINDS[0].name}"}
    for other, key in others.items():
        if key not in reports[0]:
            continue
        theirs = traffic / seconds_of(case, reports, key)
        yield Row(BENCH, name, "bus_bandwidth", traffic / seconds, "GB/s", other, theirs)
        theirs = cpu_seconds_of(case, reports, key) / gigabytes
        yield Row(BENCH, name, "cpu_seconds_per_gb", cpu / gigabytes, "s/GB", other, theirs)
    if workers:
        without = seconds_of(case, reports, f"{PREFIX}0/{kind.name}")
        yield Row(BENCH, name, "seconds", seconds, "s", "t0", without)


def table(rows: list[Row]) -> Table:
    """For people: a line for each case; the ratio is that of the times to those without workers."""
    made = Table(
        title="all_reduce between two peers",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    headings = ["kind", "size", "cores", "threads", "GB/s", "gloo", "TCP"]
    for heading in [*headings, "s/GB", "gloo", "TCP", "ratio"]:
        made.add_column(heading, justify="right", no_wrap=True)
    by_name = {(one.case, one.metric, one.baseline): one for one in rows}
    for case in dict.fromkeys(one.case for one in rows):
        _, dtype, codec, _, size, cores, workers = case.split("/")
        cells: list[str] = []
        for metric in ("bus_bandwidth", "cpu_seconds_per_gb"):
            of = [by_name.get((case, metric, other)) for other in ("gloo", "tcp")]
            cells.append(significant(next(one.value for one in of if one)))
            cells += [significant(one.baseline_value if one else None) for one in of]
        beside = by_name.get((case, "seconds", "t0"))
        cells.append(significant(beside.ratio if beside else None))
        made.add_row(f"{dtype}/{codec}", size, cores[1:], workers[1:], *cells)
    return made
