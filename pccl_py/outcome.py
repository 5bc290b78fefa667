"""Answers of operations and safe points: frozen values, and names for people in them.

They are filled from what the native library reports: in work.py, shared_state.py and
communicator.py. The promises of an outcome are in docs/PROMISE.md (P1, P4).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from pccl_py.errors import InvalidUsage, PcclError
from pccl_py.words import PeerId


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of one epoch in rank order, and their labels."""

    epoch: int
    members: tuple[PeerId, ...]
    labels: tuple[str, ...]

    def label(self, peer: PeerId) -> str:
        """The label of a member; the beginning of the id of any other peer."""
        return self.labels[self.members.index(peer)] if peer in self.members else peer.short

    def named(self, peer: PeerId) -> str:
        """A member as errors name it: "rank 1 (node7:4242, 7f3a01c2)"."""
        if peer not in self.members:
            return f"peer {peer.short}"
        rank = self.members.index(peer)
        return f"rank {rank} ({self.labels[rank]}, {peer.short})"


NOBODY = Roster(0, (), ())
# Epochs of a group of which an outcome that is asked for late still has names.
ROSTERS_KEPT = 16


class Rosters:
    """The last epochs of a group. Any thread may call any method.

    `now` tells the members of the epoch in force, or None if that cannot be told.
    """

    def __init__(self, now: Callable[[], Roster | None]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._by_epoch: dict[int, Roster] = {}

    def learn(self) -> None:
        """Keeps the members of the epoch in force; the oldest one gives way."""
        roster = self._now()
        if roster is None:
            return
        with self._lock:
            if roster.epoch not in self._by_epoch:
                kept = [*self._by_epoch.values()][1 - ROSTERS_KEPT :]
                self._by_epoch = {one.epoch: one for one in (*kept, roster)}

    def of(self, epoch: int) -> Roster:
        """The members of an epoch; nobody, if it is not known.

        Also while another thread is still in the `admit` that has entered it.
        """
        if epoch not in self._by_epoch:
            self.learn()
        return self._by_epoch.get(epoch, NOBODY)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The call and the group that an operation and its errors belong to.

    `of_all`: all members of the group take part, and have the same answer; else two of them.
    """

    operation: str
    group: str
    rosters: Rosters
    of_all: bool

    def mark(self, error: BaseException) -> None:
        """Tells an error where it comes from."""
        if isinstance(error, PcclError):
            error._origin = self


def _listed(roster: Roster, peers: Iterable[PeerId]) -> str:
    return ", ".join(roster.named(peer) for peer in peers) or "nobody"


@dataclass(frozen=True, slots=True)
class Range:
    """Elements [begin, end) of a result and who contributed to them, each exactly once.

    str() names them with ranks and labels.
    """

    begin: int
    end: int
    contributors: tuple[PeerId, ...]
    roster: Roster = field(default=NOBODY, repr=False, compare=False)

    def __str__(self) -> str:
        return f"[{self.begin}, {self.end}): {_listed(self.roster, self.contributors)}"


def _ranks(epoch: int, roster: Roster, peers: Iterable[PeerId]) -> tuple[int, ...]:
    if not roster.members:
        raise InvalidUsage(f"the members of epoch {epoch} are not known any more")
    return tuple(map(roster.members.index, peers))


PlanTaken = Literal["ring", "direct", "message"]
# By the numbers of pccl_plan_t.
PLANS_TAKEN: dict[int, PlanTaken] = {1: "ring", 2: "direct", 3: "message"}


def figure(ns: int) -> float | None:
    """Seconds; None for 0, which stands for a figure that is not known."""
    return ns / 1e9 if ns else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A committed operation. Equal on every peer but for the bytes and the times, and the ranges
    where each peer has a result of its own.

    `tag`, `sequence` and `epoch` name the operation in its group; `attempts` is 1 without a loss,
    and counts those that this peer took part in.
    `digest` is the digest of the result, 32 hexadecimal digits, zeros where each peer has a result
    of its own. `ranges` lists the contributors. A range ends where the contributors change:
    without a loss there is one range, or one for each shard that has elements (all_gather, gather,
    all_to_all), and none for an empty result. Elements lost with their only source have no
    contributor; adjoining shards that were lost share a range, so find a rank's shard by its place
    (`begin`, `end`) and not by the number of the range. Sizes are payload bytes that this peer sent
    and received; `duration` is seconds from the call to the commit. `roster` has the members of the
    epoch, from which `ranks`, `labels` and str() take the names of the contributors: as they were
    in that epoch, whatever has become of the group since.
    `plan` is the way that the data took: "ring", "direct" or "message". `predicted` is the seconds
    that this was to take when the last attempt began, by the rates that members had found on their
    links, and `bound` the least seconds that any plan needs at these rates; None where some of them
    was not known (docs/PERFORMANCE.md).
    """

    epoch: int
    tag: int
    sequence: int
    attempts: int
    digest: str
    ranges: tuple[Range, ...]
    bytes_sent: int
    bytes_received: int
    duration: float
    plan: PlanTaken = "ring"
    predicted: float | None = None
    bound: float | None = None
    roster: Roster = field(default=NOBODY, repr=False, compare=False)

    def __str__(self) -> str:
        ranges = "; ".join(map(str, self.ranges)) or "nothing"
        name = f"tag {self.tag} sequence {self.sequence} of epoch {self.epoch}"
        again = f" in attempt {self.attempts}" if self.attempts > 1 else ""
        return f"{name} committed{again}: {ranges}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of `contributors`, in their order, as they were in the epoch.

        Raises InvalidUsage if the epoch's members are not known, as of an outcome that was first
        asked for many epochs later.
        """
        return _ranks(self.epoch, self.roster, self.contributors)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of `contributors`, in their order, as they were in the epoch."""
        return tuple(self.roster.label(peer) for peer in self.contributors)

    @property
    def contributors(self) -> tuple[PeerId, ...]:
        """The contributors to any range, in the order in which the ranges name them.

        For a reduction whose ranges all agree, as without a loss or with recovery "restart", this
        is the contributor set of the whole result, in rank order. For a gather or an exchange it
        has all peers whose shards are there.
        """
        return tuple(dict.fromkeys(peer for part in self.ranges for peer in part.contributors))


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """A committed sync of a shared state.

    The revisions, `epoch`, `sequence`, `contributors` and `holders` are equal on every peer (with
    one exception: `holders`, if the coordinator was started again in the middle).
    `elected_revision` is that of the elected content, `revision` that of the state from now on;
    `attempts` is 1 without a loss. `contributors` are the members that took part, in rank order:
    the content is that of one of them. `holders` are those of them that held it when it was
    elected. `ranks` and `labels` name the contributors, from `roster`, the members of the epoch.
    From the `leaves` of the state (256 KiB each), `leaves_moved` came in here, from `sources`
    members, and `leaves_early` more had differed and were fetched before the sync, in the
    background. `bytes_sent` and `bytes_received` are bytes of tensors that this peer sent and
    received in this sync, `hash_bytes_sent` and `hash_bytes_received` those of hashes. `duration`
    is seconds from the call to the commit, `hash_duration` those of it that went into hashing this
    peer's tensors.
    """

    revision: int
    elected_revision: int
    epoch: int
    sequence: int
    attempts: int
    sources: int
    leaves: int
    leaves_moved: int
    leaves_early: int
    bytes_sent: int
    bytes_received: int
    hash_bytes_sent: int
    hash_bytes_received: int
    duration: float
    hash_duration: float
    contributors: tuple[PeerId, ...]
    holders: tuple[PeerId, ...]
    roster: Roster = field(default=NOBODY, repr=False, compare=False)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of `contributors`, in their order, as they were in the epoch."""
        return _ranks(self.epoch, self.roster, self.contributors)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of `contributors`, in their order, as they were in the epoch."""
        return tuple(self.roster.label(peer) for peer in self.contributors)


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision of a safe point; the same on every member but for `rank` and `not_entered`.

    `changed` says whether this call entered a new epoch; only then are `joined` and `left` filled,
    and the labels of both, in the same order; and `not_entered`, the members of which this peer did
    not know then that they have come to this safe point, too (now: `Group.not_entered`).
    """

    epoch: int
    rank: int
    world_size: int
    joined: tuple[PeerId, ...]
    left: tuple[PeerId, ...]
    changed: bool
    joined_labels: tuple[str, ...] = ()
    left_labels: tuple[str, ...] = ()
    not_entered: tuple[PeerId, ...] = ()

    def __str__(self) -> str:
        says = f"rank {self.rank} of {self.world_size} in epoch {self.epoch}"
        for verb, peers, labels in (
            ("joined", self.joined, self.joined_labels),
            ("left", self.left, self.left_labels),
        ):
            if peers:
                named = zip(peers, labels, strict=True)
                says += f"; {verb}: " + ", ".join(f"{label} ({p.short})" for p, label in named)
        return says
