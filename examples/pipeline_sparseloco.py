"""Heterogeneous SparseLoCo (arXiv 2601.02360): two small machines share one replica of a model.

    pccl run -n 3 -- python examples/pipeline_sparseloco.py

Process 0 holds a whole replica, processes 1 and 2 the two stages of a second replica, and with
`-n 5` processes 3 and 4 the stages of a third. Stages send each other activations and their
gradients, projected onto KEPT of WIDTH dimensions. Replicas exchange each part of the model by
SparseLoCo, in a group of the processes that hold the part. A replica that loses a stage ends; the
other replicas go on.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Any

import pccl_train.torch
import torch
from pccl_train import SGD, Sparse

import pccl_py as pccl
from examples.small_gpt import BATCH, CONTEXT, WORKER, SmallGPT, batches, tell

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
WIDTH, KEPT = 64, 8
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))
REPLICA, REPLICAS = (WORKER + 1) // 2, (PROCESSES + 1) // 2
STAGE = "whole" if WORKER == 0 else "front" if WORKER % 2 else "back"
# Orthonormal columns that span the subspace of activations, the same in all processes.
BASIS = torch.linalg.qr(torch.randn(WIDTH, KEPT, generator=torch.Generator().manual_seed(0)))[0]


def train(model: SmallGPT, text: torch.Tensor, stages: Any, embedding: Any) -> Any:
    """Computes the gradients of this process's parameters for a batch. Returns the loss, or None on
    the front stage, which has no head."""
    if STAGE == "whole":
        loss = model(text)
        loss.backward()
        return loss
    (block,), other = model.blocks, 1 - stages.rank
    # Both stages have the embedding from before this round, so only the difference is projected.
    before = {name: torch.from_numpy(x) for name, x in embedding.outer_parameters.items()}
    known = torch.func.functional_call(model.embedding, before, text)
    if STAGE == "front":
        projected = (block(model.embedding(text)) - known) @ BASIS
        gradient = torch.empty_like(projected)
        stages.send(projected.detach(), other)
        stages.recv(gradient, other)
        return projected.backward(gradient)
    projected = torch.empty(BATCH, CONTEXT, KEPT)
    stages.recv(projected, other)
    loss = model.loss(block(known + projected.requires_grad_() @ BASIS.T), text)
    loss.backward()
    stages.send(projected.grad, other)
    return loss


def main(opened: ExitStack) -> None:
    def group(name: str, members: int) -> pccl.Communicator:
        comm = pccl.connect(group=name, initial_world_size=members, deadline=60)
        return opened.enter_context(comm)

    torch.set_num_threads(1)
    torch.manual_seed(REPLICA)
    model, text = SmallGPT(layers=2 if STAGE == "whole" else 1), batches(REPLICA)
    last = torch.nn.ModuleList([model.blocks[-1], model.head])
    parts = {"embedding": model.embedding, "front": model.blocks[0], "back": last}
    if STAGE != "whole":
        del parts["back" if STAGE == "front" else "front"]
    # The back stage receives the embedding of other processes, and contributes none of its own.
    trained = {"back": last} if STAGE == "back" else parts
    optimizer = torch.optim.AdamW(torch.nn.ModuleDict(trained).parameters(), lr=3e-3)
    training: dict[str, Any] = {}
    for name, part in parts.items():
        training[name] = pccl_train.torch.DiLoCo(
            group(name, PROCESSES if name == "embedding" else REPLICAS), part, optimizer,
            sync_every=15, outer=SGD(1.0), sparse=Sparse(kept=64),
            tokens=None if name in trained else lambda: 0.0,
        )  # fmt: skip
        opened.enter_context(training[name])
    stages = None if STAGE == "whole" else group(f"stages {REPLICA}", 2)
    if stages:
        stages.admit()
    for _ in range(STEPS):
        train(model, next(text), stages, training["embedding"])
        optimizer.step()  # each fifteenth step then exchanges every part
        optimizer.zero_grad()
    for name, each in training.items():
        each.finish()
        tell(f"end: {name} {each.digest()}")
    if (loss := train(model, next(text), stages, training["embedding"])) is not None:
        tell(f"end: loss {loss.item():.3f}")
    if stages:
        tell(f"{stages.info().bytes_sent >> 10} KiB sent to the other stage")


if __name__ == "__main__":
    assert PROCESSES % 2, "-n must be odd: a whole replica, and pairs of stages"
    with ExitStack() as stack:
        main(stack)
