"""A process that trains under DistributedDataParallel, one request a line, for the kill tests.

A request is a method of Trainer with its arguments (members.py). test_torch_elastic.py drives it.
Each element of its gradient is its `weight`, so that averages tell who is in them.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import pccl_torch
import torch
import torch._dynamo  # optimizers import it at their first step
import torch.distributed
from members import serve
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist: Any = torch.distributed
torch.set_num_threads(1)

# In f32: several buckets, and each layer in more than one chunk.
LAYERS, SIZE = 6, 20_000
BUCKET_MEGABYTES = 0.15


class Model(nn.Module):
    """Layers of which only the order and the sum of all parameters matter."""

    def __init__(self, reverse: bool) -> None:
        super().__init__()
        places = range(LAYERS)
        for place in reversed(places) if reverse else places:
            self.register_parameter(f"layer{place}", nn.Parameter(torch.randn(SIZE)))

    def forward(self, weight: Tensor) -> Tensor:
        total = torch.zeros(())
        for parameter in self.parameters():
            if parameter.requires_grad:
                total = total + (parameter * weight).sum()
        return total


class Trainer:
    """One member of a run, and then of the next."""

    def begin(
        self,
        environment: dict[str, str],
        weight: float,
        hook: bool = True,
        codec: Any = None,
        reverse: bool = False,
        method: str = "pccl://",
        frozen: int = 0,
    ) -> None:
        os.environ.update(environment)
        torch.manual_seed(int(weight))
        self.weight, self.hook, self.codec = weight, hook, codec
        self.model = Model(reverse)
        if frozen:
            base = nn.Parameter(torch.randn(frozen), requires_grad=False)
            self.model.register_parameter("base", base)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=weight / 1000)
        self.state = pccl_torch.ElasticState(
            self.model, self.optimizer, prefetch=frozen > 0, step=0
        )
        self.ddp: Any = None
        dist.init_process_group("pccl", init_method=method, timeout=timedelta(seconds=30))

    def wrap(self) -> None:
        """As a program does after a changed admit."""
        self.ddp = DistributedDataParallel(
            self.model, init_sync=False, bucket_cap_mb=BUCKET_MEGABYTES
        )
        if self.hook:
            self.ddp.register_comm_hook(None, pccl_torch.average_hook(self.codec))

    def train(self, steps: int = 0, until_joined: bool = False, dies: bool = False) -> Any:
        """The loop of elastic.py; a process that dies does so in the backward of its last step."""
        end = self.state.step + steps
        while until_joined or self.state.step < end:
            admission = pccl_torch.admit()
            if admission.changed or self.ddp is None:
                self.state.sync()
                self.wrap()
                if until_joined and admission.joined and self.state.step:
                    break
            self.step(dies and self.state.step == end - 1)
        return self.told()

    def step(self, dies: bool = False) -> Any:
        """One step, without the safe point."""
        if dies:  # when about half of the buckets are on their way
            parameter: Any = list(self.model.parameters())[LAYERS // 2]
            parameter.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        self.optimizer.zero_grad()
        self.ddp(torch.tensor(self.weight)).backward()
        self.optimizer.step()
        self.state.step += 1
        return self.told()

    def sync(self) -> Any:
        """How many leaves came in it, and how many before it; and what is told of a step."""
        outcome = self.state.sync()
        moved = {"leaves": outcome.leaves, "moved": outcome.leaves_moved}
        return {**moved, "early": outcome.leaves_early, **self.told()}

    def join(self, steps: int) -> Any:
        """Steps of which other members may make more or fewer."""
        with Join([self.ddp]):
            for _ in range(steps):
                self.step()
        return self.told()

    def admit(self, deadline: float | None = None, freezes: bool = False) -> Any:
        """The safe point alone: the wrapper stays as it is.

        `freezes`: this process stops between that of the first group and that of the second.
        """
        if freezes:
            self.group.pass_safe_point = lambda _: os.kill(os.getpid(), signal.SIGSTOP)
        admission = pccl_torch.admit(deadline)
        changes = {name: getattr(admission, name) for name in ("joined", "left", "changed")}
        return {**changes, **self.told()}

    def another_group(self, ranks: list[int], **options: Any) -> None:
        """Makes a group of these ranks, in this order."""
        self.group: Any = dist.new_group(ranks, sort_ranks=False, **options)

    def groups_of(self, listed: list[list[int]]) -> None:
        """Makes a group of each list."""
        self.groups: list[Any] = [dist.new_group(ranks) for ranks in listed]

    def from_the_last(self) -> Any:
        """For each of these groups that this process is in, what torch.distributed says of it.

        Its global ranks, and what comes from the last of them, which sends its global rank; or the
        names of the classes of the error.
        """
        told: list[Any] = []
        for group in self.groups:
            if group == dist.GroupMember.NON_GROUP_MEMBER:
                continue
            ranks = dist.get_process_group_ranks(group)
            x = torch.tensor([float(dist.get_rank())])
            try:
                dist.broadcast(x, src=ranks[-1], group=group)
            except dist.DistBackendError as error:
                told.append([kind.__name__ for kind in type(error).__mro__])
            else:
                told.append([ranks, x.item()])
        return told

    def sum_over_another_group(self, backend: str) -> float:
        """Makes a group of all with another backend, and adds up ones."""
        x = torch.ones(1)
        dist.all_reduce(x, group=dist.new_group(backend=backend))
        return float(x)

    def gathered(self) -> Any:
        """Ids of members in the order of the ranks, of both groups, as collectives tell them.

        With the ranks of the second group in the first, as torch.distributed tells them.
        """
        told = []
        for group in (dist.group.WORLD, self.group):
            own = torch.tensor(list(bytes.fromhex(str(group.comm.peer_id))), dtype=torch.uint8)
            every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
            dist.all_gather(every, own, group=group)
            assert torch.equal(every[dist.get_rank(group)], own)
            told.append([bytes(each.tolist()).hex() for each in every])
        return [*told, dist.get_process_group_ranks(self.group)]

    def told(self) -> Any:
        """The state and, for each parameter, the values in its gradient."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return {
            "step": self.state.step,
            "digest": self.state.digest(),
            "size": dist.get_world_size(),
            "averages": [sorted(set(gradient.tolist())) for gradient in gradients],
            "rates": [group["lr"] for group in self.optimizer.param_groups],
        }

    def last_error(self) -> Any:
        """The names of the classes of the error behind the last one."""
        error = pccl_torch.last_error()
        return [kind.__name__ for kind in type(error).__mro__]

    def leave(self) -> None:
        """The end of this run."""
        self.ddp = None
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    serve(Trainer)
