"""SparseLoCo (arXiv 2508.15706): workers exchange 64 of each 4096 elements, in two bits each.

    pccl run -n 4 -- python examples/sparseloco.py

A worker keeps the elements that it does not send, and adds them to the next pseudo-gradient, which
replaces an outer momentum.
"""

from __future__ import annotations

import sys

import pccl_train.torch
import torch
from pccl_train import SGD, Exchange, Sparse

from examples.small_gpt import WORKER, SmallGPT, batches, tell

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(WORKER)
    model, text = SmallGPT(), batches(WORKER)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    exchanges: list[Exchange] = []
    diloco = pccl_train.torch.DiLoCo(
        None, model, optimizer, sync_every=15, outer=SGD(1.0), sparse=Sparse(kept=64),
        on_exchange=exchanges.append,
    )  # fmt: skip
    for turn in pccl_train.steps(diloco, STEPS):
        loss = model(next(text))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if turn.step % 50 == 0:
            tell(f"{turn}; loss {loss.item():.3f}")
    parameters = sum(p.numel() for p in model.parameters())
    sent = sum(exchange.bytes_sent for exchange in exchanges)
    tell(f"{sent >> 10} KiB sent, where {STEPS} gradients have {STEPS * 4 * parameters >> 10} KiB")
    tell(f"end: loss {model(next(text)).item():.3f}, digest {diloco.digest()}")


if __name__ == "__main__":
    main()
