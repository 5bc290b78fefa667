"""Call: one call of an operation, from its keyword arguments to the native library.

A method of a group makes a Call of its options, adds arrays to the Call, and runs the Call by
`_pccl.call` (bindings/init_collective.cpp). A TypedDict for each kind of call has its options, for
`**options: Unpack[...]`. `documented` describes options in docstrings, also of frontends; Operation
is the type of a method with options. words.py and codec.py parse values, buffers.py reads arrays,
and work.py has the operation in flight.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload

from pccl_py import _pccl, buffers
from pccl_py.codec import NONE, Codec, CodecKind, CodecName, ErrorFeedback, parse_codec
from pccl_py.errors import InvalidArgument
from pccl_py.many import IN_FLIGHT, IN_FLIGHT_MAX, RETRY
from pccl_py.outcome import Origin, Outcome
from pccl_py.rows import Shape
from pccl_py.words import (
    DIFFER_IN_FORM,
    DType,
    OpName,
    Plan,
    PlanName,
    Recovery,
    RecoveryName,
    ReduceOp,
    counted,
    first_of,
    form_of,
    form_of_shapes,
    nanoseconds,
    parse_op,
    parse_plan,
    parse_recovery,
    told_shapes,
    unsigned,
)
from pccl_py.work import Dropped, Made, Work

# Errors by which an array may be refused; some array libraries raise RuntimeError.
REFUSALS = (TypeError, InvalidArgument, RuntimeError)
FunctionType = TypeVar("FunctionType", bound=Callable[..., Any])
P = ParamSpec("P")


class MessageOptions(TypedDict, total=False):
    """Options of send and recv."""

    tag: int
    deadline: float | None


class BroadcastOptions(MessageOptions, total=False):
    """Options of broadcast and barrier, without `codec`: it would not round the root's copy."""

    recovery: Recovery | RecoveryName | None


class MoveOptions(BroadcastOptions, total=False):
    """Options of all_gather, scatter, gather and all_to_all."""

    codec: Codec | CodecKind | CodecName
    plan: Plan | PlanName


class ReduceOptions(MoveOptions, total=False):
    """Options of all_reduce, reduce and reduce_scatter."""

    op: ReduceOp | OpName


class ManyOptions(ReduceOptions, total=False):
    """Options of all_reduce_many. It has no `async_op`: its thread repeats aborted operations."""

    in_flight: int
    retry: int


class Operation(Protocol[P]):
    """An operation that returns its Outcome, or with `async_op` its Work.

    A type checker checks the arguments of a call without `async_op`; with `async_op` only the
    operation itself checks them.
    """

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> Outcome: ...
    @overload
    def __call__(self, *args: Any, async_op: Literal[False], **options: Any) -> Outcome: ...
    @overload
    def __call__(self, *args: Any, async_op: Literal[True], **options: Any) -> Work: ...
    @overload
    def __call__(self, *args: Any, async_op: bool, **options: Any) -> Outcome | Work: ...


class Method(Protocol[P]):
    """An Operation as an attribute of a class."""

    def __get__(self, owner: Any, kind: Any = None) -> Operation[P]: ...


_KNOWN: dict[type, frozenset[str]] = {
    kind: frozenset(kind.__annotations__)
    for kind in (MessageOptions, BroadcastOptions, MoveOptions, ReduceOptions, ManyOptions)
}

# Options of all operations. Frontends and this package add all but `async_op`: see Call.
_BESIDE = frozenset(["async_op", "_finish", "_reword", "_form", "_made", "_origin"])

# The options of each operation, by its name.
_KINDS: dict[str, frozenset[str]] = {}
_ROOTED: set[str] = set()

_MEANINGS = {
    "op": '"sum" (the default), "avg" (of integers cut towards zero), "prod", "min", "max", of the '
    'bits of integers and of bool "band", "bor", "bxor", or a `ReduceOp`; the same on every peer, '
    "as are codec, plan and recovery.",
    "codec": 'how floats travel, "none" (the default) or "int8" for example, or a `Codec` with '
    "options; reductions take it with sum and avg only.",
    "plan": 'how data moves, "auto" (the default), "ring" or "direct": see `Plan`.',
    "recovery": 'the effect of a peer\'s death, "resume", "restart", "raise" or "complete": see '
    "`Recovery`.",
    "tag": "operations with different tags may be in flight together, one at a time per tag; 0 is "
    "the default.",
    "deadline": "seconds from now until the call is given up; the communicator's by default.",
    "in_flight": f"how many operations are in flight at most, 1 to {IN_FLIGHT_MAX}; {IN_FLIGHT} by "
    "default.",
    "retry": f"how often an aborted operation is repeated, {RETRY} times by default; the same on "
    "every peer.",
    "async_op": "if true, the call returns a `Work` at once.",
    "return_outcome": "if true, the call returns (result, `Outcome`).",
}

_ERRORS = """\
Raises InvalidArgument (a ValueError) for a bad argument or layout and TypeError for a dtype, before
anything is sent, and the errors of `PcclError`. An exception raised by a signal handler (Ctrl-C)
withdraws the call unless the operation had already finished; see its `work` (class `Work`)."""


def check(operation: str, options: Mapping[str, Any], kind: type | None = None) -> None:
    """Raises TypeError for an option that the operation of this name does not have.

    `kind`: the TypedDict of a call that makes several operations, and has no `async_op`.
    """
    known = _KNOWN[kind] if kind else _KINDS[operation]
    unknown = options.keys() - known
    if unknown:
        own = ["root"] if operation in _ROOTED else []
        names = ", ".join([*own, *(name for name in _MEANINGS if name in known)])
        raise TypeError(f"{operation}() has no option {min(unknown)!r}; it has {names}")


def operation(kind: type) -> Callable[[Callable[Concatenate[Any, P], Any]], Method[P]]:
    """Decorates a method of a group that makes a Call with the options of `kind`, and runs it."""

    def decorate(method: Callable[Concatenate[Any, P], Any]) -> Method[P]:
        _KINDS[method.__name__] = _KNOWN[kind] | _BESIDE
        if "root" in inspect.signature(method).parameters:
            _ROOTED.add(method.__name__)
        typed: Any = documented(kind, "async_op")(method)
        return typed  # type: ignore[no-any-return]

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


class Kind(IntEnum):
    """The kind of a call: the values of pccl_collective_t (pccl.h), and more from 16 on.

    bindings/init_collective.cpp and bindings/jax_handlers.h have the same values from 16 on.
    """

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


ADDING = frozenset([Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER])
_NAMES = {kind: kind.name.lower() for kind in Kind}


@dataclass(frozen=True, slots=True)
class CallArray:
    """One array of a call: this rank's input and output; `counted`: another count for pccl.h."""

    send: buffers.Buffer | None
    recv: buffers.Buffer | None
    counted: int | None = None

    @property
    def count(self) -> int:
        return self.any.count if self.counted is None else self.counted

    @property
    def any(self) -> buffers.Buffer:
        buffer = self.send or self.recv
        assert buffer is not None
        return buffer

    def shape(self, kind: Kind) -> Shape:
        """The shape that all members share, but for the number of rows; of a scatter, of `out`."""
        buffer = self.any if kind is not Kind.SCATTER or self.recv is None else self.recv
        shape = tuple(buffer.shape or ())
        return shape[:-1] if buffer.paired else shape  # drops the 2 of complex numbers

    def native(self) -> tuple[int, int, int, int]:
        """The tuple (send, recv, count, dtype) for bindings/init_collective.cpp."""
        send = self.send.address if self.send else 0
        recv = self.recv.address if self.recv else 0
        return send, recv, self.count, self.any.dtype


class Call:
    """One call of an operation: its options, which the Call checks, and its arrays.

    Raises TypeError for an option that the operation does not have. Nothing is sent before `run`.
    `counts`: number of elements of each rank's shard, if shards differ; in an all_to_all, of the
    shards for each rank, and `recv_counts` of the shards from each rank. `root`: the root, or the
    other rank of a message.

    Options that frontends add: `_finish` makes the result from the outcome, once the operation has
    committed; by default the result is the outcome. `_reword` puts an error of the library into the
    frontend's words. `_form` is 0, or a hash that describes the arrays, equal on every peer.
    `_made` gets the Work before the operation begins, and keeps the Work until the operation is
    done. `_origin` is the Origin of the larger call that this Call is a part of.
    """

    __slots__ = (
        "_async_op",
        "_feedback",
        "_finish",
        "_kept",
        "_made",
        "_origin",
        "_residuals",
        "_reword",
        "arrays",
        "codec",
        "counts",
        "deadline_ns",
        "form",
        "kind",
        "op",
        "plan",
        "recovery",
        "recv_counts",
        "root",
        "tag",
    )

    def __init__(self, kind: Kind, options: Mapping[str, Any]) -> None:
        check(_NAMES[kind], options)
        get = options.get
        self.kind = kind
        self.codec = parse_codec(get("codec", NONE))
        self.tag = unsigned(get("tag", 0), "tag", 64)
        self.op = parse_op(get("op", ReduceOp.SUM))
        self.plan = parse_plan(get("plan", Plan.AUTO))
        self.recovery = parse_recovery(get("recovery"))
        self.deadline_ns = nanoseconds(get("deadline"), "deadline")
        self.form: int = get("_form", 0)
        self.arrays: list[CallArray] = []
        self.counts: Sequence[int] = ()
        self.recv_counts: Sequence[int] = ()
        self.root = 0
        self._async_op = get("async_op", False)
        self._finish = get("_finish")
        self._reword = get("_reword")
        self._made: Made | None = get("_made")
        self._origin: Origin | None = get("_origin")
        self._feedback: ErrorFeedback | None = None
        self._residuals = 0, 0
        self._kept: object = None

    @property
    def name(self) -> str:
        """The name of the operation."""
        return _NAMES[self.kind]

    # ---- arrays

    def reduces(self, array: object, out: object | None) -> None:
        """Adds arrays that are reduced into the arrays of `out`, or in place."""
        for which, one, other in each_of(array, out):
            with Named(which):
                self.arrays.append(CallArray(*buffers.pair(one, other)))

    def reads(self, array: object, counts: object | None = None) -> None:
        """Adds arrays that this rank only sends."""
        for which, one, _ in each_of(array, None, counts):
            with Named(which):
                self.arrays.append(CallArray(buffers.readable(one), None))

    def writes(self, array: object, counts: object | None = None) -> None:
        """Adds arrays that this rank only receives."""
        for which, one, _ in each_of(array, None, counts):
            with Named(which):
                self.arrays.append(CallArray(None, buffers.writable(one)))

    def shows(self, array: object) -> None:
        """Adds arrays of the root of a broadcast, which the call has as outputs and only reads."""
        for which, one, _ in each_of(array):
            with Named(which):
                self.arrays.append(CallArray(None, buffers.readable(one)))

    # ---- running

    def carry(self, feedback: ErrorFeedback) -> None:
        """Passes `feedback`'s residual and the room for its next residual to the native call."""
        self._residuals, self._kept = feedback.begin([array.any.count for array in self.arrays])
        self._feedback = feedback

    def run(self, comm: _pccl.Comm, origin: Origin) -> Any:
        """Begins the operation; returns its Work with `async_op`, and else waits for its result.

        The Work is made first, and the operation begins inside `try`, so that no exception of a
        signal handler loses the Work.
        """
        form, reword = self._described()
        arrays = [array.native() for array in self.arrays]
        made, feedback = self._made, self._feedback
        # A Work that `_made` or the feedback knows must have begun before this thread waits for it.
        block = not self._async_op and feedback is None and made is None
        kind = Dropped if self._async_op and made is None else Work
        work = kind(self._finish, reword, self._origin or origin)
        if made is not None:
            made(work)
        try:
            if _pccl.call(
                work._native,
                comm,
                self.kind,
                arrays,
                self.counts,
                self.recv_counts,
                self.root,
                self.op,
                self.tag,
                self.deadline_ns,
                self.recovery,
                self.plan,
                *self.codec.native(),
                *self._residuals,
                form,
                (self.arrays, self._kept),
                block,
            ):
                return work._read_result()
            self._begun(work)
            return work if self._async_op else work.wait()
        except BaseException as error:
            # No call here before `error` has the Work: after a call Python runs signal handlers.
            if work._native.begun:
                if "work" not in error.__dict__:
                    error.__dict__["work"] = work
                work._native.withdraw()
                self._begun(work)
            work._in_own_words(error)
            raise

    def _begun(self, work: Work[Any]) -> None:
        if self._feedback is not None:
            self._feedback.begun(work, [array.any.count for array in self.arrays])

    def _described(self) -> tuple[int, Callable[[str], str] | None]:
        """Returns the form of the call, and the function that rewords its errors.

        The forms of messages, and of an all_to_all with counts, have neither kinds nor shapes of
        arrays.
        """
        if self.kind > Kind.ALL_TO_ALL or self.recv_counts:
            return self.form, self._reword
        if self.kind in ADDING:
            for array in self.arrays:
                check_kind(array.any, self.op)
        shapes = tuple([array.shape(self.kind) for array in self.arrays])
        upper = form_of_shapes(shapes)
        form = _form_of_kinds(self.form, self.arrays) ^ upper
        if upper or _have_kinds(self.arrays):
            return form, partial(_told, self._reword, self.arrays, shapes)
        return form, self._reword


def check_kind(array: buffers.Buffer, op: ReduceOp) -> None:
    """Raises TypeError or InvalidArgument if elements of this kind cannot be reduced by `op`.

    The native library cannot check this, as it knows dtypes but no kinds.
    """
    if array.opaque not in (None, "bool"):
        raise TypeError(f"{array.opaque} arrays cannot be reduced: convert them first")
    if array.opaque is not None and not op.is_bitwise:
        raise TypeError(
            "bool arrays cannot be added up: use op 'band' (and), 'bor' (or) or 'bxor' "
            "(exclusive or), or convert them first (to uint8)"
        )
    if array.paired and op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise InvalidArgument(
            f"{array.kind} arrays have no {op.name.lower()} here: complex numbers are added up, by "
            "sum and avg; reduce their real and imaginary parts, or their absolute values, for more"
        )


def _form_of_kinds(form: int, arrays: list[CallArray]) -> int:
    """Adds kinds to the form of a call if arrays are bool, complex numbers or opaque bytes."""
    if not any(array.any.has_own_kind for array in arrays):
        return form
    kinds = [array.any.kind for array in arrays]
    if kinds == ["bool"] and form == 0:
        return _pccl.FORM_BOOL  # errors have a name for this form
    return form_of(f"{form} {kinds}")


def _have_kinds(arrays: list[CallArray]) -> bool:
    """Whether an array has bytes or complex numbers, so that `form` depends on its kind."""
    return any(array.any.dtype is DType.U8 or array.any.paired for array in arrays)


def _told(
    reword: Callable[[str], str] | None,
    arrays: list[CallArray],
    shapes: tuple[Shape, ...],
    sentence: str,
) -> str:
    """Adds this peer's kinds and shapes to an error that says that the arrays of peers differ."""
    if reword is not None:
        sentence = reword(sentence)
    if _have_kinds(arrays):
        kinds = first_of([array.any.kind for array in arrays])
        sentence = sentence.replace(DIFFER_IN_FORM, f"{DIFFER_IN_FORM} (here {kinds})")
    return told_shapes(sentence, shapes)


def each_of(
    array: object, out: object | None = None, counts: object | None = None
) -> list[tuple[str, object, object | None]]:
    """Lists the arrays of a call, each as (name for errors, array, output)."""
    if not isinstance(array, list | tuple):
        if isinstance(out, list | tuple):
            raise InvalidArgument("out is a list of arrays, and array is not")
        return [("", array, out)]
    if not array:
        raise InvalidArgument("the list of arrays is empty: a call has at least one")
    if counts is not None:
        raise InvalidArgument("lists of counts are for one array: call once for each array")
    if out is None:
        outs: Sequence[object | None] = [None] * len(array)
    elif isinstance(out, list | tuple) and len(out) == len(array):
        outs = out
    else:
        what = f"has {len(out)}" if isinstance(out, list | tuple) else "is not a list"
        raise InvalidArgument(f"array is a list of {counted(len(array), 'array')}: out {what}")
    if len(array) == 1:
        return [("", array[0], outs[0])]
    return [
        (f"array {number} of {len(array)}", one, other)
        for number, (one, other) in enumerate(zip(array, outs, strict=True))
    ]


class Named:
    """A `with` block about one of several arrays: errors inside begin with the array's name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._name and isinstance(error, REFUSALS):
            raise type(error)(f"{self._name}: {error}") from None
