"""steps: the loop of a training program that goes on after failures of its run.

This file has the code that each program would otherwise write around its step: connect, the safe
point, the sync, and the handling of each error. docs/reference/ERRORS.md has the errors as a table.
communicator.py has groups, shared_state.py shared states.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from pccl_py import buffers
from pccl_py.buffers import Array
from pccl_py.communicator import Communicator, connect
from pccl_py.errors import (
    Aborted,
    CoordinatorUnreachable,
    DeadlineExceeded,
    Expelled,
    InDoubt,
    InvalidArgument,
    PcclError,
    StateUnavailable,
    TooFewPeers,
)
from pccl_py.network import Rates
from pccl_py.outcome import Admission, SyncOutcome
from pccl_py.shared_state import SharedState
from pccl_py.words import (
    Congestion,
    CongestionName,
    PeerId,
    Probe,
    ProbeName,
    StateRules,
    Strategy,
    StrategyName,
    parse_rules,
    parse_strategy,
)

# Errors that all members get from a collective, a sync or a safe point of the communicator: this
# peer stays, and all members repeat the step. From other calls these errors count as ALONE.
SHARED = (Aborted, DeadlineExceeded, StateUnavailable)
# Errors after which other members may have gone on: this peer leaves, connects again, and takes the
# state of the members.
ALONE = (CoordinatorUnreachable, Expelled, InDoubt, TooFewPeers)

_log = logging.getLogger("pccl")


class ConnectOptions(TypedDict, total=False):
    """The arguments of `connect`; arguments that are not given come from the environment."""

    token: str | None
    group: str | None
    initial_world_size: int | None
    bind: str | None
    advertise: str | None
    ports: str | None
    deadline: float | None
    connect_timeout: float | None
    peer_id: PeerId | bytes | str | None
    label: str | None
    reconnect_timeout: float | None
    send_rate: Rates | None
    congestion: Congestion | CongestionName | None
    probe: Probe | ProbeName | None


class Syncs(Protocol):
    """A shared state of the core or of a frontend, made in the current communicator."""

    def sync(self, strategy: Strategy | StrategyName) -> SyncOutcome: ...


class Kept(Protocol):
    """The values that a `with step` block writes, kept so that a failed block can be undone."""

    def take(self) -> None:
        """Keeps the values, because the block begins."""

    def give_back(self) -> None:
        """Restores the values of the last `take`, because the block has failed."""


class Step:
    """One turn of `steps`, and the `with` block around work that may have to be repeated.

    `with step as comm` gives the communicator, which is also `step.comm`. If the block ends with an
    error after which the run continues, the tensors are restored to their contents at its
    beginning, and the error is logged (logger `pccl`, warning) and suppressed: the next turn
    repeats the step. After any other exception this peer has left the run, the tensors are restored
    too, and the exception propagates. `admission` and `synced` are the answers of the safe point
    and of the sync before this turn.
    """

    def __init__(
        self, run: Run, comm: Communicator, admission: Admission, synced: SyncOutcome
    ) -> None:
        self.comm = comm
        self.admission = admission
        self.synced = synced
        self._run = run

    def __enter__(self) -> Communicator:
        self._run.kept.take()
        return self.comm

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            return False
        goes_on = self._run.survives(error)
        self._run.kept.give_back()
        return goes_on


def steps(
    tensors: Mapping[str, Array],
    *,
    name: str = "state",
    revision: int = 0,
    may_differ: Iterable[str] = (),
    prefetch: bool = False,
    rules: StateRules = (),
    strategy: Strategy | StrategyName = Strategy.POPULAR,
    patience: float = 1800.0,
    keep: bool = True,
    **options: Unpack[ConnectOptions],
) -> Iterator[Step]:
    """Takes part in a run, step after step, and continues after each failure that allows it.

        for step in pccl.steps({"parameters": parameters, "steps_done": steps_done}):
            if steps_done[0] == 1000:
                break
            with step as comm:
                comm.all_reduce(gradients, op="avg")
                parameters -= 0.1 * gradients
                steps_done += 1

    Each turn passes the safe point and syncs the tensors, so that they are equal on all members
    when the turn begins. After `Aborted`, `DeadlineExceeded` or `StateUnavailable` of a collective,
    `admit` or sync of `comm`, which all members get, this peer stays and repeats the step.

    In other cases this peer leaves the run, connects again and takes the state of the other
    members: after `Expelled`, `InDoubt`, `TooFewPeers` or `CoordinatorUnreachable`; after
    `Aborted`, `DeadlineExceeded` or `StateUnavailable` of a `send` or `recv`, of another group, or
    raised by the program itself, which other members do not get; and with another operation still
    in flight. A doubted call is not resolved, because the state of the other members has its
    effect. Every other error is raised.

    `tensors`, `name`, `revision`, `may_differ`, `prefetch`, `rules`: as for `Group.shared_state`;
    `strategy`: as for `SharedState.sync`. `patience`: seconds since the last step without an error,
    after which an error is raised instead. `keep`: whether the tensors are copied at the beginning
    of each block, and restored if the block fails; without `keep` the block must write the tensors
    only after its last collective. `options`: the arguments of `connect`. Groups and error feedback
    belong to a communicator, which changes when this peer connects again: make groups and error
    feedback in each block.

    Iterate on one thread. Leaving the loop leaves the run. Raises the errors of `connect`,
    `Group.admit` and `SharedState.sync`, and InvalidArgument for a bad argument.
    """
    rules = rules_for_each(rules)

    def make(comm: Communicator, at: int | None) -> SharedState:
        return comm.shared_state(
            tensors,
            name=name,
            revision=revision if at is None else at,
            may_differ=may_differ,
            prefetch=prefetch,
            rules=rules,
        )

    kept = _Tensors(tensors if keep else {})
    return turns(Run(make, kept, patience, strategy, options), Step)


def rules_for_each(rules: StateRules) -> StateRules:
    """Checks rules, and copies an iterator, so that each state of a run can be made with them.

    Raises the errors of `parse_rules`.
    """
    rules = (rules,) if isinstance(rules, (str, int)) else tuple(rules)
    parse_rules(rules)
    return rules


S = TypeVar("S", bound=Step)


def turns(run: Run, step: Callable[[Run, Communicator, Admission, SyncOutcome], S]) -> Iterator[S]:
    """The turns of `steps`, for frontends with states and steps of their own."""
    try:
        while True:
            try:
                comm, state = run.entered()
                admission = comm.admit()
                synced = state.sync(run.strategy)
            except PcclError as error:
                if not run.survives(error):
                    raise
                continue
            run.begins(synced.revision)
            yield step(run, comm, admission, synced)
            run.ended()
    finally:
        run.leave()


class _Tensors:
    """Copies of the tensors that a block writes in place."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors
        # Each writable tensor with the memory of its copy; None before the first block.
        self._pairs: list[tuple[buffers.Buffer, Any]] | None = None

    def take(self) -> None:
        import ctypes  # slow to import: only a step needs ctypes

        if self._pairs is None:
            taken = [buffers.readable(tensor) for tensor in self._tensors.values()]
            self._pairs = [
                (each, ctypes.create_string_buffer(each.end - each.address))
                for each in taken
                if not each.readonly
            ]
        for tensor, copy in self._pairs:
            ctypes.memmove(copy, tensor.address, len(copy))

    def give_back(self) -> None:
        import ctypes

        for tensor, copy in self._pairs or ():
            ctypes.memmove(tensor.address, copy, len(copy))


class Run:
    """This process in the run, across all its connections.

    `make` makes the shared state in a communicator, at the revision of the last sync, or at None
    before the first. `options`: the arguments of `connect`. Raises InvalidArgument for a bad
    `patience` or `strategy`, and TypeError for an unknown option.
    """

    def __init__(
        self,
        make: Callable[[Communicator, int | None], Syncs],
        kept: Kept,
        patience: float,
        strategy: Strategy | StrategyName,
        options: ConnectOptions,
    ) -> None:
        if not patience > 0:
            raise InvalidArgument(f"patience must be a number of seconds above 0, not {patience!r}")
        parse_strategy(strategy)
        self.kept = kept
        for name in options:
            if name not in ConnectOptions.__annotations__:
                known = ", ".join(ConnectOptions.__annotations__)
                raise TypeError(
                    f"steps() has no option {name!r}; beside its own it has those of connect(): "
                    f"{known}"
                )
        self.strategy = strategy
        self._make = make
        self._options = options
        self._patience = patience
        self._revision: int | None = None
        self._entered: tuple[Communicator, Syncs] | None = None
        self._failed = False
        self._well_at = time.monotonic()

    def entered(self) -> tuple[Communicator, Syncs]:
        """The communicator and its shared state; connects if this peer is in no group."""
        if self._entered is None:
            comm = connect(**self._options)
            try:
                self._entered = comm, self._make(comm, self._revision)
            except BaseException:
                comm.close()
                raise
        return self._entered

    def leave(self) -> None:
        """Leaves the group; nothing writes to the tensors afterwards. Idempotent."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered[0].close()

    def begins(self, revision: int) -> None:
        """Notes that a turn begins, with tensors of this revision."""
        self._revision = revision
        self._failed = False

    def ended(self) -> None:
        """Notes that a turn has ended; patience begins anew if the turn did not fail."""
        if not self._failed:
            self._well_at = time.monotonic()

    def survives(self, error: BaseException) -> bool:
        """Returns whether another turn may follow `error`; leaves the group where it must."""
        self._failed = True
        impatient = time.monotonic() - self._well_at > self._patience
        goes_on = isinstance(error, SHARED + ALONE) and not impatient
        if not (goes_on and isinstance(error, SHARED) and self._is_of_all(error) and self._idle()):
            self.leave()
        if goes_on:
            again = "repeating the step" if self._entered else "connecting again"
            _log.warning("%s: %s; %s", type(error).__name__, error, again)
        return goes_on

    def _is_of_all(self, error: PcclError) -> bool:
        """Whether all members get `error`.

        False for an error of a message, of another group, or of the program itself.
        """
        origin, entered = error._origin, self._entered
        if origin is None or entered is None:
            return False
        return origin.of_all and origin.rosters is entered[0]._rosters

    def _idle(self) -> bool:
        """Whether this peer is in a group and has nothing in flight there."""
        return self._entered is not None and self._entered[0].info().operations_in_flight == 0
