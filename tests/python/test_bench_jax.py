"""The benchmark of JAX: that it runs, the form of its rows, its arithmetic.

No test here looks at how fast anything is: that is what the benchmark itself is for.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import jax_plan, jax_steps
from bench.__main__ import app
from bench.common import MIB, Row
from bench.jax_plan import Case

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark pins cores")


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_a_quick_run_prints_rows_of_all_contenders(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "jax", "--json", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (tmp_path / "jax.jsonl").read_text() == done.stdout
    told = [(row["case"], row["metric"], row["baseline"]) for row in rows if row["unit"] == "s"]
    reduced = "all_reduce/f32/none/w2/4KiB"
    alone = [("call_seconds", "identity"), ("handler_seconds", None), ("effect_seconds", None)]
    assert told == [
        *((f"dispatch/{calls}", *metric) for calls in (1, 10) for metric in alone),
        *((reduced, "seconds", "psum"), (reduced, "seconds_plain", "pccl_py")),
        *((reduced, "seconds_new", "pccl_py"), (reduced, "seconds_donated", "pccl_py")),
        ("overlap/4KiB", "seconds", "blocking"),
        ("compile/10", "seconds", "identity"),
    ]
    both = [row for row in rows if row["baseline"] is not None]
    assert all(row["value"] > 0 and row["baseline_value"] > 0 for row in both)
    others = [row["value"] for row in rows if row["metric"] == "cpu_of_others"]
    assert len(others) == 5
    assert [row["case"] for row in rows if row["metric"] == "hidden_share"] == ["overlap/4KiB"]
    not_counted = sum(each > jax_steps.OTHERS_MAX for each in others)
    is_crowded = jax_steps.cores_each(Case("overlap", 1, 2)) < 2
    assert done.stderr.count("not count") == not_counted + is_crowded


def test_an_unknown_case_is_named() -> None:
    done = CliRunner().invoke(app, ["jax", "--case", "nccl"])
    assert done.exit_code == 2 and "nccl: there are dispatch, all_reduce" in done.output


def test_a_plan_has_each_size_and_a_quick_one_is_small() -> None:
    cases = jax_plan.plan(["all_reduce", "compile"], quick=False)
    sizes = ("4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB", "16MiB", "64MiB")
    names = [f"all_reduce/f32/none/w2/{size}" for size in sizes]
    assert [case.name for case in cases] == [*names, "compile/10"]
    assert [case.world for case in cases] == [2] * 8 + [1]
    (quick,) = jax_plan.plan(["all_reduce"], quick=True)
    assert (quick.size, quick.samples, quick.iterations) == (4096, 2, 2)
    (named,) = jax_plan.plan(["all_reduce"], quick=False, sizes=[64 * MIB])
    assert named == Case("all_reduce", 1, 11, 64 * MIB)


def test_what_handler_and_effect_cost_is_what_they_add() -> None:
    times = {"identity": 2e-6, "ordered": 5e-6, "pccl_py": 20e-6, "pccl_jax": 28e-6}
    call, handler, effect = jax_steps.rows(Case("dispatch", 300, 41), times)
    assert call == Row("jax", "dispatch/1", "call_seconds", 28e-6, "s", "identity", 2e-6)
    assert handler.value == pytest.approx(3e-6) and effect.value == pytest.approx(3e-6)
    times = {"psum": 9.0, "pccl_py": 5.0, "pccl_jax": 6.0, "donated": 4.0, "in_place": 8.0}
    times["new_memory"] = 12.0
    seconds, plain, new, donated = jax_steps.rows(Case("all_reduce", 1, 11, 4096), times)
    assert (seconds.baseline, seconds.baseline_value) == ("psum", 9.0)
    assert (plain.baseline, plain.ratio) == ("pccl_py", 1.2)
    assert (new.baseline, new.ratio) == ("pccl_py", 0.5)
    assert (donated.baseline, donated.ratio) == ("pccl_py", 0.5)


def test_the_share_that_is_hidden_is_of_the_transfer_alone() -> None:
    times = {"pccl_jax": 2.0, "products": 3.0, "blocking": 5.0, "overlapped": 3.5}
    hidden, seconds = jax_steps.rows(Case("overlap", 1, 25), times)
    assert (hidden.metric, hidden.value, hidden.unit) == ("hidden_share", 0.75, "share")
    assert (seconds.value, seconds.baseline, seconds.baseline_value) == (3.5, "blocking", 5.0)
