"""planner: the time of the chosen plan on random links, beside other rings and the bound.

The measurement is a program of its own, engine/plan/bench.zig, which this file builds, gives the
matrices, and reads. A world has links and members of any rate from 20 to 1000 Mbit/s, each rate as
likely as its double, and places on a map of which the farthest are 250 ms apart. All rates are
known, so a value is what the planner predicts; `python -m bench wan` measures predictions.

    time      of an all_reduce of 64 MiB, the median over the worlds, beside the ring of the ranks
              (`ranks`), the ring with the least sum of 1 / rate, as PCCL 1.0 chooses it (`costs`),
              and the least time of any schedule (`bound`); a world's ratio is taken first
    search    the processor time of a plan, the median and the most
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from bench.common import Row
from bench.report import Report

BENCH = "planner"
ROOT = Path(__file__).resolve().parents[1]
PREFIX = ROOT / ".zig-cache" / "planner-bench"
MEMBERS = [4, 8, 12, 16, 32]
WORLDS, QUICK_WORLDS = 100, 4
MBIT = 125_000
FARTHEST_NS = 250_000_000
BASELINES = {"ranks": "rank order", "costs": "sum of costs", "bound": "bound"}

Rates = NDArray[np.uint64]


def build() -> Path:
    """Compiles the measurement; the program."""
    command = [sys.executable, "-m", "ziglang", "build", "planner-bench"]
    command += ["-Doptimize=ReleaseSafe", "--prefix", str(PREFIX)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    return PREFIX / "bin" / "planner-bench"


def world(members: int, random: np.random.Generator) -> tuple[Rates, Rates, Rates, Rates]:
    """Uplinks, downlinks, the rates of links, and their round trips."""

    def rates(*shape: int) -> Rates:
        drawn = MBIT * np.exp(random.uniform(np.log(20), np.log(1000), shape))
        return drawn.astype(np.uint64)

    places = random.uniform(0, 1, (members, 2))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2) / np.sqrt(2)
    trips = (apart * FARTHEST_NS + 1_000_000).astype(np.uint64)
    return rates(members), rates(members), rates(members, members), trips


def text_of(up: Rates, down: Rates, links: Rates, trips: Rates) -> str:
    """A world as the program reads it."""
    lines = [f"{len(up)}", " ".join(map(str, up)), " ".join(map(str, down))]
    for rates, round_trips in zip(links, trips, strict=True):
        lines += [" ".join(map(str, rates)), " ".join(map(str, round_trips))]
    return "\n".join(lines) + "\n"


def plans_of(texts: list[str]) -> list[dict[str, Any]]:
    """The plan of each world, as the program tells it."""
    done = subprocess.run(
        [str(build())], input="".join(texts), check=True, stdout=subprocess.PIPE, text=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_of(members: int, plans: list[dict[str, Any]]) -> Iterator[Row]:
    """The times beside each baseline, and of the search."""
    case = f"n{members}"
    seconds = statistics.median(plan["predicted_ns"] for plan in plans) / 1e9
    for key, name in BASELINES.items():
        ratio = statistics.median(plan["predicted_ns"] / plan[f"{key}_ns"] for plan in plans)
        yield Row(BENCH, case, "time", seconds, "s", name, seconds / ratio)
    searches = [plan["search_ns"] / 1e9 for plan in plans]
    yield Row(BENCH, case, "search", statistics.median(searches), "s")
    yield Row(BENCH, case, "search_most", max(searches), "s")
    direct = sum(plan["plan"] == "direct" for plan in plans) / len(plans)
    yield Row(BENCH, case, "direct", direct, "share")


def run(*, quick: bool, as_json: bool, out: Path) -> list[Row]:
    """Measures, prints and writes planner.jsonl into `out`."""
    report = Report(BENCH, out, as_json=as_json)
    random = np.random.default_rng(1)
    for members in MEMBERS:
        worlds = QUICK_WORLDS if quick else WORLDS
        plans = plans_of([text_of(*world(members, random)) for _ in range(worlds)])
        report.add(rows_of(members, plans))
    return report.finish(table(report.rows))


def table(rows: list[Row]) -> Table:
    """For people: a line for each number of members."""
    made = Table(title="The chosen plan, 64 MiB")
    for heading in ("members", *(f"of {name}" for name in BASELINES.values()), "direct", "search"):
        made.add_column(heading, justify="right")
    for case in dict.fromkeys(row.case for row in rows):
        own = [row for row in rows if row.case == case]
        ratios = {row.baseline: row.ratio for row in own if row.metric == "time"}
        values = {row.metric: row.value for row in own}
        made.add_row(
            case[1:],
            *(f"{ratios[name]:.2f}" for name in BASELINES.values()),
            f"{values['direct']:.0%}",
            f"{values['search'] * 1e3:.2g} ms, most {values['search_most'] * 1e3:.2g}",
        )
    return made
