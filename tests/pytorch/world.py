"""Three processes in one run of torch.distributed, which carry out checks that are sent by name.

Importing torch takes seconds, so that the processes are started once for all tests. They are
started as torchrun does it: the store is in this process, and what they need is in their
environment. Such a process, and how it reads its input: rank_program.py. The checks:
backend_checks.py and others.

A check is a function of a module, called on all ranks with the same arguments. If it fails on one,
or takes too long, all get a new run before the next check.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed

from harness.child import Child

# Its types are those of C++.
dist: Any = torch.distributed

ROOT = Path(__file__).parent.parent.parent
CHECK_SECONDS_MAX = 60.0
# Importing torch in three processes, on a machine that is busy with other tests.
START_SECONDS_MAX = 120.0


class CheckFailed(AssertionError):
    """A check has failed on some ranks. The text has their tracebacks, the first to fail first."""


class World:
    """`run` sends a check to all processes, and returns what it has returned on each of them."""

    def __init__(self, size: int = 3, **environment: str) -> None:
        self.size = size
        self._environment = environment
        self._children: list[Child] = []
        self._heard: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self._store: Any = None
        self._run = 0

    def run(self, check: str, *, seconds: float = CHECK_SECONDS_MAX, **arguments: Any) -> list[Any]:
        """The values, by rank, that `check` ("module:function") has returned: what JSON can say."""
        if not self._children:
            self._start()
        asked = json.dumps({"check": check, "arguments": arguments, "run": self._run})
        for child in self._children:
            child.say(asked)
        answers = self._collect(check, time.monotonic() + seconds)
        failed = [rank for rank, answer in answers.items() if "error" in answer]
        if failed:
            self._run += 1
            failed.sort(key=lambda rank: float(answers[rank]["at"]))
            texts = [f"---- rank {rank}\n{answers[rank]['error']}" for rank in failed]
            raise CheckFailed(f"{check} failed on ranks {failed}\n" + "\n".join(texts))
        return [answers[rank]["value"] for rank in range(self.size)]

    def _collect(self, check: str, until: float) -> dict[int, Any]:
        """The answers of all, by rank."""
        answers: dict[int, Any] = {}
        while len(answers) < self.size:
            try:
                rank, line = self._heard.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                missing = sorted(set(range(self.size)) - set(answers))
                raise CheckFailed(
                    f"{check}: no answer from ranks {missing}\n{answers}\n{self._stacks()}"
                ) from None
            if line is None:
                errors = self._children[rank].errors
                self._end()
                raise CheckFailed(f"{check}: rank {rank} has ended\n{answers}\n{errors}")
            answers[rank] = json.loads(line)
        return answers

    def _stacks(self) -> str:
        """Where all processes are, which ends them: faulthandler writes it at SIGABRT."""
        for child in self._children:
            child.signal(signal.SIGABRT)
        texts = []
        for rank, child in enumerate(self._children):
            child.wait_until_heard(CHECK_SECONDS_MAX)
            texts.append(f"---- rank {rank}\n{child.errors}")
        self._end()
        return "\n".join(texts)

    def _start(self) -> None:
        self._heard = queue.Queue()
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": str(self.size),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **self._environment,
        }
        program = str(Path(__file__).parent / "rank_program.py")
        for rank in range(self.size):

            def heard(line: str | None, rank: int = rank) -> None:
                self._heard.put((rank, line))

            child = Child(
                [sys.executable, "-u", program],
                heard=heard,
                ended=lambda _, heard=heard: heard(None),  # type: ignore[misc]
                environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                folder=ROOT,
            )
            self._children.append(child)
        self._collect("start", time.monotonic() + START_SECONDS_MAX)

    def _end(self) -> None:
        for child in self._children:
            child.end(group=True)
        self._children = []
        self._store = None
        self._run += 1

    def close(self) -> None:
        """The processes leave their run, and end."""
        for child in self._children:
            child.close_input()
        for child in self._children:
            child.wait(CHECK_SECONDS_MAX)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end() if kind is not None else self.close()
