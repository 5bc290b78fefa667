"""Waiting for the members of a new group, as `dist.new_group` does (start.py).

A group begins when all that it is made of have asked for it. One of them may be lost, before that
or meanwhile: then it never begins, and all the others are told so, with who it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pccl_py as pccl
from pccl_py import Aborted, Communicator, DeadlineExceeded, Group, PeerId

# How long members are waited for, at first and at most, before it is asked who is lost.
_ASK_SECONDS_MIN = 1.0
_ASK_SECONDS_MAX = 16.0


def found(
    comm: Communicator, token: str, name: str, peers: Sequence[PeerId], seconds: float
) -> Group:
    """A group of these members of the default group `comm`, once all have asked for it.

    Raises Aborted if one of them is lost, DeadlineExceeded after `seconds`, and the errors of
    `pccl_py.Communicator.group`.
    """
    until = time.monotonic() + seconds
    asks = _ASK_SECONDS_MIN
    while True:
        _check(comm, token, name, peers)
        left = max(1e-3, until - time.monotonic())
        try:
            return comm.group(name, initial_world_size=len(peers), deadline=min(asks, left))
        except DeadlineExceeded as error:
            if left > asks:
                asks = min(2 * asks, _ASK_SECONDS_MAX)
                continue
            _check(comm, token, name, peers)
            raise DeadlineExceeded(
                f"{error}. It is made of {_named(comm, peers, peers)}: all of them must ask for "
                "it, and as many groups before it"
            ) from None


def _check(comm: Communicator, token: str, name: str, peers: Sequence[PeerId]) -> None:
    if comm.epoch == 0:  # it is not in the default group yet, which tells of losses
        return
    now = comm.info()
    if now.alive == now.world_size:
        return
    there = _alive(token, comm.name)
    lost = [peer for peer in peers if peer not in there]
    if lost:
        raise Aborted(
            f"group {name!r} cannot begin without {_named(comm, comm.members, lost)} of the "
            "default group, which left or were lost: call pccl_torch.admit() in all members, and "
            "make it again"
        )


def _alive(token: str, name: str) -> set[PeerId]:
    """Members of the group that are not lost, as the coordinator knows it."""
    told: list[dict[str, Any]] = pccl.run_status(token)["groups"]
    (members,) = (group["epochs"][-1]["members"] for group in told if group["name"] == name)
    return {PeerId(each["peer_id"]) for each in members if each["alive"]}


def _named(comm: Communicator, ranked: Sequence[PeerId], peers: Sequence[PeerId]) -> str:
    return " and ".join(f"rank {list(ranked).index(peer)} ({comm.label(peer)})" for peer in peers)
