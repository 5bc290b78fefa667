"""MuLoCo (arXiv 2505.23725): DiLoCo with Muon as the inner optimizer.

    pccl run -n 4 -- python examples/muloco.py

Muon updates the matrices, and AdamW all other parameters. DiLoCo counts Muon's steps, because in a
turn Muon steps last.
"""

from __future__ import annotations

import sys

import pccl_train.torch
import torch
from pccl_train import Nesterov

from examples.small_gpt import WORKER, SmallGPT, batches, tell

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(WORKER)
    model, text = SmallGPT(), batches(WORKER)
    matrices = [p for name, p in model.blocks.named_parameters() if p.ndim == 2]
    seen = {id(p) for p in matrices}
    others = torch.optim.AdamW([p for p in model.parameters() if id(p) not in seen], lr=3e-3)
    muon = torch.optim.Muon(matrices, lr=0.02)
    diloco = pccl_train.torch.DiLoCo(
        None, model, muon, sync_every=30, outer=Nesterov(0.7, 0.6), codec="int4"
    )
    for turn in pccl_train.steps(diloco, STEPS):
        loss = model(next(text))
        loss.backward()
        for optimizer in (others, muon):
            optimizer.step()
            optimizer.zero_grad()
        if turn.step % 50 == 0:
            tell(f"{turn}; loss {loss.item():.3f}")
    tell(f"end: loss {model(next(text)).item():.3f}, digest {diloco.digest()}")


if __name__ == "__main__":
    main()
