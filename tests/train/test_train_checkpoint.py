"""A training that goes on from its checkpoints, also with exchanges under way."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pccl_train.numpy
import pytest
from pccl_train import SGD, Nesterov, Sparse
from problems import Worker, outer_bytes

import pccl_py as pccl

METHODS: dict[str, dict[str, Any]] = {
    "streaming": {
        "sync_every": 6, "fragments": 3, "fragment_sync_delay": 3, "fragment_update_alpha": 0.25,
        "outer": Nesterov(0.5, 0.5),
    },
    "delayed": {"sync_every": 5, "fragment_sync_delay": 5, "outer": SGD(0.5)},
    "eager": {
        "sync_every": 5, "fragment_sync_delay": 5, "outer": Nesterov(0.3, 0.5), "eager": True,
    },
    "sparse": {"sync_every": 3, "outer": SGD(0.7), "sparse": Sparse(kept=4, chunk=16)},
    "coded": {
        "sync_every": 3, "codec": pccl.Codec("e3m0", rotate=False), "error_feedback": True,
        "outer": "adam",
    },
}  # fmt: skip


class Saved:
    """All that a program would write down."""

    def __init__(self, worker: Worker, diloco: pccl_train.Rounds) -> None:
        self.state = diloco.state_dict()
        self.parameters = copy.deepcopy(worker.parameters)
        self.random = copy.deepcopy(worker.random)


def train(
    comm: pccl.Communicator, method: str, saved: Saved | None, until: int, save_at: int = 0
) -> tuple[bytes, bytes, Saved | None]:
    worker = Worker(comm.rank)
    if saved is not None:
        worker.parameters, worker.random = copy.deepcopy((saved.parameters, saved.random))
    diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, **METHODS[method])
    if saved is not None:
        diloco.load_state_dict(saved.state)
    diloco.begin()
    kept = None
    while diloco.progress < until:
        worker.step()
        diloco.step()
        if diloco.progress == save_at:
            kept = Saved(worker, diloco)
    diloco.finish()
    return outer_bytes(diloco), worker.bytes(), kept


@pytest.mark.parametrize("at", range(10, 17))
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_resumed_has_the_bytes_of_one_that_went_on(method: str, at: int) -> None:
    """Codecs that rotate draw signs from epoch, tag and sequence: e3m0 is here without."""
    with pccl.LocalWorld(2) as world:
        whole = world.run(lambda comm: train(comm, method, None, 30, at))
    with pccl.LocalWorld(2) as world:
        resumed = world.run(lambda comm: train(comm, method, whole[comm.rank][2], 30))
    for went_on, came_back in zip(whole, resumed, strict=True):
        assert went_on[0] == came_back[0]
        assert went_on[1] == came_back[1]


def test_one_without_a_checkpoint_receives_what_another_one_has() -> None:
    with pccl.LocalWorld(2) as world:
        whole = world.run(lambda comm: train(comm, "streaming", None, 30, 14))
    with pccl.LocalWorld(2) as world:
        resumed = world.run(
            lambda comm: train(comm, "streaming", whole[1][2] if comm.rank else None, 30)
        )
    assert resumed[0][0] == resumed[1][0]
    assert not np.isnan(np.frombuffer(resumed[0][0], np.float32)).any()


def test_the_checkpoint_of_another_training_is_refused_and_changes_nothing() -> None:
    with pccl.LocalWorld(1) as world:
        (whole,) = world.run(lambda comm: train(comm, "streaming", None, 10, 7))
        (comm,) = world.comms
        assert whole[2] is not None
        worker = Worker(0)
        diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, sync_every=5, name="other")
        before = outer_bytes(diloco)
        with pytest.raises(pccl.InvalidArgument, match="H=6 P=3.*H=5 P=1"):
            diloco.load_state_dict(whole[2].state)
        assert outer_bytes(diloco) == before and diloco.progress == 0
        diloco.begin()
        with pytest.raises(pccl.InvalidUsage, match="before"):
            diloco.load_state_dict(diloco.state_dict())
