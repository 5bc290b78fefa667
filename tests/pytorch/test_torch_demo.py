"""The demo under PyTorch, as `make demo FRAMEWORK=torch` runs it. With NumPy: test_demo_run.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.alone]

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 240


def test_all_that_the_demo_claims_holds_under_ddp(tmp_path: Path) -> None:
    options = ["--framework", "torch", "--out", str(tmp_path), "--seconds-max", str(SECONDS_MAX)]
    command = [sys.executable, "-m", "examples.demo", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX + 30
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["settings"]["framework"] == "torch"
    assert report["passed"] and len(report["checks"]) == 8
