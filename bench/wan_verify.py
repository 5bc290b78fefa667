"""verify: what the emulated network does, beside what it was asked for (`bench wan --verify`).

It owns the measurements and their two tables, asked and measured. They are made from the ends, by
small programs of UDP and TCP in the namespaces (wan_probe.py), and not from the emulator's own
counters, except where it says so. Rates are of IP packets.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import wan_network, wan_topology
from bench.common import Row
from bench.report import Report
from bench.wan_network import Network
from bench.wan_topology import PAYLOAD_BYTES, WIRE_BYTES, Topology
from bench.wan_topology import Path as Way

BENCH = "wan"
PROBE_SECONDS_MAX = 60.0
TRIES_MAX = 3


@dataclass(frozen=True)
class Checked:
    """One property: what was asked for, and what it is. `tolerance`: of what was asked."""

    name: str
    unit: str
    asked: float
    measured: float
    tolerance: float
    least: float = 0.0  # what may differ at least

    @property
    def is_right(self) -> bool:
        """Whether both are as equal as they should be."""
        return abs(self.measured - self.asked) <= max(self.least, self.tolerance * self.asked)


def two(way: Way, back: Way | None = None, *, up: float = 0.0, down: float = 0.0) -> Topology:
    """Two nodes."""
    paths = {(0, 1): way, (1, 0): back or Way(delay_ms=way.delay_ms)}
    return Topology((up, 0.0), (0.0, down), paths, "cubic")


def probe(network: Network, *arguments: str, node: int) -> subprocess.Popen[str]:
    """A program of wan_probe.py on a node; it prints what it has measured."""
    command = [*network.prefix(node), sys.executable, "-m", "bench.wan_probe", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def heard(running: subprocess.Popen[str]) -> dict[str, Any]:
    """The object that it says at its end. Raises RuntimeError."""
    said, _ = running.communicate(timeout=PROBE_SECONDS_MAX)
    if running.returncode != 0:
        raise RuntimeError("a probe failed")
    found: dict[str, Any] = json.loads(said)
    return found


def between(network: Network, what: str, *arguments: str) -> dict[str, Any]:
    """A receiver on node 1 and a sender on node 0; what the receiver has measured."""
    receiver = probe(network, f"{what}-receive", wan_network.address(1), *arguments, node=1)
    sender = probe(network, f"{what}-send", wan_network.address(1), *arguments, node=0)
    heard(sender)
    return heard(receiver)


def echo(network: Network, source: int, target: int, count: int, gap_ms: float) -> list[float]:
    """Round trips in ms."""
    to = wan_network.address(target)
    echoing = probe(network, "echo", to, str(count), node=target)
    asking = probe(network, "ask", to, str(count), str(gap_ms), node=source)
    trips: list[float] = heard(asking)["trips_ms"]
    echoing.kill()
    echoing.communicate()
    return trips


def delays(program: Path) -> Iterator[Checked]:
    """Round trips of all pairs of the four regions."""
    topology = wan_topology.regions(wan_topology.FOUR_REGIONS, "cubic")
    with Network(program, topology) as network:
        for (source, target), path in topology.paths.items():
            if source > target:
                continue
            name = f"round trip {topology.names[source]}, {topology.names[target]}"
            trips = echo(network, source, target, 20, 20)
            yield Checked(name, "ms", 2 * path.delay_ms, statistics.median(trips), 0.02, 1.0)


def jitter(program: Path) -> Iterator[Checked]:
    """Its mean, its limit, and the order of packets."""
    way = Way(delay_ms=25, jitter_ms=20)
    with Network(program, two(way, Way(delay_ms=25))) as network:
        trips = echo(network, 0, 1, 400, 10)
        yield Checked("mean round trip, jitter of 20 ms", "ms", 60, statistics.mean(trips), 0.05)
        yield Checked("longest, jitter of 20 ms", "ms", 70, max(trips), 0.05, 3)
        flood = between(network, "flood", "20", "1000", "2")
        yield Checked("packets out of order", "packets", 0, flood["out_of_order"], 0)


def rates(program: Path) -> Iterator[Checked]:
    """Rates of UDP that is sent faster, and of TCP, on the path, the uplink, or the downlink."""
    for name, topology in (
        ("path", two(Way(delay_ms=10, rate_mbit=50))),
        ("uplink", two(Way(delay_ms=10), up=50)),
        ("downlink", two(Way(delay_ms=10), down=50)),
    ):
        with Network(program, topology) as network:
            flood = between(network, "flood", "80", "1472", "3")
            yield Checked(f"rate of the {name}", "Mbit/s", 50, flood["mbit"], 0.02)
    for mbit in (200.0, 1000.0):
        path = Way(delay_ms=10, rate_mbit=mbit, queue_kib=mbit * 4)
        with Network(program, two(path)) as network:
            stream = between(network, "stream", "1", "4")
            measured = stream["mbit"] * WIRE_BYTES / PAYLOAD_BYTES
            yield Checked(f"TCP at {mbit:.0f} Mbit/s", "Mbit/s", mbit, measured, 0.05)


def queues(program: Path) -> Iterator[Checked]:
    """How long a packet waits in a full one."""
    for kib in (128.0, 512.0):
        with Network(program, two(Way(delay_ms=10, rate_mbit=50, queue_kib=kib))) as network:
            flood = between(network, "flood", "60", "1472", "4")
            waited = kib * 1024 * 8 / 50e3
            measured = flood["steady_ms"] - flood["shortest_ms"]
            yield Checked(f"wait in a full queue of {kib:.0f} KiB", "ms", waited, measured, 0.05, 2)


def losses(program: Path) -> Iterator[Checked]:
    """The share of packets that are lost, within three standard deviations."""
    for loss in (0.001, 0.01, 0.05):
        with Network(program, two(Way(delay_ms=10, loss=loss))) as network:
            flood = between(network, "flood", "10", "200", "4")
            deviation = 3 * math.sqrt(loss * (1 - loss) / flood["sent"])
            measured = 1 - flood["packets"] / flood["sent"]
            name = f"loss of {flood['sent']} packets"
            yield Checked(name, "%", 100 * loss, 100 * measured, 0.0, 100 * deviation)


def caps(program: Path) -> Iterator[Checked]:
    """Caps of connections: several have as many times as much, up to the rate of the path."""
    way = Way(delay_ms=10, rate_mbit=200, queue_kib=1024, flow_mbit=50, flow_queue_kib=256)
    for streams in (1, 2, 4, 8):
        with Network(program, two(way)) as network:
            stream = between(network, "stream", str(streams), "5")
            measured = stream["mbit"] * WIRE_BYTES / PAYLOAD_BYTES
            asked = min(200.0, 50.0 * streams)
            yield Checked(f"{streams} connections of 50 Mbit/s", "Mbit/s", asked, measured, 0.05)


def faults(program: Path) -> Iterator[Checked]:
    """Answers that come: of ten, while something is broken, and after it is whole again."""
    topology = wan_topology.regions(wan_topology.FOUR_REGIONS, "cubic")
    with Network(program, topology) as network:
        for broken, whole, pairs in (
            ("partition 0,1|2,3", "heal", {(0, 1): 10, (1, 2): 0, (2, 3): 10}),
            ("hole 2", "unhole 2", {(0, 1): 10, (0, 2): 0}),
            ("cut 1 0", "join 1 0", {(0, 1): 0, (0, 2): 10}),
        ):
            network.command(broken)
            for (source, target), asked in pairs.items():
                name = f"{broken}: answers from {target} to {source}"
                yield Checked(name, "of 10", asked, len(echo(network, source, target, 10, 5)), 0)
            network.command(whole)
            yield Checked(f"{whole}: answers", "of 10", 10, len(echo(network, 0, 2, 10, 5)), 0)
        network.command("path 0 2 delay_us=100000")
        trips = echo(network, 0, 2, 10, 5)
        changed = 100 + topology.paths[2, 0].delay_ms
        yield Checked("a delay changed at run time", "ms", changed, statistics.median(trips), 0.02)


CHECKS: list[Callable[[Path], Iterator[Checked]]] = [
    *(delays, jitter, rates, queues, losses, caps, faults),
]


def run(*, as_json: bool, out: Path) -> list[Row]:
    """Checks all of it; prints and writes the rows. Raises RuntimeError if something is wrong."""
    status, program = Console(stderr=True), wan_network.build()
    report = Report(f"{BENCH}_verify", out, as_json=as_json)
    made, wrong = _table(), []
    for check in CHECKS:
        for one in until_right(check, program, status):
            case = f"verify/{check.__name__}/{one.name}"
            report.add([Row(BENCH, case, "measured", one.measured, one.unit, "asked", one.asked)])
            verdict = "" if one.is_right else "differs"
            made.add_row(one.name, f"{one.asked:.4g}", f"{one.measured:.4g}", one.unit, verdict)
            if not one.is_right:
                wrong.append(one.name)
    rows = report.finish(made)
    if wrong:
        raise RuntimeError(f"not as asked, maybe as the machine is busy: {', '.join(wrong)}")
    return rows


def until_right(
    check: Callable[[Path], Iterator[Checked]], program: Path, status: Console
) -> list[Checked]:
    """The last of at most three times: a machine that stands still for a moment shows in all."""
    for _ in range(TRIES_MAX):
        status.print(f"{check.__name__} ...", highlight=False)
        found = list(check(program))
        if all(one.is_right for one in found):
            break
    return found


def _table() -> Table:
    made = Table(title="the emulated network", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("property", "asked", "measured", "", " "):
        is_number = heading in ("asked", "measured")
        made.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    return made
