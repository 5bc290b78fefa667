"""The benchmark of cores: that it runs, the form of its rows, its arithmetic."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import cores
from bench.cores_worker import KINDS, calls
from bench.loopback_libraries import Case

ROOT = Path(__file__).resolve().parents[2]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="cores are chosen as on Linux")


@pytest.mark.long
@linux_only
def test_a_quick_run_has_rows_with_and_without_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "cores", "--json", "--quick", "--cores", "1"]
    done = subprocess.run(
        [*command, "--workers", "2", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (tmp_path / "cores.jsonl").read_text() == done.stdout
    if len(os.sched_getaffinity(0)) < 2:
        assert not rows and "too few" in done.stderr
        return
    timed = {row["case"] for row in rows if row["metric"] == "seconds"}
    assert timed == {f"all_reduce/{kind.name}/w2/1MiB/c1/t2" for kind in KINDS}
    rates = {row["case"] for row in rows if row["metric"] == "bus_bandwidth"}
    assert rates == timed | {case.replace("/t2", "/t0") for case in timed}
    assert all(row["value"] > 0 and row["ratio"] > 0 for row in rows)


def test_what_has_no_codec_is_measured_once_and_is_beside_all_kinds() -> None:
    planned = calls(["workers=0", "workers=3", "gloo", "tcp"])
    assert len(planned) == 2 * len(KINDS) + 2 + 1
    spans = {"workers=0": 4.0, "workers=3": 1.0, "gloo": 8.0, "tcp": 2.0}
    report: dict[str, Any] = {
        key: [{"begin": 0.0, "end": spans[name], "cpu": spans[name] / 2}] * 3
        for key, (name, _) in planned.items()
    }
    case = Case(10**9, 1, 3)
    for kind in KINDS:
        rows = list(cores.rows_of(case, [report, report], kind, 4, 3))
        assert {row.case for row in rows} == {f"all_reduce/{kind.name}/w2/1000000000B/c4/t3"}
        values = {(row.metric, row.baseline): (row.value, row.baseline_value) for row in rows}
        assert values == {
            ("bus_bandwidth", "gloo"): (1.0, 1 / 8),
            ("bus_bandwidth", "tcp"): (1.0, 1 / 2),
            ("cpu_seconds_per_gb", "gloo"): (1.0, 8.0),
            ("cpu_seconds_per_gb", "tcp"): (1.0, 2.0),
            ("seconds", "t0"): (1.0, 4.0),
        }


@linux_only
def test_only_cores_that_are_there_are_measured_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))
    status = Console(record=True, file=io.StringIO())
    assert cores.cores_here([1, 2, 4, 8], status) == [1, 2, 4]
    assert "9 cores are too few for two peers with 8" in status.export_text()
    assert [cores.workers_on(count) for count in (1, 2, 3, 4, 9, 64)] == [1, 1, 2, 3, 8, 8]
