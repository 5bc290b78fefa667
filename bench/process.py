"""A process that a benchmark has started, and what it has said so far.

It owns waiting for lines, with a limit. The benchmarks know what the lines mean: recovery_world.py,
diloco_links.py and diloco_losses.py.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping

from harness.child import Child

WAIT_SECONDS_MAX = 120.0
# Libraries of arrays leave the cores to the processes.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Process:
    """A child whose lines are collected; `until` waits for what they say."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._news = threading.Condition()
        self._over = False
        self.lines: list[str] = []
        self._child = Child(
            command,
            heard=self._hear,
            ended=self._hear_the_end,
            environment={**ENVIRONMENT, **(environment or {})},
            log=sys.stderr,
        )

    def _hear(self, line: str) -> None:
        with self._news:
            if line.endswith("\n"):  # a killed process may have left half a line
                self.heard(line)
            self._news.notify_all()

    def _hear_the_end(self, _: int) -> None:
        with self._news:
            self._over = True
            self._news.notify_all()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    def heard(self, line: str) -> None:
        """A line, under the lock of `until`."""
        self.lines.append(line)

    def until(
        self, condition: Callable[[], bool], what: str, seconds_max: float = WAIT_SECONDS_MAX
    ) -> None:
        """Raises RuntimeError when the process ends without it, or it takes too long."""
        with self._news:
            over = self._news.wait_for(lambda: condition() or self._over, seconds_max)
            if not condition():
                why = "did not within the limit" if not over else "ended first"
                raise RuntimeError(f"a process of the benchmark should say {what}, and {why}")

    def say(self, line: str) -> None:
        """A line on its standard input."""
        self._child.say(line)

    def signal(self, number: int) -> float:
        """Sends it, and returns when."""
        at = time.monotonic()
        self._child.signal(number)
        return at

    def end(self) -> None:
        """Kills it and waits until it is gone."""
        self._child.end()
