"""The average of examples/c_average, in NumPy: every process brings one number per position.

To run it: pccl run -n 2 -- python examples/numpy_average.py 3

It makes the same calls as the program in C, so processes of both kinds may be in one run, and all
leave with the same bytes: they print one digest. pccl_numpy has more for arrays.
"""

import sys

import numpy as np
import pccl_numpy as pnp

import pccl_py as pccl

COUNT = 1000

if len(sys.argv) != 2:
    sys.exit("usage: PCCL_TOKEN=... numpy_average.py VALUE")
value = float(sys.argv[1])

with pccl.connect() as comm:  # PCCL_TOKEN says where
    comm.admit()  # the safe point: from here on there are a rank and a world size
    numbers = np.full(COUNT, value + comm.rank, np.float32)
    mean, outcome = pnp.all_reduce(comm, numbers, op="avg", return_outcome=True)
    print(
        f"rank {comm.rank} of {comm.world_size}: average {mean[-1]:g} of "
        f"{len(outcome.contributors)} contributors, digest {outcome.digest[:8]}"
    )
