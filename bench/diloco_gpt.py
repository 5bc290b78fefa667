"""A worker of `bench diloco` that trains the GPT of the examples with PyTorch, and its text.

A worker is a model with its inner optimizers. It knows nothing of seeds and warm-ups, which are
diloco_quality.py's, nor of processes, which are diloco_losses.py's. diloco_jax.py is the same
worker in JAX.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pccl_train.torch
import torch
from pccl_train import Exchange
from torch import Tensor

from bench.diloco_cases import WORKERS, Case, Size
from examples.small_gpt import CONTEXT, SmallGPT
from pccl_py.communicator import Communicator

BATCH = 8
HELD_OUT_EVERY = 32  # one block of 32 is kept from training
BLOCK = 4096
EXAMINED = 512
LEARNING_RATE = 2e-3


class Model(SmallGPT):
    """The GPT of the examples, of a size, with parameters that follow from a seed."""

    def __init__(self, size: Size, seed: int) -> None:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            super().__init__(size.width, size.layers)
            for parameter in self.parameters():
                if parameter.ndim == 2:
                    parameter.normal_(0, 0.5 / parameter.shape[1] ** 0.5)


class Text:
    """The standard library in blocks: a part for each worker, and what is held out."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        whole = np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)
        blocks = torch.from_numpy(whole[: len(whole) // BLOCK * BLOCK].reshape(-1, BLOCK).copy())
        is_held = torch.arange(len(blocks)) % HELD_OUT_EVERY == 0
        self._parts = [blocks[~is_held][rank::WORKERS].flatten() for rank in range(WORKERS)]
        self._held_out = blocks[is_held].flatten()

    def batches(self, rank: int, seed: int) -> Iterator[Tensor]:
        """(BATCH, CONTEXT + 1) bytes each, of the worker's part."""
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            yield _windows(self._parts[rank], BATCH, generator)

    def held_out(self) -> Tensor:
        """(EXAMINED, CONTEXT + 1) bytes that nobody trains with, the same for all."""
        return _windows(self._held_out, EXAMINED, torch.Generator().manual_seed(0))


def _windows(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - CONTEXT - 1, (count, 1), generator=generator)
    return text[starts + torch.arange(CONTEXT + 1)].long()


class Worker:
    """A model and its AdamW, which copies and checkpoints have the state of."""

    def __init__(self, size: Size, seed: int) -> None:
        self.model = Model(size, seed)
        self.adamw = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)

    def state_dict(self) -> dict[str, Any]:
        """The state of the model, and of AdamW."""
        return {"model": self.model.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a `state_dict`."""
        self.model.load_state_dict(state["model"])
        self.adamw.load_state_dict(state["adamw"])

    def loss(self, text: Tensor) -> float:
        """In nats a byte."""
        with torch.no_grad():
            return float(self.model(text).item())

    def synchronous(self, comm: Communicator, batches: Iterator[Tensor], steps: int) -> int:
        """Averages all gradients in every step. Returns the bytes of payload that it sent."""
        sent = 0
        for _ in range(steps):
            self.model(next(batches)).backward()
            gradients: Any = [p.grad for p in self.model.parameters()]
            sent += comm.all_reduce(gradients, op="avg").bytes_sent
            self.adamw.step()
            self.adamw.zero_grad()
        return sent

    def rarely(
        self,
        comm: Communicator,
        batches: Iterator[Tensor],
        steps: int,
        case: Case,
        on_exchange: Callable[[Exchange], object],
    ) -> None:
        """Trains by a method until the run has made so many steps."""
        optimizers = self._optimizers(case)
        with pccl_train.torch.DiLoCo(
            comm, self.model, optimizers[-1],
            sync_every=case.every, on_exchange=on_exchange, **case.settings,
        ) as diloco:  # fmt: skip
            while diloco.progress < steps:
                self.model(next(batches)).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            diloco.finish()

    def _optimizers(self, case: Case) -> list[torch.optim.Optimizer]:
        """AdamW; with Muon, last, AdamW anew for what is no matrix of a block."""
        if not case.muon:
            return [self.adamw]
        matrices = [p for p in self.model.blocks.parameters() if p.ndim == 2]
        theirs = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in theirs]
        return [
            torch.optim.AdamW(others, LEARNING_RATE),
            torch.optim.Muon(matrices, lr=0.02),
        ]
