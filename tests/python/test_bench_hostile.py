"""The benchmark of attacks runs, and its rows are what its readers expect."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.hostile import Measured, Window

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it runs on Linux")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "hostile", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_the_attack_of_a_stranger_is_measured_beside_one_on_a_bystander(tmp_path: Path) -> None:
    done = bench("--quick", "--json", "--attack", "resets", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    written = (tmp_path / "hostile.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == rows
    by_name = {(row["case"], row["metric"]): row for row in rows}
    calls = by_name["resets", "calls_per_second"]
    assert calls["value"] > 0 and calls["baseline"] == "bystander" and calls["baseline_value"] > 0
    for metric in ("throughput_ratio", "cpu_ratio", "undisturbed_ratio"):
        assert by_name["resets", metric]["value"] > 0


def test_an_unknown_attack_is_one_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["hostile", "--attack", "nonsense", "--out", str(tmp_path)])
    assert done.exit_code == 2 and "nonsense" in done.output and "resets" in done.output


def test_a_ratio_is_of_windows_beside_each_other() -> None:
    measured = Measured("resets", connections=[7.0])
    for calls, cpu in (100.0, 0.01), (10.0, 0.02), (50.0, 0.03):
        measured.note_before(Window(calls, cpu))
    for calls, cpu in (50.0, 0.02), (9.0, 0.02), (50.0, 0.04):
        measured.note_under(Window(calls, cpu))
    rows = {row.metric: row for row in measured.rows()}
    assert rows["throughput_ratio"].value == 0.9
    assert rows["throughput_ratio_min"].value == 0.5
    assert rows["cpu_ratio"].value == 0.75
    assert rows["cpu_seconds_per_call"].value == rows["cpu_seconds_per_call"].baseline_value == 0.02
    assert rows["calls_per_second"].baseline_value == 50.0
    assert "newcomer_seconds" not in rows
