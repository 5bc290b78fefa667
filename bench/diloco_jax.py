"""A worker of `bench diloco` in JAX: the model, the inner optimizer and the start of diloco_gpt.py.

The parameters are a dictionary with the names that PyTorch gives them, so both forms of the model
can be compared. It needs optax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pccl_train.jax
from pccl_train import Exchange
from torch import Tensor

from bench import diloco_gpt
from bench.diloco_cases import Case, Size
from examples.small_gpt import HEADS
from pccl_py.communicator import Communicator

# Weights decay as those of torch.optim.AdamW do.
adamw = optax.adamw(diloco_gpt.LEARNING_RATE, weight_decay=1e-2)


def loss_of(params: Any, text: Any) -> Any:
    """The mean loss in nats a byte of (batch, CONTEXT + 1) bytes."""
    x = params["embedding.bytes.weight"][text[:, :-1]] + params["embedding.places.weight"]
    block = 0
    while f"blocks.{block}.norm.weight" in params:
        x = _block(params, f"blocks.{block}", x)
        block += 1
    logits = _linear(params, "head", x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()


def _block(params: Any, name: str, x: Any) -> Any:
    shape = (*x.shape[:2], HEADS, x.shape[2] // HEADS)
    mixed = _linear(params, f"{name}.attention", _norm(params, f"{name}.norm", x))
    q, k, v = (part.reshape(shape) for part in jnp.split(mixed, 3, axis=-1))
    heads = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + _linear(params, f"{name}.projection", heads.reshape(x.shape))
    wide = _linear(params, f"{name}.mlp.1", _norm(params, f"{name}.mlp.0", x))
    return x + _linear(params, f"{name}.mlp.3", jax.nn.gelu(wide, approximate=False))


def _linear(params: Any, name: str, x: Any) -> Any:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def _norm(params: Any, name: str, x: Any) -> Any:
    normal = jax.nn.standardize(x, axis=-1, epsilon=1e-5)
    return normal * params[f"{name}.weight"] + params[f"{name}.bias"]


examined = jax.jit(loss_of)
gradients_of = jax.jit(jax.grad(loss_of))


@jax.jit
def moved(params: Any, moments: Any, gradients: Any) -> Any:
    """A step of AdamW: the parameters and the moments after it."""
    updates, moments = adamw.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments


class Worker:
    """The parameters, and the moments of AdamW."""

    def __init__(self, size: Size, seed: int) -> None:
        model = diloco_gpt.Model(size, seed)
        self.params: Any = {
            name: jnp.array(value.detach().numpy()) for name, value in model.named_parameters()
        }
        self.moments: Any = adamw.init(self.params)

    def loss(self, text: Tensor) -> float:
        """In nats a byte."""
        return float(examined(self.params, text.numpy()))

    def synchronous(self, comm: Communicator, batches: Iterator[Tensor], steps: int) -> int:
        """Averages all gradients in every step. Returns the bytes of payload that it sent."""
        sent = 0
        for _ in range(steps):
            gradients = jax.tree.map(np.array, gradients_of(self.params, next(batches).numpy()))
            sent += comm.all_reduce(list(gradients.values()), op="avg").bytes_sent
            self.params, self.moments = moved(self.params, self.moments, gradients)
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
        diloco = pccl_train.jax.DiLoCo(
            sync_every=case.every, on_exchange=on_exchange, **case.settings
        )
        self.params, state = diloco.init(comm, self.params)
        while state.progress < steps:
            gradients = gradients_of(self.params, next(batches).numpy())
            self.params, self.moments = moved(self.params, self.moments, gradients)
            self.params, state = diloco.step(self.params, state)
        state.finish()
        self.params = state.params
