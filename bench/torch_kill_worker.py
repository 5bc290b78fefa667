"""One process of the benchmark of a kill: it trains, and may kill itself inside of a backward.

It tells each step in a line of JSON, and its own end just before it. torch_kill.py starts three of
it, or lets torchrun do it, and says what the lines come to.

    {"step": number, "rank": ..., "begin": seconds, "end": seconds}
    {"killed": seconds}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import pccl_torch
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from bench import common
from bench.torch_plan import Plan
from bench.torch_worker import model_of, step_of

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed


def tell(**line: float) -> None:
    """In one write, as processes may share their standard output."""
    os.write(1, (json.dumps(line) + "\n").encode())


def end_inside(model: torch.nn.Sequential) -> None:
    """The next backward kills this process in the middle of the layers."""

    def end(_: object) -> None:
        tell(killed=time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    middle: Any = next(model[len(model) // 2].parameters())
    middle.register_hook(end)


def join(backend: str, rank: int, world: int) -> None:
    """The default group. The store of torchrun outlives an attempt, and gloo's addresses do not."""
    timeout = timedelta(minutes=5)
    if backend != "gloo":
        dist.init_process_group(backend, timeout=timeout)
        return
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world)
    attempt = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=world, timeout=timeout)


def main() -> None:
    """Trains as the plan says."""
    plan = Plan(**json.loads(sys.argv[1]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, common.cores_of(rank, world))
    torch.set_num_threads(1)
    join(plan.backend, rank, world)
    model = model_of(plan.size)
    wrapped = DistributedDataParallel(model)
    if plan.backend == "pccl":
        hook: Any = pccl_torch.average_hook()
        wrapped.register_comm_hook(None, hook)
    step = step_of(wrapped)
    dies = rank == world - 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    for number in range(plan.steps):
        if dies and number == plan.kill_at:
            end_inside(model)
        begin = time.monotonic()
        step()
        tell(step=number, rank=rank, begin=begin, end=time.monotonic())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
