"""The demo for real, in small: processes, a kill inside an all_reduce, a join, equal bytes.

Verdicts on made-up reports are in test_demo_verdict.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.alone]

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 150


def demo(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo to its end, as `make demo` does, without a terminal."""
    command = [sys.executable, "-m", "examples.demo", "--out", str(out), *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX + 30
    )


def pids_of(out: Path) -> list[int]:
    """The processes that a run of the demo started, as it wrote them down."""
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [event["pid"] for event in events if event["kind"] == "started"]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """One run of the demo with short rounds: what it printed, its report, its folder."""
    out = tmp_path_factory.mktemp("demo")
    options = ["--rounds", "32", "--steps", "4", "--seconds-max", str(SECONDS_MAX)]
    done = demo(out, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((out / "report.json").read_text()), out


def test_it_loses_a_peer_gains_one_and_ends_with_equal_bytes(
    small_run: tuple[str, dict[str, Any], Path],
) -> None:
    # Goal: the demo's promise, read from its report rather than from its own verdict.
    _, report, _ = small_run
    assert report["passed"] is True and report["failure"] is None
    peers = {peer["name"]: peer for peer in report["peers"]}
    assert peers["peer 2"]["exit_code"] == -signal.SIGKILL
    left = [peers[f"peer {index}"] for index in (0, 1, 3, 4)]
    assert [peer["exit_code"] for peer in left] == [0, 0, 0, 0]
    assert [peer["error"] for peer in left] == [None] * 4
    assert len({peer["digest"] for peer in left}) == 1
    assert report["held_out_loss"][-1] < report["held_out_loss"][0]
    assert peers["peer 4"]["rounds"][-1] == 32 and peers["peer 4"]["rounds"][0] > 19


def test_the_all_reduce_that_lost_a_peer_has_ranges_with_and_without_it(
    small_run: tuple[str, dict[str, Any], Path],
) -> None:
    _, report, _ = small_run
    ids = {peer["name"]: peer["peer_id"] for peer in report["peers"]}
    lost = report["lost_operation"]
    assert lost["round"] == 11 and lost["attempts"] > 1
    ranges = lost["ranges"]
    assert ranges[0]["begin"] == 0 and ranges[-1]["end"] == report["parameters"]
    assert [part["end"] for part in ranges[:-1]] == [part["begin"] for part in ranges[1:]]
    with_victim = [part for part in ranges if ids["peer 2"] in part["contributors"]]
    without = [part for part in ranges if ids["peer 2"] not in part["contributors"]]
    assert with_victim and without
    assert {len(part["contributors"]) for part in with_victim} == {4}
    assert {len(part["contributors"]) for part in without} == {3}


def test_it_leaves_a_picture_a_log_and_no_process(
    small_run: tuple[str, dict[str, Any], Path],
) -> None:
    printed, _, out = small_run
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert printed.count("held-out loss") == 32
    assert "kills itself with SIGKILL inside the all_reduce of round 11" in printed
    pids = pids_of(out)
    assert len(pids) == 7  # five peers, and the coordinator twice
    assert not any(alive(pid) for pid in pids)


def test_a_run_out_of_time_fails_and_ends_its_processes(tmp_path: Path) -> None:
    # Goal: bounded. Method: a limit that passes while the peers start.
    done = demo(tmp_path, "--seconds-max", "0.5")
    assert done.returncode == 1, done.stderr
    assert "not done after 0.5 s" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"] is False
    assert not any(alive(pid) for pid in pids_of(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the children's ids from /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_demo_and_its_processes(number: int, tmp_path: Path) -> None:
    # Goal: nothing is left behind. Method: the signal comes when the first epoch is entered, when
    # the coordinator and five peers run; their ids are what the kernel says they are.
    command = [sys.executable, "-u", "-m", "examples.demo", "--out", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        pids = []
        for line in process.stdout:
            lines.append(line)
            if "epoch 1: peers 0, 1, 2 and 3" in line:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
                pids = [int(pid) for pid in children.split()]
                process.send_signal(number)
        code = process.wait(60)
    assert pids and len(pids) == 6, "".join(lines)
    assert code in (128 + number, -number), "".join(lines)
    assert not any(alive(pid) for pid in pids)
