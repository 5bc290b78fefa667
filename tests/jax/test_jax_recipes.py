"""The programs of docs/guides/FRAMEWORKS.md for flax, equinox and orbax run as printed.

`make test-torch` installs the libraries, and sets PCCL_TORCH_ALL=1.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pccl_py as pccl
from harness.child import Child

pytestmark = [
    pytest.mark.xdist_group("recipes"),
    pytest.mark.skipif(not os.environ.get("PCCL_TORCH_ALL"), reason="make test-torch runs it"),
]

PAGE = (Path(__file__).resolve().parents[2] / "docs/guides/FRAMEWORKS.md").read_text("utf-8")
SURROUNDINGS = {"JAX_PLATFORMS": "cpu", "PCCL_BIND": "127.0.0.1:0"}
SECONDS_MAX = 120.0
# Process 1 is killed between the sync of a step and its all_reduce, in which the others are.
KILL = """    if os.environ["RANK"] == "1" and turn.held["step"] == 10:
        os.kill(os.getpid(), 9)
"""
# A member says that its checkpoint is on the disk.
SAY_SAVED = """        manager.wait_until_finished()
        print("saved", flush=True)
"""


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With the program of a section as train.py."""
    (program,) = re.findall(rf"\n## {request.param}\n.*?```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "train.py").write_text(program, "utf-8")
    return tmp_path


def run_all(folder: Path, *command: str, count: int = 2) -> list[str]:
    """The sorted lines that the processes of `pccl run` print, each with its process number."""
    done = subprocess.run(
        [sys.executable, "-m", "pccl_py.cli", "run", "-n", str(count), "--", *command],
        cwd=folder,
        env={**os.environ, **SURROUNDINGS},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def run_in_folders(folder: Path, steps: int) -> list[str]:
    """Each process in a folder of its own, as on a machine of its own."""
    where = f'mkdir -p "$RANK"; cd "$RANK"; exec "$0" ../train.py {steps}'
    return run_all(folder, "sh", "-c", where, sys.executable)


def saved(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").glob("[0-9]*")}


@pytest.mark.parametrize("folder", ["flax", "equinox"], indirect=True)
def test_both_processes_end_with_the_same_parameters(folder: Path) -> None:
    first, second = run_all(folder, sys.executable, "train.py")
    assert re.fullmatch(r"\[0\] step 40, [0-9a-f]{32}", first), first
    assert second == "[1]" + first[3:]


@pytest.mark.parametrize("folder", ["flax", "equinox"], indirect=True)
def test_a_process_that_dies_costs_no_step(folder: Path) -> None:
    block = "    with turn as comm:\n"
    program = (folder / "train.py").read_text("utf-8")
    assert program.count(block) == 1
    program = program.replace(block, KILL + block)
    (folder / "train.py").write_text(f"import os\n{program}", "utf-8")
    first, second = run_all(folder, sys.executable, "train.py", count=3)
    assert re.fullmatch(r"\[0\] step 40, [0-9a-f]{32}", first), first
    assert second == "[2]" + first[3:]


@pytest.mark.parametrize("folder", ["orbax"], indirect=True)
def test_a_checkpoint_of_one_process_serves_both(folder: Path) -> None:
    """The folder of the second process stays empty, so its second life takes the state of the
    first."""
    run_in_folders(folder, 40)
    assert saved(folder / "0") == {"20", "40"} and not saved(folder / "1")
    lines = run_in_folders(folder, 80)
    assert lines[0] == "[0] checkpoint of step 40" and lines[2] == "[1] checkpoint of step 0"
    assert re.fullmatch(r"\[0\] step 80, [0-9a-f]{32}", lines[1]) and lines[3][3:] == lines[1][3:]
    assert saved(folder / "0") == {"60", "80"} and not saved(folder / "1")


@pytest.mark.parametrize("folder", ["orbax"], indirect=True)
def test_a_newcomer_takes_the_state_of_the_members_and_saves_nothing(folder: Path) -> None:
    """Goal: a newcomer without a checkpoint does not begin at step 0. Method: a member trains
    without end, and says when it has saved step 20; the newcomer wants one step, so it leaves with
    the first state that it gets."""
    save = "        manager.save(step, args=ocp.args.StandardSave(held))\n"
    program = (folder / "train.py").read_text("utf-8")
    assert program.count(save) == 1
    (folder / "member.py").write_text(program.replace(save, save + SAY_SAVED), "utf-8")
    for place in ("member", "newcomer"):
        (folder / place).mkdir()
    lines: queue.Queue[str] = queue.Queue()
    with pccl.Coordinator(bind="127.0.0.1:0") as coordinator:
        given = {**SURROUNDINGS, "PCCL_TOKEN": coordinator.token}
        command = [sys.executable, "../member.py", str(10**9)]
        with Child(command, heard=lines.put, environment=given, folder=folder / "member") as member:
            for line in ("checkpoint of step 0\n", "saved\n"):
                assert lines.get(timeout=SECONDS_MAX) == line, member.errors
            told = subprocess.run(
                [sys.executable, "../train.py", "1"],
                cwd=folder / "newcomer",
                env={**os.environ, **given},
                stdout=subprocess.PIPE,
                text=True,
                timeout=SECONDS_MAX,
            ).stdout
            assert member.running, member.errors
    found = re.fullmatch(r"checkpoint of step 0\nstep (\d+), [0-9a-f]{32}\n", told)
    assert found and int(found[1]) >= 20, told
    assert not saved(folder / "newcomer")
