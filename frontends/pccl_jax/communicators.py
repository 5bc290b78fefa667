"""Communicators as operands: a Group is an argument of a jitted function like an array.

The one leaf of a Group is its handle, two u32. So a program serves every communicator, and is not
compiled again after a loss or a new `connect`. A trace may read the world size and the rank, which
JAX does not compare when it looks for a program. Such a trace tells `pccl_jax.jit` (compiled.py)
what it has read, and `pccl_jax.jit` traces again when that has changed. A function that closes
over a Group works, and is compiled again for another Group; such a Group also tells `pccl_jax.jit`
what a trace reads of it.
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

# The epoch in the name of a sub-group (pccl_py/communicator.py).
_EPOCH = re.compile(r"@\d+(\.\d+)?:")

_by_handle: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()


def group_of(handle: int) -> Group | None:
    """The Group of a handle that `words_of` returned; None if the Group no longer exists."""
    return _by_handle.get(handle)


def words_of(group: Group) -> Any:
    """The handle of a Group as a program's operand: two u32, the low word first."""
    handle = group.handle
    _by_handle[handle] = group
    return np.array([handle & 0xFFFFFFFF, handle >> 32], np.uint32)


def name_of(group: Group) -> str:
    """The group's name without epochs, so that a program serves a sub-group in every epoch."""
    return _EPOCH.sub("@:", group.name)


# ---- what a trace has read -----------------------------------------------------------------------


@dataclass
class Reads:
    """Which properties of which communicators the traces of a jitted function have read."""

    world_size: bool = False
    rank: bool = False
    epoch: bool = False
    groups: weakref.WeakSet[Group] = field(default_factory=weakref.WeakSet)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def add(self, group: Group) -> None:
        """Records that a trace has read `group`."""
        with self.mutex:
            self.groups.add(group)

    def closed_over(self) -> list[Group]:
        """The open groups that traces have read, sorted by name. Any thread may call this."""
        with self.mutex:
            groups = list(self.groups)
        return sorted((each for each in groups if not each.closed), key=lambda each: each.name)


class _Reading(threading.local):
    def __init__(self) -> None:
        self.now: list[Reads] = []


_reading = _Reading()


@contextmanager
def reading(reads: Reads) -> Iterator[None]:
    """In the `with` block, `reads` (and every enclosing `reading`) records what this thread reads
    of communicators."""
    _reading.now.append(reads)
    try:
        yield
    finally:
        _reading.now.pop()


def note(
    group: Group | None, *, world_size: bool = False, rank: bool = False, epoch: bool = False
) -> None:
    """Records in every enclosing `reading` that the trace depends on `group` and the flagged
    properties."""
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
    """The static part of a Group in a trace: equal for all groups of one `name_of`."""

    def __init__(self, name: str, group: Group | None = None) -> None:
        self.name = name
        # A weak reference to the Group; None in a program that was loaded from a file.
        self._group = None if group is None else weakref.ref(group)

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

    `world_size`, `rank` and `name` have their values at the time of tracing, and a program that
    reads them is compiled for these values. `pccl_jax.jit` traces again when a value has changed.
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
        """Number of members of the epoch at the time of tracing."""
        note(None, world_size=True)
        return self._static.group._admitted().world_size

    @property
    def rank(self) -> int:
        """Rank of this peer in the epoch at the time of tracing."""
        note(None, rank=True)
        return self._static.group._admitted().rank

    def admit(self, *_: object, **__: object) -> None:
        """Raises InvalidUsage: shapes may change at a safe point, so a program cannot pass one."""
        raise InvalidUsage("admit() inside of a traced function: call it outside, between steps")

    def __repr__(self) -> str:
        return f"<Traced {self._static!r}>"


Comm: TypeAlias = Group | Traced


class World(Protocol):
    """A rank and a world size, as pccl_py.rows needs them."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...


@dataclass(frozen=True)
class Place:
    """A world size and a rank. The default rank keeps a trace independent of this peer's rank."""

    world_size: int
    rank: int = 0


@dataclass(frozen=True)
class Operand:
    """The communicator of a call: its handle as an array, and the Group or Traced."""

    handle: Any
    comm: Comm

    @classmethod
    def of(cls, comm: Comm) -> Operand:
        """The operand of a Group or Traced; raises TypeError for anything else."""
        if isinstance(comm, Traced):
            return cls(comm._handle, comm)
        if isinstance(comm, Group):
            return cls(words_of(comm), comm)
        raise TypeError(
            f"comm must be a Communicator or a Group, not {type(comm).__name__}: pass it to the "
            "jitted function as an argument, or close over it"
        )

    def world_size(self) -> int:
        """Number of members of the epoch; reading it makes the trace depend on it."""
        return self.comm.world_size

    def rank(self) -> int:
        """Rank of this peer; reading it makes the trace depend on it."""
        return self.comm.rank

    def rank_of(self, member: Any, name: str) -> int | PeerId:
        """`member` as a rank or a peer id, checked now, or, in a trace, when the call runs."""
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
    # A program that jax.export serializes keeps only the name of its group.
    jax.export.register_pytree_node_serialization(
        _kind,
        serialized_name=f"pccl_jax.{_kind.__name__}",
        serialize_auxdata=lambda static: static.name.encode(),
        deserialize_auxdata=lambda name: Static(bytes(name).decode()),
    )
