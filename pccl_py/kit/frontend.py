"""Frontend: what collectives need to know about the arrays of a library.

A Form has the arrays of an argument, a single array or the leaves of a tree, and builds the result
of a call. An array that is not packed (contiguous, in native byte order) is copied before the call,
and `Work.wait` copies the result into the array when the operation has committed. functions.py has
the collectives.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from pccl_py.call import REFUSALS
from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument
from pccl_py.rows import Rows, Shape
from pccl_py.words import DIFFER_IN_FORM, counted, first_of, form_of

ArrayType = TypeVar("ArrayType")
_Taken = TypeVar("_Taken")
_PLACE = re.compile(r" at 0x[0-9a-fA-F]+")
# An array's number in an error of the library, but not inside the name of a leaf.
_NUMBERED = re.compile(r"""(?<![\w.'"])arrays\[(\d+)\]""")


class Form(NamedTuple):
    """The arrays of an argument, and `rebuild`, which puts other arrays in the same structure."""

    arrays: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]
    # Names of a tree's leaves, for errors: "['b'][0]", ".weights". Empty for a single array.
    names: Sequence[str] = ()

    def each(self, take: Callable[..., _Taken], *others: Sequence[Any]) -> list[_Taken]:
        """Calls `take` for each array and returns the results; an error names the leaf."""
        made = []
        for number, arguments in enumerate(zip(self.arrays, *others, strict=True)):
            try:
                made.append(take(*arguments))
            except REFUSALS as error:
                if not self.names:
                    raise
                raise type(error)(f"leaf {self.names[number]}: {error}") from None
        return made

    def reworded(self, sentence: str) -> str:
        """Replaces the numbers of arrays in an error of the library by names of leaves."""
        if not self.names:
            return sentence
        told = f"{DIFFER_IN_FORM}; this peer's are {first_of(self.names)}. "
        sentence = sentence.replace(f"{DIFFER_IN_FORM}. ", told)
        return _NUMBERED.sub(lambda found: f"leaf {self.names[int(found[1])]}", sentence)

    @property
    def number(self) -> int:
        """A hash of the names, equal on all members; 0 for an array, or a plain list of arrays.

        The hash leaves out memory addresses of objects, which the repr of a key may contain.
        """
        if all(name == f"[{index}]" for index, name in enumerate(self.names)):
            return 0
        return form_of(_PLACE.sub("", "\n".join(self.names)))


def one(x: object) -> Form:
    """The Form of a single array."""
    return Form([x], lambda made: made[0])


class Frontend(ABC, Generic[ArrayType]):
    """Describes the arrays of a library: a frontend implements the abstract methods.

    A frontend may override the methods from `place` to `shared`, whose defaults suit arrays that
    the core takes as they are. The remaining methods use the ones before them.

    The argument `adds` says whether a collective adds elements up, rather than only moving them or
    combining their bits.
    """

    @abstractmethod
    def array(self, x: object, adds: bool) -> ArrayType:
        """`x` as an array of the library. Raises TypeError for a dtype that cannot travel."""

    @abstractmethod
    def target(self, x: object, adds: bool, only_read: bool = False) -> ArrayType:
        """`x`, if it is a writable array; else raises TypeError, or InvalidArgument if read-only.

        With `only_read`, `x` may be read-only.
        """

    @abstractmethod
    def shape(self, x: ArrayType) -> Shape: ...

    @abstractmethod
    def reshape(self, x: ArrayType, shape: Shape) -> ArrayType:
        """The packed array `x` in another shape, without a copy."""

    @abstractmethod
    def rows(self, x: ArrayType, first: int, end: int) -> ArrayType:
        """Rows [first, end) of `x`, in the memory of `x`."""

    @abstractmethod
    def is_packed(self, x: ArrayType) -> bool:
        """Whether `x` is contiguous and in native byte order."""

    @abstractmethod
    def copy(self, x: ArrayType) -> ArrayType:
        """A packed copy of `x`."""

    @abstractmethod
    def empty(self, shape: Shape, like: ArrayType) -> ArrayType:
        """A new packed array of the dtype of `like`."""

    @abstractmethod
    def write(self, target: ArrayType, source: ArrayType) -> None:
        """Copies all elements of `source` to `target`."""

    @abstractmethod
    def check_dtypes(self, out: ArrayType, x: ArrayType) -> None:
        """Raises TypeError if the dtype of `out` does not fit a result of `x`."""

    @abstractmethod
    def bounds(self, x: ArrayType) -> tuple[int, int]:
        """The addresses of the first byte of `x` and of the byte behind it; equal for no bytes."""

    @abstractmethod
    def overlaps(self, x: ArrayType, y: ArrayType) -> bool:
        """Whether `x` and `y` have memory in common."""

    @abstractmethod
    def is_same(self, x: ArrayType, y: ArrayType) -> bool:
        """Whether `x` and `y` are the same memory, element by element."""

    # ---- defaults that a frontend may override

    def place(self, x: ArrayType) -> tuple[int, ...]:
        """Numbers that change if the library gives `x` other memory."""
        return self.bounds(x)

    def memory(self, x: ArrayType) -> Any:
        """A packed array as the core takes it: the array itself, or a `Buffer`."""
        return x

    def width(self, x: ArrayType) -> int:
        """How many elements of the core one element of `x` is, such as 2 for a complex number."""
        return 1

    def written(self, x: ArrayType) -> None:
        """Called when the core may write to the memory of `x` from now on, or has written to `x`.

        The first call comes before an operation begins, the second from the thread that makes the
        operation's result.
        """
        return

    def remedy(self, comm: object) -> str:
        """The end of an error that says what to pass instead of `comm`, which is not a Group."""
        return "it comes first, as pccl_py.connect() returns it"

    def shared(self, x: object, may_differ: bool) -> ArrayType:
        """`x` as an array of a shared state, which writes to `x` unless `may_differ`."""
        return self.target(x, adds=False, only_read=may_differ)

    # ---- methods that follow from those above

    def check_comm(self, comm: object) -> None:
        """Raises TypeError if `comm` is not a Group."""
        if not isinstance(comm, Group):
            raise TypeError(
                f"comm must be a Communicator or a Group, not {type(comm).__name__}: "
                f"{self.remedy(comm)}"
            )

    def packed(self, x: ArrayType) -> ArrayType:
        """`x` itself if it is packed, else a packed copy."""
        return x if self.is_packed(x) else self.copy(x)

    def recvs(self, targets: list[ArrayType]) -> list[ArrayType]:
        """The arrays that an operation fills: packed targets, and new arrays in place of others."""
        return [
            each if self.is_packed(each) else self.empty(self.shape(each), each) for each in targets
        ]

    def begins(self, targets: Sequence[ArrayType], recvs: Sequence[ArrayType]) -> None:
        """Calls `written` for the targets to which the operation that begins next may write."""
        for target, recv in zip(targets, recvs, strict=True):
            if target is recv:
                self.written(target)

    def write_back(self, targets: Sequence[ArrayType], recvs: Sequence[ArrayType]) -> None:
        """Copies results to targets in whose place another array has received."""
        for target, recv in zip(targets, recvs, strict=True):
            if target is recv:
                self.written(target)
            else:
                self.write(target, recv)

    def targets(
        self,
        sends: list[ArrayType],
        out: Form | None,
        *,
        adds: bool = False,
        dealt: list[Rows] | None = None,
        gathered: list[Rows] | None = None,
        exchanged: Shape | None = None,
    ) -> list[ArrayType]:
        """The arrays for the results: new arrays, or those of `out`.

        The results have the shapes of `sends`; with `dealt`, the shapes of this rank's rows; with
        `gathered`, the shapes of all rows; with `exchanged`, the shape of an all_to_all's result.
        As with NumPy's own functions, an `out` may overlap its input: then a copy replaces the
        input in `sends`. No copy is made if the input is exactly its part of `out`, except in an
        all_to_all, which is never in place. Raises InvalidArgument if two arrays of `out` share
        memory.
        """
        what, shapes = "x", [self.shape(send) for send in sends]
        if dealt is not None:
            what, shapes = "this rank's part of x", [(rows.own, *rows.tail) for rows in dealt]
        if gathered is not None:
            what, shapes = "what all members have", [(rows.whole, *rows.tail) for rows in gathered]
        if exchanged is not None and exchanged != shapes[0]:
            what, shapes = "what this rank receives", [exchanged]
        if out is None:
            return [self.empty(shape, send) for shape, send in zip(shapes, sends, strict=True)]
        if len(out.arrays) != len(sends):
            raise InvalidArgument(
                f"out has {counted(len(out.arrays), 'array')}, x has {len(sends)}"
            )

        def take(given: object, shape: Shape, send: ArrayType) -> ArrayType:
            target = self.target(given, adds)
            self.check_dtypes(target, send)
            if self.shape(target) != shape:
                raise InvalidArgument(
                    f"out has shape {self.shape(target)}, {what} has shape {shape}"
                )
            return target

        targets = out.each(take, shapes, sends)
        self.check_apart(targets, out.names)
        for number, (target, send) in enumerate(zip(targets, sends, strict=True)):
            if self.overlaps(send, target):
                mine = self._part(send, dealt, number), self._part(target, gathered, number)
                if exchanged is not None or not self.is_same(*mine):
                    sends[number] = self.copy(send)
        return targets

    def _part(self, x: ArrayType, rows: list[Rows] | None, number: int) -> ArrayType:
        return x if rows is None else self.rows(x, rows[number].first, rows[number].end)

    def check_apart(
        self, arrays: list[ArrayType], names: Sequence[str], what: str = "leaf "
    ) -> None:
        """Raises InvalidArgument if two arrays share memory: each receives a result of its own."""
        if len(arrays) == 1:
            return
        bounds = sorted((*self.bounds(array), number) for number, array in enumerate(arrays))
        # (end, number) of earlier arrays that reach into the present one, as columns of a matrix
        # do.
        reaching: list[tuple[int, int]] = []
        for low, high, number in bounds:
            reaching = [(end, other) for end, other in reaching if end > low]
            for _, other in reaching:
                if self.overlaps(arrays[other], arrays[number]):
                    first, second = sorted((other, number))
                    raise InvalidArgument(
                        f"{what}{names[first]} and {what}{names[second]} share memory, and each "
                        "receives a result: leave out one of them, or copy it"
                    )
            reaching.append((high, number))


def flatten(tree: object) -> Form:
    """The Form of a tree: its arrays, and `rebuild` for a tree of the same structure.

    A tree is a dict, list, tuple or named tuple of trees, None, or an array; values of a dict are
    taken in the order of their keys. All arrays of a tree are one operation: one tag, one outcome,
    and either all arrays have their results or none has. The arrays may have different dtypes;
    contiguous arrays in native byte order are not copied. Every member passes a tree of the same
    structure, shapes and dtypes; leaves with different names are a Mismatch, so that no member adds
    a "bias" to a "weight". A tree that is a list of arrays also goes with a plain list of arrays.

    Ranges of an outcome count the elements of all arrays: rank after rank, and for each rank array
    after array.
    """
    arrays: list[Any] = []
    names: list[str] = []
    build = _plan(tree, "", arrays, names)
    if not arrays:
        raise InvalidArgument("the tree has no arrays: an operation has at least one")
    # A tree that is a single array needs no names.
    return Form(arrays, build, names if names != [""] else ())


def _plan(
    tree: object, name: str, arrays: list[Any], names: list[str]
) -> Callable[[Sequence[Any]], Any]:
    """Adds the arrays of `tree` to `arrays`; returns a function that builds a tree like it."""
    if tree is None:
        return lambda _: None
    if isinstance(tree, dict):
        try:
            keys = sorted(tree)
        except TypeError:
            raise TypeError(
                "the keys of a dict in a tree must be of one kind, to have an order"
            ) from None
        by_key = {key: _plan(tree[key], f"{name}[{key!r}]", arrays, names) for key in keys}
        order = list(tree)
        return lambda made: {key: by_key[key](made) for key in order}
    if isinstance(tree, list | tuple):
        fields: Sequence[str] | None = getattr(tree, "_fields", None)
        parts = [f"[{index}]" for index in range(len(tree))]
        if fields is not None:
            parts = [f".{field}" for field in fields]
        plans = [
            _plan(child, name + part, arrays, names)
            for child, part in zip(tree, parts, strict=True)
        ]
        if isinstance(tree, list):
            return lambda made: [plan(made) for plan in plans]
        kind: Any = type(tree)
        if fields is not None:
            return lambda made: kind(*[plan(made) for plan in plans])
        return lambda made: kind([plan(made) for plan in plans])
    number = len(arrays)
    arrays.append(tree)
    names.append(name)
    return lambda made: made[number]
