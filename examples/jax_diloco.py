"""DiLoCo with JAX: a pytree of parameters, any optimizer of optax, and jitted inner steps.

    pccl run -n 4 -- python examples/jax_diloco.py

An exchange goes on while jitted steps run: its result is used ten steps later.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pccl_train.jax

import pccl_py as pccl

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 400
WORKER = int(os.environ.get("RANK", "0"))
CONTEXT, WIDTH, BATCH = 16, 128, 64
adamw = optax.adamw(3e-3)


def initial(seed: int) -> Any:
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> Any:
        return jnp.asarray(random.standard_normal(shape) / shape[0] ** 0.5, jnp.float32)

    return {"bytes": drawn(256, 16), "hidden": drawn(CONTEXT * 16, WIDTH), "out": drawn(WIDTH, 256)}


def loss_of(params: Any, windows: Any, targets: Any) -> Any:
    x = params["bytes"][windows].reshape(len(windows), -1)
    logits = jnp.tanh(x @ params["hidden"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


@jax.jit
def inner_step(params: Any, state: Any, windows: Any, targets: Any) -> Any:
    loss, gradients = jax.value_and_grad(loss_of)(params, windows, targets)
    updates, state = adamw.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def main() -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[WORKER % 4 :: 4]
    text = np.frombuffer(b"".join(map(Path.read_bytes, files)), np.uint8)
    random = np.random.default_rng(WORKER)

    def drawn() -> Any:
        starts = random.integers(0, len(text) - CONTEXT, BATCH)
        return text[starts[:, None] + np.arange(CONTEXT)], text[starts + CONTEXT]

    diloco = pccl_train.jax.DiLoCo(sync_every=40, fragment_sync_delay=10, codec="int8")
    with pccl.connect() as comm:
        params, state = diloco.init(comm, initial(WORKER))  # makes parameters equal on all workers
        optimizer = adamw.init(params)
        while state.progress < STEPS:
            params, optimizer, loss = inner_step(params, optimizer, *drawn())
            params, state = diloco.step(params, state, tokens=BATCH)
            if state.position == 0:
                sys.stdout.write(f"round {state.round}: loss {float(loss):.3f}\n")
                sys.stdout.flush()
        state.finish()
    loss = loss_of(state.params, *drawn())
    sys.stdout.write(f"end: loss {float(loss):.3f}, digest {state.digest()}\n")


if __name__ == "__main__":
    main()
