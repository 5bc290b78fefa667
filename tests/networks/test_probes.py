"""Peers over long links that no operation has used yet find out what those carry, and peers that
take part in no probe are sent none. The network is the emulator of `bench wan`; the rules of
probes: engine/protocol/measurement.zig, engine/session/measure.zig.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from linked import await_condition

from bench import wan_network
from bench.wan_network import Network
from bench.wan_topology import Path as Way
from bench.wan_topology import Topology
from harness.child import Child

ROOT = Path(__file__).resolve().parents[2]
WORLD = 3
MBIT = 16.0
SECONDS_MAX = 60

# Rank 0 has the coordinator, and tells its token and each status. All begin to sum when told to.
PEER = """
import json, sys
import numpy as np
import pccl_py as pccl
rank, world, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def tell(said): print(json.dumps(said), flush=True)
coordinator = None
if rank == 0:
    coordinator = pccl.Coordinator(bind=f"{address}:0", initial_world_size=world)
    tell(coordinator.token)
token = input()
comm = pccl.connect(token, bind=f"{address}:0", peer_id=(1 + rank).to_bytes(16))
comm.admit(deadline=60)
tell("in")
while input() == "status":
    tell(pccl.run_status(token))
outcome = comm.all_reduce(np.ones(1000, np.float32), deadline=60)
tell([outcome.attempts, outcome.bound, comm.info().bytes_received])
input()
comm.close()
if coordinator: coordinator.close()
"""


@pytest.fixture
def network() -> Iterator[Network]:
    lacking = wan_network.missing()
    if lacking and os.environ.get("PCCL_GATE") and "install" in lacking:
        pytest.fail(lacking)
    if lacking:
        pytest.skip(lacking)
    way = Way(delay_ms=10, rate_mbit=MBIT)
    paths = dict.fromkeys(itertools.permutations(range(WORLD), 2), way)
    topology = Topology((MBIT,) * WORLD, (MBIT,) * WORLD, paths, "reno")
    with Network(wan_network.build(), topology) as made:
        yield made


class Peer:
    """A process on a node of the network."""

    def __init__(self, network: Network, rank: int, environment: dict[str, str]) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        arguments = [str(rank), str(WORLD), wan_network.address(rank)]
        self._child = Child(
            [*network.prefix(rank), sys.executable, "-c", PEER, *arguments],
            heard=self._lines.put,
            ended=lambda _: self._lines.put(None),
            environment=environment,
            folder=ROOT,
        )

    def say(self, line: str) -> None:
        self._child.say(line)

    def hear(self) -> object:
        line = self._lines.get(timeout=SECONDS_MAX)
        assert line is not None, self._child.errors
        return json.loads(line)

    def end(self) -> None:
        self._child.end()


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("off", [None, 2])
def test_links_that_nothing_has_used_are_probed(network: Network, off: int | None) -> None:
    """Goal: each link is known soon, without a call, and a peer that says so is left alone. Method:
    the rates that the status shows while nobody calls anything, and the bytes of each peer."""
    environments = [{"PCCL_PROBE": "off"} if rank == off else {} for rank in range(WORLD)]
    peers = [Peer(network, rank, environments[rank]) for rank in range(WORLD)]
    try:
        token = peers[0].hear()
        for peer in peers:
            peer.say(str(token))
        assert [peer.hear() for peer in peers] == ["in"] * WORLD
        pairs = [pair for pair in itertools.permutations(range(WORLD), 2) if off not in pair]
        rates = rates_of(peers[0], pairs)
        most = MBIT / 8 * 1e6
        # An emulator that has fallen behind catches up faster than the link is.
        assert all(most / 4 < rates[pair] < most * 1.5 for pair in pairs), rates
        for peer in peers:
            peer.say("sum")
        heard: list[Any] = [peer.hear() for peer in peers]
        for rank, (attempts, bound, received) in enumerate(heard):
            assert attempts == 1
            assert received < 100_000 if rank == off else received > 200_000
            assert bound is not None or off is not None
    finally:
        for peer in peers:
            peer.end()


def rates_of(peer: Peer, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """The most that the status shows of each link, once it shows something of all these."""
    rates: dict[tuple[int, int], float] = {}

    def are_known() -> bool:
        peer.say("status")
        status: Any = peer.hear()
        for rank, member in enumerate(status["groups"][0]["epochs"][-1]["members"]):
            for link in member["links"]:
                pair = (rank, link["rank"])
                rates[pair] = max(rates.get(pair, 0), link["rate"])
        return all(rates.get(pair, 0) > 0 for pair in pairs)

    await_condition(are_known, "probes of all links")
    return rates
