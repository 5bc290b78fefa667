"""Runs the commands and programs of the README and the guide to collectives with a wheel.

    python release/try_readme.py [WHEEL]

A part of `make test-long`. Without WHEEL it builds a wheel for this Python and CPU, and checks it
by wheel_check.py. pip installs the wheel with the extra `numpy` into a new virtual environment; its
folder has the README's examples and nothing else of the repository. There the README's commands run
unchanged, one of the four peers of its second run is killed, and the programs of
docs/guides/COLLECTIVES.md run one after the other on two peers. The README's programs for PyTorch
and JAX run in the environment of the checkout, which has both.
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

# Definitions of names that the guide's programs use without defining them.
BEFORE = """\
import ast, os, sys
import numpy as np
import pccl_py as pccl

gradients = np.ones(1000, np.float32)
mine = np.zeros(500, np.float32)
metrics = np.ones(3)
table, rows = np.ones(8), np.zeros(4)
outgoing, incoming = np.ones(8), np.zeros(8)
weights, biases = np.ones(5), np.ones(2, np.float32)
array = np.ones(3)
"""
# Runs the guide's programs statement by statement; rank 1 receives where the guide sends.
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

# Code that follows the README's programs for PyTorch and JAX, and calls them.
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
    """Exits with status 1, or fails an assertion, if something is not as the README says."""
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
    """Builds a wheel for this Python and CPU; exits if wheel_check.py complains about it."""
    wheel = wheels.build(sys.executable, os.uname().machine, FOLDER.with_name("readme-wheel"))
    wrong = wheel_check.complaints(wheel)
    if wrong:
        sys.exit("\n".join(wrong))
    return wheel


def follow_quickstart(program: str, readme: str) -> None:
    """Runs the README's first program by the two `pccl run` commands; kills a peer of the second
    run."""
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
    """Runs the guide's programs on two peers, after the definitions in BEFORE."""
    (FOLDER / "pieces.txt").write_text(pieces)
    (FOLDER / "pieces.py").write_text(BEFORE + EXAMPLES)
    said = run("pccl", "run", "-n", "2", "--", "pieces.py", "pieces.txt").splitlines()
    ends = [line for line in said if line.endswith("all of it")]
    assert sorted(ends) == ["[0] all of it", "[1] all of it"], said


def follow_framework(name: str, program: str) -> None:
    """Runs `program` on two peers in the checkout's environment, which has PyTorch and JAX."""
    (FOLDER / name).write_text(program)
    command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", "2", "--", sys.executable]
    lines = run(*command, name).splitlines()
    assert sorted(lines) == ["[0] [2.0, 2.0]", "[1] [2.0, 2.0]"], lines


def follow_commands(block: str) -> None:
    """Runs the two commands of the console block unchanged: a compiler, and three peers."""
    compile_it, run_it = (line.removeprefix("$ ") for line in block.splitlines())
    for command in (compile_it, run_it):
        say(command)
        shown = run("sh", "-c", command).splitlines()
    assert len(shown) == 3 and all("of 3 contributors" in text for text in shown), shown


def run(*command: str) -> str:
    """Runs a command in the virtual environment, and returns its output. Exits if it fails."""
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
    """The variables of a shell in which the virtual environment is active."""
    programs = FOLDER / "venv" / "bin"
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "PATH": path, "PCCL_BIND": "127.0.0.1:0"}


def say(text: str) -> None:
    """Prints a line of progress on standard error."""
    print(f"try_readme: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
