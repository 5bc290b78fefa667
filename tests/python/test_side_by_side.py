"""How the tests themselves are run side by side (tests/conftest.py): by file, and `alone` alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
MARKERS = "[pytest]\nmarkers =\n    alone: as here\n"

# A test takes a while, and meanwhile there is a file with its name.
TEST = """
import os, pathlib, threading
import pytest
HERE = pathlib.Path(__file__).parent
def run(name, seconds):
    with open(HERE / "workers", "a") as workers:
        workers.write(name[0] + os.environ["PYTEST_XDIST_WORKER"] + "\\n")
    (HERE / ("running-" + name)).touch()
    threading.Event().wait(seconds)
    (HERE / ("running-" + name)).unlink()
def test_one(): run("{name}1", {seconds})
def test_two(): run("{name}2", {seconds})
"""
ALONE = """
@pytest.mark.alone
def test_alone():
    (HERE / "alone").touch()
    assert not list(HERE.glob("running-*"))
def test_not_alone(): assert not (HERE / "alone").exists()
"""


@pytest.mark.long
def test_a_file_has_one_worker_and_nothing_runs_beside_what_is_alone(tmp_path: Path) -> None:
    """Goal: what is marked `alone` sees no other test. Method: without the lock it would begin when
    the worker with the shortest tests is through with them."""
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text(MARKERS)
    for name, seconds in (("a", 0.05), ("b", 1.0), ("c", 1.0)):
        source = TEST.format(name=name, seconds=seconds) + (ALONE if name == "a" else "")
        (tmp_path / f"test_{name}.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadgroup"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
    lines = (tmp_path / "workers").read_text().split()
    assert len(lines) == 6 and len(set(lines)) == 3, "two tests of each file on one worker"
