"""Effects: what keeps collectives in the order of the program, over all programs of a thread.

JAX threads a token of XLA through all calls that share an ordered effect: in jit, in loops and
branches, and from one program to the next. All groups share one. With one for each, XLA would put
calls of different groups in an order of its own, and run them one by one: a peer that waits in one
group for a member that waits in the other is what an order is there to prevent.
"""

from __future__ import annotations

from pccl_jax.versions import (
    Effect,
    effect_sets,
    keep_in_loops,
    ordered_effects,
    shardable_ordered_effects,
)


class Ordered(Effect):  # type: ignore[misc]
    """The effect of calls that keep the order of the program.

    A program that is written to a file has the name of this type, and makes it without arguments.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "PCCL"


class OrderedOnDevices(Ordered):
    """The effect of calls of programs on several devices, which keep one order on each of them."""

    def __repr__(self) -> str:
        return "PCCL on each device"


ORDERED = Ordered()
ORDERED_ON_DEVICES = OrderedOnDevices()

for _known in effect_sets:
    _known.add_type(Ordered)
    _known.add_type(OrderedOnDevices)
ordered_effects.add_type(Ordered)
ordered_effects.add_type(OrderedOnDevices)
shardable_ordered_effects.add_type(OrderedOnDevices)
keep_in_loops(lambda effect: isinstance(effect, Ordered))


def is_ours(effect: object) -> bool:
    """Whether it is the order of collectives."""
    return isinstance(effect, Ordered)
