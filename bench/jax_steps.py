"""jax: what a collective inside of a jitted program costs, on one machine, in one run.

It owns the plan, the processes, and what their samples come to; in each process runs
`jax_worker.py`, pinned to its cores before any library starts a thread. At each case the contenders
take turns, sample by sample, each sample after a barrier; the value is the median, from the last
process that entered to the last that left, after three calls to warm up. Sums are checked: who is
fast and wrong gets no row, but an error.

    dispatch/N     programs of N foreign calls of 4 KiB, in one process alone:
      call_seconds     a jitted all_reduce in a world of one, beside an identity through FFI
      handler_seconds  the same, less an ordered identity and less pccl_py's all_reduce
      effect_seconds   an identity that has an order, less one that has none
    all_reduce     of two processes, inside of jit:
      seconds          beside `psum` of JAX over gloo, of the same two processes
      seconds_plain    the same, beside pccl_py from one array into another
      seconds_new      the same, beside pccl_py into an array that is made for each call
      seconds_donated  of an array that is donated, beside pccl_py in place
    overlap/SIZE   of two processes, one program with a transfer and other work, 1.5 times as long:
      hidden_share     of the transfer: what start and done save of the time of a blocking call,
                       by the time that the transfer takes alone
    compile/10     a scan with ten collectives, lowered and compiled, beside ten identities

All but compile are seconds of one call. `cpu_of_others` is what other programs of this machine had
of its cores meanwhile; above 0.1 the case does not count, and an overlap does not where a process
has fewer than two cores, one to compute and one to transfer. Standard error says so.
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

import pccl_py as pccl
from bench import common, together
from bench.common import Row
from bench.jax_plan import Case, plan
from bench.report import Report
from harness.child import held_port

BENCH = "jax"
CASE_SECONDS_MAX = 1200.0
OTHERS_MAX = 0.1


def run(
    kinds: list[str], sizes: list[int] | None, *, quick: bool, as_json: bool, out: Path
) -> list[Row]:
    """Measures the kinds of CASES that are named; prints and writes the rows."""
    if importlib.util.find_spec("jax") is None:
        raise ModuleNotFoundError("the benchmark of JAX needs it: pip install '.[jax]'")
    report, status = Report(BENCH, out, as_json=as_json), Console(stderr=True)
    for case in plan(kinds, quick, sizes):
        report.add(_case(case, status))
    return report.finish(_table(report.rows))


def _case(case: Case, status: Console) -> list[Row]:
    """The rows of one case, from processes of its own."""
    before, began = together.busy_seconds(), time.monotonic()
    command = [sys.executable, "-m", "bench.jax_worker", case.to_json()]
    with (
        pccl.Coordinator(bind="127.0.0.1:0", initial_world_size=case.world) as coordinator,
        held_port() as held,
    ):
        places = environments(case.world, coordinator.token, held.getsockname()[1])
        if case.kind == "overlap":  # XLA leaves a core to the transfer
            for place in places:
                place["NPROC"] = str(max(1, cores_each(case) - 1))
        lines = together.last_lines(case.name, [command] * case.world, places, CASE_SECONDS_MAX)
    wall = time.monotonic() - began
    others = max(0.0, together.busy_seconds() - before) / (wall * (os.cpu_count() or 1))
    if others > OTHERS_MAX:
        status.print(f"{case.name} does not count: others had {others:.0%} of the cores meanwhile")
    if case.kind == "overlap" and cores_each(case) < 2:
        status.print(
            f"{case.name} does not count: each process has {cores_each(case)} core, and needs one "
            "to compute and one to transfer"
        )
    reports = [json.loads(line)["samples"] for line in lines]
    calls = case.iterations * (case.calls if case.kind == "dispatch" else 1)
    times = {
        contender: together.seconds([told[contender] for told in reports]) / calls
        for contender in reports[0]
    }
    return [*rows(case, times), Row(BENCH, case.name, "cpu_of_others", others, "share")]


def rows(case: Case, times: dict[str, float]) -> list[Row]:
    """Rows that the times of a case's contenders come to."""
    ours = times["pccl_jax"]
    if case.kind == "compile":
        return [Row(BENCH, case.name, "seconds", ours, "s", "identity", times["identity"])]
    if case.kind == "overlap":
        saved = times["blocking"] - times["overlapped"]
        return [
            Row(BENCH, case.name, "hidden_share", saved / ours, "share"),
            Row(
                *(BENCH, case.name, "seconds", times["overlapped"], "s"),
                *("blocking", times["blocking"]),
            ),
        ]
    plain = times["pccl_py"]
    if case.kind == "all_reduce":
        return [
            Row(BENCH, case.name, "seconds", ours, "s", "psum", times["psum"]),
            Row(BENCH, case.name, "seconds_plain", ours, "s", "pccl_py", plain),
            Row(BENCH, case.name, "seconds_new", ours, "s", "pccl_py", times["new_memory"]),
            Row(
                *(BENCH, case.name, "seconds_donated", times["donated"], "s"),
                *("pccl_py", times["in_place"]),
            ),
        ]
    identity, ordered = times["identity"], times["ordered"]
    return [
        Row(BENCH, case.name, "call_seconds", ours, "s", "identity", identity),
        Row(BENCH, case.name, "handler_seconds", ours - ordered - plain, "s"),
        Row(BENCH, case.name, "effect_seconds", ordered - identity, "s"),
    ]


def cores_each(case: Case) -> int:
    """The cores of each process of a case."""
    return len(common.cores_of(0, case.world))


def environments(world: int, token: str, port: int) -> list[dict[str, str]]:
    """How the processes of one world find each other, in a run and in JAX, at `port`."""
    shared = {
        "PCCL_TOKEN": token,
        "PCCL_BIND": "127.0.0.1:0",
        "PCCL_INITIAL_WORLD_SIZE": str(world),
        "JAX_COORDINATOR": f"127.0.0.1:{port}",
        "JAX_PLATFORMS": "cpu",
    }
    return [{**shared, "RANK": str(rank)} for rank in range(world)]


def _table(measured: list[Row]) -> Table:
    made = Table(title="Collectives inside of jit")
    for column in ("case", "metric", "µs", "against", "µs", "ratio"):
        made.add_column(
            column, justify="left" if column in ("case", "metric", "against") else "right"
        )
    for row in measured:
        if row.metric == "hidden_share":
            made.add_row(row.case, row.metric, "", "", "", f"{row.value:.2f}")
        if row.unit != "s":
            continue
        theirs = "" if row.baseline_value is None else f"{row.baseline_value * 1e6:.1f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        ours = f"{row.value * 1e6:.1f}"
        made.add_row(row.case, row.metric, ours, row.baseline or "", theirs, ratio)
    return made
