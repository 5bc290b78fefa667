"""A small GPT over bytes, and text to train it with: the Python files of the standard library.

The examples of low-communication training use this model: streaming_diloco.py, torch_diloco.py,
muloco.py, sparseloco.py, pipeline_sparseloco.py and dp_lora.py.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CONTEXT, HEADS, BATCH = 64, 4, 16
# The number that `pccl run` gives this process; it selects the process's text.
WORKER = int(os.environ.get("RANK", "0"))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], HEADS, x.shape[2] // HEADS)
        q, k, v = (
            part.view(shape).transpose(1, 2) for part in self.attention(self.norm(x)).chunk(3, -1)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(heads.transpose(1, 2).reshape(x.shape))
        mixed: Tensor = x + self.mlp(x)
        return mixed


class Embedding(nn.Module):
    """Embeds all but the last of (batch, CONTEXT + 1) bytes, as (batch, CONTEXT, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)

    def forward(self, text: Tensor) -> Any:
        return self.bytes(text[:, :-1]) + self.places.weight


class SmallGPT(nn.Module):
    """A GPT with 137,000 parameters by default.

    forward: the mean loss, in nats a byte, on (batch, CONTEXT + 1) bytes.
    """

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = Embedding(width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Any:
        x = self.embedding(text)
        for block in self.blocks:
            x = block(x)
        return self.loss(x, text)

    def loss(self, x: Tensor, text: Tensor) -> Any:
        """The mean loss on `text`, from the activations `x` after the last block."""
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), text[:, 1:].flatten())


def batches(seed: int) -> Iterator[Tensor]:
    """Endless batches of (BATCH, CONTEXT + 1) bytes, from a quarter of the files; seeds 0 to 3 use
    different quarters."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[seed % 4 :: 4]
    text = torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, files))), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
        yield text[starts + torch.arange(CONTEXT + 1)].long()


def tell(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
