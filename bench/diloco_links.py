"""diloco over shaped links: what of an exchange hides, and how much of its time a worker computes.

Four processes (diloco_worker.py) in an emulated network (bench/wan), each worker with a rate of its
own. The model is numbers, and an inner step takes a given time, so a case is as long as its
exchanges and steps. The first round is not timed. Values are those of the slowest worker, or of
the worker that sent the most.

The part "links" has the methods of diloco_cases.py over 50 Mbit/s and 100 ms, three rounds each,
beside 20 steps of synchronous training, which are the baseline. Streaming has a delay of its own,
in which the exchange of a fragment ends over this network:

    wall_of_step            seconds of an inner step, with its share of the exchanges
    payload_bytes_of_step   bytes of tensors, the same way
    bytes_of_step           the same with headers, announcements and probes of links
    exchange                seconds that the operations of one exchange took, the longest
    hidden_share            of methods that take the result of an exchange later: 1 - (wall -
                            computation) / (the same of a run that waits for each exchange)

The part "grid" has networks of 80 ms. Streaming trains two rounds of each H. The other methods wait
for each exchange, so its time is measured once, and the shares for each H follow from it:

    compute_share    the time of the inner steps over all time
    exchange         as above
    bytes_of_round   with headers, announcements and probes of links
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import wan_network
from bench.common import Row
from bench.diloco_cases import TORCH, WORKERS, Case, Size, cases
from bench.process import Process
from bench.wan_network import Network
from bench.wan_topology import Path as Way
from bench.wan_topology import Topology
from pccl_py.closing import Closing

BENCH = "diloco"
STEP_SECONDS = 0.1
LINK_MBIT, LINK_MS, ROUNDS, SYNCHRONOUS_STEPS = 50.0, 100.0, 3, 20
GRID_MS, GRID_ROUNDS = 80.0, 2
REPORT_SECONDS_MAX = 900.0


@dataclass(frozen=True)
class Grid:
    """The cases of the grid: rates in Mbit/s, inner steps of a round, and parameters."""

    rates: tuple[float, ...]
    rounds: tuple[int, ...]
    parameters: tuple[int, ...]


FULL_GRID = Grid((50.0, 200.0, 1000.0), (32, 128), (25_000_000, 100_000_000))
QUICK_GRID = Grid((50.0,), (8,), (100_000,))

# The methods of the grid; all but streaming wait for their exchanges, and hide nothing.
METHODS: dict[str, dict[str, Any]] = {
    "f32": {},
    "int8": {"codec": "int8"},
    "int4 streaming": {"codec": "int4", "fragments": 4, "order": "strided"},
    "sparse": {"sparse": {"kept": 64}},
}


def topology(mbit: float, round_trip_ms: float) -> Topology:
    """Four workers, each with this rate up and down."""
    pairs = itertools.permutations(range(WORKERS), 2)
    ways = {pair: Way(delay_ms=round_trip_ms / 2) for pair in pairs}
    rates = (mbit,) * WORKERS
    return Topology(rates, rates, ways, "cubic")


def settings_in_json(case: Case) -> dict[str, Any]:
    """The settings of a method in JSON, without the outer optimizer, which takes no time here."""
    made = {"sync_every": case.every, **case.settings}
    made.pop("outer", None)
    if "sparse" in made:
        made["sparse"] = asdict(made["sparse"])
    return made


def settings_of(name: str, every: int) -> dict[str, Any]:
    """The settings of a method of the grid, with rounds of so many steps."""
    made = {"sync_every": every, **METHODS[name]}
    if "fragments" in made:
        made["fragment_sync_delay"] = _delay(made)
    return made


def _delay(settings: dict[str, Any]) -> int:
    """Two fragments may be under way at a time, so an exchange has time to end."""
    every, fragments = settings["sync_every"], settings["fragments"]
    return int(2 * every // fragments)


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


@dataclass(frozen=True)
class Measured:
    """Some rounds of all workers, of the slowest: `wall` and `computed` in seconds."""

    wall: float
    computed: float
    exchange: float
    payload_bytes: float
    bytes_sent: float

    @property
    def communication(self) -> float:
        """The seconds in which the worker did not compute."""
        return self.wall - self.computed


def _measured(workers: Workers, asked: dict[str, Any], steps: int) -> Measured:
    found = workers.ask({**asked, "step_seconds": STEP_SECONDS})
    most = {key: max(each[key] for each in found) for key in found[0]}
    return Measured(computed=steps * STEP_SECONDS, **most)


def _rounds(workers: Workers, name: str, settings: dict[str, Any], rounds: int) -> Measured:
    asked = {"name": name, "settings": settings, "rounds": rounds}
    return _measured(workers, asked, rounds * settings["sync_every"])


def links(program: Path, size: Size) -> Iterator[Row]:
    """The rows of the part "links", as they are measured."""
    methods = {
        name: case
        for name, case in cases(size).items()
        # The others move the same bytes.
        if case.framework == TORCH
        and not case.muon
        and "fragment_update_alpha" not in case.settings
    }
    with (
        Network(program, topology(LINK_MBIT, LINK_MS)) as network,
        Workers(network, size.numbers) as workers,
    ):
        base = _measured(workers, {"steps": SYNCHRONOUS_STEPS}, SYNCHRONOUS_STEPS)
        yield from _link_rows("synchronous", base, SYNCHRONOUS_STEPS, None)
        measured: dict[str, Measured] = {}  # by settings: some methods wait for the same exchange
        for name, case in methods.items():
            settings = settings_in_json(case)
            if "fragments" in settings:
                settings["fragment_sync_delay"] = _delay(settings)
            found = _rounds(workers, name, settings, ROUNDS)
            measured[json.dumps(settings)] = found
            yield from _link_rows(name, found, ROUNDS * case.every, base)
            if settings.pop("fragment_sync_delay", 0):
                settings.pop("eager", None)
                key = json.dumps(settings)
                if key not in measured:
                    measured[key] = _rounds(workers, f"{name}, waiting", settings, ROUNDS)
                share = 1 - found.communication / measured[key].communication
                yield Row(BENCH, f"links/{name}", "hidden_share", share, "")


def _link_rows(name: str, found: Measured, steps: int, base: Measured | None) -> Iterator[Row]:
    """Values of an inner step, so methods can be compared."""
    for metric, unit in (
        ("wall", "s"),
        ("payload_bytes", "byte"),
        ("bytes_sent", "byte"),
    ):
        value = getattr(found, metric) / steps
        key = f"{metric.removesuffix('_sent')}_of_step"
        if base is None:
            yield Row(BENCH, f"links/{name}", key, value, unit)
        else:
            theirs = getattr(base, metric) / SYNCHRONOUS_STEPS
            yield Row(BENCH, f"links/{name}", key, value, unit, "synchronous", theirs)
    yield Row(BENCH, f"links/{name}", "exchange", found.exchange, "s")


def links_table(rows: list[Row]) -> Table:
    """A line for each method."""
    made = Table(
        title=f"{LINK_MBIT:g} Mbit/s, {LINK_MS:g} ms, {STEP_SECONDS:g} s a step",
        title_justify="left",
    )
    for heading in ("method", "ms a step", "faster by", "less payload by", "exchange, s", "hidden"):
        made.add_column(heading, justify="left" if heading == "method" else "right")
    by_name = {(row.case, row.metric): row for row in rows}
    for case in dict.fromkeys(row.case for row in rows if row.case.startswith("links/")):
        wall, payload = (by_name[case, f"{name}_of_step"] for name in ("wall", "payload_bytes"))
        hidden = by_name.get((case, "hidden_share"))
        made.add_row(
            case.removeprefix("links/"),
            f"{1e3 * wall.value:,.0f}",
            *("" if not row.ratio else f"{1 / row.ratio:,.0f}" for row in (wall, payload)),
            f"{by_name[case, 'exchange'].value:.2f}",
            "" if hidden is None else f"{hidden.value:.0%}",
        )
    return made


def grid(program: Path, asked: Grid) -> Iterator[Row]:
    """The rows of the part "grid", as they are measured."""
    for rate, parameters in itertools.product(asked.rates, asked.parameters):
        with (
            Network(program, topology(rate, GRID_MS)) as network,
            Workers(network, parameters) as workers,
        ):
            place = f"grid/{rate:g}Mbit/{parameters / 1e6:g}M"
            for name, settings in METHODS.items():
                waits = "fragments" not in settings
                one = _rounds(workers, name, settings_of(name, 1), 1) if waits else None
                for every in asked.rounds:
                    case, computed = f"{place}/H{every}/{name}", every * STEP_SECONDS
                    if one is not None:
                        share = computed / (computed + one.communication)
                        yield from _grid_rows(case, share, one, 1)
                        continue
                    found = _rounds(workers, case, settings_of(name, every), GRID_ROUNDS)
                    share = found.computed / found.wall
                    yield from _grid_rows(case, share, found, GRID_ROUNDS)


def _grid_rows(case: str, share: float, found: Measured, rounds: int) -> Iterator[Row]:
    yield Row(BENCH, case, "compute_share", share, "")
    yield Row(BENCH, case, "exchange", found.exchange, "s")
    yield Row(BENCH, case, "bytes_of_round", found.bytes_sent / rounds, "byte")


def grid_table(rows: list[Row]) -> Table:
    """The share of its time that a worker computes: a line for each network and size."""
    made = Table(title=f"share of time that a worker computes, {STEP_SECONDS:g} s a step")
    for heading in ("Mbit/s, parameters, steps", *METHODS):
        made.add_column(heading, justify="left" if not made.columns else "right")
    shares = {row.case: row.value for row in rows if row.metric == "compute_share"}
    for line in dict.fromkeys(case.rpartition("/")[0] for case in shares):
        cells = (shares.get(f"{line}/{name}") for name in METHODS)
        made.add_row(
            line.removeprefix("grid/").replace("/", " "),
            *("" if share is None else f"{share:.0%}" for share in cells),
        )
    return made
