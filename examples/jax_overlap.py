"""Overlaps an all_reduce with computing: all_reduce_start and all_reduce_done in a jitted program.

    pccl run -n 2 -- python examples/jax_overlap.py

all_reduce_start returns without waiting for other peers, and all_reduce_done waits for the result.
Meanwhile the program computes, as a training program could compute the gradients of other layers.
The programs with and without overlap give the same bytes.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj

import pccl_py as pccl

COUNT, WIDTH, PRODUCTS, ROUNDS = 1 << 20, 512, 8, 5


def products(x: Any) -> Any:
    """Work that does not depend on the all_reduce."""
    return jax.lax.fori_loop(0, PRODUCTS, lambda _, y: jnp.tanh(y @ x), x)


@pj.jit
def one_after_the_other(comm: pj.Comm, gradients: Any, x: Any) -> Any:
    mean = pj.all_reduce(comm, gradients, op="avg")
    x, mean = jax.lax.optimization_barrier((x, mean))  # the products wait for the transfer
    return mean, products(x)


@pj.jit
def overlapped(comm: pj.Comm, gradients: Any, x: Any) -> Any:
    handle = pj.all_reduce_start(comm, gradients, op="avg")
    made = products(x)
    return pj.all_reduce_done(handle, after=made), made


def seconds(comm: pccl.Communicator, step: Any, gradients: Any, x: Any) -> tuple[float, Any]:
    """The time of the fastest of ROUNDS calls of `step`, after a call that compiles; the result."""
    results, taken = step(comm, gradients, x), []
    for _ in range(ROUNDS):
        pj.barrier(comm)
        began = time.perf_counter()
        results = step(comm, gradients, x)
        taken.append(time.perf_counter() - began)
    return min(taken), results


with pccl.connect() as comm:
    comm.admit()
    rng = np.random.default_rng(comm.rank)
    gradients = jnp.asarray(rng.standard_normal(COUNT, np.float32))
    x = jnp.asarray(rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH)
    apart, (mean, made) = seconds(comm, one_after_the_other, gradients, x)
    together, (same_mean, same_made) = seconds(comm, overlapped, gradients, x)
    assert (mean == same_mean).all() and (made == same_made).all()
    print(
        f"rank {comm.rank} of {comm.world_size}: {apart * 1e3:.1f} ms one after the other, "
        f"{together * 1e3:.1f} ms overlapped, equal results"
    )
