"""The picture of the benchmark of rare exchanges, diloco.png: a panel for each part that has one.

quality    loss over bytes, a point for each method
grid       the share of time that a worker computes over the rate of its link, a panel for each
           size of the model, a line for each method and H
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.common import Row
from bench.loopback_plot import STYLE

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
LINES = ("--", "-")  # of the smallest H, and of the next


def draw(rows: list[Row], path: Path) -> Path | None:
    """The path of the picture; None if no row is of a part that has a panel."""
    quality = [row for row in rows if row.case.startswith("quality/") and row.baseline]
    shares = [row for row in rows if row.case.startswith("grid/") and row.metric == "compute_share"]
    sizes = list(dict.fromkeys(row.case.split("/")[2] for row in shares))
    count = len(sizes) + bool(quality)
    if not count:
        return None
    with matplotlib.rc_context(STYLE):
        width = 7.6 * bool(quality) + 5.0 * len(sizes) + 2.0 * bool(sizes)
        figure = Figure(figsize=(width, 4.8), dpi=150, layout="constrained")
        panels = list(figure.subplots(1, count, squeeze=False)[0])
        if quality:
            draw_quality(panels.pop(0), quality)
        for axes, size in zip(panels, sizes, strict=True):
            draw_shares(axes, size, [row for row in shares if row.case.split("/")[2] == size])
        if panels:
            lines, labels = panels[0].get_legend_handles_labels()
            figure.legend(lines, labels, loc="outside right center", frameon=False, handlelength=3)
        figure.savefig(path)
    return path


def draw_quality(axes: Axes, rows: list[Row]) -> None:
    """Loss and bytes of each method, against synchronous training."""
    ratios: dict[str, dict[str, float]] = {}
    for row in rows:
        ratios.setdefault(row.case.removeprefix("quality/"), {})[row.metric] = row.ratio or 1.0
    for name, ratio in ratios.items():
        if name.startswith("jax"):
            continue  # those repeat methods, and lie on top of them
        fewer, more = 1 / ratio["bytes_sent"], 100 * (ratio["loss"] - 1)
        axes.plot(fewer, more, "o", color=COLORS[0])
        axes.annotate(name, (fewer, more), xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(30, 3_000)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("fewer bytes than synchronous training by")
    axes.set_ylabel("loss more by, %: less is better")
    axes.set_title("Four workers train a GPT over bytes", loc="left", fontweight="bold")


def draw_shares(axes: Axes, size: str, rows: list[Row]) -> None:
    """The cases are grid/RATE/SIZE/H/METHOD."""
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        _, rate, _, every, method = row.case.split("/")
        lines.setdefault((method, every), []).append(
            (float(rate.removesuffix("Mbit")), 100 * row.value)
        )
    methods = list(dict.fromkeys(method for method, _ in lines))
    rounds = sorted({every for _, every in lines}, key=lambda every: int(every[1:]))
    for (method, every), points in lines.items():
        axes.plot(
            *zip(*sorted(points), strict=True),
            marker="o",
            color=COLORS[methods.index(method)],
            linestyle=LINES[rounds.index(every)],
            label=f"{method}, {every}",
        )
    axes.set_xscale("log")
    axes.set_xticks(sorted({rate for points in lines.values() for rate, _ in points}))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 102)
    axes.set_xlabel("Mbit/s of each worker, up and down")
    axes.set_ylabel("time that a worker computes, %")
    axes.set_title(f"{size} parameters, four workers, 80 ms", loc="left", fontweight="bold")
