"""A peer that runs 20 steps in one program, and may kill itself inside of its own step 7.

    python tests/jax/kill_program.py KIND victim|survivor

It joins the run of PCCL_TOKEN. KIND: scan, while, apart (operations are begun and finished apart,
and the kill is between) or gather. A survivor prints a line of JSON. The tests are in
test_jax_kills.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import pccl_jax as pj
from jax import lax
from jax.experimental import io_callback

import pccl_py as pccl

KIND, IS_VICTIM = sys.argv[1], sys.argv[2] == "victim"
STEPS, STEP_KILLED, COUNT = 20, 7, 50_000
Told = tuple[Any, Any, Any]  # the total, the number of contributors, a bit for each rank


def maybe_die(step: Any) -> Any:
    if IS_VICTIM and step == STEP_KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.float32(0)


def zero(step: Any) -> Any:
    """0, from a callback in which the victim kills itself."""
    return io_callback(maybe_die, jax.ShapeDtypeStruct((), jnp.float32), step)


def told(total: Any, outcome: pj.OutcomeArrays) -> Told:
    return total[0], outcome.contributors.astype(jnp.int32), outcome.bits[0, 0]


def blocking(comm: pj.Comm, x: Any, step: Any) -> Told:
    return told(*pj.all_reduce(comm, x + step + zero(step), return_outcome=True))


def apart(comm: pj.Comm, x: Any, step: Any) -> Told:
    handle = pj.all_reduce_start(comm, x + step, tag=1)
    return told(*pj.all_reduce_done(handle, after=zero(step), return_outcome=True))


def gathering(comm: pj.Comm, x: Any, step: Any) -> Told:
    rows, outcome = pj.all_gather(comm, (x + step + zero(step))[:1], return_outcome=True)
    return told(jnp.sum(rows, keepdims=True), outcome)


@pj.jit
def scanned(comm: pj.Comm, x: Any) -> Told:
    function: Callable[..., Told] = apart if KIND == "apart" else blocking
    function = gathering if KIND == "gather" else function
    made: Told = lax.scan(lambda _, step: (0, function(comm, x, step)), 0, jnp.arange(STEPS))[1]
    return made


@pj.jit
def looped(comm: pj.Comm, x: Any) -> Told:
    def body(state: tuple[Any, Told]) -> tuple[Any, Told]:
        step, before = state
        new = blocking(comm, x, step)
        return step + 1, jax.tree.map(lambda all_, one: all_.at[step].set(one), before, new)

    kept = (jnp.zeros(STEPS), jnp.zeros(STEPS, jnp.int32), jnp.zeros(STEPS, jnp.uint32))
    made: Told = lax.while_loop(lambda state: state[0] < STEPS, body, (0, kept))[1]
    return made


def main() -> None:
    with pccl.connect(deadline=60) as comm:
        comm.admit()
        rank, aborted = comm.rank, ""
        x = jnp.full(COUNT, 100.0 * 2**rank)
        run = looped if KIND == "while" else scanned
        try:
            made = run(comm, x)
        except pccl.Aborted as error:
            aborted = str(error)
            while not comm.admit().changed:
                comm.barrier()
            made = run(comm, x)
        totals, contributors, bits = (each.tolist() for each in made)
        said = {"rank": rank, "now": comm.rank, "aborted": aborted, "totals": totals}
        print(json.dumps({**said, "contributors": contributors, "bits": bits}), flush=True)
        comm.barrier()


main()
