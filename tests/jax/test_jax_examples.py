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


RUN = ["-m", "pccl_py.cli", "run", "-n"]
# A machine where these are not installed.
WITHOUT = """
import importlib.util, runpy, sys
found, left_out = importlib.util.find_spec, sys.argv[2:]
importlib.util.find_spec = lambda name, *rest: None if name in left_out else found(name, *rest)
sys.argv = sys.argv[1:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def lines_of(*command: str) -> list[str]:
    """The lines that Python prints for these arguments, without the numbers of processes."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PCCL_BIND": "127.0.0.1:0"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [re.sub(r"^\[\d+\] ", "", line) for line in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.skipif(not HAS_OPTAX, reason="optax is not installed")
def test_jax_data_parallel_loses_one_gains_one_and_ends_with_equal_digests() -> None:
    lines = lines_of(*RUN, "3", "--", sys.executable, "examples/jax_data_parallel.py")
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


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
def test_peers_of_all_frameworks_end_with_the_same_bytes() -> None:
    check_averages(lines_of("examples/mixed_frameworks.py"), {"numpy", "jax", "torch"})


def test_frameworks_that_are_not_installed_are_left_out_and_named() -> None:
    example = "examples/mixed_frameworks.py"
    lines = lines_of("-c", WITHOUT, example, "jax", "torch")
    assert lines[:2] == [f"not installed, so left out: {kind}" for kind in ("jax", "torch")]
    check_averages(lines[2:], {"numpy"})


def check_averages(lines: list[str], kinds: set[str]) -> None:
    """Each kind, and the peer in C, which does not say its own, has a rank, and all one digest."""
    count = len(kinds) + 1
    told = [
        re.fullmatch(
            rf"rank (\d) of {count}: average {3 + (count - 1) / 2:g} of {count} contributors, "
            r"digest (\w{8})(?:, (\w+))?",
            line,
        )
        for line in lines
    ]
    rows = [found.groups() for found in told if found is not None]
    assert len(rows) == len(lines) == count, lines
    assert sorted(row[0] for row in rows) == [str(rank) for rank in range(count)]
    assert {row[1] for row in rows} == {rows[0][1]}
    assert {row[2] for row in rows} == {*kinds, None}


def test_jax_overlap_gives_equal_results_in_both_ways() -> None:
    lines = lines_of(*RUN, "2", "--", sys.executable, "examples/jax_overlap.py")
    told = [
        re.fullmatch(r"rank (\d) of 2: [\d.]+ ms .*, [\d.]+ ms overlapped, equal results", line)
        for line in lines
    ]
    assert sorted(found[1] for found in told if found is not None) == ["0", "1"], lines
