"""The example of error feedback shows what its head says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_error_feedback_brings_the_loss_down() -> None:
    done = subprocess.run(
        [sys.executable, "examples/error_feedback.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = {}
    for line in done.stdout.splitlines():
        name, _, loss = line.rpartition(" loss ")
        losses[name.strip()] = float(loss)
    plain = "int4, not rotated"
    assert losses["none"] < losses["int8"] < losses["int4"] < losses[plain] / 4
    assert losses[f"{plain}, with error feedback"] < losses[plain] / 10
    assert losses["int4 with error feedback"] < losses["int4"] / 2
