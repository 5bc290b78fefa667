"""Three replicas train with torchft over PCCL. One dies in a backward, starts again, is healed.

    pip install 'pccl-py[torch]' torchft
    RUST_LOG=warn python examples/torchft_manager.py                      a loss costs a step
    RUST_LOG=warn python examples/torchft_manager.py --recovery resume    the step counts without it

torchft's Manager, DDP and optimizer are as always: only the process group is ours.
docs/TORCH.md says what a loss is to them.
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
from pccl_torch.torchft import ProcessGroupPccl
from torchft import (  # pyright: ignore[reportMissingImports]
    DistributedDataParallel,
    Manager,
    Optimizer,
)
from torchft.coordination import LighthouseServer  # pyright: ignore[reportMissingImports]

dist: Any = torch.distributed  # its types are those of C++
# One dies after so many steps; the end is after six of all together.
REPLICAS, DEATH, TOGETHER = 3, 3, 6


def train(number: int, lighthouse: str, recovery: str, role: str) -> None:
    """One replica: here of one process."""
    if role == "spare":
        input()  # until the other one is dead
    torch.set_num_threads(1)
    torch.manual_seed(number)  # torchft makes them equal
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    )
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    together = 0

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "adam": adam.state_dict(), "together": together}

    def load(state: dict[str, Any]) -> None:
        nonlocal together
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        together = state["together"]

    participants = (lambda: manager.num_participants()) if recovery == "resume" else None
    group: Any = ProcessGroupPccl(
        timedelta(seconds=30), recovery=recovery, participants=participants
    )
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager: Any = Manager(group, load, state, min_replica_size=2, rank=0, world_size=1,
                      store_addr="localhost", store_port=store.port, lighthouse_addr=lighthouse,
                      replica_id=f"replica_{number}")  # fmt: skip
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, adam)

    def die(_: torch.Tensor) -> None:
        if manager.num_participants() == REPLICAS and manager.current_step() >= DEATH:
            os.kill(os.getpid(), signal.SIGKILL)

    if role == "dies":
        model[0].weight.register_hook(die)
    said = ""
    while together < TOGETHER:
        before, inputs = manager.current_step(), torch.randn(8, 16)
        optimizer.zero_grad()  # begins the step: who takes part?
        loss: Any = torch.nn.functional.mse_loss(ddp(inputs), inputs[:, :4])
        loss.backward()
        optimizer.step()  # if it counts
        there, counts = manager.num_participants(), manager.current_step() > before
        together = 0 if there < REPLICAS else together + counts
        if said != (said := f"{there} replicas, {'committed' if counts else 'not committed'}"):
            print(f"replica {number} step {before}: {said}", flush=True)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    print(f"replica {number} ends: {digest.hexdigest()[:16]}", flush=True)
    manager.shutdown()
    group.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recovery", choices=("complete", "resume"), default="complete")
    parser.add_argument("--replica", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.replica is not None:
        number, role, lighthouse = asked.replica
        return train(int(number), lighthouse, asked.recovery, role)
    house = LighthouseServer("[::]:0", 2, join_timeout_ms=5000, heartbeat_timeout_ms=1000)
    own = [sys.executable, __file__, "--recovery", asked.recovery, "--replica"]
    one, two, dying, spare = (
        subprocess.Popen([*own, number, role, house.address()], stdin=subprocess.PIPE)
        for number, role in (("0", "stays"), ("1", "stays"), ("2", "dies"), ("2", "spare"))
    )
    assert dying.wait() == -signal.SIGKILL
    spare.communicate(b"\n")
    sys.exit(max(abs(replica.wait()) for replica in (one, two, spare)))


if __name__ == "__main__":
    main()
