"""The loopback benchmark: that it runs, that its rows have the common form, and its arithmetic.

No test here looks at how fast anything is: that is what the benchmark itself is for.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bench import common, loopback
from bench.common import Row
from bench.loopback_libraries import Case, Job, result_of
from bench.tcp_ring import TcpRing
from pccl_py.measure_collectives import COLLECTIVES, encodes

ROOT = Path(__file__).resolve().parents[2]
KEYS = ["bench", "case", "metric", "value", "unit", "baseline", "baseline_value", "ratio"]
SHAPES = {
    "w2/4KiB": (2, 4096),
    "w2/1MiB": (2, 1 << 20),
    "w4/4KiB": (4, 4096),
    "w4/1MiB": (4, 1 << 20),
}
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")


@pytest.mark.long  # 30 s of CPU
@linux_only
def test_a_quick_run_prints_a_row_for_each_case_and_metric(tmp_path: Path) -> None:
    # Goal: the benchmark works, with or without torch and mpi4py. Method: a small run.
    command = [sys.executable, "-m", "bench", "loopback", "--json", "--quick"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(list(row) == KEYS for row in rows)
    assert (tmp_path / "loopback.jsonl").read_text() == done.stdout
    assert (tmp_path / "loopback.png").read_bytes().startswith(b"\x89PNG")

    sizes = [common.size_name(size) for size in loopback.QUICK_SIZES]
    ours = ["seconds", "bus_bandwidth", "cpu_seconds_per_gb", "peak_memory_bytes"]
    baselines: list[str | None] = []
    if importlib.util.find_spec("torch") is not None:
        baselines.append("gloo")
    else:
        assert "torch is not installed" in done.stderr
    if loopback.mpi_missing() is None:
        baselines.append("mpi4py")
    else:
        assert done.stderr.count("no MPI to compare with") == 1
    cases = {(f"{name}/f32/none", of) for name in COLLECTIVES for of in ours[:3]}
    cases.add(("all_reduce/f32/none", ours[3]))
    expected: set[tuple[str, str, str | None]] = {
        (f"{case}/w{world}/{size}", metric, baseline)
        for world in (2, 4)
        for size in sizes
        for mine, beside in (
            (cases, baselines or [None]),
            ({("tcp_ring/bytes/none", of) for of in ours[:3]}, [None]),
            ({(f"{name}/f32/int8", "seconds") for name in filter(encodes, COLLECTIVES)}, ["none"]),
            ({("all_reduce/f32/none", "peak_memory_apart")}, [None]),
        )
        for case, metric in mine
        for baseline in beside
    }
    by_name = {(row["case"], row["metric"], row["baseline"]): row for row in rows}
    assert set(by_name) == expected and len(rows) == len(expected)
    for (case, metric, baseline), row in by_name.items():
        assert row["bench"] == "loopback"
        assert row["value"] >= 0 if metric.startswith("peak_memory") else row["value"] > 0
        if baseline is not None and row["baseline_value"]:
            assert row["ratio"] == pytest.approx(row["value"] / row["baseline_value"])
        if metric == "bus_bandwidth":
            world, size = SHAPES[case.split("/", 3)[3]]
            collective = case.split("/")[0].replace("tcp_ring", "all_reduce")
            share = {"all_reduce": 2, "reduce": 0, "broadcast": 0, "send_recv": 0}.get(
                collective, 1
            )
            moved = (share * (world - 1) / world or 1) * size
            seconds = by_name[case, "seconds", baseline]["value"]
            assert row["value"] == pytest.approx(moved / seconds / 1e9)


def test_calls_that_are_not_in_place_have_another_array_for_their_result() -> None:
    def job(purpose: str) -> Job:
        return Job(purpose, 0, 2, ["pccl"], [Case(4096, 1, 1)], 1)

    values, other = np.ones(4, np.float32), np.ones(4, np.float32)
    assert result_of(job("memory"), "all_reduce", values, other) is values
    assert result_of(job("memory_apart"), "all_reduce", values, other) is other
    assert result_of(job("time"), "all_to_all", values, other) is other


@linux_only
def test_a_process_that_fails_ends_the_run_with_its_status(tmp_path: Path) -> None:
    # Goal: no benchmark hangs on a dead process. Method: a library of that name does not exist.
    with (
        pytest.raises(RuntimeError, match=r"process . of the benchmark failed, status 1"),
        loopback.Processes("time", 2, ["no such library"], [Case(4096, 1, 1)]) as processes,
    ):
        processes.introduce()


def samples(*processes: list[tuple[float, float, float]]) -> list[dict[str, object]]:
    return [
        {"pccl": [{"begin": b, "end": e, "cpu": c} for b, e, c in process]} for process in processes
    ]


def test_a_sample_counts_from_the_last_that_enters_to_the_last_that_leaves() -> None:
    reports = samples(
        [(0.0, 2.0, 0.5), (10.0, 14.0, 1.0), (20.0, 21.0, 0.1)],
        [(1.0, 2.5, 0.5), (10.5, 13.0, 2.0), (20.0, 29.0, 0.1)],
    )
    case = Case(size=1000, iterations=2, samples=3)
    # Spans 1.5, 3.5 and 9; CPU 1, 3 and 0.2: medians over two calls each.
    assert loopback.seconds_of(case, reports, "pccl") == 3.5 / 2
    assert loopback.cpu_seconds_of(case, reports, "pccl") == 1.0 / 2


def test_ratio_is_ours_over_the_baseline() -> None:
    row = Row("b", "c", "seconds", 1.0, "s", "gloo", 4.0)
    assert row.ratio == 0.25
    assert json.loads(row.to_json())["ratio"] == 0.25
    assert Row("b", "c", "seconds", 1.0, "s").ratio is None
    assert Row("b", "c", "seconds", 1.0, "s", "gloo", 0.0).ratio is None


@pytest.mark.parametrize(
    ("size", "name"),
    [(4096, "4KiB"), (64 << 20, "64MiB"), (1 << 30, "1GiB"), (1000, "1000B"), (0, "0B")],
)
def test_sizes_are_named_by_the_largest_unit_that_fits(size: int, name: str) -> None:
    assert common.size_name(size) == name


def test_the_plan_covers_4_kib_to_256_mib_and_stays_in_range() -> None:
    cases = loopback.plan(loopback.SIZES, quick=False)
    names = [common.size_name(case.size) for case in cases]
    assert names[0] == "4KiB" and names[-1] == "256MiB" and "64MiB" in names
    assert all(case.samples % 2 == 1 for case in cases), "a median of real samples"
    assert all(4.0**case.iterations < 3e38 for case in cases), "f32 overflows at four peers"


@linux_only
def test_processes_share_the_cores_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 0, 1, 2, 5})
    assert [common.cores_of(rank, 2) for rank in range(2)] == [[0, 1], [2, 3]]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {7, 4})
    assert [common.cores_of(rank, 4) for rank in range(4)] == [[4], [7], [4], [7]]


@linux_only
def test_peak_memory_sees_what_was_held_and_freed() -> None:
    common.peak_memory_reset()
    before = common.memory_bytes()
    held = bytearray(64 << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    del held
    assert common.peak_memory_bytes() - before > 60 << 20
    common.peak_memory_reset()
    assert common.peak_memory_bytes() - common.memory_bytes() < 32 << 20


def in_threads(count: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


@pytest.mark.parametrize("world", [2, 3])
def test_the_ring_moves_what_it_says_and_meets_at_its_barrier(world: int) -> None:
    # Goal: the ceiling is of as many bytes as an all_reduce moves. Method: every byte is counted.
    rings = [TcpRing() for _ in range(world)]
    counts = [0] * world

    def work(rank: int) -> None:
        ring = rings[rank]
        ring.connect(rings[(rank + 1) % world].port, world)
        plain = ring._receive

        def counted(count: int) -> int:
            received = plain(count)
            counts[rank] += received
            return received

        ring._receive = counted  # type: ignore[method-assign]
        ring.exchange(3_000_000)
        ring.barrier()
        ring.close()

    in_threads(world, work)
    assert counts == [2 * (world - 1) * 3_000_000 // world + world - 1] * world
