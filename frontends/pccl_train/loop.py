"""Loop: the turns of a training program that survives lost peers and broken connections.

    for turn in pccl_train.steps(diloco, 10_000, checkpoint="run.ckpt"):
        loss = model(next(batches))
        loss.backward()
        optimizer.step()  # with pccl_train.numpy: diloco.step()
        progress.update(str(turn))

`steps` connects and enters the run. After a failure it connects again, as a newcomer that receives
the state of the other members. `steps` prints nothing; `str(turn)` is a progress line.
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

# After this many turns (or a round, if longer) without a counted inner step `steps` raises
# InvalidUsage.
IDLE_TURNS_MAX = 100


@dataclass(frozen=True, slots=True)
class Turn:
    """One inner step of `steps`: number `step` of `total`, in round `round`.

    `world_size`: number of members. `last`: the last exchange that ended; None before the first.
    """

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

    `diloco` must not be attached to a group: `steps` connects with `options`, those of `connect`.
    `total`: the same on all workers, and a multiple of `sync_every`, because steps after the last
    exchange would be lost. `checkpoint`: each worker's own file. It is loaded if it exists, and
    written at the end and after each `checkpoint_every` rounds, `fragment_sync_delay` steps into
    the next round. After `Aborted`, `Expelled` and the other errors that a run survives
    (docs/reference/ERRORS.md) this worker connects again and takes over the state of the members;
    after `patience` seconds without a step it raises the error. Leaving the loop leaves the run.
    Raises the errors of `connect`, `Rounds.begin` and `Rounds.step`, InvalidArgument for a bad
    argument, and InvalidUsage if the turns count no inner step.
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
    # First position in a round at which a checkpoint need not wait for the last round's exchange.
    save_from = min(diloco.method.fragment_sync_delay, every - 1)
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
    """Connects this process to the run, and again after each failure that the run survives."""

    def __init__(self, diloco: Rounds, patience: float, options: ConnectOptions) -> None:
        self._diloco = diloco
        self._patience = patience
        self._options = options
        self._comm: Communicator | None = None
        self._well_at = time.monotonic()
        self._failed = False
        diloco.survives = self._survives

    def enter(self) -> None:
        """Unless this worker is in a group: connects, and enters the run (`Rounds.begin`)."""
        while self._comm is None:
            try:
                self._comm = connect(**self._options)
                self._diloco.attach(self._comm)
                self._diloco.begin()
            except PcclError as error:
                if not self._survives(error):
                    raise

    def stepped(self) -> None:
        """Records the end of a turn; unless the turn failed, `patience` counts from now on."""
        if not self._failed:
            self._well_at = time.monotonic()
        self._failed = False

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint, after waiting for the exchanges under way."""
        try:
            self._diloco.save(path)
        except PcclError as error:
            if not self._survives(error):
                raise

    def leave(self) -> None:
        """Detaches from the group and closes its communicator. Idempotent."""
        self._diloco.detach()
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.close()

    def _survives(self, error: PcclError) -> bool:
        """Whether the run survives `error`; if so, leaves the group, so that `enter` connects."""
        self._failed = True
        impatient = time.monotonic() - self._well_at > self._patience
        if not isinstance(error, SHARED + ALONE) or impatient:
            return False
        _log.warning("%s: %s; connecting again", type(error).__name__, error)
        self.leave()
        return True
