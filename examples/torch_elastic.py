"""Elastic training: one process is killed, one joins, and all end with the same digest.

    pccl run -n 3 -- python examples/torch_elastic.py

The third process kills itself in the middle of a backward; the first starts a new process. Your own
program needs the loop without these two parts. docs/guides/TORCH.md explains the loop.
"""

import os
import signal
import subprocess
import sys
from typing import Any

import pccl_torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NUMBER = int(os.environ["RANK"])  # of this process; unlike its rank in the run, it never changes
KILLED, DIES_IN_STEP, NEWCOMER = 2, 10, 3
STEPS_TOGETHER = 20  # steps after the newcomer has joined


def wrap(model: nn.Module) -> DistributedDataParallel:
    ddp = DistributedDataParallel(model, init_sync=False, bucket_cap_mb=0.1)
    ddp.register_comm_hook(None, pccl_torch.average_hook())
    return ddp


def step(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    inputs = torch.randn(64, 32)  # each process draws its own inputs
    loss: Any = nn.functional.mse_loss(ddp(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()  # averages gradients; if a member is lost meanwhile, over the other members
    optimizer.step()


def train() -> None:
    torch.manual_seed(NUMBER)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # sync() makes parameters, the optimizer's state, step and last_step equal on all processes.
    state = pccl_torch.ElasticState(model, optimizer, step=0, last_step=0)
    ddp = None
    while not state.last_step or state.step < state.last_step:
        try:
            admission = pccl_torch.admit()  # the safe point: newcomers enter, lost members leave
            if admission.changed or ddp is None:
                if admission.joined and state.step:
                    state.last_step = state.step + STEPS_TOGETHER
                state.sync()
                ddp = wrap(model)
                tell(f"step {state.step}: joined {admission.joined}, left {admission.left}", state)
            if NUMBER == KILLED and state.step == DIES_IN_STEP:
                die_in_backward(model)
            step(ddp, optimizer)
            state.step += 1
            if NUMBER == 0 and state.step == 2 * DIES_IN_STEP:
                start_newcomer()
        except RuntimeError as error:  # DDP cannot lose a member while it rebuilds its buckets
            if not isinstance(pccl_torch.last_error(error), pccl_torch.PeerLost):
                raise
            ddp = None  # all members get PeerLost, pass the safe point and repeat the step
    tell(f"step {state.step}: done", state)


def tell(text: str, state: Any) -> None:
    members = f"process {NUMBER}, one of {dist.get_world_size()}"
    sys.stdout.write(f"{members}, {text}, digest {state.digest()}\n")
    sys.stdout.flush()


def die_in_backward(model: nn.Module) -> None:
    parameter: Any = next(model.parameters())
    parameter.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))


def start_newcomer() -> None:
    subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(NEWCOMER)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("pccl", init_method="pccl://")
    train()
    dist.destroy_process_group()
