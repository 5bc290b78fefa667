"""Loop: the turns of a training program, which goes on after each failure that allows it.

    for turn in pccl_train.steps(diloco, 10_000, checkpoint="run.ckpt"):
        loss = model(next(batches))
        loss.backward()
        optimizer.step()  # with pccl_train.numpy: diloco.step()
        progress.update(str(turn))

It connects, enters the run, and after a failure connects again, as a newcomer that the others give
their state to. Nothing is printed here; `str(turn)` is a progress line.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Unpack

from pccl_py.communicator import Communicator, connect
from pccl_py.elastic import ALONE, SHARED, ConnectOptions
from pccl_py.errors import InvalidArgument, InvalidUsage, PcclError
from pccl_train.rounds import Exchange, Rounds

_log = logging.getLogger("pccl.train")

IDLE_TURNS_MAX = 100  # or a round, if that is longer


@dataclass(frozen=True, slots=True)
class Turn:
    """One inner step of `steps`: `step` of `total`, in round `round`, with so many members."""

    step: int
    total: int
    round: int
    world_size: int
    last: Exchange | None

    def __str__(self) -> str:
        says = f"step {self.step} of {self.total}, round {self.round}, {self.world_size} workers"
        if self.last is None:
            return says
        lost = f", {len(self.last.lost)} lost" if self.last.lost else ""
        return f"{says}; exchange of {self.last.seconds:.2f} s, waited {self.last.waited:.2f}{lost}"


def steps(
    diloco: Rounds,
    total: int,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    patience: float = 1800.0,
    **options: Unpack[ConnectOptions],
) -> Generator[Turn, None, None]:
    """Takes part in a run until `total` inner steps are done, and finishes it with all members.

    `diloco` must be in no group: `options` are those of `connect`. `total`: a multiple of
    `sync_every`, as the steps behind the last exchange would be lost, and the same on all workers.
    `checkpoint`: a file that is read if it is there, and written at the end and after each
    `checkpoint_every` rounds, when the exchange of the round has had `fragment_sync_delay` steps;
    each worker has its own. After `Aborted`, `Expelled` and the other errors that a run survives
    (docs/reference/ERRORS.md) this worker connects again and takes the state of the others; it
    raises after `patience` seconds without a step. Leaving the loop leaves the run. Raises the
    errors of `connect`, `Rounds.begin` and `Rounds.step`, InvalidArgument for a bad argument, and
    InvalidUsage if no inner step is counted.
    """
    if total < 0 or checkpoint_every < 1 or not patience > 0:
        raise InvalidArgument(
            "total must be 0 or more, checkpoint_every 1 or more, and patience above 0, not "
            f"{total}, {checkpoint_every} and {patience}"
        )
    every = diloco.method.sync_every
    if total % every:
        raise InvalidArgument(
            f"total must be a multiple of sync_every, {every}, not {total}: the last "
            f"{total % every} steps would come after the last exchange, and be lost"
        )
    diloco.total = total
    idle_max = max(IDLE_TURNS_MAX, every)
    counted = idle = 0
    save_from = min(diloco.method.fragment_sync_delay, every - 1)  # the position in a round
    run = _Run(diloco, patience, options)
    if checkpoint is not None and os.path.exists(checkpoint):
        diloco.load(checkpoint)
    saved_at = diloco.round
    try:
        with diloco:
            while True:
                run.enter()
                if diloco.progress >= total:
                    break
                yield Turn(
                    diloco.progress, total, diloco.round, diloco.world_size, diloco.last_exchange
                )
                run.stepped()
                idle = idle + 1 if diloco.counted == counted else 0
                counted = diloco.counted
                if idle == idle_max:
                    raise InvalidUsage(
                        f"{idle} turns have counted no inner step: call step() in each turn, or, "
                        "with PyTorch, step the inner_optimizer that DiLoCo was given"
                    )
                is_due = diloco.round >= saved_at + checkpoint_every
                if checkpoint is not None and is_due and diloco.position >= save_from:
                    run.save(checkpoint)
                    saved_at = diloco.round
            diloco.finish()
            if checkpoint is not None and diloco.round > saved_at:
                diloco.save(checkpoint)
    finally:
        run.leave()
        diloco.survives = diloco.total = None


class _Run:
    """This process in the run, over all the times that it connects."""

    def __init__(self, diloco: Rounds, patience: float, options: ConnectOptions) -> None:
        self._diloco = diloco
        self._patience = patience
        self._options = options
        self._comm: Communicator | None = None
        self._well_at = time.monotonic()
        self._failed = False
        diloco.survives = self._survives

    def enter(self) -> None:
        """Connects if this worker is in no group, and begins."""
        while self._comm is None:
            try:
                self._comm = connect(**self._options)
                self._diloco.attach(self._comm)
                self._diloco.begin()
            except PcclError as error:
                if not self._survives(error):
                    raise

    def stepped(self) -> None:
        """A turn has ended; patience begins anew if it did not fail."""
        if not self._failed:
            self._well_at = time.monotonic()
        self._failed = False

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint, which waits for the exchanges under way."""
        try:
            self._diloco.save(path)
        except PcclError as error:
            if not self._survives(error):
                raise

    def leave(self) -> None:
        """Leaves the group. Idempotent."""
        self._diloco.detach()
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.close()

    def _survives(self, error: PcclError) -> bool:
        """Whether this worker connects again after the error; it has left the group then."""
        self._failed = True
        impatient = time.monotonic() - self._well_at > self._patience
        if not isinstance(error, SHARED + ALONE) or impatient:
            return False
        _log.warning("%s: %s; connecting again", type(error).__name__, error)
        self.leave()
        return True
