"""An all_reduce of the digit oracle by peers whose links break: begun, judged, and the way back.

The array is "x" on every peer. The world decides how links break: linked.py, switched.py.
"""

from __future__ import annotations

from typing import Any

import contributions
import numpy as np
import oracle
import pytest
from peers import Peer, Raised, World

COUNT = 200_003


def begin(peers: list[Peer], salt: int, count: int = COUNT, **options: Any) -> None:
    """The answers are still to be taken."""
    for peer in peers:
        peer.ask("make", name="x", of="digits", count=count, salt=salt)
    for peer in peers:
        peer.send("run", kind="all_reduce", array="x", **options)


def judge(peers: list[Peer], salt: int, count: int = COUNT) -> dict[str, Any]:
    """All succeed, agree, and hold what their outcomes say."""
    outcomes = [peer.answer() for peer in peers]
    oracle.check_agreement(outcomes)
    for peer, outcome in zip(peers, outcomes, strict=True):
        _check_result(peer, outcome, salt, count)
    return dict(outcomes[0])


def reduce(peers: list[Peer], salt: int) -> dict[str, Any]:
    begin(peers, salt)
    outcome = judge(peers, salt)
    oracle.check_contributors(outcome, [[peer.number for peer in peers]])
    return outcome


def check_untouched(peer: Peer, salt: int, count: int = COUNT) -> None:
    _check_array(peer, contributions.digits(peer.number, count, salt))


def _check_result(peer: Peer, outcome: dict[str, Any], salt: int, count: int) -> None:
    _check_array(peer, oracle.expected(outcome, count, salt))


def _check_array(peer: Peer, wanted: np.ndarray) -> None:
    if peer.ask("fingerprint", name="x") != oracle.fingerprint(wanted):
        pytest.fail(f"peer {peer.number}: {oracle.explain(peer.read('x'), wanted)}")


def judge_cut_off(peer: Peer, salt: int, outcome: dict[str, Any], count: int = COUNT) -> str:
    """A peer that the others went on without: it has their result, or an error and its input.

    `outcome` is theirs. The class of its error; empty for the result, which it then is in.
    """
    try:
        mine = peer.answer()
    except Raised as raised:
        if raised.kind not in ("Expelled", "CoordinatorUnreachable", "InDoubt"):
            raise
        check_untouched(peer, salt, count)
        return raised.kind
    oracle.check_agreement([outcome, mine])
    assert all(peer.number in part["contributors"] for part in mine["ranges"]), mine
    _check_result(peer, mine, salt, count)
    return ""


def rejoin(world: World, peer: Peer, others: list[Peer]) -> None:
    """A peer that was expelled comes back, as a new one of its slot."""
    peer.become(peer.number + contributions.SLOTS)
    peer.answer()
    world.begin_join(peer)
    for other in others:
        other.send("admit_until_joined", number=peer.number)
    for one in (peer, *others):
        assert peer.number in one.answer()["joined"]
