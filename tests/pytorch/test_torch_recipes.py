"""The programs of docs/guides/TORCH.md under Accelerate, Trainer and others run as printed.

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

PAGE = (Path(__file__).resolve().parents[2] / "docs/guides/TORCH.md").read_text("utf-8")
RUN = ["-m", "pccl_py.cli", "run", "-n", "2", "--", sys.executable]
SECONDS_MAX = 240.0
# The programs do not ask a model hub, and Ray does not report that it was used.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.mark.parametrize(
    ("name", "command"),
    [("Accelerate", RUN), ("Trainer", RUN), ("Lightning", RUN), ("Ray Train", [])],
)
def test_both_processes_end_with_the_same_parameters(name: str, command: list[str]) -> None:
    (program,) = re.findall(rf"\n### {name}\n.*?```python\n(.*?)```", PAGE, re.DOTALL)
    # Ray has sockets in this folder, and their names must be short.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(program, "utf-8")
        done = subprocess.run(
            [sys.executable, *command, "train.py"],
            cwd=folder,
            env={**os.environ, **SURROUNDINGS, "HOME": folder, "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"^(?:\[\d\] )?(\w+ [0-9a-f]{32})$", done.stdout, re.MULTILINE)
    assert len(lines) == 2 and lines[0] == lines[1], done.stdout + done.stderr
    assert lines[0].startswith("pccl ")
