"""The examples of JAX do what their heads say, started as these say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HAS_OPTAX = importlib.util.find_spec("optax") is not None


def lines_of(count: int, *command: str) -> list[str]:
    """The output of a run of so many processes, without their numbers."""
    done = subprocess.run(
        [sys.executable, "-m", "pccl_py.cli", "run", "-n", str(count), "--", *command],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PCCL_BIND": "127.0.0.1:0"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [re.sub(r"^\[\d+\] ", "", line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(not HAS_OPTAX, reason="optax is not installed")
def test_jax_data_parallel_loses_one_gains_one_and_ends_with_equal_digests() -> None:
    lines = lines_of(3, sys.executable, "examples/jax_data_parallel.py")
    told = [
        re.fullmatch(r"process (\d), one of (\d), step (\d+): (.*), digest (\w+)", line)
        for line in lines
    ]
    rows = [found.groups() for found in told if found is not None]
    assert len(rows) == len(lines), lines
    by_event: dict[str, list[tuple[str, ...]]] = {}
    for process, size, step, event, digest in rows:
        by_event.setdefault(f"{step} {event}", []).append((process, size, digest))
    begun, alone, lost, joined, done = by_event.values()
    events = ((begun, "012", 3), (alone, "01", 3), (lost, "01", 2))
    for event, processes, size in (*events, (joined, "013", 3), (done, "013", 3)):
        assert "".join(sorted(row[0] for row in event)) == processes
        assert {row[1:] for row in event} == {(str(size), event[0][2])}
    # The step in which one was killed counts, and says over whom it is.
    assert any(re.match(r"11 averaged over ranks \(\d, \d\)", key) for key in by_event), by_event
