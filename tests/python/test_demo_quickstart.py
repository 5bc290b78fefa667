"""The README's example does what its head says: it runs, and it goes on after a loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pccl_py as pccl

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = [sys.executable, "examples/quickstart.py", "20"]
# Unbuffered: what a killed process has printed must not die with it.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "PCCL_BIND": "127.0.0.1:0",
    "PYTHONUNBUFFERED": "1",
}


def test_the_first_program_of_the_readme_is_the_example() -> None:
    """But for the docstring of the file, word for word."""
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = readme.partition("```python\n")[2].partition("```")[0]
    _, _, program = (ROOT / "examples" / "quickstart.py").read_text("utf-8").split('"""', 2)
    assert shown == program.lstrip("\n")


def last_step(lines: list[str]) -> str:
    (line,) = {line for line in lines if line.startswith("step 20:")}
    return line


def test_it_runs_under_pccl_run() -> None:
    command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", "4", "--", *QUICKSTART]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("] ", 1)[1] for line in done.stdout.splitlines()]
    assert len(lines) == 4 * 20
    assert last_step(lines).startswith("step 20: 4 peers, digest ")


def test_the_others_go_on_when_one_is_killed() -> None:
    # Goal: what its head promises. Method: one of four kills itself inside its fourth all_reduce.
    with pccl.Coordinator(initial_world_size=4) as coordinator:
        environment = {**ENVIRONMENT, "PCCL_TOKEN": coordinator.token}
        fault = {"PCCL_FAULT_POINT": "operation.settled:3:0.5"}
        processes = [
            subprocess.Popen(
                QUICKSTART,
                cwd=ROOT,
                env={**environment, **(fault if index == 0 else {})},
                stdout=subprocess.PIPE,
                text=True,
            )
            for index in range(4)
        ]
        try:
            outputs = [process.communicate(timeout=120)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    codes = [process.returncode for process in processes]
    assert codes == [-signal.SIGKILL, 0, 0, 0], outputs
    assert len(outputs[0].splitlines()) == 3, outputs[0]
    lines = [line for output in outputs[1:] for line in output.splitlines()]
    assert last_step(lines).startswith("step 20: 3 peers, digest ")
