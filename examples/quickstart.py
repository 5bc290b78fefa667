"""The example of the README. To run it: pccl run -n 4 -- python examples/quickstart.py 20

Kill one of the four processes, or start another process with the same PCCL_TOKEN: the run goes on,
and all processes print the same digest. A real training program is examples/demo/peer.py.
"""

import sys

import numpy as np

import pccl_py as pccl

parameters = np.zeros(1_000_000, np.float32)
steps_done = np.zeros(1, np.int64)
rng = np.random.default_rng()
# PCCL_TOKEN says where to connect. Newcomers enter between two steps, and nowhere else.
for step in pccl.steps({"parameters": parameters, "steps_done": steps_done}):
    if steps_done[0] == int(sys.argv[1]):
        break
    with step as comm:  # every peer begins the step with equal bytes
        gradients = rng.standard_normal(parameters.size, np.float32)
        outcome = comm.all_reduce(gradients, op="avg")  # in place; goes on when a peer dies
        parameters -= 0.1 * gradients  # in place, too
        steps_done += 1
        print(f"step {steps_done[0]}: {len(outcome.contributors)} peers, digest {outcome.digest}")
