"""Effects: keep collectives in the order of the program, over all programs of a thread.

JAX passes one XLA token through all calls that share an ordered effect: in jit, in loops and
branches, and from one program to the next. All groups share one effect. With an effect for each
group, XLA would be free to reorder calls of different groups, and two peers could wait for each
other, each in another group.
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
    """The effect of collectives, which XLA then runs in the order of the program.

    A serialized program stores only the name of this type, and constructs it without arguments.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "PCCL"


class OrderedOnDevices(Ordered):
    """The effect of collectives in programs on several devices: ordered on each device."""

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
    """Whether `effect` is one of PCCL's."""
    return isinstance(effect, Ordered)
