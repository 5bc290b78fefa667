"""Rounds of the family, in worlds of threads: what must be equal to what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pccl_train.numpy
import pytest
from pccl_train import SGD, Nesterov, Sparse
from problems import Worker, distance, train

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
