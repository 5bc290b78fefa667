"""Members of a run under FSDP2 and HSDP, forked from one process that has imported PyTorch.

Each line on standard input is a JSON list: ["fork", name, function, environment, folder] starts a
member, ["wait", pid] tells how it has ended. Members write lines, as JSON lists that begin with
their name, to the same standard output. test_torch_fsdp.py drives it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pccl_torch
import torch
import torch._dynamo  # FSDP2 imports it at its first forward
import torch.distributed
import torch.distributed.checkpoint
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from examples import torch_hsdp

# Their types leave out much of what they have.
dist: Any = torch.distributed
dcp: Any = torch.distributed.checkpoint
torch.set_num_threads(1)
# The test listens here; FSDP1 prints to standard output.
HEARD = os.dup(1)
os.dup2(2, 1)


class Member:
    """A process of a run; `tell` is heard by the test."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def tell(self, *what: object) -> None:
        """One write, so that lines of members do not mix."""
        os.write(HEARD, (json.dumps([self.name, *what]) + "\n").encode())

    def fsdp(self) -> None:
        """Three in the default group. One dies; the others go on from a checkpoint."""
        dist.init_process_group("pccl", init_method="pccl://", timeout=timedelta(seconds=60))
        whole = dist.new_group([0, 1, 2], pg_options=pccl_torch.Options(whole=True))
        pccl_torch.admit()
        model, unused = sharded(), sharded()
        for step in range(2):
            train(model, step)
        saved = str(self.folder / "checkpoint")
        dcp.save({"model": model.state_dict()}, checkpoint_id=saved)
        loss = loss_of(model, 2)
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.fails("backward", loss.backward)
        self.fails("forward", lambda: loss_of(model, 2))
        while not pccl_torch.admit().changed:
            continue  # the coordinator has not told of the loss
        self.tell("size", dist.get_world_size(), whole.size())
        for name, old in ("old", model), ("unused", unused):
            self.fails(name, partial(train, old, 2))
        self.fails("whole", lambda: dist.barrier(whole))
        anew = sharded()
        state = {"model": anew.state_dict()}
        dcp.load(state, checkpoint_id=saved)
        anew.load_state_dict(state["model"])
        for step in range(2, 4):
            train(anew, step)
        whole_ones = [p.full_tensor().detach().flatten() for p in anew.parameters()]
        self.tell("parameters", torch.cat(whole_ones).tolist())
        dist.destroy_process_group()

    def fsdp1(self) -> None:
        """Three under FullyShardedDataParallel. One dies; the others go on from a checkpoint."""
        dist.init_process_group("pccl", init_method="pccl://", timeout=timedelta(seconds=60))
        pccl_torch.admit()
        # One is lost in the middle of a step, the others between two; after an error FSDP1 itself
        # refuses more of the same model.
        lost, idle, saves, cuts = (first_fsdp() for _ in range(4))
        whole = first_fsdp(ShardingStrategy.NO_SHARD)
        for model in (lost, idle, saves, cuts, whole):
            loss_of(model, 0).backward()
        with FullyShardedDataParallel.summon_full_params(lost):
            saved = {name: p.detach().clone() for name, p in lost.named_parameters()}
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.fails("step", lambda: loss_of(lost, 1).backward())
        while not pccl_torch.admit().changed:
            continue  # the coordinator has not told of the loss
        for name, model in (("lost", lost), ("idle", idle), ("whole", whole)):
            self.fails(name, partial(train, model, 1))
        self.fails("state_dict", saves.state_dict)
        self.fails("norm", partial(cuts.clip_grad_norm_, 1.0))
        anew = first_fsdp()
        with FullyShardedDataParallel.summon_full_params(anew):
            anew.load_state_dict(saved, strict=False)
        loss = loss_of(anew, 1)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in anew.parameters() if p.grad is not None])
        norm = flat.square().sum()
        dist.all_reduce(norm)
        self.tell("norm", norm.sqrt().item())
        dist.destroy_process_group()

    def dtensors(self) -> None:
        """Three on a mesh of the default group. One dies, and another one comes."""
        dist.init_process_group("pccl", init_method="pccl://", timeout=timedelta(seconds=60))
        norm = torch.compile(norm_of, backend="eager", fullgraph=True)
        if os.environ["PCCL_RESTARTS"] == "0":
            old = table_on(3)
            self.tell("numbers", norm(old).item(), sum_of(old))
            pccl_torch.admit()
            dist.barrier()
            if dist.get_rank() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            while not pccl_torch.admit().changed:
                continue  # the coordinator has not told of the loss
            self.all_fail(old, norm)
            second = table_on(2)
            self.tell("numbers", norm(second).item(), sum_of(second))
            while not pccl_torch.admit().joined:
                continue  # the newcomer is on its way
            self.all_fail(old, norm)
            self.all_fail(second, norm)
        third = table_on(3)  # on a mesh that PyTorch takes to be equal to the first
        self.tell("numbers", norm(third).item(), sum_of(third))
        dist.destroy_process_group()

    def all_fail(self, table: Any, norm: Callable[[Any], Any]) -> None:
        """Whatever is on a mesh of members that were."""
        mesh = table.device_mesh
        self.fails("full_tensor", table.full_tensor)
        self.fails("sum", partial(sum_of, table))
        self.fails("norm", partial(norm_of, table))
        self.fails("compiled", partial(norm, table))
        self.fails("redistribute", lambda: table.redistribute(mesh, [Replicate()]).to_local())
        self.fails("get_group", lambda: dist.barrier(mesh.get_group()))

    def hsdp(self) -> None:
        """The example, but that one dies inside `backward`. Each step's shards go to a file."""
        dist.init_process_group("pccl", init_method="pccl://", timeout=timedelta(seconds=60))
        trainer = torch_hsdp.Trainer(pccl_torch.Hsdp(replicas=2, shards=2))
        place = f"{trainer.hsdp.replica}{trainer.hsdp.shard}"
        self.tell("place", place)
        # Between the layers: the gradients of the last one are reduced, those of the first are not.
        trainer.model[1].register_full_backward_hook(lambda *_: torch_hsdp.die_once(trainer))
        for told in trainer.train(lambda _: None):
            step = int(trainer.step)
            parameters: Any = trainer.model.parameters()
            shards = [p.to_local().detach() for p in parameters]
            if told.startswith("step"):
                torch.save(shards, self.folder / f"{place}-{step}.pt")
            self.tell(place, told.split()[0], step, trainer.hsdp.replicas, told)
        dist.destroy_process_group()

    def lone(self) -> None:
        """One replica of two shards: nobody has those of the one that dies."""
        dist.init_process_group("pccl", init_method="pccl://", timeout=timedelta(seconds=60))
        hsdp = pccl_torch.Hsdp(replicas=1, shards=2)
        groups: Any = [hsdp.mesh.get_group(name) for name in ("replicate", "shard")]
        assert {group.comm.deadline for group in groups} == {dist.group.WORLD.comm.deadline}
        groups[0].set_timeout(timedelta(seconds=50))
        model = sharded(hsdp.mesh)
        if os.environ["PCCL_RESTARTS"] == "0":
            self.fails("unsynced", partial(loss_of, model, 0))
            pccl_torch.admit()
            hsdp.sync(model.state_dict())
            train(sharded(hsdp.mesh), 0)
            if hsdp.shard == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            self.fails("lost", partial(train, model, 1))
            while not hsdp.whole:
                pccl_torch.admit()
            assert groups[0].comm.deadline == 50  # also in the members of now
        self.fails("sync", partial(hsdp.sync, model.state_dict()))
        hsdp = pccl_torch.Hsdp(replicas=1, shards=2)
        model = sharded(hsdp.mesh)
        hsdp.sync(model.state_dict())
        self.tell("loss", loss_of(model, 0).item())
        dist.destroy_process_group()

    def fails(self, name: str, call: Callable[[], object]) -> None:
        """Tells the class and the text of what it raises, or what it returns."""
        try:
            result = call()
        except Exception as error:  # noqa: BLE001  is told
            self.tell("fails", name, isinstance(error, pccl_torch.PeerLost), str(error))
        else:
            self.tell("fails", name, False, f"nothing, and returned {result!r}")


def table_on(size: int) -> Any:
    """The numbers from 0 to 11, by rows on a new mesh of the default group."""
    whole = torch.arange(12.0).view(6, 2)
    return distribute_tensor(whole, init_device_mesh("cpu", (size,)), [Shard(0)])


def sum_of(table: Any) -> float:
    """The sum of all elements, twice."""
    return float((table * 2).sum().full_tensor())


def norm_of(table: Any) -> Any:
    """The root of their squares."""
    return torch.linalg.vector_norm(table).full_tensor()


def whole_model() -> nn.Sequential:
    """In one process, as in all."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 6))


def sharded(mesh: Any = None) -> Any:
    """The model over a mesh, or the default group."""
    model: Any = whole_model()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def first_fsdp(strategy: Any = ShardingStrategy.FULL_SHARD) -> Any:
    """The model over the default group, by FSDP1."""
    wrap = partial(
        FullyShardedDataParallel,
        sharding_strategy=strategy,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    model: Any = whole_model()
    return wrap(nn.Sequential(wrap(model[0]), model[1], wrap(model[2])))


def batch(step: int, rank: int) -> Tensor:
    """A batch of a rank."""
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: nn.Module, step: int) -> Any:
    """The loss of this rank's batch."""
    return model(batch(step, dist.get_rank())).square().mean()


def train(model: nn.Module, step: int) -> str:
    """One step, and what it came to."""
    loss_of(model, step).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data -= 0.1 * parameter.grad
        parameter.grad = None
    return "a step"


def main() -> None:
    """Forks members until its input ends."""
    for line in sys.stdin:
        verb, *given = json.loads(line)
        if verb == "wait":
            _, status = os.waitpid(given[0], 0)
            answer = ["", "ended", given[0], os.waitstatus_to_exitcode(status)]
        else:
            name, function, environment, folder = given
            pid = os.fork()
            if pid == 0:
                os.environ.update(environment)
                member = Member(name, Path(folder))
                try:
                    getattr(member, function)()
                except BaseException as error:  # noqa: BLE001  is told
                    member.tell("raised", repr(error))
                    os._exit(1)
                os._exit(0)
            answer = ["", "forked", name, pid]
        os.write(HEARD, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
