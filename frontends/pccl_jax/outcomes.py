"""Outcomes of calls in compiled programs: arrays to branch on inside of jit, and a pccl_py.Outcome.

A handler writes the outcome into one array of u32 words, laid out as in bindings/jax_handlers.h.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pccl_jax.communicators import group_of
from pccl_jax.versions import has_64_bits
from pccl_py import InvalidArgument, InvalidUsage, Outcome, PeerId, Range
from pccl_py.outcome import PLANS_TAKEN, figure

RANGES_MAX = 16
_HANDLE, _EPOCH, _TAG, _SEQUENCE, _SENT, _RECEIVED, _DURATION = 0, 2, 4, 6, 8, 10, 12
_ATTEMPTS, _RANGE_COUNT, _CONTRIBUTORS, _RANKS_KNOWN, _DIGEST = 14, 15, 16, 17, 18
_PREDICTED, _BOUND, _PLAN, _RANGES = 22, 24, 26, 27
_BIT_WORDS = 16
_RANGE_WORDS = 4 + _BIT_WORDS
WORDS = _RANGES + RANGES_MAX * _RANGE_WORDS


class OutcomeArrays(NamedTuple):
    """The outcome of a call as a pytree of arrays, which `return_outcome=True` returns.

    `contributors`: i32, number of ranks that contributed to any range. `attempts`: i32, number of
    attempts of the operation, 1 without a loss. `range_count`: i32, number of ranges. `epoch` and
    `sequence`: u64 with x64 on, else u32, with 2**32 - 1 for every greater number. `digest`: u32
    (4,). `begin` and `end`: first element and end of each range, (16,), of the dtype of `epoch`.
    `bits`: u32 (16, 16), for each range a bit for each rank, the first 32 ranks in the first word.
    If `range_count` is more than 16, the last range spans all remaining ranges, with a bit for each
    rank that contributed to any of them. `words`: the whole outcome, for `decode`.
    """

    contributors: Any
    attempts: Any
    epoch: Any
    sequence: Any
    digest: Any
    range_count: Any
    begin: Any
    end: Any
    bits: Any
    words: Any

    @classmethod
    def of(cls, words: Any) -> OutcomeArrays:
        """The outcome's arrays, cut out of the words that a handler has written."""
        ranges = words[_RANGES:].reshape(RANGES_MAX, _RANGE_WORDS)
        return cls(
            contributors=words[_CONTRIBUTORS].astype(np.int32),
            attempts=words[_ATTEMPTS].astype(np.int32),
            epoch=_number(words[_EPOCH : _EPOCH + 2]),
            sequence=_number(words[_SEQUENCE : _SEQUENCE + 2]),
            digest=words[_DIGEST : _DIGEST + 4],
            range_count=words[_RANGE_COUNT].astype(np.int32),
            begin=_number(ranges[:, 0:2]),
            end=_number(ranges[:, 2:4]),
            bits=ranges[:, 4:],
            words=words,
        )


def _number(pair: Any) -> Any:
    """The number in two u32 words, the low word first; without x64 at most 2**32 - 1."""
    low, high = pair[..., 0], pair[..., 1]
    if has_64_bits():
        return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    return jnp.where(high == 0, low, np.uint32(0xFFFFFFFF))


def encode(outcome: Outcome, handle: int) -> Any:
    """The words of an outcome, laid out as a handler writes them."""
    words = np.zeros(WORDS, np.uint32)
    for at, number in (
        (_HANDLE, handle),
        (_EPOCH, outcome.epoch),
        (_TAG, outcome.tag),
        (_SEQUENCE, outcome.sequence),
        (_SENT, outcome.bytes_sent),
        (_RECEIVED, outcome.bytes_received),
        (_DURATION, round(outcome.duration * 1e9)),
        (_PREDICTED, round((outcome.predicted or 0) * 1e9)),
        (_BOUND, round((outcome.bound or 0) * 1e9)),
    ):
        words[at : at + 2] = pair(number)
    members = outcome.roster.members
    words[_PLAN] = next(number for number, plan in PLANS_TAKEN.items() if plan == outcome.plan)
    words[_ATTEMPTS] = outcome.attempts
    words[_RANGE_COUNT] = len(outcome.ranges)
    words[_CONTRIBUTORS] = len(outcome.contributors)
    words[_RANKS_KNOWN] = bool(members)
    words[_DIGEST : _DIGEST + 4] = np.frombuffer(bytes.fromhex(outcome.digest), "<u4")
    ranges = words[_RANGES:].reshape(RANGES_MAX, _RANGE_WORDS)
    for index, each in enumerate(outcome.ranges):
        place = ranges[min(index, RANGES_MAX - 1)]
        if index < RANGES_MAX:
            place[0:2] = pair(each.begin)
        place[2:4] = pair(each.end)
        for peer in each.contributors if members else ():
            rank = members.index(peer)
            place[4 + rank // 32] |= np.uint32(1 << rank % 32)
    return words


def pair(number: int) -> tuple[int, int]:
    """A number of 64 bits as two u32 words, the low word first."""
    return number & 0xFFFFFFFF, number >> 32


def decode(outcome: OutcomeArrays) -> Outcome:
    """The `pccl_py.Outcome` of a call, outside of jit.

    A call may have more than 16 ranges, after a loss or as a gather in a larger world. The Outcome
    then has the first 15 ranges exactly, and one range that spans the others, with every
    contributor to any of the others. Calls of pccl_py and pccl_numpy return every range.

    Raises InvalidUsage if the members of the outcome's epoch are no longer known, or its
    communicator is gone. Raises InvalidArgument for the outcomes of several calls, such as a scan
    stacks: index them first (jax.tree.map(lambda each: each[0], ...)).
    """
    words = np.asarray(outcome.words)
    if words.shape != (WORDS,):
        raise InvalidArgument(
            f"an outcome has words of shape ({WORDS},), not {words.shape}: decode one at a time"
        )
    group = group_of(_whole(words, _HANDLE))
    if group is None:
        raise InvalidUsage("the communicator of this outcome is gone, and with it the peers' names")
    count = int(words[_RANGE_COUNT])
    epoch = _whole(words, _EPOCH)
    roster = group._rosters.of(epoch)
    if count > 0 and (not roster.members or not words[_RANKS_KNOWN]):
        raise InvalidUsage(f"the members of epoch {epoch} are not known any more")
    ranges = words[_RANGES:].reshape(RANGES_MAX, _RANGE_WORDS)[: min(count, RANGES_MAX)]
    return Outcome(
        epoch=epoch,
        tag=_whole(words, _TAG),
        sequence=_whole(words, _SEQUENCE),
        attempts=int(words[_ATTEMPTS]),
        digest=words[_DIGEST : _DIGEST + 4].astype("<u4").tobytes().hex(),
        ranges=tuple(
            Range(_whole(each, 0), _whole(each, 2), _peers(each[4:], roster.members), roster)
            for each in ranges
        ),
        bytes_sent=_whole(words, _SENT),
        bytes_received=_whole(words, _RECEIVED),
        duration=_whole(words, _DURATION) / 1e9,
        plan=PLANS_TAKEN[int(words[_PLAN])],
        predicted=figure(_whole(words, _PREDICTED)),
        bound=figure(_whole(words, _BOUND)),
        roster=roster,
    )


def _whole(words: Any, at: int) -> int:
    return int(words[at]) | int(words[at + 1]) << 32


def _peers(bits: Any, members: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    return tuple(
        member for rank, member in enumerate(members) if int(bits[rank // 32]) >> rank % 32 & 1
    )
