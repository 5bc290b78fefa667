"""The programs of docs/guides/FRAMEWORKS.md under Accelerate, Trainer and others run as printed.

`make test-torch` installs the libraries, and sets PCCL_TORCH_ALL=1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.xdist_group("torch"),
    pytest.mark.skipif(not os.environ.get("PCCL_TORCH_ALL"), reason="make test-torch runs it"),
]

PAGE = (Path(__file__).resolve().parents[2] / "docs/guides/FRAMEWORKS.md").read_text("utf-8")
RUN = ["-m", "pccl_py.cli", "run", "-n", "2", "--", sys.executable]
RUN_OF_THREE = ["3" if word == "2" else word for word in RUN]
SECONDS_MAX = 240.0
# The programs do not ask a model hub, and Ray does not report that it was used.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


# Before a program: process 1 dies in its fifth backward.
KILL = """
import os, signal, torch
calls, backward = [], torch.Tensor.backward
def dying(*args, **options):
    calls.append(0)
    if os.environ["RANK"] == "1" and len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return backward(*args, **options)
torch.Tensor.backward = dying
"""


def program_of(name: str) -> str:
    (program,) = re.findall(rf"\n## {name}\n.*?```python\n(.*?)```", PAGE, re.DOTALL)
    return str(program)


def run(program: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    # Ray has sockets in this folder, and their names must be short.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(program, "utf-8")
        return subprocess.run(
            [sys.executable, *command, "train.py"],
            cwd=folder,
            env={**os.environ, **SURROUNDINGS, "HOME": folder, "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of its output that have a backend and a digest."""
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^(?:\[\d\] )?(\w+ [0-9a-f]{32})$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "command"),
    [("Accelerate", RUN), ("Trainer", RUN), ("Lightning", RUN), ("Ray Train", [])],
)
def test_both_processes_end_with_the_same_parameters(name: str, command: list[str]) -> None:
    done = run(program_of(name), command)
    lines = lines_of(done)
    assert len(lines) == 2 and lines[0] == lines[1], done.stdout + done.stderr
    assert lines[0].startswith("pccl ")


def test_a_process_that_dies_under_accelerate_costs_no_step() -> None:
    done = run(KILL + program_of("Accelerate"), RUN_OF_THREE)
    lines = lines_of(done)
    assert len(lines) == 2 and lines[0] == lines[1], done.stdout + done.stderr
    assert "process 1 was killed by SIGKILL" in done.stderr


@pytest.mark.parametrize("name", ["Trainer", "Lightning"])
def test_a_process_that_dies_under_the_others_ends_all(name: str) -> None:
    done = run(KILL + program_of(name), RUN_OF_THREE)
    assert done.returncode != 0 and "0 of 3 processes succeeded" in done.stderr, done.stderr
    assert "RuntimeError: Got the following error" in done.stdout + done.stderr
    assert "PeerLost: all_reduce" in done.stdout + done.stderr
