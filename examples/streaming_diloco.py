"""Streaming DiLoCo (arXiv 2501.18512): exchanges a third of a small GPT every ten steps, in four
bits.

    pccl run -n 4 --restarts 4 -- python examples/streaming_diloco.py

Kill a process: the other processes go on, `pccl run` starts the process again, and it receives
their model. To join from another terminal, start the program with PCCL_TOKEN set
(`pccl run --token-file`).
"""

from __future__ import annotations

import sys

import pccl_train.torch
import torch

from examples.small_gpt import WORKER, SmallGPT, batches, tell

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 600


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(WORKER)  # peers need not begin with equal parameters
    model, text = SmallGPT(), batches(WORKER)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    diloco = pccl_train.torch.DiLoCo(
        None, model, optimizer,
        sync_every=30, fragments=3, order="strided",
        fragment_sync_delay=5, fragment_update_alpha=0.5, codec="e3m0",
    )  # fmt: skip
    for turn in pccl_train.steps(diloco, STEPS):
        loss = model(next(text))
        loss.backward()
        optimizer.step()  # an inner step; also begins and ends exchanges that are due
        optimizer.zero_grad()
        if turn.step % 50 == 0:
            tell(f"{turn}; loss {loss.item():.3f}")
    tell(f"end: loss {model(next(text)).item():.3f}, digest {diloco.digest()}")


if __name__ == "__main__":
    main()
