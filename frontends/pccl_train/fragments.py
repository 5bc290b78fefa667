"""Fragments: the parts of a model whose parameters are exchanged together, each in one vector.

A fragment has whole tensors, and every tensor of a model is in exactly one fragment, so that every
parameter is exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pccl_py.errors import InvalidArgument

Order: TypeAlias = Literal["strided", "balanced"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a model: its name, its shape, and the name of its dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of a fragment in the order in which its vector concatenates them.

    The tensors are sorted by name, so all peers have one order, even if their models differ in it.
    """

    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Number of elements of the fragment's vector."""
        return sum(tensor.size for tensor in self.tensors)

    def places(self) -> list[tuple[Tensor, slice]]:
        """Each tensor with elements, and its slice of the fragment's vector."""
        found, begin = [], 0
        for tensor in self.tensors:
            end = begin + tensor.size
            if tensor.size:
                found.append((tensor, slice(begin, end)))
            begin = end
        return found


def layouts(tensors: Sequence[Tensor], fragments: Iterable[Iterable[str]]) -> list[Layout]:
    """The layout of each fragment; `fragments` has the names of the tensors of each.

    Raises InvalidArgument, with the names, unless each tensor is in exactly one fragment.
    """
    known = {tensor.name: tensor for tensor in tensors}
    owner: dict[str, int] = {}
    made = []
    for number, names in enumerate(fragments):
        if isinstance(names, str):
            raise TypeError(f"fragment {number} must be a collection of names, not one str")
        own = list(names)
        for name in own:
            if name not in known:
                raise InvalidArgument(
                    f"fragment {number} names {name!r}, which the model has not; it has "
                    f"{_some(known)}"
                )
            if name in owner:
                raise InvalidArgument(
                    f"{name!r} is in fragment {owner[name]} and in fragment {number}: each tensor "
                    "must be in one"
                )
            owner[name] = number
        if not own:
            raise InvalidArgument(f"fragment {number} is empty: it must have at least one tensor")
        made.append(Layout(tuple(known[name] for name in sorted(own))))
    if missing := [name for name in known if name not in owner]:
        raise InvalidArgument(
            f"no fragment has {_some(missing)}: a tensor that is in none would never be exchanged"
        )
    return made


def split(tensors: Sequence[Tensor], count: int, order: Order = "balanced") -> list[list[str]]:
    """Divides the tensors into `count` fragments, and returns the names of each.

    "balanced": fragments have consecutive tensors, and sizes are as equal as whole tensors allow.
    "strided": fragment p has tensors p, p + count, ..., as Streaming DiLoCo distributes layers.
    Raises InvalidArgument for more fragments than tensors.
    """
    if order not in ("strided", "balanced"):
        raise InvalidArgument(f"order must be 'strided' or 'balanced', not {order!r}")
    if not 1 <= count <= len(tensors):
        raise InvalidArgument(
            f"{len(tensors)} tensors cannot be {count} fragments: each must have at least one"
        )
    names = [tensor.name for tensor in tensors]
    if order == "strided":
        return [names[p::count] for p in range(count)]
    total, taken = sum(tensor.size for tensor in tensors), 0
    made: list[list[str]] = [[] for _ in range(count)]
    at = 0
    for index, tensor in enumerate(tensors):
        left = len(tensors) - index
        # Begins the next fragment when this one has its share of the elements, or when there are
        # only as many tensors left as fragments.
        is_full = taken + tensor.size / 2 > total * (at + 1) / count
        if made[at] and at + 1 < count and (is_full or left <= count - at - 1):
            at += 1
        made[at].append(tensor.name)
        taken += tensor.size
    return made


def same_model(tensors: Sequence[Tensor], layout: Sequence[Layout]) -> None:
    """Raises InvalidArgument if the model's tensors have changed since `layout` was made."""
    then = {tensor.name: tensor for part in layout for tensor in part.tensors}
    now = {tensor.name: tensor for tensor in tensors}
    if added := [name for name in now if name not in then]:
        raise InvalidArgument(
            f"the model has got {_some(added)} since it was given: make a new DiLoCo, on all peers"
        )
    for name, tensor in then.items():
        if now.get(name) != tensor:
            raise InvalidArgument(
                f"the model had {tensor} when it was given, and has {now.get(name, 'nothing')} now"
            )


def _some(names: Iterable[str] | Mapping[str, object]) -> str:
    listed = list(names)
    shown = ", ".join(map(repr, listed[:4]))
    return shown if len(listed) <= 4 else f"{shown} and {len(listed) - 4} more"
