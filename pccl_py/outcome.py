"""Answers of operations and safe points: plain frozen values, without behaviour of their own.

They are filled in work.py, communicator.py and shared_state.py with what the native library
reports. The promises
of an outcome are in docs/PROMISE.md (P1, P4).
"""

from __future__ import annotations

from dataclasses import dataclass

from pccl_py.words import PeerId


@dataclass(frozen=True, slots=True)
class Range:
    """Elements [begin, end) of a result and their contributors, each counted exactly once."""

    begin: int
    end: int
    contributors: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A committed operation. Equal on every peer but for the bytes and the duration, and the ranges
    where each peer has a result of its own.

    `tag`, `sequence` and `epoch` name the operation in its group; `attempts` is 1 without a loss,
    and counts those that this peer took part in.
    `digest` is the digest of the result, 32 hexadecimal digits, zeros where each peer has a result
    of its own. `ranges` lists the contributors. A range ends where the contributors change:
    without a loss there is one range, or one for each shard that has elements (all_gather, gather,
    all_to_all), and none for an empty result. Elements lost with their only source have no
    contributor; adjoining shards that were lost share a range, so find a rank's shard by its place
    (`begin`, `end`) and not by the number of the range. Sizes are payload bytes that this peer sent
    and received; `duration` is seconds from the call to the commit.
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

    `revision`, `epoch` and `sequence` are equal on every peer. `revision` is that of the state from
    now on, `attempts` is 1 without a loss. From the `leaves` of the state (256 KiB each),
    `leaves_moved` came in here, from `sources` members, and `leaves_early` more had differed and
    were fetched before the sync, in the background. Sizes are payload bytes of this sync that this
    peer sent and received; `duration` is seconds from the call to the commit, `hash_duration` those
    of it that went into hashing this peer's tensors.
    """

    revision: int
    epoch: int
    sequence: int
    attempts: int
    sources: int
    leaves: int
    leaves_moved: int
    leaves_early: int
    bytes_sent: int
    bytes_received: int
    duration: float
    hash_duration: float


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision of a safe point; the same on every member but for `rank`.

    `changed` says whether this call entered a new epoch; only then are `joined` and `left` filled.
    """

    epoch: int
    rank: int
    world_size: int
    joined: tuple[PeerId, ...]
    left: tuple[PeerId, ...]
    changed: bool
