"""Follows the README from an installed wheel, as a stranger does: a part of `make test-long`.

    python release/try_readme.py [WHEEL]

Without a wheel it makes one for this Python and CPU, and asks wheel_check.py about it. pip installs
it with the extra `numpy` into an environment of its own, whose folder has the README's examples and
nothing else of the repository. There the README's commands run as they stand, its programs under
`pccl run`, and the pieces of "More examples" one after the other, on two peers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

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


BEFORE_TRAINING = """
import pccl_train.torch
import torch

torch.set_num_threads(1)


class Model(torch.nn.Linear):
    def forward(self, x):
        return (super().forward(x) - x).square().mean()


model = Model(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
batches = iter(lambda: torch.randn(8, 4), None)
"""
AFTER_TRAINING = """
print(turn.step, diloco.digest())
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
    first, by_hand, more, training = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    follow_programs(first, by_hand, more)
    follow_training(training)
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", readme, re.DOTALL):
        follow_commands(block)
    say(f"{wheel.name}: all that the README shows works")


def made() -> Path:
    """A wheel of this Python and CPU, which is as wheels must be."""
    wheel = wheels.build(sys.executable, os.uname().machine, FOLDER.with_name("readme-wheel"))
    wrong = wheel_check.complaints(wheel)
    if wrong:
        sys.exit("\n".join(wrong))
    return wheel


def follow_programs(first: str, by_hand: str, more: str) -> None:
    """The first program as it stands, the others with what they take for granted."""
    (FOLDER / "first.py").write_text(first)
    lines = run("pccl", "run", "-n", "4", "--", "first.py").splitlines()
    steps = {line.partition("] ")[2] for line in lines if "step 20: " in line}
    assert len(lines) == 80 and len(steps) == 1, lines
    assert steps.pop().startswith("step 20: 4 peers, digest ")
    counted = by_hand.rstrip() + "\n    print(int(steps_done[0]))\n"
    (FOLDER / "by_hand.py").write_text(BEFORE + counted)
    said = run("pccl", "run", "-n", "2", "--", "by_hand.py")
    assert sorted(said.splitlines()) == ["[0] 20", "[1] 20"], said
    (FOLDER / "more.txt").write_text(more)
    (FOLDER / "more.py").write_text(BEFORE + EXAMPLES)
    said = run("pccl", "run", "-n", "2", "--", "more.py", "more.txt")
    assert sorted(said.splitlines()) == ["[0] all of it", "[1] all of it"], said


def follow_training(block: str) -> None:
    """The loop for PyTorch, which this environment has and that of the wheel has not."""
    (FOLDER / "training.py").write_text(BEFORE_TRAINING + block + AFTER_TRAINING)
    command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", "2", "--", sys.executable]
    lines = run(*command, "training.py").splitlines()
    assert len(lines) == 2 and len({line.partition("] ")[2] for line in lines}) == 1, lines


def follow_commands(block: str) -> None:
    """Commands that use PCCL; those that install or build it have been done another way."""
    for line in block.splitlines():
        command = line.removeprefix("$ ")
        if not command.startswith(("pccl run ", "cc ")):
            continue
        say(command)
        shown = run("sh", "-c", command)
        # Numbers of an example: how often its loop went round meanwhile.
        if line.startswith("$ pccl"):
            wanted, got = (sorted(digits_aside(text)) for text in (block, shown))
            assert set(got) <= set(wanted) and got, (wanted, got)


def digits_aside(text: str) -> list[str]:
    """Lines of processes, with ranks and counts that differ from run to run left out."""
    lines = [line for line in text.splitlines() if line.startswith("[")]
    return [re.sub(r"^\[\d\]|rank \d|\d+ ticks", "", line) for line in lines]


def run(*command: str) -> str:
    """A command of the environment; what it prints. Ends all if it fails."""
    programs = FOLDER / "venv" / "bin"
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PCCL_BIND": "127.0.0.1:0",
    }
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"try_readme: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    """For people."""
    print(f"try_readme: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
