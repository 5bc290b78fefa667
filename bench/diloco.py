"""diloco: what rare exchanges cost and save. The parts, in the order in which they are measured:

    quality    the loss and the bytes of each method, on real text (diloco_quality.py)
    losses     a worker that is killed, and another that enters (diloco_losses.py)
    links      what of an exchange hides, over one slow network (diloco_links.py)
    grid       the share of its time that a worker computes, over many networks; 15 minutes

Each part has a table, and diloco.png a panel for `quality`, and for each size of `grid`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from rich.table import Table

from bench import diloco_links, diloco_losses, diloco_plot, diloco_quality, wan_network
from bench.common import Row
from bench.diloco_cases import FULL, QUICK
from bench.report import Report

BENCH = "diloco"


class Part(str, Enum):
    """The parts of the benchmark."""

    QUALITY = "quality"
    LOSSES = "losses"
    LINKS = "links"
    GRID = "grid"


# The parts that are measured where none is asked for.
SHORT = [Part.QUALITY, Part.LOSSES, Part.LINKS]
OVER_LINKS = [Part.LINKS, Part.GRID]


def run(
    *,
    quick: bool,
    parts: list[Part],
    only: list[str] | None,
    seeds: Sequence[int],
    as_json: bool,
    out: Path,
) -> list[Row]:
    """Measures the parts, of `quality` the methods of `only`; prints and writes the rows."""
    report = Report(BENCH, out, as_json=as_json)
    size = replace(QUICK if quick else FULL, seeds=seeds)
    # Small steps, but as many: a newcomer takes time to enter.
    trained = replace(size, steps=FULL.steps)
    grid = diloco_links.QUICK_GRID if quick else diloco_links.FULL_GRID
    measures: dict[Part, tuple[Callable[[], Iterator[Row]], Callable[[list[Row]], Table]]] = {
        Part.QUALITY: (lambda: diloco_quality.measured(size, only), diloco_quality.table),
        Part.LOSSES: (lambda: diloco_losses.measured(trained), diloco_losses.table),
        Part.LINKS: (
            lambda: diloco_links.links(wan_network.build(), size),
            diloco_links.links_table,
        ),
        Part.GRID: (lambda: diloco_links.grid(wan_network.build(), grid), diloco_links.grid_table),
    }
    for part in parts:
        for row in measures[part][0]():
            report.add([row])
    picture = diloco_plot.draw(report.rows, out / f"{BENCH}.png")
    return report.finish(*(measures[part][1](report.rows) for part in parts), picture=picture)
