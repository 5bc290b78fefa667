"""Options: the keyword arguments of pccl_jax, which are those of pccl_py without `async_op`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from pccl_py.options import Asked, BroadcastOptions, MessageOptions, MoveOptions, ReduceOptions


class _Alone(TypedDict, total=False):
    return_outcome: Literal[False]


class _Both(TypedDict):
    return_outcome: Literal[True]


class Message:
    """The forms of MessageOptions: Alone returns the result, Both an outcome too."""

    class Alone(MessageOptions, _Alone, total=False): ...

    class Both(MessageOptions, _Both): ...


class Broadcast:
    """The forms of BroadcastOptions."""

    class Alone(BroadcastOptions, _Alone, total=False): ...

    class Both(BroadcastOptions, _Both): ...


class Move:
    """The forms of MoveOptions."""

    class Alone(MoveOptions, _Alone, total=False): ...

    class Both(MoveOptions, _Both): ...


class Reduce:
    """The forms of ReduceOptions."""

    class Alone(ReduceOptions, _Alone, total=False): ...

    class Both(ReduceOptions, _Both): ...


def asked_of(operation: str, options: Mapping[str, Any]) -> tuple[Asked, bool]:
    """The options of a call, and whether it returns its outcome. Raises TypeError for others."""
    rest = dict(options)
    tells = bool(rest.pop("return_outcome", False))
    if "async_op" in rest:
        raise TypeError(
            f"{operation}() has no option 'async_op' here: a program overlaps a call with all that "
            "does not need its result"
        )
    return Asked(operation, rest), tells


def numbers_of(asked: Asked, form: int) -> tuple[int, ...]:
    """As Call.options has them."""
    op, tag, deadline_ns, recovery, plan, codec, _ = asked.native()
    numbers = op, tag, deadline_ns, recovery, plan, *codec[:4], form
    return tuple(int(number) for number in numbers)
