"""Frontend: the collectives over the arrays of a library, of which it knows what its methods say.

All of them take a Form, the arrays of a call and what makes its result of theirs: one array, or
those of a tree. An array that is not packed (contiguous, in native byte order) is copied before the
call, and its result is copied back when the operation has committed, by `Work.wait`. On an error
every input is as it was, in place too (docs/PROMISE.md, P3); an `out` apart from it may hold
anything.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from pccl_py.collectives import Counts, Root, check_no_root
from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument
from pccl_py.kit.rows import Rows, Shape
from pccl_py.outcome import Outcome
from pccl_py.work import Call

ArrayType = TypeVar("ArrayType")
_Taken = TypeVar("_Taken")


class Form(NamedTuple):
    """The arrays of a call, and what makes an answer of the same structure of others."""

    arrays: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]
    # The leaves of a tree have names, for errors: "['b'][0]", ".weights".
    names: Sequence[str] = ()

    def each(self, take: Callable[..., _Taken], *others: Sequence[Any]) -> list[_Taken]:
        """The results of `take` for each array; an error names the leaf that it is about."""
        made = []
        for number, arguments in enumerate(zip(self.arrays, *others, strict=True)):
            try:
                made.append(take(*arguments))
            except (TypeError, InvalidArgument) as error:
                if not self.names:
                    raise
                raise type(error)(f"leaf {self.names[number]}: {error}") from None
        return made

    def reworded(self, sentence: str) -> str:
        """A sentence of the library, which knows leaves by their numbers alone."""
        if not self.names:
            return sentence
        return _NUMBERED.sub(lambda found: f"leaf {self.names[int(found[1])]}", sentence)


# Not inside of a name that has been put there.
_NUMBERED = re.compile(r"""(?<![\w.'"])arrays\[(\d+)\]""")


Out: TypeAlias = Form | None


def one(x: object) -> Form:
    """The form of a single array, which is its own answer."""
    return Form([x], lambda made: made[0])


class Frontend(ABC, Generic[ArrayType]):
    """The abstract methods are what a frontend says of its arrays; the others follow from them.

    `adds` says whether a collective adds elements up, or only moves them.
    """

    @abstractmethod
    def array(self, x: object, adds: bool) -> ArrayType:
        """The array that `x` is, or is like. Raises TypeError for a dtype."""

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

    # ---- collectives that give an array: a new one, or `out`

    def all_reduce(self, comm: Group, form: Form, out: Out, options: Any) -> Any:
        flags = _flags(options)
        sends = self._sources(form, adds=True)
        shapes = [self.shape(send) for send in sends]
        targets = self._targets(sends, shapes, out, "x", adds=True)
        recvs = self._recvs(targets)
        call = comm._all_reduce(_plain(sends), _plain(recvs), options)
        return self._run(call, out or form, targets, recvs, flags)

    def reduce(self, comm: Group, form: Form, out: Out, root: Root, options: Any) -> Any:
        flags = _flags(options)
        sends = self._sources(form, adds=True)
        _check_no_root(out)
        if comm._rank_of(root) != comm.rank:
            call = comm._reduce(_plain(sends), None, root, options)
            return _nothing(call, form, flags)
        shapes = [self.shape(send) for send in sends]
        targets = self._targets(sends, shapes, out, "x", adds=True)
        recvs = self._recvs(targets)
        call = comm._reduce(_plain(sends), _plain(recvs), root, options)
        return self._run(call, out or form, targets, recvs, flags)

    def broadcast(self, comm: Group, form: Form, root: Root, options: Any) -> Any:
        flags = _flags(options)
        made = form.each(lambda x: self.copy(self.array(x, adds=False)))
        call = comm._broadcast(_plain(made), root, options)
        return self._run(call, form, made, made, flags)

    def reduce_scatter(
        self, comm: Group, form: Form, out: Out, counts: Counts, options: Any
    ) -> Any:
        flags = _flags(options)
        sends = self._sources(form, adds=True)
        rows = form.each(lambda _, send: Rows.of_whole(comm, self.shape(send), counts), sends)
        shapes = [(row.own, *row.tail) for row in rows]
        what = "this rank's part of x"
        targets = self._targets(sends, shapes, out, what, dealt=rows, adds=True)
        recvs = self._recvs(targets)
        call = comm._reduce_scatter(_plain(sends), _plain(recvs), rows[0].elements, options)
        return self._run(call, out or form, targets, recvs, flags)

    def all_gather(self, comm: Group, form: Form, out: Out, counts: Counts, options: Any) -> Any:
        flags = _flags(options)
        parts, rows = self._parts(comm, form, counts)
        targets = self._wholes(parts, rows, out)
        recvs = self._recvs(targets)
        call = comm._all_gather(_plain(parts), _plain(recvs), rows[0].elements, options)
        return self._run(call, out or form, targets, recvs, flags)

    def gather(
        self, comm: Group, form: Form, out: Out, root: Root, counts: Counts, options: Any
    ) -> Any:
        flags = _flags(options)
        parts, rows = self._parts(comm, form, counts)
        _check_no_root(out)
        if comm._rank_of(root) != comm.rank:
            call = comm._gather(_plain(parts), None, root, rows[0].elements, options)
            return _nothing(call, form, flags)
        targets = self._wholes(parts, rows, out)
        recvs = self._recvs(targets)
        call = comm._gather(_plain(parts), _plain(recvs), root, rows[0].elements, options)
        return self._run(call, out or form, targets, recvs, flags)

    def scatter(
        self, comm: Group, form: Form | None, out: Out, root: Root, counts: Counts, options: Any
    ) -> Any:
        flags = _flags(options)
        sends = None
        if comm._rank_of(root) == comm.rank:
            if form is None:
                raise InvalidArgument("the root of a scatter needs x, with the rows of all ranks")
            sends = self._sources(form)
            rows = form.each(lambda _, send: Rows.of_whole(comm, self.shape(send), counts), sends)
            shapes = [(row.own, *row.tail) for row in rows]
            what = "this rank's part of x"
            targets = self._targets(sends, shapes, out, what, dealt=rows)
        else:
            if out is None:
                raise InvalidArgument(
                    "out is needed except on the root: only the root knows the shape of x"
                )
            targets = out.each(lambda x: self.target(x, adds=False))
            rows = out.each(
                lambda _, each: Rows.of_part(comm, self.shape(each), counts, "out"), targets
            )
        answer = out or form
        assert answer is not None
        self._check_apart(targets, answer.names)
        recvs = self._recvs(targets)
        given = None if sends is None else _plain(sends)
        call = comm._scatter(given, _plain(recvs), root, rows[0].elements, options)
        return self._run(call, answer, targets, recvs, flags)

    def all_to_all(
        self,
        comm: Group,
        form: Form,
        out: Out,
        send_counts: Counts,
        recv_counts: Counts,
        options: Any,
    ) -> Any:
        """With counts, of rows, of one array."""
        flags = _flags(options)
        sends = self._sources(form)
        shapes, what = [self.shape(send) for send in sends], "x"
        sent = received = None
        if send_counts is None and recv_counts is None:
            form.each(lambda _, shape: Rows.of_whole(comm, shape, None, takes_counts=False), shapes)
        else:
            if send_counts is None or recv_counts is None:
                raise InvalidArgument("send_counts and recv_counts go together: pass both, or none")
            own = Rows.of_whole(comm, shapes[0], send_counts, name="send_counts")
            theirs = Rows.of_counts(comm, own.tail, recv_counts, "recv_counts")
            sent, received = own.elements, theirs.elements
            shapes, what = [(theirs.whole, *own.tail)], "what this rank receives"
        targets = self._targets(sends, shapes, out, what, apart=True)
        recvs = self._recvs(targets)
        call = comm._all_to_all(_plain(sends), _plain(recvs), sent, received, options)
        return self._run(call, out or form, targets, recvs, flags)

    # ---- collectives in place, whose answer is the outcome

    def all_reduce_(self, comm: Group, form: Form, options: Any) -> Any:
        async_op = options.pop("async_op", False)
        targets = self._places(form, adds=True)
        used = [self._packed(target) for target in targets]
        call = comm._all_reduce(_plain(used), None, options)
        return self._run_in_place(call, form, targets, used, async_op)

    def reduce_(self, comm: Group, form: Form, root: Root, options: Any) -> Any:
        async_op = options.pop("async_op", False)
        is_root = comm._rank_of(root) == comm.rank
        targets = self._places(form, adds=True, only_read=not is_root)
        used = [self._packed(target) for target in targets]
        call = comm._reduce(_plain(used), None, root, options)
        return self._run_in_place(call, form, targets if is_root else used, used, async_op)

    def broadcast_(self, comm: Group, form: Form, root: Root, options: Any) -> Any:
        async_op = options.pop("async_op", False)
        is_root = comm._rank_of(root) == comm.rank
        targets = self._places(form, only_read=is_root)
        used = [self._packed(each) for each in targets] if is_root else self._recvs(targets)
        call = comm._broadcast(_plain(used), root, options)
        return self._run_in_place(call, form, used if is_root else targets, used, async_op)

    def reduce_scatter_(self, comm: Group, form: Form, counts: Counts, options: Any) -> Any:
        """This rank's rows of one array."""
        async_op = options.pop("async_op", False)
        (x,) = self._places(form, adds=True)
        rows = Rows.of_whole(comm, self.shape(x), counts)
        target = self.rows(x, rows.first, rows.end)
        (recv,) = self._recvs([target])
        call = comm._reduce_scatter(self._packed(x), recv, rows.elements, options)
        return self._run_in_place(call, form, [target], [recv], async_op)

    def all_gather_(self, comm: Group, form: Form, counts: Counts, options: Any) -> Any:
        """All rows of one array, in which this rank's are its own."""
        async_op = options.pop("async_op", False)
        (x,) = self._places(form)
        rows = Rows.of_whole(comm, self.shape(x), counts)
        part, recv = self._packed(self.rows(x, rows.first, rows.end)), self._packed(x)
        call = comm._all_gather(part, recv, rows.elements, options)
        return self._run_in_place(call, form, [x], [recv], async_op)

    # ---- messages

    def send(self, comm: Group, x: object, dst: Root, options: Any) -> Any:
        async_op = options.pop("async_op", False)
        source = self._packed(self.array(x, adds=False))
        return comm._send(source, dst, options).run(async_op)

    def recv(self, comm: Group, made: ArrayType, src: Root, options: Any) -> Any:
        """Into an array that was made for it, which is returned."""
        flags = _flags(options)
        call = comm._recv(made, src, options)
        return self._run(call, one(made), [made], [made], flags)

    def recv_(self, comm: Group, x: object, src: Root, options: Any) -> Any:
        async_op = options.pop("async_op", False)
        target = self.target(x, adds=False)
        (recv,) = self._recvs([target])
        call = comm._recv(recv, src, options)
        return self._run_in_place(call, one(x), [target], [recv], async_op)

    # ---- what they are made of

    def _packed(self, x: ArrayType) -> ArrayType:
        return x if self.is_packed(x) else self.copy(x)

    def _sources(self, form: Form, *, adds: bool = False) -> list[ArrayType]:
        return form.each(lambda x: self._packed(self.array(x, adds)))

    def _places(
        self, form: Form, *, adds: bool = False, only_read: bool = False
    ) -> list[ArrayType]:
        """The arrays of a call in place: here they are written, unless they are only read."""
        targets = form.each(lambda x: self.target(x, adds, only_read))
        if not only_read:
            self._check_apart(targets, form.names)
        return targets

    def _parts(self, comm: Group, form: Form, counts: Counts) -> tuple[list[ArrayType], list[Rows]]:
        """This rank's rows of something; an array of no dimension is a row of one element."""
        parts = self._sources(form)
        parts = [each if self.shape(each) else self.reshape(each, (1,)) for each in parts]
        rows = form.each(lambda _, part: Rows.of_part(comm, self.shape(part), counts), parts)
        return parts, rows

    def _wholes(self, parts: list[ArrayType], rows: list[Rows], out: Out) -> list[ArrayType]:
        shapes = [(row.whole, *row.tail) for row in rows]
        return self._targets(parts, shapes, out, "what all members have", gathered=rows)

    def _targets(
        self,
        sends: list[ArrayType],
        shapes: list[Shape],
        out: Out,
        what: str,
        *,
        adds: bool = False,
        apart: bool = False,
        dealt: list[Rows] | None = None,
        gathered: list[Rows] | None = None,
    ) -> list[ArrayType]:
        """The arrays that are returned, of these shapes: those of `what`.

        As with NumPy's own functions, an `out` may overlap its input, which is copied then, in
        `sends`, unless they are the same where a collective takes that: this rank's rows of what is
        `dealt` out, or of what is `gathered`; never where both must lie `apart`.
        """
        if out is None:
            return [self.empty(shape, send) for shape, send in zip(shapes, sends, strict=True)]
        if len(out.arrays) != len(sends):
            raise InvalidArgument(f"out has {len(out.arrays)} arrays, x has {len(sends)}")

        def take(given: object, shape: Shape, send: ArrayType) -> ArrayType:
            target = self.target(given, adds)
            self.check_dtypes(target, send)
            if self.shape(target) != shape:
                raise InvalidArgument(
                    f"out has shape {self.shape(target)}, {what} has shape {shape}"
                )
            return target

        targets = out.each(take, shapes, sends)
        for number, (target, send) in enumerate(zip(targets, sends, strict=True)):
            if self.overlaps(send, target):
                mine = self._part(send, dealt, number), self._part(target, gathered, number)
                if apart or not self.is_same(*mine):
                    sends[number] = self.copy(send)
        return targets

    def _part(self, x: ArrayType, rows: list[Rows] | None, number: int) -> ArrayType:
        return x if rows is None else self.rows(x, rows[number].first, rows[number].end)

    def _recvs(self, targets: list[ArrayType]) -> list[ArrayType]:
        """The memory that an operation fills: the targets, or packed arrays for those that are not
        packed."""
        return [
            each if self.is_packed(each) else self.empty(self.shape(each), each) for each in targets
        ]

    def _check_apart(self, arrays: list[ArrayType], names: Sequence[str]) -> None:
        """Two that share memory would each be written with a result of its own."""
        if len(arrays) == 1:
            return
        bounds = sorted((*self.bounds(array), number) for number, array in enumerate(arrays))
        reach, whose = 0, 0
        for low, high, number in bounds:
            if low < reach and self.overlaps(arrays[whose], arrays[number]):
                one, other = names[min(whose, number)], names[max(whose, number)]
                raise InvalidArgument(
                    f"leaves {one} and {other} of the tree share memory, and each receives a "
                    "result: leave out one of them, or copy it"
                )
            if high > reach:
                reach, whose = high, number

    def _write_back(self, targets: list[ArrayType], recvs: list[ArrayType]) -> None:
        for target, recv in zip(targets, recvs, strict=True):
            if target is not recv:
                self.write(target, recv)

    def _run(
        self,
        call: Call,
        form: Form,
        targets: list[ArrayType],
        recvs: list[ArrayType],
        flags: _Flags,
    ) -> Any:
        def finish(outcome: Outcome) -> Any:
            self._write_back(targets, recvs)
            answer = form.rebuild(targets)
            return (answer, outcome) if flags.return_outcome else answer

        return call.run(flags.async_op, finish, form.reworded)

    def _run_in_place(
        self,
        call: Call,
        form: Form,
        targets: list[ArrayType],
        recvs: list[ArrayType],
        async_op: bool,
    ) -> Any:
        def finish(outcome: Outcome) -> Outcome:
            self._write_back(targets, recvs)
            return outcome

        return call.run(async_op, finish, form.reworded)


def _check_no_root(out: Out) -> None:
    for each in out.arrays if out else ():
        check_no_root(each)


def _plain(arrays: list[Any]) -> Any:
    """One array as itself: it may have counts, and an error about it has no number."""
    return arrays[0] if len(arrays) == 1 else arrays


def _nothing(call: Call, form: Form, flags: _Flags) -> Any:
    """On a rank that is given no array."""

    def finish(outcome: Outcome) -> Any:
        return (None, outcome) if flags.return_outcome else None

    return call.run(flags.async_op, finish, form.reworded)


class _Flags(NamedTuple):
    async_op: bool
    return_outcome: bool


def _flags(options: Any) -> _Flags:
    """Taken out of the options, of which the rest are for the operation itself."""
    return _Flags(options.pop("async_op", False), options.pop("return_outcome", False))
