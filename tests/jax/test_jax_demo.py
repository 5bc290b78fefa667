"""The demo under JAX, as `make demo FRAMEWORK=jax` runs it. With NumPy: test_demo_run.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.long, pytest.mark.alone]

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 240


def test_all_that_the_demo_claims_holds_in_jitted_programs(tmp_path: Path) -> None:
    pytest.importorskip("optax", reason="optax is not installed", exc_type=ModuleNotFoundError)
    options = ["--framework", "jax", "--out", str(tmp_path), "--seconds-max", str(SECONDS_MAX)]
    command = [sys.executable, "-m", "examples.demo", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX + 30
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["settings"]["framework"] == "jax"
    assert report["passed"] and len(report["checks"]) == 8
