"""The cases of the benchmark of long links: a table. Each has a network, a work and a bound.

It owns what is measured, and the aims, which are shares of the bound, or seconds. How it is
measured is in wan_measure.py.

The work of a case: `all_reduce` of one size; `first`, the same on connections that are new;
`together`, calls that begin at once or a little later under tags of their own; `kill`, an
all_reduce in which the last peer is killed half way; `sync`, of a state that the last peer lacks;
`broadcast`, from rank 0; `barrier`, which has no data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from bench import wan_topology as topologies
from bench.common import KIB, MIB
from bench.wan_topology import Topology

Work = Literal["all_reduce", "first", "together", "kill", "sync", "broadcast", "barrier"]
Plan = Literal["auto", "ring", "direct"]
Disturbance = Literal["none", "lossy", "reset"]
Control = Literal["system", "bbr", "cubic"]

PAUSE_SECONDS = 1.5
LONG_PAUSE_SECONDS = 12.0
SHORT_PAUSE_SECONDS = 0.4
BLOCKS = (3, 2)  # operations that are counted, after one that is not
BLOCKS_OF_SMALL = (5, 5)
BITS = {"none": 32.0, "int8": 8.125, "int4": 4.125}  # of an element, with the scale of its block
RESET_EVERY_SECONDS = 1.0
LANE_LOSS = 0.05
EU_WEST = topologies.FOUR_REGIONS.index("eu-west")
KILL_SECONDS = 0.5  # what a kill may cost beside one operation of those that are left


@dataclass(frozen=True)
class Call:
    """One call of a work that has several. `after`: seconds after the first begins."""

    size: int
    after: float = 0.0


@dataclass(frozen=True)
class Case:
    """One line of the table. `share`, `seconds`: the aim, of the bound or absolute."""

    name: str
    topology: Topology
    size: int = 64 * MIB
    work: Work = "all_reduce"
    codec: str = "none"
    plan: Plan = "auto"
    calls: tuple[Call, ...] = ()
    pause: float = PAUSE_SECONDS
    blocks: tuple[int, ...] = BLOCKS
    coordinator: int = 0  # the rank whose process has it
    lanes: int | None = None  # between two peers; None: the default
    control: Control | None = None  # congestion control that our lanes keep; None: the default
    disturbance: Disturbance = "none"
    share: float | None = None
    seconds: float | None = None
    quick: bool = False

    @property
    def world(self) -> int:
        """How many peers it has."""
        return self.topology.count

    @property
    def all_bytes(self) -> int:
        """The sizes of its calls, summed."""
        return sum(call.size for call in self.calls) or self.size

    @property
    def is_of_others(self) -> bool:
        """Whether another library has the same call: without anything that is ours alone."""
        is_plain = self.codec == "none" and self.plan == "auto" and self.coordinator == 0
        is_known = self.work in ("all_reduce", "first", "broadcast", "barrier")
        return is_plain and is_known and self.disturbance == "none"

    def bound(self) -> float:
        """The least seconds that this network allows."""
        if self.work == "sync":
            last = self.world - 1
            return topologies.newcomer_bound(self.topology, self.size, last, list(range(last)))
        if self.work == "kill":  # the half that is left, from the kill on
            return left_bound(self.topology, self.size) / 2
        if self.work == "barrier":
            return topologies.agreed_bound(self.topology, [], self.coordinator)
        if self.work == "broadcast":  # through the cut around its root
            moved = topologies.seconds_at(topologies.cut_mbit(self.topology, [0]), self.size)
            return max(moved, topologies.agreed_bound(self.topology, [0], self.coordinator))
        moved = topologies.all_reduce_bound(self.topology, self.all_bytes, BITS[self.codec])
        everyone = list(range(self.world))
        return max(moved, topologies.agreed_bound(self.topology, everyone, self.coordinator))


def left_bound(topology: Topology, size: int) -> float:
    """The least seconds of an all_reduce of all but the last peer."""
    left = topologies.without(topology, topology.count - 1)
    return topologies.all_reduce_bound(left, size)


def even(congestion: str, *, loss: float = 0.0, flow: float = 0.0) -> Topology:
    """Four regions with equal rates."""
    return topologies.regions(topologies.FOUR_REGIONS, congestion, loss=loss, flow=flow)


def table() -> list[Case]:
    """All cases, in the order in which they are measured."""
    two = topologies.pair(500.0, 100.0, "cubic")
    two_regions = topologies.regions(topologies.FOUR_REGIONS[:2], "bbr")
    calls = tuple(Call(8 * MIB) for _ in range(8))
    inside, across = (2000.0, 1.0), (50.0, 80.0)
    bbr, cubic = even("bbr"), even("cubic")
    beside = (Call(64 * MIB), Call(4 * KIB, after=1.0))
    large = topologies.all_reduce_bound(bbr, 256 * MIB) / 0.96  # seconds, by the aim
    return [
        Case("even-bbr", bbr, share=0.90),
        Case("even-cubic", cubic, share=0.90, quick=True),
        Case("even-cubic-pause12", cubic, pause=LONG_PAUSE_SECONDS, share=0.85),
        Case("first-bbr", bbr, work="first", share=0.80),
        Case("first-cubic", cubic, work="first", share=0.80),
        Case("large-bbr", bbr, 256 * MIB, share=0.96),
        Case("large-cubic", cubic, 256 * MIB, share=0.96),
        Case("flow50-bbr", even("bbr", flow=50.0), share=0.90),
        Case("flow20-bbr", even("bbr", flow=20.0)),
        Case("loss-0.01-cubic", even("cubic", loss=1e-4), share=0.85),
        Case("loss-0.1-bbr", even("bbr", loss=1e-3), share=0.85),
        Case("loss-1-bbr", even("bbr", loss=1e-2), share=0.80),
        Case("loss-0.1-cubic", even("cubic", loss=1e-3), control="cubic", share=0.65),
        Case("pair-64", two, share=0.70),
        Case("pair-256", two, 256 * MIB, share=0.90),
        Case("int8", bbr, codec="int8", seconds=1.4),
        Case("int4", bbr, codec="int4", seconds=0.95),
        Case("int8-256", bbr, 256 * MIB, codec="int8", seconds=large / 3.5),
        Case("int4-256", bbr, 256 * MIB, codec="int4", seconds=large / 6.0),
        Case("small-alone", bbr, 4 * KIB),
        Case("small-beside", bbr, work="together", calls=beside, share=0.90 * 0.98),
        Case("eight-at-once", bbr, work="together", calls=calls, share=0.90),
        Case("lane-lossy", bbr, lanes=8, disturbance="lossy", share=0.90 / 1.1),
        Case("lane-reset", bbr, lanes=8, disturbance="reset", share=0.90 / 1.1),
        Case("kill", bbr, work="kill", seconds=KILL_SECONDS + left_bound(bbr, 64 * MIB)),
        Case("sync-1", two_regions, work="sync", share=0.85),
        Case("sync-3", bbr, work="sync", share=0.90, quick=True),
        Case("thin-node", bbr.with_node(2, 50.0), share=0.88),
        Case("bad-pair", bbr.with_pair(1, 2, 20.0), share=0.88),
        Case(
            "clusters",
            topologies.clusters([4, 4], inside=inside, across=across, congestion="bbr"),
            share=0.50,
        ),
        Case("regions-8", topologies.regions(topologies.EIGHT_REGIONS, "bbr"), share=0.84),
        Case("fat", topologies.pair(1000.0, 150.0, "cubic"), 256 * MIB),
        Case("direct-bbr", bbr, plan="direct"),
        Case("direct-cubic", cubic, plan="direct"),
        *small_calls(bbr),
    ]


def small_calls(network: Topology) -> list[Case]:
    """Cases of calls whose time is that of their messages: ten each, with short pauses."""
    plain = Case("calls", network, pause=SHORT_PAUSE_SECONDS, blocks=BLOCKS_OF_SMALL)
    return [
        replace(plain, name="calls-4B", size=4),
        replace(plain, name="calls-4KiB", size=4 * KIB),
        replace(plain, name="calls-4KiB-direct", size=4 * KIB, plan="direct"),
        replace(plain, name="calls-4KiB-eu-west", size=4 * KIB, coordinator=EU_WEST),
        replace(plain, name="calls-64KiB", size=64 * KIB),
        replace(plain, name="calls-64KiB-direct", size=64 * KIB, plan="direct"),
        replace(plain, name="calls-1MiB", size=1 * MIB),
        replace(plain, name="calls-barrier", size=0, work="barrier"),
        replace(plain, name="calls-broadcast", size=4 * KIB, work="broadcast", quick=True),
    ]


def chosen(names: list[str] | None, *, quick: bool) -> list[Case]:
    """Those that are named, or whose names begin with a name and a dash; raises ValueError."""
    cases = table()
    if names:
        wanted = {case.name for name in names for case in named(cases, name)}
        cases = [case for case in cases if case.name in wanted]
    elif quick:
        cases = [case for case in cases if case.quick]
    return [smaller(case) for case in cases] if quick else cases


def named(cases: list[Case], name: str) -> list[Case]:
    """The one of this name, or else all of its like. Raises ValueError for none."""
    found = [case for case in cases if case.name == name]
    found = found or [case for case in cases if case.name.startswith(f"{name}-")]
    if not found:
        raise ValueError(f"{name}: there are {', '.join(case.name for case in cases)}")
    return found


def smaller(case: Case) -> Case:
    """The same with an eighth of the bytes and no aim, for a smoke run."""
    calls = tuple(replace(call, size=max(4 * KIB, call.size // 8)) for call in case.calls)
    size = min(case.size, max(4 * KIB, case.size // 8))
    blocks = (1,)
    return replace(case, size=size, calls=calls, pause=0.2, blocks=blocks, share=None, seconds=None)


def not_run(case: Case, algorithms: list[str], allowed: list[str]) -> str:
    """Why a case cannot be measured here; empty if it can be. `allowed`: those that each process
    may choose, as on a machine whose default they are.
    """
    congestion = case.topology.congestion
    if congestion not in algorithms:
        return f"this kernel has no {congestion} (net.ipv4.tcp_available_congestion_control)"
    if congestion not in allowed:
        wanted = " ".join([*allowed, congestion])
        return (
            f"no process may choose {congestion} here, as it may where that is the default: "
            f'sysctl -w net.ipv4.tcp_allowed_congestion_control="{wanted}"'
        )
    return ""
