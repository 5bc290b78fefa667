"""Trees of NumPy arrays as one operation: what a model's parameters or gradients usually are.

    import pccl_numpy as pnp

    mean = pnp.tree.all_reduce(comm, {"w": w, "b": [b0, b1]}, op="avg")    # a new tree
    pnp.tree.all_reduce_(comm, gradients, op="avg", codec="int8")           # in place

A tree is a dict, list, tuple or named tuple of trees, None, or an array; dicts go in the order of
their keys. All of its arrays are one operation: one tag, one outcome, and either all of them have
their result or none has. They need not have one dtype, and are not copied where they are contiguous
and in native byte order. Every member passes a tree of the same structure, shapes and dtypes; that
is compared by the arrays alone, in their order.

Shapes, dtypes, errors and threads are, for each array, as in the functions of the same names for
one array (collectives.py, shards.py, exchange.py). An InDoubt has the tree that
`error.work.resolve()` fills in `error.result`. Ranges of an outcome count the elements of all
arrays: for each rank's rows in turn, those of one array after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, TypedDict, TypeVar, Unpack, cast

import numpy as np

from pccl_numpy.collectives import (
    Array,
    check_out,
    check_target,
    checked_array,
    is_root,
    moved,
    packed,
    source_of,
)
from pccl_numpy.shards import Rows
from pccl_py import (
    Codec,
    CodecKind,
    Group,
    InDoubt,
    InvalidArgument,
    Outcome,
    PeerId,
    Plan,
    Recovery,
    ReduceOp,
)

Tree = TypeVar("Tree")


class Options(TypedDict, total=False):
    """Options of `Group.all_gather` and others: `tag`, `codec`, `plan`, `recovery`, `deadline`."""

    tag: int
    codec: Codec | CodecKind | str
    plan: Plan | str
    recovery: Recovery | str | None
    deadline: float | None


class ReduceOptions(Options, total=False):
    """Options of `Group.all_reduce`: `op`, and those of Options. A codec is for trees of floats."""

    op: ReduceOp | str


class BroadcastOptions(TypedDict, total=False):
    """`tag`, `recovery`, `deadline`; no codec, whose rounding the root would not see."""

    tag: int
    recovery: Recovery | str | None
    deadline: float | None


def all_reduce(comm: Group, tree: Tree, **options: Unpack[ReduceOptions]) -> Tree:
    """The reduction of every array over all members, as a tree of new arrays.

    Options: ReduceOptions.
    """
    _check_options("all_reduce", options, ReduceOptions)
    arrays, rebuild = _flatten(tree)
    sends = [source_of(array) for array in arrays]
    made = [np.empty_like(send) for send in sends]
    _called(rebuild, made, lambda: comm.all_reduce(sends, made, **options))
    return cast(Tree, rebuild(made))


def all_reduce_(comm: Group, tree: object, **options: Unpack[ReduceOptions]) -> Outcome:
    """Reduces every array over all members in place; they may have any strides.

    Options: ReduceOptions.
    """
    _check_options("all_reduce_", options, ReduceOptions)
    return _in_place(tree, lambda arrays: comm.all_reduce(arrays, **options))


def reduce(
    comm: Group,
    tree: Tree,
    root: SupportsIndex | PeerId = 0,
    **options: Unpack[ReduceOptions],
) -> Tree | None:
    """The reduction of every array, as a tree of new arrays on `root`; elsewhere None.

    Options: ReduceOptions.
    """
    _check_options("reduce", options, ReduceOptions)
    arrays, rebuild = _flatten(tree)
    sends = [source_of(array) for array in arrays]
    if not is_root(comm, root):
        comm.reduce(sends, None, root, **options)
        return None
    made = [np.empty_like(send) for send in sends]
    _called(rebuild, made, lambda: comm.reduce(sends, made, root, **options))
    return cast(Tree, rebuild(made))


def broadcast(
    comm: Group,
    tree: Tree,
    root: SupportsIndex | PeerId = 0,
    **options: Unpack[BroadcastOptions],
) -> Tree:
    """A tree of new arrays, equal to those of `root`, on every member.

    The values of `tree` matter on the root only; structure, shapes and dtypes are those of all.
    Options: BroadcastOptions.
    """
    _check_options("broadcast", options, BroadcastOptions)
    arrays, rebuild = _flatten(tree)
    made = [np.array(source_of(array, moves=True), copy=True) for array in arrays]
    _called(rebuild, made, lambda: comm.broadcast(_moved(made), root, **options))
    return cast(Tree, rebuild(made))


def broadcast_(
    comm: Group,
    tree: object,
    root: SupportsIndex | PeerId = 0,
    **options: Unpack[BroadcastOptions],
) -> Outcome:
    """Overwrites every array with that of `root`, where they are only read and may be read-only.

    Options: BroadcastOptions.
    """
    _check_options("broadcast_", options, BroadcastOptions)
    if is_root(comm, root):
        sends = [source_of(array, moves=True) for array in _flatten(tree)[0]]
        return comm.broadcast(_moved(sends), root, **options)
    return _in_place(
        tree, lambda arrays: comm.broadcast(_moved(arrays), root, **options), moves=True
    )


def reduce_scatter(comm: Group, tree: Tree, **options: Unpack[ReduceOptions]) -> Tree:
    """This rank's rows of the reduction of every array, which has as many for each rank.

    Options: ReduceOptions.
    """
    _check_options("reduce_scatter", options, ReduceOptions)
    arrays, rebuild = _flatten(tree)
    sends = [source_of(array) for array in arrays]
    rows = [Rows.of_whole(comm, send, None, takes_counts=False) for send in sends]
    made = [
        np.empty((row.own, *send.shape[1:]), send.dtype)
        for row, send in zip(rows, sends, strict=True)
    ]
    _called(rebuild, made, lambda: comm.reduce_scatter(sends, made, **options))
    return cast(Tree, rebuild(made))


def all_gather(comm: Group, tree: Tree, **options: Unpack[Options]) -> Tree:
    """Every array of all members, one behind the other along axis 0 in rank order.

    Options: Options.
    """
    _check_options("all_gather", options, Options)
    arrays, rebuild = _flatten(tree)
    parts, made = _gathering(comm, arrays)
    _called(rebuild, made, lambda: comm.all_gather(_moved(parts), _moved(made), **options))
    return cast(Tree, rebuild(made))


def gather(
    comm: Group,
    tree: Tree,
    root: SupportsIndex | PeerId = 0,
    **options: Unpack[Options],
) -> Tree | None:
    """Every array of all members on `root`, as `all_gather` has them; elsewhere None.

    Options: Options.
    """
    _check_options("gather", options, Options)
    arrays, rebuild = _flatten(tree)
    parts, made = _gathering(comm, arrays)
    if not is_root(comm, root):
        comm.gather(_moved(parts), None, root, **options)
        return None
    _called(rebuild, made, lambda: comm.gather(_moved(parts), _moved(made), root, **options))
    return cast(Tree, rebuild(made))


def scatter(
    comm: Group,
    tree: object | None,
    out: Tree,
    root: SupportsIndex | PeerId = 0,
    **options: Unpack[Options],
) -> Tree:
    """Fills the arrays of `out` with this rank's rows of those of `tree` of `root`; returns `out`.

    On the root, `tree` has the structure of `out` and world_size times its rows; elsewhere it is
    not looked at. Options: Options.
    """
    _check_options("scatter", options, Options)
    sends: list[Array] | None = None
    if is_root(comm, root):
        if tree is None:
            raise InvalidArgument("the root of a scatter needs tree, with the rows of all ranks")
        sends = [source_of(array, moves=True) for array in _flatten(tree)[0]]
        targets = [checked_array(array) for array in _flatten(out)[0]]
        if len(sends) != len(targets):
            raise InvalidArgument(f"tree has {len(sends)} arrays, out has {len(targets)}")
        for send, target in zip(sends, targets, strict=True):
            rows = Rows.of_whole(comm, send, None, takes_counts=False)
            shape = (rows.own, *send.shape[1:])
            check_out(target, shape, send.dtype, "this rank's part of an array of tree", moves=True)
    given = None if sends is None else _moved(sends)
    _in_place(out, lambda arrays: comm.scatter(given, _moved(arrays), root, **options), moves=True)
    return out


def all_to_all(comm: Group, tree: Tree, **options: Unpack[Options]) -> Tree:
    """This rank's rows of every array of each member, in rank order, as a tree of new arrays.

    Options: Options.
    """
    _check_options("all_to_all", options, Options)
    arrays, rebuild = _flatten(tree)
    sends = [source_of(array, moves=True) for array in arrays]
    for send in sends:
        Rows.of_whole(comm, send, None, takes_counts=False)
    made = [np.empty_like(send) for send in sends]
    _called(rebuild, made, lambda: comm.all_to_all(_moved(sends), _moved(made), **options))
    return cast(Tree, rebuild(made))


def _check_options(name: str, options: Mapping[str, Any], known: type) -> None:
    # Others would reach the call underneath, and nobody would wait for what `async_op` begins.
    for option in options:
        if option not in known.__annotations__:
            names = ", ".join(known.__annotations__)
            raise TypeError(f"tree.{name}() has no option {option!r}; it has {names}")


def _moved(arrays: Sequence[Array]) -> list[Array]:
    return [moved(array) for array in arrays]


def _gathering(comm: Group, arrays: Sequence[Any]) -> tuple[list[Array], list[Array]]:
    parts = [source_of(array, moves=True) for array in arrays]
    parts = [part.reshape(1) if part.ndim == 0 else part for part in parts]
    made = [
        np.empty((Rows.of_part(comm, part, None).whole, *part.shape[1:]), part.dtype)
        for part in parts
    ]
    return parts, made


def _in_place(
    tree: object, operation: Callable[[list[Array]], Outcome], *, moves: bool = False
) -> Outcome:
    """Packed copies are written back only when the operation has committed."""
    arrays, rebuild = _flatten(tree)
    for array in arrays:
        check_target(array, moves=moves)
    _check_apart(arrays)
    used = [packed(array) for array in arrays]
    outcome = _called(rebuild, used, lambda: operation(used))
    for array, result in zip(arrays, used, strict=True):
        if result is not array:
            array[...] = result
    return outcome


def _check_apart(arrays: Sequence[Array]) -> None:
    """Two that share memory would each be written with a result of its own."""
    bounds = sorted((*_bounds(array), number) for number, array in enumerate(arrays))
    reach, whose = 0, 0
    for low, high, number in bounds:
        if low < reach and np.shares_memory(arrays[whose], arrays[number]):
            raise InvalidArgument(
                f"arrays {min(whose, number)} and {max(whose, number)} of the tree share memory, "
                "and each receives a result: leave out one of them, or copy it"
            )
        if high > reach:
            reach, whose = high, number


def _bounds(array: Array) -> tuple[int, int]:
    """Addresses of the first byte and behind the last."""
    low = high = array.ctypes.data
    if array.size == 0:
        return low, high
    for length, stride in zip(array.shape, array.strides, strict=True):
        low += min(0, (length - 1) * stride)
        high += max(0, (length - 1) * stride)
    return low, high + array.itemsize


def _called(
    rebuild: Callable[[Sequence[Any]], Any], result: list[Array], operation: Callable[[], Outcome]
) -> Outcome:
    try:
        return operation()
    except InDoubt as doubt:
        doubt.result = rebuild(result)
        raise


def _flatten(tree: object) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The arrays of a tree, and what makes a tree of the same structure of others."""
    arrays: list[Any] = []
    build = _plan(tree, arrays)
    if not arrays:
        raise InvalidArgument("the tree has no arrays: an operation has at least one")
    return arrays, build


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
