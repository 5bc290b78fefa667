"""The benchmark of the coordinator runs, and its rows are what its readers expect."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = ("decision", "loss", "loss_and_links", "loss_64MiB", "sync", "join")

# The first test compiles the benchmark, beside other tests.
pytestmark = pytest.mark.timeout(600)

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    out = tmp_path_factory.mktemp("coordinator")
    command = [sys.executable, "-m", "bench", "coordinator", "--quick", "--json"]
    command += ["--peers", "64", "--peers", "16", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    written = (out / "coordinator.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == rows
    return rows


@pytest.mark.long
def test_each_case_has_rows_for_each_number_of_peers_and_one_about_its_growth(rows: Rows) -> None:
    seen = {(row["case"], row["metric"]) for row in rows}
    each = ("ns_per_decision", "ns_per_message")
    wanted = {(f"{case}/n{n}", metric) for case in CASES for n in (16, 64) for metric in each}
    assert seen == wanted | {(case, "growth_exponent") for case in CASES}
    assert len(seen) == len(rows)
    for row in rows:
        assert row["bench"] == "coordinator" and row["value"] > 0
        assert row["ratio"] == pytest.approx(row["value"] / row["baseline_value"])
        if row["case"].endswith("/n16"):
            assert row["ratio"] == pytest.approx(1)


@pytest.mark.long
def test_the_baseline_of_a_decision_is_that_of_the_fewest_peers_grown_by_n_log_n(
    rows: Rows,
) -> None:
    decisions = {row["case"]: row for row in rows if row["metric"] == "ns_per_decision"}
    for case in CASES:
        few, many = decisions[f"{case}/n16"], decisions[f"{case}/n64"]
        grown = few["value"] * 4 * math.log(64) / math.log(16)
        assert many["baseline_value"] == pytest.approx(grown)
