"""The processes of a chaos run: peers in their slots, and the coordinator, each at its site.

Their lines, and that they stopped or ended, come into one queue, in order. Nothing is decided
here: orchestrator.py is. Processes are ended by their own ids.
"""

from __future__ import annotations

import json
import os
import queue
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from contributions import SLOTS
from marker import Glance, Marker, Phase
from network import COORDINATOR, Network

import pccl_py as pccl
from harness.child import Child

HERE = Path(__file__).parent
SHARED = HERE.parent / "processes"


@dataclass(frozen=True)
class Said:
    """A line of a peer."""

    process: Process
    what: dict[str, Any]


@dataclass(frozen=True)
class Stopped:
    """It is frozen by a signal."""

    process: Process


@dataclass(frozen=True)
class Ended:
    """It is gone, and has said everything. `code` is negative for a signal."""

    process: Process
    code: int


News = Said | Stopped | Ended


class Process:
    """One child. Its lines and its changes of state go to `news`."""

    def __init__(
        self, command: list[str], environment: dict[str, str], news: queue.SimpleQueue[News]
    ) -> None:
        self._news = news
        self._child = Child(
            command,
            heard=self._hear,
            frozen=lambda: news.put(Stopped(self)),
            ended=lambda code: news.put(Ended(self, code)),
            environment=environment,
        )
        self.pid = self._child.pid
        self.say, self.signal, self.end = self._child.say, self._child.signal, self._child.end

    def _hear(self, line: str) -> None:
        # A killed process may have left half a line.
        if line.endswith("\n"):
            what = json.loads(line) if line.startswith("{") else {"say": "line", "text": line}
            self._news.put(Said(self, what))

    @property
    def errors(self) -> str:
        return self._child.errors

    def footprint(self) -> dict[str, int]:
        """Memory and descriptors."""
        process = psutil.Process(self.pid)
        return {"bytes": process.memory_info().rss, "descriptors": process.num_fds()}


class Slot:
    """The place of one peer: its site, its marker, and the process that has it now."""

    def __init__(self, index: int, network: Network, folder: Path) -> None:
        self.index = index
        self.name = str(index)
        self._site = network.site(self.name)
        self._folder = folder
        self.marker = Marker.create(folder / f"peer{index}")
        self.number = index
        self.process: Process | None = None
        self.frozen = False
        # The record of the fault whose point this process, or the next one, is to meet.
        self.armed: Any = None
        self.newest: dict[str, Any] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None

    def glance(self) -> Glance:
        return self.marker.look()

    @property
    def working(self) -> bool:
        return self.running and not self.frozen and self.glance().phase is Phase.WORKING

    def where(self) -> str:
        """In words."""
        if self.process is None:
            return "not running"
        glance = self.glance()
        frozen = ", frozen" if self.frozen else ""
        armed = ", armed" if self.armed is not None else ""
        return f"pid {self.process.pid}, {glance}{frozen}{armed}"

    def start(self, orders: dict[str, Any], point: str, news: queue.SimpleQueue[News]) -> Process:
        own = {
            "marker": str(self._folder / f"peer{self.index}"),
            "number": self.number,
            "bind": self._site.bind,
            "advertise": self._site.advertise,
        }
        environment = {
            "PYTHONPATH": os.pathsep.join([str(SHARED), os.environ.get("PYTHONPATH", "")]),
            "PCCL_FAULT_POINT": point,
        }
        program = [sys.executable, str(HERE / "chaos_peer.py"), json.dumps({**orders, **own})]
        self.newest = None
        self.frozen = False
        self.marker.clear()
        self.process = Process([*self._site.prefix, *program], environment, news)
        return self.process

    def ended(self) -> None:
        """The next process of this slot is another peer."""
        assert self.process is not None
        self.process.end()
        self.process = None
        self.frozen = False
        self.number += SLOTS

    def close(self) -> None:
        if self.process is not None:
            self.process.end()
        self.marker.close()


class CoordinatorProcess:
    """The coordinator, which may be killed and started again at the same address."""

    def __init__(self, network: Network, folder: Path, options: dict[str, str]) -> None:
        self._site = network.site(COORDINATOR)
        self._options = options
        self._run_id = os.urandom(16)
        self._folder = folder / "coordinator"
        self.token = pccl.token_create(self._site.advertise, self._run_id)
        # Past the faults of the run.
        self.own_token = pccl.token_create(self._site.bind, self._run_id)
        self.process: Process | None = None
        self.frozen = False
        self.starts = 0

    @property
    def working(self) -> bool:
        return self.process is not None and not self.frozen

    def start(self, news: queue.SimpleQueue[News]) -> Process:
        command = [*self._site.prefix, sys.executable, "-u", "-m", "pccl_py.cli", "coordinator"]
        command += ["--bind", self._site.bind, "--advertise", self._site.advertise]
        command += ["--run-id-file", "-", "--state", str(self._folder)]
        for name, value in self._options.items():
            command += [f"--{name}", value]
        self.frozen = False
        self.starts += 1
        self.process = Process(command, {}, news)
        self.process.say(self._run_id.hex())
        return self.process

    def ended(self) -> None:
        assert self.process is not None
        self.process.end()
        self.process = None

    def close(self) -> None:
        if self.process is not None:
            self.process.end()
