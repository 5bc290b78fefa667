"""The examples of low-communication training, as their heads say that they are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long


def said_by(count: int, name: str, *arguments: str, **environment: str) -> str:
    """The output of so many processes of an example."""
    file = ROOT / "examples" / f"{name}.py"
    assert len(file.read_text("utf-8").splitlines()) <= 100
    command = [sys.executable, "-m", "pccl_py.cli", "run", "-n", str(count), "--", sys.executable]
    done = subprocess.run(
        [*command, str(file), *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def ends(name: str, *arguments: str, **environment: str) -> list[tuple[str, str]]:
    """Loss and digest of each of two processes."""
    said = said_by(2, name, *arguments, **environment)
    found = re.findall(r"\[\d\] end: loss ([\d.]+), digest (\w{32})", said)
    assert len(found) == 2, said
    return found


@pytest.mark.parametrize("name", ["streaming_diloco", "muloco", "sparseloco", "jax_diloco"])
def test_an_example_trains_one_model_on_two_workers(name: str) -> None:
    pytest.importorskip("jax" if name.startswith("jax") else "torch")
    found = ends(name, "90")
    assert len({digest for _, digest in found}) == 1
    assert all(float(loss) < 3.6 for loss, _ in found), found  # 5.5 is the loss of any guess


def test_the_loop_of_ones_own_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = {"FOLDER": str(tmp_path)}
    ends("torch_diloco", "100", **folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "torch_diloco.0.pt",
        "torch_diloco.1.pt",
    ]
    found = ends("torch_diloco", "150", "--resume", **folder)
    assert len({digest for _, digest in found}) == 1
    assert all(float(loss) < 2.9 for loss, _ in found), found


def test_machines_that_send_one_byte_a_step_learn_and_hold_the_same() -> None:
    said = said_by(3, "one_byte", "900")
    ends = re.findall(r"step 900: 3 machines, (\d+)% right, digest (\w{8})", said)
    assert len(ends) == 3 and len({digest for _, digest in ends}) == 1
    assert all(int(right) > 88 for right, _ in ends), ends
