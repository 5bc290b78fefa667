"""One replica of the benchmark of torchft: it trains, and may kill itself inside of a backward.

It tells each step and each quorum in a line of JSON; torch_ft.py starts three of it.

    {"step": ..., "rank": ..., "replicas": ..., "committed": ..., "begin": ..., "end": ...}
    {"configured_at": ..., "configure_seconds": ..., "rank": ...}
    {"killed": ...}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
import torchft
from pccl_torch.torchft import DistributedDataParallel, ProcessGroupPccl
from torch import nn

from bench import common
from bench.torch_kill_worker import tell
from bench.torch_plan import Plan
from bench.torch_worker import BATCH, LEARNING_RATE, model_of

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed
SECONDS = timedelta(seconds=30)
WORLD = 3


class Replica:
    """A model, its Manager, and what they came to."""

    def __init__(self, plan: Plan, rank: int, lighthouse: str) -> None:
        self.rank = rank
        backend, _, self.kind = plan.backend.partition("/")
        self.model = model_of(plan.size)
        self.inner = torch.optim.SGD(self.model.parameters(), LEARNING_RATE)
        self.group = self._timed(self._group(backend))
        store = self.store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager: Any = torchft.Manager(
            self.group,
            self._load,
            lambda: {"model": self.model.state_dict(), "inner": self.inner.state_dict()},
            min_replica_size=2,
            timeout=SECONDS,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=store.port,
            lighthouse_addr=lighthouse,
            replica_id=str(rank),
            hostname="localhost",
        )
        kind = torchft.DistributedDataParallel if self.kind == "own_hook" else None
        self.ddp: Any = (kind or DistributedDataParallel)(self.manager, self.model)
        self.optimizer: Any = torchft.Optimizer(self.manager, self.inner)

    def _group(self, backend: str) -> Any:
        if backend == "gloo":
            return torchft.ProcessGroupGloo(timeout=SECONDS)
        if self.kind != "resume":
            return ProcessGroupPccl(SECONDS)
        return ProcessGroupPccl(
            SECONDS, recovery="resume", participants=lambda: self.manager.num_participants()
        )

    def _timed(self, group: Any) -> Any:
        configure = group.configure

        def timed(*args: Any, **options: Any) -> None:
            begin = time.monotonic()
            configure(*args, **options)
            end = time.monotonic()
            tell(configured_at=end, configure_seconds=end - begin, rank=self.rank)

        group.configure = timed
        return group

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["inner"])

    def train(self, kill_at: int, steps: int) -> None:
        """The last dies after so many steps of all; the others commit so many without it."""
        generator = torch.Generator().manual_seed(self.rank)
        width = max(x.in_features for x in self.model.modules() if isinstance(x, nn.Linear))
        data = torch.randn(BATCH, width, generator=generator)
        together = alone = 0

        def die(_: object) -> None:
            if together >= kill_at and self.manager.num_participants() == WORLD:
                tell(killed=time.monotonic())
                os.kill(os.getpid(), signal.SIGKILL)

        if self.rank == WORLD - 1:
            middle: Any = next(self.model[len(self.model) // 2].parameters())
            middle.register_hook(die)
        while alone < steps:
            begin, number = time.monotonic(), self.manager.current_step()
            self.optimizer.zero_grad()
            self.ddp(data).square().mean().backward()
            self.optimizer.step()
            end, committed = time.monotonic(), self.manager.current_step() > number
            count = self.manager.num_participants()
            together += committed and count == WORLD
            alone += committed and together >= kill_at and count < WORLD
            told = {"step": number, "replicas": count, "committed": committed}
            tell(**told, rank=self.rank, begin=begin, end=end)


def main() -> None:
    """Trains as the plan says."""
    plan, rank = Plan(**json.loads(sys.argv[1])), int(os.environ["RANK"])
    os.sched_setaffinity(0, common.cores_of(rank, WORLD))
    torch.set_num_threads(1)
    replica = Replica(plan, rank, sys.argv[2])
    replica.train(plan.kill_at, plan.steps)
    replica.manager.shutdown()
    replica.group.shutdown()


if __name__ == "__main__":
    main()
