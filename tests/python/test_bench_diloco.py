"""The benchmark of low-communication training runs, and its rows are what its readers expect."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import diloco_links

pytest.importorskip("torch")
from bench import diloco

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long


def test_each_method_has_a_loss_and_its_bytes_beside_synchronous_training(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "diloco", "--quick", "--json", "--part", "quality"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    rows = {(row["case"], row["metric"]): row for row in map(json.loads, done.stdout.splitlines())}
    cases = [f"quality/{name}" for name in ("synchronous", *diloco.cases(diloco.QUICK))]
    metrics = ("loss", "bytes_sent", "peak_bytes", "waited")
    assert rows.keys() == {(case, metric) for case in cases for metric in metrics}
    for case in cases[1:]:
        assert rows[case, "loss"]["ratio"] < 1.6
        assert rows[case, "bytes_sent"]["ratio"] < 0.2
    coded, plain = (rows[f"quality/diloco{codec}", "bytes_sent"] for codec in (" int8", ""))
    assert coded["value"] < 0.4 * plain["value"]


def test_the_settings_of_a_grid_are_those_of_methods() -> None:
    from pccl_train import Method

    from bench import diloco_worker

    for name in diloco_links.METHODS:
        for every in diloco_links.FULL.rounds:
            asked = json.loads(json.dumps(diloco_links.settings_of(name, every)))
            method = Method(**diloco_worker.settings_of(asked))
            assert method.sync_every == every
            assert (method.fragment_sync_delay > 0) == ("streaming" in name)
