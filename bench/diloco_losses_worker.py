"""One worker of the losses of `bench diloco`: over PCCL, or a replica of torchft on its gloo.

diloco_losses.py starts it, with a Job in JSON on its standard input, and tells it when to begin:

    {"ready": true}                                     then it waits for a line
    {"began": ...}                                      the time of its first step
    {"at": ..., "moved": ..., "workers": ...}           the end of each round
    {"loss": ...}                                       after the last step, on held-out text

Over PCCL a worker is killed by a fault point of the library, when it has sent a part of its
contribution. Under torchft a replica kills itself behind the call of an allreduce, in the middle of
the parameters. A replica that waits for it finds out by the time limit of gloo, SECONDS.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from pccl_train import Exchange, Nesterov

import pccl_py as pccl
from bench import diloco_gpt
from bench.diloco_cases import WORKERS, Case, Size, cases
from bench.diloco_gpt import Text

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed
LOST = 2  # the round, from 0, in whose exchange one is killed
SECONDS = timedelta(seconds=30)
QUORUM_SECONDS = timedelta(seconds=600)


@dataclass(frozen=True)
class Job:
    """The task of one process. `meeting`: the token of a run, or the address of a lighthouse."""

    backend: str
    meeting: str
    checkpoint: str
    size: Size
    seed: int
    number: int  # from 0; a newcomer has a number of its own
    rank: int  # of the text
    dies: bool

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        told = json.loads(text)
        return cls(**{**told, "size": Size(**told["size"])})


def main() -> None:
    """See the head of this file."""
    job = Job.from_json(sys.stdin.readline())
    torch.set_num_threads(1)
    worker, text = diloco_gpt.Worker(job.size, job.seed), Text()
    worker.load_state_dict(torch.load(job.checkpoint))
    batches = text.batches(job.rank, 100 * job.seed + job.number)
    case = cases(job.size)["diloco"]
    train = over_pccl if job.backend == "pccl" else under_torchft
    tell(ready=True)
    sys.stdin.readline()
    train(job, worker, batches, case)
    tell(loss=worker.loss(text.held_out()))


def tell(**what: object) -> None:
    """A line for diloco_losses.py."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def over_pccl(job: Job, worker: diloco_gpt.Worker, batches: Any, case: Case) -> None:
    """Trains until the run has made all steps."""

    def ended(exchange: Exchange) -> None:
        moved = sum(weight > 0 for weight in exchange.weights) > len(exchange.lost)
        tell(at=time.monotonic(), moved=moved, workers=len(exchange.members))

    with pccl.connect(job.meeting, bind="127.0.0.1:0") as comm:
        comm.admit()
        tell(began=time.monotonic())
        worker.rarely(comm, batches, job.size.steps, case, ended)


def under_torchft(job: Job, worker: diloco_gpt.Worker, batches: Any, case: Case) -> None:
    """Trains for so many steps; a newcomer goes on, alone in the end, until it is killed."""
    import torchft
    from torchft.local_sgd import DiLoCo

    logging.disable(logging.ERROR)  # it logs each tensor of a round that is discarded
    model, inner = worker.model, worker.adamw
    group = torchft.ProcessGroupGloo(timeout=SECONDS)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager: Any = torchft.Manager(
        group,
        worker.load_state_dict,
        worker.state_dict,
        min_replica_size=2,
        use_async_quorum=False,
        timeout=SECONDS,
        quorum_timeout=QUORUM_SECONDS,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=job.meeting,
        replica_id=str(job.number),
        hostname="localhost",
        init_sync=False,  # all founders have the checkpoint
    )
    if job.dies:
        _let_die(manager, tensors=len(list(model.parameters())))
    rule = Nesterov()  # that of the other backend
    rates: Any = {"lr": rule.learning_rate, "momentum": rule.momentum, "nesterov": True}
    outer = torch.optim.SGD(model.parameters(), **rates)
    steps = 0
    tell(began=time.monotonic())
    with DiLoCo(manager, [model], inner, outer, sync_every=case.every):
        while steps < job.size.steps or job.number >= WORKERS:
            counted = manager.current_step()
            model(next(batches)).backward()
            inner.step()
            inner.zero_grad()
            steps += 1
            if steps % case.every == 0:
                moved = manager.current_step() > counted
                tell(at=time.monotonic(), moved=moved, workers=manager.num_participants())
    manager.shutdown()
    group.shutdown()


def _let_die(manager: Any, tensors: int) -> None:
    """This process kills itself in the exchange of round LOST."""
    all_reduce = manager.allreduce
    called = 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal called
        work = all_reduce(*args, **options)
        called += 1
        if called == LOST * tensors + tensors // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return work

    manager.allreduce = counted


if __name__ == "__main__":
    main()
