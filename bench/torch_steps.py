"""torch: torch.distributed over PCCL against gloo, on one machine, in one run.

It owns the plan, the processes, and what their samples come to; in each of the two processes runs
`torch_worker.py`.

How it measures. Each process holds a group of ours and one of gloo, is pinned to its cores before
either starts a thread, and computes with one thread. At each case the libraries take turns, sample
by sample. A sample begins after a barrier of gloo and times a few calls, from the last process that
entered to the last that left. The value is the median, after three calls to warm up. The sums of an
all_reduce, and the parameters that both have trained, are checked: who is fast and wrong gets no
row, but an error.

    seconds           of one call: an all_reduce through torch.distributed, or a step of training
    overhead_seconds  of the same, less that of pccl_py for the same memory
    compute_seconds   of a step of DDP in one process, which moves nothing
    moves_seconds     of its gradients alone, bucket by bucket
    overlap_share     of DDP's moving, the part that the computing hides:
                      (compute_seconds + moves_seconds - seconds) / moves_seconds
    cpu_of_others     what other programs of this machine had of its cores meanwhile, as a share of
                      all; above 0.1 the run does not count, which is said on standard error

The cases of int8 go through a line of 100 Mbit/s between two network namespaces (torch_link.py),
gloo's gradients as f32 and ours with int8 and error feedback. A loss, and what it costs:
`torch_kill.py`; under torchft: `torch_ft.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import together, torch_ft, torch_kill, torch_link
from bench.common import Row
from bench.report import Report
from bench.torch_places import environments
from bench.torch_plan import Case, plan, to_json
from harness.child import held_port

BENCH = "torch"
MEGABITS = 100
LINE_SECONDS_MAX = 1200.0
OTHERS_MAX = 0.1


def run(
    kinds: list[str], sizes: list[int] | None, *, quick: bool, as_json: bool, out: Path
) -> list[Row]:
    """Measures the kinds of CASES that are named; prints and writes the rows."""
    status = Console(stderr=True)
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("the benchmark of torch.distributed needs torch: make bench")
    report = Report(BENCH, out, as_json=as_json)
    near = [kind for kind in kinds if kind in ("all_reduce", "ddp", "fsdp")]
    for case in plan(near, quick, sizes):
        report.add(_case(case, None, status))
    if "coded" in kinds:
        if reason := torch_link.missing():
            status.print(f"not measured, over {MEGABITS} Mbit/s: {reason}")
        else:
            with torch_link.Line(MEGABITS) as line:
                for case in plan(["coded"], quick):
                    report.add(_case(case, line, status))
    if "kill" in kinds:
        report.add(torch_kill.run(quick=quick))
    if "torchft" in kinds:
        if lacks := torch_ft.missing():
            status.print(f"not measured, a kill under torchft: {lacks}")
        else:
            report.add(torch_ft.run(quick=quick))
    return report.finish(_table(report.rows))


def _case(case: Case, line: torch_link.Line | None, status: Console) -> list[Row]:
    """The rows of one case, from two processes of its own."""
    before, began = together.busy_seconds(), time.monotonic()
    reports = [json.loads(told) for told in _tellings(case, line)]
    wall = time.monotonic() - began
    # Children that were reaped: all that the processes have used, imports too.
    others = max(0.0, together.busy_seconds() - before) / (wall * (os.cpu_count() or 1))
    name = case.name if line is None else f"{case.name}/{MEGABITS}Mbit"
    if others > OTHERS_MAX:
        status.print(f"{name} does not count: others had {others:.0%} of the cores meanwhile")
    times = {
        contender: together.seconds([told["samples"][contender] for told in reports])
        / case.iterations
        for contender in reports[0]["samples"]
    }
    return [*_rows(name, times), Row(BENCH, name, "cpu_of_others", others, "share")]


def _rows(name: str, times: dict[str, float]) -> list[Row]:
    ours, theirs = times["pccl"], times["gloo"]
    rows = [Row(BENCH, name, "seconds", ours, "s", "gloo", theirs)]
    if "pccl_py" in times:
        rows.append(Row(BENCH, name, "overhead_seconds", ours - times["pccl_py"], "s"))
    if "compute" in times:
        compute, moves = times["compute"], [times[f"{who}/moves"] for who in ("pccl", "gloo")]
        shares = [
            (compute + move - step) / move for move, step in zip(moves, (ours, theirs), strict=True)
        ]
        rows += [
            Row(BENCH, name, "compute_seconds", compute, "s"),
            Row(BENCH, name, "moves_seconds", moves[0], "s", "gloo", moves[1]),
            Row(BENCH, name, "overlap_share", shares[0], "share", "gloo", shares[1]),
        ]
    return rows


def _tellings(case: Case, line: torch_link.Line | None) -> list[str]:
    """A line of each process. Raises RuntimeError if one fails."""
    command = [sys.executable, "-m", "bench.torch_worker", to_json([case])]
    with held_port() as held:
        places = environments(held.getsockname()[1], line)
        commands = [[*(line.prefix(rank) if line else []), *command] for rank in range(len(places))]
        return together.last_lines(case.name, commands, places, LINE_SECONDS_MAX)


def _table(rows: list[Row]) -> Table:
    made = Table(title="torch.distributed over PCCL against gloo")
    for column in ("case", "metric", "ours", "gloo", "ratio"):
        made.add_column(column, justify="left" if column in ("case", "metric") else "right")
    for row in rows:
        theirs = "" if row.baseline_value is None else f"{row.baseline_value:.6f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        made.add_row(row.case, row.metric, f"{row.value:.6f}", theirs, ratio)
    return made
