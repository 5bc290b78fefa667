"""HSDP that goes on when a process dies: two replicas of a model, each in two shards.

    pccl run -n 4 --restarts 1 -- python examples/torch_hsdp.py

One process kills itself. Started again, it fetches its shard from the other replica, which goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pccl_torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard

STEPS = 6


def make_model() -> nn.Sequential:
    """The whole model, in two precisions."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8).double())


def loss_of(model: nn.Module, step: int, place: int) -> Any:
    """The loss of a place's batch."""
    torch.manual_seed(1000 * step + place)
    first, tanh, last = model.children()
    return last(tanh(first(torch.randn(4, 16))).double()).square().mean()


class Trainer:
    """A model in shards, its optimizer, and the step that they have come to."""

    def __init__(self, hsdp: pccl_torch.Hsdp) -> None:
        self.hsdp = hsdp
        self.step = torch.zeros(1, dtype=torch.int64)
        self.make()

    def make(self) -> None:
        """Makes the model anew: one that was stopped in the middle of a step is of no use."""
        self.model = make_model()
        fully_shard(self.model[0], mesh=self.hsdp.mesh)
        fully_shard(self.model[2], mesh=self.hsdp.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        get_state_dict(self.model, self.optimizer)  # makes a step of zeros, so that there is state
        for state in self.optimizer.state.values():
            state["step"].zero_()

    def state(self) -> dict[str, Any]:
        """All that other replicas have, too: DTensors, the step, and numbers."""
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=flat)
        return {**model, **optimizer, "the step": self.step}

    def train(self, meanwhile: Callable[[Trainer], None]) -> Iterator[str]:
        """Tells of each step and each loss. Calls `meanwhile` between forward and backward."""
        hsdp = self.hsdp
        while self.step < STEPS:
            changed = pccl_torch.admit().changed  # those that lack a shard wait here for the others
            if not hsdp.whole:
                continue
            try:
                if changed:
                    hsdp.sync(self.state())
                if self.step == STEPS - 2 and hsdp.replicas == 1:
                    continue  # the example ends with all of them
                self.optimizer.zero_grad()
                loss = loss_of(self.model, int(self.step), 2 * hsdp.replica + hsdp.shard)
                meanwhile(self)
                loss.backward()
                self.optimizer.step()
                self.step += 1
                yield f"step {int(self.step)} began with {hsdp.replicas} replicas"
            except pccl_torch.PeerLost as lost:
                self.make()
                yield f"lost: {lost}"


def die_once(trainer: Trainer) -> None:
    """The process of the last place kills itself in its third step, in its first life."""
    due = trainer.hsdp.replica == trainer.hsdp.shard == 1 and trainer.step == 2
    if due and os.environ["PCCL_RESTARTS"] == "0":
        os.kill(os.getpid(), 9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("pccl", init_method="pccl://")
    trainer = Trainer(pccl_torch.Hsdp(replicas=2, shards=2))
    for told in trainer.train(die_once):
        print(told, flush=True)
    print("shard", trainer.hsdp.shard, trainer.state()["2.weight"].to_local().sum(), flush=True)
    dist.destroy_process_group()
