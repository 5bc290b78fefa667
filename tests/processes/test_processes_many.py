"""A peer is killed inside an all_reduce_many: survivors agree about each array, and what they hold
is what its outcome lists.

The victim kills itself at a named fault point of the engine, in the second call of a tag; the first
one is the warm-up. Which array that hits is the one that gets there first.
"""

from __future__ import annotations

import signal
from typing import Any

import oracle
import pytest
from peers import Peer, World, ask_all

COUNT = 50_001
ARRAYS = 9
NAMES = [f"x{number}" for number in range(ARRAYS)]
SETTINGS: dict[str, Any] = {"chunk_bytes": 4096, "heartbeat": 0.2, "silence": 10}
FIRST, STRUCK, AFTER = 0, 1, 2  # calls


def make(peers: list[Peer], call: int) -> None:
    for number, name in enumerate(NAMES):
        salt = ARRAYS * call + number
        ask_all(peers, "make", name=name, of="digits", count=COUNT + number, salt=salt)


def judge(peers: list[Peer], outcomes: list[list[dict[str, Any]]], call: int) -> list[set[int]]:
    """Each array is what its outcome lists, equally on all. Returns the contributors of each."""
    contributors = []
    for number, each in enumerate(zip(*outcomes, strict=True)):
        oracle.check_agreement(list(each))
        for peer, outcome in zip(peers, each, strict=True):
            assert outcome["tag"] == number
            oracle.check(outcome, peer.read(NAMES[number]), ARRAYS * call + number)
        ranges = each[0]["ranges"]
        assert len(ranges) == 1, "restarted and repeated calls have one contributor set"
        contributors.append(set(ranges[0]["contributors"]))
    return contributors


@pytest.mark.parametrize("recovery", ["restart", "raise"])
@pytest.mark.parametrize(("point", "fraction"), [("opened", 0.0), ("settled", 0.5), ("voted", 0.0)])
def test_a_peer_killed_inside_an_all_reduce_many(
    point: str, fraction: float, recovery: str
) -> None:
    fault = {"PCCL_FAULT_POINT": f"operation.{point}:{STRUCK}:{fraction}"}
    with World(4, environments={2: fault}, **SETTINGS) as world:
        everybody = world.peers
        survivors = [peer for peer in everybody if peer.number != 2]
        victim, left = everybody[2], {peer.number for peer in survivors}
        options = {"arrays": NAMES, "recovery": recovery, "in_flight": 3}
        make(everybody, FIRST)
        outcomes = world.all("reduce_many", **options)
        assert judge(everybody, outcomes, FIRST) == [{0, 1, 2, 3}] * ARRAYS

        make(everybody, STRUCK)
        for peer in everybody:
            peer.send("reduce_many", **options)
        assert victim.ended() == -signal.SIGKILL
        assert victim.silent(), "the call had returned before the fault hit"
        outcomes = [peer.answer() for peer in survivors]
        contributors = judge(survivors, outcomes, STRUCK)
        assert all(each in ({0, 1, 2, 3}, left) for each in contributors)
        assert contributors[-1] == left, "the victim was killed in one of the first"
        if recovery == "raise":
            repeated = [outcome["sequence"] - STRUCK for outcome in outcomes[0]]
            assert set(repeated) <= {0, 1} and (point == "voted" or 1 in repeated), repeated

        make(survivors, AFTER)
        outcomes = ask_all(survivors, "reduce_many", **options)
        assert judge(survivors, outcomes, AFTER) == [left] * ARRAYS
