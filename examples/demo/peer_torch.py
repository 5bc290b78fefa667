"""One peer under PyTorch: the training program of the demo with DistributedDataParallel.

It owns the same loop as `peer.py`, of which it takes all that is not PyTorch's: text, reports, and
the network in NumPy for what is only looked at. The shared parameters are in DDP, whose gradient is
the pseudo-gradient of a round (`diloco.py`), averaged by `pccl_torch.average_hook`.

    python -m examples.demo.peer_torch SETTINGS_AS_JSON INDEX     (PCCL_TOKEN says where to connect)

"""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import numpy as np
import pccl_torch
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from examples.demo.corpus import Corpus, draw, standard_library_text
from examples.demo.model import Floats, Model
from examples.demo.peer import Report, account, run, sample
from examples.demo.settings import Settings

dist: Any = torch.distributed


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
        """The parameters as `model.py` has them."""
        flat: Floats = nn.utils.parameters_to_vector(self.parameters()).detach().numpy()
        return flat


class Victim(pccl_torch.AverageHook):
    """Kills its process when it has sent half of the bytes of an average."""

    def __init__(self) -> None:
        super().__init__(None, True, "resume")
        self.dies = False

    def __call__(self, state: Any, bucket: Any) -> Any:
        comm = dist.group.WORLD.comm
        others, size = comm.world_size - 1, bucket.buffer().nbytes
        # A ring sends each part of the buffer twice, but for that of one member.
        end = comm.info().bytes_sent + size * others // (others + 1)
        future = super().__call__(state, bucket)
        while self.dies:
            if comm.info().bytes_sent >= end:
                os.kill(os.getpid(), signal.SIGKILL)
        return future


def train(settings: Settings, index: int, report: Report) -> None:
    """Takes part in the run until all its rounds are done."""
    model = settings.model
    corpus = Corpus.load(standard_library_text())
    text = corpus.shard(index, settings.shards)
    examination = corpus.examination(model.context, settings.examination)
    rng = np.random.default_rng((settings.seed, index))

    shared = Network(model, settings.seed)
    outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    state = pccl_torch.ElasticState(shared, outer, rounds_done=0)
    local = copy.deepcopy(shared)
    inner = torch.optim.AdamW(local.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.01)
    inner_steps = 0
    hook = Victim() if index == settings.victim else pccl_torch.average_hook()
    ddp: Any = None

    while state.rounds_done < settings.rounds:
        before = dist.group.WORLD.peers
        admission = pccl_torch.admit()
        if admission.changed:
            synced = state.sync()
            # One bucket, so that a round has one all_reduce.
            ddp = DistributedDataParallel(shared, init_sync=False, bucket_cap_mb=25)
            ddp.register_comm_hook(None, hook)
            report(
                "admitted",
                **describe(admission, before),
                revision=synced.revision,
                leaves_moved=synced.leaves_moved,
                sources=synced.sources,
                digest=state.digest(),
                rounds_done=state.rounds_done,
                held_out_loss=model.loss(shared.flat(), *examination),
            )
        this_round = state.rounds_done + 1

        report("training", round=this_round)
        local.load_state_dict(shared.state_dict())
        remaining = 1 - 0.9 * state.rounds_done / settings.rounds
        train_loss = 0.0
        for _ in range(settings.steps):
            windows, targets = draw(text, model.context, settings.batch, rng)
            inner.zero_grad()
            loss = local.loss(torch.from_numpy(windows).long(), torch.from_numpy(targets).long())
            loss.backward()
            train_loss += loss.item() / settings.steps
            inner_steps += 1
            inner.param_groups[0]["lr"] = (
                3e-3 * remaining * min(1.0, inner_steps / settings.warm_up_steps)
            )
            inner.step()

        report("reducing", round=this_round, train_loss=train_loss)
        if isinstance(hook, Victim):
            hook.dies = this_round == settings.kill_round
        pairs = zip(shared.parameters(), local.parameters(), strict=True)
        outer.zero_grad()
        ddp([(begun - ended).detach() for begun, ended in pairs]).backward()
        outer.step()
        state.rounds_done += 1

        (outcome,) = hook.outcomes
        report(
            "round",
            round=this_round,
            train_loss=train_loss,
            held_out_loss=model.loss(shared.flat(), *examination),
            digest=state.digest(),
            **account(dist.group.WORLD.comm, outcome),
        )

    report("finished", digest=state.digest(), text=sample(settings, shared.flat()))


def describe(admission: pccl_torch.Admission, before: tuple[bytes, ...]) -> dict[str, Any]:
    """An admission, for a report. `before`: the peers that were members until then."""
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
    train(settings, index, report)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(connect)
