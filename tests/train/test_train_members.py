"""Members that leave at each phase of a round, newcomers at each position, weights, bad ones."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pccl_train.numpy
import pytest
from pccl_train import SGD, Exchange, Nesterov, Privacy, Sparse, rounds
from problems import Entry, Worker, outer_bytes, with_a_newcomer

import pccl_py as pccl

STREAMING: dict[str, Any] = {
    "sync_every": 6, "fragments": (("w",), ("b",), ("scale",)), "fragment_sync_delay": 3,
    "fragment_update_alpha": 0.25,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "diloco": {"sync_every": 3},
    "streaming": STREAMING,
    "delayed": {"sync_every": 3, "fragment_sync_delay": 3, "outer": SGD(0.5)},
    "eager": {"sync_every": 3, "fragment_sync_delay": 3, "outer": SGD(0.5), "eager": True},
    "sparse": {"sync_every": 3, "outer": SGD(0.7), "sparse": Sparse(kept=4, chunk=16)},
    "coded": {"sync_every": 3, "codec": "int8", "error_feedback": True},
}
ROUNDS = 6


class Left(Exception):
    """A member has left in the middle of a round."""


class Leaving(pccl_train.numpy.DiLoCo):
    """Leaves when it comes to a call of `phase` for the given time."""

    phase = ""
    calls = 0

    def _comes_to(self, phase: str) -> None:
        if phase == self.phase:
            self.calls -= 1
            if self.calls == 0:
                self._open().close()
                raise Left

    def _capture(self, fragment: Any) -> None:
        self._comes_to("capture")
        super()._capture(fragment)

    def _safe_point(self) -> None:
        self._comes_to("safe point")
        super()._safe_point()

    def _launch(self, fragment: Any, flight: Any) -> None:
        self._comes_to("announced")
        super()._launch(fragment, flight)

    def _contributions(self, fragment: Any, flight: Any) -> Any:
        self._comes_to("under way")
        return super()._contributions(fragment, flight)

    def _mix(self, fragment: Any, vector: Any, alpha: float) -> None:
        self._comes_to("landed")
        super()._mix(fragment, vector, alpha)


PHASES = ("capture", "safe point", "announced", "under way", "landed")


def contributions(exchange: Exchange) -> int:
    return sum(weight > 0 for weight in exchange.weights) - len(exchange.lost)


class Journal:
    """The outer parameters of each worker after each step, which must be the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, dict[bytes, list[object]]] = defaultdict(lambda: defaultdict(list))

    def note(self, who: object, diloco: pccl_train.Rounds) -> None:
        with self._lock:
            self._held[diloco.progress][outer_bytes(diloco)].append(who)

    def check(self) -> None:
        for progress, held in self._held.items():
            assert len(held) == 1, f"step {progress}: {list(held.values())}"

    def count(self, progress: int) -> int:
        return sum(map(len, self._held[progress].values()))

    def first(self, who: object) -> int:
        """The first step of a worker."""
        return min(
            step for step, held in self._held.items() for names in held.values() if who in names
        )


def run(
    diloco: pccl_train.Rounds,
    worker: Worker,
    journal: Journal,
    who: object,
    after: Callable[[], object] = lambda: None,
    goes_on: Callable[[pccl_train.Rounds], bool] = lambda diloco: diloco.round < ROUNDS,
) -> None:
    diloco.begin()
    while goes_on(diloco):
        before = diloco.progress
        worker.step()
        diloco.step()
        assert diloco.progress == before + 1
        journal.note(who, diloco)
        after()
    diloco.finish()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("method", METHODS)
def test_survivors_of_a_loss_in_a_phase_of_a_round_hold_the_same_and_lose_no_round(
    method: str, phase: str
) -> None:
    journal = Journal()

    def program(comm: pccl.Communicator) -> list[Exchange] | None:
        worker, told = Worker(comm.rank), list[Exchange]()
        diloco = Leaving(comm, worker.parameters, on_exchange=told.append, **METHODS[method])
        if comm.rank == 1:
            diloco.phase, diloco.calls = phase, 4
        try:
            run(diloco, worker, journal, comm.rank)
        except Left:
            return None
        return told

    with pccl.LocalWorld(3) as world:
        first, left, last = world.run(program)
    assert left is None and first is not None and last is not None
    journal.check()
    fragments = len(STREAMING["fragments"]) if method == "streaming" else 1
    assert len(first) == len(last) == ROUNDS * fragments
    assert [each.weights for each in first] == [each.weights for each in last]
    assert [each.outcome and each.outcome.ranges for each in first] == [
        each.outcome and each.outcome.ranges for each in last
    ]
    # Exchanges before the loss have three contributions, exchanges after it two.
    sizes = [contributions(each) for each in first]
    assert sizes[0] == 3 and sizes[-1] == 2 and sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("step", range(1, 8))
@pytest.mark.parametrize("method", METHODS)
def test_a_newcomer_has_every_fragment_before_it_trains_and_counts_from_its_first_step(
    method: str, step: int
) -> None:
    journal, told, grown = Journal(), list[Exchange](), list[int]()
    is_there, newcomer = threading.Event(), list[threading.Thread]()
    errors: list[BaseException] = []
    # On a busy machine it may take rounds until the newcomer is ready.
    entry = Entry(3 * METHODS[method]["sync_every"])

    with pccl.LocalWorld(2) as world:

        def join() -> None:
            try:
                with pccl.connect(world.coordinator.token, bind="127.0.0.1:0") as comm:
                    worker = Worker(9)
                    worker.parameters["w"] += 100
                    diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, **METHODS[method])
                    is_there.set()
                    goes_on = partial(entry.goes_on, newcomer=True)
                    run(diloco, worker, journal, "newcomer", goes_on=goes_on)
                    assert abs(worker.parameters["w"]).max() < 50
            except BaseException as error:  # noqa: BLE001  raised by the test
                errors.append(error)
                is_there.set()

        def program(comm: pccl.Communicator) -> None:
            worker = Worker(comm.rank)
            diloco = pccl_train.numpy.DiLoCo(
                comm, worker.parameters, **METHODS[method],
                on_exchange=told.append if comm.rank == 0 else None,
            )  # fmt: skip

            def let_it_come() -> None:
                if diloco.world_size == 3:
                    grown.append(diloco.progress)
                if diloco.progress != step:
                    return
                if comm.rank == 0:
                    newcomer.append(threading.Thread(target=join))
                    newcomer[0].start()
                is_there.wait()
                await_pending(comm)

            run(diloco, worker, journal, comm.rank, after=let_it_come, goes_on=entry.goes_on)

        world.run(program)
        newcomer[0].join()
    if errors:
        raise errors[0]
    journal.check()
    assert journal.count(entry.ends_at) == 3
    assert contributions(told[-1]) == 3
    # With weight 0 at its first exchange, where it has taken no step.
    assert contributions(next(each for each in told if len(each.weights) == 3)) == 2
    # An exchange that is under way when it enters takes one step more, and it waits for that.
    is_under_way = method == "streaming" and grown[0] > 2
    assert journal.first("newcomer") == grown[0] + is_under_way + 1


# A fragment begins at each step, and all others are under way then.
TOGETHER: dict[str, Any] = {"sync_every": 6, "fragments": 6, "fragment_sync_delay": 5}


class Six(pccl_train.numpy.DiLoCo):
    """A model of six tensors, of which each step takes away a tenth."""

    def __init__(self, comm: pccl.Communicator | None, start: float) -> None:
        self.six = {f"p{number}": np.full(3, start, np.float32) for number in range(6)}
        self.told = list[Exchange]()
        super().__init__(comm, self.six, on_exchange=self.told.append, **TOGETHER)

    def train(self) -> None:
        for value in self.six.values():
            value *= 0.9
        self.step()


def test_a_newcomer_may_follow_others_that_wait_for_exchanges_under_way() -> None:
    """They are more than the members that have the whole model."""
    journal, last = Journal(), 0

    def join(who: int) -> None:
        with pccl.connect(world.coordinator.token, bind="127.0.0.1:0") as comm:
            diloco = Six(comm, 1000)
            diloco.begin()
            while not last or diloco.progress < last:
                diloco.train()
                journal.note(who, diloco)

    def await_newcomers(count: int, *more: int) -> list[Future[None]]:
        called = [pool.submit(join, who) for who in more]
        await_pending(comm, count)
        return called

    with ThreadPoolExecutor(3) as pool, pccl.LocalWorld(1) as world:
        (comm,) = world.comms
        diloco, joined = Six(comm, 1), list[Future[None]]()
        diloco.begin()
        while not last or diloco.progress < last:
            if diloco.progress == 6:
                joined += await_newcomers(2, 1, 2)
            if len(joined) == 2 and diloco.world_size == 3:
                joined += await_newcomers(1, 3)
            if not last and diloco.world_size == 4:
                last = diloco.progress + 12
            diloco.train()
            journal.note(0, diloco)
        for each in joined:
            each.result()
    journal.check()
    assert journal.count(last) == 4
    # No exchange is given up for them.
    ended = [divmod(step - 6, 6) for step in range(6, last + 1)]
    assert [(each.round, each.fragment) for each in diloco.told] == ended


class Lost(Six):
    """Loses its place where it would begin an exchange of its own."""

    def _capture(self, fragment: Any) -> None:
        self._open().close()
        raise Left


def test_a_newcomer_that_was_lost_before_it_trained_owes_nothing_in_another_group() -> None:
    """It was waiting for exchanges under way."""
    lost = Lost(None, 0)

    def join() -> None:
        with pccl.connect(world.coordinator.token, bind="127.0.0.1:0") as comm:
            lost.attach(comm)
            with pytest.raises(Left):
                lost.begin()

    with ThreadPoolExecutor(1) as pool, pccl.LocalWorld(1) as world:
        diloco = Six(world.comms[0], 1)
        diloco.begin()
        diloco.train()
        joined = pool.submit(join)
        while not joined.done():
            diloco.train()
        joined.result()
    before = lost.progress
    assert before > 0
    with pccl.LocalWorld(1) as world:
        lost.attach(world.comms[0])
        lost.begin()
        assert lost.progress == before


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_loses_its_place_comes_back_as_a_newcomer(method: str, phase: str) -> None:
    """With another connection, and without what was under way when it lost the first one."""
    journal, told, entry = Journal(), list[Exchange](), Entry(2 * METHODS[method]["sync_every"])

    def train(diloco: pccl_train.Rounds, worker: Worker, who: object, *, newcomer: bool) -> None:
        diloco.begin()
        is_missed = newcomer
        while not is_missed or entry.goes_on(diloco, newcomer=newcomer):
            worker.step()
            diloco.step()
            journal.note(who, diloco)
            if diloco.world_size == 2:
                is_missed = True
                entry.call()
        diloco.finish()

    def program(comm: pccl.Communicator) -> int:
        worker = Worker(comm.rank)
        diloco = Leaving(
            comm, worker.parameters, **METHODS[method],
            on_exchange=told.append if comm.rank == 0 else None,
        )  # fmt: skip
        if comm.rank != 1:
            train(diloco, worker, comm.rank, newcomer=False)
            return diloco.progress
        diloco.phase, diloco.calls = phase, 4
        with pytest.raises(Left):
            train(diloco, worker, 1, newcomer=False)
        entry.is_called()
        with pccl.connect(token, bind="127.0.0.1:0") as again:
            diloco.attach(again)
            train(diloco, worker, "back", newcomer=True)
        return diloco.progress

    with pccl.LocalWorld(3) as world:
        token = world.coordinator.token
        (last,) = set(world.run(program))
    journal.check()
    assert journal.count(last) == 3
    sizes = [len(each.weights) for each in told]
    # It has taken no step before its first exchange.
    assert contributions(told[sizes.index(3, sizes.index(2))]) == 2
    assert contributions(told[-1]) == 3


def test_a_gift_that_is_none_or_far_too_large(caplog: pytest.LogCaptureFixture) -> None:
    """A newcomer begins with its own where there is none, and is told of the other."""

    class Inheriting(pccl_train.numpy.DiLoCo):
        @property
        def _inherits(self) -> bool:
            return True

    class Boasting(pccl_train.numpy.DiLoCo):
        def _give_to(self, comm: Any, newcomer: Any) -> None:
            comm.recv(np.zeros(1, np.uint8), newcomer, tag=rounds.GIFT_TAG)
            comm.send(np.array([1 << 62], np.uint64), newcomer, tag=rounds.GIFT_TAG)

    def train(comm: pccl.Communicator, kind: Any, entry: Entry, *, newcomer: bool) -> None:
        diloco = kind(comm, {"x": np.zeros(3, np.float32)}, sync_every=1)
        diloco.begin()
        while entry.goes_on(diloco, newcomer=newcomer):
            diloco.step()
            entry.call()

    def receives(comm: pccl.Communicator, entry: Entry) -> None:
        train(comm, Inheriting, entry, newcomer=True)

    def refuses(comm: pccl.Communicator, entry: Entry) -> None:
        with pytest.raises(pccl.InvalidUsage, match="are the most"):
            train(comm, Inheriting, entry, newcomer=True)

    for kind, newcomer in ((pccl_train.numpy.DiLoCo, receives), (Boasting, refuses)):
        with_a_newcomer(
            lambda comm, entry: train(comm, kind, entry, newcomer=False),  # noqa: B023
            newcomer,
            more=2,
        )
    assert "starts fresh" in caplog.text


class Shared(Leaving):
    """Has a buffer of one element, which begins as the rank."""

    def __init__(self, comm: pccl.Communicator, averaged: bool) -> None:
        self.buffer = np.full(1, comm.rank, np.float32)
        arrays = pccl_train.numpy._Arrays({"b": self.buffer})
        names: tuple[Any, Any] = (("b",), ()) if averaged else ((), ("b",))
        super().__init__(
            None, {n: np.zeros(3, np.float32) for n in "xy"}, sync_every=2, fragments=2
        )
        self._buffers = rounds.Buffers(arrays, *names)
        self.attach(comm)

    def _share_buffers(self) -> None:
        self._comes_to("buffers")
        super()._share_buffers()


@pytest.mark.parametrize(("averaged", "expected"), [(True, (1, 2)), (False, (0, 10))])
def test_buffers_are_shared_at_the_beginning_and_at_the_end_of_each_round(
    averaged: bool, expected: tuple[float, float]
) -> None:
    def program(comm: pccl.Communicator) -> tuple[float, float]:
        diloco = Shared(comm, averaged)
        diloco.begin()
        first = float(diloco.buffer[0])
        own = diloco.buffer[0] = (10, 1, -5)[comm.rank]
        diloco.step()  # the exchange of a fragment, and no end of a round
        assert diloco.buffer[0] == own
        diloco.step()
        return first, float(diloco.buffer[0])

    with pccl.LocalWorld(3) as world:
        assert world.run(program) == [expected] * 3


def test_other_buffers_are_a_mismatch(pair: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> None:
        with pytest.raises(pccl.Mismatch, match="differ in structure"):
            Shared(comm, comm.rank == 0).begin()

    pair.run(program)


@pytest.mark.parametrize(("averaged", "leaver"), [(True, 1), (False, 0)])
def test_buffers_of_a_round_in_which_a_member_leaves(
    averaged: bool, leaver: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The average is of the others. Where rank 0 is lost, each keeps its own."""

    def program(comm: pccl.Communicator) -> float | None:
        diloco = Shared(comm, averaged)
        rank = comm.rank
        if rank == leaver:
            diloco.phase, diloco.calls = "buffers", 2
        diloco.begin()
        diloco.buffer[0] = 10 + rank
        try:
            diloco.step()
            diloco.step()
        except Left:
            return None
        return float(diloco.buffer[0])

    with pccl.LocalWorld(3) as world:
        found = world.run(program)
    assert found == ([11, None, 11] if averaged else [None, 11, 12])
    assert ("buffers are not shared" in caplog.text) == (not averaged)


@pytest.mark.parametrize(
    "settings",
    [
        {"outer": SGD(0.5), "sparse": Sparse(kept=1, chunk=16)},
        {"outer": Nesterov(0.5, 0.5), "fragment_sync_delay": 2, "eager": True},
    ],
    ids=["sparse", "eager"],
)
def test_a_worker_that_receives_the_model_keeps_nothing_of_its_own(
    settings: dict[str, Any],
) -> None:
    """Neither a residual, nor the momentum and the place of eager updates."""

    def trained(rounds: int) -> tuple[Worker, pccl_train.numpy.DiLoCo]:
        worker = Worker(rounds)
        diloco = pccl_train.numpy.DiLoCo(None, worker.parameters, sync_every=2, **settings)
        with pccl.LocalWorld(1) as world:
            diloco.attach(world.comms[0])
            diloco.begin()
            while diloco.round < rounds:
                worker.step()
                diloco.step()
        diloco.detach()
        return worker, diloco

    workers = [trained(2), trained(1)]

    def program(comm: pccl.Communicator) -> tuple[bytes, bytes, bytes]:
        worker, diloco = workers[comm.rank]
        diloco.attach(comm)
        diloco.begin()
        assert diloco.round == 2
        received = worker.bytes()
        # It contributes nothing where it has not moved. The other worker has no weight.
        for _ in range(2):
            diloco.step(comm.rank)
        return received, outer_bytes(diloco), worker.bytes()

    with pccl.LocalWorld(2) as world:
        received, outer, own = world.run(program)[1]
    assert received == outer == own


def await_pending(comm: pccl.Communicator, count: int = 1) -> None:
    """Until so many newcomers wait to enter at the next safe point."""
    while comm.info().pending < count:
        threading.Event().wait(0.01)


def test_a_newcomer_whose_giver_leaves_begins_with_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Giving(pccl_train.numpy.DiLoCo):
        def _gift(self, *, with_optimizer: bool) -> bytes:
            self._open().close()
            raise Left

    def trained(comm: pccl.Communicator, kind: Any, entry: Entry, rank: int) -> bytes | None:
        worker = Worker(0)
        diloco = kind(comm, worker.parameters, sync_every=2)
        try:
            diloco.begin()
            while entry.goes_on(diloco, newcomer=rank == 9):
                worker.step()
                diloco.step()
                entry.call()
        except Left:
            return None
        return outer_bytes(diloco)

    def program(comm: pccl.Communicator, entry: Entry) -> bytes | None:
        kind = Giving if comm.admit().rank == 0 else pccl_train.numpy.DiLoCo
        return trained(comm, kind, entry, comm.rank)

    def newcomer(comm: pccl.Communicator, entry: Entry) -> bytes | None:
        return trained(comm, pccl_train.numpy.DiLoCo, entry, 9)

    found = with_a_newcomer(program, newcomer, more=4)
    assert found[0] is None and found[1] == found[2] is not None
    assert "begins with its own" in caplog.text


def test_contributions_count_by_tokens_and_a_loss_is_scaled_back_exactly() -> None:
    """Goal: the weighted average of those that contributed. Against fractions."""
    tokens = (1, 5, 2)
    values = (3, -1, 7)

    def program(comm: pccl.Communicator) -> list[float]:
        rank, seen = comm.rank, list[float]()
        parameters = {"x": np.zeros(1000, np.float32)}
        diloco = Leaving(comm, parameters, sync_every=1, outer=SGD(1.0))
        if rank == 1:
            diloco.phase, diloco.calls = "under way", 2
        diloco.begin()
        try:
            for _ in range(3):
                before = parameters["x"].copy()
                parameters["x"] += values[rank]
                diloco.step(tokens[rank])
                seen.append(float((parameters["x"] - before)[0]))
                assert (parameters["x"] == parameters["x"][0]).all()
        except Left:
            pass
        return seen

    with pccl.LocalWorld(3) as world:
        first, left, last = world.run(program)
    assert first == last and len(left) == 1
    of_all = Fraction(sum(t * v for t, v in zip(tokens, values, strict=True)), sum(tokens))
    of_two = Fraction(tokens[0] * values[0] + tokens[2] * values[2], tokens[0] + tokens[2])
    assert first[0] == pytest.approx(float(of_all), rel=1e-6)
    assert first[2] == pytest.approx(float(of_two), rel=1e-6)
    # The member that left in between contributed, or did not.
    assert first[1] in (pytest.approx(first[0], rel=1e-6), pytest.approx(first[2], rel=1e-6))


@pytest.mark.parametrize(("weights", "expected"), [("tokens", (6.0, 15.0)), ("equal", (1.0, 1.0))])
def test_a_contribution_counts_by_its_tokens_since_the_last_one_or_equally(
    weights: Any, expected: tuple[float, ...]
) -> None:
    def program(comm: pccl.Communicator) -> list[tuple[float, ...]]:
        told = list[Exchange]()
        diloco = pccl_train.numpy.DiLoCo(
            comm, {"x": np.zeros(4, np.float32)}, sync_every=3, weights=weights,
            on_exchange=told.append,
        )  # fmt: skip
        diloco.begin()
        for step in range(6):
            diloco.step(step % 3 + 1 + 3 * comm.rank)
        return [each.weights for each in told]

    with pccl.LocalWorld(2) as world:
        assert world.run(program) == [[expected, expected]] * 2


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_is_not_finite_counts_nothing_and_is_named(
    method: str, bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    def program(comm: pccl.Communicator) -> tuple[list[Exchange], bytes]:
        worker, told = Worker(comm.rank), list[Exchange]()
        diloco = pccl_train.numpy.DiLoCo(
            comm, worker.parameters, on_exchange=told.append, **METHODS[method]
        )
        diloco.begin()
        while diloco.round < 4:
            worker.step()
            if comm.rank == 1 and diloco.progress == 7:
                worker.parameters["b"][2] = bad
            diloco.step()
        diloco.finish()
        assert all(np.isfinite(array).all() for array in worker.parameters.values())
        return told, outer_bytes(diloco)

    with pccl.LocalWorld(3) as world:
        results = world.run(program)
    assert len({outer for _, outer in results}) == 1
    ignored = [each for each in results[0][0] if each.ignored]
    assert ignored and all(each.ignored == (1,) for each in ignored)
    assert all(each.weights[1] == 0 and contributions(each) == 2 for each in ignored)
    assert "not finite" in caplog.text


def test_a_slower_worker_takes_fewer_steps_and_passes_every_position() -> None:
    def program(comm: pccl.Communicator) -> tuple[list[int], bytes]:
        worker, steps = Worker(comm.rank), list[int]()
        diloco = pccl_train.numpy.DiLoCo(
            comm, worker.parameters, sync_every=12, fragments=3, fragment_sync_delay=2,
            adaptive_steps=True,
        )  # fmt: skip
        diloco.begin()
        while diloco.round < 3:
            began, taken = diloco.round, 0
            while diloco.round == began:
                worker.step()
                # The speed that it announces.
                diloco._speed._seconds = 1.0 if comm.rank == 0 else 4.0
                diloco._speed.steps = 100
                diloco.step()
                taken += 1
            steps.append(taken)
        diloco.finish()
        return steps, outer_bytes(diloco)

    with pccl.LocalWorld(2) as world:
        (fast, outer), (slow, other) = world.run(program)
    assert outer == other
    assert fast == [12, 12, 12]
    assert slow[0] == 12 and slow[1:] in ([3, 3], [2, 2], [2, 3], [3, 2])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("sparse", [None, Sparse(kept=4, chunk=4, quantized=False)])
@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ((1, 2, 1000), (1 + 2 + 2) / 3),
        ((1, 3, np.nan), (1 + 2) / 2),
        ((0, 0, 3), 1),  # nobody is clipped to nothing
    ],
)
def test_the_norm_of_a_contribution_is_at_most_the_median(
    sparse: Sparse | None, moves: tuple[float, ...], expected: float
) -> None:
    def program(comm: pccl.Communicator) -> float:
        parameters = {"x": np.zeros(4, np.float32)}
        diloco = pccl_train.numpy.DiLoCo(
            comm, parameters, sync_every=1, outer=SGD(1.0), clip_to_median=True, sparse=sparse
        )
        diloco.begin()
        parameters["x"] += moves[comm.rank]
        diloco.step()
        return float(parameters["x"][0])

    with pccl.LocalWorld(3) as world:
        assert world.run(program) == [pytest.approx(expected)] * 3


@pytest.fixture
def pair() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(2) as world:
        yield world


def test_other_settings_are_a_mismatch_that_names_each_one(pair: pccl.LocalWorld) -> None:
    def settings(comm: pccl.Communicator) -> str:
        worker, codec = Worker(comm.rank), ("int8", "int4")[comm.rank]
        diloco = pccl_train.numpy.DiLoCo(
            comm, worker.parameters, sync_every=3 + comm.rank, codec=codec
        )
        with pytest.raises(pccl.Mismatch) as refusal:
            diloco.begin()
        return str(refusal.value)

    for said in pair.run(settings):
        names = {"codec=int4", "codec=int8", "sync_every=3", "sync_every=4"}
        assert set(re.findall(r'"(\w+=\w+)"', said)) == names


def test_another_model_is_a_mismatch_that_names_the_tensor(pair: pccl.LocalWorld) -> None:
    def model(comm: pccl.Communicator) -> str:
        parameters = {"same": np.zeros(2, np.float32), "x": np.zeros(3 + comm.rank, np.float32)}
        diloco = pccl_train.numpy.DiLoCo(comm, parameters, sync_every=3)
        with pytest.raises(pccl.Mismatch) as refusal:
            diloco.begin()
        return str(refusal.value)

    for text in pair.run(model):
        assert '"x" is f32[3] on rank 0' in text and "f32[4] on rank 1" in text


def test_a_world_may_shrink_to_one_and_grow_again() -> None:
    def train_on(
        comm: pccl.Communicator, number: int, goes_on: Callable[[pccl_train.Rounds], bool]
    ) -> Any:
        worker = Worker(number)
        diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, sync_every=2)
        diloco.begin()
        while goes_on(diloco):
            worker.step()
            diloco.step()
        diloco.finish()
        diloco.detach()
        return outer_bytes(diloco)

    def program(comm: pccl.Communicator, entry: Entry) -> Any:
        if comm.rank == 1:
            left = train_on(comm, 1, lambda diloco: diloco.round < 2)
            comm.close()
            return left

        def goes_on(diloco: pccl_train.Rounds) -> bool:
            if diloco.round == 4:
                assert diloco.world_size == 1
                entry.call()
            return diloco.round < 4 or entry.goes_on(diloco)

        return train_on(comm, 0, goes_on)

    def newcomer(comm: pccl.Communicator, entry: Entry) -> Any:
        return train_on(comm, 2, lambda diloco: entry.goes_on(diloco, newcomer=True))

    alone, left, came = with_a_newcomer(program, newcomer, more=6, size=2)
    assert alone == came != left


def test_newcomers_that_the_program_itself_lets_in_are_an_error_that_says_so() -> None:
    with pccl.LocalWorld(2) as world:
        newcomer = pccl.connect(world.coordinator.token, bind="127.0.0.1:0")
        entering = threading.Thread(target=newcomer.admit)
        entering.start()

        def program(comm: pccl.Communicator) -> None:
            worker = Worker(comm.rank)
            diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, sync_every=1)
            diloco.begin()
            while comm.world_size == 2:
                comm.admit(together=True)
            with pytest.raises(pccl.InvalidUsage, match=r"admit\(\), which let in"):
                diloco.step()

        world.run(program)
        entering.join()
        newcomer.close()


@pytest.mark.parametrize("counted", [3, 2])
def test_contributions_are_clipped_and_their_sum_has_the_noise_that_was_asked_for(
    counted: int,
) -> None:
    """A contribution that is not finite has no part in the noise."""
    count = 40_000
    # The norms of 40,000 elements are 200, 0 and 600.
    rows = (1.0, 0.0 if counted == 3 else np.nan, 3.0)

    def program(comm: pccl.Communicator) -> np.ndarray:
        parameters = {"x": np.zeros(count, np.float32)}
        diloco = pccl_train.numpy.DiLoCo(
            comm, parameters, sync_every=1, outer=SGD(1.0), weights="equal",
            privacy=Privacy(clip=100.0, noise=0.3),
        )  # fmt: skip
        diloco.begin()
        parameters["x"] += rows[comm.rank]
        diloco.step()
        return parameters["x"].copy()

    with pccl.LocalWorld(3) as world:
        first, second, third = world.run(program)
    assert first.tobytes() == second.tobytes() == third.tobytes()
    # Two are clipped to a norm of 100: 0.5 an element. The noise of the sum is 0.3 * 100.
    assert first.mean() == pytest.approx((0.5 + 0 + 0.5) / counted, abs=0.3)
    assert first.std() == pytest.approx(0.3 * 100 / counted, rel=0.03)


class Lying(pccl_train.numpy.DiLoCo):
    """Rank 1 announces what it is told to, and may send a piece that is none. `announced` has what
    the worker itself would say."""

    lie: tuple[float, float, float] | None = None
    forges = False
    announced: list[float]

    def _announce(self, fragment: Any) -> None:
        comm = self._open()
        real = comm.all_gather

        def lying(array: Any, out: Any, **options: Any) -> Any:
            self.announced = array.tolist()
            if self.lie is not None:
                array[:] = self.lie
            return real(array, out, **options)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(comm, "all_gather", lying)
            super()._announce(fragment)

    def _send(self, fragment: Any, flight: Any, scale: float) -> None:
        comm = self._open()
        real = comm.all_gather

        def forging(array: Any, out: Any, **options: Any) -> Any:
            # Otherwise a part of a lost worker's piece would come, and be taken for a whole one.
            assert options["recovery"] == "restart"
            if self.forges:
                array[:] = 0xFF
            return real(array, out, **options)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(comm, "all_gather", forging)
            super()._send(fragment, flight, scale)


LIES: list[Any] = [
    (np.nan, 1, 1), (-5, 1, 1), (np.inf, 1, 1), (1, -1, 1), (1, 1, np.nan), (1e-12, 1, 1),
    (1e16, 1, 1), "forged",
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_announcements_and_pieces_that_no_honest_worker_sends_count_nothing(lie: Any) -> None:
    sparse: dict[str, Any] = {"sparse": Sparse(kept=3, chunk=10, decay=0.0, quantized=False)}

    def program(comm: pccl.Communicator) -> tuple[bytes, Exchange | None]:
        parameters = {"x": np.zeros(20, np.float32)}
        settings: dict[str, Any] = sparse if lie == "forged" else {}
        diloco = Lying(comm, parameters, sync_every=1, outer=SGD(1.0), **settings)
        diloco.begin()
        if comm.rank == 1:
            diloco.forges, diloco.lie = lie == "forged", None if lie == "forged" else lie
        parameters["x"] += (2, 1000, 4)[comm.rank]
        diloco.step()
        return parameters["x"].tobytes(), diloco.last_exchange

    with pccl.LocalWorld(3) as world:
        results = world.run(program)
    assert len({bytes_of for bytes_of, _ in results}) == 1
    values = np.frombuffer(results[0][0], np.float32)
    sent = values[values != 0]
    np.testing.assert_allclose(sent, 3, rtol=1e-6)
    assert sent.size == (2 * 3 if lie == "forged" else 20)
    for _, told in results:
        assert told is not None and told.ignored == (1,)
        assert told.weights[1] == 0


def test_a_private_worker_announces_no_norm_and_gives_no_optimizer() -> None:
    parameters = {"x": np.zeros(4, np.float32)}
    settings: dict[str, Any] = {"weights": "equal", "privacy": Privacy(clip=1.0, noise=1.0)}
    asked: list[bool] = []

    class Giving(Lying):
        def _gift(self, *, with_optimizer: bool) -> bytes:
            asked.append(with_optimizer)
            return b""

    with pccl.LocalWorld(1) as world:
        diloco = Giving(world.comms[0], parameters, sync_every=2, **settings)
        diloco.begin()
        for _ in range(2):
            parameters["x"] += 5
            diloco.step()
        weight, squares, _ = diloco.announced
        assert (weight, squares) == (1.0, 0.0)
        assert diloco.last_exchange is not None and diloco.last_exchange.norm == 20
        ignore = SimpleNamespace(recv=lambda x, *_, **__: x.fill(1), send=lambda *_, **__: None)
        diloco._give_to(ignore, world.comms[0].peer_id)  # type: ignore[arg-type]
    assert asked == [False]
    shared = rounds.Buffers(diloco._replica, ("x",), ())
    with pytest.raises(pccl.InvalidArgument, match="with privacy"):
        rounds.Rounds(diloco._replica, diloco.method, buffers=shared)


@pytest.mark.parametrize("point", ["_safe_point", "_share_buffers"])
def test_what_failed_at_a_position_is_due_again_after_the_next_step(point: str) -> None:
    """All members fail alike at the end of a round, and enter the run again."""

    class Failing(pccl_train.numpy.DiLoCo):
        fails = False

        def _fail_once(self, function: Callable[[], None]) -> None:
            fails, self.fails = self.fails, False
            if fails:
                raise pccl.Aborted("once")
            function()

        def _safe_point(self) -> None:
            self._fail_once(super()._safe_point)

        def _share_buffers(self) -> None:
            self._fail_once(super()._share_buffers)

    def program(comm: pccl.Communicator) -> tuple[list[float], bytes]:
        worker, told = Worker(comm.rank), list[Exchange]()
        diloco = Failing(comm, worker.parameters, sync_every=3, on_exchange=told.append)
        if point == "_safe_point":
            diloco._share_buffers = lambda: None  # type: ignore[method-assign]
        else:
            diloco._safe_point = lambda: None  # type: ignore[method-assign]
        diloco.begin()
        for step in range(4):
            worker.step()
            diloco.fails = step == 2
            if step == 2:
                with pytest.raises(pccl.Aborted):
                    diloco.step()
                assert diloco.progress == 2
                diloco.attach(comm)
                diloco.begin()
            else:
                diloco.step()
        assert diloco.progress == 3 and diloco.position == 0
        diloco.detach()
        return [each.weights[0] for each in told], outer_bytes(diloco)

    with pccl.LocalWorld(2) as world:
        first, second = world.run(program)
    assert first == second
    # Where the exchange had ended, the second one has the step that followed.
    assert first[0] == ([4.0] if point == "_safe_point" else [3.0, 1.0])


def test_an_announcement_that_all_give_up_is_repeated_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(pccl_train.numpy.DiLoCo):
        failures: list[pccl.PcclError]

        def _gather(self, fragment: Any, own: Any, table: Any) -> Any:
            work = super()._gather(fragment, own, table)
            if not self.failures:
                return work
            work.wait()
            failure = self.failures.pop()

            def wait() -> None:
                raise failure

            return SimpleNamespace(wait=wait, done=lambda: True)

    def program(comm: pccl.Communicator, failures: list[pccl.PcclError]) -> bytes:
        worker = Worker(comm.rank)
        diloco = Failing(comm, worker.parameters, sync_every=2, name=f"{len(failures)}")
        diloco.failures = failures
        diloco.begin()
        for _ in range(2):
            worker.step()
            diloco.step()
        diloco.detach()
        return outer_bytes(diloco)

    once = pccl.DeadlineExceeded("once")
    with pccl.LocalWorld(2) as world:
        undisturbed = world.run(lambda comm: program(comm, []))
        assert world.run(lambda comm: program(comm, [once])) == undisturbed
        assert "an announcement is repeated" in caplog.text
        with pytest.raises(pccl.DeadlineExceeded):
            world.run(lambda comm: program(comm, [once, once]))
