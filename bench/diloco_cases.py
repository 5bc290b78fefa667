"""The methods of `bench diloco`, and how much each of them trains.

It owns the settings alone, and needs no framework. diloco_quality.py trains all of the methods,
diloco_losses.py the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pccl_train import SGD, Nesterov, Sparse

WORKERS = 4
TORCH, JAX = "torch", "jax"


@dataclass(frozen=True)
class Size:
    """How much is trained; over links, so many numbers instead of a model."""

    width: int
    layers: int
    warm_up: int
    steps: int
    numbers: int
    seeds: Sequence[int] = (0,)


FULL = Size(width=96, layers=3, warm_up=200, steps=400, numbers=2_500_000)
QUICK = Size(width=32, layers=1, warm_up=8, steps=24, numbers=100_000)


@dataclass(frozen=True)
class Case:
    """One method: `every` is H, `settings` the rest. `muon`: the inner optimizer of matrices."""

    every: int
    settings: dict[str, Any] = field(default_factory=dict)
    muon: bool = False
    framework: str = TORCH


def cases(size: Size) -> dict[str, Case]:
    """The methods, by name."""
    every = min(50, size.steps // 4)
    short = min(10, size.steps // 4)
    streaming: dict[str, Any] = {
        "fragments": 4, "order": "balanced", "fragment_sync_delay": every // 10,
    }  # fmt: skip
    late = {"fragment_sync_delay": every, "outer": Nesterov(0.4, 0.6)}
    sparse = {"outer": SGD(1.0), "sparse": Sparse(kept=40)}
    return {
        "diloco": Case(every),
        "diloco int8": Case(every, {"codec": "int8"}),
        "diloco int4, feedback": Case(every, {"codec": "int4", "error_feedback": True}),
        "delayed": Case(every, late),
        "eager": Case(every, {**late, "eager": True}),
        "streaming": Case(every, streaming),
        "streaming, alpha 0.5": Case(every, {**streaming, "fragment_update_alpha": 0.5}),
        "streaming e3m0": Case(every, {**streaming, "codec": "e3m0"}),
        "sparseloco": Case(short, sparse),
        "muloco int4": Case(every, {"codec": "int4", "error_feedback": True}, muon=True),
        "jax diloco": Case(every, framework=JAX),
        "jax streaming": Case(every, streaming, framework=JAX),
    }
