"""The news for peers, as numbers and dictionaries: ids, outcomes and admissions.

A peer number is a slot, 0 to 15, whose digit it has in the sums of the oracle, and the number of
those who had the slot before it, times 16. Programs of peers use this, and tests that read them.
"""

from __future__ import annotations

from typing import Any

from contributions import SLOTS

import pccl_py as pccl


def peer_id(number: int) -> pccl.PeerId:
    """Ids in the order of the slots, which is the order of the ranks in a first epoch."""
    incarnation, slot = divmod(number, SLOTS)
    filler = bytes([slot + 1])
    tail = incarnation ^ int.from_bytes(filler * 4)
    return pccl.PeerId(filler * 12 + tail.to_bytes(4))


def number_of(peer: bytes) -> int:
    """The inverse of `peer_id`."""
    filler = peer[:1]
    return filler[0] - 1 + SLOTS * (int.from_bytes(peer[12:16]) ^ int.from_bytes(filler * 4))


def outcome_fields(outcome: pccl.Outcome) -> dict[str, Any]:
    return {
        "epoch": outcome.epoch,
        "tag": outcome.tag,
        "sequence": outcome.sequence,
        "attempts": outcome.attempts,
        "digest": outcome.digest,
        "bytes_sent": outcome.bytes_sent,
        "bytes_received": outcome.bytes_received,
        "ranges": [
            {
                "begin": part.begin,
                "end": part.end,
                "contributors": [number_of(peer) for peer in part.contributors],
            }
            for part in outcome.ranges
        ],
    }


def admission_fields(admission: pccl.Admission) -> dict[str, Any]:
    return {
        "epoch": admission.epoch,
        "rank": admission.rank,
        "world_size": admission.world_size,
        "joined": [number_of(peer) for peer in admission.joined],
        "left": [number_of(peer) for peer in admission.left],
        "changed": admission.changed,
    }
