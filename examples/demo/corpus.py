"""The corpus: the text of the Python standard library, which every machine with Python has.

Decides which bytes are for training, which are held out, and which peer gets which training bytes.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.demo.model import Bytes

TEXT_BYTES_MAX = 4 << 20
BLOCK_BYTES = 4096
HELD_OUT_EVERY = 32  # one block of 32 is held out, so not trained on


def standard_library_text(folder: Path | None = None) -> bytes:
    """The first 4 MiB of the `*.py` files directly in the standard library's folder, in the order
    of their names."""
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
    """The text in blocks of 4 KiB, assigned in turn, so that all parts have similar text."""

    training: Bytes  # (blocks, BLOCK_BYTES)
    held_out: Bytes

    @classmethod
    def load(cls, text: bytes) -> Corpus:
        """Splits the text into blocks, without a last piece that is shorter than a block."""
        count = len(text) // BLOCK_BYTES
        blocks = np.frombuffer(text, np.uint8, count * BLOCK_BYTES).reshape(count, BLOCK_BYTES)
        held = np.arange(count) % HELD_OUT_EVERY == 0
        return cls(training=blocks[~held], held_out=blocks[held])

    def shard(self, index: int, count: int) -> Bytes:
        """Peer `index`'s own part of the training text, which is divided into `count` parts."""
        return np.ascontiguousarray(self.training[index::count]).reshape(-1)

    def examination(self, context: int, batch: int) -> tuple[Bytes, Bytes]:
        """Windows and targets from the held-out text, the same on every peer and in every round."""
        return draw(self.held_out.reshape(-1), context, batch, np.random.default_rng(0))


def draw(text: Bytes, context: int, batch: int, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """Windows at random places of `text`, (batch, context), and the byte after each, (batch,)."""
    starts = rng.integers(0, len(text) - context, batch)
    return text[starts[:, None] + np.arange(context)], text[starts + context]
