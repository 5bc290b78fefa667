"""Where the processes of the benchmark of torch.distributed find each other.

It owns their environment, which is that of torchrun. They are started by torch_steps.py and
torch_kill.py.
"""

from __future__ import annotations

from bench.torch_link import Line

WORLD = 2


def environments(port: int, line: Line | None = None, world: int = WORLD) -> list[dict[str, str]]:
    """Variables as torchrun sets them, by rank of a world whose rank 0 listens at `port`."""
    shared: dict[str, str] = {
        "MASTER_ADDR": "127.0.0.1" if line is None else line.address(0),
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo" if line is None else "eth0",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
