"""Peers in NumPy, JAX, PyTorch and C in one run, which all end with the same bytes.

    python examples/mixed_frameworks.py

Starts a run with one peer for each framework that is installed, and names the missing frameworks.
The peer in C is examples/c_average. Peers of all kinds make the same calls, so a run may mix kinds:
here they average 1,000 numbers, and rank r contributes 3 + r at every position.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pccl_py as pccl

COUNT, VALUE = 1000, 3.0
SOURCE = Path(__file__).parent / "c_average" / "average.c"
Averaged = tuple[float, pccl.Outcome]


def with_numpy(comm: pccl.Communicator) -> Averaged:
    import numpy as np
    import pccl_numpy

    numbers = np.full(COUNT, VALUE + comm.rank, np.float32)
    mean, outcome = pccl_numpy.all_reduce(comm, numbers, op="avg", return_outcome=True)
    return float(mean[-1]), outcome


def with_jax(comm: pccl.Communicator) -> Averaged:
    import jax.numpy as jnp
    import pccl_jax

    @pccl_jax.jit
    def average(comm: pccl_jax.Comm, numbers: Any) -> Any:
        return pccl_jax.all_reduce(comm, numbers, op="avg", return_outcome=True)

    mean, outcome = average(comm, jnp.full(COUNT, VALUE + comm.rank, jnp.float32))
    return float(mean[-1]), pccl_jax.decode(outcome)


def with_torch(comm: pccl.Communicator) -> Averaged:
    import pccl_torch
    import torch

    numbers = torch.full((COUNT,), VALUE + comm.rank)
    mean, outcome = pccl_torch.all_reduce(comm, numbers, op="avg", return_outcome=True)
    return mean[-1].item(), outcome


PEERS = {"numpy": with_numpy, "jax": with_jax, "torch": with_torch}


def take_part(kind: str) -> None:
    with pccl.connect() as comm:
        comm.admit()
        mean, outcome = PEERS[kind](comm)
        print(
            f"rank {comm.rank} of {comm.world_size}: average {mean:g} of "
            f"{len(outcome.contributors)} contributors, digest {outcome.digest[:8]}, {kind}"
        )


def compile_c(folder: str) -> str | None:
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    if compiler != ["cc"] and not importlib.util.find_spec("ziglang"):
        return None
    library, program = pccl.library_dir(), str(Path(folder, "average"))
    flags = [f"-I{pccl.include_dir()}", f"-L{library}", "-lpccl", f"-Wl,-rpath,{library}"]
    subprocess.run([*compiler, str(SOURCE), *flags, "-o", program], check=True)
    return program


def start() -> int:
    with tempfile.TemporaryDirectory() as folder:
        kinds = {kind: kind for kind in PEERS if importlib.util.find_spec(kind)}
        if program := compile_c(folder):
            kinds["C"] = program
        for kind in [kind for kind in (*PEERS, "C") if kind not in kinds]:
            print(f"not installed, so left out: {kind}", flush=True)
        command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", str(len(kinds)), "--"]
        return subprocess.run([*command, sys.executable, __file__, *kinds.values()]).returncode


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(start())
    own = sys.argv[1:][int(os.environ["RANK"])]
    if own in PEERS:
        take_part(own)
    else:
        os.execv(own, [own, f"{VALUE:g}"])
