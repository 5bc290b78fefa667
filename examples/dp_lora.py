"""Federated fine-tuning with differential privacy: DP-LoRA (arXiv 2312.17493) on a small GPT.

    pccl run -n 2 -- python examples/dp_lora.py

The weights W of a trained model are frozen. Each linear layer becomes W + BA, and only the small
factors A and B are trained and exchanged. Each worker has records that it must not reveal: a step
draws some records at random, clips the gradient of each, and adds noise to the sum of gradients
(DP-SGD, arXiv 1607.00133). Only A and B leave a worker; pccl_train averages them over workers.

The guarantee is for adding or removing one record of 65 bytes. It holds against all other workers
and all users of the model, but does not protect an author of many records. `Privacy` of pccl_train
instead protects all data of a worker as a unit, and needs many workers.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch
from pccl_train import SGD, steps
from pccl_train.torch import DiLoCo
from torch import Tensor, nn

from examples.small_gpt import CONTEXT, WORKER, SmallGPT, batches, tell

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
WORKERS = int(os.environ.get("WORLD_SIZE", "1"))
RANK, RATE, BATCH = 4, 1.5, 32  # BATCH: the mean number of records of a step
CLIP, NOISE, DELTA = 0.3, 1.0, 1e-5  # noise in a sum has the standard deviation NOISE * CLIP
RANDOM = np.random.default_rng()  # for real secrets use a cryptographic generator


class Adapted(nn.Module):
    """A linear layer with weights W + BA. The first dimension of A and B may be the records."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.a = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.layer(x), x @ self.a.mT @ self.b.mT)


def base() -> SmallGPT:
    """A model trained on public text, equal on all workers. A real program downloads a model."""
    torch.manual_seed(0)
    model, text = SmallGPT(layers=1), batches(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(120):
        model(next(text)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def adapt(model: nn.Module) -> dict[str, nn.Parameter]:
    """Freezes a model, adds factors A and B to its linear layers, and returns these by name."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(module, name, Adapted(layer))
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def all_records() -> Tensor:
    """All records, (count, CONTEXT + 1) bytes, of a text that is unlike that of `base`."""
    files = sorted(Path(sysconfig.get_path("stdlib"), "encodings").glob("*.py"))
    text = np.frombuffer(b"".join(map(Path.read_bytes, files)), np.uint8).astype(np.int64)
    return torch.from_numpy(np.resize(text, (len(text) // (CONTEXT + 1), CONTEXT + 1)))


def set_gradients(model: nn.Module, factors: dict[str, nn.Parameter], own: Tensor) -> None:
    """Sets each factor's gradient: the mean of clipped gradients of random records, plus noise."""
    # Records are drawn independently (Poisson). Copied factors give each record its own gradient.
    drawn = own[torch.from_numpy(RANDOM.random(len(own)) < BATCH / len(own))]
    copies = [p.detach().expand(len(drawn), *p.shape).requires_grad_() for p in factors.values()]
    loss = torch.func.functional_call(model, dict(zip(factors, copies, strict=True)), (drawn,))
    gradients = torch.autograd.grad(len(drawn) * loss, copies)
    norms = torch.cat([gradient.flatten(1) for gradient in gradients], 1).norm(dim=1)
    for factor, gradient in zip(factors.values(), gradients, strict=True):
        clipped = torch.tensordot((CLIP / norms).clamp(max=1), gradient, 1)
        noise = torch.from_numpy(RANDOM.standard_normal(factor.shape, np.float32))
        factor.grad = (clipped + NOISE * CLIP * noise) / BATCH


def epsilon(records: int) -> str:
    """Epsilon and delta of a record after all steps, as text, if a worker has `records` records."""
    try:
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp  # pyright: ignore
    except ModuleNotFoundError:
        return "unknown, for want of an accountant: pip install 'pccl-py[privacy]'"
    step = PoissonSampledDpEvent(BATCH / records, GaussianDpEvent(NOISE))
    return f"{rdp.RdpAccountant().compose(step, STEPS).get_epsilon(DELTA):.2f}, delta {DELTA:g}"


def main() -> None:
    torch.set_num_threads(1)
    model, records = base(), all_records()
    held_out, own = records[::40], records[np.arange(len(records)) % 40 != 0][WORKER::WORKERS]
    tell(f"base: loss {model(held_out).item():.3f}")
    factors = adapt(model)
    optimizer = torch.optim.SGD(factors.values(), lr=RATE)
    diloco = DiLoCo(None, model, optimizer, sync_every=10, outer=SGD(1.0), weights="equal")
    for _ in steps(diloco, STEPS):
        set_gradients(model, factors, own)
        optimizer.step()
    tell(f"epsilon: {epsilon(len(own))}")
    tell(f"end: loss {model(held_out).item():.3f}, digest {diloco.digest()}")


if __name__ == "__main__":
    main()
