"""A process whose default group has the members that it is told, one request a line.

test_torch_reconfigure.py drives it. Each process has a store of its own, so that nothing but the
handles leads from one to the other. Releases before 2.14 have no `enable_reconfigure`: there the
backend is told what later ones would tell it, and all but PyTorch's own functions is the same.
"""

from __future__ import annotations

import inspect
import os
import types
from datetime import timedelta
from typing import Any
from unittest import mock

import pccl_torch
import torch
import torch._dynamo  # optimizers import it at their first step
import torch.distributed
from members import serve
from pccl_torch import start
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

# Their types are those of C++.
dist: Any = torch.distributed
c10d: Any = distributed_c10d
torch.set_num_threads(1)

IS_KNOWN = "enable_reconfigure" in inspect.signature(dist.init_process_group).parameters


class Process:
    """The requests."""

    ddp: Any = None
    sharded: Any = None

    def begin(self, token: str = "", init_method: str = "", whole: bool = False) -> str:
        """Makes the default group. The answer is the handle of this process."""
        os.environ["PCCL_TOKEN"] = token
        options: dict[str, Any] = {
            "timeout": timedelta(seconds=30),
            "pg_options": pccl_torch.Options(whole=whole),
        }
        if init_method:
            options["init_method"] = init_method
        else:
            options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        if IS_KNOWN:
            dist.init_process_group("pccl", enable_reconfigure=True, **options)
        else:
            with mock.patch.object(start, "create", _create(start.create)):
                dist.init_process_group("pccl", **options)
        assert dist.group.WORLD.supports_reconfigure
        return self.handle()

    def handle(self) -> str:
        if IS_KNOWN:
            return str(dist._get_reconfigure_handle())
        return str(dist.group.WORLD.get_reconfigure_handle())

    def reconfigure(
        self, uuid: int, handles: list[str], seconds: float = 30, as_set: bool = False
    ) -> list[int]:
        """The answer is the rank and the size, and what the tables of PyTorch say of them."""
        given: Any = set(handles) if as_set else handles
        timeout = timedelta(seconds=seconds)
        if IS_KNOWN:
            work = dist._reconfigure(uuid, given, timeout=timeout, hints={"for": "others"})
        else:
            work = dist.group.WORLD.reconfigure(
                types.SimpleNamespace(uuid=uuid, handles=given, timeout=timeout, hints={})
            )
        assert work.wait() and work.is_completed()
        # That of the group, whatever its making may take.
        assert dist.group.WORLD.comm.deadline == 30
        assert c10d._world.pg_group_ranks[dist.group.WORLD] == {
            rank: rank for rank in range(dist.get_world_size())
        }
        return [dist.get_rank(), dist.get_world_size()]

    def collectives(self) -> None:
        """Checks one of each kind, in the order of the ranks, and two in flight together."""
        rank, size = dist.get_rank(), dist.get_world_size()
        assert self.reduce() == size * (size + 1) / 2
        every = [float(other) for other in range(size)]
        x, out = torch.tensor([float(rank)]), torch.empty(size)
        dist.all_gather_single(out, x)
        assert out.tolist() == every
        into = torch.empty(size if rank == size - 1 else 0)
        options = c10d.GatherOptions()
        options.rootRank = size - 1
        dist.group.WORLD.gather_single(into, x, options).wait()
        assert rank != size - 1 or into.tolist() == every
        if size > 1:
            got = torch.empty(1)
            batch = [
                dist.P2POp(dist.isend, x, (rank + 1) % size),
                dist.P2POp(dist.irecv, got, (rank - 1) % size),
            ]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
            assert got.item() == (rank - 1) % size
        dist.broadcast(x, src=size - 1)
        assert x.item() == size - 1

    def reduce(self) -> float:
        """The sum over the members of one more than their ranks."""
        x = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(x)
        return x.item()

    def group(self) -> None:
        """Makes a sub-group of all members."""
        self.made = dist.new_group()

    def reduce_in_group(self) -> float:
        x = torch.ones(1)
        dist.all_reduce(x, group=self.made)
        return x.item()

    def wrap(self) -> None:
        """A model of ones under DistributedDataParallel, and one dealt out by FSDP2."""
        self.ddp = DistributedDataParallel(_ones(), init_sync=False)
        self.sharded = fully_shard(_ones(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))

    def step(self) -> float:
        """A step of the first one: the average over the members of one more than their ranks."""
        self.ddp.zero_grad()
        self.ddp(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
        gradient: Tensor = self.ddp.module.weight.grad
        return gradient[0, 0].item()

    def forward_of_shards(self) -> float:
        total = float(self.sharded(torch.ones(1, 2)).sum().item())
        self.sharded.reshard()  # else the next forward finds it whole
        return total

    def hsdp(self) -> None:
        pccl_torch.Hsdp(replicas=1, shards=1)

    def admit(self) -> list[Any]:
        admission = pccl_torch.admit()
        return [list(admission.left), dist.get_rank(), dist.get_world_size()]

    def abort(self) -> None:
        dist.group.WORLD.abort()

    def abort_and_forget(self) -> None:
        """As PyTorch does it, before a program makes another default group."""
        c10d._abort_process_group()

    def leave(self) -> None:
        """The end of this run."""
        self.ddp = self.sharded = None
        if dist.is_initialized():
            dist.destroy_process_group()


def _ones() -> nn.Module:
    layer = nn.Linear(2, 8, bias=False)
    nn.init.ones_(layer.weight)
    return layer


def _create(create: Any) -> Any:
    """As PyTorch 2.14 calls it."""

    def told(asked: Any, options: Any) -> Any:
        names = (name for name in dir(asked) if not name.startswith("_"))
        return create(
            types.SimpleNamespace(
                **{name: getattr(asked, name) for name in names}, enable_reconfigure=True
            ),
            options,
        )

    return told


if __name__ == "__main__":
    serve(Process)
