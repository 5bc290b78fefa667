"""The picture of the benchmark of long links: the share of the bound that each case reaches.

It owns `wan.png`; the rows it draws are made in `wan_measure.py`.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from bench.common import Row
from bench.loopback_plot import BASELINES, OURS, STYLE

INCHES_A_CASE = 0.42
INCHES_BESIDE = 1.9


def draw(rows: list[Row], path: Path) -> None:
    """Draws all cases that have rows: our share and gloo's, and the aim."""
    cases = list(dict.fromkeys(row.case for row in rows))
    places = range(len(cases))
    shares = {row.case: row for row in rows if row.metric == "share"}
    theirs = gloo_shares(rows)
    with matplotlib.rc_context(STYLE):
        height = INCHES_BESIDE + INCHES_A_CASE * len(cases)
        figure = Figure(figsize=(8.0, height), dpi=150, layout="constrained")
        axes = figure.subplots()
        axes.grid(axis="y", visible=False)
        ours = [shares[case].value for case in cases]
        axes.barh(places, ours, 0.4, color=OURS["color"], label=OURS["label"])
        for place, case in enumerate(cases):
            share = shares[case]
            beyond = max(share.value, share.baseline_value or 0.0)  # the mark of the aim
            axes.text(beyond + 0.01, place, f"{share.value:.0%}", va="center")
        axes.barh(
            [place + 0.35 for place, case in enumerate(cases) if case in theirs],
            [theirs[case] for case in cases if case in theirs],
            0.25,
            color=BASELINES[0]["color"],
            label="gloo, four groups" if theirs else None,
        )
        aims = [(place, shares[case].baseline_value) for place, case in enumerate(cases)]
        wanted = [(place, aim) for place, aim in aims if aim is not None]
        axes.plot(
            [aim for _, aim in wanted],
            [place for place, _ in wanted],
            "k|",
            markersize=14,
            markeredgewidth=1.6,
            label="aim" if wanted else None,
        )
        axes.set_yticks(places, [case.rsplit("/", 1)[1] for case in cases])
        axes.invert_yaxis()
        axes.set_xlim(0.0, max(1.0, *(share + 0.1 for share in ours)))
        axes.xaxis.set_major_formatter("{x:.0%}")
        axes.set_xlabel("least time that the network allows / time of the slowest rank")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        figure.suptitle("One operation over emulated long links", fontweight="bold")
        figure.supxlabel(f"python -m bench wan, {machine()}, {datetime.now(UTC):%F}", fontsize=8)
        figure.savefig(path)


def gloo_shares(rows: list[Row]) -> dict[str, float]:
    """The share that gloo reaches in each case in which it was measured."""
    seconds = [row for row in rows if row.metric == "seconds"]
    bounds = {row.case: row.baseline_value for row in seconds if row.baseline == "bound"}
    return {
        row.case: (bounds[row.case] or 0.0) / row.baseline_value
        for row in seconds
        if row.baseline == "gloo" and row.baseline_value
    }


def machine() -> str:
    """The system of this machine, its processor, and the cores that this process may use."""
    system = platform.uname()
    cores = len(os.sched_getaffinity(0))
    kernel = f"{system.system} {system.release.split('-')[0]}"
    return f"{kernel} on {cores} cores of {processor() or system.machine}"


def processor() -> str:
    """As Linux calls it; empty where nothing says so."""
    said = Path("/proc/cpuinfo")
    lines = said.read_text().splitlines() if said.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""
