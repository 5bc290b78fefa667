"""The benchmark of the kernels runs, and so does `pccl bench kernels`; what they print is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pccl_py
from pccl_py import measure

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_quick_run_gives_rows_and_writes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "kernels", "int8", "--quick", "--json"]
    command += ["--size", "64KiB", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    written = (tmp_path / "kernels.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == rows
    against_limit = {row["case"] for row in rows if row["baseline"] == "skeleton"}
    wanted = {f"{name}/64KiB" for name in measure.kernel_names() if "int8" in name}
    assert against_limit == wanted
    for row in rows:
        assert (row["bench"], row["metric"], row["unit"]) == ("kernels", "bytes_per_second", "B/s")
        assert row["value"] > 0 and row["ratio"] > 0


def test_the_command_prints_a_table_of_this_machine() -> None:
    command = [sys.executable, "-m", "pccl_py.cli", "bench", "kernels", "ring/int4"]
    command += ["--mib", "0.25", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ring/int4_rotated" in done.stdout and pccl_py.cpu_level() in done.stdout


def test_what_cannot_be_measured_is_refused() -> None:
    for size in (0, 5, 4096, 2**40):
        with pytest.raises(pccl_py.InvalidArgument, match="16 KiB"):
            measure.Measurement(size)
    with pytest.raises(pccl_py.InvalidArgument, match='"nothing"'):
        measure.Measurement(1 << 20).rate("nothing")
