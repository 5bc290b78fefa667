"""The average of examples/c_average, in NumPy: every process contributes an array of 1,000 numbers.

    pccl run -n 2 -- python examples/numpy_average.py 3

This program makes the same calls as the program in C, so processes of both kinds may be in one run.
All processes end with the same bytes, and print the same digest.
"""

import sys

import numpy as np
import pccl_numpy as pnp

import pccl_py as pccl

COUNT = 1000

if len(sys.argv) != 2:
    sys.exit("usage: PCCL_TOKEN=... numpy_average.py VALUE")
value = float(sys.argv[1])

with pccl.connect() as comm:  # to the run of PCCL_TOKEN
    comm.admit()  # the safe point: after it, this peer has a rank and a world size
    numbers = np.full(COUNT, value + comm.rank, np.float32)
    mean, outcome = pnp.all_reduce(comm, numbers, op="avg", return_outcome=True)
    print(
        f"rank {comm.rank} of {comm.world_size}: average {mean[-1]:g} of "
        f"{len(outcome.contributors)} contributors, digest {outcome.digest[:8]}"
    )
