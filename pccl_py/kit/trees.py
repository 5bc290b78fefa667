"""Trees of arrays as one operation: what a model's parameters or gradients usually are.

A tree is a dict, list, tuple or named tuple of trees, None, or an array; dicts go in the order of
their keys. All of its arrays are one operation: one tag, one outcome, and either all of them have
their result or none has. They need not have one dtype, and are not copied where they are contiguous
and in native byte order. Every member passes a tree of the same structure, shapes and dtypes; that
is compared by the arrays alone, in their order.

Shapes, dtypes, errors and threads are, for each array, as in the frontend's functions of the same
names for one array. Ranges of an outcome count the elements of all arrays: for each rank's rows in
turn, those of one array after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from pccl_py.collectives import Root
from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument
from pccl_py.kit.frontend import Form, Frontend
from pccl_py.options import (
    Broadcast,
    BroadcastOptions,
    Move,
    MoveOptions,
    Reduce,
    ReduceOptions,
    documented,
)
from pccl_py.outcome import Outcome
from pccl_py.work import Work

Tree = TypeVar("Tree")


class Trees:
    """The collectives over trees of a frontend's arrays, for its module `tree`."""

    def __init__(self, frontend: Frontend[Any]) -> None:
        self._frontend = frontend

    @overload
    def all_reduce(self, comm: Group, tree: Tree, **_: Unpack[Reduce.Wait]) -> Tree: ...
    @overload
    def all_reduce(
        self, comm: Group, tree: Tree, **_: Unpack[Reduce.Both]
    ) -> tuple[Tree, Outcome]: ...
    @overload
    def all_reduce(self, comm: Group, tree: Tree, **_: Unpack[Reduce.Begin]) -> Work[Tree]: ...
    @overload
    def all_reduce(self, comm: Group, tree: Tree, **_: Unpack[Reduce.Any]) -> Any: ...
    @documented(ReduceOptions, "return_outcome")
    def all_reduce(self, comm: Group, tree: Tree, **options: Unpack[Reduce.Any]) -> Any:
        """The reduction of every array over all members, as a tree of new arrays."""
        return self._frontend.all_reduce(comm, flatten(tree), None, options)

    @overload
    def all_reduce_(self, comm: Group, tree: object, **_: Unpack[Reduce.Wait]) -> Outcome: ...
    @overload
    def all_reduce_(self, comm: Group, tree: object, **_: Unpack[Reduce.Begin]) -> Work: ...
    @overload
    def all_reduce_(
        self, comm: Group, tree: object, **_: Unpack[Reduce.Either]
    ) -> Outcome | Work: ...
    @documented(ReduceOptions)
    def all_reduce_(self, comm: Group, tree: object, **options: Unpack[Reduce.Either]) -> Any:
        """Reduces every array over all members in place; they may have any strides."""
        return self._frontend.all_reduce_(comm, flatten(tree), options)

    @overload
    def reduce(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Reduce.Wait]
    ) -> Tree | None: ...
    @overload
    def reduce(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Reduce.Both]
    ) -> tuple[Tree | None, Outcome]: ...
    @overload
    def reduce(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Reduce.Begin]
    ) -> Work[Tree | None]: ...
    @overload
    def reduce(self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Reduce.Any]) -> Any: ...
    @documented(ReduceOptions, "return_outcome")
    def reduce(self, comm: Group, tree: Tree, root: Root = 0, **options: Unpack[Reduce.Any]) -> Any:
        """The reduction of every array, as a tree of new arrays on `root`; elsewhere None."""
        return self._frontend.reduce(comm, flatten(tree), None, root, options)

    @overload
    def broadcast(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Broadcast.Wait]
    ) -> Tree: ...
    @overload
    def broadcast(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Broadcast.Both]
    ) -> tuple[Tree, Outcome]: ...
    @overload
    def broadcast(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Broadcast.Begin]
    ) -> Work[Tree]: ...
    @overload
    def broadcast(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Broadcast.Any]
    ) -> Any: ...
    @documented(BroadcastOptions, "return_outcome")
    def broadcast(
        self, comm: Group, tree: Tree, root: Root = 0, **options: Unpack[Broadcast.Any]
    ) -> Any:
        """A tree of new arrays, equal to those of `root`, on every member.

        The values of `tree` matter on the root only; structure, shapes and dtypes are those of all.
        """
        return self._frontend.broadcast(comm, flatten(tree), root, options)

    @overload
    def broadcast_(
        self, comm: Group, tree: object, root: Root = 0, **_: Unpack[Broadcast.Wait]
    ) -> Outcome: ...
    @overload
    def broadcast_(
        self, comm: Group, tree: object, root: Root = 0, **_: Unpack[Broadcast.Begin]
    ) -> Work: ...
    @overload
    def broadcast_(
        self, comm: Group, tree: object, root: Root = 0, **_: Unpack[Broadcast.Either]
    ) -> Outcome | Work: ...
    @documented(BroadcastOptions)
    def broadcast_(
        self, comm: Group, tree: object, root: Root = 0, **options: Unpack[Broadcast.Either]
    ) -> Any:
        """Overwrites every array with that of `root`, whose own may be read-only."""
        return self._frontend.broadcast_(comm, flatten(tree), root, options)

    @overload
    def reduce_scatter(self, comm: Group, tree: Tree, **_: Unpack[Reduce.Wait]) -> Tree: ...
    @overload
    def reduce_scatter(
        self, comm: Group, tree: Tree, **_: Unpack[Reduce.Both]
    ) -> tuple[Tree, Outcome]: ...
    @overload
    def reduce_scatter(self, comm: Group, tree: Tree, **_: Unpack[Reduce.Begin]) -> Work[Tree]: ...
    @overload
    def reduce_scatter(self, comm: Group, tree: Tree, **_: Unpack[Reduce.Any]) -> Any: ...
    @documented(ReduceOptions, "return_outcome")
    def reduce_scatter(self, comm: Group, tree: Tree, **options: Unpack[Reduce.Any]) -> Any:
        """This rank's rows of the reduction of every array, which has as many for each rank."""
        return self._frontend.reduce_scatter(comm, flatten(tree), None, None, options)

    @overload
    def all_gather(self, comm: Group, tree: Tree, **_: Unpack[Move.Wait]) -> Tree: ...
    @overload
    def all_gather(
        self, comm: Group, tree: Tree, **_: Unpack[Move.Both]
    ) -> tuple[Tree, Outcome]: ...
    @overload
    def all_gather(self, comm: Group, tree: Tree, **_: Unpack[Move.Begin]) -> Work[Tree]: ...
    @overload
    def all_gather(self, comm: Group, tree: Tree, **_: Unpack[Move.Any]) -> Any: ...
    @documented(MoveOptions, "return_outcome")
    def all_gather(self, comm: Group, tree: Tree, **options: Unpack[Move.Any]) -> Any:
        """Every array of all members, one behind the other along axis 0 in rank order."""
        return self._frontend.all_gather(comm, flatten(tree), None, None, options)

    @overload
    def gather(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Move.Wait]
    ) -> Tree | None: ...
    @overload
    def gather(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Move.Both]
    ) -> tuple[Tree | None, Outcome]: ...
    @overload
    def gather(
        self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Move.Begin]
    ) -> Work[Tree | None]: ...
    @overload
    def gather(self, comm: Group, tree: Tree, root: Root = 0, **_: Unpack[Move.Any]) -> Any: ...
    @documented(MoveOptions, "return_outcome")
    def gather(self, comm: Group, tree: Tree, root: Root = 0, **options: Unpack[Move.Any]) -> Any:
        """Every array of all members on `root`, as `all_gather` has them; elsewhere None."""
        return self._frontend.gather(comm, flatten(tree), None, root, None, options)

    @overload
    def scatter(
        self, comm: Group, tree: object | None, out: Tree, root: Root = 0, **_: Unpack[Move.Wait]
    ) -> Tree: ...
    @overload
    def scatter(
        self, comm: Group, tree: object | None, out: Tree, root: Root = 0, **_: Unpack[Move.Both]
    ) -> tuple[Tree, Outcome]: ...
    @overload
    def scatter(
        self, comm: Group, tree: object | None, out: Tree, root: Root = 0, **_: Unpack[Move.Begin]
    ) -> Work[Tree]: ...
    @overload
    def scatter(
        self, comm: Group, tree: object | None, out: Tree, root: Root = 0, **_: Unpack[Move.Any]
    ) -> Any: ...
    @documented(MoveOptions, "return_outcome")
    def scatter(
        self,
        comm: Group,
        tree: object | None,
        out: Tree,
        root: Root = 0,
        **options: Unpack[Move.Any],
    ) -> Any:
        """Fills `out` with this rank's rows of the arrays of `tree` of `root`; returns `out`.

        On the root, `tree` has the structure of `out` and world_size times its rows; elsewhere it
        is not looked at.
        """
        given = None if tree is None or comm._rank_of(root) != comm.rank else flatten(tree)
        filled = Form(flatten(out).arrays, lambda _: out)
        return self._frontend.scatter(comm, given, filled, root, None, options)

    @overload
    def all_to_all(self, comm: Group, tree: Tree, **_: Unpack[Move.Wait]) -> Tree: ...
    @overload
    def all_to_all(
        self, comm: Group, tree: Tree, **_: Unpack[Move.Both]
    ) -> tuple[Tree, Outcome]: ...
    @overload
    def all_to_all(self, comm: Group, tree: Tree, **_: Unpack[Move.Begin]) -> Work[Tree]: ...
    @overload
    def all_to_all(self, comm: Group, tree: Tree, **_: Unpack[Move.Any]) -> Any: ...
    @documented(MoveOptions, "return_outcome")
    def all_to_all(self, comm: Group, tree: Tree, **options: Unpack[Move.Any]) -> Any:
        """A tree of this rank's rows of every array of each member, in rank order."""
        return self._frontend.all_to_all(comm, flatten(tree), None, None, None, options)


def flatten(tree: object) -> Form:
    """The arrays of a tree, and what makes a tree of the same structure of others."""
    arrays: list[Any] = []
    build = _plan(tree, arrays)
    if not arrays:
        raise InvalidArgument("the tree has no arrays: an operation has at least one")
    return Form(arrays, build)


def _plan(tree: object, arrays: list[Any]) -> Callable[[Sequence[Any]], Any]:
    if tree is None:
        return lambda _: None
    if isinstance(tree, dict):
        try:
            keys = sorted(tree)
        except TypeError:
            raise TypeError(
                "the keys of a dict in a tree must be of one kind, to have an order"
            ) from None
        by_key = {key: _plan(tree[key], arrays) for key in keys}
        order = list(tree)
        return lambda made: {key: by_key[key](made) for key in order}
    if isinstance(tree, list | tuple):
        plans = [_plan(child, arrays) for child in tree]
        if isinstance(tree, list):
            return lambda made: [plan(made) for plan in plans]
        fields = hasattr(tree, "_fields")
        kind: Any = type(tree)
        if fields:
            return lambda made: kind(*[plan(made) for plan in plans])
        return lambda made: kind([plan(made) for plan in plans])
    number = len(arrays)
    arrays.append(tree)
    return lambda made: made[number]
