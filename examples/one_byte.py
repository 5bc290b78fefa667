"""Fine-tuning with one byte per gradient ("Just One Byte", arXiv 2306.10015).

    pccl run -n 4 --restarts 4 -- python examples/one_byte.py

In a step each machine computes its loss a little forward and a little backward along a random
direction, which follows from a seed. The difference of both losses is the gradient along this
direction: one number, sent as one byte. All machines know the seeds, so each machine takes the
steps of all machines. A newcomer receives the parameters once, and then only these bytes.

The task: a network learns to tell points inside of a ring from points outside of it. Training needs
only forward passes (MeZO, arXiv 2305.17333).
"""

from __future__ import annotations

import sys
import zlib

import numpy as np
from numpy.typing import NDArray

import pccl_py as pccl

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
HIDDEN = 16
SIZE = 4 * HIDDEN + 1  # two inputs, a bias and an output for each hidden unit, and one bias
RATE, DISTANCE = 0.05, 1e-3
GREATEST = 2.0  # gradients along a direction are clipped to this, and rounded to 255 values

Floats = NDArray[np.float32]


def draw(random: np.random.Generator, moved: float, count: int = 64) -> tuple[Floats, Floats]:
    """Random points, (count, 2), and for each 1 inside of a ring or -1 outside, (count,). The
    ring's centre is `moved` to the right."""
    points = random.uniform(-2, 2, (count, 2)).astype(np.float32)
    inside = np.hypot(points[:, 0] - moved, points[:, 1]) < 1.2
    return points, np.where(inside, 1, -1).astype(np.float32)


def scores(parameters: Floats, points: Floats) -> Floats:
    w, b, out = np.split(parameters[:-1], (2 * HIDDEN, 3 * HIDDEN))
    hidden = np.tanh(points @ w.reshape(2, HIDDEN) + b)
    return np.asarray(hidden @ out + parameters[-1])


def loss_of(parameters: Floats, points: Floats, wanted: Floats) -> float:
    return float(np.logaddexp(0, -wanted * scores(parameters, points)).mean())


def direction(step: int, seed: int) -> Floats:
    """A random direction that follows from two numbers, so that every machine can compute it."""
    random = np.random.Generator(np.random.Philox(key=[step, seed]))
    return random.standard_normal(SIZE, np.float32)


def gradient_along(parameters: Floats, z: Floats, points: Floats, wanted: Floats) -> np.int8:
    """The gradient of the loss along `z`, from two losses, as one byte."""
    step = np.asarray(DISTANCE * z, np.float32)
    forward = loss_of(parameters + step, points, wanted)
    backward = loss_of(parameters - step, points, wanted)
    slope = (forward - backward) / (2 * DISTANCE)
    return np.int8(round(127 * float(np.clip(slope / GREATEST, -1, 1))))


def main() -> None:
    start = np.random.default_rng(0)
    parameters = start.standard_normal(SIZE).astype(np.float32)
    done = np.zeros(1, np.int64)
    own = np.random.default_rng()  # each machine has data of its own
    for step in pccl.steps({"parameters": parameters, "done": done}):
        if done[0] == STEPS:
            break
        with step as comm:
            number = int(done[0])
            z = direction(number, comm.rank)
            mine = np.array([gradient_along(parameters, z, *draw(own, moved=0.5))], np.int8)
            all_of_them = np.zeros(comm.world_size, np.int8)
            outcome = comm.all_gather(mine, all_of_them, recovery="resume")
            # All machines add in rank order, so equal parameters stay equal bit by bit.
            for rank in outcome.ranks:
                slope = np.float32(all_of_them[rank]) * np.float32(GREATEST / 127)
                along = direction(number, rank)
                parameters -= np.float32(RATE / len(outcome.ranks)) * slope * along
            done += 1
            if done[0] % 300 == 0 or done[0] == STEPS:
                points, wanted = draw(np.random.default_rng(1), moved=0.5, count=2000)
                right = float((np.sign(scores(parameters, points)) == wanted).mean())
                sys.stdout.write(
                    f"step {done[0]}: {comm.world_size} machines, {right:.0%} right, "
                    f"digest {zlib.crc32(parameters.tobytes()):08x}\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
