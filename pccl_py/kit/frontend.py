"""Frontend: the arrays of a library, as collectives need them.

A Form has the arrays of an argument, a single array or the leaves of a tree, and builds the result
of a call. An array that is not packed (contiguous, in native byte order) is copied before the call,
and `Work.wait` copies its result back when the operation has committed. The collectives themselves
are in functions.py.
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
# Not inside of a name that has been put there.
_NUMBERED = re.compile(r"""(?<![\w.'"])arrays\[(\d+)\]""")


class Form(NamedTuple):
    """The arrays of an argument, and `rebuild`, which makes a like argument of other arrays."""

    arrays: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]
    # The leaves of a tree have names, for errors: "['b'][0]", ".weights".
    names: Sequence[str] = ()

    def each(self, take: Callable[..., _Taken], *others: Sequence[Any]) -> list[_Taken]:
        """The results of `take` for each array; an error names the leaf."""
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
        """A sentence of the library, with names of leaves in the place of their numbers."""
        if not self.names:
            return sentence
        told = f"{DIFFER_IN_FORM}; this peer's are {first_of(self.names)}. "
        sentence = sentence.replace(f"{DIFFER_IN_FORM}. ", told)
        return _NUMBERED.sub(lambda found: f"leaf {self.names[int(found[1])]}", sentence)

    @property
    def number(self) -> int:
        """A hash of the names, equal on all members; 0 for an array, or a plain list of arrays.

        It leaves out the memory address of an object, which the repr of a key may contain.
        """
        if all(name == f"[{index}]" for index, name in enumerate(self.names)):
            return 0
        return form_of(_PLACE.sub("", "\n".join(self.names)))


def one(x: object) -> Form:
    """The form of a single array."""
    return Form([x], lambda made: made[0])


class Frontend(ABC, Generic[ArrayType]):
    """The arrays of a library: a frontend implements the abstract methods.

    A frontend may override the methods behind these; their defaults are for arrays that the core
    takes as they are. The other methods follow.

    `adds` says whether a collective adds elements up, or only moves them or combines their bits.
    """

    @abstractmethod
    def array(self, x: object, adds: bool) -> ArrayType:
        """`x` as an array of the library. Raises TypeError for a dtype."""

    @abstractmethod
    def target(self, x: object, adds: bool, only_read: bool = False) -> ArrayType:
        """`x`, an array that may be written; else TypeError, or InvalidArgument if read-only.

        With `only_read` it need not be writable.
        """

    @abstractmethod
    def shape(self, x: ArrayType) -> Shape: ...

    @abstractmethod
    def reshape(self, x: ArrayType, shape: Shape) -> ArrayType:
        """The same elements, which are packed, in another shape."""

    @abstractmethod
    def rows(self, x: ArrayType, first: int, end: int) -> ArrayType:
        """Some rows of `x`, as its own memory."""

    @abstractmethod
    def is_packed(self, x: ArrayType) -> bool:
        """Whether it is contiguous and in native byte order."""

    @abstractmethod
    def copy(self, x: ArrayType) -> ArrayType:
        """A packed copy."""

    @abstractmethod
    def empty(self, shape: Shape, like: ArrayType) -> ArrayType:
        """A new packed array of the dtype of `like`."""

    @abstractmethod
    def write(self, target: ArrayType, source: ArrayType) -> None:
        """Copies all elements."""

    @abstractmethod
    def check_dtypes(self, out: ArrayType, x: ArrayType) -> None:
        """Raises TypeError if `out` cannot have a result of `x`."""

    @abstractmethod
    def bounds(self, x: ArrayType) -> tuple[int, int]:
        """The addresses of its first byte and behind its last; equal if it is empty."""

    @abstractmethod
    def overlaps(self, x: ArrayType, y: ArrayType) -> bool:
        """Whether they have memory in common."""

    @abstractmethod
    def is_same(self, x: ArrayType, y: ArrayType) -> bool:
        """Whether they are the same elements in the same order."""

    # ---- what some libraries have otherwise

    def place(self, x: ArrayType) -> tuple[int, ...]:
        """Numbers that change if the library gives `x` other memory."""
        return self.bounds(x)

    def memory(self, x: ArrayType) -> Any:
        """A packed array as the core takes it: the array itself, or a `Buffer`."""
        return x

    def width(self, x: ArrayType) -> int:
        """How many of the core's elements one element of `x` is."""
        return 1

    def written(self, x: ArrayType) -> None:
        """Called when the core may write to the memory of `x` from now on, or has written to it.

        The first call comes before an operation begins, the second from the thread that makes its
        result.
        """
        return

    def remedy(self, comm: object) -> str:
        """The end of an error: what to pass in the place of `comm`, which is not a Group."""
        return "it comes first, as pccl_py.connect() returns it"

    def shared(self, x: object, may_differ: bool) -> ArrayType:
        """`x` as an array of a shared state, which writes to it unless it may differ."""
        return self.target(x, adds=False, only_read=may_differ)

    # ---- what follows from them

    def check_comm(self, comm: object) -> None:
        """Raises TypeError if `comm` is not a Group."""
        if not isinstance(comm, Group):
            raise TypeError(
                f"comm must be a Communicator or a Group, not {type(comm).__name__}: "
                f"{self.remedy(comm)}"
            )

    def packed(self, x: ArrayType) -> ArrayType:
        """`x` itself, or a packed copy."""
        return x if self.is_packed(x) else self.copy(x)

    def recvs(self, targets: list[ArrayType]) -> list[ArrayType]:
        """The memory that an operation fills: the targets, or packed arrays in their place."""
        return [
            each if self.is_packed(each) else self.empty(self.shape(each), each) for each in targets
        ]

    def begins(self, targets: Sequence[ArrayType], recvs: Sequence[ArrayType]) -> None:
        """Called before an operation begins, which may write although no caller waits for it."""
        for target, recv in zip(targets, recvs, strict=True):
            if target is recv:
                self.written(target)

    def write_back(self, targets: Sequence[ArrayType], recvs: Sequence[ArrayType]) -> None:
        """Copies to each target from the array that received in its place."""
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
        """The arrays that are returned: new ones, or `out`.

        The arrays have the shapes of `sends`; or, if rows are `dealt` out, this rank's rows of
        them; or, if rows are `gathered`, all rows; or the shape of what an all_to_all has
        `exchanged`. As with NumPy's own functions, an `out` may overlap its input: then the input
        is copied, in `sends`, unless both are the same memory and the collective takes that, which
        an all_to_all does not. Raises InvalidArgument if two arrays of `out` share memory.
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
        # Arrays that end behind the beginning of the next array, as columns of a matrix do.
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
    """The arrays of a tree, and what makes a tree of the same structure of others.

    A tree is a dict, list, tuple or named tuple of trees, None, or an array; dicts go in the order
    of their keys. All of its arrays are one operation: one tag, one outcome, and either all of them
    have their result or none has. They need not have one dtype, and are not copied where they are
    contiguous and in native byte order. Every member passes a tree of the same structure, shapes
    and dtypes, and leaves of another name are a Mismatch, so that nobody adds a "bias" to a
    "weight"; a tree that is a list of arrays goes with a plain list of them, too.

    Ranges of an outcome count the elements of all arrays: for each rank's rows in turn, those of
    one array after the other.
    """
    arrays: list[Any] = []
    names: list[str] = []
    build = _plan(tree, "", arrays, names)
    if not arrays:
        raise InvalidArgument("the tree has no arrays: an operation has at least one")
    # A tree that is an array has no parts to be told from each other.
    return Form(arrays, build, names if names != [""] else ())


def _plan(
    tree: object, name: str, arrays: list[Any], names: list[str]
) -> Callable[[Sequence[Any]], Any]:
    """A function that makes such a tree of its arrays, which are added to `arrays`."""
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
