"""Options: the keyword arguments of operations, in one place for pccl_py and every frontend.

A TypedDict has the options of each kind of call, for `**options: Unpack[...]`; `Asked` reads them,
`documented` describes them in docstrings, and `operation` makes a method of a function that
prepares a call: `Operation` is its type. How the values are parsed: words.py and codec.py.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    overload,
)

from pccl_py.codec import NONE, Codec, CodecKind, CodecName, parse_codec
from pccl_py.many import IN_FLIGHT, IN_FLIGHT_MAX, RETRY
from pccl_py.words import (
    OpName,
    Plan,
    PlanName,
    Recovery,
    RecoveryName,
    ReduceOp,
    nanoseconds,
    parse_op,
    parse_plan,
    parse_recovery,
    unsigned,
)

if TYPE_CHECKING:
    from pccl_py.outcome import Outcome
    from pccl_py.work import Call, Work

Native: TypeAlias = tuple[int, int, int, int, int, tuple[int, int, int, int, int, int], int]
FunctionType = TypeVar("FunctionType", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")


class MessageOptions(TypedDict, total=False):
    """Options of send and recv."""

    tag: int
    deadline: float | None


class BroadcastOptions(MessageOptions, total=False):
    """Options of broadcast and barrier; a codec would round what the root does not see rounded."""

    recovery: Recovery | RecoveryName | None


class MoveOptions(BroadcastOptions, total=False):
    """Options of all_gather, scatter, gather and all_to_all."""

    codec: Codec | CodecKind | CodecName
    plan: Plan | PlanName


class ReduceOptions(MoveOptions, total=False):
    """Options of all_reduce, reduce and reduce_scatter."""

    op: ReduceOp | OpName


class ManyOptions(ReduceOptions, total=False):
    """Options of all_reduce_many, which has no `async_op`: its caller repeats what was aborted."""

    in_flight: int
    retry: int


class Operation(Protocol[Parameters]):
    """An operation that returns its Outcome, or with `async_op` its Work.

    A type checker knows the arguments of a call without `async_op`; with it only the operation
    itself checks them.
    """

    @overload
    def __call__(self, *args: Parameters.args, **options: Parameters.kwargs) -> Outcome: ...
    @overload
    def __call__(self, *args: Any, async_op: Literal[False], **options: Any) -> Outcome: ...
    @overload
    def __call__(self, *args: Any, async_op: Literal[True], **options: Any) -> Work: ...
    @overload
    def __call__(self, *args: Any, async_op: bool, **options: Any) -> Outcome | Work: ...


class Method(Protocol[Parameters]):
    """An Operation as a class has it."""

    def __get__(self, owner: Any, kind: Any = None) -> Operation[Parameters]: ...


_KNOWN: dict[type, frozenset[str]] = {
    kind: frozenset(kind.__annotations__)
    for kind in (MessageOptions, BroadcastOptions, MoveOptions, ReduceOptions, ManyOptions)
}

# `_form` comes from frontends: 0, or a hash of what the arrays are, the same on every peer.
_BESIDE = frozenset(["async_op", "_form"])

# By the names of the operations.
_KINDS: dict[str, type] = {}
_ROOTED: set[str] = set()

_MEANINGS = {
    "op": '"sum" (the default), "avg" (of integers cut towards zero), "prod", "min", "max", of the '
    'bits of integers and of bool "band", "bor", "bxor", or a `ReduceOp`; the same on every peer, '
    "as are codec, plan and recovery.",
    "codec": 'how floats travel, "none" (the default) or "int8" for example, or a `Codec` with '
    "options; reductions take it with sum and avg only.",
    "plan": 'how the data moves, "auto" (the default), "ring" or "direct": see `Plan`.',
    "recovery": 'what the death of a peer does, "resume", "restart", "raise" or "complete": see '
    "`Recovery`.",
    "tag": "operations with different tags may be in flight together, one at a time for each; 0 "
    "is the default.",
    "deadline": "seconds from now until the call is given up; the communicator's by default.",
    "in_flight": f"operations at once at most, 1 to {IN_FLIGHT_MAX}; {IN_FLIGHT} if not given.",
    "retry": f"how often each operation that was aborted is made again, {RETRY} times if not "
    "given; the same on every peer.",
    "async_op": "if true, returns a `Work` at once.",
    "return_outcome": "if true, returns (result, `Outcome`).",
}

_ERRORS = """\
Raises InvalidArgument (a ValueError) for a bad argument or layout and TypeError for a dtype, before
anything is sent, and the errors of `PcclError`. An exception raised by a signal handler (Ctrl-C)
withdraws the call unless the operation had already finished; see its `work` (class `Work`)."""


class Asked:
    """The options of one operation, parsed. Raises TypeError for one that it does not have."""

    __slots__ = ("_deadline", "_plan", "codec", "form", "op", "recovery", "tag")

    def __init__(self, operation: str, options: Mapping[str, Any]) -> None:
        check(operation, options)
        get = options.get
        self.codec = parse_codec(get("codec", NONE))
        self.tag = unsigned(get("tag", 0), "tag", 64)
        self.op = parse_op(get("op", ReduceOp.SUM))
        self._plan = parse_plan(get("plan", Plan.AUTO))
        self.recovery = parse_recovery(get("recovery"))
        self._deadline = nanoseconds(get("deadline"), "deadline")
        self.form = get("_form", 0)

    def native(self, residuals: tuple[int, int] = (0, 0)) -> Native:
        """As bindings/init_collective.cpp takes them."""
        codec = (*self.codec.native(), *residuals)
        return (self.op, self.tag, self._deadline, self.recovery, self._plan, codec, self.form)

    @property
    def timed(self) -> tuple[int, int]:
        """The tag and the deadline, which is all that a message has."""
        return self.tag, self._deadline


def check(operation: str, options: Mapping[str, Any], kind: type | None = None) -> None:
    """Raises TypeError for an option that the operation of this name does not have.

    `kind`: the options of a call that is several operations, and has no `async_op`.
    """
    known = _KNOWN[kind] if kind else _KNOWN[_KINDS[operation]] | _BESIDE
    unknown = [name for name in options if name not in known]
    if unknown:
        own = ["root"] if operation in _ROOTED else []
        names = ", ".join([*own, *(name for name in _MEANINGS if name in known)])
        raise TypeError(f"{operation}() has no option {unknown[0]!r}; it has {names}")


def operation(
    kind: type,
) -> Callable[[Callable[Concatenate[Any, Parameters], Call]], Method[Parameters]]:
    """Makes a method that runs a call of one that prepares it, with the options of `kind`.

    Frontends pass `_finish` and `_reword` as well, of `Call.run`, and `_form`; objects, which are
    two operations, pass `_made` and `_origin`, of `Call.run`.
    """

    def decorate(prepare: Callable[Concatenate[Any, Parameters], Call]) -> Method[Parameters]:
        def run(
            *given: Any,
            async_op: bool = False,
            _finish: Any = None,
            _reword: Any = None,
            _made: Any = None,
            _origin: Any = None,
            **options: Any,
        ) -> Any:
            return prepare(*given, **options).run(async_op, _finish, _reword, _made, _origin)

        _KINDS[prepare.__name__] = kind
        if "root" in inspect.signature(prepare).parameters:
            _ROOTED.add(prepare.__name__)
        method: Any = documented(kind, "async_op")(functools.wraps(prepare)(run))
        method.__signature__ = inspect.signature(prepare).replace(
            return_annotation="Outcome | Work"
        )
        made: Method[Parameters] = method
        return made

    return decorate


def documented(kind: type, *flags: str) -> Callable[[FunctionType], FunctionType]:
    """Adds the options of `kind`, the `flags` (`async_op` is one) and the errors to a docstring."""
    names = [name for name in _MEANINGS if name in (*_KNOWN[kind], *flags)]
    lines = [
        textwrap.fill(
            f"{name}: {_MEANINGS[name]}", 96, initial_indent="  ", subsequent_indent="    "
        )
        for name in names
    ]
    part = "\n".join(["Options, by name only:", "", *lines, "", _ERRORS])

    def document(function: FunctionType) -> FunctionType:
        if function.__doc__:  # not under python -OO
            function.__doc__ = f"{inspect.cleandoc(function.__doc__)}\n\n{part}\n"
        return function

    return document
