"""`steps` in real processes: a worker is killed and comes back, and the run ends for all alike."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pccl_train.numpy
import pytest
from pccl_train import Exchange, Turn, loop

import pccl_py as pccl

PROGRAM = """
import hashlib, os, signal, sys, threading, time
import numpy as np
import pccl_py as pccl
import pccl_train.numpy

rank, restarts = int(os.environ["RANK"]), int(os.environ["PCCL_RESTARTS"])
random = np.random.default_rng(rank)
x = random.standard_normal(2000).astype(np.float32)
lost = []
diloco = pccl_train.numpy.DiLoCo(
    None, {"x": x}, sync_every=4, fragment_sync_delay=2, codec="int8", outer="sgd",
    on_exchange=lambda exchange: lost.extend(exchange.lost),
)
DIES_AT, ENDS_AT = 21, 60
workers = []
for turn in pccl_train.steps(diloco, ENDS_AT, bind="127.0.0.1:0"):
    workers.append(turn.world_size)
    if rank == 1 and restarts == 0 and turn.step == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    # Two are not to be done before the third is back.
    while turn.step == 40 and turn.world_size == 2 and diloco.pending == 0:
        threading.Event().wait(0.02)
    x -= 0.1 * (x - 3) + 0.01 * random.standard_normal(2000).astype(np.float32)
    diloco.step()
print("end", turn.step, hashlib.blake2b(x, digest_size=8).hexdigest(), len(lost),
      workers[0], min(workers), workers[-1], bool(abs(x - 3).max() < 0.5))
"""


def test_a_worker_that_is_killed_comes_back_and_all_end_with_the_same_parameters(
    start: Any,
) -> None:
    program = start(
        "run", "-n", "3", "--restarts", "1", "--", sys.executable, "-c", PROGRAM,
        module="pccl_py.cli",
    )  # fmt: skip
    assert program.end() == 0, program.errors
    ends = re.findall(r"\[(\d)\] end (\d+) (\w+) (\d+) (\d) (\d) (\d) (\w+)", program.rest())
    assert sorted(end[0] for end in ends) == ["0", "1", "2"], program.errors
    assert len({end[2] for end in ends}) == 1
    assert all(end[1] == "59" and end[6:] == ("3", "True") for end in ends), ends
    survivors = [end for end in ends if end[0] != "1"]
    assert all(end[4:6] == ("3", "2") for end in survivors), ends


def test_a_run_that_is_started_again_goes_on_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "kept.npz"

    def run(stop_after: int = 0) -> tuple[list[int], bytes]:
        x = np.zeros(10, np.float32)
        diloco = pccl_train.numpy.DiLoCo(None, {"x": x}, sync_every=3)
        with pccl.Coordinator() as coordinator:
            options: dict[str, Any] = {"token": coordinator.token, "bind": "127.0.0.1:0"}
            seen = []
            for turn in pccl_train.steps(diloco, 12, checkpoint=file, **options):
                x += 1
                diloco.step()
                seen.append(turn.step)
                assert "of 12" in str(turn) and "1 workers" in str(turn)
                if len(seen) == stop_after:
                    break
        return seen, x.tobytes()

    whole = run()
    assert run() == ([], whole[1])  # the file is that of the end
    file.unlink()
    assert run(7)[0] == [*range(7)]
    again = run()
    # The file is that of the second round, after step 6.
    assert again[0] == [*range(6, 12)] and again[1] == whole[1]


def test_errors_that_a_run_does_not_survive_end_the_loop() -> None:
    x = np.zeros(3, np.float32)
    diloco = pccl_train.numpy.DiLoCo(None, {"x": x}, sync_every=3)
    bad: tuple[dict[str, Any], ...] = (
        {"total": -1}, {"checkpoint_every": 0}, {"patience": 0}, {"patience": float("nan")},
        {"total": 5},
    )  # fmt: skip
    for arguments in bad:
        with pytest.raises(pccl.InvalidArgument, match="total"):
            next(pccl_train.steps(diloco, **{"total": 3, **arguments}))
    with pccl.Coordinator() as coordinator:
        options: dict[str, Any] = {"token": coordinator.token, "bind": "127.0.0.1:0"}
        turns = pccl_train.steps(diloco, 6, **options)
        assert next(turns).step == 0
        with pytest.raises(ZeroDivisionError):
            turns.throw(ZeroDivisionError())
        # It has left the group, and may enter one again.
        assert [turn.step for turn in pccl_train.steps(diloco, 0, **options)] == []
    with pytest.raises(pccl.CoordinatorUnreachable):
        next(pccl_train.steps(diloco, 6, patience=1e-3, connect_timeout=0.1, **options))


@pytest.fixture
def options() -> Iterator[dict[str, Any]]:
    with pccl.Coordinator() as coordinator:
        yield {"token": coordinator.token, "bind": "127.0.0.1:0"}


class Failing(pccl_train.numpy.DiLoCo):
    """Fails in an inner step, or when it enters the run, with the errors that it is given.

    `now` is a clock, of which `run` takes 6 seconds for an inner step.
    """

    def __init__(self, *errors: pccl.PcclError | None, at_begin: pccl.PcclError | None = None):
        super().__init__(None, {"x": np.zeros(3, np.float32)}, sync_every=10)
        self.errors, self.at_begin, self.now = [*errors], at_begin, 0.0
        self.groups: list[Any] = []

    def begin(self) -> None:
        self.groups.append(self._open())
        error, self.at_begin = self.at_begin, None
        if error is not None:
            raise error
        super().begin()

    def _launch_announced(self, *, wait: bool = False) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        super()._launch_announced(wait=wait)


def run(diloco: Failing, **options: Any) -> None:
    for _ in pccl_train.steps(diloco, 10, **options):
        diloco.now += 6
        diloco.step()


@pytest.mark.parametrize("error", [pccl.Aborted, pccl.Expelled])
def test_a_worker_connects_again_after_errors_that_a_run_survives(
    error: type[pccl.PcclError], options: dict[str, Any]
) -> None:
    diloco = Failing(None, error("in a step"), at_begin=error("at first"))
    run(diloco, **options)
    assert diloco.progress == 10 and len(diloco.groups) == 3
    for group in diloco.groups:  # it has left each of them
        with pytest.raises(pccl.InvalidUsage, match="closed"):
            group.admit()
    with pytest.raises(pccl.InvalidUsage, match="of a program"):
        run(Failing(pccl.InvalidUsage("of a program")), **options)


def test_patience_begins_anew_with_each_step_that_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Each turn takes 6 seconds: it lasts for one that fails, and not for two that follow."""
    error = pccl.Aborted("again")
    diloco = Failing(None, None, error, None, None, None, error, error)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: diloco.now))
    with pytest.raises(pccl.Aborted):
        run(diloco, patience=10.0, **options)
    assert diloco.now == 8 * 6


def test_checkpoints_are_written_after_so_many_rounds(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    class Saving(pccl_train.numpy.DiLoCo):
        def save(self, path: Any) -> None:
            saved.append((self.round, self.position))
            super().save(path)

    # An exchange under way has as many steps as its delay says before a checkpoint waits for it.
    for total, delay, written in (
        (8, 0, [(2, 0), (4, 0)]), (14, 0, [(6, 0), (7, 0)]), (6, 1, [(2, 1), (3, 0)]),
    ):  # fmt: skip
        saved = list[tuple[int, int]]()
        x = {"x": np.zeros(3, np.float32)}
        diloco = Saving(None, x, sync_every=2, fragment_sync_delay=delay)
        turns = pccl_train.steps(
            diloco, total, checkpoint=tmp_path / f"{delay}.npz", checkpoint_every=2, **options
        )
        for _ in turns:
            diloco.step()
        assert saved == written


@pytest.mark.parametrize(("every", "turns"), [(3, 100), (200, 200)])
def test_turns_that_count_no_inner_step_are_an_error(
    every: int, turns: int, options: dict[str, Any]
) -> None:
    diloco = pccl_train.numpy.DiLoCo(None, {"x": np.zeros(3, np.float32)}, sync_every=every)
    run = pccl_train.steps(diloco, every, **options)
    next(run)
    diloco.step()
    for _ in range(turns):
        next(run)
    with pytest.raises(pccl.InvalidUsage, match=r"call step\(\)"):
        next(run)


def test_workers_that_end_at_different_steps_are_a_mismatch() -> None:
    def program(comm: pccl.Communicator) -> str:
        diloco = pccl_train.numpy.DiLoCo(None, {"x": np.zeros(3, np.float32)}, sync_every=2)
        diloco.total = 4 + 2 * comm.rank
        diloco.attach(comm)
        with pytest.raises(pccl.Mismatch) as refusal:
            diloco.begin()
        return str(refusal.value)

    with pccl.LocalWorld(2) as world:
        assert all("total=4" in text and "total=6" in text for text in world.run(program))


def test_a_turn_tells_where_the_run_is() -> None:
    exchange = Exchange(
        round=1, fragment=0, members=("a", "b"), weights=(1, 1), lost=(1,), ignored=(), norm=1.0,
        waited=0.25, seconds=1.5, bytes_sent=0, bytes_received=0, outcome=None,
    )  # fmt: skip
    assert str(Turn(3, 9, 1, 2, None)) == "step 3 of 9, round 1, 2 workers"
    assert str(Turn(3, 9, 1, 2, exchange)).endswith("; exchange of 1.50 s, waited 0.25, 1 lost")
