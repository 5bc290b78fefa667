"""The processes of the recovery benchmark: a coordinator and peers that reduce without end.

It owns starting, killing, freezing and listening; what is done to whom, and what the times come
to, is `recovery.py`'s. Every wait has a limit, and no process outlives its world.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Self

import pccl_py as pccl
from bench.process import Process
from bench.recovery_worker import Job
from harness.child import held_port
from pccl_py.closing import Closing


@dataclass(frozen=True)
class Step:
    """One call of one peer."""

    began: float
    ended: float
    world: int
    alive: int  # of the world, afterwards
    error: str | None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class Peer(Process):
    """One peer that reduces for ever."""

    def __init__(self, job: Job) -> None:
        self.place = job.place
        self.steps: list[Step] = []
        self.said: dict[str, float] = {}
        super().__init__([sys.executable, "-m", "bench.recovery_worker"])
        self.say(job.to_json())  # it has the token, which no command line may show

    def heard(self, line: str) -> None:
        """See `recovery_worker.py`."""
        what: dict[str, Any] = json.loads(line)
        if "began" in what:
            self.steps.append(Step(**what))
        else:
            self.said.update(what)

    def await_step(self, count: int) -> None:
        """Until it has done so many."""
        self.until(lambda: len(self.steps) >= count, f"{count} steps")

    def await_steps(self, more: int) -> None:
        """Until it has done so many more than now."""
        self.await_step(len(self.steps) + more)

    def await_expelled(self) -> None:
        """Until it has been told that it is out."""
        self.until(lambda: "expelled" in self.said, "that it is out")

    def first_after(self, at: float, *, lost: bool = False) -> Step:
        """Its first call that was completed after an instant; `lost`: and a loss."""
        found: list[Step] = []

        def is_there() -> bool:
            found[:] = [
                step
                for step in self.steps
                if step.ended > at and step.error is None and (not lost or step.alive < step.world)
            ][:1]
            return bool(found)

        self.until(is_there, "a completed call")
        return found[0]

    def failures_after(self, at: float) -> int:
        """Its calls that failed since an instant."""
        return sum(step.error is not None for step in self.steps if step.ended > at)


class World(Closing):
    """A coordinator in a process of its own, and `n` peers that work."""

    def __init__(self, n: int, size: int, silence: float, state: int = 0) -> None:
        self._size, self._n, self._state = size, n, state
        self._founded = False
        self.silence = silence
        self.peers: list[Peer] = []
        self._folder = tempfile.TemporaryDirectory(prefix="pccl-recovery-")
        self._port = held_port()  # also while no coordinator runs
        self._address = f"127.0.0.1:{self._port.getsockname()[1]}"
        self._run_id = os.urandom(16)
        self.token = pccl.token_create(self._address, self._run_id)
        self.coordinator = self._start_coordinator()

    def __enter__(self) -> Self:
        try:
            for place in range(self._n):
                self.start_peer(place)
            self._founded = True
            self.settle(3)
        except BaseException:
            self.close()
            raise
        return self

    def _start_coordinator(self) -> Process:
        command = [sys.executable, "-u", "-m", "pccl_py.cli", "coordinator"]
        command += ["--bind", self._address, "--run-id-file", "-"]
        command += ["--silence", str(self.silence), "--state", f"{self._folder.name}/run"]
        process = Process(command)
        process.say(self._run_id.hex())
        process.until(lambda: bool(process.lines), "its token")
        return process

    def kill_coordinator(self) -> float:
        """And starts it again at the same address. When it is back."""
        self.coordinator.signal(signal.SIGKILL)
        self.coordinator.end()
        self.coordinator = self._start_coordinator()
        return time.monotonic()

    def start_peer(self, place: int) -> Peer:
        """One more."""
        job = Job(self.token, place, self._n, not self._founded, self._size, self._state)
        peer = Peer(job)
        self.peers.append(peer)
        return peer

    def remove(self, peer: Peer) -> None:
        """Ends it, if it has not ended, and forgets it."""
        peer.end()
        self.peers.remove(peer)

    def settle(self, more: int) -> None:
        """Until everybody who is there has worked with all the others for so many steps."""
        n = len(self.peers)
        for peer in self.peers:

            def together(peer: Peer = peer) -> bool:
                return len(peer.steps) >= more and all(
                    step.world == n for step in peer.steps[-more:]
                )

            peer.until(together, f"{more} steps among {n}")

    def close(self) -> None:
        """Ends everything."""
        for peer in list(self.peers):
            self.remove(peer)
        self.coordinator.end()
        self._port.close()
        self._folder.cleanup()
