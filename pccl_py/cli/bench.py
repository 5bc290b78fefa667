"""`pccl bench`: the kernels of this machine as a table, and the collectives of a run line by line.

pccl_py/measure.py and pccl_py/measure_collectives.py say what is measured, and how.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

import pccl_py
from pccl_py import measure, measure_collectives
from pccl_py.measure_collectives import Result
from pccl_py.words import counted, parse

# The group of the benchmark; members of a training run's group make other calls.
GROUP = "pccl-bench"


def kernels(sizes: list[int], match: str, *, rounds: int) -> None:
    """Measures kernels with `match` in their name, and prints a table for each size."""
    names = [name for name in measure.kernel_names() if match in name]
    if not names:
        raise pccl_py.InvalidArgument(f"no kernel has {match!r} in its name")
    for size in sizes:
        measurement = measure.Measurement(size)
        table = Table(title=f"{size / 2**20:g} MiB of f32, one thread, level {pccl_py.cpu_level()}")
        for column in ("kernel", "GB/s", "no arithmetic", "ratio"):
            table.add_column(column, justify="left" if column == "kernel" else "right")
        for name in names:
            rate = measurement.rate(name, rounds=rounds)
            table.add_row(
                name, f"{rate.kernel / 1e9:.1f}", f"{rate.skeleton / 1e9:.1f}", f"{rate.ratio:.2f}"
            )
        Console().print(table)


@dataclass(frozen=True)
class Plan:
    """The sizes of one collective, in bytes, and how each size is called."""

    collective: str
    sizes: Sequence[int]
    iterations: int
    warmup: int
    dtype: str
    codec: str


def collective(plan: Plan, comm: pccl_py.Group, *, as_json: bool) -> None:
    """Measures together with all members; rank 0 prints. Raises PcclError for a wrong result."""
    codec = parse(pccl_py.CodecKind, plan.codec, "codec")
    benchmark = measure_collectives.Benchmark(
        comm, plan.collective, dtype=plan.dtype, codec=codec, size_max=max(plan.sizes)
    )
    prints = comm.rank == 0
    if prints and not as_json:
        print(heading(plan, comm.world_size), flush=True)
    bandwidths = []
    for size in plan.sizes:
        result = benchmark.measure(size, iterations=plan.iterations, warmup=plan.warmup)
        if prints:
            print(json_line(result) if as_json else row(result), flush=True)
        result.check()
        bandwidths.append(result.bus_bandwidth)
    if prints and not as_json:
        average = sum(bandwidths) / len(bandwidths)
        print(f"# average bus bandwidth: {gigabytes(average)} GB/s", flush=True)


def heading(plan: Plan, world: int) -> str:
    """The first lines of output: the task, and titles for `row`, as NCCL's tests have them."""
    op = ", sum" if plan.collective in measure_collectives.REDUCING else ""
    peers = counted(world, "peer")
    last = "#wrong" if plan.codec == "none" else "lost"
    return (
        f"# pccl {pccl_py.__version__}: {plan.collective} of {plan.dtype}{op}, {peers}, "
        f"codec {plan.codec}\n"
        f"# {plan.iterations} calls of each size after {plan.warmup} to warm up; the time is "
        "that of the slowest peer\n"
        + "#"
        + _line("size", "count", "type", "time", "algbw", "busbw", last)[1:]
        + "\n"
        + "#"
        + _line("(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", "")[1:].rstrip()
    )


def row(result: Result) -> str:
    """The result of a size as a line for people."""
    return _line(
        str(result.size),
        str(result.count),
        result.dtype,
        f"{result.seconds * 1e6:.1f}",
        gigabytes(result.algorithm_bandwidth),
        gigabytes(result.bus_bandwidth),
        str(result.wrong) if result.codec == "none" else f"{result.error:.2g}",
    )


def json_line(result: Result) -> str:
    """The result of a size as one JSON object."""
    bandwidths = {
        "algorithm_bandwidth": result.algorithm_bandwidth,
        "bus_bandwidth": result.bus_bandwidth,
    }
    return json.dumps({**asdict(result), **bandwidths})


def gigabytes(rate: float) -> str:
    """Bytes per second in GB/s, below 1 GB/s with more digits, for slow links."""
    value = rate / 1e9
    return f"{value:.2f}" if value >= 1 else f"{value:.5f}"


def _line(*cells: str) -> str:
    widths = (12, 12, 8, 12, 10, 10, 8)
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
