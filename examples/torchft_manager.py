"""Three replicas train with torchft over PCCL; one dies in a backward and is replaced and healed.

    pip install 'pccl-py[torch]' torchft
    RUST_LOG=warn python examples/torchft_manager.py
    RUST_LOG=warn python examples/torchft_manager.py --recovery resume

By default torchft discards the step in which a replica dies; with `--recovery resume` the survivors
commit it. torchft's Manager and optimizer are used as usual. docs/guides/TORCH.md explains how they
react to a lost replica.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
import torchft  # pyright: ignore[reportMissingImports]
from pccl_torch.torchft import DistributedDataParallel, ProcessGroupPccl
from torch import nn
from torchft.coordination import LighthouseServer  # pyright: ignore[reportMissingImports]

dist: Any = torch.distributed  # untyped, because torch.distributed has types from C++
# One replica dies in step DEATH. Training ends after TOGETHER committed steps with all replicas.
REPLICAS, DEATH, TOGETHER = 3, 3, 6


def train(recovery: str, number: str, role: str, lighthouse: str) -> None:
    if role == "spare":
        input()  # waits until main() reports the death of the replica that it replaces
    torch.set_num_threads(1)
    torch.manual_seed(int(number))  # torchft makes the replicas' parameters equal
    model: Any = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    together, said = 0, ""

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "adam": adam.state_dict(), "together": together}

    def load(state: dict[str, Any]) -> None:
        nonlocal together
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        together = state["together"]

    there = (lambda: manager.num_participants()) if recovery == "resume" else None
    group: Any = ProcessGroupPccl(timedelta(seconds=30), recovery=recovery, participants=there)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    places = {"store_addr": "localhost", "store_port": store.port, "lighthouse_addr": lighthouse}
    manager: Any = torchft.Manager(
        group, load, state, min_replica_size=2, rank=0, world_size=1, replica_id=number, **places
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, adam)

    def die(_: torch.Tensor) -> None:
        if manager.num_participants() == REPLICAS and manager.current_step() >= DEATH:
            os.kill(os.getpid(), signal.SIGKILL)

    if role == "dies":
        model[0].weight.register_hook(die)
    while together < TOGETHER:
        before, inputs = manager.current_step(), torch.randn(8, 16)
        optimizer.zero_grad()  # begins a step: torchft forms the quorum
        loss: Any = nn.functional.mse_loss(ddp(inputs), inputs[:, :4])
        loss.backward()
        optimizer.step()  # updates the parameters only if torchft commits the step
        count, counts = manager.num_participants(), manager.current_step() > before
        together = 0 if count < REPLICAS else together + counts
        if said != (said := f"{count} replicas, {'committed' if counts else 'not committed'}"):
            print(f"replica {number} step {before}: {said}", flush=True)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(f"replica {number} ends: {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
    manager.shutdown()
    group.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recovery", choices=("complete", "resume"), default="complete")
    parser.add_argument("--replica", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.replica is not None:
        return train(asked.recovery, *asked.replica)
    house = LighthouseServer("[::]:0", 2, join_timeout_ms=5000, heartbeat_timeout_ms=1000)
    own = [sys.executable, __file__, "--recovery", asked.recovery, "--replica"]
    roles = (("0", "stays"), ("1", "stays"), ("2", "dies"), ("2", "spare"))
    one, two, dying, spare = (
        subprocess.Popen([*own, *role, house.address()], stdin=subprocess.PIPE) for role in roles
    )
    assert dying.wait() == -signal.SIGKILL
    spare.communicate(b"\n")
    sys.exit(max(abs(replica.wait()) for replica in (one, two, spare)))


if __name__ == "__main__":
    main()
