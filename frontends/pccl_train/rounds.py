"""Rounds: takes one worker through the rounds of a Method, together with a group's other members.

After each inner step the frontend calls `step`. At a fragment's position in the schedule the worker
captures the fragment's pseudo-gradient and begins its exchange. Later the result updates the outer
parameters, which are mixed into the worker's own parameters. All members make the same calls in the
same order, whatever their speed. Only the contributions of an announced exchange may begin a step
earlier or later than on other members; so each exchange has a tag of its own.

An exchange is two operations. The announcement is an all_gather of three numbers a member: the
weight (tokens) and the norm of its contribution, and its speed. The second operation adds up the
contributions, each multiplied by its weight over the sum of all weights. Weights are announced
separately, because a codec would round them. If a member is lost between the two operations, each
range of the sum is divided by the weights of its contributors, so the round still counts.

A safe point precedes the beginning of each exchange. A newcomer that enters there receives the
position, and every fragment without an exchange under way. Until the exchanges under way end, the
newcomer makes the calls of each position with contributions of weight 0 and without inner steps.
Then the newcomer has the whole model, and trains. A member sends the newcomer messages with the
shared buffers and, if the newcomer asks for it, the state of the member's inner optimizer.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pccl_py.buffers import Array
from pccl_py.codec import ErrorFeedback
from pccl_py.communicator import Group
from pccl_py.errors import Aborted, DeadlineExceeded, InvalidArgument, InvalidUsage, PcclError
from pccl_py.outcome import Outcome, SyncOutcome
from pccl_py.shared_state import SharedState
from pccl_py.words import PeerId
from pccl_py.work import Work
from pccl_train import checkpoint
from pccl_train.fragments import Layout, Tensor, same_model
from pccl_train.method import Method
from pccl_train.outer import Outer, Vector, advance, difference, mix

_log = logging.getLogger("pccl.train")

# Fragment p exchanges contributions on tag TAG + 2p, and announcements on tag TAG + 2p + 1.
TAG = 1 << 40
# The tag of the calls that share buffers.
BUFFERS_TAG = TAG - 1
# The tag of the messages in which a member gives a newcomer buffers and inner optimizer.
GIFT_TAG = 1 << 37
# Columns of an announcement, f64: weight, sum of squares, inner steps a second; and their number.
_WEIGHT, _SQUARES, _SPEED, _NUMBERS = range(4)
# The weight of a contribution is 0 or in this range, so that sums and quotients of weights are
# finite in f32. TOKENS_MAX: the most tokens of one step.
WEIGHT_MIN, WEIGHT_MAX, TOKENS_MAX = 1e-9, 1e15, 1e12
# Elements that `_squares` widens to f64 at a time.
_PART = 1 << 20


class Replica(Protocol):
    """Access to a worker's own parameters, which each frontend implements."""

    def tensors(self) -> Sequence[Tensor]:
        """All parameters, in an order that is the same on all peers."""
        ...

    def read(self, names: Sequence[str], *, to_write: bool = False) -> Mapping[str, Array]:
        """Contiguous arrays on the CPU with the values of the named tensors: copies, or the
        tensors' own memory.

        `to_write`: the caller will change the arrays, and pass them to `write`.
        """
        ...

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Stores the changed arrays of a `read(to_write=True)` in the parameters."""
        ...


class Buffers(NamedTuple):
    """Buffers: tensors of a model that no optimizer updates. At the end of each round the tensors
    named in `averaged` are averaged over all members, those in `synced` are copied from rank 0."""

    replica: Replica
    averaged: tuple[str, ...]
    synced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """The report of an ended exchange, for a callback; equal on all members except for `norm`,
    `waited`, `seconds`, `bytes_sent` and `bytes_received`.

    `round`: counts from 0. `members`: labels of the members that announced a contribution, in rank
    order. `weights`: the weight of each member's contribution, 0 if it does not count. `lost`:
    ranks of members that were lost before their contribution was complete. `ignored`: ranks of
    members whose pseudo-gradient was not finite, or whose announcement or sparse piece was invalid.
    `norm`: norm of this worker's pseudo-gradient. `waited`: seconds in which this worker waited for
    the exchange. `seconds`: duration of its two operations. `outcome`: outcome of the operation on
    contributions, with the contributors of each range; None if no contribution had a weight, if all
    members gave the exchange up, or if the result comes from a checkpoint.
    """

    round: int
    fragment: int
    members: tuple[str, ...]
    weights: tuple[float, ...]
    lost: tuple[int, ...]
    ignored: tuple[int, ...]
    norm: float
    waited: float
    seconds: float
    bytes_sent: int
    bytes_received: int
    outcome: Outcome | None

    def __str__(self) -> str:
        present = sum(weight > 0 for weight in self.weights) - len(self.lost)
        says = [
            f"round {self.round}, fragment {self.fragment}: {present} of {len(self.members)} "
            f"workers, {self.bytes_sent >> 10} KiB sent in {self.seconds:.2f} s",
            f"waited {self.waited:.2f} s",
        ]
        for what, ranks in (("lost", self.lost), ("ignored", self.ignored)):
            says += [f"{what} rank {rank}" for rank in ranks]
        return ", ".join(says)


@dataclass(eq=False)
class _Flight:
    """An exchange of one fragment that is under way.

    `gradient`: this worker's pseudo-gradient, later the sum of all contributions. `norm`: NaN if
    the pseudo-gradient is not finite. `own`: this worker's announcement. `table`: a row with the
    announcement of each rank. `announced`: the operation that gathers `table`; `announcement`: its
    outcome.
    """

    round: int
    epoch: int
    gradient: Vector
    norm: float
    own: NDArray[np.float64]
    table: NDArray[np.float64]
    announced: Work[Outcome]
    announcement: Outcome | None = None
    # The operation on contributions; None before the announcement, and if no weight is above 0.
    work: Work[Outcome] | None = None
    # Sparse contributions: a row for each rank's piece, and this worker's residual before its own.
    pieces: NDArray[np.uint8] | None = None
    residual: Vector | None = None
    # Seconds in which this worker has waited for the exchange.
    waited: float = 0.0
    # The outcome of `work`.
    outcome: Outcome | None = None

    @property
    def is_good(self) -> bool:
        """Whether this worker's pseudo-gradient was finite."""
        return not np.isnan(self.norm)

    def weight_of(self, peer: PeerId) -> float:
        assert self.announcement is not None
        members = self.announcement.roster.members
        return float(self.table[members.index(peer), _WEIGHT])

    @property
    def total(self) -> float:
        return float(self.table[:, _WEIGHT].sum())


@dataclass(frozen=True, slots=True)
class _Arrived:
    """The result of an exchange, not used yet. `scales`: the slices of `gradient` that have
    contributors, each with the factor to apply. `alpha`: weight of the worker's own parameters when
    the outer parameters are mixed into them. `told`: the report for the callback."""

    gradient: Vector
    scales: list[tuple[slice, float]]
    alpha: float
    told: Exchange


class _Captured(NamedTuple):
    """A pseudo-gradient, the sum of its squares, and its weight (0: it does not count)."""

    gradient: Vector
    squares: float
    weight: float


@dataclass(eq=False)
class _Fragment:
    """A fragment of the model, with this worker's state of it."""

    number: int
    layout: Layout
    outer: Outer
    # Vectors of the fragment's size, free for reuse.
    spare: list[Vector] = field(default_factory=list)
    # Weight of the next contribution: tokens, or steps, since outer parameters were last mixed in.
    tokens: float = 0.0
    state: SharedState | None = None
    # Keeps what codecs lose, while this worker is attached to a group; None without error feedback.
    losses: ErrorFeedback | None = None
    # The exchange under way, or its result before it is used.
    flight: _Flight | _Arrived | None = None
    # The pseudo-gradient between `_capture` and `_announce`.
    captured: _Captured | None = None
    # A newcomer has entered during an exchange of this fragment: a sync follows the exchange.
    is_owed: bool = False
    # This worker is a newcomer without a part in the exchange under way: the sync after it gives
    # this worker the members' content.
    is_behind: bool = False
    # The values that sparse pieces have not sent, for the next contribution; None without `sparse`.
    residual: Vector | None = None
    # Eager updates: the parameters with which this worker began the round.
    begin: Vector | None = None
    # Eager updates: the momentum of this worker's own contributions.
    own_momentum: Vector | None = None
    # The losses of codecs from a checkpoint, until `begin` loads them into `losses`.
    feedback: Vector | None = None

    @property
    def names(self) -> list[str]:
        return [tensor.name for tensor, _ in self.layout.places()]

    def give_back_residual(self, flight: _Flight) -> None:
        """After an exchange without a result: restores the residual from before its piece."""
        if flight.residual is not None:
            self.residual, flight.residual = flight.residual, None

    def take(self) -> Vector:
        return self.spare.pop() if self.spare else np.empty(self.layout.size, np.float32)


class Rounds:
    """One worker of a training. Call all methods on one thread.

    `replica`: the worker's own parameters. `method`: the settings. `on_exchange`: called with each
    Exchange. `name`: distinguishes successive trainings in one group. `buffers`: shared at the end
    of each round.
    """

    def __init__(
        self,
        replica: Replica,
        method: Method,
        *,
        name: str = "diloco",
        on_exchange: Callable[[Exchange], object] | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        if method.privacy is not None and buffers is not None:
            raise InvalidArgument(
                "buffers must be each worker's own with privacy: nothing is clipped in them, and "
                "they have no noise"
            )
        self.method = method
        self.name = name
        self._replica = replica
        self._buffers = buffers
        self._on_exchange = on_exchange
        self._schedule = method.schedule
        self._layouts = method.layout(replica.tensors())
        self._fragments = [
            _Fragment(number, layout, Outer(layout.size, method.optimizer))
            for number, layout in enumerate(self._layouts)
        ]
        for fragment in self._fragments:
            self._take_up(fragment)
        # Round; position; 1 if the exchanges of the position have not begun; for each fragment 1 if
        # an exchange is under way.
        self._clock = np.zeros(3 + len(self._fragments), np.int64)
        self._clock_state: SharedState | None = None
        self._comm: Group | None = None
        self._members: frozenset[PeerId] = frozenset()  # the members at the last `_welcome`
        self._has_begun = False
        self._steps = 0  # inner steps of this worker in the round in progress
        self._steps_of_round = method.sync_every  # inner steps that this worker takes a round
        self._share = 0.0  # this worker's weight over all weights, in the last exchange
        self._random = np.random.default_rng()  # noise of privacy, seeded by the system's entropy
        self._speed = _Speed()
        self._speeds = 0.0, 0.0  # last announced: this worker's speed, and the greatest
        self.last_exchange: Exchange | None = None
        # Inner steps of the whole run, if known; a sync compares this number between members.
        self.total: int | None = None
        # Called with an error of `step`, which raises the error unless this returns True.
        self.survives: Callable[[PcclError], bool] | None = None

    # ---- where it is --------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """Number of complete rounds."""
        return int(self._clock[0])

    @property
    def position(self) -> int:
        """The position in the round, in inner steps of the fastest worker."""
        return int(self._clock[1])

    @property
    def progress(self) -> int:
        """Positions since the beginning of the run, in inner steps of the fastest worker."""
        return self.round * self.method.sync_every + self.position

    @property
    def counted(self) -> int:
        """Inner steps that this worker has taken itself."""
        return self._speed.steps

    @property
    def world_size(self) -> int:
        """Number of members of the group; 0 unless this worker is attached and has entered."""
        return 0 if self._comm is None or not self._comm.epoch else self._comm.world_size

    @property
    def pending(self) -> int:
        """Number of newcomers known to this worker that wait to enter at the next safe point."""
        return 0 if self._comm is None else self._comm.info().pending

    @property
    def outer_parameters(self) -> dict[str, Vector]:
        """Views of the outer parameters by tensor name: f32, in the shapes of the tensors."""
        return {
            tensor.name: fragment.outer.parameters[part].reshape(tensor.shape)
            for fragment in self._fragments
            for tensor, part in fragment.layout.places()
        }

    def digest(self) -> str:
        """A hash of the outer parameters, 32 hexadecimal digits."""
        found, hasher = self.outer_parameters, hashlib.blake2b(digest_size=16)
        for name in sorted(found):
            hasher.update(found[name].tobytes())
        return hasher.hexdigest()

    # ---- the group ----------------------------------------------------------------------------

    def attach(self, comm: Group) -> None:
        """Attaches this worker to `comm` instead of its present group; `begin` enters the run.

        After a lost connection, attach the next communicator: this worker then enters as a
        newcomer.
        """
        if not hasattr(comm, "shared_state"):
            raise TypeError(f"comm must be a group, as of pccl.connect(), not {comm!r}")
        self.detach()
        self._comm = comm
        for fragment in self._fragments:
            fragment.state = comm.shared_state(
                self._shared(fragment), name=f"{self.name}/{fragment.number}", prefetch=True
            )
            if self.method.error_feedback:
                fragment.losses = comm.error_feedback(tag=self._tag_of(fragment))
        told = self.method.told()
        if self.total is not None:
            told.append(f"total={self.total}")
        if self._buffers is not None:
            _, averaged, synced = self._buffers
            told += [f"averaged buffers={len(averaged)}", f"synced buffers={len(synced)}"]
        # Settings are names in a shared state, so a Mismatch of its sync names those that differ.
        settings = {setting: np.zeros(1, np.uint8) for setting in told}
        self._clock_state = comm.shared_state({"clock": self._clock, **settings}, name=self.name)

    def detach(self) -> None:
        """Detaches from the group and drops exchanges under way. The group stays open."""
        for fragment in self._fragments:
            if fragment.state is not None:
                fragment.state.close()
            if fragment.losses is not None:
                fragment.losses.close()  # frees the tag for the group's next training
            fragment.losses = None
            fragment.state = fragment.captured = None
            fragment.is_owed = fragment.is_behind = False
            if isinstance(fragment.flight, _Flight):
                fragment.give_back_residual(fragment.flight)
                fragment.flight = None  # `gradient` is not reused: the operation may still write it
        if self._clock_state is not None:
            self._clock_state.close()
        self._clock_state, self._comm, self._has_begun = None, None, False

    def begin(self) -> None:
        """Enters the run: syncs with the members, and waits for exchanges under way.

        Parameters of workers may differ before `begin`, which makes them equal. Raises the errors
        of `Group.admit` and `SharedState.sync`; Mismatch if another member has other settings or
        another model.
        """
        comm = self._open()
        if self._has_begun:
            raise InvalidUsage("this worker has entered the run already")
        if comm.epoch == 0:
            comm.admit()
        self._give_back_losses()
        is_new = self._welcome(is_inside=False)
        if not self._clock[2]:
            self._share_buffers()  # the members begin the run together
        position = self.position
        if self._clock[2]:
            self._exchange_at(position)
        while any(f.is_owed and f.flight is None for f in self._fragments):
            position = position % self.method.sync_every + 1
            self._at(position)
        if is_new:
            self._steps, self._steps_of_round = self.position, self.method.sync_every
        self._has_begun = True
        self._speed.stop()

    def step(self, tokens: float = 1.0) -> None:
        """Call this after each inner step: begins and ends the exchanges due at this position.

        `tokens`: number of tokens that the inner step has trained; their sum is the weight of the
        next contribution. Raises the errors of `Group.all_reduce`, `Group.admit` and
        `SharedState.sync`. After such an error this worker has left the run; `attach` and `begin`
        enter it again, and the next step repeats the exchange that failed.
        """
        tokens = float(tokens)
        if not (tokens == 0 or WEIGHT_MIN <= tokens <= TOKENS_MAX):
            raise InvalidArgument(
                f"tokens must be 0, or a number of {WEIGHT_MIN:g} to {TOKENS_MAX:g}, not {tokens}"
            )
        if not self._has_begun:
            raise InvalidUsage("this worker has not entered the run: call begin() first")
        self._speed.step()
        for fragment in self._fragments:
            fragment.tokens += tokens if self.method.weights == "tokens" else 1.0
        self._steps += 1
        try:
            last = self._schedule.position(self._steps, self._steps_of_round)
            for position in range(self.position + 1, last + 1):
                self._at(position)
            self._launch_announced()
            if last == self.method.sync_every:
                self._next_round()
        except PcclError as error:
            self._steps -= 1
            self._clock[1] = max(self.position - 1, 0)
            if self.survives is None or not self.survives(error):
                raise
        self._speed.stop()

    def __enter__(self) -> Self:
        """Enters the run (`begin`) if this worker is attached to a group."""
        if self._comm is not None:
            self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Does nothing: parameters and group stay as they are."""

    def finish(self) -> None:
        """Ends the training; all members must call it after the same step. Waits for all exchanges
        under way, and sets this worker's parameters to the outer parameters."""
        for fragment in self._fragments:
            self._land(fragment)
            self._receive(fragment)

    # ---- one position -------------------------------------------------------------------------

    def _at(self, position: int) -> None:
        starting = [self._fragments[p] for p in self._schedule.starting(position)]
        self._clock[1] = position
        if starting:
            same_model(self._replica.tensors(), self._layouts)
        for fragment in starting:
            self._capture(fragment)
        for p in self._schedule.ending(position):
            self._land(self._fragments[p])
        if self.method.eager:
            for fragment in starting:
                self._go_ahead(fragment)
        if starting:
            self._safe_point()
            self._exchange_at(position)

    def _exchange_at(self, position: int) -> None:
        """Begins the exchanges of a position after its safe point. A newcomer that enters at the
        safe point calls this first."""
        starting = [self._fragments[p] for p in self._schedule.starting(position)]
        for fragment in starting:
            self._announce(fragment)
        if self.method.fragment_sync_delay == 0:
            for fragment in starting:
                self._land(fragment)
        if position == self.method.sync_every:
            self._share_buffers()
            if not self._has_begun:
                self._next_round()

    def _next_round(self) -> None:
        self._clock[0] += 1
        self._clock[1] = 0
        self._steps = 0
        if self.method.adaptive_steps:
            self._steps_of_round = self._schedule.steps(*self._speeds)

    def _safe_point(self) -> None:
        # The safe point may begin another epoch, so contributions announced in this epoch go first.
        self._launch_announced(wait=True)
        comm = self._open()
        if strangers := [peer for peer in comm.members if peer not in self._members]:
            named = ", ".join(map(comm.label, strangers))
            raise InvalidUsage(
                f"the program has called admit(), which let in {named}: a worker that trains must "
                "leave safe points to DiLoCo, which receives newcomers"
            )
        admission = comm.admit()
        if admission.joined:
            _log.info("%s: %s", self.name, admission)
            self._welcome(is_inside=True)

    def _welcome(self, *, is_inside: bool) -> bool:
        """Syncs members and newcomers. A fragment with an exchange under way is synced when the
        exchange has ended.

        `is_inside`: whether the exchanges of a position begin after this sync. The revision of this
        worker's content is its `progress`. Returns whether this worker is a newcomer, so that it
        has received the clock.
        """
        self._members = frozenset(self._open().members)
        revision = self.progress
        self._clock[2] = is_inside
        self._clock[3:] = [f.flight is not None or f.is_owed for f in self._fragments]
        assert self._clock_state is not None
        synced = self._clock_state.sync(revision=revision)
        is_new = self._open().peer_id not in synced.holders
        for fragment, is_under_way in zip(self._fragments, self._clock[3:], strict=True):
            if is_new:
                fragment.flight = None  # drops a checkpoint's result, made at another position
            if is_under_way:
                fragment.is_owed = True
                fragment.is_behind = fragment.is_behind or is_new
            else:
                fragment.flight = None
                self._sync(fragment, revision)
        self._hand_over(synced.holders)
        return is_new

    def _hand_over(self, holders: Sequence[PeerId]) -> None:
        """Each newcomer receives buffers and inner optimizer from one of the `holders`, in turn."""
        comm = self._open()
        newcomers = [peer for peer in comm.members if peer not in holders]
        for number, newcomer in enumerate(newcomers):
            giver = holders[number % len(holders)]
            try:
                if comm.peer_id == newcomer:
                    self._take_from(comm, giver)
                elif comm.peer_id == giver:
                    self._give_to(comm, newcomer)
            except (Aborted, DeadlineExceeded) as error:
                _log.warning(
                    "%s: %s has not received the buffers and the inner optimizer of %s, and begins "
                    "with its own: %s",
                    self.name,
                    comm.label(newcomer),
                    comm.label(giver),
                    error,
                )

    def _take_from(self, comm: Group, giver: PeerId) -> None:
        comm.send(np.array([self._inherits], np.uint8), giver, tag=GIFT_TAG)
        size = np.zeros(1, np.uint64)
        comm.recv(size, giver, tag=GIFT_TAG)
        # Allows 16 times the bytes of the outer parameters for moments, and 1 GiB for buffers.
        limit = (1 << 30) + sum(16 * 4 * layout.size for layout in self._layouts)
        if size[0] > limit:
            raise InvalidUsage(
                f"{comm.label(giver)} gives {size[0]} bytes, where {limit} are the most: its model "
                "must be another"
            )
        if size[0]:
            gift = np.empty(int(size[0]), np.uint8)
            comm.recv(gift, giver, tag=GIFT_TAG)
            self._take_gift(gift.tobytes())
        elif self._inherits:
            _log.warning(
                "%s: %s has no inner optimizer to give, so that of this worker starts fresh",
                self.name,
                comm.label(giver),
            )

    def _give_to(self, comm: Group, newcomer: PeerId) -> None:
        inherits = np.zeros(1, np.uint8)
        comm.recv(inherits, newcomer, tag=GIFT_TAG)
        # With `privacy` no optimizer is given: its moments depend on the worker's data.
        is_given = bool(inherits[0]) and self.method.privacy is None
        gift = np.frombuffer(self._gift(with_optimizer=is_given), np.uint8)
        comm.send(np.array([gift.size], np.uint64), newcomer, tag=GIFT_TAG)
        if gift.size:
            comm.send(gift, newcomer, tag=GIFT_TAG)

    def _share_buffers(self) -> None:
        if self._buffers is None:
            return
        replica, averaged, synced = self._buffers
        comm = self._open()
        arrays = replica.read([*averaged, *synced], to_write=True)
        try:
            if averaged:
                own = [arrays[name] for name in averaged]
                comm.all_reduce(own, op="avg", recovery="resume", tag=BUFFERS_TAG)
            if synced:
                comm.broadcast([arrays[name] for name in synced], root=0, tag=BUFFERS_TAG)
        except (Aborted, DeadlineExceeded) as error:
            _log.warning("%s: buffers are not shared in this round: %s", self.name, error)
        replica.write(arrays)

    def _sync(self, fragment: _Fragment, revision: int) -> None:
        assert fragment.state is not None
        synced: SyncOutcome = fragment.state.sync(revision=revision)
        fragment.is_owed = fragment.is_behind = False
        if self._open().peer_id not in synced.holders:
            self._receive(fragment)
            for kept in (fragment.residual, fragment.own_momentum):
                if kept is not None:
                    kept.fill(0)
            if fragment.begin is not None:
                fragment.begin[:] = fragment.outer.parameters

    # ---- one fragment -------------------------------------------------------------------------

    def _capture(self, fragment: _Fragment) -> None:
        """Sets `fragment.captured`: pseudo-gradient plus decayed residual, and its weight."""
        gradient = fragment.take()
        begin = fragment.outer.parameters if fragment.begin is None else fragment.begin
        arrays = self._replica.read(fragment.names)
        squares = 0.0
        for tensor, part in fragment.layout.places():
            squares += difference(begin[part], arrays[tensor.name], gradient[part])
        if fragment.residual is not None:
            assert self.method.sparse is not None
            gradient += np.float32(self.method.sparse.decay) * fragment.residual
            squares = _squares(gradient)
        # Reads `tokens` now, because a result that lands before the announcement resets them.
        weight = fragment.tokens if self._has_begun and np.isfinite(squares) else 0.0
        if self.method.weights == "equal":
            weight = float(weight > 0)
        fragment.captured = _Captured(gradient, squares, weight)

    def _announce(self, fragment: _Fragment) -> None:
        comm = self._open()
        # A newcomer that entered at this position has captured nothing: it contributes weight 0.
        gradient, squares, weight = fragment.captured or _Captured(fragment.take(), 0.0, 0.0)
        fragment.captured = None
        is_good = bool(np.isfinite(squares))
        if not is_good:
            _log.warning(
                "%s: the pseudo-gradient of fragment %d is not finite, and does not count",
                self.name,
                fragment.number,
            )
        # With `privacy` the norm stays secret; clip_to_median, which needs norms, is excluded.
        told = squares if self.method.privacy is None or not is_good else 0.0
        own = np.array([weight, told, self._speed.own])
        table = np.zeros((comm.world_size, _NUMBERS))
        fragment.flight = _Flight(
            round=self.round,
            epoch=comm.epoch,
            gradient=gradient,
            norm=float(np.sqrt(squares)) if is_good else float("nan"),
            own=own,
            table=table,
            announced=self._gather(fragment, own, table),
        )

    def _gather(
        self, fragment: _Fragment, own: NDArray[np.float64], table: NDArray[np.float64]
    ) -> Work[Outcome]:
        how: Any = {"tag": self._tag_of(fragment) + 1, "recovery": "resume", "async_op": True}
        work: Work[Outcome] = self._open().all_gather(own, table, **how)
        return work

    def _launch_announced(self, *, wait: bool = False) -> None:
        for fragment in self._fragments:
            flight = fragment.flight
            if not isinstance(flight, _Flight) or flight.announcement is not None:
                continue
            if wait or flight.announced.done():
                self._launch(fragment, flight)

    def _launch(self, fragment: _Fragment, flight: _Flight) -> None:
        """Waits for the announcement, and begins the operation on contributions."""
        with _Waiting(flight):
            try:
                flight.announcement = flight.announced.wait()
            except (Aborted, DeadlineExceeded) as error:
                if self._open().epoch != flight.epoch:
                    raise
                _log.warning("%s: an announcement is repeated: %s", self.name, error)
                flight.announced = self._gather(fragment, flight.own, flight.table)
                flight.announcement = flight.announced.wait()
        table = flight.table
        _make_sane(table)
        members = flight.announcement.roster.members
        rank = members.index(self._open().peer_id)
        self._speeds = float(table[rank, _SPEED]), float(table[:, _SPEED].max())
        if flight.total == 0:
            _log.warning(
                "%s: no contribution of round %d has a weight, so the outer parameters stay",
                self.name,
                flight.round,
            )
            return
        self._share = float(table[rank, _WEIGHT] / flight.total)
        privacy = self.method.privacy
        if privacy is not None:
            counted = int((table[:, _WEIGHT] > 0).sum())
            privacy.cover(flight.gradient, flight.norm, counted, self._random)
        self._send(fragment, flight, self._share * self._clip(table, rank))

    def _send(self, fragment: _Fragment, flight: _Flight, scale: float) -> None:
        comm, sparse, gradient = self._open(), self.method.sparse, flight.gradient
        if sparse is not None:
            piece = np.zeros(sparse.bytes(gradient.size), np.uint8)
            if scale:
                if scale != self._share:
                    gradient *= np.float32(scale / self._share)
                sparse.encode(gradient, piece)
                flight.residual, fragment.residual = fragment.residual, fragment.take()
                fragment.residual[:] = gradient
                sparse.add(fragment.residual, piece, -1.0)
            flight.pieces = np.zeros((comm.world_size, piece.size), np.uint8)
            # "resume" could deliver a part of a lost member's piece, which cannot be decoded.
            how: Any = {"tag": self._tag_of(fragment), "recovery": "restart", "async_op": True}
            flight.work = comm.all_gather(piece, flight.pieces, **how)
            return
        if scale == 0:
            gradient.fill(0)
        elif scale != 1:
            gradient *= np.float32(scale)
        self._reduce(fragment, flight)

    def _reduce(self, fragment: _Fragment, flight: _Flight) -> None:
        flight.work = self._open().all_reduce(
            flight.gradient,
            op="sum",
            recovery="resume",
            codec=self.method.codec,
            tag=self._tag_of(fragment),
            async_op=True,
        )

    def _clip(self, table: NDArray[np.float64], rank: int) -> float:
        if not self.method.clip_to_median:
            return 1.0
        counts = table[:, _WEIGHT] > 0
        norms = np.sqrt(table[counts, _SQUARES])
        own = float(np.sqrt(table[rank, _SQUARES]))
        median = float(np.median(norms))
        return median / own if own > median > 0 else 1.0

    def _land(self, fragment: _Fragment) -> None:
        """Waits for an exchange's result, applies it to the outer parameters, and mixes these into
        the worker's own. Then syncs the fragment if a newcomer entered during the exchange."""
        flight = fragment.flight
        if flight is not None:
            arrived = self._arrive(fragment, flight) if isinstance(flight, _Flight) else flight
            fragment.flight = None
            if arrived.scales:
                fragment.outer.step(arrived.gradient, arrived.scales)
            self.last_exchange = arrived.told
            _log.info("%s: %s", self.name, arrived.told)
            if self._on_exchange is not None:
                self._on_exchange(arrived.told)
            fragment.spare.append(arrived.gradient)
            if not self.method.eager:
                self._receive(fragment, arrived.alpha)
        if fragment.is_owed:
            self._sync(fragment, 0 if fragment.is_behind else self.progress)

    def _arrive(self, fragment: _Fragment, flight: _Flight) -> _Arrived:
        """Waits for the result of an exchange."""
        scales = self._contributions(fragment, flight)
        # Keeps nothing of own parameters that are not finite; else keeps all if nothing arrived.
        alpha = self.method.fragment_update_alpha if flight.is_good else 0.0
        if not scales and flight.is_good:
            alpha = 1.0
        return _Arrived(flight.gradient, scales, alpha, self._told(fragment, flight))

    def _contributions(self, fragment: _Fragment, flight: _Flight) -> list[tuple[slice, float]]:
        """Waits for the contributions; returns the slices of the sum that have contributors, each
        with the factor that makes it a weighted average."""
        if flight.announcement is None:
            self._launch(fragment, flight)
        if flight.work is None:
            return []
        with _Waiting(flight):
            flight.outcome = self._wait(fragment, flight)
        if flight.outcome is None:
            return []
        if flight.pieces is not None:
            if flight.residual is not None:
                fragment.spare.append(flight.residual)
            return self._add_pieces(flight)
        scales = []
        for part in flight.outcome.ranges:
            present = sum(map(flight.weight_of, part.contributors))
            if present > 0:
                scales.append((slice(part.begin, part.end), flight.total / present))
        return scales

    def _wait(self, fragment: _Fragment, flight: _Flight) -> Outcome | None:
        """Waits for the operation on contributions, and returns its outcome. After an abort, whose
        inputs are intact, repeats the operation once, among the members of the same epoch. None if
        all members gave the exchange up: in another epoch, or with sparse pieces."""
        assert flight.work is not None
        try:
            return flight.work.wait()
        except (Aborted, DeadlineExceeded) as error:
            if self._open().epoch != flight.epoch or flight.pieces is not None:
                _log.warning("%s: an exchange is given up: %s", self.name, error)
                fragment.give_back_residual(flight)
                return None
            _log.warning("%s: an exchange is repeated: %s", self.name, error)
            self._reduce(fragment, flight)
            return flight.work.wait()

    def _add_pieces(self, flight: _Flight) -> list[tuple[slice, float]]:
        """Averages the sparse pieces that arrived, in rank order, into `flight.gradient`. Each
        element is averaged over only the workers that sent it."""
        assert self.method.sparse is not None
        assert flight.pieces is not None and flight.outcome is not None
        size = flight.pieces.shape[1]
        arrived = {part.begin // size for part in flight.outcome.ranges if part.contributors}
        ranks = [rank for rank in sorted(arrived) if flight.table[rank, _WEIGHT] > 0]
        flight.gradient.fill(0)
        weights = np.zeros_like(flight.gradient)
        total, added = flight.total, 0
        for rank in ranks:
            share = float(flight.table[rank, _WEIGHT]) / total
            try:
                self.method.sparse.add(flight.gradient, flight.pieces[rank], share, weights)
            except InvalidArgument as refusal:  # all members have the same bytes, so all ignore it
                _log.warning("%s: rank %d is ignored: %s", self.name, rank, refusal)
                flight.table[rank] = 0.0, np.nan, 0.0
            else:
                added += 1
        np.divide(flight.gradient, weights, out=flight.gradient, where=weights > 0)
        return [(slice(0, flight.gradient.size), 1.0)] if added else []

    def _receive(self, fragment: _Fragment, alpha: float = 0.0) -> None:
        """Mixes the outer parameters into the worker's own, which keep the weight `alpha`."""
        if alpha == 1:
            return
        self._mix(fragment, fragment.outer.parameters, alpha)
        fragment.tokens = 0.0

    def _mix(self, fragment: _Fragment, vector: Vector, alpha: float) -> None:
        arrays = self._replica.read(fragment.names, to_write=True)
        for tensor, part in fragment.layout.places():
            mix(arrays[tensor.name], vector[part], alpha)
        self._replica.write(arrays)

    def _go_ahead(self, fragment: _Fragment) -> None:
        """Eager updates: sets the worker's own parameters to the outer parameters plus a step of
        the outer optimizer with this worker's contribution alone. All contributions update the
        outer parameters a round later. With a single worker, the result is that of DiLoCo."""
        assert fragment.begin is not None and fragment.captured is not None
        gradient, squares, _ = fragment.captured
        share = self._share or 1 / self._open().world_size
        fragment.begin[:] = fragment.outer.parameters
        if np.isfinite(squares) and self._has_begun:
            moments = [] if fragment.own_momentum is None else [fragment.own_momentum]
            advance(self.method.optimizer, fragment.begin, moments, gradient, share, 1)
        self._mix(fragment, fragment.begin, 0.0)
        fragment.tokens = 0.0

    # ---- a checkpoint -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of this worker for a checkpoint, with its own parameters; arrays are copies.

        Waits for the exchanges under way, and includes their results. Call this between two steps.
        """
        fragments = []
        for fragment in self._fragments:
            if isinstance(fragment.flight, _Flight):
                fragment.flight = self._arrive(fragment, fragment.flight)
            kept: dict[str, Any] = {
                "parameters": fragment.outer.parameters.copy(),
                "moments": [moment.copy() for moment in fragment.outer.moments],
                "steps": int(fragment.outer.steps[0]),
                "tokens": fragment.tokens,
                "arrived": _saved(fragment.flight),
                "feedback": None,
            }
            for name in ("residual", "begin", "own_momentum"):
                vector = getattr(fragment, name)
                kept[name] = None if vector is None else vector.copy()
            if fragment.losses is not None:
                kept["feedback"] = np.frombuffer(fragment.losses.save(), np.float32)
            fragments.append(kept)
        return {
            "settings": self.method.told(),
            "tensors": self._saved_tensors(),
            "clock": [int(number) for number in self._clock],
            "steps": [self._steps, self._steps_of_round],
            "share": self._share,
            "fragments": fragments,
            "own": self._own_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state of a `state_dict`; call it before `begin`.

        If peers begin together, all get the outer parameters of the peer with the most `progress`.
        Raises InvalidArgument, and changes nothing, if the state has other settings or another
        model.
        """
        if self._has_begun:
            raise InvalidUsage("load_state_dict() must be called before this worker begins")
        keys = {"settings", "tensors", "clock", "steps", "share", "fragments", "own"}
        if not isinstance(state, Mapping) or not keys <= set(state):
            raise InvalidArgument(f"a state_dict must have {', '.join(sorted(keys))}")
        for what, mine in (("settings", self.method.told()), ("tensors", self._saved_tensors())):
            if state[what] != mine:
                theirs = [each for each in state[what] if each not in mine]
                own = [each for each in mine if each not in state[what]]
                raise InvalidArgument(
                    f"the checkpoint has the {what} {theirs}, where this training has {own}"
                )
        self._clock[:] = state["clock"]
        self._steps, self._steps_of_round = state["steps"]
        self._share = state["share"]
        for fragment, kept in zip(self._fragments, state["fragments"], strict=True):
            fragment.outer.parameters[:] = kept["parameters"]
            for moment, saved in zip(fragment.outer.moments, kept["moments"], strict=True):
                moment[:] = saved
            fragment.outer.steps[0] = kept["steps"]
            fragment.tokens = kept["tokens"]
            fragment.flight = _restored(kept["arrived"])
            for name in ("residual", "begin", "own_momentum"):
                if (vector := getattr(fragment, name)) is not None:
                    vector[:] = kept[name]
            losses = kept["feedback"]
            fragment.feedback = None if losses is None else np.asarray(losses, np.float32)
        self._load_own_state(state["own"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `state_dict` to a file, replacing it atomically. Raises OSError."""
        checkpoint.save(path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restores the state from a file of `save`. Raises OSError, and InvalidArgument for a file
        that `save` has not written."""
        self.load_state_dict(checkpoint.load(path))

    # ---- its parts ----------------------------------------------------------------------------

    def _saved_tensors(self) -> list[list[str]]:
        """Names and shapes of each fragment's tensors, which a checkpoint must match."""
        return [
            [f"{tensor.name} {list(tensor.shape)}" for tensor, _ in fragment.layout.places()]
            for fragment in self._fragments
        ]

    def _take_up(self, fragment: _Fragment) -> None:
        """Sets the outer parameters to the worker's own, and allocates the vectors that the method
        needs."""
        arrays = self._replica.read(fragment.names)
        zeros = np.zeros(fragment.layout.size, np.float32)
        for tensor, part in fragment.layout.places():
            difference(zeros[part], arrays[tensor.name], fragment.outer.parameters[part])
        np.subtract(0.0, fragment.outer.parameters, out=fragment.outer.parameters)
        if self.method.sparse is not None:
            fragment.residual = zeros
        if self.method.eager:
            fragment.begin = fragment.outer.parameters.copy()
            if self.method.optimizer.moments:
                fragment.own_momentum = zeros

    def _own_state(self) -> dict[str, Any]:
        """The worker's own state, which the frontend saves in a checkpoint: parameters and more."""
        raise NotImplementedError

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restores the result of an `_own_state`."""
        raise NotImplementedError

    @property
    def _inherits(self) -> bool:
        """Whether this worker, as a newcomer, asks a member for its inner optimizer's state."""
        return False

    def _gift(self, *, with_optimizer: bool) -> bytes:
        """The shared buffers and the state of the inner optimizer, serialized by the frontend; may
        be empty."""
        return b""

    def _take_gift(self, gift: bytes) -> None:
        """Restores buffers and inner optimizer from a member's `_gift`."""

    def _give_back_losses(self) -> None:
        for fragment in self._fragments:
            saved, fragment.feedback = fragment.feedback, None
            if fragment.losses is not None and saved is not None and saved.size:
                fragment.losses.load(saved)

    def _shared(self, fragment: _Fragment) -> dict[str, Any]:
        tensors: dict[str, Any] = {}
        vectors = [("", fragment.outer.parameters)]
        vectors += [(f" moment {n}", m) for n, m in enumerate(fragment.outer.moments, 1)]
        for suffix, vector in vectors:
            for tensor, part in fragment.layout.places():
                tensors[tensor.name + suffix] = vector[part].reshape(tensor.shape)
        return {**tensors, "outer steps": fragment.outer.steps}

    def _told(self, fragment: _Fragment, flight: _Flight) -> Exchange:
        assert flight.announcement is not None
        roster, table, outcome = flight.announcement.roster, flight.table, flight.outcome
        weights = tuple(float(weight) for weight in table[:, _WEIGHT])
        # A dense contribution must be in all ranges of the sum. A sparse piece has ranges of its
        # own, and arrives completely or not at all.
        is_whole = all if flight.pieces is None else any
        return Exchange(
            round=flight.round,
            fragment=fragment.number,
            members=roster.labels,
            weights=weights,
            lost=tuple(
                rank
                for rank, peer in enumerate(roster.members)
                if weights[rank] > 0
                and (
                    outcome is None or not is_whole(peer in r.contributors for r in outcome.ranges)
                )
            ),
            ignored=tuple(int(rank) for rank in np.flatnonzero(~np.isfinite(table[:, _SQUARES]))),
            norm=flight.norm,
            waited=flight.waited,
            seconds=sum(each.duration for each in (flight.announcement, outcome) if each),
            bytes_sent=0 if outcome is None else outcome.bytes_sent,
            bytes_received=0 if outcome is None else outcome.bytes_received,
            outcome=outcome,
        )

    def _tag_of(self, fragment: _Fragment) -> int:
        return TAG + 2 * fragment.number

    def _open(self) -> Group:
        if self._comm is None:
            raise InvalidUsage("this worker is in no group: call attach(comm) first")
        return self._comm


def _saved(flight: object) -> dict[str, Any] | None:
    if not isinstance(flight, _Arrived):
        return None
    return {
        "gradient": flight.gradient.copy(),
        "scales": [(part.start, part.stop, scale) for part, scale in flight.scales],
        "alpha": flight.alpha,
        "told": asdict(replace(flight.told, outcome=None)),
    }


def _restored(saved: Mapping[str, Any] | None) -> _Arrived | None:
    if saved is None:
        return None
    return _Arrived(
        np.asarray(saved["gradient"], np.float32),
        [(slice(begin, end), scale) for begin, end, scale in saved["scales"]],
        saved["alpha"],
        Exchange(**saved["told"]),
    )


def _make_sane(table: NDArray[np.float64]) -> None:
    """Sets the weight of an invalid announcement to 0, the same way on all members."""
    weights = table[:, _WEIGHT]
    is_bad = ~np.isfinite(table).all(axis=1) | (table < 0).any(axis=1)
    is_bad |= (weights > 0) & ((weights < WEIGHT_MIN) | (weights > WEIGHT_MAX))
    table[is_bad] = 0.0, np.nan, 0.0


def _squares(gradient: Vector) -> float:
    """The sum of the squares of `gradient`, added up in f64."""
    return sum(
        float(np.square(gradient[at : at + _PART], dtype=np.float64).sum())
        for at in range(0, gradient.size, _PART)
    )


class _Waiting:
    """Adds the time that its `with` block takes to `flight.waited`."""

    def __init__(self, flight: _Flight) -> None:
        self._flight = flight

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._flight.waited += time.monotonic() - self._began


class _Speed:
    """Measures inner steps a second, not counting time spent in this module."""

    def __init__(self) -> None:
        self.steps = 0
        self._seconds = 0.0
        self._since = 0.0

    @property
    def own(self) -> float:
        """Inner steps a second of this worker; 0 before the first step."""
        return self.steps / self._seconds if self._seconds > 0 else 0.0

    def step(self) -> None:
        """Records that an inner step has ended."""
        self.steps += 1
        self._seconds += time.monotonic() - self._since

    def stop(self) -> None:
        """Records that the next inner step begins now."""
        self._since = time.monotonic()
