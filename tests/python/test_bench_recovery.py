"""The recovery benchmark: that it runs, that its rows have the common form, and its arithmetic.

No test here looks at how fast anything is: that is what the benchmark itself is for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import recovery
from bench.__main__ import app
from bench.recovery import Tries, quantile

ROOT = Path(__file__).resolve().parents[2]
KEYS = ["bench", "case", "metric", "value", "unit", "baseline", "baseline_value", "ratio"]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark pins processes")


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "recovery", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.mark.long
@pytest.mark.alone
@linux_only
def test_a_small_run_prints_rows_for_every_case(tmp_path: Path) -> None:
    small = ("--mib", "1", "--tries", "1", "--silence", "1.5")
    done = bench("--json", *small, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(list(row) == KEYS and row["bench"] == "recovery" for row in rows)
    assert (tmp_path / "recovery.jsonl").read_text() == done.stdout
    by_name = {(row["case"], row["metric"]): row["value"] for row in rows}
    for case in recovery.CASES:
        assert by_name[case, "failed_calls"] == 0
        assert by_name[case, "seconds"] > 0
        assert by_name[case, "seconds_max"] >= by_name[case, "seconds"]
        assert by_name[case, "undisturbed_steps"] > 0 and (case, "gap_seconds") in by_name
    assert by_name["state", "seconds_one_holder"] > 0
    assert by_name["freeze", "seconds"] > 1.0, "it cannot be known before the silence is over"
    assert "median" in done.stderr, "the distributions are for people"


def test_an_unknown_case_is_one_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["recovery", "--case", "nonsense", "--out", str(tmp_path)])
    assert done.exit_code == 2 and "nonsense" in done.output and "kill" in done.output


def test_quantiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(10, 0, -1)]
    assert quantile(values, 0.9) == 9.0
    assert quantile(values, 1.0) == 10.0
    assert quantile([3.0], 0.9) == 3.0


def test_steps_are_seconds_in_units_of_an_undisturbed_call() -> None:
    tries = Tries("kill", step=0.5)
    tries.add(1.0, gap=0.25, failed_calls=1)
    tries.add(3.0, gap=0.75, failed_calls=2)
    values = {row.metric: row.value for row in tries.rows()}
    assert values["failed_calls"] == 3
    assert (values["seconds"], values["seconds_p90"]) == (2.0, 3.0)
    assert (values["undisturbed_steps"], values["undisturbed_steps_max"]) == (4.0, 6.0)
    assert values["gap_seconds"] == 0.5
