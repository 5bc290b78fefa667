"""steps: `pccl_py.steps` over a pytree of JAX's arrays, which no step can write in place.

Which errors a step survives, and as whom, is decided in pccl_py/elastic.py. Here are the tree that
a step takes and gives, and the way back where a program has donated it. The state that makes it
equal on all members is in shared_state.py.
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
    """The tree, and the state in the communicator of the moment."""

    def __init__(self, tree: T) -> None:
        self.tree: T = jax.tree.map(jnp.array, tree)  # no member begins with other types
        self.state: SharedState[T] | None = None
        # At the beginning of the block: the tree, and copies of what is this member's own.
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

    As `pccl_py.Step`, and `held` is the tree: equal on all members when the turn begins; what is
    assigned to it goes into the next one. If the block ends with an error, it is what it was at its
    beginning, also where a program has donated it. The block waits for its programs, whose errors
    are those of pccl_py, under a bare `jax.jit` too.
    """

    _held: _Held[T]
    _errors: AbstractContextManager[None]

    @property
    def held(self) -> T:
        """The tree. Assign to it what the step has made of it."""
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
        except BaseException as made:  # of a program, or JAX's error in the words of pccl_py
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

    `pccl_py.steps`, with a tree of arrays in the place of tensors that are written in place: the
    arguments are the same, and so is what follows after each error. The tree is copied when this is
    called, and numbers in it become arrays. Each turn passes the safe point and syncs it, which
    copies what is new to the host. Parts that stay each member's own (`may_differ`, the losses of a
    codec in `pccl_jax.optax`) are copied at the beginning of each block, for the way back.

    Iterate it on one thread, outside of jit. Leaving the loop leaves the run. Raises the errors of
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
