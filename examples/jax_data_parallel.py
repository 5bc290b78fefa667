"""Data parallel training with optax: one process is killed, one joins, all end with equal digests.

    pccl run -n 3 -- python examples/jax_data_parallel.py

The third process kills itself inside of a compiled step; the first starts a new process. Your own
program needs the loop without these two parts. docs/guides/JAX.md explains the loop.
"""

import hashlib
import os
import signal
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pccl_jax as pj
import pccl_jax.optax as pj_optax

import pccl_py as pccl

NUMBER = int(os.environ["RANK"])  # of this process; unlike its rank in the run, it never changes
KILLED, DIES_IN_STEP, NEWCOMER = 2, 10, 3
STEPS_TOGETHER = 20  # steps after the newcomer has joined

OPTIMIZER = optax.chain(pj_optax.average_gradients(), optax.adam(1e-3))


def initial() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(NUMBER), 2)  # sync() makes the parameters equal
    params = {
        "w1": jax.random.normal(keys[0], (32, 256)) / 6,
        "w2": jax.random.normal(keys[1], (256, 1)) / 16,
    }
    return {"params": params, "opt": OPTIMIZER.init(params), "step": 0, "last_step": 0}


def loss_of(params: Any, inputs: Any) -> Any:
    outputs = jax.nn.relu(inputs @ params["w1"]) @ params["w2"]
    return jnp.mean((outputs - inputs.sum(1, keepdims=True)) ** 2)


@pj.jit  # compiled once; serves three members, two, and three again
def step(comm: pj.Comm, params: Any, opt: Any, inputs: Any, dies: Any) -> Any:
    grads = jax.grad(loss_of)(params, inputs)
    jax.lax.cond(dies, lambda: jax.debug.callback(die), lambda: None)
    updates, opt = OPTIMIZER.update(grads, opt, params, comm=comm)
    return optax.apply_updates(params, updates), opt


def train(comm: pccl.Communicator) -> None:
    rng = np.random.default_rng(NUMBER)  # each process has its own data
    held, newcomer_started = initial(), False
    state = pj.shared_state(comm, held)
    while not held["last_step"] or held["step"] < held["last_step"]:
        admission = comm.admit()  # the safe point: newcomers enter, lost members leave
        if admission.changed:
            if admission.joined and held["step"]:
                held["last_step"] = held["step"] + STEPS_TOGETHER
            held = state.sync(held)
            tell(comm, held, f"joined {len(admission.joined)}, left {len(admission.left)}")
        dies = NUMBER == KILLED and held["step"] == DIES_IN_STEP
        inputs = rng.standard_normal((64, 32), np.float32)
        # If a member is lost during the step, the average is over the other members.
        held["params"], held["opt"] = step(comm, held["params"], held["opt"], inputs, dies)
        held["step"] = held["step"] + 1
        outcome = pj_optax.outcome(held["opt"])
        assert outcome is not None
        if len(outcome.contributors) < comm.world_size:
            tell(comm, held, f"averaged over ranks {outcome.ranks}")
        if NUMBER == 0 and held["step"] >= 2 * DIES_IN_STEP and not newcomer_started:
            subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(NEWCOMER)})
            newcomer_started = True
    tell(comm, held, "done")


def tell(comm: pccl.Communicator, held: dict[str, Any], text: str) -> None:
    shared = jax.tree.leaves([held["params"], held["opt"][1:], held["step"]])
    digest = hashlib.blake2b(b"".join(np.asarray(each).tobytes() for each in shared), digest_size=8)
    members = f"process {NUMBER}, one of {comm.world_size}"
    line = f"{members}, step {held['step']}: {text}, digest {digest.hexdigest()}"
    print(line + "\n", end="", flush=True)  # one write, as the newcomer prints there, too


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with pccl.connect() as communicator:
        train(communicator)
