"""The benchmark of hashing runs, and its rows have the form of all benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_quick_run_gives_rows_and_writes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "hash", "--quick", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [json.loads(line) for line in (tmp_path / "hash.jsonl").read_text().splitlines()] == rows
    reads = [row for row in rows if row["baseline"] == "memory_read"]
    assert reads
    for row in rows:
        assert (row["bench"], row["metric"], row["unit"]) == ("hash", "bytes_per_second", "B/s")
        assert row["case"].startswith("state/") and row["case"].endswith("/4MiB")
        assert row["value"] > 0 and row["ratio"] > 0
