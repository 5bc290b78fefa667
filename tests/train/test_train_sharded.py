"""The hierarchical form: FSDP2 over gloo inside a worker, DiLoCo over PCCL between workers.

Each rank of a worker exchanges its shards with the ranks of other workers that hold the same ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pccl_py as pccl

pytest.importorskip("torch")
pytestmark = pytest.mark.long

PROGRAM = """
import hashlib, os, sys, traceback
import pccl_py as pccl
import pccl_train.torch
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

torch.set_num_threads(1)

def train(worker, rank):
    store = f"file://{sys.argv[1]}{worker}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(worker)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Tanh(), torch.nn.Linear(13, 7))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(10 * worker + rank)

    def step():
        x = torch.randn(16, 7, generator=generator)
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    with pccl.connect(bind="127.0.0.1:0", group=f"shard{rank}", initial_world_size=2) as comm:
        settings = dict(sync_every=5, fragments=2, fragment_sync_delay=2, codec="int8")
        with pccl_train.torch.DiLoCo(comm, model, optimizer, **settings) as diloco:
            first = step()
            while diloco.round < 8:
                last = step()
            diloco.finish()
        assert all(isinstance(p, DTensor) for p in model.parameters())
        whole = [p.full_tensor().detach().numpy().tobytes() for p in model.parameters()]
    digest = hashlib.blake2b(b"".join(whole), digest_size=8).hexdigest()
    os.write(1, f"{digest} {last < 0.8 * first}\\n".encode())
    dist.destroy_process_group()

# PyTorch is imported once for all four.
ranks = [(worker, rank) for worker in range(2) for rank in range(2)]
for worker, rank in ranks:
    if os.fork() == 0:
        try:
            train(worker, rank)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
sys.exit(any(os.wait()[1] for _ in ranks))
"""


def test_shards_of_fsdp_are_exchanged_between_workers(tmp_path: Path) -> None:
    with pccl.Coordinator() as coordinator:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"{tmp_path}/store"],
            env={**os.environ, "PCCL_TOKEN": coordinator.token},
            capture_output=True, text=True, timeout=250,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 4 and len(set(said)) == 1 and said[0].endswith("True"), said
