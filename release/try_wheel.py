"""Tries an unpacked wheel: two peers all_reduce, also with a codec, and sync a shared state.

    python try_wheel.py FOLDER

release/wheels.py runs this program with each Python that a wheel is for, also an emulated one. The
program needs only the standard library and FOLDER.
"""

import array
import platform
import sys

sys.path.insert(0, sys.argv[1])

import pccl_py as pccl

COUNT = 10_000


def peer(comm: pccl.Communicator) -> None:
    """One peer's calls, which use the native library."""
    values = array.array("f", [comm.rank + 1.0] * COUNT)
    comm.all_reduce(values)
    assert values.tolist() == [3.0] * COUNT
    comm.all_reduce(values, op="avg", codec="bf16")
    assert values.tolist() == [3.0] * COUNT
    rank = array.array("q", [comm.rank])
    comm.shared_state({"rank": rank}, revision=comm.rank).sync()
    assert rank[0] == 1, rank  # the highest revision wins


def main() -> None:
    """Runs two peers; prints Python, machine and CPU level if all results are right."""
    assert pccl.__file__.startswith(sys.argv[1]), pccl.__file__
    with pccl.LocalWorld(2) as world:
        world.run(peer)
    print(f"Python {platform.python_version()}, {platform.machine()}, {pccl.cpu_level()}: right")


main()
