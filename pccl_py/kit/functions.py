"""Functions: the collectives as users call them, with their types and docstrings, for frontends.

Written once: Functions(frontend, one) has them for single arrays, Functions(frontend, flatten) for
trees, and a frontend's modules name its methods. In `tree`, `x` and `out` are trees of arrays that
go as one operation; shapes, dtypes and errors are then those of each array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, Unpack, overload

from pccl_py.collectives import Counts, Root
from pccl_py.communicator import Group
from pccl_py.kit.frontend import Form, Frontend, Out
from pccl_py.options import (
    Broadcast,
    BroadcastOptions,
    Message,
    MessageOptions,
    Move,
    MoveOptions,
    Reduce,
    ReduceOptions,
    documented,
)
from pccl_py.outcome import Outcome
from pccl_py.work import Work

T = TypeVar("T")
Mode = TypeVar("Mode")
# Like an array, and none: the result is not of their type.
Like: TypeAlias = float | list[Any] | tuple[Any, ...]


class Single:
    """The mode of Functions for single arrays."""


class Functions(Generic[Mode]):
    """The collectives over a frontend's arrays, or over trees of them.

    `form` makes the arrays of a call of an argument.
    """

    def __init__(self, frontend: Frontend[Any], form: Callable[[Any], Form]) -> None:
        self._frontend = frontend
        self._form = form

    def _out(self, out: Any) -> Out:
        """As a form, whose answer is the `out` that was given."""
        return None if out is None else self._form(out)._replace(rebuild=lambda _: out)

    def _dealt(self, comm: Group, x: Any, root: Root) -> Out:
        """The array that a root deals out; elsewhere it is not looked at."""
        here = comm._rank_of(root) == comm.rank
        return None if x is None or not here else self._form(x)

    @overload
    def all_reduce(
        self: Functions[Single], comm: Group, x: Like, out: Any = None, **_: Unpack[Reduce.Any]
    ) -> Any: ...
    @overload
    def all_reduce(self, comm: Group, x: T, out: Any = None, **_: Unpack[Reduce.Wait]) -> T: ...
    @overload
    def all_reduce(
        self, comm: Group, x: T, out: Any = None, **_: Unpack[Reduce.Both]
    ) -> tuple[T, Outcome]: ...
    @overload
    def all_reduce(
        self, comm: Group, x: T, out: Any = None, **_: Unpack[Reduce.Begin]
    ) -> Work[T]: ...
    @overload
    def all_reduce(self, comm: Group, x: T, out: Any = None, **_: Unpack[Reduce.Any]) -> Any: ...
    @documented(ReduceOptions, "return_outcome")
    def all_reduce(
        self, comm: Group, x: Any, out: Any = None, **options: Unpack[Reduce.Any]
    ) -> Any:
        """The reduction of `x` over all members, as a new array like `x`, or in `out`.

        `x`: any layout, a dtype in `pccl_py.DType`; the same shape and dtype on every peer. `out`:
        of exactly that shape and dtype, any layout; it may be `x` or overlap it, as with NumPy's
        own functions. A new array is C-contiguous and in native byte order. On any error `x` is as
        it was.
        """
        return self._frontend.all_reduce(comm, self._form(x), self._out(out), options)

    @overload
    def all_reduce_(self, comm: Group, x: Any, **_: Unpack[Reduce.Wait]) -> Outcome: ...
    @overload
    def all_reduce_(self, comm: Group, x: Any, **_: Unpack[Reduce.Begin]) -> Work: ...
    @overload
    def all_reduce_(self, comm: Group, x: Any, **_: Unpack[Reduce.Either]) -> Outcome | Work: ...
    @documented(ReduceOptions)
    def all_reduce_(self, comm: Group, x: Any, **options: Unpack[Reduce.Either]) -> Any:
        """Reduces `x`, of any layout, over all members in place, and returns the outcome.

        Shapes and dtypes are as for `all_reduce`. On any error `x` is as it was.
        """
        return self._frontend.all_reduce_(comm, self._form(x), options)

    @overload
    def reduce(
        self: Functions[Single],
        comm: Group,
        x: Like,
        out: Any = None,
        root: Root = 0,
        **_: Unpack[Reduce.Any],
    ) -> Any: ...
    @overload
    def reduce(
        self, comm: Group, x: T, out: Any = None, root: Root = 0, **_: Unpack[Reduce.Wait]
    ) -> T | None: ...
    @overload
    def reduce(
        self, comm: Group, x: T, out: Any = None, root: Root = 0, **_: Unpack[Reduce.Both]
    ) -> tuple[T | None, Outcome]: ...
    @overload
    def reduce(
        self, comm: Group, x: T, out: Any = None, root: Root = 0, **_: Unpack[Reduce.Begin]
    ) -> Work[T | None]: ...
    @overload
    def reduce(
        self, comm: Group, x: T, out: Any = None, root: Root = 0, **_: Unpack[Reduce.Any]
    ) -> Any: ...
    @documented(ReduceOptions, "return_outcome")
    def reduce(
        self, comm: Group, x: Any, out: Any = None, root: Root = 0, **options: Unpack[Reduce.Any]
    ) -> Any:
        """The reduction of `x` over all members, on `root` (a rank of the epoch, or a peer id).

        There it is a new array, or in `out`; elsewhere it is None, and `out` is not looked at. `x`
        and `out` are as for `all_reduce`; a lost root ends the operation with Aborted on all.
        """
        return self._frontend.reduce(comm, self._form(x), self._out(out), root, options)

    @overload
    def reduce_(self, comm: Group, x: Any, root: Root = 0, **_: Unpack[Reduce.Wait]) -> Outcome: ...
    @overload
    def reduce_(self, comm: Group, x: Any, root: Root = 0, **_: Unpack[Reduce.Begin]) -> Work: ...
    @overload
    def reduce_(
        self, comm: Group, x: Any, root: Root = 0, **_: Unpack[Reduce.Either]
    ) -> Outcome | Work: ...
    @documented(ReduceOptions)
    def reduce_(self, comm: Group, x: Any, root: Root = 0, **options: Unpack[Reduce.Either]) -> Any:
        """Reduces `x`, of any layout, over all members into `x` of `root`, and returns the outcome.

        Elsewhere `x` is only read, and may be read-only. Otherwise as `reduce`.
        """
        return self._frontend.reduce_(comm, self._form(x), root, options)

    @overload
    def broadcast(
        self: Functions[Single], comm: Group, x: Like, root: Root = 0, **_: Unpack[Broadcast.Any]
    ) -> Any: ...
    @overload
    def broadcast(self, comm: Group, x: T, root: Root = 0, **_: Unpack[Broadcast.Wait]) -> T: ...
    @overload
    def broadcast(
        self, comm: Group, x: T, root: Root = 0, **_: Unpack[Broadcast.Both]
    ) -> tuple[T, Outcome]: ...
    @overload
    def broadcast(
        self, comm: Group, x: T, root: Root = 0, **_: Unpack[Broadcast.Begin]
    ) -> Work[T]: ...
    @overload
    def broadcast(self, comm: Group, x: T, root: Root = 0, **_: Unpack[Broadcast.Any]) -> Any: ...
    @documented(BroadcastOptions, "return_outcome")
    def broadcast(
        self, comm: Group, x: Any, root: Root = 0, **options: Unpack[Broadcast.Any]
    ) -> Any:
        """A new array, equal to `x` of `root` (a rank of the epoch, or a peer id), on every member.

        `x`: any layout, a dtype in `pccl_py.DType`, bool or a float of eight bits; the same shape
        and dtype on every peer. Its values matter on the root only.
        """
        return self._frontend.broadcast(comm, self._form(x), root, options)

    @overload
    def broadcast_(
        self, comm: Group, x: Any, root: Root = 0, **_: Unpack[Broadcast.Wait]
    ) -> Outcome: ...
    @overload
    def broadcast_(
        self, comm: Group, x: Any, root: Root = 0, **_: Unpack[Broadcast.Begin]
    ) -> Work: ...
    @overload
    def broadcast_(
        self, comm: Group, x: Any, root: Root = 0, **_: Unpack[Broadcast.Either]
    ) -> Outcome | Work: ...
    @documented(BroadcastOptions)
    def broadcast_(
        self, comm: Group, x: Any, root: Root = 0, **options: Unpack[Broadcast.Either]
    ) -> Any:
        """Overwrites `x`, of any layout, with that of `root` on every member; returns the outcome.

        A read-only `x` is a ValueError, except on the root, where it is only read. Otherwise as
        `broadcast`.
        """
        return self._frontend.broadcast_(comm, self._form(x), root, options)

    @overload
    def reduce_scatter(
        self: Functions[Single],
        comm: Group,
        x: Like,
        out: Any = None,
        counts: Counts = None,
        **_: Unpack[Reduce.Any],
    ) -> Any: ...
    @overload
    def reduce_scatter(
        self, comm: Group, x: T, out: Any = None, counts: Counts = None, **_: Unpack[Reduce.Wait]
    ) -> T: ...
    @overload
    def reduce_scatter(
        self, comm: Group, x: T, out: Any = None, counts: Counts = None, **_: Unpack[Reduce.Both]
    ) -> tuple[T, Outcome]: ...
    @overload
    def reduce_scatter(
        self, comm: Group, x: T, out: Any = None, counts: Counts = None, **_: Unpack[Reduce.Begin]
    ) -> Work[T]: ...
    @overload
    def reduce_scatter(
        self, comm: Group, x: T, out: Any = None, counts: Counts = None, **_: Unpack[Reduce.Any]
    ) -> Any: ...
    @documented(ReduceOptions, "return_outcome")
    def reduce_scatter(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        counts: Counts = None,
        **options: Unpack[Reduce.Any],
    ) -> Any:
        """This rank's rows of the reduction of `x` over all members, as a new array or in `out`.

        `x`: shape (n * k, ...) in a world of n ranks, for a result of shape (k, ...); or with
        `counts`, of sum(counts) rows, for one of counts[rank]. The same shape, dtype and `counts`
        on every peer. `out` may be those rows of `x`, or overlap it. Otherwise as `all_reduce`;
        ValueError also where rows cannot be shared so. A lost rank's rows are given to nobody.
        """
        return self._frontend.reduce_scatter(comm, self._form(x), self._out(out), counts, options)

    @overload
    def reduce_scatter_(
        self, comm: Group, x: Any, counts: Counts = None, **_: Unpack[Reduce.Wait]
    ) -> Outcome: ...
    @overload
    def reduce_scatter_(
        self, comm: Group, x: Any, counts: Counts = None, **_: Unpack[Reduce.Begin]
    ) -> Work: ...
    @overload
    def reduce_scatter_(
        self, comm: Group, x: Any, counts: Counts = None, **_: Unpack[Reduce.Either]
    ) -> Outcome | Work: ...
    @documented(ReduceOptions)
    def reduce_scatter_(
        self, comm: Group, x: Any, counts: Counts = None, **options: Unpack[Reduce.Either]
    ) -> Any:
        """Overwrites this rank's rows of `x` with their reduction over all members.

        The other rows are only read. Returns the outcome. Otherwise as `reduce_scatter`.
        """
        return self._frontend.reduce_scatter_(comm, self._form(x), counts, options)

    @overload
    def all_gather(
        self: Functions[Single],
        comm: Group,
        x: Like,
        out: Any = None,
        counts: Counts = None,
        **_: Unpack[Move.Any],
    ) -> Any: ...
    @overload
    def all_gather(
        self, comm: Group, x: T, out: Any = None, counts: Counts = None, **_: Unpack[Move.Wait]
    ) -> T: ...
    @overload
    def all_gather(
        self, comm: Group, x: T, out: Any = None, counts: Counts = None, **_: Unpack[Move.Both]
    ) -> tuple[T, Outcome]: ...
    @overload
    def all_gather(
        self, comm: Group, x: T, out: Any = None, counts: Counts = None, **_: Unpack[Move.Begin]
    ) -> Work[T]: ...
    @overload
    def all_gather(
        self, comm: Group, x: T, out: Any = None, counts: Counts = None, **_: Unpack[Move.Any]
    ) -> Any: ...
    @documented(MoveOptions, "return_outcome")
    def all_gather(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        counts: Counts = None,
        **options: Unpack[Move.Any],
    ) -> Any:
        """`x` of all members, one behind the other along axis 0 in rank order, new or in `out`.

        `x`: shape (k, ...) for a result of shape (n * k, ...) in a world of n ranks; or with
        `counts`, of counts[rank] rows, for one of sum(counts). One of no dimension is a row of one
        element: n of them make the shape (n,). Equal shapes but for the rows, equal `counts` and
        dtype on every peer; dtypes are those of `broadcast`. `out`: of exactly that shape and
        dtype; `x` may be its rows of this rank, or overlap it. Elements of a lost member that no
        survivor got are zeros, on all alike; the outcome names no contributor for them.
        """
        return self._frontend.all_gather(comm, self._form(x), self._out(out), counts, options)

    @overload
    def all_gather_(
        self, comm: Group, x: Any, counts: Counts = None, **_: Unpack[Move.Wait]
    ) -> Outcome: ...
    @overload
    def all_gather_(
        self, comm: Group, x: Any, counts: Counts = None, **_: Unpack[Move.Begin]
    ) -> Work: ...
    @overload
    def all_gather_(
        self, comm: Group, x: Any, counts: Counts = None, **_: Unpack[Move.Either]
    ) -> Outcome | Work: ...
    @documented(MoveOptions)
    def all_gather_(
        self, comm: Group, x: Any, counts: Counts = None, **options: Unpack[Move.Either]
    ) -> Any:
        """Fills `x` with the rows of all members, of which its own are there; returns the outcome.

        `x` has n * k rows, or with `counts` sum(counts), on every peer. With a codec all rows are
        rounded, so that all members have equal bytes. Otherwise as `all_gather`.
        """
        return self._frontend.all_gather_(comm, self._form(x), counts, options)

    @overload
    def scatter(
        self,
        comm: Group,
        x: Any,
        out: T,
        root: Root = 0,
        counts: Counts = None,
        **_: Unpack[Move.Wait],
    ) -> T: ...
    @overload
    def scatter(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **_: Unpack[Move.Any],
    ) -> Any: ...
    @documented(MoveOptions, "return_outcome")
    def scatter(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **options: Unpack[Move.Any],
    ) -> Any:
        """This rank's rows of `x` of `root`: in a new array there, or in `out`; elsewhere in `out`.

        `x`: on the root, of n * k rows in a world of n ranks, or with `counts` of sum(counts);
        `out` may be this rank's rows of it, or overlap it. Elsewhere `x` is not looked at, and
        nobody there knows its shape: that of `out` says it. A lost root ends the operation with
        Aborted on all. Dtypes are those of `broadcast`.
        """
        return self._frontend.scatter(
            comm, self._dealt(comm, x, root), self._out(out), root, counts, options
        )

    @overload
    def gather(
        self: Functions[Single],
        comm: Group,
        x: Like,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **_: Unpack[Move.Any],
    ) -> Any: ...
    @overload
    def gather(
        self,
        comm: Group,
        x: T,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **_: Unpack[Move.Wait],
    ) -> T | None: ...
    @overload
    def gather(
        self,
        comm: Group,
        x: T,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **_: Unpack[Move.Both],
    ) -> tuple[T | None, Outcome]: ...
    @overload
    def gather(
        self,
        comm: Group,
        x: T,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **_: Unpack[Move.Begin],
    ) -> Work[T | None]: ...
    @overload
    def gather(
        self,
        comm: Group,
        x: T,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **_: Unpack[Move.Any],
    ) -> Any: ...
    @documented(MoveOptions, "return_outcome")
    def gather(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        root: Root = 0,
        counts: Counts = None,
        **options: Unpack[Move.Any],
    ) -> Any:
        """`x` of all members on `root`, as `all_gather` has it; elsewhere None, without `out`.

        Elements of a lost member that the root has not got are zeros; the outcome names no
        contributor for them. A lost root ends the operation with Aborted on all.
        """
        return self._frontend.gather(comm, self._form(x), self._out(out), root, counts, options)

    @overload
    def all_to_all(
        self: Functions[Single],
        comm: Group,
        x: Like,
        out: Any = None,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        **_: Unpack[Move.Any],
    ) -> Any: ...
    @overload
    def all_to_all(
        self,
        comm: Group,
        x: T,
        out: Any = None,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        **_: Unpack[Move.Wait],
    ) -> T: ...
    @overload
    def all_to_all(
        self,
        comm: Group,
        x: T,
        out: Any = None,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        **_: Unpack[Move.Both],
    ) -> tuple[T, Outcome]: ...
    @overload
    def all_to_all(
        self,
        comm: Group,
        x: T,
        out: Any = None,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        **_: Unpack[Move.Begin],
    ) -> Work[T]: ...
    @overload
    def all_to_all(
        self,
        comm: Group,
        x: T,
        out: Any = None,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        **_: Unpack[Move.Any],
    ) -> Any: ...
    @documented(MoveOptions, "return_outcome")
    def all_to_all(
        self,
        comm: Group,
        x: Any,
        out: Any = None,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        **options: Unpack[Move.Any],
    ) -> Any:
        """This rank's rows of `x` of each member, in rank order; a new array, or `out`.

        `x`: n * k rows in a world of n ranks, of which k go to each; the same shape and dtype on
        every peer. Or `send_counts` says how many rows go to each rank, and `recv_counts` how many
        come from each: every two must agree about those between them, else Mismatch, and the rows
        have one shape everywhere. `out`: of the result's shape and dtype; it may be `x`, or overlap
        it. Dtypes are those of `broadcast`. Elements of a lost member for this one that have not
        come are zeros; the outcome names no contributor for them.
        """
        return self._frontend.all_to_all(
            comm, self._form(x), self._out(out), send_counts, recv_counts, options
        )

    @overload
    def send(self, comm: Group, x: Any, dst: Root, **_: Unpack[Message.Wait]) -> Outcome: ...
    @overload
    def send(self, comm: Group, x: Any, dst: Root, **_: Unpack[Message.Begin]) -> Work: ...
    @overload
    def send(
        self, comm: Group, x: Any, dst: Root, **_: Unpack[Message.Either]
    ) -> Outcome | Work: ...
    @documented(MessageOptions)
    def send(self, comm: Group, x: Any, dst: Root, **options: Unpack[Message.Either]) -> Any:
        """Sends `x` to `dst`, another rank or the id of a member, which calls `recv` or `recv_`.

        `x`: any layout; dtypes are those of `broadcast`. Returns the outcome when `dst` has all of
        it: so two that both send first wait for each other, unless with `async_op`. Errors are
        those of `pccl_py.Communicator.send`.
        """
        return self._frontend.send(comm, x, dst, options)

    @overload
    def recv_(self, comm: Group, x: Any, src: Root, **_: Unpack[Message.Wait]) -> Outcome: ...
    @overload
    def recv_(self, comm: Group, x: Any, src: Root, **_: Unpack[Message.Begin]) -> Work: ...
    @overload
    def recv_(
        self, comm: Group, x: Any, src: Root, **_: Unpack[Message.Either]
    ) -> Outcome | Work: ...
    @documented(MessageOptions)
    def recv_(self, comm: Group, x: Any, src: Root, **options: Unpack[Message.Either]) -> Any:
        """Overwrites `x`, of any layout, with what `src` sends, and returns the outcome.

        Its elements must be as many and of the same dtype as those of the `x` that `src` sends, or
        both get `Mismatch`. On any other error `x` may hold anything.
        """
        return self._frontend.recv_(comm, x, src, options)
