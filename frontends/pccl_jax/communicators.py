"""Communicators as operands: a Group is an argument of a jitted function like an array.

Its one leaf is its handle, two u32. So a compiled program serves every communicator, and is not
compiled again after a loss or a new `connect`. The size of the world and the rank, which are known
while tracing, are beside it, and do not count when JAX compares; a trace that reads them tells
`pccl_jax.jit` (compiled.py), which traces again where they have changed. A Group that a function
closes over is a constant of its program, and tells what a trace reads of it.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import jax
import jax.export
import numpy as np

from pccl_py import Communicator, Group, InvalidUsage, PeerId, communicator

# The names of sub-groups have the epoch in them (pccl_py/communicator.py).
_EPOCH = re.compile(r"@\d+(\.\d+)?:")

_by_handle: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()


def group_of(handle: int) -> Group | None:
    """The Group of a handle that was an operand, if it is still there."""
    return _by_handle.get(handle)


def words_of(group: Group) -> Any:
    """The handle of a Group as programs take it: two u32, the low one first."""
    handle = group.handle
    _by_handle[handle] = group
    return np.array([handle & 0xFFFFFFFF, handle >> 32], np.uint32)


def name_of(group: Group) -> str:
    """The name that programs are compiled for: sub-groups of all epochs have one."""
    return _EPOCH.sub("@:", group.name)


# ---- what a trace has read -----------------------------------------------------------------------


@dataclass
class Reads:
    """The things that traces of a jitted function have read of communicators."""

    world_size: bool = False
    rank: bool = False
    epoch: bool = False
    groups: weakref.WeakSet[Group] = field(default_factory=weakref.WeakSet)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def add(self, group: Group) -> None:
        """Notes that a trace depends on this group."""
        with self.mutex:
            self.groups.add(group)

    def closed_over(self) -> list[Group]:
        """Those that are there and open, by their names; other threads may add some meanwhile."""
        with self.mutex:
            groups = list(self.groups)
        return sorted((each for each in groups if not each.closed), key=lambda each: each.name)


class _Reading(threading.local):
    def __init__(self) -> None:
        self.now: list[Reads] = []


_reading = _Reading()


@contextmanager
def reading(reads: Reads) -> Iterator[None]:
    """Notes in `reads`, and in those around it, what is read of communicators meanwhile."""
    _reading.now.append(reads)
    try:
        yield
    finally:
        _reading.now.pop()


def note(
    group: Group | None, *, world_size: bool = False, rank: bool = False, epoch: bool = False
) -> None:
    """Notes that a trace depends on this group."""
    for reads in _reading.now:
        reads.world_size |= world_size
        reads.rank |= rank
        reads.epoch |= epoch
        if group is not None:
            reads.add(group)


def _note_read(group: Group, name: str) -> None:
    if _reading.now:
        note(
            group,
            world_size=name == "world_size",
            rank=name == "rank",
            epoch=name == "members",
        )


communicator.at_read.append(_note_read)


# ---- the operand ---------------------------------------------------------------------------------


class Static:
    """The part beside the handle: equal for all groups of one name."""

    def __init__(self, name: str, group: Group | None = None) -> None:
        self.name = name
        self._group = None if group is None else weakref.ref(group)  # none in a loaded program

    @property
    def group(self) -> Group:
        """The Group of the call that is being traced."""
        group = None if self._group is None else self._group()
        if group is None:
            raise InvalidUsage("the communicator of this trace is gone: pass one that is open")
        return group

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"group {self.name!r}"


class Traced:
    """A Group inside of a function that JAX traces: the `comm` of collectives there.

    It has `world_size`, `rank` and `name`, as they are while tracing: a program that has read them
    is made for them. `pccl_jax.jit` traces again where they have changed.
    """

    def __init__(self, handle: Any, static: Static) -> None:
        self._handle = handle
        self._static = static

    @property
    def name(self) -> str:
        """The group's name."""
        return self._static.group.name

    @property
    def world_size(self) -> int:
        """Number of members of the epoch, while tracing."""
        note(None, world_size=True)
        return self._static.group._admitted().world_size

    @property
    def rank(self) -> int:
        """Position of this peer in the epoch, while tracing."""
        note(None, rank=True)
        return self._static.group._admitted().rank

    def admit(self, *_: object, **__: object) -> None:
        """Refused: a program does not pass safe points, where its shapes would change."""
        raise InvalidUsage("admit() inside of a traced function: call it outside, between steps")

    def __repr__(self) -> str:
        return f"<Traced {self._static!r}>"


Comm: TypeAlias = Group | Traced


class World(Protocol):
    """As pccl_py.rows asks."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...


@dataclass(frozen=True)
class Place:
    """A world of which the rank does not matter, so that nothing depends on it."""

    world_size: int
    rank: int = 0


@dataclass(frozen=True)
class Operand:
    """A communicator as a call takes it."""

    handle: Any
    comm: Comm

    @classmethod
    def of(cls, comm: Comm) -> Operand:
        """Raises TypeError for anything else."""
        if isinstance(comm, Traced):
            return cls(comm._handle, comm)
        if isinstance(comm, Group):
            return cls(words_of(comm), comm)
        raise TypeError(
            f"comm must be a Communicator or a Group, not {type(comm).__name__}: pass it to the "
            "jitted function as an argument, or close over it"
        )

    def world_size(self) -> int:
        """The size of the epoch; the trace depends on it."""
        return self.comm.world_size

    def rank(self) -> int:
        """The rank of this peer; the trace depends on it."""
        return self.comm.rank

    def rank_of(self, member: Any, name: str) -> int | PeerId:
        """A rank or an id, checked where this can be done now; otherwise each call does it."""
        if isinstance(self.comm, Group) and not _reading.now:
            checked = self.comm._rank_of(member, name)
            return member if isinstance(member, PeerId) else checked
        if isinstance(member, PeerId):
            return member
        from pccl_py.words import index

        return index(member, name)


def _flatten(group: Group) -> tuple[tuple[Any], Static]:
    return (words_of(group),), Static(name_of(group), group)


def _flatten_traced(traced: Traced) -> tuple[tuple[Any], Static]:
    return (traced._handle,), traced._static


def _unflatten(static: Static, leaves: Any) -> Any:
    (handle,) = leaves
    return Traced(handle, static)


jax.tree_util.register_pytree_node(Group, _flatten, _unflatten)
jax.tree_util.register_pytree_node(Communicator, _flatten, _unflatten)
jax.tree_util.register_pytree_node(Traced, _flatten_traced, _unflatten)
for _kind in (Group, Communicator, Traced):
    # A program that is written to a file has the name of its group alone.
    jax.export.register_pytree_node_serialization(
        _kind,
        serialized_name=f"pccl_jax.{_kind.__name__}",
        serialize_auxdata=lambda static: static.name.encode(),
        deserialize_auxdata=lambda name: Static(bytes(name).decode()),
    )
