"""The benchmark of the safety checks: its program calls two libraries in turn, and its rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import pccl_py
from bench import price
from bench.common import KIB
from bench.price import BASELINE, CONTROL, OURS, Block


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="libraries are loaded the way of Linux")
def test_a_quick_run_compares_two_libraries_call_by_call(tmp_path: Path) -> None:
    """Goal: the program runs and checks its results. Method: the installed library, twice."""
    library = Path(pccl_py.__file__).parent / "libpccl.so"
    rows = price.run(
        [4 * KIB],
        quick=True,
        as_json=True,
        out=tmp_path,
        libraries={BASELINE: library, OURS: library},
    )
    wanted = {
        (f"all_reduce/f32/none/w2/4KiB/{name}", metric)
        for name in (OURS, CONTROL)
        for metric in ("seconds", "cpu_seconds")
    }
    timed = [row for row in rows if row.metric != "instructions"]
    assert {(row.case, row.metric) for row in timed} == wanted
    assert all(row.value > 0 for row in timed)
    assert all(row.baseline == BASELINE for row in rows)


def test_a_ratio_is_that_of_medians_and_of_the_least_processor_time() -> None:
    blocks = [
        Block(library, 100 + library * 50 + n, n + 10) for n in range(9) for library in (0, 1)
    ]
    blocks += [Block(2, 104, 20)] * 9
    rows = {(row.case.rsplit("/", 1)[1], row.metric): row for row in price.rows_of(4096, blocks)}
    assert rows[OURS, "seconds"].ratio == pytest.approx(154 / 104)
    assert rows[OURS, "cpu_seconds"].ratio == 1
    assert rows[CONTROL, "seconds"].ratio == 1
    assert rows[CONTROL, "cpu_seconds"].ratio == 2
