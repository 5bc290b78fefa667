"""Kinds of calls, with the numbers of pccl_collective_t and of bindings/jax_handlers.h."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The operation that a call makes."""

    ALL_REDUCE = 0
    BROADCAST = 1
    REDUCE = 4
    REDUCE_SCATTER = 5
    ALL_GATHER = 6
    SCATTER = 7
    GATHER = 8
    ALL_TO_ALL = 9
    BARRIER = 16
    SEND = 17
    RECV = 18


# Their results have the shapes of their operands.
WHOLE = frozenset([Kind.ALL_REDUCE, Kind.BROADCAST, Kind.REDUCE])
ADDING = frozenset([Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER])
