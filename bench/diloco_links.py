"""diloco over shaped links: how much of its time a worker computes, and what of an exchange hides.

Four processes in an emulated network (bench/wan), each link 80 ms and each worker with a rate of
its own. The model is numbers, and an inner step takes a given time, so a case is as long as its
exchanges and steps.

    compute_share    the time of the inner steps over all time, of the slowest worker
    exchange         seconds of one exchange, from its beginning to its end, the longest
    bytes_sent       by one worker, the most, headers and probes of links too

A round is not timed, then `rounds` are.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import wan_network
from bench.common import Row
from bench.process import Process
from bench.wan_network import Network
from bench.wan_topology import Path as Way
from bench.wan_topology import Topology
from pccl_py.closing import Closing

BENCH = "diloco"
WORKERS = 4
ROUND_TRIP_MS = 80.0
STEP_SECONDS = 0.1
REPORT_SECONDS_MAX = 900.0


@dataclass(frozen=True)
class Grid:
    """The cases: rates in Mbit/s, inner steps of a round, and parameters."""

    rates: tuple[float, ...]
    rounds: tuple[int, ...]
    parameters: tuple[int, ...]


FULL = Grid((50.0, 200.0, 1000.0), (32, 128), (25_000_000, 100_000_000))
QUICK = Grid((50.0,), (8,), (100_000,))

# Methods by name; all but streaming wait for their exchanges, and hide nothing.
METHODS: dict[str, dict[str, Any]] = {
    "f32": {},
    "int8": {"codec": "int8"},
    "int4 streaming": {"codec": "int4", "fragments": 4, "order": "strided"},
    "sparse": {"sparse": {"kept": 64}},
}


def topology(mbit: float) -> Topology:
    """Four workers, each with this rate up and down."""
    pairs = itertools.permutations(range(WORKERS), 2)
    ways = {pair: Way(delay_ms=ROUND_TRIP_MS / 2) for pair in pairs}
    rates = (mbit,) * WORKERS
    return Topology(rates, rates, ways, "cubic")


def settings_of(name: str, every: int) -> dict[str, Any]:
    """The settings of a method with rounds of so many steps."""
    made = {"sync_every": every, **METHODS[name]}
    if "streaming" in name:
        made["fragment_sync_delay"] = every // 2
    return made


class Workers(Closing):
    """The processes of one network. None outlives this. Raises RuntimeError when one fails."""

    def __init__(self, network: Network, parameters: int) -> None:
        self._processes: list[Process] = []
        self._read = 0  # lines of each
        try:
            for rank in range(WORKERS):
                self._start(network, rank, parameters)
            token = next(each["token"] for each in self._reports() if each["token"])
            self.ask({"token": token})
        except BaseException:
            self.close()
            raise

    def _start(self, network: Network, rank: int, parameters: int) -> None:
        command = [*network.prefix(rank), sys.executable, "-m", "bench.diloco_worker"]
        process = Process(command)
        self._processes.append(process)
        place = {"rank": rank, "world": WORKERS, "parameters": parameters}
        process.say(json.dumps({**place, "address": wan_network.address(rank)}))

    def ask(self, what: dict[str, Any]) -> list[dict[str, Any]]:
        """Tells all of them, and returns their answers in rank order."""
        for process in self._processes:
            process.say(json.dumps(what))
        return self._reports()

    def _reports(self) -> list[dict[str, Any]]:
        found, number = [], self._read
        for process in self._processes:

            def is_there(process: Process = process) -> bool:
                return len(process.lines) > number

            process.until(is_there, "a line", REPORT_SECONDS_MAX)
            found.append(json.loads(process.lines[number]))
        self._read += 1
        return found

    def close(self) -> None:
        """Ends all of them."""
        for process in self._processes:
            process.signal(signal.SIGKILL)
        for process in self._processes:
            process.end()
        self._processes.clear()


def measured(program: Path, grid: Grid) -> Iterator[Row]:
    """The rows of all cases, as they are measured."""
    for rate, parameters in itertools.product(grid.rates, grid.parameters):
        with (
            Network(program, topology(rate)) as network,
            Workers(network, parameters) as workers,
        ):
            for name, every in itertools.product(METHODS, grid.rounds):
                yield from _case(workers, rate, parameters, name, every)


def table(rows: list[Row]) -> Table:
    """The share of its time that a worker computes: a line for each network and size."""
    made = Table(title=f"share of time that a worker computes, {STEP_SECONDS:g} s a step")
    for heading in ("Mbit/s, parameters, steps", *METHODS):
        made.add_column(heading, justify="left" if not made.columns else "right")
    shares = {row.case: row.value for row in rows if row.metric == "compute_share"}
    for line in dict.fromkeys(case.rpartition("/")[0] for case in shares):
        cells = (shares.get(f"{line}/{name}") for name in METHODS)
        made.add_row(
            line.removeprefix("links/").replace("/", " "),
            *("" if share is None else f"{share:.0%}" for share in cells),
        )
    return made


def _case(workers: Workers, rate: float, parameters: int, name: str, every: int) -> Iterator[Row]:
    case = f"links/{rate:g}Mbit/{parameters // 1_000_000 or parameters / 1e6:g}M/H{every}/{name}"
    rounds = 2
    asked = {
        "name": case, "settings": settings_of(name, every), "step_seconds": STEP_SECONDS,
        "rounds": rounds,
    }  # fmt: skip
    found = workers.ask(asked)
    wall = max(each["wall"] for each in found)
    computed = rounds * every * STEP_SECONDS
    yield Row(BENCH, case, "compute_share", computed / wall, "")
    yield Row(BENCH, case, "exchange", max(each["exchange"] for each in found), "s")
    yield Row(BENCH, case, "bytes_sent", max(each["bytes_sent"] for each in found), "byte")
