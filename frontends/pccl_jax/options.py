"""Options: the keyword arguments of pccl_jax, which are those of pccl_py without `async_op`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from pccl_jax.communicators import Comm
from pccl_jax.outcomes import OutcomeArrays
from pccl_py.call import Call, Kind, documented

P = ParamSpec("P")
T = TypeVar("T")


class Function(Protocol[P]):
    """A collective as a type checker sees it: it returns the type of `x`.

    With `return_outcome=True` it returns a tuple of that type and the outcome; the type checker
    then does not check the other arguments.
    """

    @overload
    def __call__(self, comm: Comm, x: T, /, *args: P.args, **options: P.kwargs) -> T: ...
    @overload
    def __call__(
        self, comm: Comm, x: T, /, *args: Any, return_outcome: Literal[True], **options: Any
    ) -> tuple[T, OutcomeArrays]: ...


def everywhere(
    kind: type,
) -> Callable[[Callable[Concatenate[Comm, Any, P], Any]], Function[P]]:
    """Decorates a collective that takes the options of `kind`: documents and types its options."""
    typed: Any = documented(kind, "return_outcome")
    return typed  # type: ignore[no-any-return]


def asked_of(kind: Kind, options: Mapping[str, Any]) -> tuple[Call, bool]:
    """The parsed options of a call, and its `return_outcome`. Raises TypeError for `async_op` and
    unknown options."""
    rest = dict(options)
    tells = bool(rest.pop("return_outcome", False))
    if "async_op" in rest:
        raise TypeError(
            f"{kind.name.lower()}() has no option 'async_op' here: a program overlaps a call with "
            "all that does not need its result"
        )
    return Call(kind, rest), tells


def numbers_of(asked: Call, form: int) -> tuple[int, ...]:
    """Options parsed by `asked_of` as the numbers in `Call.options`."""
    timed = asked.op, asked.tag, asked.deadline_ns, asked.recovery, asked.plan
    numbers = *timed, *asked.codec.native(), form
    return tuple(int(number) for number in numbers)
