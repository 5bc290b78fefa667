"""Waiting for the members of a new group: in `dist.new_group` (start.py), and in its first call.

A group begins when all of its members have asked for it, and then made their first call in it
(backend.py). If a member is lost before the group begins, the group never begins, and the other
members get an error that names the lost member.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

import pccl_py as pccl
from pccl_py import Aborted, Communicator, DeadlineExceeded, Group, PcclError, PeerId

log = logging.getLogger("pccl.torch")

# `found` looks for lost members after the first of these times, then at intervals that double up to
# the second.
_ASK_SECONDS_MIN = 1.0
_ASK_SECONDS_MAX = 16.0
# `Missing` asks the coordinator this long before the deadline, but not before half of the time is
# over; the coordinator may take as long to answer.
_MISSING_SECONDS = 2.0


class Missing:
    """Finds out, while a `with` block waits, which members of a group have not come.

    A timer asks the coordinator shortly before the deadline: the coordinator forgets ended waits.
    """

    def __init__(
        self, comm: Group, token: str, name: str, peers: Sequence[PeerId], seconds: float
    ) -> None:
        self._comm = comm
        self._token = token
        self._name = name
        self._peers = peers
        self._missing: list[PeerId] = []
        self._labels: dict[PeerId, str] = {}
        self.has_begun = False
        """Whether the group has begun without this process, which then waits as a newcomer."""
        late = max(seconds - _MISSING_SECONDS, seconds / 2)
        self._timer = threading.Timer(min(late, threading.TIMEOUT_MAX), self._ask)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        self._timer.join()

    def _ask(self) -> None:
        try:
            told: list[dict[str, Any]] = pccl.run_status(self._token, _MISSING_SECONDS)["groups"]
        except PcclError as error:
            log.info("group %r: it cannot be said who is missing: %s", self._name, error)
            return
        for group in told:
            if group["name"] == self._name:
                self.has_begun = bool(group["epochs"])
                self._labels = {PeerId(each["peer_id"]): each["label"] for each in group["pending"]}
                awaited = {PeerId(each) for each in group["awaited"]}
                there = {self._comm.peer_id, *(self._labels.keys() - awaited)}
                self._missing = [peer for peer in self._peers if peer not in there]

    def __str__(self) -> str:
        if not self._missing:
            return "other members"
        return _named(self._comm, self._peers, self._missing, self._labels)


def found(
    comm: Communicator, token: str, name: str, peers: Sequence[PeerId], seconds: float
) -> Group:
    """The new group `name` of `peers`, members of the default group `comm`.

    Returns when all of `peers` have asked for the group; the caller sets its deadline. Raises
    Aborted if a member is lost, DeadlineExceeded after `seconds`, and the errors of
    `pccl_py.Communicator.group`.
    """
    until = time.monotonic() + seconds
    asks = _ASK_SECONDS_MIN
    with Missing(comm, token, name, peers, seconds) as missing:
        while True:
            _check(comm, token, name, peers)
            left = max(1e-3, until - time.monotonic())
            try:
                return comm.group(name, initial_world_size=len(peers), deadline=min(asks, left))
            except DeadlineExceeded:
                if left <= asks:
                    break
                asks = min(2 * asks, _ASK_SECONDS_MAX)
        _check(comm, token, name, peers)
        raise DeadlineExceeded(
            f"new_group timed out: the timeout of {seconds:g} s passed, waiting for {missing} to "
            f"ask for group {name!r}. It is made of {_named(comm, peers, peers)}: all of them must "
            "ask for it, and as many groups before it"
        )


def _check(comm: Communicator, token: str, name: str, peers: Sequence[PeerId]) -> None:
    if comm.epoch == 0:  # only members of the default group learn of losses in it
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
    """Asks the coordinator for the members of the group that are not lost."""
    told: list[dict[str, Any]] = pccl.run_status(token)["groups"]
    (members,) = (group["epochs"][-1]["members"] for group in told if group["name"] == name)
    return {PeerId(each["peer_id"]) for each in members if each["alive"]}


def _named(
    comm: Group,
    ranked: Sequence[PeerId],
    peers: Sequence[PeerId],
    labels: Mapping[PeerId, str] = MappingProxyType({}),
) -> str:
    """Names `peers` by rank and label; `labels` has labels that `comm` may not know."""
    return " and ".join(
        f"rank {list(ranked).index(peer)} ({labels.get(peer) or comm.label(peer)})"
        for peer in peers
    )
