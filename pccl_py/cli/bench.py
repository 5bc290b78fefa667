"""`pccl bench kernels`: a table of the kernels on this machine.

pccl_py/measure.py says what is measured, and how.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

import pccl_py
from pccl_py import measure


def kernels(sizes: list[int], match: str, *, rounds: int) -> None:
    """Prints a table for each size."""
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
