"""Rounds of the family, in worlds of threads: what must be equal to what."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pccl_train.numpy
import pytest
from pccl_train import SGD, Exchange, Nesterov, Sparse, rounds
from problems import Worker, distance, outer_bytes, train

import pccl_py as pccl


@pytest.fixture
def world() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(3) as made:
        yield made


@pytest.fixture
def alone() -> Iterator[pccl.LocalWorld]:
    with pccl.LocalWorld(1) as made:
        yield made


METHODS: dict[str, dict[str, Any]] = {
    "diloco": {"sync_every": 4},
    "streaming": {
        "sync_every": 6, "fragments": 3, "fragment_sync_delay": 2, "fragment_update_alpha": 0.5,
    },
    "in flight together": {"sync_every": 6, "fragments": 3, "fragment_sync_delay": 5},
    # A momentum of 0.9 on what is a round old is unstable where a round goes far.
    "delayed": {"sync_every": 4, "fragment_sync_delay": 4, "outer": Nesterov(0.5, 0.3)},
    "eager": {"sync_every": 4, "fragment_sync_delay": 4, "eager": True, "outer": SGD(0.7)},
    "sparse": {"sync_every": 4, "outer": SGD(0.7), "sparse": Sparse(kept=4, chunk=16)},
    "coded": {"sync_every": 4, "codec": "int4", "error_feedback": True},
    "adam": {"sync_every": 4, "outer": "adam"},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_all_members_have_the_same_outer_parameters_and_they_fit(
    world: pccl.LocalWorld, name: str
) -> None:
    trained = train(world, 40, name=name, **METHODS[name])
    for each in trained:
        assert each.diloco.round == 40
        assert distance(each.diloco) < 0.3
        # Afterwards the worker has them, too.
        assert each.worker.bytes() == each.outer


def test_a_training_has_nothing_of_what_another_has_lost(world: pccl.LocalWorld) -> None:
    """Both have a codec on the same tags of the group, and one has error feedback."""
    train(world, 4, name="coded", **METHODS["coded"])
    trained = train(world, 40, name="after", sync_every=6, codec="int8", fragments=3)
    assert distance(trained[0].diloco) < 0.3


# ---- equalities of the family ------------------------------------------------------------------


def test_one_inner_step_of_sgd_and_a_plain_outer_step_are_data_parallel_sgd(
    world: pccl.LocalWorld,
) -> None:
    """H = 1, outer SGD(1): the averaged pseudo-gradient is the rate times the averaged gradient."""
    trained = train(world, 25, name="data parallel", sync_every=1, outer=SGD(1.0))
    workers = [Worker(rank) for rank in range(3)]
    parameters = workers[0].parameters
    for _ in range(25):
        for worker in workers:
            worker.parameters = parameters
        gradients = [worker.gradients() for worker in workers]
        parameters = {
            name: value - 0.05 * np.mean([each[name] for each in gradients], axis=0)
            for name, value in parameters.items()
        }
    for name, value in trained[0].diloco.outer_parameters.items():
        np.testing.assert_allclose(value, parameters[name], rtol=1e-5, atol=1e-6)


def test_diloco_is_what_the_paper_says(world: pccl.LocalWorld) -> None:
    """Against the algorithm in f64, with PyTorch's form of Nesterov."""
    trained = train(world, 10, name="paper", sync_every=3)
    workers = [Worker(rank) for rank in range(3)]
    outer = {name: value.astype(np.float64) for name, value in workers[0].parameters.items()}
    velocity = {name: np.zeros_like(value) for name, value in outer.items()}
    for _ in range(10):
        for worker in workers:
            worker.parameters = {name: np.array(value, np.float32) for name, value in outer.items()}
            for _ in range(3):
                worker.step()
        for name in outer:
            gradient = np.mean([outer[name] - each.parameters[name] for each in workers], axis=0)
            velocity[name] = 0.9 * velocity[name] + gradient
            outer[name] = outer[name] - 0.7 * (gradient + 0.9 * velocity[name])
    for name, value in trained[0].diloco.outer_parameters.items():
        np.testing.assert_allclose(value, outer[name], rtol=1e-4, atol=1e-5)


def test_streaming_with_one_fragment_and_no_delay_is_diloco(world: pccl.LocalWorld) -> None:
    whole = train(world, 12, name="whole", sync_every=5)
    names = (("w", "b", "scale"),)
    one = train(world, 12, name="one", sync_every=5, fragments=names, fragment_update_alpha=0.0)
    assert whole[0].outer == one[0].outer


def test_fragments_without_a_delay_are_each_a_diloco(world: pccl.LocalWorld) -> None:
    """Each tensor by itself: its rounds end elsewhere, its arithmetic is that of a whole model of
    this tensor alone, which other tensors of the worker do not change."""

    def program(comm: pccl.Communicator) -> tuple[bytes, bytes]:
        results = []
        for fragments in ((("a",), ("b",)), (("a",),), (("b",),)):
            parameters = {n: np.full(40, 2.0, np.float32) for names in fragments for n in names}
            diloco = pccl_train.numpy.DiLoCo(
                comm, parameters, name=f"{fragments}", sync_every=4, fragments=fragments,
                outer=SGD(0.5),
            )  # fmt: skip
            diloco.begin()
            # The fragments of two begin at positions 2 and 4, one alone at 4.
            shift = 2 if fragments == (("a",),) else 0
            for step in range(shift, shift + 16):
                for name, value in parameters.items():
                    own = np.random.default_rng((step - shift, comm.rank, ord(name)))
                    value -= 0.1 * value * own.random(40, np.float32)
                diloco.step()
            results.append({n: v.copy() for n, v in diloco.outer_parameters.items()})
            diloco.detach()
        together, first, second = results
        assert together["b"].tobytes() == second["b"].tobytes()
        return together["a"].tobytes(), first["a"].tobytes()

    assert len(set(world.run(program))) == 1


def test_eager_updates_of_one_worker_are_diloco(alone: pccl.LocalWorld) -> None:
    """To the bit, where the worker then begins; the shared ones come a round later."""
    one = train(alone, 9, name="eager", sync_every=4, fragment_sync_delay=4, eager=True)
    two = train(alone, 9, name="plain", sync_every=4)
    assert one[0].outer == two[0].outer


def test_a_delayed_worker_begins_where_the_outer_parameters_were_a_round_ago(
    alone: pccl.LocalWorld,
) -> None:
    """Against the recurrence in f64: the result of round k is used after round k + 1."""
    trained = train(
        alone, 9, name="delayed", sync_every=3, fragment_sync_delay=3, outer=Nesterov(0.5, 0.3)
    )
    worker = Worker(0)
    outer = {name: value.astype(np.float64) for name, value in worker.parameters.items()}
    velocity = {name: np.zeros_like(value) for name, value in outer.items()}
    waiting: dict[str, np.ndarray] | None = None
    for _ in range(9):
        for _ in range(3):
            worker.step()
        gradient = {name: outer[name] - worker.parameters[name] for name in outer}
        for name, value in (waiting or {}).items():
            velocity[name] = 0.3 * velocity[name] + value
            outer[name] = outer[name] - 0.5 * (value + 0.3 * velocity[name])
            worker.parameters[name][...] = outer[name]
        waiting = gradient
    for name, value in (waiting or {}).items():
        velocity[name] = 0.3 * velocity[name] + value
        outer[name] = outer[name] - 0.5 * (value + 0.3 * velocity[name])
    for name, value in trained[0].diloco.outer_parameters.items():
        np.testing.assert_allclose(value, outer[name], rtol=1e-4, atol=1e-5)


def test_sparse_pieces_that_keep_everything_are_diloco_with_plain_outer_steps(
    world: pccl.LocalWorld,
) -> None:
    whole = Sparse(kept=16, chunk=16, quantized=False, decay=1.0)
    sparse = train(world, 12, name="all", sync_every=4, outer=SGD(0.7), sparse=whole)
    dense = train(world, 12, name="dense", sync_every=4, outer=SGD(0.7))
    for name, value in sparse[0].diloco.outer_parameters.items():
        expected = dense[0].diloco.outer_parameters[name]
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_what_sparse_pieces_leave_decays_and_is_sent_later(alone: pccl.LocalWorld) -> None:
    parameters = {"x": np.zeros(2, np.float32)}
    sparse = Sparse(kept=1, chunk=2, decay=0.5, quantized=False)
    diloco = pccl_train.numpy.DiLoCo(
        alone.comms[0], parameters, sync_every=1, outer=SGD(1.0), sparse=sparse
    )
    diloco.begin()
    parameters["x"] -= (4, 1)
    diloco.step()
    assert parameters["x"].tolist() == [-4, 0]
    for left in (-0.5, -0.5):
        diloco.step()
        assert parameters["x"].tolist() == [-4, left]


def test_a_sparse_average_is_that_of_the_workers_that_sent_the_element(
    world: pccl.LocalWorld,
) -> None:
    moves = [[8, 0, 1, 0], [0, 4, 0, 0], [2, 0, 0, 0]]  # the 1 is not sent
    tokens = [1.0, 3.0, 3.0]
    sparse = Sparse(kept=1, chunk=4, quantized=False)

    def program(comm: pccl.Communicator) -> list[float]:
        parameters = {"x": np.zeros(4, np.float32)}
        diloco = pccl_train.numpy.DiLoCo(
            comm, parameters, name="senders", sync_every=1, outer=SGD(1.0), sparse=sparse
        )
        diloco.begin()
        parameters["x"] += moves[comm.rank]
        diloco.step(tokens[comm.rank])
        diloco.detach()
        return parameters["x"].tolist()

    for found in world.run(program):
        assert found == pytest.approx([(8 + 3 * 2) / 4, 4, 0, 0])


def test_the_norm_of_a_contribution_is_that_of_all_tensors(alone: pccl.LocalWorld) -> None:
    parameters = {name: np.zeros(1, np.float32) for name in "ab"}
    diloco = pccl_train.numpy.DiLoCo(alone.comms[0], parameters, sync_every=1)
    diloco.begin()
    parameters["a"] += 3
    parameters["b"] += 4
    diloco.step()
    assert diloco.last_exchange is not None and diloco.last_exchange.norm == 5


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_worker_alone_takes_the_outer_parameters_if_its_own_are_not_finite(
    alone: pccl.LocalWorld,
) -> None:
    parameters = {"x": np.ones(3, np.float32)}
    diloco = pccl_train.numpy.DiLoCo(
        alone.comms[0], parameters, sync_every=1, fragment_update_alpha=0.5
    )
    diloco.begin()
    parameters["x"][1] = np.nan
    diloco.step()
    assert parameters["x"].tolist() == [1, 1, 1]


def test_a_codec_makes_contributions_shorter(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> list[int]:
        sent = list[int]()
        for codec in ("none", "int8", "int4"):
            diloco = pccl_train.numpy.DiLoCo(
                comm, {"x": np.zeros(40_000, np.float32)}, sync_every=1, codec=codec, name=codec
            )
            diloco.begin()
            diloco.step()
            assert diloco.last_exchange is not None
            sent.append(diloco.last_exchange.bytes_sent)
            diloco.detach()
        return sent

    for none, int8, int4 in world.run(program):
        assert none > 3 * int8 and int8 > 1.5 * int4


def test_eager_updates_move_by_the_share_of_this_worker(world: pccl.LocalWorld) -> None:
    def program(comm: pccl.Communicator) -> tuple[float, float]:
        parameters = {"x": np.zeros(1, np.float32)}
        settings: dict[str, Any] = {
            "sync_every": 1, "fragment_sync_delay": 1, "eager": True, "outer": SGD(1.0),
        }  # fmt: skip
        diloco = pccl_train.numpy.DiLoCo(comm, parameters, **settings)
        diloco.begin()
        for _ in range(2):
            parameters["x"] -= 4
            diloco.step((1, 3, 4)[comm.rank])
        state = diloco.state_dict()
        again = pccl_train.numpy.DiLoCo(None, {"x": np.zeros(1, np.float32)}, **settings)
        again.load_state_dict(state)
        diloco.detach()
        return float(parameters["x"][0]), again.state_dict()["share"]

    # The first time no share is known, so it is a third. The result of all is 4 less.
    shares = (1 / 8, 3 / 8, 4 / 8)
    for (own, kept), share in zip(world.run(program), shares, strict=True):
        assert own == pytest.approx(-4 - share * 4) and kept == share


def test_the_result_of_an_exchange_is_saved_whole() -> None:
    told = Exchange(
        round=1, fragment=0, members=("a",), weights=(1.0,), lost=(), ignored=(), norm=1.0,
        waited=0.5, seconds=1.5, bytes_sent=1, bytes_received=2, outcome=None,
    )  # fmt: skip
    scales = [(slice(0, 1), 1.5), (slice(2, 3), 3.0)]
    arrived = rounds._Arrived(np.ones(3, np.float32), scales, 0.25, told)
    saved = rounds._saved(arrived)
    arrived.gradient.fill(9)
    found = rounds._restored(saved)
    assert found is not None and found.gradient.tolist() == [1, 1, 1]
    assert (found.scales, found.alpha, found.told) == (scales, 0.25, told)


def test_a_contribution_that_came_in_part_is_lost() -> None:
    """A sum has all of it, and a sparse piece has ranges of its own. Others had no weight."""
    diloco = pccl_train.numpy.DiLoCo(None, {"x": np.zeros(4, np.float32)})
    peers = [pccl.PeerId(bytes([number] * 16)) for number in range(4)]
    whole, part, unheard, bad = peers
    roster = SimpleNamespace(members=(whole, part, unheard, bad), labels=("a", "b", "c", "d"))
    ranges = [SimpleNamespace(contributors=(whole, part)), SimpleNamespace(contributors=(whole,))]
    table = np.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [0, np.nan, 0]], np.float64)
    for pieces, lost in ((None, (1,)), (np.zeros((4, 1), np.uint8), ())):
        flight: Any = SimpleNamespace(
            announcement=SimpleNamespace(roster=roster, duration=0.5),
            table=table, pieces=pieces, round=0,
            outcome=SimpleNamespace(ranges=ranges, bytes_sent=0, bytes_received=0, duration=1.0),
            norm=1.0,
            waited=0.0,
        )  # fmt: skip
        told = diloco._told(diloco._fragments[0], flight)
        assert told.lost == lost and told.ignored == (3,) and told.seconds == 1.5


def test_each_range_is_the_average_of_the_contributions_that_are_in_it() -> None:
    x = np.zeros(4, np.float32)
    diloco = pccl_train.numpy.DiLoCo(None, {"x": x}, sync_every=1, outer=SGD(1.0))
    peers = tuple(pccl.PeerId(bytes([number] * 16)) for number in range(3))
    # By their weights, 1, 2 and 5 of 8, contributions of 8, 16 and 24 are 1, 4 and 15 of the sum.
    outcome = SimpleNamespace(
        ranges=[
            SimpleNamespace(begin=0, end=2, contributors=peers),
            SimpleNamespace(begin=2, end=3, contributors=peers[:2]),
            SimpleNamespace(begin=3, end=4, contributors=()),
        ],
        bytes_sent=0, bytes_received=0, duration=1.0,
    )  # fmt: skip
    announcement = SimpleNamespace(
        roster=SimpleNamespace(members=peers, labels=("a", "b", "c")), duration=1.0
    )
    flight: Any = rounds._Flight(
        round=0, epoch=1, gradient=np.array([20, 20, 5, 0], np.float32), norm=1.0,
        own=np.zeros(3), table=np.array([[1.0, 1, 1], [2, 1, 1], [5, 1, 1]]),
        announced=SimpleNamespace(), announcement=announcement,  # type: ignore[arg-type]
        work=SimpleNamespace(wait=lambda: outcome),  # type: ignore[arg-type]
    )  # fmt: skip
    diloco._fragments[0].flight = flight
    diloco._land(diloco._fragments[0])
    wanted = [-20, -20, -float(Fraction(1 * 8 + 2 * 16, 1 + 2)), 0]
    np.testing.assert_allclose(x, wanted, rtol=1e-6)
    assert diloco.last_exchange is not None and diloco.last_exchange.lost == (0, 1, 2)
    assert "0 of 3 workers, 0 KiB sent in 2.00 s, waited" in str(diloco.last_exchange)


@pytest.mark.parametrize(
    "settings", [{}, {"eager": True, "fragment_sync_delay": 1, "outer": SGD(1.0)}]
)
def test_an_exchange_without_a_weight_leaves_all_parameters(
    world: pccl.LocalWorld, settings: dict[str, Any]
) -> None:
    def program(comm: pccl.Communicator) -> None:
        parameters = {"x": np.zeros(3, np.float32)}
        diloco = pccl_train.numpy.DiLoCo(
            comm, parameters, sync_every=1, name=f"{settings}", **settings
        )
        diloco.begin()
        for _ in range(3):
            parameters["x"] += 1
            diloco.step(0)
        told = diloco.last_exchange
        assert told is not None and told.weights == (0, 0, 0) and told.outcome is None
        assert np.isfinite(parameters["x"]).all()
        assert not outer_bytes(diloco).strip(b"\0")
        assert diloco._fragments[0].outer.steps == 0  # by which Adam would weigh its moments
        diloco.detach()

    world.run(program)


# ---- what happens when --------------------------------------------------------------------------


def test_trainings_of_one_group_are_distinguished_by_their_names(alone: pccl.LocalWorld) -> None:
    (comm,) = alone.comms

    def training(name: str) -> pccl_train.numpy.DiLoCo:
        return pccl_train.numpy.DiLoCo(comm, {"x": np.zeros(3, np.float32)}, name=name)

    first, second = training("one"), training("two")
    first.begin()
    second.begin()
    with pytest.raises(pccl.InvalidUsage, match="already"):
        second.begin()
    with pytest.raises(pccl.InvalidUsage, match="another name"):
        training("two")
    held = second._clock_state, second._fragments[0].state
    second.detach()
    training("two").begin()
    assert None not in held  # a state that is closed only when nobody has it would be open here


def test_members_sync_only_where_a_newcomer_enters(alone: pccl.LocalWorld) -> None:
    class Counting(pccl_train.numpy.DiLoCo):
        welcomes = 0

        def _welcome(self, *, is_inside: bool) -> bool:
            self.welcomes += 1
            return super()._welcome(is_inside=is_inside)

    diloco = Counting(alone.comms[0], {"x": np.zeros(3, np.float32)}, sync_every=1)
    diloco.begin()
    for _ in range(3):
        diloco.step()
    assert diloco.welcomes == 1


def test_contributions_travel_once_all_have_announced_theirs(alone: pccl.LocalWorld) -> None:
    """Also where no other exchange begins, and the result is not yet due."""
    parameters = {"x": np.zeros(3, np.float32)}
    diloco = pccl_train.numpy.DiLoCo(
        alone.comms[0], parameters, sync_every=2, fragment_sync_delay=2
    )
    diloco.begin()
    for _ in range(2):
        diloco.step()
    flight = diloco._fragments[0].flight
    assert isinstance(flight, rounds._Flight)
    flight.announced.wait()
    diloco.step()
    assert flight.work is not None


def test_the_speed_of_a_worker_is_that_of_its_inner_steps(
    alone: pccl.LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: now))

    def takes_long(exchange: Exchange) -> None:
        nonlocal now
        now += 100

    diloco = pccl_train.numpy.DiLoCo(
        alone.comms[0], {"x": np.zeros(3, np.float32)}, sync_every=2, on_exchange=takes_long
    )
    diloco.begin()
    for seconds in (2, 4, 2, 4):
        now += seconds
        diloco.step()
    assert diloco._speed.own == 4 / 12
    flight: Any = SimpleNamespace(waited=0.0)
    for _ in range(2):
        with rounds._Waiting(flight):
            now += 3
    assert flight.waited == 6


class Failing(pccl_train.numpy.DiLoCo):
    """The operation of an exchange fails, at all members alike, as often as there are failures."""

    failures: list[pccl.PcclError]
    is_left = False  # the epoch of the exchange

    def _fail(self, flight: Any) -> None:
        failure = self.failures.pop()

        def wait() -> None:
            raise failure

        flight.work = SimpleNamespace(wait=wait)
        flight.epoch -= self.is_left

    def _reduce(self, fragment: Any, flight: Any) -> None:
        if self.failures:
            return self._fail(flight)
        return super()._reduce(fragment, flight)

    def _send(self, fragment: Any, flight: Any, scale: float) -> None:
        super()._send(fragment, flight, scale)
        if self.method.sparse is not None and self.failures:
            flight.work.wait()
            self._fail(flight)


def failing(
    world: pccl.LocalWorld, *failures: pccl.PcclError, is_left: bool = False, **settings: Any
) -> list[tuple[bytes, bytes, bytes, list[Exchange]]]:
    """The outer parameters before and after an exchange that fails, the own ones after it, and the
    exchanges up to the next one."""

    def program(comm: pccl.Communicator) -> tuple[bytes, bytes, bytes, list[Exchange]]:
        worker, told = Worker(comm.rank), list[Exchange]()
        diloco = Failing(
            comm, worker.parameters, sync_every=2, on_exchange=told.append, name=f"{failures}",
            **settings,
        )  # fmt: skip
        diloco.failures, diloco.is_left = [*failures], is_left
        diloco.begin()
        before = outer_bytes(diloco)
        for _ in range(2):
            worker.step()
            diloco.step()
        after = outer_bytes(diloco)
        own = worker.bytes()
        for _ in range(2):
            worker.step()
            diloco.step()
        diloco.detach()
        return before, after, own, told

    return world.run(program)


@pytest.mark.parametrize("error", [pccl.Aborted, pccl.DeadlineExceeded])
def test_an_exchange_that_all_give_up_is_repeated_once(
    world: pccl.LocalWorld, error: type[pccl.PcclError]
) -> None:
    undisturbed = failing(world)
    repeated = failing(world, error("once"))
    assert [each[:3] for each in repeated] == [each[:3] for each in undisturbed]
    with pytest.raises(error, match="again"):
        failing(world, error("again"), error("once"))


@pytest.mark.parametrize(
    "settings", [{"is_left": True}, {"sparse": Sparse(kept=4, chunk=16)}], ids=["left", "sparse"]
)
def test_an_exchange_that_cannot_be_repeated_leaves_all_parameters(
    world: pccl.LocalWorld, settings: dict[str, Any]
) -> None:
    """Its epoch is over, or its pieces are; the next one has the steps of both."""
    for before, after, own, told in failing(world, pccl.Aborted("once"), **settings):
        assert after == before != own
        assert told[0].outcome is None and told[0].lost == (0, 1, 2)
        assert [each.weights for each in told] == [(2.0,) * 3, (4.0,) * 3]


def test_pieces_of_an_exchange_that_is_given_up_leave_no_residual(world: pccl.LocalWorld) -> None:
    """The parameters still have their way, which the next pseudo-gradient takes from the outer."""

    def program(comm: pccl.Communicator) -> bool:
        worker = Worker(comm.rank)
        sparse = Sparse(kept=4, chunk=16)
        diloco = Failing(comm, worker.parameters, sync_every=1, sparse=sparse, name="given up")
        diloco.failures = [pccl.Aborted("once")]
        diloco.begin()
        residuals = []
        for _ in range(2):
            worker.step()
            diloco.step()
            residual = diloco._fragments[0].residual
            assert residual is not None
            residuals.append(bool(residual.any()))
        diloco.detach()
        return residuals == [False, True]

    assert world.run(program) == [True] * 3
