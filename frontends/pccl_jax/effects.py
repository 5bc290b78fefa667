"""Effects: what keeps collectives in the order of the program, over all programs of a thread.

JAX threads a token of XLA through all calls that share an ordered effect: in jit, in loops and
branches, and from one program to the next. There is one effect for each order (communicators.py),
so that groups do not wait for each other. A call that has no order is kept, and that is all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pccl_jax.versions import (
    Effect,
    effect_sets,
    keep_in_loops,
    ordered_effects,
    shardable_ordered_effects,
)


class Ordered(Effect):  # type: ignore[misc]
    """The effect of calls that keep one order."""

    def __init__(self, order: str) -> None:
        self.order = order

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ordered) or isinstance(other, OrderedOnDevices):
            return False
        return other.order == self.order

    def __hash__(self) -> int:
        return hash((Ordered, self.order))

    def __repr__(self) -> str:
        return f"PCCL[{self.order}]"


@functools.cache
def _type_of(order: str) -> Callable[[], Ordered]:
    """A type without arguments: a program that is written to a file has the name of its type."""

    def init(self: Any) -> None:
        Ordered.__init__(self, order)

    made = type(f"Ordered[{order}]", (Ordered,), {"__init__": init, "__module__": __name__})
    effect_sets[0].add_type(made)  # where a program that is read looks for it
    return made


class OrderedOnDevices(Ordered):
    """The effect of calls of programs on several devices, which keep one order on each of them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderedOnDevices) and other.order == self.order

    def __hash__(self) -> int:
        return hash((OrderedOnDevices, self.order))

    def __repr__(self) -> str:
        return f"PCCL[{self.order}, on each device]"


class Unordered(Effect):  # type: ignore[misc]
    """The effect of calls that the data alone puts in order."""

    def __repr__(self) -> str:
        return "PCCL"


UNORDERED = Unordered()

for _known in effect_sets:
    _known.add_type(Ordered)
    _known.add_type(OrderedOnDevices)
    _known.add_type(Unordered)
ordered_effects.add_type(Ordered)
ordered_effects.add_type(OrderedOnDevices)
shardable_ordered_effects.add_type(OrderedOnDevices)
keep_in_loops(lambda effect: isinstance(effect, Ordered | Unordered))


def effect_of(order: str | None) -> Any:
    """The effect of a call with this order, or with none."""
    return UNORDERED if order is None else _type_of(order)()


def is_ours(effect: object) -> bool:
    """Whether it is an order of collectives."""
    return isinstance(effect, Ordered)
