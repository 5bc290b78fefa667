"""An unchanged program for PCCL 1.0: peers learn to recognize digits, and survive a peer's death.

    pccl run -n 3 --restarts 1 -- python examples/compat/mnist_like.py --peers 3 --kill 1@100

The package `pccl` has the names of PCCL 1.0 (pip install . ./compat in a checkout). With
`--kill RANK@STEP` the process with this RANK kills itself in this step; `pccl run` starts it again,
and it joins the other peers, which train on until `--peers` peers are there. The digits are ten
random patterns of 8 x 8 with noise.
"""

import argparse
import os
import signal
import time

import numpy as np
from pccl import (
    Attribute,
    Communicator,
    PCCLError,
    ReduceOp,
    SharedState,
    TensorInfo,
)

BATCH, PIXELS, DIGITS = 64, 64, 10
RANK = int(os.environ.get("RANK", "0"))


def batch(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A random batch: images, (BATCH, PIXELS), and the digit of each."""
    patterns = np.random.default_rng(1).standard_normal((DIGITS, PIXELS), np.float32)
    digits = random.integers(0, DIGITS, BATCH)
    noise = 2 * random.standard_normal((BATCH, PIXELS), np.float32)
    return patterns[digits] + noise, digits


def gradient(weights: np.ndarray, images: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """The gradient of a linear model's mean cross-entropy on a batch."""
    scores = images @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(BATCH), digits] -= 1
    average: np.ndarray = images.T @ chances / BATCH
    return average


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--master", default="127.0.0.1:48148")
    asked.add_argument("--steps", type=int, default=400)
    asked.add_argument("--peers", type=int, default=2, help="goes on until so many are there")
    asked.add_argument("--kill", default="", help="RANK@STEP")
    options = asked.parse_args()
    victim, _, at = options.kill.partition("@")
    dies = victim == str(RANK) and os.environ.get("PCCL_RESTARTS", "0") == "0"

    communicator = Communicator(options.master)
    communicator.connect(n_attempts=15)
    weights = np.zeros((PIXELS, DIGITS), np.float32)
    shared_state = SharedState([TensorInfo.from_numpy(weights, "weights")])
    random = np.random.default_rng(RANK)
    is_new, sizes = True, set[int]()
    while True:
        if not is_new:
            while True:
                try:
                    communicator.update_topology()
                    break
                except PCCLError as error:
                    print(f"[{RANK}] {error}; once more", flush=True)
        is_new = False
        world_size = communicator.get_attribute(Attribute.LOCAL_WORLD_SIZE)
        if world_size < 2:
            time.sleep(0.1)
            continue
        if world_size not in sizes:
            sizes.add(world_size)
            print(f"[{RANK}] {world_size} peers at revision {shared_state.revision}", flush=True)
        communicator.sync_shared_state(shared_state)
        if shared_state.revision >= options.steps and world_size >= options.peers:
            break
        if dies and shared_state.revision == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        gradients = gradient(weights, *batch(random))
        handle = communicator.all_reduce_async(gradients, gradients, op=ReduceOp.AVG)
        is_success, status, _ = handle.wait()
        if not is_success:
            print(f"[{RANK}] the reduction has failed with {status}; next turn", flush=True)
            continue
        weights -= 0.1 * gradients
        shared_state.revision += 1

    images, digits = batch(np.random.default_rng(7))
    right = float((np.argmax(images @ weights, axis=1) == digits).mean())
    print(f"[{RANK}] {right:.0%} right, weights {np.abs(weights).sum():.4f}", flush=True)


if __name__ == "__main__":
    main()
