"""Processes that measure together: their start, what they print, and what their samples come to.

It owns no measurement. torch_steps.py and jax_steps.py start their workers by it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import statistics
import sys
from pathlib import Path

from harness.child import Child


def seconds(of_all: list[list[tuple[float, float]]]) -> float:
    """The median of a sample, from the last that entered to the last that left."""
    together = zip(*of_all, strict=True)
    taken: list[float] = [
        max(end for _, end in sample) - max(begin for begin, _ in sample) for sample in together
    ]
    return statistics.median(taken)


def busy_seconds() -> float:
    """CPU seconds of this machine that were not of this process and its children.

    Without interrupts, in which the kernel moves the bytes of all.
    """
    own = os.times()
    return sum(machine_seconds()[:3]) - sum(own[:4])  # user, nice, system


def machine_seconds() -> list[float]:
    """CPU seconds of this machine since it runs, by their kind, in the order of /proc/stat."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]


def last_lines(
    name: str, commands: list[list[str]], environments: list[dict[str, str]], seconds_max: float
) -> list[str]:
    """The last line of JSON of each process. Raises RuntimeError as soon as one fails."""
    told: queue.Queue[tuple[int, str | int]] = queue.Queue()  # its lines, and how it ended
    lines = [""] * len(commands)
    with contextlib.ExitStack() as stack:
        for number, (command, environment) in enumerate(zip(commands, environments, strict=True)):
            tell = functools.partial(_tell, told, number)
            child = Child(command, heard=tell, ended=tell, environment=environment, log=sys.stderr)
            stack.enter_context(child)
        running = len(commands)
        while running > 0:
            number, word = told.get(timeout=seconds_max)
            if word == 0:
                running -= 1
            elif isinstance(word, int):
                raise RuntimeError(f"process {number} of {name} ended with status {word}")
            elif word.startswith("{"):
                lines[number] = word
    return lines


def _tell(told: queue.Queue[tuple[int, str | int]], number: int, word: str | int) -> None:
    told.put((number, word))
