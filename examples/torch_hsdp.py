"""HSDP that goes on when a process dies: two replicas of a model, each in two shards.

    pccl run -n 4 --restarts 1 -- python examples/torch_hsdp.py

One process kills itself before a backward. Its replica stops, the other one goes on with gradients
of its own. `pccl run` starts the dead one again: it takes the free place and fetches its shard, as
its partner does, from the other replica. At the end both replicas print the same digests.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard

import pccl_torch

STEPS = 6


def make_model() -> nn.Sequential:
    """The whole model, in two precisions."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8).double())


def loss_of(model: nn.Module, step: int, place: int) -> Tensor:
    """The loss of the batch that a place in the mesh has in a step."""
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
        for layer in (self.model[0], self.model[2]):
            fully_shard(layer, mesh=self.hsdp.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        get_state_dict(self.model, self.optimizer)  # makes a step of zeros, so that there is state
        for state in self.optimizer.state.values():
            state["step"].zero_()

    def state(self) -> dict[str, Any]:
        """All that other replicas have, too: DTensors, the step, and numbers."""
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        return {**model, **optimizer, "the step": self.step}

    def train(self, meanwhile: Callable[[Trainer], None]) -> Iterator[str]:
        """Tells of each step and each loss. Calls `meanwhile` between forward and backward."""
        hsdp = self.hsdp
        while self.step < STEPS:
            changed = pccl_torch.admit().changed  # those that lack a shard wait here for the others
            was_whole = hsdp.whole
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
                if was_whole:
                    yield f"lost: {lost}"


def die_once(trainer: Trainer) -> None:
    """The process of the last place kills itself in its third step, in its first life."""
    if trainer.hsdp.replica == trainer.hsdp.shard == 1 and trainer.step == 2:
        if os.environ["PCCL_RESTARTS"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("pccl", init_method="pccl://")
    trainer = Trainer(pccl_torch.Hsdp(replicas=2, shards=2))
    for told in trainer.train(die_once):
        print(told, flush=True)
    shards = [p.to_local().detach().numpy().tobytes() for p in trainer.model.parameters()]
    print(f"shard {trainer.hsdp.shard}: {hashlib.sha256(b''.join(shards)).hexdigest()}", flush=True)
    dist.destroy_process_group()
