"""HSDP that survives the death of a process: two replicas of a model, each in two shards.

    pccl run -n 4 --restarts 1 -- python examples/torch_hsdp.py

One process kills itself. `pccl run` starts it again, and it fetches its shard from the other
replica, which has gone on training.
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
    """The whole model before sharding, with layers in f32 and f64."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8).double())


def loss_of(model: nn.Module, step: int, place: int) -> Any:
    """The loss on the batch of a step and a place (process)."""
    torch.manual_seed(1000 * step + place)
    first, tanh, last = model.children()
    return last(tanh(first(torch.randn(4, 16))).double()).square().mean()


class Trainer:
    """A sharded model, its optimizer, and the number of steps that they have taken."""

    def __init__(self, hsdp: pccl_torch.Hsdp) -> None:
        self.hsdp = hsdp
        self.step = torch.zeros(1, dtype=torch.int64)
        self.make()

    def make(self) -> None:
        """Makes a new model and optimizer, because FSDP cannot go on after an interrupted step."""
        self.model = make_model()
        fully_shard(self.model[0], mesh=self.hsdp.mesh)
        fully_shard(self.model[2], mesh=self.hsdp.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        get_state_dict(self.model, self.optimizer)  # creates the optimizer's state by a zero step
        for state in self.optimizer.state.values():
            state["step"].zero_()

    def state(self) -> dict[str, Any]:
        """All state that must be equal in all replicas: DTensors, the step, and numbers."""
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=flat)
        return {**model, **optimizer, "the step": self.step}

    def train(self, meanwhile: Callable[[Trainer], None]) -> Iterator[str]:
        """Trains, and yields a line for each step and each lost member. Calls `meanwhile` between
        forward and backward."""
        hsdp = self.hsdp
        while self.step < STEPS:
            changed = pccl_torch.admit().changed  # members of incomplete replicas wait here
            if not hsdp.whole:
                continue
            try:
                if changed:
                    hsdp.sync(self.state())
                if self.step == STEPS - 2 and hsdp.replicas == 1:
                    continue  # waits for the lost replica, so that the example ends with both
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
    """The process in the last place kills itself in its third step, unless it was restarted."""
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
