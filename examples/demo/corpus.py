"""The corpus: the text of the Python standard library, which is on every machine that can run this.

It owns which bytes are trained on, which are held out, and which peer sees which. `model.py` learns
from them.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.demo.model import Bytes

TEXT_BYTES_MAX = 4 << 20
BLOCK_BYTES = 4096
HELD_OUT_EVERY = 32  # one block of 32 is kept from training


def standard_library_text(folder: Path | None = None) -> bytes:
    """The `*.py` files directly in the standard library's folder, by name, the first 4 MiB."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))[:TEXT_BYTES_MAX]
    if len(text) < HELD_OUT_EVERY * BLOCK_BYTES:
        raise ValueError(
            f"{folder} holds only {len(text)} bytes of Python source; the demo learns from the "
            "*.py files there, so install them (some distributions split them off)"
        )
    return text


@dataclass(frozen=True)
class Corpus:
    """The text in blocks of 4 KiB, dealt out in turn, so that each part is like the whole."""

    training: Bytes  # (blocks, BLOCK_BYTES)
    held_out: Bytes

    @classmethod
    def load(cls, text: bytes) -> Corpus:
        """Splits the text; a last piece shorter than a block is left away."""
        count = len(text) // BLOCK_BYTES
        blocks = np.frombuffer(text, np.uint8, count * BLOCK_BYTES).reshape(count, BLOCK_BYTES)
        held = np.arange(count) % HELD_OUT_EVERY == 0
        return cls(training=blocks[~held], held_out=blocks[held])

    def shard(self, index: int, count: int) -> Bytes:
        """The part of the training text that is peer `index`'s alone, one of `count`."""
        return np.ascontiguousarray(self.training[index::count]).reshape(-1)

    def examination(self, context: int, batch: int) -> tuple[Bytes, Bytes]:
        """Windows and targets of the held-out text; the same on every peer and in every round."""
        return draw(self.held_out.reshape(-1), context, batch, np.random.default_rng(0))


def draw(text: Bytes, context: int, batch: int, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """Windows at random places, (batch, context) bytes, and the (batch,) bytes after them."""
    starts = rng.integers(0, len(text) - context, batch)
    return text[starts[:, None] + np.arange(context)], text[starts + context]
