"""A training that goes on from its checkpoints, also with exchanges under way."""

from __future__ import annotations

import copy
from pathlib import Path
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
    """All that a program would write down, through a file."""

    def __init__(self, worker: Worker, diloco: pccl_train.Rounds, path: Path) -> None:
        diloco.save(path)
        self.path = path
        self.random = copy.deepcopy(worker.random)


def train(
    comm: pccl.Communicator,
    method: str,
    saved: Saved | None,
    until: int,
    save_at: int = 0,
    folder: Path = Path(),
) -> tuple[bytes, bytes, Saved | None]:
    worker = Worker(comm.rank)
    if saved is not None:
        worker.random = copy.deepcopy(saved.random)
    diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, **METHODS[method])
    if saved is not None:
        diloco.load(saved.path)
    diloco.begin()
    kept = None
    while diloco.progress < until:
        worker.step()
        diloco.step()
        if diloco.progress == save_at:
            kept = Saved(worker, diloco, folder / f"{comm.rank}.npz")
    diloco.finish()
    return outer_bytes(diloco), worker.bytes(), kept


@pytest.mark.parametrize("at", range(10, 17))
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_resumed_has_the_bytes_of_one_that_went_on(
    method: str, at: int, tmp_path: Path
) -> None:
    """Codecs that rotate draw signs from epoch, tag and sequence: e3m0 is here without."""
    with pccl.LocalWorld(2) as world:
        whole = world.run(lambda comm: train(comm, method, None, 30, at, tmp_path))
    with pccl.LocalWorld(2) as world:
        resumed = world.run(lambda comm: train(comm, method, whole[comm.rank][2], 30))
    for went_on, came_back in zip(whole, resumed, strict=True):
        assert went_on[0] == came_back[0]
        assert went_on[1] == came_back[1]


@pytest.mark.parametrize("others", [1, 2])
def test_one_checkpoint_with_a_result_under_way_reaches_all(others: int, tmp_path: Path) -> None:
    """Two exchanges are under way at 14; they land at 15 and at 17."""
    landed: list[dict[int, bytes]] = []

    def program(comm: pccl.Communicator, saved: Saved | None, until: int) -> Saved | None:
        worker, kept, seen = Worker(comm.rank), None, dict[int, bytes]()
        diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, **METHODS["streaming"])
        if saved is not None:
            diloco.load(saved.path)
        diloco.begin()
        seen[diloco.progress] = outer_bytes(diloco)
        while diloco.progress < until:
            worker.step()
            diloco.step()
            seen[diloco.progress] = outer_bytes(diloco)
            if diloco.progress == 14:
                kept = Saved(worker, diloco, tmp_path / f"{comm.rank}.npz")
        landed.append(seen)
        diloco.detach()
        return kept

    with pccl.LocalWorld(1 + others) as world:
        saved = world.run(lambda comm: program(comm, None, 18))[0]
    whole = landed.pop()
    landed.clear()
    with pccl.LocalWorld(1 + others) as world:
        world.run(lambda comm: program(comm, saved if comm.rank == 0 else None, 18))
    assert [seen[17] for seen in landed] == [whole[17]] * (1 + others)


def test_the_one_that_is_furthest_gives_its_outer_parameters_to_all() -> None:
    """Its exchanges have ended, and the other one's that was under way is over, too."""
    settings: dict[str, Any] = {"sync_every": 4, "fragment_sync_delay": 2}
    saved_at = (5, 7)  # an exchange begins at 4, and ends at 6

    def program(comm: pccl.Communicator, saved: Any, until: int) -> tuple[Any, str, str]:
        worker, kept = Worker(comm.rank), None
        diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, **settings)
        if saved is not None:
            diloco.load_state_dict(saved)
        diloco.begin()
        began = diloco.digest()
        while diloco.progress < until:
            before = diloco.progress
            worker.step()
            diloco.step()
            assert diloco.progress == before + 1
            if diloco.progress == saved_at[comm.rank]:
                kept = diloco.state_dict(), diloco.digest()
        diloco.finish()
        return kept, began, diloco.digest()

    with pccl.LocalWorld(2) as world:
        states = [kept for kept, _, _ in world.run(lambda comm: program(comm, None, 12))]
    # It had let a newcomer in, and the other one took fewer steps a round.
    states[1][0]["clock"][2] = 1
    states[0][0]["steps"] = [1, 2]
    for until in (7, 12):
        with pccl.LocalWorld(2) as world:
            (_, first, ended), (_, second, ended_too) = world.run(
                lambda comm: program(comm, states[comm.rank][0], until)  # noqa: B023
            )
        assert first == second == states[1][1]
        assert ended == ended_too and (ended == first) == (until == 7)


def test_a_slower_worker_goes_on_in_the_middle_of_its_round() -> None:
    """At position 4 of 12 it has taken one step of three, and the other one four of 12."""

    weights: list[list[Any]] = [[], []]

    def program(comm: pccl.Communicator, saved: Any) -> tuple[Any, list[int], bytes]:
        worker, kept, ends = Worker(comm.rank), None, list[int]()
        diloco = pccl_train.numpy.DiLoCo(
            comm, worker.parameters, sync_every=12, adaptive_steps=True,
            on_exchange=lambda told: weights[comm.rank].append(told.weights),
        )  # fmt: skip
        if saved is not None:
            diloco.load_state_dict(saved[0])
            worker.random = copy.deepcopy(saved[1])
        diloco.begin()
        while diloco.round < 3:
            worker.step()
            # The speed that it announces; the time of this step is nothing beside it.
            diloco._speed.steps, diloco._speed._seconds = 100, (1e4, 3.5e4)[comm.rank]
            diloco.step()
            ends.append(diloco.progress)
            if diloco.progress == 16:
                kept = diloco.state_dict(), copy.deepcopy(worker.random)
        return kept, ends, outer_bytes(diloco)

    with pccl.LocalWorld(2) as world:
        whole = world.run(lambda comm: program(comm, None))
    with pccl.LocalWorld(2) as world:
        again = world.run(lambda comm: program(comm, whole[comm.rank][0]))
    assert [ends for _, ends, _ in again] == [[*range(17, 37)], [20, 24, 28, 32, 36]]
    # Three exchanges, and two of the run that is resumed; with the steps of before it was saved.
    assert weights == [[(12, 12), (12, 3), (12, 3), (12, 3), (12, 3)]] * 2
    for (_, ends, outer), (_, ends_again, outer_again) in zip(whole, again, strict=True):
        assert outer == outer_again and ends[-len(ends_again) :] == ends_again


def test_the_checkpoint_of_another_training_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    with pccl.LocalWorld(1) as world:
        (whole,) = world.run(lambda comm: train(comm, "streaming", None, 10, 7, tmp_path))
        (comm,) = world.comms
        assert whole[2] is not None
        worker = Worker(0)
        diloco = pccl_train.numpy.DiLoCo(comm, worker.parameters, sync_every=5, name="other")
        before = outer_bytes(diloco)
        with pytest.raises(
            pccl.InvalidArgument, match="sync_every=6.*fragments=3.*sync_every=5.*fragments=1"
        ):
            diloco.load(whole[2].path)
        assert outer_bytes(diloco) == before and diloco.progress == 0
        diloco.begin()
        with pytest.raises(pccl.InvalidUsage, match="before"):
            diloco.load_state_dict(diloco.state_dict())


def test_a_worker_that_has_left_is_saved_without_the_losses_of_its_codec(tmp_path: Path) -> None:
    """It may begin with them; in another group it has others."""
    diloco = pccl_train.numpy.DiLoCo(None, {"x": np.ones(9, np.float32)}, **METHODS["coded"])
    for _ in range(2):
        assert diloco.state_dict()["fragments"][0]["feedback"] is None
        with pccl.LocalWorld(1) as world:
            diloco.attach(world.comms[0])
            diloco.begin()
            assert diloco.state_dict()["fragments"][0]["feedback"] is not None
            diloco.detach()


def test_a_file_that_is_no_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    diloco = pccl_train.numpy.DiLoCo(None, {"x": np.zeros(3, np.float32)}, sync_every=5)
    for content in (b"", b"no archive", b"PK\x03\x04"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(pccl.InvalidArgument, match="bad.npz"):
            diloco.load(tmp_path / "bad.npz")
    with pytest.raises(FileNotFoundError):
        diloco.load(tmp_path / "nothing.npz")


def test_a_save_that_fails_leaves_the_file_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diloco = pccl_train.numpy.DiLoCo(None, {"x": np.zeros(3, np.float32)}, sync_every=5)
    path = tmp_path / "kept.npz"
    diloco.save(path)
    before = path.read_bytes()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OSError, match="no space"):
        diloco.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
