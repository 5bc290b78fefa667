"""DistributedDataParallel over PCCL. Two ways to run it:

    torchrun --nproc-per-node 2 examples/torch_ddp.py
    pccl run -n 2 -- python examples/torch_ddp.py

Except for the import and the name of the backend, the program is the same as for gloo. As with
gloo, a lost process ends it; torch_elastic.py survives a lost process.
"""

import sys
from typing import Any

import pccl_torch  # makes "pccl" a backend of torch.distributed
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 30, 64


def main() -> None:
    torch.set_num_threads(1)
    # Under torchrun, without a PCCL_TOKEN, "pccl://" means "env://".
    dist.init_process_group("pccl", init_method="pccl://")
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)  # DDP copies the parameters of rank 0 to all
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    loss: Any = None
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 32)  # each rank draws its own inputs
        loss = nn.functional.mse_loss(ddp(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # all ranks get the average of their gradients
        optimizer.step()

    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    digest = pccl_torch.ElasticState(model).digest()
    # One write for the whole line, because the ranks share a terminal.
    sys.stdout.write(f"rank {rank} of {size}: loss {mean.item():.3f}, digest {digest}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
