"""coordinator: what a decision costs the coordinator, without sockets, for 16 to 512 peers.

The measurement is a program of its own, engine/protocol/bench.zig, which this file builds and runs:
there the cases are described, and its scripted members. Only calls into the coordinator are timed,
in processor time of one thread; cases and numbers of peers take turns, values are medians.

The baseline of a row is what the fewest peers cost, grown by n log n for a decision, and by log n
for each of its messages: a ratio above 1 means that the cost grows faster than that. One row of
each case gives the exponent of its growth from the fewest peers to the most.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from bench.common import Row
from bench.report import Report

BENCH = "coordinator"
ROOT = Path(__file__).resolve().parents[1]
PREFIX = ROOT / ".zig-cache" / "coordinator-bench"
PEERS = [16, 64, 256, 512]
ROUNDS, QUICK_ROUNDS = 25, 3


@dataclass(frozen=True)
class Measured:
    """A case: what all messages of one decision take together."""

    case: str
    peers: int
    messages: int
    ns: int


def build() -> Path:
    """Compiles the measurement, without the safety checks of the library; the program."""
    command = [sys.executable, "-m", "ziglang", "build", "coordinator-bench"]
    command += ["-Doptimize=ReleaseFast", "--prefix", str(PREFIX)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    return PREFIX / "bin" / "coordinator-bench"


def measure(peers: list[int], rounds: int) -> dict[str, list[Measured]]:
    """By case, for each number of peers in their order."""
    command = [str(build()), str(rounds), *map(str, peers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, list[Measured]] = {}
    for line in done.stdout.splitlines():
        case, *numbers = line.split()
        found.setdefault(case, []).append(Measured(case, *map(int, numbers)))
    return found


def rows_of(measured: list[Measured]) -> Iterator[Row]:
    """Two rows for each number of peers, and one about their growth; of one case, in order."""
    least, most = measured[0], measured[-1]
    growth = f"n log n from n{least.peers}"
    growth_of_message = f"log n from n{least.peers}"
    for one in measured:
        case = f"{one.case}/n{one.peers}"
        logs = math.log(one.peers) / math.log(least.peers)
        grown = least.ns * one.peers / least.peers * logs
        yield Row(BENCH, case, "ns_per_decision", one.ns, "ns", growth, grown)
        message, grown = one.ns / one.messages, least.ns / least.messages * logs
        yield Row(BENCH, case, "ns_per_message", message, "ns", growth_of_message, grown)
    if most.peers == least.peers:
        return
    more = math.log(most.peers / least.peers)
    exponent = math.log(most.ns / least.ns) / more
    n_log_n = 1 + math.log(math.log(most.peers) / math.log(least.peers)) / more
    yield Row(BENCH, least.case, "growth_exponent", exponent, "", "n log n", n_log_n)


def run(peers: list[int], *, quick: bool, as_json: bool, out: Path) -> list[Row]:
    """Measures, prints and writes coordinator.jsonl into `out`."""
    report = Report(BENCH, out, as_json=as_json)
    measured = measure(sorted(set(peers)), QUICK_ROUNDS if quick else ROUNDS)
    for of_case in measured.values():
        report.add(rows_of(of_case))
    everything = [one for of_case in measured.values() for one in of_case]
    return report.finish(table(everything, report.rows))


def table(measured: list[Measured], rows: list[Row]) -> Table:
    """For people: a line for each case and number of peers."""
    ratios = {row.case: row.ratio for row in rows if row.metric == "ns_per_decision"}
    made = Table(title="The coordinator, processor time")
    for heading in ("case", "peers", "messages", "ns/message", "us/decision", "of n log n"):
        made.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    for one in measured:
        made.add_row(
            one.case,
            str(one.peers),
            str(one.messages),
            f"{one.ns / one.messages:.0f}",
            f"{one.ns / 1000:.1f}",
            f"{ratios[f'{one.case}/n{one.peers}']:.2f}",
        )
    return made
