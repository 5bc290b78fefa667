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
from collections.abc import Iterator
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
    """The last line of JSON of each process. Raises RuntimeError if one fails."""
    told: list[queue.Queue[str | None]] = [queue.Queue() for _ in commands]
    with contextlib.ExitStack() as stack:
        children = []
        for command, environment, heard in zip(commands, environments, told, strict=True):
            child = Child(
                command,
                heard=heard.put,
                ended=functools.partial(_end, heard),
                environment=environment,
                log=sys.stderr,
            )
            children.append(stack.enter_context(child))
        lines = [list(_until_the_end(waiting, seconds_max)) for waiting in told]
        codes = [child.wait(seconds_max) for child in children]
    if any(codes):
        raise RuntimeError(f"processes of {name} ended with status {codes}")
    return [said[-1] for said in lines]


def _end(told: queue.Queue[str | None], _: int) -> None:
    told.put(None)


def _until_the_end(told: queue.Queue[str | None], seconds_max: float) -> Iterator[str]:
    while (said := told.get(timeout=seconds_max)) is not None:
        if said.startswith("{"):
            yield said
