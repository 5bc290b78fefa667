"""SharedState over a pytree of JAX's arrays: `sync` returns a new pytree, equal on all members.

JAX's arrays cannot be written to, so a state has memory of its own, as large as the arrays, from
which newcomers fetch. `sync` returns a leaf that did not change as it was given. pccl_numpy does
the election and the transfer, so a JAX member and a NumPy member can share one state.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
import pccl_numpy

from pccl_jax.eager import empty, zeros
from pccl_jax.errors import errors, refuse_traces
from pccl_jax.trees import Leaves, check_dtype
from pccl_py import Group, InvalidArgument, SyncOutcome
from pccl_py.words import StateRules, Strategy, StrategyName

T = TypeVar("T")
# The name of the leaf in a tree that is a single array.
_ALONE = "array"


class SharedState(Generic[T]):
    """A pytree that `sync` makes equal on all members; see `pccl_py.Group.shared_state`.

    `tree`: arrays, or objects with a shape and a dtype; all members pass the same structure, shapes
    and dtypes. A leaf's name is its path: {"layer": {"w": ...}} has the leaf "layer.w". Members
    with other frontends share the array by this name. `may_differ`: names of leaves, or of parts of
    the tree, that `sync` leaves alone on each member, like every state of
    `pccl_jax.optax.average_gradients`. `prefetch`: newcomers fetch the content of the last sync
    before they enter.

    Raises InvalidArgument for two leaves of one name or an unknown name in `may_differ`, TypeError
    for a leaf that is no array, InvalidUsage while JAX traces, and the errors of
    `Group.shared_state`. Any thread may call any method, but only one `sync` at a time.
    """

    def __init__(
        self,
        comm: Group,
        tree: T,
        *,
        name: str = "state",
        revision: int = 0,
        may_differ: Iterable[str] = (),
        prefetch: bool = False,
        rules: StateRules = (),
    ) -> None:
        refuse_traces("shared_state")
        named, self._treedef = jax.tree_util.tree_flatten_with_path(tree)
        if not named:
            raise InvalidArgument("the tree has no arrays: a state has at least one")
        self._names = [_name_of(path) for path, _ in named]
        twice = {each for each in self._names if self._names.count(each) > 1}
        if twice:
            raise InvalidArgument(f"two leaves of the tree have the name {min(twice)!r}")
        own = _own(tree, self._names, may_differ)
        pairs = zip(named, self._names, strict=True)
        self._memory = [_memory_for(leaf, key) for (_, leaf), key in pairs]
        # For each leaf a weak reference to the JAX array whose content `_memory` has.
        self._copied: list[Callable[[], Any]] = []
        self._forget_copies()
        self._is_own = [key in own for key in self._names]
        self._state = pccl_numpy.shared_state(
            comm,
            dict(zip(self._names, self._memory, strict=True)),
            name=name,
            revision=revision,
            may_differ=own,
            prefetch=prefetch,
            rules=rules,
        )

    @property
    def name(self) -> str:
        """The name of the state in its group."""
        return self._state.name

    @property
    def revision(self) -> int:
        """One more than the revision that the last committed `sync` elected."""
        return self._state.revision

    @overload
    def sync(
        self,
        tree: T,
        strategy: Strategy | StrategyName = Strategy.POPULAR,
        *,
        revision: int | None = None,
        deadline: float | None = None,
        return_outcome: Literal[False] = False,
    ) -> T: ...
    @overload
    def sync(
        self,
        tree: T,
        strategy: Strategy | StrategyName = Strategy.POPULAR,
        *,
        revision: int | None = None,
        deadline: float | None = None,
        return_outcome: Literal[True],
    ) -> tuple[T, SyncOutcome]: ...
    def sync(
        self,
        tree: T,
        strategy: Strategy | StrategyName = Strategy.POPULAR,
        *,
        revision: int | None = None,
        deadline: float | None = None,
        return_outcome: bool = False,
    ) -> T | tuple[T, SyncOutcome]:
        """Offers this member's `tree` for election, and returns the elected content as a like tree.

        All members must call `sync` equally often, outside of jit. `sync` waits for the programs
        that make `tree`, and copies the leaves that are new since the last sync. A leaf that `sync`
        does not change is returned itself; for a changed leaf `sync` returns a new array with the
        sharding of the old leaf. No leaf of the result is weakly typed, so that all members compile
        the same programs for the result.

        Raises InvalidUsage while JAX traces, InvalidArgument for a tree of another structure, shape
        or dtype than the state's or with a donated array, and the errors of
        `pccl_py.SharedState.sync`. On any error `tree` is unchanged: call `sync` again.
        """
        refuse_traces("sync")
        leaves = self._leaves(tree)
        with errors():  # a program that makes a leaf may fail
            self._take(leaves)
        try:
            outcome = self._state.sync(strategy, revision=revision, deadline=deadline)
            if outcome.leaves_moved + outcome.leaves_early > 0:
                leaves = [self._given_or_new(*each) for each in enumerate(leaves)]
        except BaseException:  # after a commit, `_memory` may differ from the caller's tree
            self._forget_copies()
            raise
        made: T = jax.tree_util.tree_unflatten(self._treedef, leaves)
        return (made, outcome) if return_outcome else made

    def own_leaves(self, tree: T) -> list[Any]:
        """Copies of the leaves of `tree` that may differ between members; None for other leaves."""
        leaves = jax.tree_util.tree_leaves(tree)
        return [
            jnp.copy(each) if own else None for each, own in zip(leaves, self._is_own, strict=True)
        ]

    def restored(self, tree: T, own: list[Any]) -> T:
        """`tree`, the result of the last sync, with new arrays for those that were donated since.

        `own`: the result of `own_leaves` after that sync. `restored` also works after `close`.
        """
        leaves = [
            leaf
            if not leaf.is_deleted()
            else (self._made_anew(index, leaf) if own[index] is None else own[index])
            for index, leaf in enumerate(jax.tree_util.tree_leaves(tree))
        ]
        restored: T = jax.tree_util.tree_unflatten(self._treedef, leaves)
        return restored

    def close(self) -> None:
        """Frees the state's memory, and withdraws a `sync` on another thread. Idempotent."""
        self._state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._state)

    def _leaves(self, tree: T) -> list[Any]:
        """The leaves of `tree` without weak types. Raises InvalidArgument if the structure, a shape
        or a dtype is not the state's."""
        given = Leaves.of(tree)
        if given.treedef != self._treedef:
            raise InvalidArgument(
                f"the tree has another structure than that of the state: {given.treedef}, not "
                f"{self._treedef}"
            )
        for array, memory, key in zip(given.arrays, self._memory, self._names, strict=True):
            if (array.shape, array.dtype) != (memory.shape, memory.dtype):
                raise InvalidArgument(
                    f"leaf {key!r} is {array.dtype.name}{list(array.shape)}, and in the state "
                    f"{memory.dtype.name}{list(memory.shape)}: close the state, and make it again"
                )
        return [
            jax.lax.convert_element_type(each, each.dtype) if each.weak_type else each
            for each in given.arrays
        ]

    def _forget_copies(self) -> None:
        self._copied = [_nothing] * len(self._memory)

    def _take(self, leaves: list[Any]) -> None:
        """Copies each leaf to `_memory` unless its copy is there. Raises InvalidArgument for a
        donated or deleted array, before anything is sent."""
        for index, leaf in enumerate(leaves):
            if self._is_own[index]:
                continue
            if leaf.is_deleted():
                raise InvalidArgument(
                    f"leaf {self._names[index]!r} was donated to a program, or deleted: pass what "
                    "the program has returned"
                )
            if self._copied[index]() is not leaf:
                # Cleared before the copy: if copying fails, the memory has no array's content.
                self._copied[index] = _nothing
                self._memory[index][...] = np.asarray(leaf)
                self._copied[index] = weakref.ref(leaf)

    def _given_or_new(self, index: int, leaf: Any) -> Any:
        """`leaf` if its memory has the same bytes, else a new array with the memory's bytes."""
        memory = self._memory[index]
        if self._is_own[index] or np.array_equal(_bytes_of(memory), _bytes_of(leaf)):
            return leaf
        return self._made_anew(index, leaf)

    def _made_anew(self, index: int, leaf: Any) -> Any:
        """A new array with the bytes of leaf `index`'s memory, with the sharding of `leaf`."""
        memory = self._memory[index]
        content = empty(memory.shape, memory.dtype)
        content[...] = memory
        made = jax.device_put(content, leaf.sharding if leaf.committed else None)
        self._copied[index] = weakref.ref(made)
        return made


def shared_state(
    comm: Group,
    tree: T,
    *,
    name: str = "state",
    revision: int = 0,
    may_differ: Iterable[str] = (),
    prefetch: bool = False,
    rules: StateRules = (),
) -> SharedState[T]:
    """A pytree that `SharedState.sync` makes equal on all members."""
    return SharedState(
        comm,
        tree,
        name=name,
        revision=revision,
        may_differ=may_differ,
        prefetch=prefetch,
        rules=rules,
    )


class EachOwn:
    """Base class of nodes of a tree that may differ between members: `sync` does not change such
    nodes."""


def _nothing() -> None:
    return None


def _part_of(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _name_of(path: Any) -> str:
    return _part_of(path) or _ALONE


def _own(tree: Any, names: list[str], may_differ: Iterable[str]) -> list[str]:
    """The names of all leaves that may differ: by `may_differ`, or inside of an `EachOwn`."""
    if isinstance(may_differ, str):
        raise TypeError("may_differ must be a collection of names, not one str")
    parts = list(may_differ)
    for part in parts:
        if not any(_is_of(name, part) for name in names):
            raise InvalidArgument(
                f"may_differ names {part!r}, which is not in the tree: it has {', '.join(names)}"
            )
    nodes, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda each: isinstance(each, EachOwn)
    )
    parts += [_part_of(path) for path, node in nodes if isinstance(node, EachOwn)]
    return [name for name in names if any(_is_of(name, part) for part in parts)]


def _is_of(name: str, part: str) -> bool:
    return name == part or part == "" or name.startswith(f"{part}.")


def _memory_for(leaf: Any, name: str) -> Any:
    """Zeroed memory with the shape and dtype that `leaf` would have as a JAX array."""
    like = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
    try:
        check_dtype(str(like.dtype), None)
    except TypeError as error:
        raise TypeError(f"leaf {name!r}: {error}") from None
    return zeros(tuple(like.shape), jax.dtypes.canonicalize_dtype(like.dtype))


def _bytes_of(array: Any) -> Any:
    return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)
