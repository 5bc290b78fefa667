"""Networks for the benchmark of long links: what each looks like, and the least time over it.

It owns the description and the arithmetic, both pure; the emulator that makes such a network is
started by wan_network.py, and the cases are in wan_cases.py.

Rates count the bytes of IP packets, as those of a provider do: of 1500 bytes TCP carries 1448.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

Pair = tuple[int, int]

WIRE_BYTES, PAYLOAD_BYTES = 1500, 1448
BITS_OF_F32 = 32

# Typical round trips between regions of clouds, in ms.
ROUND_TRIPS_MS = {
    ("us-east", "us-west"): 62,
    ("us-east", "eu-west"): 70,
    ("us-east", "eu-central"): 90,
    ("us-west", "eu-west"): 130,
    ("us-west", "eu-central"): 150,
    ("eu-west", "eu-central"): 22,
    ("us-east", "eu-north"): 110,
    ("us-west", "eu-north"): 165,
    ("eu-west", "eu-north"): 40,
    ("eu-central", "eu-north"): 24,
    ("us-east", "asia-east"): 150,
    ("us-west", "asia-east"): 100,
    ("eu-west", "asia-east"): 210,
    ("eu-central", "asia-east"): 225,
    ("eu-north", "asia-east"): 245,
    ("us-east", "asia-south"): 215,
    ("us-west", "asia-south"): 165,
    ("eu-west", "asia-south"): 175,
    ("eu-central", "asia-south"): 160,
    ("eu-north", "asia-south"): 180,
    ("asia-east", "asia-south"): 70,
    ("us-east", "south-america"): 115,
    ("us-west", "south-america"): 175,
    ("eu-west", "south-america"): 185,
    ("eu-central", "south-america"): 200,
    ("eu-north", "south-america"): 215,
    ("asia-east", "south-america"): 260,
    ("asia-south", "south-america"): 320,
}
FOUR_REGIONS = ["us-east", "us-west", "eu-west", "eu-central"]
EIGHT_REGIONS = [*FOUR_REGIONS, "eu-north", "asia-east", "asia-south", "south-america"]
REGION_MBIT = 200.0


@dataclass(frozen=True)
class Path:
    """The way from one node to another. A rate of 0 is none; queues hold 50 ms of their rate."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_mbit: float = 0.0
    queue_kib: float = 0.0  # 0: the default of the emulator
    loss: float = 0.0
    flow_mbit: float = 0.0  # the cap of each connection
    flow_queue_kib: float = 0.0

    def settings(self) -> str:
        """For the emulator (bench/wan/control.zig)."""
        return (
            f"delay_us={round(self.delay_ms * 1e3)} jitter_us={round(self.jitter_ms * 1e3)} "
            f"rate_kbit={round(self.rate_mbit * 1e3)} queue_bytes={round(self.queue_kib * 1024)} "
            f"loss_ppm={round(self.loss * 1e6)} flow_kbit={round(self.flow_mbit * 1e3)} "
            f"flow_queue_bytes={round(self.flow_queue_kib * 1024)}"
        )


@dataclass(frozen=True)
class Topology:
    """Rates of the nodes, up and down, and the way between each two. `congestion`: of TCP."""

    up_mbit: tuple[float, ...]
    down_mbit: tuple[float, ...]
    paths: dict[Pair, Path]
    congestion: str = "bbr"
    names: tuple[str, ...] = field(default=())

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self.up_mbit)

    def commands(self) -> list[str]:
        """The network, for the emulator (bench/wan/control.zig)."""
        nodes = [
            f"node {node} up_kbit={round(self.up_mbit[node] * 1e3)} "
            f"down_kbit={round(self.down_mbit[node] * 1e3)}"
            for node in range(self.count)
        ]
        return nodes + [
            f"path {source} {target} {path.settings()}"
            for (source, target), path in sorted(self.paths.items())
        ]

    def with_node(self, node: int, mbit: float) -> Topology:
        """The same with another rate of one node, up and down."""
        up, down = list(self.up_mbit), list(self.down_mbit)
        up[node] = down[node] = mbit
        return replace(self, up_mbit=tuple(up), down_mbit=tuple(down))

    def with_pair(self, one: int, other: int, mbit: float) -> Topology:
        """The same with another rate between two nodes, both ways."""
        changed = {
            pair: replace(self.paths[pair], rate_mbit=mbit) for pair in ((one, other), (other, one))
        }
        return replace(self, paths={**self.paths, **changed})


def regions(names: list[str], congestion: str, *, loss: float = 0.0, flow: float = 0.0) -> Topology:
    """A node in each region, 200 Mbit/s for each node and each path."""
    either = {**ROUND_TRIPS_MS, **{(b, a): ms for (a, b), ms in ROUND_TRIPS_MS.items()}}
    paths = {
        (source, target): Path(
            delay_ms=either[names[source], names[target]] / 2,
            rate_mbit=REGION_MBIT,
            loss=loss,
            flow_mbit=flow,
        )
        for source, target in itertools.permutations(range(len(names)), 2)
    }
    rates = (REGION_MBIT,) * len(names)
    return Topology(rates, rates, paths, congestion, tuple(names))


def pair(mbit: float, round_trip_ms: float, congestion: str) -> Topology:
    """Two nodes."""
    path = Path(delay_ms=round_trip_ms / 2, rate_mbit=mbit)
    return Topology((mbit, mbit), (mbit, mbit), {(0, 1): path, (1, 0): path}, congestion)


def clusters(
    sizes: list[int], *, inside: tuple[float, float], across: tuple[float, float], congestion: str
) -> Topology:
    """Clusters of nodes without limits of their own. Mbit/s and round trip in ms, of each pair."""
    of = [cluster for cluster, size in enumerate(sizes) for _ in range(size)]
    paths = {}
    for source, target in itertools.permutations(range(len(of)), 2):
        mbit, round_trip_ms = inside if of[source] == of[target] else across
        paths[source, target] = Path(delay_ms=round_trip_ms / 2, rate_mbit=mbit)
    return Topology((0.0,) * len(of), (0.0,) * len(of), paths, congestion)


# ---- the least time


def seconds_at(mbit: float, size: float) -> float:
    """How long so many bytes of payload take at a rate; 0: without one."""
    return size * 8 * WIRE_BYTES / PAYLOAD_BYTES / (mbit * 1e6) if mbit > 0 else 0.0


def all_reduce_bound(topology: Topology, size: float, bits: float = BITS_OF_F32) -> float:
    """The least seconds of an all_reduce of f32, with so many bits on the wire for each element.

    Each element is added n - 1 times and told n - 1 times, whoever does it: all nodes together
    send 2 (n-1) of the size, and receive as much. And through each cut goes the size, both ways.
    """
    moved = size * bits / BITS_OF_F32
    n = topology.count
    bounds = [
        seconds_at(sum(rates), 2 * (n - 1) * moved)
        for rates in (topology.up_mbit, topology.down_mbit)
        if all(rates)
    ]
    for chosen in range(1, 2**n - 1):
        side = [node for node in range(n) if chosen >> node & 1]
        bounds.append(seconds_at(cut_mbit(topology, side), moved))
    return max(bounds)


def agreed_bound(topology: Topology, sources: list[int], coordinator: int) -> float:
    """The least seconds until each node knows that all have what these sources send, however
    little that is: it reaches a node over the longest of their ways, the vote of the node goes to
    the coordinator, and the decision on all votes comes back.
    """

    def delay_ms(source: int, target: int) -> float:
        return 0.0 if source == target else topology.paths[source, target].delay_ms

    nodes = range(topology.count)
    votes = (
        max((delay_ms(source, node) for source in sources), default=0.0)
        + delay_ms(node, coordinator)
        for node in nodes
    )
    return (max(votes) + max(delay_ms(coordinator, node) for node in nodes)) / 1e3


def cut_mbit(topology: Topology, side: list[int]) -> float:
    """The most that goes from the nodes of one side to all others at once; 0: without a limit.

    Each source is limited by its uplink or by its paths: the least over all choices.
    """
    others = [node for node in range(topology.count) if node not in side]
    least = math.inf
    for full in itertools.product([False, True], repeat=len(side)):
        total = sum(_limit(topology.up_mbit[a]) for a, up in zip(side, full, strict=True) if up)
        rest = [a for a, up in zip(side, full, strict=True) if not up]
        for b in others:
            into = sum(_limit(topology.paths[a, b].rate_mbit) for a in rest)
            total += min(_limit(topology.down_mbit[b]), into)
        least = min(least, total)
    return 0.0 if math.isinf(least) else least


def newcomer_bound(topology: Topology, size: float, newcomer: int, sources: list[int]) -> float:
    """The least seconds in which one node gets so many bytes from others."""
    into = sum(
        min(_limit(topology.up_mbit[source]), _limit(topology.paths[source, newcomer].rate_mbit))
        for source in sources
    )
    rate = min(into, _limit(topology.down_mbit[newcomer]))
    return seconds_at(0.0 if math.isinf(rate) else rate, size)


def without(topology: Topology, node: int) -> Topology:
    """The network of those that are left."""
    left = [other for other in range(topology.count) if other != node]
    paths = {
        (left.index(source), left.index(target)): path
        for (source, target), path in topology.paths.items()
        if node not in (source, target)
    }
    up = tuple(topology.up_mbit[other] for other in left)
    down = tuple(topology.down_mbit[other] for other in left)
    return Topology(up, down, paths, topology.congestion)


def _limit(mbit: float) -> float:
    return mbit if mbit > 0 else math.inf
