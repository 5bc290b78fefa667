"""Shows the effect of error feedback on rounded gradients: python examples/error_feedback.py

Four peers in this process minimize the average of their losses; each loss is a bowl with a lowest
point of its own. At the minimum of the average each peer still has a large gradient of its own, and
the error of rounding it to 4 bits moves the peers away again. With error feedback, what is rounded
away is added to the next gradient. Your own program needs one line before the loop:
comm.error_feedback(tag) with the tag of your all_reduce calls.
"""

from functools import partial

import numpy as np

import pccl_py as pccl

PEERS, SIZE, STEPS, RATE = 4, 4096, 800, np.float32(0.2)
CURVATURE = np.geomspace(0.05, 1, SIZE, dtype=np.float32)
GOALS = [np.random.default_rng(peer).standard_normal(SIZE, np.float32) for peer in range(PEERS)]


def descend(comm: pccl.Communicator, codec: pccl.Codec, feeds_back: bool) -> np.ndarray:
    """One peer's program. All peers return the same parameters, bit by bit."""
    parameters = np.zeros(SIZE, np.float32)
    # Error feedback for every following call with this tag.
    feedback = comm.error_feedback(tag=1) if feeds_back else None
    for _ in range(STEPS):
        gradient = CURVATURE * (parameters - GOALS[comm.rank])
        comm.all_reduce(gradient, op="avg", tag=1, codec=codec)
        parameters -= RATE * gradient
    if feedback is not None:
        # Save this in a checkpoint beside the parameters; restore it by feedback.load(residual).
        residual = feedback.save()
        assert len(residual) == 4 * SIZE
        feedback.close()
    return parameters


def loss(parameters: np.ndarray) -> float:
    """How far the average loss at `parameters` is above its minimum."""
    lowest = sum(GOALS) / np.float32(PEERS)
    return float(np.mean(CURVATURE * (parameters - lowest) ** 2))


CASES = [
    ("none", pccl.Codec("none"), False),
    ("int8", pccl.Codec("int8"), False),
    ("int4, not rotated", pccl.Codec("int4", rotate=False), False),
    ("int4, not rotated, with error feedback", pccl.Codec("int4", rotate=False), True),
    ("int4", pccl.Codec("int4"), False),
    ("int4 with error feedback", pccl.Codec("int4"), True),
]

with pccl.LocalWorld(PEERS) as world:
    for name, codec, feeds_back in CASES:
        answers = world.run(partial(descend, codec=codec, feeds_back=feeds_back))
        assert all(np.array_equal(answers[0], other) for other in answers), "peers differ"
        print(f"{name:<40} loss {loss(answers[0]):.1e}")
