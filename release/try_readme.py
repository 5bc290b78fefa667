"""Follows the README and the guide to collectives from an installed wheel, as a stranger does.

    python release/try_readme.py [WHEEL]

A part of `make test-long`. Without a wheel it makes one for this Python and CPU, and asks
wheel_check.py about it. pip installs it with the extra `numpy` into an environment of its own,
whose folder has the README's examples and nothing else of the repository. There the README's
commands run as they stand, one of the four peers of its second run is killed, and the pieces of
docs/guides/COLLECTIVES.md run one after the other on two peers. The pieces for PyTorch and JAX run
in the environment of the checkout, which has both.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import venv
from pathlib import Path
from typing import IO

import psutil
import wheel_check
import wheels

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".zig-cache" / "readme"
SECONDS_MAX = 600

# Names that the README's pieces take for granted. Rank 1 answers the message that rank 0 sends.
BEFORE = """\
import ast, os, sys
import numpy as np
import pccl_py as pccl

rng = np.random.default_rng()
parameters = np.zeros(1000, np.float32)
steps_done = np.zeros(1, np.int64)
gradients = np.ones(1000, np.float32)
mine = np.zeros(500, np.float32)
metrics = np.ones(3)
table, rows = np.ones(8), np.zeros(4)
outgoing, incoming = np.ones(8), np.zeros(8)
weights, biases = np.ones(5), np.ones(2, np.float32)
array = np.ones(3)
arrays, saved = {"array": array}, 7
"""
# A statement at a time: of a message, each of the two peers has its own half.
EXAMPLES = """
with pccl.connect(initial_world_size=2) as comm:
    comm.admit()
    for statement in ast.parse(open(sys.argv[1]).read()).body:
        text = ast.unparse(statement)
        if text.startswith("comm.send(") and comm.rank == 1:
            text = "comm.recv(array, src=0)"
        exec(compile(text, sys.argv[1], "exec"))
    print("all of it")
"""

# Code around the README's pieces for frameworks.
TORCH = """
import torch

x = torch.ones(2)
dist.all_reduce(x)
print(x.tolist())
dist.destroy_process_group()
"""
JAX = """
import jax.numpy as jnp
import pccl_py as pccl

with pccl.connect(initial_world_size=2) as comm:
    comm.admit()
    print(total(comm, jnp.ones(2)).tolist())
"""


def main() -> None:
    """Ends with status 1 where something is not as the README says."""
    wheel = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else made()
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(ROOT / "examples", FOLDER / "examples")
    venv.create(FOLDER / "venv", with_pip=True)
    run("pip", "install", "--quiet", f"{wheel}[numpy]")
    if shutil.which("cc") is None:
        compiler = FOLDER / "venv" / "bin" / "cc"
        compiler.write_text(f'#!/bin/sh\nexec {sys.executable} -m ziglang cc "$@"\n')
        compiler.chmod(0o755)
    readme = (ROOT / "README.md").read_text("utf-8")
    guide = (ROOT / "docs" / "guides" / "COLLECTIVES.md").read_text("utf-8")
    first, for_torch, for_jax = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    follow_quickstart(first, readme)
    follow_pieces("\n".join(re.findall(r"```python\n(.*?)```", guide, re.DOTALL)))
    follow_framework("for_torch.py", for_torch + TORCH)
    follow_framework("for_jax.py", for_jax + JAX)
    for block in re.findall(r"```console\n(.*?)```", readme, re.DOTALL):
        follow_commands(block)
    say(f"{wheel.name}: all that the README shows works")


def made() -> Path:
    """A wheel of this Python and CPU, which is as wheels must be."""
    wheel = wheels.build(sys.executable, os.uname().machine, FOLDER.with_name("readme-wheel"))
    wrong = wheel_check.complaints(wheel)
    if wrong:
        sys.exit("\n".join(wrong))
    return wheel


def follow_quickstart(program: str, readme: str) -> None:
    """The first program, by the two commands below it; a peer of the second run is killed."""
    (FOLDER / "quickstart.py").write_text(program)
    short, long = re.findall(r"^pccl run .*quickstart.py.*$", readme, re.MULTILINE)
    lines = run("sh", "-c", short).splitlines()
    steps = {line.partition("] ")[2] for line in lines if "step 20: " in line}
    assert len(lines) == 80 and len(steps) == 1, lines
    assert steps.pop().startswith("step 20: 4 peers, digest ")
    say(f"{long}, and kill one")
    with (
        (FOLDER / "quickstart.errors").open("w") as errors,
        subprocess.Popen(
            shlex.split(long),
            cwd=FOLDER,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as running,
    ):
        assert running.stdout is not None
        timer = threading.Timer(SECONDS_MAX, running.kill)
        timer.start()
        try:
            wait_for(running.stdout, ": 4 peers")
            psutil.Process(running.pid).children()[-1].kill()
            wait_for(running.stdout, ": 3 peers")
            wait_for(running.stdout, ": 4 peers")
            running.send_signal(signal.SIGINT)
            running.stdout.read()
        finally:
            timer.cancel()
            running.terminate()


def wait_for(lines: IO[str], text: str) -> None:
    if not any(text in line for line in lines):
        errors = (FOLDER / "quickstart.errors").read_text("utf-8")
        sys.exit(f"try_readme: no line with {text!r} before the second run ended\n{errors}")


def follow_pieces(pieces: str) -> None:
    """Those of the guide, with what they take for granted."""
    (FOLDER / "pieces.txt").write_text(pieces)
    (FOLDER / "pieces.py").write_text(BEFORE + EXAMPLES)
    said = run("pccl", "run", "-n", "2", "--", "pieces.py", "pieces.txt").splitlines()
    ends = [line for line in said if line.endswith("all of it")]
    assert sorted(ends) == ["[0] all of it", "[1] all of it"], said


def follow_framework(name: str, program: str) -> None:
    """Two peers of the checkout's environment, in which PyTorch and JAX are installed."""
    (FOLDER / name).write_text(program)
    command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", "2", "--", sys.executable]
    lines = run(*command, name).splitlines()
    assert sorted(lines) == ["[0] [2.0, 2.0]", "[1] [2.0, 2.0]"], lines


def follow_commands(block: str) -> None:
    """The commands of a block, as they stand."""
    for line in block.splitlines():
        say(line)
        shown = run("sh", "-c", line.removeprefix("$ ")).splitlines()
        if "average" in line and "pccl run" in line:
            assert len(shown) == 3 and all("of 3 contributors" in text for text in shown), shown


def run(*command: str) -> str:
    """A command of the environment; what it prints. Ends all if it fails."""
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"try_readme: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """That of a shell in which the environment of FOLDER is active."""
    programs = FOLDER / "venv" / "bin"
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "PATH": path, "PCCL_BIND": "127.0.0.1:0"}


def say(text: str) -> None:
    """For people."""
    print(f"try_readme: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
