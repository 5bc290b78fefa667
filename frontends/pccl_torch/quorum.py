"""Enters a new group whose members and ranks the program has chosen.

torchft.py enters a group for each quorum, start.py for each reconfigure of torch.distributed. Ranks
of pccl_py follow the ids of peers, so a process takes a new peer id for each group that it enters.
"""

from __future__ import annotations

import hashlib
import time

import pccl_py as pccl
from pccl_py import Communicator, PeerId
from pccl_py.errors import Aborted, DeadlineExceeded


def enter(
    token: str, name: str, rank: int, size: int, until: float, *, coordinator_stays: bool
) -> Communicator:
    """Connects to a run and enters a group of it as `rank`; returns when all members have entered.

    `name`: of a group that has never had members. `until`: the deadline in `time.monotonic()`.
    `coordinator_stays`: the coordinator outlives the members, so calls wait while it is away; else
    they end at once with CoordinatorUnreachable. Raises DeadlineExceeded, Aborted if the group has
    other members, and errors of `pccl_py.connect`.
    """
    comm = pccl.connect(
        token,
        group=name,
        initial_world_size=size,
        deadline=_left(until, name),
        connect_timeout=_left(until, name),
        peer_id=_peer(name, rank),
        reconnect_timeout=None if coordinator_stays else 0,
    )
    try:
        comm.admit(_left(until, name))
        if comm.members != tuple(_peer(name, rank) for rank in range(size)):
            raise Aborted(
                f"group {name!r} was to have {size} members, and has others: "
                f"{', '.join(comm.labels)}. Make another group"
            )
    except BaseException:
        comm.close()
        raise
    return comm


def _peer(name: str, rank: int) -> PeerId:
    """The peer id of `rank` in the group `name`: ids are in the order of ranks."""
    return PeerId(rank.to_bytes(2, "big") + hashlib.sha256(name.encode()).digest()[:14])


def _left(until: float, name: str) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(
            f"the making of group {name!r} timed out: probably one of its members is gone"
        )
    return left
