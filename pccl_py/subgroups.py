"""Sub-groups: which members of an epoch make a group of their own, and what it is called.

Pure values: communicator.py calls the members together, and enters. A founder that is lost
meanwhile is left out by the coordinator (docs/PROTOCOL.md, sub-groups).
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from pccl_py.errors import InvalidArgument
from pccl_py.words import index

# As engine/base/limits.zig has it.
NAME_BYTES_MAX = 256

# Whether there is a wish at all, whether it has a color, color, key, and how many splits of the
# epoch its peer has made. The shard of a lost peer is zeros.
_WISH = struct.Struct("<??qqQ")


@dataclass(frozen=True, slots=True)
class Run:
    """The groups that the last `split` of a communicator made, as all its members know them.

    `epoch`: the epoch of the communicator that was split. `rank`: of this peer in it. `colors`: the
    color of each rank; None for a rank that takes part in no group, or was lost. A peer that is
    lost after it has said its color still counts.
    """

    epoch: int
    rank: int
    colors: tuple[int | None, ...]

    @property
    def world_size(self) -> int:
        """Number of members of the epoch."""
        return len(self.colors)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self._sizes())

    @property
    def largest_group(self) -> int:
        """Number of members of the largest group; 0 if there is none."""
        return max(self._sizes().values(), default=0)

    def _sizes(self) -> Counter[int]:
        return Counter(color for color in self.colors if color is not None)


@dataclass(frozen=True, slots=True)
class Wish:
    """One member's word in a split. `splits`: how many it has made in this epoch."""

    color: int | None
    key: int
    splits: int

    def encode(self) -> bytes:
        return _WISH.pack(True, self.color is not None, self.color or 0, self.key, self.splits)


def wish_of(color: SupportsIndex | None, key: SupportsIndex, splits: int) -> Wish:
    """Raises TypeError or InvalidArgument, before anybody is asked."""
    return Wish(None if color is None else _signed(color, "color"), _signed(key, "key"), splits)


def _signed(value: SupportsIndex, name: str) -> int:
    number = index(value, name)
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidArgument(f"{name} must be between -2**63 and 2**63 - 1, not {number}")
    return number


@dataclass(frozen=True, slots=True)
class Split:
    """The wishes of all members, the same on all."""

    epoch: int
    wishes: tuple[Wish | None, ...]

    @classmethod
    def decode(cls, epoch: int, memory: bytes | bytearray) -> Split:
        wishes = (
            Wish(color if has_color else None, key, splits) if there else None
            for there, has_color, color, key, splits in _WISH.iter_unpack(memory)
        )
        return cls(epoch, tuple(wishes))

    @property
    def number(self) -> int:
        """The number of this split in its epoch. Some may have counted one that failed."""
        return max(wish.splits for wish in self.wishes if wish is not None)

    def run(self, rank: int) -> Run:
        colors = (None if wish is None else wish.color for wish in self.wishes)
        return Run(self.epoch, rank, tuple(colors))

    def ranks(self, color: int) -> list[int]:
        """The ranks of this color, by their keys and then by themselves."""
        found = [
            (wish.key, rank)
            for rank, wish in enumerate(self.wishes)
            if wish is not None and wish.color == color
        ]
        return [rank for _, rank in sorted(found)]

    def name(self, parent: str, color: int) -> str:
        return _name(parent, f"@{self.epoch}.{self.number}:{color}")


def room_for(world_size: int) -> bytearray:
    """For the wishes of all."""
    return bytearray(_WISH.size * world_size)


def name_of(parent: str, epoch: int, name: str) -> str:
    """The name of a sub-group that was made of ranks: those of two epochs are never the same."""
    return _name(parent, f"@{epoch}:{name}")


def _name(parent: str, rest: str) -> str:
    """A name may be too long with its parent's in front; then a hash stands for that."""
    name = parent + rest
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    return hashlib.blake2b(parent.encode(), digest_size=8).hexdigest() + rest


def ranks_of(ranks: Sequence[SupportsIndex], world_size: int) -> list[int]:
    """Ranks of an epoch, each once. Raises InvalidArgument or TypeError."""
    numbers = [index(rank, "a rank") for rank in ranks]
    for number in numbers:
        if not 0 <= number < world_size:
            raise InvalidArgument(f"rank {number} is not in a world of {world_size}")
    if len(set(numbers)) != len(numbers):
        raise InvalidArgument(f"ranks {numbers} name one rank twice")
    return numbers
