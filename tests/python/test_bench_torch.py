"""The benchmark of torch.distributed: that it runs, the form of its rows, its arithmetic, its line.

No test here looks at how fast anything is: that is what the benchmark itself is for.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import together, torch_ft, torch_kill, torch_link, torch_plan, torch_steps
from bench.__main__ import app
from bench.common import Row
from bench.torch_plan import Case

ROOT = Path(__file__).resolve().parents[2]
KEYS = ["bench", "case", "metric", "value", "unit", "baseline", "baseline_value", "ratio"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark pins cores")


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_quick_run_prints_rows_of_both_and_of_the_overhead(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "torch", "--json", "--quick", "--case", "all_reduce"]
    command += ["--size", "4KiB", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(list(row) == KEYS for row in rows)
    assert (tmp_path / "torch.jsonl").read_text() == done.stdout
    assert {row["case"] for row in rows} == {"all_reduce/f32/none/w2/4KiB"}
    seconds, overhead, others = rows
    assert (seconds["metric"], seconds["baseline"]) == ("seconds", "gloo")
    assert seconds["value"] > 0 and seconds["baseline_value"] > 0
    assert (overhead["metric"], others["metric"]) == ("overhead_seconds", "cpu_of_others")
    told = "does not count" in done.stderr
    assert told == (others["value"] > torch_steps.OTHERS_MAX)


def test_a_process_that_fails_ends_the_others_that_wait_for_it() -> None:
    commands = [[sys.executable, "-c", text] for text in ("input()", "raise SystemExit(3)")]
    with pytest.raises(RuntimeError, match="process 1 of a case ended with status 3"):
        together.last_lines("a case", commands, [{}, {}], 60)


def test_an_unknown_case_is_named() -> None:
    done = CliRunner().invoke(app, ["torch", "--case", "nccl"])
    assert done.exit_code == 2 and "nccl: there are all_reduce, ddp" in done.output


def test_a_plan_has_each_size_and_a_quick_one_is_small() -> None:
    cases = torch_plan.plan(["all_reduce", "ddp", "coded"], quick=False)
    assert [case.name for case in cases] == [
        *(f"all_reduce/f32/none/w2/{size}" for size in ("4KiB", "16KiB", "64KiB", "256KiB")),
        *(f"all_reduce/f32/none/w2/{size}" for size in ("1MiB", "4MiB", "16MiB", "64MiB")),
        *("ddp_step/f32/none/w2/1M", "ddp_step/f32/none/w2/25M"),
        *("ddp_step/f32/int8/w2/1M", "ddp_step/f32/int8/w2/25M"),
    ]
    quick = torch_plan.plan(["all_reduce", "fsdp"], quick=True)
    assert {case.size for case in quick} == {"4KiB", "1MiB", "1M"}
    assert all(case.samples == 2 for case in quick)
    (named,) = torch_plan.plan(["all_reduce"], quick=False, sizes=[8192])
    assert named == Case("all_reduce", "8KiB", 50, 25)


def test_a_sample_counts_from_the_last_that_entered_to_the_last_that_left() -> None:
    first, second = [(0.0, 5.0), (10.0, 12.0), (20.0, 21.0)], [(1.0, 4.0), (9.0, 13.0), (20.5, 22)]
    assert together.seconds([first, second]) == 3.0  # of 4, 3 and 1.5


def test_the_share_that_overlaps_is_that_of_the_moving() -> None:
    times = {"pccl": 3.0, "gloo": 5.0, "compute": 2.0, "pccl/moves": 2.0, "gloo/moves": 4.0}
    seconds, compute, moves, share = torch_steps._rows("a", times)
    assert compute == Row("torch", "a", "compute_seconds", 2.0, "s")
    assert moves == Row("torch", "a", "moves_seconds", 2.0, "s", "gloo", 4.0)
    assert seconds == Row("torch", "a", "seconds", 3.0, "s", "gloo", 5.0)
    assert share == Row("torch", "a", "overlap_share", 0.5, "share", "gloo", 0.25)


def test_a_loss_counts_until_all_that_are_there_have_finished_the_step() -> None:
    plan = torch_plan.Plan("pccl", "1M", kill_at=4, steps=6)
    before = [
        {"step": step, "rank": rank, "begin": step * 10.0, "end": step * 10.0 + 8}
        for step in range(4)
        for rank in range(3)
    ]
    after = [
        {"step": 4, "rank": 0, "begin": 40.0, "end": 50.0},
        {"step": 4, "rank": 1, "begin": 40.0, "end": 51.0},
        {"step": 5, "rank": 0, "begin": 51.0, "end": 58.0},
    ]
    loss = torch_kill._loss([*before, {"killed": 44.0}, *after], plan)
    assert loss == torch_kill.Loss(seconds=7.0, step_seconds=8.0, lost=0)
    again = [{**line, "step": line["step"] - 4} for line in after]
    assert torch_kill._loss([*before, {"killed": 44.0}, *again], plan).lost == 4
    with pytest.raises(RuntimeError, match="nobody has finished a step"):
        torch_kill._loss([*before, {"killed": 44.0}], plan)


def test_a_loss_under_torchft_counts_until_both_others_have_committed() -> None:
    def told(rank: int, begin: float, committed: bool = True, replicas: int = 3) -> dict[str, Any]:
        line = {"step": 0, "rank": rank, "begin": begin, "end": begin + 2.0}
        return {**line, "committed": committed, "replicas": replicas}

    def configured(rank: int, at: float, seconds: float) -> dict[str, Any]:
        return {"rank": rank, "configured_at": at, "configure_seconds": seconds}

    before: list[dict[str, Any]]
    before = [configured(0, 1.0, 9.0), *(told(rank, 2.0) for rank in range(3)), {"killed": 4.5}]
    failed = [told(rank, 4.0, committed=False) for rank in range(2)]
    after = [configured(0, 7.0, 0.25), told(0, 7.0, replicas=2), configured(1, 7.0, 0.5)]
    loss = torch_ft._loss([*before, *failed, *after, told(1, 8.0, replicas=2)])
    assert loss == torch_ft.Loss(2, seconds=5.5, step_seconds=2.0, lost=1, reconfigure=0.5)
    # One that does not go on: no time counts, and a row says how many went on.
    broken = torch_ft._loss([*before, *failed, *after])
    assert broken == torch_ft.Loss(survivors=1)
    survivors, seconds, *_ = torch_ft._rows("a", [loss], "gloo", [broken])
    assert survivors == Row("torch", "a", "survivors", 2.0, "replicas", "gloo", 1.0)
    assert seconds == Row("torch", "a", "seconds_to_next_step", 5.5, "s", "gloo", None)
    with pytest.raises(RuntimeError, match="did not go on over pccl"):
        torch_ft._rows("a", [broken], "gloo", [loss])


def test_a_line_has_its_rate_and_leaves_nothing() -> None:
    if reason := torch_link.missing():
        pytest.skip(reason)
    with torch_link.Line(100) as line:
        show = [*line.prefix(0), "tc", "qdisc", "show", "dev", "eth0"]
        shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
        assert "tbf" in shown and "rate 100Mbit" in shown
        ping = [*line.prefix(1), sys.executable, "-c", _LISTEN]
        there = subprocess.Popen([*ping, line.address(1)], stdout=subprocess.PIPE, text=True)
        assert there.stdout is not None
        port = there.stdout.readline().strip()
        sent = subprocess.run(
            [*line.prefix(0), sys.executable, "-c", _SEND, line.address(1), port],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert there.wait(60) == 0
        there.stdout.close()
        # 2.5 MB take 0.2 s at 100 Mbit/s; without the line a few milliseconds.
        assert float(sent.stdout) > 0.15
        names = line._spaces
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert not any(name in left for name in names)


_LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
there, _ = server.accept()
while there.recv(1 << 16):
    pass
there.sendall(b"all")
"""
_SEND = """
import socket, sys, time
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
began = time.monotonic()
there.sendall(bytes(2_500_000))
there.shutdown(socket.SHUT_WR)
assert there.recv(3) == b"all"
print(time.monotonic() - began)
"""
