"""The picture of the loopback benchmark: bus bandwidth and CPU time over size, a column per world.

It owns `loopback.png`; the rows it draws are made in `loopback.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.common import Row

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8C959F",
    "axes.grid": True,
    "grid.color": "#8C959F",
    "grid.alpha": 0.2,
}
OURS: Any = {"color": "#0072B2", "marker": "o", "linewidth": 2.2, "label": "PCCL"}
# The baselines' looks, in the order of their rows.
BASELINES: list[Any] = [
    {"color": "#E69F00", "marker": "s", "linewidth": 1.6},
    {"color": "#009E73", "marker": "^", "linewidth": 1.6},
]
CEILING: Any = {
    "color": "#8C959F",
    "linestyle": "--",
    "linewidth": 1.4,
    "label": "bare TCP, no sums",
}
PANELS = {
    "bus_bandwidth": "bus bandwidth, GB/s: more is better",
    "cpu_seconds_per_gb": "CPU seconds per GB: less is better",
}


def draw(rows: list[Row], path: Path) -> None:
    """Draws all worlds that have rows."""
    worlds = sorted({world_of(row) for row in rows})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4 * len(worlds), 7.4), dpi=150, layout="constrained")
        grid = figure.subplots(len(PANELS), len(worlds), squeeze=False)
        for column, world in enumerate(worlds):
            for line, (metric, label) in enumerate(PANELS.items()):
                axes = grid[line][column]
                chosen = [row for row in rows if row.metric == metric and world_of(row) == world]
                draw_panel(axes, chosen)
                axes.set_ylabel(label)
                if line == 0:
                    axes.set_title(f"{world} peers", loc="left", fontweight="bold")
                    axes.legend(frameon=False)
        figure.suptitle("all_reduce of f32, sum, over loopback", fontsize=14, fontweight="bold")
        figure.savefig(path)


def draw_panel(axes: Axes, rows: list[Row]) -> None:
    """One metric of one world: a line for each library."""
    ours = [row for row in rows if row.case.startswith("all_reduce/")]
    ceiling = [row for row in rows if row.case.startswith("tcp_ring/")]
    # Ours is in the rows of each baseline.
    values = {size_of(row): row.value for row in ours}
    sizes = list(values)
    places = {size: place for place, size in enumerate(sizes)}
    axes.plot([places[size_of(row)] for row in ceiling], [row.value for row in ceiling], **CEILING)
    names = [name for name in dict.fromkeys(row.baseline for row in ours) if name is not None]
    for name, style in zip(names, BASELINES, strict=False):
        measured = [row for row in ours if row.baseline == name]
        axes.plot(
            [places[size_of(row)] for row in measured],
            [row.baseline_value or 0.0 for row in measured],
            label=name,
            **style,
        )
    axes.plot(range(len(sizes)), list(values.values()), **OURS)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(sizes)), sizes, rotation=35)


def world_of(row: Row) -> int:
    """Peers in the case of a row."""
    return int(row.case.split("/")[3].removeprefix("w"))


def size_of(row: Row) -> str:
    """Size in the case of a row, as it is written there."""
    return row.case.split("/")[4]
