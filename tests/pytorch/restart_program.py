"""A program under `torchrun` that is started again: test_torch_torchrun.py starts it.

Rank 0 keeps a checkpoint after each step. Another rank kills itself inside a backward of its first
life, torchrun ends the rest and starts all again, and they go on from the checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pccl_torch
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist: Any = torch.distributed
STEPS, DEATH = 6, 3
STOPPED_SECONDS_MAX = 60


def main(checkpoint: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("pccl", timeout=timedelta(seconds=30))
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(10 * life + rank)
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    state = pccl_torch.ElasticState(model, optimizer, step=0)
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        state.step = kept["step"]
    pccl_torch.admit()
    state.sync()
    tell(f"life {life} rank {rank} begins at {state.step}, digest {state.digest()}")
    ddp = DistributedDataParallel(model, init_sync=False)
    while state.step < STEPS:
        if (life, rank, state.step) == (0, 1, DEATH):
            model[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        optimizer.zero_grad()
        try:
            torch.autograd.backward(ddp(torch.randn(4, 8)).square().mean())
        except RuntimeError as error:
            lost = pccl_torch.last_error(error)
            tell(f"life {life} rank {rank} lost: {type(lost).__name__}")
            signal.alarm(STOPPED_SECONDS_MAX)
            signal.pause()  # torchrun ends it
        optimizer.step()
        state.step += 1
        if rank == 0:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**kept, "step": state.step}, unfinished := checkpoint.with_suffix(".new"))
            unfinished.replace(checkpoint)
    tell(f"life {life} rank {rank} ends at {state.step}, digest {state.digest()}")
    dist.destroy_process_group()


def tell(line: str) -> None:
    """One write, so that lines of ranks do not mix."""
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
