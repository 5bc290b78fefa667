"""The calls of a chaos run, drawn alike on each peer: one Round after each safe point.

It follows from the seed, the epoch and the number of safe points since it began, so a newcomer
takes it up without a word. Used by chaos_peer.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

COUNTS = (1, 7, 1_000, 20_011, 60_013, 120_011)
COUNT_WEIGHTS = (1, 1, 2, 4, 6, 4)
TAGS_MAX = 3
STATE_TAG = 7
CARRIED_TAG = 8  # and the three after it: of the operation in flight across the next safe point
RECOVERIES = ("resume", "restart", "raise")
PLANS = ("ring", "direct")


@dataclass(frozen=True)
class Call:
    """One operation. `root` is a rank for a broadcast, and None for an all_reduce."""

    index: int
    tag: int
    count: int
    recovery: str
    in_place: bool
    root: int | None
    salt: int
    plan: str

    @property
    def may_abort(self) -> bool:
        """A loss may end it with Aborted; what resumes or restarts must not."""
        return self.recovery == "raise" or self.root is not None


def draw(seed: int, epoch: int, number: int, world_size: int) -> list[Call]:
    """The calls of a round, the carried one last."""
    source = random.Random(f"{seed}/{epoch}/{number}")
    calls = [
        _call(source, index, tag=index, world_size=world_size)
        for index in range(source.randint(1, TAGS_MAX))
    ]
    # Still in flight when the next one begins, in the next round or epoch.
    tag = CARRIED_TAG + 2 * (epoch % 2) + number % 2
    return [*calls, _call(source, len(calls), tag=tag, world_size=world_size)]


def _call(source: random.Random, index: int, tag: int, world_size: int) -> Call:
    broadcast = source.random() < 0.1
    return Call(
        index=index,
        tag=tag,
        count=source.choices(COUNTS, COUNT_WEIGHTS)[0],
        recovery=source.choice(RECOVERIES),
        in_place=broadcast or source.random() < 0.7,
        root=source.randrange(world_size) if broadcast else None,
        salt=source.randrange(7),
        plan=source.choice(PLANS),
    )
