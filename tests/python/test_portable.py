"""The golden digests of the kernels on machines that this one is not, where an emulator is there.

`make test` has it for the sake of its summary, which names what could not be run; with all unit
tests, and with an error where an emulator is missing, it is `make test-portable`. What the digests
are: kernels/golden.zig.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


# The first time it compiles all kernels for that machine.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("target", "emulator", "flag"),
    [("aarch64-linux-musl", "qemu-aarch64", "-fqemu"), ("x86_64-windows", "wine", "-fwine")],
)
def test_the_golden_digests_are_the_same_on(target: str, emulator: str, flag: str) -> None:
    if shutil.which(emulator) is None:
        pytest.skip(f"{emulator} is missing, which `make test-portable` needs")
    prefix = ROOT / ".zig-cache" / "wine"
    prefix.mkdir(parents=True, exist_ok=True)
    built = subprocess.run(
        [sys.executable, "-m", "ziglang", "build", "golden", f"-Dtarget={target}", flag],
        cwd=ROOT,
        env={**os.environ, "WINEPREFIX": str(prefix), "WINEDLLOVERRIDES": "mscoree,mshtml="},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    machine = target.partition("-")[0]
    assert f"kernels tested on {machine}, levels: baseline" in built.stdout + built.stderr
