"""Peers that are processes, of which one is killed inside of a step of its own compiled loop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pccl_py as pccl

PROGRAM = Path(__file__).with_name("kill_program.py")
STEPS, STEP_KILLED = 20, 7
SECONDS_MAX = 120


def survivors_of(kind: str) -> list[dict[str, Any]]:
    """Three peers, the second of which kills itself: what the two others say, by rank."""
    with pccl.Coordinator(initial_world_size=3) as coordinator:
        environment = {**os.environ, "PCCL_TOKEN": coordinator.token, "PCCL_BIND": "127.0.0.1:0"}
        peers = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), kind, role],
                env={**environment, "NPROC": "2"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for role in ("survivor", "victim", "survivor")
        ]
        try:
            said = [peer.communicate(timeout=SECONDS_MAX) for peer in peers]
        finally:
            for peer in peers:
                peer.kill()
                peer.wait()
    codes = [peer.returncode for peer in peers]
    assert codes == [0, -signal.SIGKILL, 0], said
    made: list[dict[str, Any]] = [json.loads(said[number][0]) for number in (0, 2)]
    return sorted(made, key=lambda each: int(each["rank"]))


def check_totals(survivor: dict[str, Any]) -> None:
    """Each total is that of the ranks that its outcome names: rank r adds 100 * 2^r + step."""
    for step, total in enumerate(survivor["totals"]):
        bits = survivor["bits"][step]
        assert bits.bit_count() == survivor["contributors"][step], survivor
        assert total == 100 * bits + step * bits.bit_count(), survivor


@pytest.mark.parametrize(
    "kind",
    [
        "scan",
        pytest.param("while", marks=pytest.mark.long),
        pytest.param("apart", marks=pytest.mark.long),
    ],
)
def test_survivors_of_a_kill_inside_of_a_compiled_loop_finish_it(kind: str) -> None:
    """They end with equal bytes; outcomes and totals tell step by step who contributed.

    Where operations are begun and finished apart, the victim has begun that of its last step, and
    the outcome says whether it counts.
    """
    first, second = survivors_of(kind)
    for key in ("totals", "contributors", "bits"):
        assert first[key] == second[key]
    check_totals(first)
    everyone, pair = 0b111, 1 << first["rank"] | 1 << second["rank"]
    assert first["bits"][:STEP_KILLED] == [everyone] * STEP_KILLED
    assert first["bits"][STEP_KILLED] in ((everyone, pair) if kind == "apart" else (pair,))
    assert first["bits"][STEP_KILLED + 1 :] == [pair] * (STEPS - STEP_KILLED - 1)


@pytest.mark.long
def test_a_kill_inside_of_a_compiled_loop_of_gathers_aborts_it() -> None:
    """The error names the call; an admit closes the gap, and the program is traced for two."""
    first, second = survivors_of("gather")
    assert first["totals"] == second["totals"] and (first["now"], second["now"]) == (0, 1)
    for each in (first, second):
        assert f"call {STEP_KILLED + 1} of the program's run" in each["aborted"]
        assert each["contributors"] == [2] * STEPS
    begin = 100 * (2 ** first["rank"] + 2 ** second["rank"])
    assert first["totals"] == [begin + 2 * step for step in range(STEPS)]
