"""One peer under PyTorch: the training program of the demo with DistributedDataParallel.

The program has the loop of `peer.py`, with the same text and reports, and uses the NumPy network
for losses and samples. DDP holds the shared parameters; their gradient is the pseudo-gradient of a
round of DiLoCo, which a `pccl_torch.AverageHook` averages.

    python -m examples.demo.peer_torch SETTINGS_AS_JSON INDEX     (PCCL_TOKEN says where to connect)

"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pccl_torch
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import pccl_py as pccl
from examples.demo.corpus import Corpus, draw, standard_library_text
from examples.demo.model import Floats, Model
from examples.demo.peer import Report, account, run, sample
from examples.demo.settings import Settings

dist: Any = torch.distributed
RATE = 3e-3  # learning rate of the inner optimiser


class Network(nn.Module):
    """The network of `model.py`: parameters of the same names and shapes, in the same order."""

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__()
        for name, view in model.views(model.initial(seed)).items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(view.copy())))

    def loss(self, windows: Tensor, targets: Tensor) -> Any:
        """Mean loss in nats per byte. windows: (batch, context); targets: (batch,); of int64."""
        own: Any = self
        embedded = own.table[windows].flatten(1)
        hidden = torch.tanh(embedded @ own.w1 + own.b1)
        return nn.functional.cross_entropy(hidden @ own.w2 + own.b2, targets)

    def forward(self, direction: list[Tensor]) -> Tensor:
        """A value whose gradient is `direction`, a tensor for each parameter."""
        products = [(p * d).sum() for p, d in zip(self.parameters(), direction, strict=True)]
        return torch.stack(products).sum()

    def flat(self) -> Floats:
        """The parameters as the flat array of `model.py`."""
        flat: Floats = nn.utils.parameters_to_vector(self.parameters()).detach().numpy()
        return flat


class Hook(pccl_torch.AverageHook):
    """The hook that averages, with an operation number that the victim's fault point can name."""

    def __init__(self) -> None:
        super().__init__()
        self.is_to_be_found = False

    def __call__(self, state: Any, bucket: Any) -> Any:
        group = dist.group.WORLD
        if self.is_to_be_found:  # a barrier first makes the average operation 1 of its tag
            group.comm.barrier(tag=group.next_tag)
        return super().__call__(state, bucket)


class Training:
    """One peer: the shared network with the outer optimiser, and this peer's own copy of the
    network with the inner optimiser."""

    def __init__(self, settings: Settings, index: int, report: Report) -> None:
        self.settings, self.model, self.report = settings, settings.model, report
        corpus = Corpus.load(standard_library_text())
        self.text = corpus.shard(index, settings.shards)
        self.examination = corpus.examination(self.model.context, settings.examination)
        self.rng = np.random.default_rng((settings.seed, index))

        self.shared = Network(self.model, settings.seed)
        self.outer = torch.optim.SGD(self.shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        self.state = pccl_torch.ElasticState(self.shared, self.outer, rounds_done=0)
        self.local = copy.deepcopy(self.shared)
        self.inner = torch.optim.AdamW(
            self.local.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.01
        )
        self.inner_steps = 0
        self.hook = Hook()
        self.ddp: Any = None

    def train(self) -> None:
        """Takes part in the run until all its rounds are done."""
        while self.state.rounds_done < self.settings.rounds:
            self.admit()
            this_round = self.state.rounds_done + 1
            self.report("training", round=this_round)
            train_loss = self.train_alone()
            self.report("reducing", round=this_round, train_loss=train_loss)
            outcome = self.average(this_round)
            self.state.rounds_done += 1
            self.report(
                "round",
                round=this_round,
                train_loss=train_loss,
                held_out_loss=self.model.loss(self.shared.flat(), *self.examination),
                digest=self.state.digest(),
                **account(dist.group.WORLD.comm, outcome),
            )
        written = sample(self.settings, self.shared.flat())
        self.report("finished", digest=self.state.digest(), text=written)

    def admit(self) -> None:
        """Passes the safe point. If members have changed, syncs the state, and makes a new DDP."""
        before = dist.group.WORLD.peers
        admission = pccl_torch.admit()
        if not admission.changed:
            return
        self.state.sync()
        # 25 MB hold all gradients in one bucket, so that a round has one all_reduce.
        self.ddp = DistributedDataParallel(self.shared, init_sync=False, bucket_cap_mb=25)
        self.ddp.register_comm_hook(None, self.hook)
        self.report(
            "admitted",
            **describe(admission, before),
            digest=self.state.digest(),
            rounds_done=self.state.rounds_done,
            held_out_loss=self.model.loss(self.shared.flat(), *self.examination),
        )

    def train_alone(self) -> float:
        """Takes the steps of a round on this peer's own text, starting from the shared parameters;
        returns their mean loss."""
        settings, total = self.settings, 0.0
        self.local.load_state_dict(self.shared.state_dict())
        remaining = 1 - 0.9 * self.state.rounds_done / settings.rounds
        for _ in range(settings.steps):
            drawn = draw(self.text, self.model.context, settings.batch, self.rng)
            windows, targets = (torch.from_numpy(each).long() for each in drawn)
            self.inner_steps += 1
            warm_up = min(1.0, self.inner_steps / settings.warm_up_steps)
            self.inner.param_groups[0]["lr"] = RATE * warm_up * remaining
            self.inner.zero_grad()
            loss = self.local.loss(windows, targets)
            loss.backward()
            self.inner.step()
            total += loss.item()
        return total / settings.steps

    def average(self, this_round: int) -> pccl.Outcome:
        """Makes the outer step with the average of all pseudo-gradients; returns its outcome."""
        self.hook.is_to_be_found = this_round == self.settings.kill_round
        pairs = zip(self.shared.parameters(), self.local.parameters(), strict=True)
        self.outer.zero_grad()
        self.ddp([(begun - ended).detach() for begun, ended in pairs]).backward()
        self.outer.step()
        (outcome,) = self.hook.outcomes
        return outcome


def describe(admission: pccl_torch.Admission, before: tuple[bytes, ...]) -> dict[str, Any]:
    """An admission, for a report. `before`: the peers that were members before it."""
    group = dist.group.WORLD
    return {
        "epoch": group.comm.epoch,
        "rank": admission.rank,
        "world_size": admission.world_size,
        "members": [str(peer) for peer in group.peers],
        "joined": [str(group.peers[rank]) for rank in admission.joined],
        "left": [str(before[rank]) for rank in admission.left],
    }


def connect(settings: Settings, index: int, report: Report) -> None:
    """Makes the default group of torch.distributed, and trains."""
    torch.set_num_threads(1)
    dist.init_process_group("pccl", init_method="pccl://")
    report("connected", peer_id=str(dist.group.WORLD.comm.peer_id))
    Training(settings, index, report).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    run(connect)
