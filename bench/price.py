"""price: what the safety checks of the library cost, between two peers of one process.

The library is built twice from this tree, ReleaseSafe as it is installed and ReleaseFast, and
`price.c` loads both: each has a coordinator and two peers there, and they take turns, block by
block, so that what else the machine does meets both alike. The rows, of one call:

    seconds       the median of the blocks; on a busy machine it says little
    cpu_seconds   processor time of all threads, the tenth of the blocks that took least: those in
                  which nobody else came between
    instructions  in user space, counted by callgrind (valgrind) where that is installed: the
                  difference between few calls and many, the same on a busy machine

The baseline of each is ReleaseFast. Rows of `control` compare ReleaseFast with a copy of itself:
they show how much of a ratio is noise.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import common
from bench.common import KIB, MIB, Row
from bench.report import Report

BENCH = "price"
ROOT = Path(__file__).resolve().parents[1]
PREFIX = ROOT / ".zig-cache" / "price"
BASELINE, OURS, CONTROL = "ReleaseFast", "ReleaseSafe", "control"
SIZES = [4 * KIB, 64 * MIB]
RUN_SECONDS_MAX = 1800.0


@dataclass(frozen=True)
class Plan:
    """How often: blocks of calls, and the calls of the two runs that are counted."""

    blocks: int
    calls: int
    counted: tuple[int, int]

    @classmethod
    def of(cls, size: int, quick: bool) -> Plan:
        """Blocks of a few milliseconds, which are rarely interrupted."""
        calls = max(1, min(8, MIB // size))
        counted = (200, 1200) if size <= MIB else (2, 6)
        if quick:
            return cls(4, calls, (5, 10) if size <= MIB else (1, 2))
        return cls(3000 if size <= MIB else 30, calls, counted)


@dataclass(frozen=True)
class Block:
    """The times of one library in one block, for a call."""

    library: int
    ns: int
    cpu_ns: int


def build() -> dict[str, Path]:
    """The two libraries of this tree, as they are installed but for the mode."""
    found = {}
    for mode in (BASELINE, OURS):
        command = [sys.executable, "-m", "ziglang", "build", f"-Doptimize={mode}"]
        command += ["--prefix", str(PREFIX / mode)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        found[mode] = PREFIX / mode / "lib" / "libpccl.so"
    return found


def compile_program(folder: Path) -> Path:
    """price.c, with the compiler of the ziglang package."""
    program = folder / "price"
    command = [sys.executable, "-m", "ziglang", "cc", "-O2", "-std=c11", "-Wall", "-Wextra"]
    command += ["-Werror", f"-I{ROOT / 'include'}", str(ROOT / "bench" / "price.c")]
    # For any CPU: valgrind does not know AVX-512.
    command += ["-mcpu=baseline", "-o", str(program), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return program


def measure(
    program: Path, libraries: Sequence[Path], size: int, blocks: int, calls: int
) -> list[Block]:
    """The blocks of all libraries, in turn."""
    command = [str(program), str(size), str(blocks), str(calls), *map(str, libraries)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=RUN_SECONDS_MAX
    )
    return [Block(*map(int, line.split())) for line in done.stdout.splitlines()]


def count(program: Path, library: Path, size: int, counted: tuple[int, int]) -> float:
    """Instructions of one call, both peers and the coordinator together."""
    totals = []
    for calls in counted:
        command = ["valgrind", "--tool=callgrind", "--fair-sched=yes"]
        command += ["--callgrind-out-file=/dev/null", str(program)]
        command += [str(size), "1", str(calls), str(library)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=RUN_SECONDS_MAX
        )
        found = re.search(r"Collected : (\d+)", done.stderr)
        if found is None:
            raise RuntimeError(f"callgrind has not said what it counted: {done.stderr}")
        totals.append(int(found[1]))
    return (totals[1] - totals[0]) / (counted[1] - counted[0])


def rows_of(size: int, blocks: Sequence[Block]) -> Iterator[Row]:
    """Times of libraries 1 and 2, ReleaseSafe and the control, against library 0."""
    of = [[block for block in blocks if block.library == library] for library in range(3)]
    seconds = [statistics.median(block.ns for block in some) / 1e9 for some in of]
    least = [sorted(block.cpu_ns for block in some)[len(some) // 10] / 1e9 for some in of]
    for library, name in ((1, OURS), (2, CONTROL)):
        case = f"{common.case_name('all_reduce', 'f32', 'none', 2, size)}/{name}"
        for metric, values in (("seconds", seconds), ("cpu_seconds", least)):
            yield Row(BENCH, case, metric, values[library], "s", BASELINE, values[0])


def run(
    sizes: Sequence[int] | None,
    *,
    quick: bool,
    as_json: bool,
    out: Path,
    libraries: dict[str, Path] | None = None,
) -> list[Row]:
    """Measures, prints and writes price.jsonl into `out`."""
    report = Report(BENCH, out, as_json=as_json)
    libraries = libraries or build()
    counts = shutil.which("valgrind") is not None
    if not counts:
        Console(stderr=True).print("valgrind is not installed: no instructions are counted")
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program(Path(folder))
        # A file that is loaded already would not be loaded again.
        ours, control = Path(folder) / "ours.so", Path(folder) / "control.so"
        shutil.copy(libraries[OURS], ours)
        shutil.copy(libraries[BASELINE], control)
        for size in sizes or SIZES:
            plan = Plan.of(size, quick)
            loaded = [libraries[BASELINE], ours, control]
            report.add(rows_of(size, measure(program, loaded, size, plan.blocks, plan.calls)))
            if counts:
                case = f"{common.case_name('all_reduce', 'f32', 'none', 2, size)}/{OURS}"
                fast, safe = (count(program, path, size, plan.counted) for path in loaded[:2])
                report.add([Row(BENCH, case, "instructions", safe, "", BASELINE, fast)])
    return report.finish(table(report.rows))


def table(rows: Sequence[Row]) -> Table:
    """For people: a line for each row."""
    made = Table(title="The price of the safety checks, of one call")
    for heading in ("case", "metric", "with", "without", "ratio"):
        made.add_column(heading, justify="left" if heading in ("case", "metric") else "right")
    for row in rows:
        assert row.baseline_value is not None
        values = (f"{value:,.6g}" for value in (row.value, row.baseline_value))
        made.add_row(row.case, row.metric, *values, f"{row.ratio:.4f}")
    return made
