"""The current action of a peer of a chaos run, readable after it was killed or frozen.

A few words in a file that both sides map: the peer writes as it goes, and the orchestrator looks
at the instant of a fault. No message could say this: a killed process sends none.
"""

from __future__ import annotations

import enum
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_LAYOUT = struct.Struct("<6Q")


class Phase(enum.IntEnum):
    """Where a peer is in its life."""

    STARTING = 0
    CONNECTING = 1
    ENTERING = 2  # prepared, and before its first safe point
    WORKING = 3
    LEAVING = 4


@dataclass(frozen=True)
class Glance:
    """One look at a marker."""

    phase: Phase
    epoch: int
    round: int
    in_flight: int
    begun: int
    incarnation: int


class Marker:
    """The mapped words. Made by the orchestrator (`create`), opened by the peer."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    @classmethod
    def create(cls, path: Path) -> Self:
        path.write_bytes(bytes(_LAYOUT.size))
        return cls(path)

    def look(self) -> Glance:
        phase, *rest = _LAYOUT.unpack_from(self._map)
        return Glance(Phase(phase), *rest)

    def write(self, glance: Glance) -> None:
        _LAYOUT.pack_into(
            self._map,
            0,
            glance.phase,
            glance.epoch,
            glance.round,
            glance.in_flight,
            glance.begun,
            glance.incarnation,
        )

    def clear(self) -> None:
        """For the next process, which has not begun."""
        self._map[:] = bytes(_LAYOUT.size)

    def close(self) -> None:
        self._map.close()
