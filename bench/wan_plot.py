"""The pictures of the benchmark of long links, which wan_measure.py has drawn.

`wan.png` shows the share of the bound that each case reaches, `wan-plans.png` the links that were
measured in each case and the plan that was chosen by them.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bench.common import Row
from bench.loopback_plot import BASELINES, OURS, STYLE
from bench.wan_cases import Case

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


COLUMNS = 3
INCHES_A_PANEL = 3.1


def draw_plans(planned: list[tuple[Case, dict[str, Any]]], path: Path) -> None:
    """Draws a panel for each case, of the epoch that the coordinator's status had at its end."""
    lines = -(-len(planned) // COLUMNS)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        size = (INCHES_A_PANEL * COLUMNS, 0.9 + (INCHES_A_PANEL + 0.5) * lines)
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        grid = figure.subplots(lines, COLUMNS, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place < len(planned):
                draw_plan(axes, *planned[place])
            else:
                axes.set_axis_off()
        figure.suptitle("Measured links, in Mbit/s, and the plan for 64 MiB", fontweight="bold")
        figure.supxlabel(
            "from the rank of the line to that of the column; framed: links of the ring; "
            f"in brackets: shares of the direct schedule\npython -m bench wan, {machine()}",
            fontsize=8,
        )
        figure.savefig(path)


def draw_plan(axes: Axes, case: Case, epoch: dict[str, Any]) -> None:
    """The rate of each link as a colour and a number, and the plan over it."""
    count = len(epoch["members"])
    rates = rates_of(epoch)
    known = [rate for line in rates for rate in line if rate]
    axes.imshow(
        [[rate or float("nan") for rate in line] for line in rates],
        cmap="YlGnBu",
        norm=LogNorm(min(known, default=1.0) / 2, 2 * max(known, default=1.0)),
    )
    for source in range(count):
        for target in range(count):
            rate = rates[source][target]
            text = "" if source == target else f"{rate:.0f}" if rate else "?"
            axes.text(target, source, text, ha="center", va="center", fontsize=8)
    order, is_ring = epoch["order"], epoch["plan"] == "ring"
    if is_ring:
        for source, target in zip(order, order[1:] + order[:1], strict=True):
            frame = (target - 0.46, source - 0.46)
            axes.add_patch(
                Rectangle(frame, 0.92, 0.92, fill=False, edgecolor="#D55E00", linewidth=2.2)
            )
    labels = list(map(str, range(count)))
    if not is_ring:
        shares = epoch["shares"] or [1] * count
        labels = [f"{rank}  ({share})" for rank, share in enumerate(shares)]
    axes.set_yticks(range(count), labels)
    axes.set_xticks(range(count))
    axes.tick_params(length=0)
    axes.set_title(case.name, loc="left", fontweight="bold")
    way = "ring " + " ".join(map(str, order)) if is_ring else "direct"
    predicted = epoch.get("planned", {}).get("predicted_ns", 0) / 1e9
    axes.set_xlabel(f"{way}: {predicted:.3g} s predicted" if predicted else way)


def rates_of(epoch: dict[str, Any]) -> list[list[float]]:
    """Mbit/s from each rank to each other; 0: not known."""
    count = len(epoch["members"])
    rates = [[0.0] * count for _ in range(count)]
    for member in epoch["members"]:
        for link in member.get("links", []):
            rates[member["rank"]][link["rank"]] = link["rate"] * 8 / 1e6
    return rates


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
