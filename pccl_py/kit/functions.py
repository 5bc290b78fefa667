"""Functions: the collectives of a frontend as users call them, with types and docstrings.

Functions(frontend) has the collectives for single arrays, Trees(frontend) for trees; modules of a
frontend export their methods. In the modules named `tree`, `x` and `out` are trees of arrays that
are one operation; shapes, dtypes and errors are then those of each array. Each method prepares the
arrays (frontend.py), calls the method of the Group, and makes the result from the outcome. On an
error every input keeps its content, in place too (docs/internals/PROMISE.md, P3); a separate `out`
may hold anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

from pccl_py.call import (
    BroadcastOptions,
    ManyOptions,
    MessageOptions,
    Method,
    MoveOptions,
    Named,
    ReduceOptions,
    check,
    documented,
)
from pccl_py.collectives import Part, Root, check_no_root, listed
from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument
from pccl_py.kit.frontend import Form, Frontend, flatten, one
from pccl_py.outcome import Outcome
from pccl_py.rows import Counts, Rows
from pccl_py.words import ReduceOp, parse_op
from pccl_py.work import Work

T = TypeVar("T")
P = ParamSpec("P")
Mode = TypeVar("Mode", covariant=True)
Elsewhere = TypeVar("Elsewhere", covariant=True)
# Arguments that are taken as arrays: the result of a function has another type than these.
Like: TypeAlias = float | list[Any] | tuple[Any, ...]


class Single:
    """The mode of Functions for single arrays."""


class Function(Protocol[Mode, P, Elsewhere]):
    """A function whose result has the type of `x`, or `Elsewhere` on ranks that are not the root.

    A type checker checks the arguments of a call without `async_op` and `return_outcome`; with one
    of these only the function itself checks them.
    """

    @overload
    def __call__(
        self: Function[Single, P, Elsewhere], comm: Group, x: Like, /, *args: Any, **options: Any
    ) -> Any: ...
    @overload
    def __call__(
        self, comm: Group, x: T, /, *args: P.args, **options: P.kwargs
    ) -> T | Elsewhere: ...
    @overload
    def __call__(
        self, comm: Group, x: T, /, *args: Any, return_outcome: Literal[True], **options: Any
    ) -> tuple[T | Elsewhere, Outcome]: ...
    @overload
    def __call__(
        self, comm: Group, x: T, /, *args: Any, async_op: Literal[True], **options: Any
    ) -> Work[T | Elsewhere]: ...
    @overload
    def __call__(
        self, comm: Group, x: Any, /, *args: Any, async_op: bool, **options: Any
    ) -> Any: ...
    @overload
    def __call__(
        self, comm: Group, x: Any, /, *args: Any, return_outcome: bool, **options: Any
    ) -> Any: ...


class FunctionOf(Protocol[P, Elsewhere]):
    """A Function as an attribute of the class Functions."""

    def __get__(self, owner: Functions[Mode], kind: Any = None) -> Function[Mode, P, Elsewhere]: ...


_Written: TypeAlias = Callable[Concatenate[Any, Group, Any, P], Any]


def everywhere(kind: type) -> Callable[[_Written[P]], FunctionOf[P, Never]]:
    """Decorates a method with the options of `kind` that returns an array on every rank."""
    typed: Any = documented(kind, "async_op", "return_outcome")
    return typed  # type: ignore[no-any-return]


def at_root(kind: type) -> Callable[[_Written[P]], FunctionOf[P, None]]:
    """Decorates a method that returns an array on the root, and None on other ranks."""
    typed: Any = documented(kind, "async_op", "return_outcome")
    return typed  # type: ignore[no-any-return]


def in_place(kind: type) -> Callable[[Callable[Concatenate[Any, P], Any]], Method[P]]:
    """Decorates a method that returns the outcome."""
    typed: Any = documented(kind, "async_op")
    return typed  # type: ignore[no-any-return]


class Functions(Generic[Mode]):
    """The collectives over a frontend's arrays; Trees has the collectives over trees of arrays."""

    def __init__(self, frontend: Frontend[Any]) -> None:
        self._frontend = frontend

    def form(self, x: object) -> Form:
        """The Form of an argument, here a single array."""
        return one(x)

    @everywhere(ReduceOptions)
    def all_reduce(
        self, comm: Group, x: Any, out: Any = None, **options: Unpack[ReduceOptions]
    ) -> Any:
        """Reduces `x` over all members; returns a new array like `x`, or `out`.

        `x`: any layout, a dtype in `pccl_py.DType`; all peers pass the same shape and dtype. `out`:
        an array of the shape and dtype of `x`, in any layout; `out` may be `x` or overlap `x`, as
        with NumPy's own functions. A new array is C-contiguous and in native byte order. On any
        error `x` keeps its content.
        """
        self._frontend.check_comm(comm)
        form, sends = self._sources(x, adds=_adds(options))
        targets = self._targets(sends, out, adds=_adds(options))
        return self._give(comm.all_reduce, sends, targets, (), options, form, out)

    @in_place(ReduceOptions)
    def all_reduce_(self, comm: Group, x: Any, **options: Unpack[ReduceOptions]) -> Any:
        """Reduces `x`, of any layout, over all members in place, and returns the outcome.

        Shapes and dtypes are as for `all_reduce`. On any error `x` keeps its content.
        """
        self._frontend.check_comm(comm)
        form, targets = self._places(x, adds=_adds(options))
        used = [self._frontend.packed(target) for target in targets]
        return self._run(comm.all_reduce, (self._memory(used),), options, form, targets, used)

    @overload
    def all_reduce_many(
        self: Functions[Single],
        comm: Group,
        xs: Sequence[Like],
        out: Any = None,
        *,
        return_outcome: bool = ...,
        **_: Unpack[ManyOptions],
    ) -> Any: ...
    @overload
    def all_reduce_many(
        self, comm: Group, xs: Sequence[T], out: Any = None, **_: Unpack[ManyOptions]
    ) -> list[T]: ...
    @overload
    def all_reduce_many(
        self,
        comm: Group,
        xs: Sequence[T],
        out: Any = None,
        *,
        return_outcome: Literal[True],
        **_: Unpack[ManyOptions],
    ) -> tuple[list[T], list[Outcome]]: ...
    @documented(ManyOptions, "return_outcome")
    def all_reduce_many(
        self,
        comm: Group,
        xs: Sequence[Any],
        out: Any = None,
        *,
        return_outcome: bool = False,
        **options: Unpack[ManyOptions],
    ) -> Any:
        """Reduces each of `xs` over all members; returns a list of new arrays, or the arrays of
        `out`.

        Each array is an operation of its own, like an `all_reduce`; array i has the tag `tag` + i.
        The operations begin in order, at most `in_flight` at once. An aborted operation is
        repeated, up to `retry` times: an abort reaches all members, so all members repeat it. All
        members pass equally many arrays and the same `retry`. `deadline` limits the whole call.
        With `return_outcome` the call returns (results, outcomes), two lists.

        The call tries all operations, also after one has failed. Then it raises the error of the
        first operation that failed; `error.works` has the last operation of each array. On any
        error all `xs` keep their content.
        """
        self._frontend.check_comm(comm)
        parts, given = _Parts(), listed("xs", xs, out)
        for number, (x, into) in enumerate(given):
            with Named(f"xs[{number}]"):
                form, sends = self._sources(x, adds=_adds(options))
                targets = self._targets(sends, into, adds=_adds(options))
            asked = {"return_outcome": True}
            self._give(parts.all_reduce, sends, targets, (), asked, form, into)
            parts.receive(form, targets)
        results = parts.run(self._frontend, comm, options)
        made = [result for result, _ in results]
        return (made, [outcome for _, outcome in results]) if return_outcome else made

    @documented(ManyOptions)
    def all_reduce_many_(
        self, comm: Group, xs: Sequence[Any], **options: Unpack[ManyOptions]
    ) -> list[Outcome]:
        """Reduces all `xs`, of any layout, over all members in place, and returns the outcomes.

        On an error an array of `xs` has its result if its operation committed, and else keeps its
        content. Otherwise as `all_reduce_many`.
        """
        self._frontend.check_comm(comm)
        parts = _Parts()
        for number, (x, _) in enumerate(listed("xs", xs, None)):
            with Named(f"xs[{number}]"):
                form, targets = self._places(x, adds=_adds(options))
            used = [self._frontend.packed(target) for target in targets]
            self._run(parts.all_reduce, (self._memory(used),), {}, form, targets, used)
            parts.receive(form, targets)
        outcomes: list[Outcome] = parts.run(self._frontend, comm, dict(options))
        return outcomes

    @at_root(ReduceOptions)
    def reduce(
        self, comm: Group, x: Any, out: Any = None, root: Root = 0, **options: Unpack[ReduceOptions]
    ) -> Any:
        """Reduces `x` over all members for `root` (a rank of the epoch, or a peer id).

        The root gets a new array, or `out`; other ranks get None, and ignore `out`. `x` and `out`
        are as for `all_reduce`. If the root is lost, all members get Aborted.
        """
        self._frontend.check_comm(comm)
        form, sends = self._sources(x, adds=_adds(options))
        self._check_no_root(out)
        targets = self._targets(sends, out, adds=_adds(options)) if _is_root(comm, root) else None
        return self._give(comm.reduce, sends, targets, (root,), options, form, out)

    @in_place(ReduceOptions)
    def reduce_(self, comm: Group, x: Any, root: Root = 0, **options: Unpack[ReduceOptions]) -> Any:
        """Reduces `x`, of any layout, over all members into `x` of `root`, and returns the outcome.

        Other ranks only read `x`, which may be read-only. Otherwise as `reduce`.
        """
        self._frontend.check_comm(comm)
        is_root = _is_root(comm, root)
        form, targets = self._places(x, adds=_adds(options), only_read=not is_root)
        used = [self._frontend.packed(target) for target in targets]
        given = self._memory(used), None, root
        written = (targets, used) if is_root else ()
        return self._run(comm.reduce, given, options, form, *written)

    @everywhere(BroadcastOptions)
    def broadcast(
        self, comm: Group, x: Any, root: Root = 0, **options: Unpack[BroadcastOptions]
    ) -> Any:
        """A new array, equal to `x` of `root` (a rank of the epoch, or a peer id), on every member.

        `x`: any layout, a dtype in `pccl_py.DType`, bool or a float of eight bits; all peers pass
        the same shape and dtype, and only the root's values matter.
        """
        self._frontend.check_comm(comm)
        form, frontend = self.form(x), self._frontend
        made = form.each(lambda each: frontend.copy(frontend.array(each, adds=False)))
        given = self._memory(made), root
        return self._run(comm.broadcast, given, options, form, made, made, form.rebuild)

    @in_place(BroadcastOptions)
    def broadcast_(
        self, comm: Group, x: Any, root: Root = 0, **options: Unpack[BroadcastOptions]
    ) -> Any:
        """Overwrites `x`, of any layout, with the `x` of `root`; returns the outcome.

        A read-only `x` is a ValueError, except on the root, which only reads `x`. Otherwise as
        `broadcast`.
        """
        self._frontend.check_comm(comm)
        is_root = _is_root(comm, root)
        form, targets = self._places(x, only_read=is_root)
        if is_root:
            given = self._memory([self._frontend.packed(each) for each in targets]), root
            return self._run(comm.broadcast, given, options, form)
        used = self._frontend.recvs(targets)
        given = self._memory(used), root
        return self._run(comm.broadcast, given, options, form, targets, used)

    @everywhere(ReduceOptions)
    def reduce_scatter(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        counts: Counts = None,
        **options: Unpack[ReduceOptions],
    ) -> Any:
        """This rank's rows of the reduction of `x` over all members, as a new array or in `out`.

        `x`: shape (n * k, ...) in a world of n ranks, for a result of shape (k, ...); or with
        `counts`, sum(counts) rows, for a result of counts[rank] rows. All peers pass the same
        shape, dtype and `counts`. `out` may be this rank's rows of `x`, or overlap `x`. Otherwise
        as `all_reduce`; ValueError also if the rows do not divide among the ranks. The rows of a
        lost rank go to no rank.
        """
        self._frontend.check_comm(comm)
        form, sends = self._sources(x, adds=_adds(options))
        rows = self._wholes(comm, form, sends, counts)
        targets = self._targets(sends, out, adds=_adds(options), dealt=rows)
        rest = (rows[0].elements,)
        return self._give(comm.reduce_scatter, sends, targets, rest, options, form, out)

    @in_place(ReduceOptions)
    def reduce_scatter_(
        self, comm: Group, x: Any, counts: Counts = None, **options: Unpack[ReduceOptions]
    ) -> Any:
        """Overwrites this rank's rows of `x` with their reduction over all members.

        Other rows of `x` are only read. Returns the outcome. Otherwise as `reduce_scatter`.
        """
        self._frontend.check_comm(comm)
        form, (whole,) = self._places(x, adds=_adds(options))
        (rows,) = self._wholes(comm, form, [whole], counts)
        targets = [self._frontend.rows(whole, rows.first, rows.end)]
        recvs = self._frontend.recvs(targets)
        sends = [self._frontend.packed(whole)]
        given = self._memory(sends), self._memory(recvs), rows.elements
        return self._run(comm.reduce_scatter, given, options, form, targets, recvs)

    @everywhere(MoveOptions)
    def all_gather(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        counts: Counts = None,
        **options: Unpack[MoveOptions],
    ) -> Any:
        """The rows of `x` of all members in rank order, as a new array or in `out`.

        `x`: shape (k, ...) for a result of shape (n * k, ...) in a world of n ranks; or with
        `counts`, counts[rank] rows, for a result of sum(counts) rows. An array of no dimension is a
        row of one element: n of them make the shape (n,). All peers pass equal shapes except for
        the rows, equal `counts` and dtypes; dtypes are those of `broadcast`. `out`: an array of the
        shape and dtype of the result; `x` may be this rank's rows of `out`, or overlap `out`.

        After a member was lost or has left, the call raises Aborted on all members, and so do later
        calls until an `admit` begins an epoch without that member (`Admission.changed`). With
        recovery "restart" or "resume" calls go on: elements of a lost member that no survivor
        received are zeros on all members, and the outcome names no contributor for them.
        """
        self._frontend.check_comm(comm)
        form, sends, rows = self._parts(comm, x, counts)
        targets = self._targets(sends, out, gathered=rows)
        rest = (rows[0].elements,)
        return self._give(comm.all_gather, sends, targets, rest, options, form, out)

    @in_place(MoveOptions)
    def all_gather_(
        self, comm: Group, x: Any, counts: Counts = None, **options: Unpack[MoveOptions]
    ) -> Any:
        """Fills `x`, which has this rank's rows, with the rows of all ranks; returns the outcome.

        `x` has n * k rows in a world of n ranks, or with `counts` sum(counts) rows, on every peer.
        With a codec all rows are rounded, so that all members have equal bytes. Otherwise as
        `all_gather`.
        """
        self._frontend.check_comm(comm)
        form, (whole,) = self._places(x)
        (rows,) = self._wholes(comm, form, [whole], counts)
        packed = self._frontend.packed
        part, recv = packed(self._frontend.rows(whole, rows.first, rows.end)), packed(whole)
        given = self._memory([part]), self._memory([recv]), rows.elements
        return self._run(comm.all_gather, given, options, form, [whole], [recv])

    @overload
    def scatter(
        self,
        comm: Group,
        x: Any,
        out: T,
        root: Root = 0,
        counts: Counts = None,
        **_: Unpack[MoveOptions],
    ) -> T: ...
    @overload
    def scatter(self, comm: Group, x: Any, *args: Any, **_: Any) -> Any: ...
    @documented(MoveOptions, "async_op", "return_outcome")
    def scatter(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **options: Unpack[MoveOptions],
    ) -> Any:
        """This rank's rows of the `x` of `root`: the root gets a new array or `out`, others `out`.

        `x`: on the root, n * k rows in a world of n ranks, or with `counts` sum(counts) rows; `out`
        may be the root's rows of `x`, or overlap `x`. Other ranks ignore `x`, and need `out`, whose
        shape says what they receive. If the root is lost, all members get Aborted. Dtypes are those
        of `broadcast`.
        """
        self._frontend.check_comm(comm)
        sends = None
        if _is_root(comm, root):
            if x is None:
                raise InvalidArgument("the root of a scatter needs x, with the rows of all ranks")
            form, sends = self._sources(x)
            rows = self._wholes(comm, form, sends, counts)
            targets = self._targets(sends, out, dealt=rows)
        else:
            if out is None:
                raise InvalidArgument(
                    "out is needed except on the root: only the root knows the shape of x"
                )
            form = self.form(out)
            targets = form.each(lambda each: self._frontend.target(each, adds=False))
            self._frontend.check_apart(targets, form.names)
            rows = self._rows_of(comm, form, targets, counts, "out")
        rest = (root, rows[0].elements)
        return self._give(comm.scatter, sends, targets, rest, options, form, out)

    @at_root(MoveOptions)
    def gather(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **options: Unpack[MoveOptions],
    ) -> Any:
        """`x` of all members on `root`, like the result of `all_gather`; other ranks get None.

        Other ranks ignore `out`. If the root is lost, all members get Aborted, whatever the
        recovery.
        """
        self._frontend.check_comm(comm)
        form, sends, rows = self._parts(comm, x, counts)
        self._check_no_root(out)
        targets = self._targets(sends, out, gathered=rows) if _is_root(comm, root) else None
        rest = (root, rows[0].elements)
        return self._give(comm.gather, sends, targets, rest, options, form, out)

    @everywhere(MoveOptions)
    def all_to_all(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        **options: Unpack[MoveOptions],
    ) -> Any:
        """This rank's rows of `x` of each member, in rank order; a new array, or `out`.

        `x`: n * k rows in a world of n ranks, of which k go to each rank; all peers pass the same
        shape and dtype. Or `send_counts` says how many rows go to each rank, and `recv_counts` how
        many come from each rank: any two peers must agree about the rows between them, else both
        get Mismatch. All rows have the same shape. With counts, bool and floats of eight bits go as
        u8 and a complex number as two floats, and members do not notice if these dtypes differ.
        `out`: an array of the shape and dtype of the result; `out` may be `x`, or overlap `x`.
        Dtypes are those of `broadcast`. After a loss the call ends as an `all_gather` does.
        """
        self._frontend.check_comm(comm)
        form, sends = self._sources(x)
        shape, sent, received = self._frontend.shape(sends[0]), None, None
        if send_counts is None and recv_counts is None:
            self._wholes(comm, form, sends, None, takes_counts=False)
        elif send_counts is None or recv_counts is None:
            raise InvalidArgument("send_counts and recv_counts go together: pass both, or none")
        else:
            own = Rows.of_whole(comm, shape, send_counts, name="send_counts")
            theirs = Rows.of_counts(comm, own.tail, recv_counts, "recv_counts")
            shape = theirs.whole, *own.tail
            sent, received = (self._wide(rows, sends[0]).elements for rows in (own, theirs))
        targets = self._targets(sends, out, exchanged=shape)
        return self._give(comm.all_to_all, sends, targets, (sent, received), options, form, out)

    @in_place(BroadcastOptions)
    def barrier(self, comm: Group, **options: Unpack[BroadcastOptions]) -> Any:
        """Returns the outcome once every member that is left has called `barrier`.

        With recovery "complete" the call raises Aborted if a member is lost.
        """
        self._frontend.check_comm(comm)
        return comm.barrier(**options)

    @in_place(MessageOptions)
    def send(self, comm: Group, x: Any, dst: Root, **options: Unpack[MessageOptions]) -> Any:
        """Sends `x` to `dst`, another rank or the id of a member, which calls `recv` or `recv_`.

        `x`: any layout; dtypes are those of `broadcast`. Returns the outcome when `dst` has the
        whole message: two members that both send first would wait for each other, so pass
        `async_op` there. Errors are those of `pccl_py.Communicator.send`.
        """
        self._frontend.check_comm(comm)
        source = self._frontend.packed(self._frontend.array(x, adds=False))
        return self._run(comm.send, (self._memory([source]), dst), options, one(x))

    @in_place(MessageOptions)
    def recv_(self, comm: Group, x: Any, src: Root, **options: Unpack[MessageOptions]) -> Any:
        """Overwrites `x`, of any layout, with what `src` sends, and returns the outcome.

        `x` must have as many elements, of the same dtype, as the `x` that `src` sends; else both
        sides get `Mismatch`. Bool and floats of eight bits go as u8 and a complex number as two
        floats, and the sides do not notice if these dtypes differ. On any other error `x` may hold
        anything.
        """
        self._frontend.check_comm(comm)
        targets = [self._frontend.target(x, adds=False)]
        recvs = self._frontend.recvs(targets)
        given = self._memory(recvs), src
        return self._run(comm.recv, given, options, one(x), targets, recvs)

    # ---- helpers of the collectives

    def received(self, comm: Group, made: Any, src: Root, options: Any) -> Any:
        """Receives from `src` into `made`, a new packed array, and returns `made`."""
        self._frontend.check_comm(comm)
        form, given = one(made), (self._memory([made]), src)
        return self._run(comm.recv, given, options, form, [made], [made], form.rebuild)

    def _sources(self, x: Any, adds: bool = False) -> tuple[Form, list[Any]]:
        form, frontend = self.form(x), self._frontend
        return form, form.each(lambda each: frontend.packed(frontend.array(each, adds)))

    def _places(
        self, x: Any, adds: bool = False, only_read: bool = False
    ) -> tuple[Form, list[Any]]:
        """The arrays of a call in place, which this rank writes unless `only_read`."""
        form = self.form(x)
        targets = form.each(lambda each: self._frontend.target(each, adds, only_read))
        if not only_read:
            self._frontend.check_apart(targets, form.names)
        return form, targets

    def _check_no_root(self, out: Any) -> None:
        for each in () if out is None else self.form(out).arrays:
            check_no_root(each)

    def _targets(self, sends: list[Any], out: Any, **how: Any) -> list[Any]:
        return self._frontend.targets(sends, None if out is None else self.form(out), **how)

    def _wholes(
        self, comm: Group, form: Form, arrays: list[Any], counts: Counts, **how: Any
    ) -> list[Rows]:
        def rows(_: object, each: Any) -> Rows:
            whole = Rows.of_whole(comm, self._frontend.shape(each), counts, **how)
            return self._wide(whole, each)

        return form.each(rows, arrays)

    def _rows_of(
        self, comm: Group, form: Form, parts: list[Any], counts: Counts, *name: str
    ) -> list[Rows]:
        def rows(_: object, each: Any) -> Rows:
            return self._wide(Rows.of_part(comm, self._frontend.shape(each), counts, *name), each)

        return form.each(rows, parts)

    def _wide(self, rows: Rows, x: Any) -> Rows:
        """Converts `rows.elements` to elements of the core, by the width of the dtype of `x`."""
        width = self._frontend.width(x)
        if width == 1 or rows.elements is None:
            return rows
        return replace(rows, elements=[count * width for count in rows.elements])

    def _parts(self, comm: Group, x: Any, counts: Counts) -> tuple[Form, list[Any], list[Rows]]:
        """The Form, arrays and Rows of this rank's part; an array of no dimension is one row."""
        (form, parts), frontend = self._sources(x), self._frontend
        parts = [each if frontend.shape(each) else frontend.reshape(each, (1,)) for each in parts]
        return form, parts, self._rows_of(comm, form, parts, counts)

    def _give(
        self,
        collective: Callable[..., Any],
        sends: list[Any] | None,
        targets: list[Any] | None,
        rest: tuple[Any, ...],
        options: Any,
        form: Form,
        out: Any,
    ) -> Any:
        """Runs `collective`; returns `out`, or the targets in the structure of `form`, or None."""
        recvs = None if targets is None else self._frontend.recvs(targets)

        def answer(made: Sequence[Any]) -> Any:
            return form.rebuild(made) if out is None else out

        given = self._memory(sends), self._memory(recvs), *rest
        if targets is None or recvs is None:
            return self._run(collective, given, options, form, answer=lambda _: None)
        return self._run(collective, given, options, form, targets, recvs, answer)

    def _memory(self, arrays: list[Any] | None) -> Any:
        """Packed arrays as the core takes them.

        A single array is passed without a list, so it may have counts, and errors give it no
        number.
        """
        if arrays is None:
            return None
        taken = [self._frontend.memory(array) for array in arrays]
        return taken[0] if len(taken) == 1 else taken

    def _run(
        self,
        collective: Callable[..., Any],
        given: tuple[Any, ...],
        options: Any,
        form: Form,
        targets: Sequence[Any] = (),
        recvs: Sequence[Any] = (),
        answer: Callable[[Sequence[Any]], Any] | None = None,
    ) -> Any:
        """Runs `collective`; returns the outcome, or `answer(targets)`, or with an option both."""
        told = answer is not None and options.pop("return_outcome", False)
        check(collective.__name__, options)

        def finish(outcome: Outcome) -> Any:
            self._frontend.write_back(targets, recvs)
            if answer is None:
                return outcome
            return (answer(targets), outcome) if told else answer(targets)

        options |= {"_finish": finish, "_reword": form.reworded, "_form": form.number}
        self._frontend.begins(targets, recvs)
        return collective(*given, **options)


class Trees(Functions[Any]):
    """The collectives over trees of a frontend's arrays: see `flatten`."""

    def form(self, x: object) -> Form:
        return flatten(x)


class _Parts:
    """The prepared operations of an all_reduce_many, and the arrays that get their results."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._targets: list[Any] = []
        self._names: list[str] = []

    def all_reduce(self, array: Any, out: Any = None, **beside: Any) -> None:
        """Stands in for the Group's `all_reduce`: keeps the operation instead of running it."""
        self._parts.append(Part(array, array if out is None else out, beside))

    def receive(self, form: Form, targets: Sequence[Any]) -> None:
        """Notes `targets` as the arrays that get the results of the operation kept last."""
        number = len(self._parts) - 1
        self._targets += targets
        self._names += [f"xs[{number}]{name}" for name in form.names or [""]]

    def run(self, frontend: Frontend[Any], comm: Group, options: Any) -> list[Any]:
        frontend.check_apart(self._targets, self._names, "")
        return comm._many(self._parts, options, "xs")


def _adds(options: Mapping[str, Any]) -> bool:
    """Whether a reduction adds elements up, which fewer dtypes allow than combining bits."""
    return not parse_op(options.get("op", ReduceOp.SUM)).is_bitwise


def _is_root(comm: Group, root: Root) -> bool:
    return comm._rank_of(root) == comm.rank
