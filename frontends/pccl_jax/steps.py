"""steps: `pccl_py.steps` over a pytree of JAX's arrays, which no step can write in place.

pccl_py/elastic.py decides which errors a step survives, and whether as a member or a newcomer. This
file holds the tree of a step, and restores the tree after a failed step whose program donated
arrays. shared_state.py makes the tree equal on all members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack

import jax
import jax.numpy as jnp

from pccl_jax.errors import errors, refuse_traces
from pccl_jax.shared_state import SharedState
from pccl_py import Admission, Communicator, SyncOutcome, elastic
from pccl_py.elastic import ConnectOptions, Run, rules_for_each
from pccl_py.words import StateRules, Strategy, StrategyName

T = TypeVar("T")


class _Held(Generic[T]):
    """The tree, and its SharedState in the present communicator."""

    def __init__(self, tree: T) -> None:
        self.tree: T = jax.tree.map(jnp.array, tree)  # makes arrays of numbers, as `sync` does
        self.state: SharedState[T] | None = None
        # At the beginning of the `with` block: the tree, and copies of leaves that may differ.
        self._before = self.tree
        self._own: list[Any] = []

    def sync(self, strategy: Strategy | StrategyName) -> SyncOutcome:
        assert self.state is not None
        self.tree, outcome = self.state.sync(self.tree, strategy, return_outcome=True)
        return outcome

    def take(self) -> None:
        assert self.state is not None
        self._before = self.tree
        self._own = self.state.own_leaves(self.tree)

    def give_back(self) -> None:
        assert self.state is not None
        self.tree = self.state.restored(self._before, self._own)


class Step(elastic.Step, Generic[T]):
    """One turn of `steps`, and the `with` block around work that may have to be repeated.

    Like `pccl_py.Step`, with the tree in `held`. When a turn begins, `held` is equal on all
    members; the next turn gets the tree assigned to `held`. If the block ends with an error, `held`
    is reset to its value at the beginning of the block, even if a program has donated its arrays.
    The block waits for its programs, which raise pccl_py's errors, also under a bare `jax.jit`.
    """

    _held: _Held[T]
    _errors: AbstractContextManager[None]

    @property
    def held(self) -> T:
        """The tree of this step; assign the tree for the next step to it."""
        return self._held.tree

    @held.setter
    def held(self, tree: T) -> None:
        self._held.tree = tree

    def __enter__(self) -> Communicator:
        self._errors = errors()
        self._errors.__enter__()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            self._errors.__exit__(kind, error, traceback)
        except BaseException as made:  # a program's error, converted to pccl_py's
            if super().__exit__(type(made), made, made.__traceback__):
                return True
            raise
        return super().__exit__(kind, error, traceback)


def steps(
    tree: T,
    *,
    name: str = "state",
    revision: int = 0,
    may_differ: Iterable[str] = (),
    prefetch: bool = False,
    rules: StateRules = (),
    strategy: Strategy | StrategyName = Strategy.POPULAR,
    patience: float = 1800.0,
    **options: Unpack[ConnectOptions],
) -> Iterator[Step[T]]:
    """Takes part in a run, step after step, and goes on after each failure that allows it.

        for step in pj.steps({"params": params, "step": 0}):
            if step.held["step"] == 1000:
                break
            with step as comm:
                step.held = train(comm, step.held, batch)  # jitted

    Like `pccl_py.steps`, which has the same arguments and survives the same errors, but with a tree
    of arrays instead of tensors that a step writes in place. `steps` copies the tree when it is
    called, and makes arrays of numbers in it. Each turn passes the safe point and syncs the tree,
    which copies new leaves to the host. Leaves that may differ between members (`may_differ`, the
    residuals of `pccl_jax.optax`) are copied at the beginning of each `with` block, so that an
    error can restore them.

    Iterate on one thread, outside of jit. Leaving the loop leaves the run. Raises the errors of
    `connect`, `Group.admit` and `SharedState.sync`, InvalidArgument for a bad argument, and
    InvalidUsage while JAX traces.
    """
    refuse_traces("steps")
    rules = rules_for_each(rules)
    own = may_differ if isinstance(may_differ, str) else tuple(may_differ)
    held = _Held(tree)

    def make(comm: Communicator, at: int | None) -> _Held[T]:
        held.state = SharedState(
            comm,
            held.tree,
            name=name,
            revision=revision if at is None else at,
            may_differ=own,
            prefetch=prefetch,
            rules=rules,
        )
        return held

    def turn(run: Run, comm: Communicator, admission: Admission, synced: SyncOutcome) -> Step[T]:
        made: Step[T] = Step(run, comm, admission, synced)
        made._held = held
        return made

    return elastic.turns(Run(make, held, patience, strategy, options), turn)
