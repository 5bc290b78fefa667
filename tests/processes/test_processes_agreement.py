"""Peers that do not call the same: every peer is told who and what differs, and nothing moves.

Disagreement inside one process is in tests/python; here every peer is a process, and what is
looked at is that nobody's memory changes and that the next operation works.
"""

from __future__ import annotations

from typing import Any

import contributions
import numpy as np
import oracle
import pytest
from peers import World, ask_all

COUNT = 50_001

# The call of the odd peer, and that of the others, as arguments of the request `run`.
ALL_REDUCE = {"kind": "all_reduce", "array": "x"}
DISAGREEMENTS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "count": ({**ALL_REDUCE, "array": "short"}, ALL_REDUCE, ("50000", "50001")),
    "dtype": ({**ALL_REDUCE, "array": "signed"}, ALL_REDUCE, ("i64", "u64")),
    "op": ({**ALL_REDUCE, "op": "max"}, ALL_REDUCE, ("max", "sum")),
    "kind": ({"kind": "broadcast", "array": "x"}, ALL_REDUCE, ("broadcast", "all_reduce")),
    "no data at all": ({"kind": "barrier"}, ALL_REDUCE, ("barrier", "all_reduce")),
    "recovery": ({**ALL_REDUCE, "recovery": "raise"}, ALL_REDUCE, ("recovery raise",)),
    "root": (
        {"kind": "broadcast", "array": "x", "root": 1},
        {"kind": "broadcast", "array": "x", "root": 2},
        ("02020202", "03030303"),
    ),
    "avg of what others sum": ({**ALL_REDUCE, "op": "avg"}, ALL_REDUCE, ("avg", "sum")),
}


@pytest.mark.parametrize("odd", [0, 1, 3])
@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_every_peer_is_told_both_descriptors_and_keeps_its_array(what: str, odd: int) -> None:
    other_call, call, words = DISAGREEMENTS[what]
    with World(4) as world:
        world.all("make", name="x", of="digits", count=COUNT, salt=1)
        world.all("make", name="short", of="digits", count=COUNT - 1, salt=1)
        signed = {"of": "mixed", "dtype": "i64", "count": COUNT, "seed": 1}
        world.all("make", name="signed", **signed)
        for peer in world.peers:
            peer.send("run", **(other_call if peer.number == odd else call))
        for peer in world.peers:
            raised = peer.failure()
            assert raised.kind == "Mismatch", raised
            # Peers are named by their ids, and this one as such.
            said = raised.message.replace("(this peer)", peer.name)
            for word in (*words, world.peers[odd].name):
                assert word in said, f"{word!r} is not in {raised.message!r}"
            others = [other.name for other in world.peers if other.number != odd]
            assert any(name in said for name in others), raised.message
        for peer in world.peers:
            assert np.array_equal(peer.read("x"), contributions.digits(peer.number, COUNT, 1))
            mixed = contributions.make(peer.number, signed)
            assert np.array_equal(peer.read("signed").view(np.int64), mixed)

        outcomes = world.all("run", kind="all_reduce", array="x")
        oracle.check_agreement(outcomes)
        assert outcomes[0]["sequence"] == 1, "the failed call used no number"
        for peer, outcome in zip(world.peers, outcomes, strict=True):
            oracle.check(outcome, peer.read("x"), 1)


def test_a_disagreement_on_one_tag_leaves_the_others_alone() -> None:
    with World(3) as world:
        for tag in range(4):
            world.all("make", name=f"x{tag}", of="digits", count=COUNT, salt=tag)
        for peer in world.peers:
            for tag in range(4):
                op = "max" if (tag, peer.number) == (2, 1) else "sum"
                call = {"kind": "all_reduce", "array": f"x{tag}", "tag": tag, "op": op}
                peer.ask("begin", work=f"w{tag}", **call)
        for tag in (0, 1, 3):
            outcomes = ask_all(world.peers, "wait", work=f"w{tag}")
            oracle.check_agreement(outcomes)
            for peer, outcome in zip(world.peers, outcomes, strict=True):
                oracle.check(outcome, peer.read(f"x{tag}"), tag)
        for peer in world.peers:
            peer.send("wait", work="w2")
            assert peer.failure().kind == "Mismatch"
            assert np.array_equal(peer.read("x2"), contributions.digits(peer.number, COUNT, 2))
