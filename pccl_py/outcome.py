"""Results of operations and safe points: frozen values, and names of peers for people.

work.py, shared_state.py and communicator.py make these values from reports of the native library.
docs/internals/PROMISE.md has the promises of an outcome (P1, P4).
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
        """The label of `peer` if it is a member, else the beginning of its id."""
        return self.labels[self.members.index(peer)] if peer in self.members else peer.short

    def named(self, peer: PeerId) -> str:
        """A member as errors name it: "rank 1 (node7:4242, 7f3a01c2)"."""
        if peer not in self.members:
            return f"peer {peer.short}"
        rank = self.members.index(peer)
        return f"rank {rank} ({self.labels[rank]}, {peer.short})"


NOBODY = Roster(0, (), ())
# How many epochs of a group keep the members' names, for outcomes that are read late.
ROSTERS_KEPT = 16


class Rosters:
    """The members of the last epochs of a group. Any thread may call any method.

    `now` returns the members of the epoch in force, or None if they are not known.
    """

    def __init__(self, now: Callable[[], Roster | None]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._by_epoch: dict[int, Roster] = {}

    def learn(self) -> None:
        """Keeps the members of the epoch in force; beyond ROSTERS_KEPT epochs drops the oldest."""
        roster = self._now()
        if roster is None:
            return
        with self._lock:
            if roster.epoch not in self._by_epoch:
                kept = [*self._by_epoch.values()][1 - ROSTERS_KEPT :]
                self._by_epoch = {one.epoch: one for one in (*kept, roster)}

    def of(self, epoch: int) -> Roster:
        """The members of an epoch; NOBODY if they are not known.

        The members are known even while another thread is still in the `admit` that enters the
        epoch.
        """
        if epoch not in self._by_epoch:
            self.learn()
        return self._by_epoch.get(epoch, NOBODY)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The call and the group that an operation and its errors belong to.

    `of_all`: all members of the group take part and get the same answer; false for a message
    between two members.
    """

    operation: str
    group: str
    rosters: Rosters
    of_all: bool

    def mark(self, error: BaseException) -> None:
        """Gives a PcclError this origin, from which `operation` and `group` follow."""
        if isinstance(error, PcclError):
            error._origin = self


def _listed(roster: Roster, peers: Iterable[PeerId]) -> str:
    return ", ".join(roster.named(peer) for peer in peers) or "nobody"


@dataclass(frozen=True, slots=True)
class Range:
    """Elements [begin, end) of a result and their contributors, each of which counts exactly once.

    str() names the contributors with ranks and labels.
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
# The names of plans that data can take, by their numbers in pccl_plan_t.
PLANS_TAKEN: dict[int, PlanTaken] = {1: "ring", 2: "direct", 3: "message"}


def figure(ns: int) -> float | None:
    """Converts nanoseconds to seconds; 0 stands for an unknown figure and gives None."""
    return ns / 1e9 if ns else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A committed operation.

    An outcome is equal on every peer, except for bytes and times, and for the ranges of an
    operation that gives each peer a result of its own.

    `tag`, `sequence` and `epoch` name the operation in its group. `attempts` counts the attempts
    that this peer took part in: 1 without a loss. `digest` is the digest of the result, 32
    hexadecimal digits; zeros where each peer has a result of its own. `ranges` lists the
    contributors; a range ends where the contributors change. Without a loss there is one range, or
    one range for each shard that has elements (all_gather, gather, all_to_all), and no range for an
    empty result. Elements that were lost with their only source have no contributor. Adjoining lost
    shards share a range, so find a rank's shard by its place (`begin`, `end`) and not by the number
    of its range. `bytes_sent` and `bytes_received` are payload of this peer; `duration` is seconds
    from the call to the commit. `roster` has the members of the epoch, from which `ranks`, `labels`
    and str() take the names of contributors, as they were in that epoch. `plan` is the way that the
    data took: "ring", "direct" or "message". `predicted` is how many seconds the operation was
    expected to take when its last attempt began, by the rates that members had found on their
    links. `bound` is the least seconds that any plan needs at these rates. `predicted` and `bound`
    are None if a rate was not known (docs/guides/PERFORMANCE.md).
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

        Raises InvalidUsage if the members of the epoch are not known any more, as for an outcome
        that is read many epochs later.
        """
        return _ranks(self.epoch, self.roster, self.contributors)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of `contributors`, in their order, as they were in the epoch."""
        return tuple(self.roster.label(peer) for peer in self.contributors)

    @property
    def contributors(self) -> tuple[PeerId, ...]:
        """The contributors to any range, in the order in which the ranges name them.

        For a reduction whose ranges all agree, as without a loss or with recovery "restart", these
        are the contributors to the whole result, in rank order. For a gather or an exchange these
        are the peers whose shards arrived.
        """
        return tuple(dict.fromkeys(peer for part in self.ranges for peer in part.contributors))


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """A committed sync of a shared state.

    The revisions, `epoch`, `sequence`, `contributors` and `holders` are equal on every peer (except
    `holders`, if the coordinator was started again during the sync). `elected_revision` is the
    revision of the elected content, `revision` the revision of the state from now on; `attempts` is
    1 without a loss. `contributors` are the members that took part, in rank order; the elected
    content is that of a contributor. `holders` are the contributors that held this content when it
    was elected. `ranks` and `labels` name the contributors, from `roster`, the members of the
    epoch. The state has `leaves` of 256 KiB: this peer received `leaves_moved` of them in this
    sync, from `sources` members, and had fetched `leaves_early` more in the background before it.
    `bytes_sent` and `bytes_received` are bytes of tensors that this peer sent and received in this
    sync, `hash_bytes_sent` and `hash_bytes_received` bytes of hashes. `duration` is seconds from
    the call to the commit, of which `hash_duration` went into hashing this peer's tensors.
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
    """The decision of a safe point, the same on every member except for `rank` and `not_entered`.

    `changed` says whether the call entered a new epoch; if not, all tuples are empty. `joined` and
    `left` are the peers that joined and left, `joined_labels` and `left_labels` their labels in the
    same order. `not_entered` are the members that, as far as this peer knew, had not entered the
    new epoch yet (`Group.not_entered` says which have not by now).
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
