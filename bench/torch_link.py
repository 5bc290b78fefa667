"""Two network namespaces with a slow line between them, for the benchmark of torch.distributed.

It owns making and removing them; both need root, `ip` and `tc` (iproute2). Everything that the two
processes say to each other goes through the line, whichever library says it. Nothing outside of the
two namespaces is touched. The processes in them: torch_steps.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pccl_py.closing import Closing

STEM = "pccl-bench"
BURST_BYTES = 64 * 1024
LATENCY_MS_MAX = 50  # of what waits at the line; more is lost, and TCP slows down


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str:
    """Why there can be no slow line here; empty if there can."""
    lacking = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if lacking:
        return f"a slow line needs {' and '.join(lacking)}: install iproute2"
    if os.geteuid() != 0:
        return "a slow line is made of network namespaces, which need root"
    try:
        Line(100).close()
    except OSError as error:
        return f"a slow line is refused here ({error})"
    return ""


class Line(Closing):
    """A line of so many Mbit/s each way, between rank 0 and rank 1. Raises OSError."""

    def __init__(self, megabits: int) -> None:
        _remove_leftovers()
        self._spaces = [f"{STEM}-{os.getpid()}-{rank}" for rank in range(2)]
        try:
            self._make(megabits)
        except OSError:
            self.close()
            raise

    def _make(self, megabits: int) -> None:
        for space in self._spaces:
            _run("ip", "netns", "add", space)
        ends = [("eth0", "netns", space) for space in self._spaces]
        _run("ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for rank, space in enumerate(self._spaces):
            _run("ip", "-n", space, "address", "add", f"{self.address(rank)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", space, "link", "set", device, "up")
            shape = ["rate", f"{megabits}mbit", "burst", str(BURST_BYTES)]
            shape += ["latency", f"{LATENCY_MS_MAX}ms"]
            _run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "tbf", *shape)

    def address(self, rank: int) -> str:
        """Where this one is reached."""
        return f"10.0.0.{rank + 1}"

    def prefix(self, rank: int) -> list[str]:
        """The prefix of a command that is to run at this end. The process keeps its pid."""
        return ["ip", "netns", "exec", self._spaces[rank]]

    def close(self) -> None:
        """The namespaces are gone."""
        there = set(_spaces_there())
        for space in self._spaces:
            if space in there:
                _run("ip", "netns", "delete", space)


def _spaces_there() -> list[str]:
    return re.findall(rf"^{STEM}-\d+-\d", _run("ip", "netns", "list"), re.MULTILINE)


def _remove_leftovers() -> None:
    """Those of benchmarks that were killed."""
    for space in _spaces_there():
        if not Path(f"/proc/{space.split('-')[2]}").exists():
            _run("ip", "netns", "delete", space)
