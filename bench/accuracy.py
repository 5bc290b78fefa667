"""accuracy: how far the average of eight peers is off, for every codec, sent through the library.

It owns the data, the errors and their picture. Eight peers in one process (`pccl.LocalWorld`)
average the same arrays with every codec, in the ring and in the direct schedule; the exact average
is formed in f64.

    normal    independent standard normal numbers
    heavy     Student's t with 3 degrees of freedom, and 6e-5 of the positions, the same on all
              peers, times 30

    relative_l2_error   |average - exact| / |exact|
    bits_per_element    of what travels

The baseline of an error is what the reference does, modelled here in NumPy with correct rounding:
256 steps over the range of each rank's share of the array, again at each hop of a ring, or once for
each contribution and once for the average.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

import pccl_py as pccl
from bench import common
from bench.common import Row
from bench.loopback_plot import STYLE
from bench.report import Report

BENCH = "accuracy"
PEERS = 8
COUNT = 16 * common.MIB
QUICK_COUNT = 256 * common.KIB
PLANS = ("ring", "direct")
REFERENCE = "min_max_u8 per share"
BLOCKS = (32, 64, 128, 256)

Array = NDArray[np.float32]


def codecs() -> list[pccl.Codec]:
    """Every kind with its defaults, and where it is instructive also without rotation."""
    kinds = [kind for kind in pccl.CodecKind if kind is not pccl.CodecKind.NONE]
    plain = [pccl.Codec(kind, rotate=False) for kind in ("int8", "int4", "fp8_e4m3")]
    blocks = [pccl.Codec("int4", block=block) for block in BLOCKS if block != 128]
    random = [pccl.Codec(kind, rounding="stochastic") for kind in ("bf16", "int8", "int4")]
    return [*(pccl.Codec(kind) for kind in kinds), *plain, *blocks, *random]


def name_of(codec: pccl.Codec) -> str:
    """As int4, int4_plain, int4_b32 or int4_stochastic."""
    words = [codec.name]
    if codec.rotate is False:
        words.append("plain")
    if codec.block is not None:
        words.append(f"b{codec.block}")
    if codec.rounding is pccl.Rounding.STOCHASTIC:
        words.append("stochastic")
    return "_".join(words)


def inputs_of(data: str, count: int) -> list[Array]:
    """The contributions of the peers."""
    sources = [np.random.default_rng([rank, 7]) for rank in range(PEERS)]
    if data == "normal":
        return [source.standard_normal(count, np.float32) for source in sources]
    outliers = np.random.default_rng(8).random(count) < 6e-5
    inputs = [source.standard_t(3, count).astype(np.float32) for source in sources]
    for array in inputs:
        array[outliers] *= 30
    return inputs


def error_of(average: Array, exact: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(average - exact) / np.linalg.norm(exact))


# ---- the reference, modelled


def min_max(values: Array) -> Array:
    """256 steps between the least and the greatest, rounded to nearest."""
    least, greatest = values.min(), values.max()
    step = (greatest - least) / np.float32(255)
    if step == 0:
        return values.copy()
    codes = np.rint((values - least) / step)
    return np.asarray(codes * step + least, np.float32)


def reference_average(inputs: list[Array], plan: str) -> Array:
    average = np.empty_like(inputs[0])
    for owner, share in enumerate(np.array_split(np.arange(len(average)), len(inputs))):
        where = slice(share[0], share[-1] + 1)
        if plan == "ring":
            total = inputs[(owner + 1) % PEERS][where]
            for step in range(2, PEERS + 1):
                total = min_max(total) + inputs[(owner + step) % PEERS][where]
        else:
            others = [min_max(array[where]) for rank, array in enumerate(inputs) if rank != owner]
            total = inputs[owner][where] + np.sum(others, axis=0, dtype=np.float32)
        average[where] = min_max(total / np.float32(PEERS))
    return average


# ---- running


def run(*, count: int, as_json: bool, out: Path) -> list[Row]:
    """Measures every codec; prints and writes the rows."""
    report = Report(BENCH, out, as_json=as_json)
    for data in ("normal", "heavy"):
        report.add(measure(data, count))
    picture = out / f"{BENCH}.png"
    draw(report.rows, picture)
    return report.finish(table(report.rows), picture=picture)


def measure(data: str, count: int) -> Iterator[Row]:
    """The rows of one kind of data."""
    inputs = inputs_of(data, count)
    exact = np.asarray(np.sum(inputs, axis=0, dtype=np.float64) / PEERS)
    references = {plan: error_of(reference_average(inputs, plan), exact) for plan in PLANS}
    console = Console(stderr=True)
    with pccl.LocalWorld(PEERS, deadline=600) as world:
        work: list[Array] = [np.empty(0, np.float32)] * PEERS
        for codec in track(codecs(), f"{data}, {count} elements", console=console):
            for plan in PLANS:

                def average(comm: Any, codec: pccl.Codec = codec, plan: str = plan) -> pccl.Outcome:
                    work[comm.rank] = inputs[comm.rank].copy()
                    return pccl.Group.all_reduce(
                        comm, work[comm.rank], op="avg", codec=codec, plan=plan
                    )

                outcomes = world.run(average)
                for other in work[1:]:
                    if not np.array_equal(other, work[0]):
                        raise RuntimeError(f"{name_of(codec)}: the peers hold different bytes")
                case = f"{data}/{plan}/{name_of(codec)}"
                error, reference = error_of(work[0], exact), references[plan]
                yield Row(BENCH, case, "relative_l2_error", error, "", REFERENCE, reference)
                sent = sum(outcome.bytes_sent for outcome in outcomes)
                bits = 8 * sent / (2 * (PEERS - 1) * count)
                yield Row(BENCH, case, "bits_per_element", bits, "bit")


# ---- showing


def table(rows: list[Row]) -> Table:
    """One line for each codec: bits, and the error on both kinds of data with both plans."""
    by_name = {(one.case, one.metric): one for one in rows}
    made = Table(
        title=f"relative L2 error of an average of {PEERS}",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    columns = [f"{data}/{plan}" for data in ("normal", "heavy") for plan in PLANS]
    for heading in ("codec", "bits", *columns):
        made.add_column(heading, justify="right", no_wrap=True)
    for codec in codecs():
        name = name_of(codec)
        cells = []
        for column in columns:
            one = by_name[f"{column}/{name}", "relative_l2_error"]
            cells.append(f"{one.value:.2e}")
        bits = by_name[f"normal/direct/{name}", "bits_per_element"].value
        made.add_row(name, f"{bits:.2f}", *cells)
    return made


def draw(rows: list[Row], path: Path) -> None:
    """Error over bits, a panel for each kind of data; the lower left is best."""
    bits = {one.case: one.value for one in rows if one.metric == "bits_per_element"}
    errors = [one for one in rows if one.metric == "relative_l2_error"]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 5), dpi=150, layout="constrained")
        panels: Any = figure.subplots(1, 2)
        for panel, data in zip(panels, ("normal", "heavy"), strict=True):
            for plan, marker, color in (("ring", "s", "#E69F00"), ("direct", "o", "#0072B2")):
                of = [one for one in errors if one.case.startswith(f"{data}/{plan}/")]
                x, y = [bits[one.case] for one in of], [one.value for one in of]
                panel.scatter(x, y, marker=marker, color=color, label=plan, s=28)
                if plan != "direct":
                    continue
                front = pareto(list(zip(x, y, strict=True)))
                for one, at in zip(of, zip(x, y, strict=True), strict=True):
                    if at in front:
                        name = one.case.split("/")[2]
                        panel.annotate(name, at, (4, 3), textcoords="offset points", fontsize=7)
                panel.plot(*zip(*front, strict=True), color=color, linewidth=1.2, alpha=0.5)
            panel.set_yscale("log")
            panel.set_xlabel("bits per element")
            panel.set_ylabel("relative L2 error")
            panel.set_title(f"{data} data", loc="left", fontweight="bold")
            panel.legend(frameon=False)
        figure.savefig(path)


def pareto(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those than which no other has both fewer bits and a smaller error, by bits."""
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
