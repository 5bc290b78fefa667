"""DiLoCo (arXiv 2311.08105) in your own loop: int8, overlapped, resumed from a checkpoint.

    pccl run -n 4 -- python examples/torch_diloco.py
    pccl run -n 4 -- python examples/torch_diloco.py 600 --resume

The program itself connects to the group and closes it, as a program for torchft makes its manager.
`pccl_train.steps` (streaming_diloco.py) is this loop, and handles errors as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pccl_train.torch
import torch

import pccl_py as pccl
from examples.small_gpt import WORKER, SmallGPT, batches, tell

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
FOLDER = Path(os.environ.get("FOLDER", tempfile.gettempdir()))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(WORKER)
    model, text = SmallGPT(), batches(WORKER)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpoint = FOLDER / f"torch_diloco.{WORKER}.pt"  # each worker has its own file
    with pccl.connect() as comm:
        diloco = pccl_train.torch.DiLoCo(
            comm, model, optimizer,
            sync_every=50, fragment_sync_delay=10, codec="int8", on_exchange=tell,
        )  # fmt: skip
        if "--resume" in sys.argv:
            diloco.load(checkpoint)
            tell(f"going on from step {diloco.progress}")
        with diloco:
            while diloco.progress < STEPS:
                for _ in range(2):  # a step accumulates the gradients of two batches
                    (model(next(text)) / 2).backward()
                optimizer.step()
                optimizer.zero_grad()
                if diloco.position == 10:  # here the previous round's exchange has ended
                    diloco.save(checkpoint)
            diloco.finish()
    tell(f"end: loss {model(next(text)).item():.3f}, digest {diloco.digest()}")


if __name__ == "__main__":
    main()
