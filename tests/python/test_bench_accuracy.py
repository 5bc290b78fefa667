"""The benchmark of accuracy: it runs through the library, and gives the documented errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import accuracy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_quick_run_gives_the_documented_errors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "accuracy", "--quick", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    values = {(row["case"], row["metric"]): row["value"] for row in rows}
    assert len(values) == len(rows) == 2 * 2 * 2 * len(accuracy.codecs())

    def error(case: str) -> float:
        return float(values[case, "relative_l2_error"])

    # docs/internals/BENCHMARKS.md, and what else follows from the formats.
    assert error("heavy/direct/int8") < 9e-3
    assert error("heavy/direct/int4") < 1.6e-1
    assert error("heavy/direct/int8") < 0.6 * error("heavy/direct/int8_plain")
    for data in ("normal", "heavy"):
        for name in ("int8", "int4", "bf16"):
            assert error(f"{data}/direct/{name}") < 0.75 * error(f"{data}/ring/{name}")
    assert 8.1 < values["normal/direct/int8", "bits_per_element"] < 8.3


def test_the_front_is_what_nothing_else_beats() -> None:
    points = [(8.0, 1.0), (4.0, 3.0), (8.0, 2.0), (6.0, 3.5), (16.0, 0.1)]
    assert accuracy.pareto(points) == [(4.0, 3.0), (8.0, 1.0), (16.0, 0.1)]
