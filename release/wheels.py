"""Builds the wheels of a release, checks them, and tries each wheel: `make wheels`.

    python release/wheels.py [--out dist] [--python PYTHON]... [--machine x86_64]...

For each CPU there are two wheels: one for Python 3.11, and one of the stable ABI for 3.12 and
later. Zig compiles for both CPUs on this machine, against the C library that hatch_build.py names.
The machine must have Python 3.11 and a later Python, with headers. wheel_check.py checks a wheel,
and try_wheel.py uses it. A wheel for another CPU is tried under qemu-user, with a Python for that
CPU which foreign.py fetches by apt and unpacks below .zig-cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import foreign
import wheel_check

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".zig-cache" / "wheels"
MACHINES = ("x86_64", "aarch64")
# Minor versions of Python 3: the oldest supported, and the first of the stable ABI.
OLDEST, STABLE = 11, 12
SECONDS_MAX = 3600
ASK = (
    "import os, sys, sysconfig\n"
    "header = os.path.join(sysconfig.get_paths()['include'], 'Python.h')\n"
    "print(sys.version_info[1] if os.path.exists(header) else 0)"
)


def main() -> None:
    """Builds, checks and tries all wheels. Exits with status 1 after complaints about a wheel."""
    asked = argparse.ArgumentParser(description="Makes and checks the wheels of a release.")
    asked.add_argument("--out", type=Path, default=ROOT / "dist")
    asked.add_argument("--python", action="append", help="an interpreter; default: all found")
    asked.add_argument("--machine", action="append", choices=MACHINES, help="default: both")
    options = asked.parse_args()
    pythons = by_minor(options.python or found())
    later = [minor for minor in pythons if minor >= STABLE]
    if OLDEST not in pythons or not later:
        sys.exit(
            "wheels: Python 3.11 and a later one are needed, both with their headers; there are "
            f"{sorted(pythons.values()) or 'none'}. Install them, or say --python PATH for each."
        )
    wrong: list[str] = []
    for machine in options.machine or MACHINES:
        for minor in (OLDEST, min(later)):
            say(f"building for Python 3.{minor} on {machine}")
            wheel = build(pythons[minor], machine, options.out)
            users = {minor: pythons[minor]} if minor == OLDEST else {m: pythons[m] for m in later}
            wrong += [*wheel_check.complaints(wheel), *use(wheel, machine, users)]
            say(f"{wheel}, {wheel.stat().st_size / 2**20:.1f} MiB")
    say(f"{build_compat(options.out)}, for all")
    for complaint in wrong:
        say(complaint)
    if wrong:
        sys.exit(1)


def found() -> list[str]:
    """The Python interpreters on the PATH and in pyenv."""
    named = [shutil.which(f"python3.{minor}") for minor in range(OLDEST, 30)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    return [name for name in named if name] + sorted(map(str, pyenv.glob("*/bin/python3")))


def by_minor(pythons: Iterable[str]) -> dict[int, str]:
    """For each minor version x, the first interpreter 3.x that runs and has headers."""
    known: dict[int, str] = {}
    for python in pythons:
        told = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
        if told.returncode == 0 and int(told.stdout) >= OLDEST:
            known.setdefault(int(told.stdout), python)
    return known


def build(python: str, machine: str, out: Path) -> Path:
    """Builds one wheel of pccl-py with hatchling, as pip would, and moves it to `out`."""
    folder = WORK / "made"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PCCL_WHEEL_PYTHON": python, "PCCL_WHEEL_MACHINE": machine},
        stdout=subprocess.DEVNULL,
        timeout=SECONDS_MAX,
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, out / wheel.name))


def build_compat(out: Path) -> Path:
    """Builds the wheel of pccl-compat (the names of PCCL 1.0), which has no native code."""
    folder = WORK / "made"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT / "compat",
        stdout=subprocess.DEVNULL,
        timeout=SECONDS_MAX,
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return Path(shutil.move(wheel, out / wheel.name))


def use(wheel: Path, machine: str, pythons: dict[int, str]) -> list[str]:
    """Runs try_wheel.py with the wheel and each Python; returns a complaint for each failure."""
    folder = WORK / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    if machine == os.uname().machine:
        commands = [[python] for python in pythons.values()]
    else:
        is_old = OLDEST in pythons
        try:
            wanted = (lambda minor: minor == OLDEST) if is_old else (lambda minor: minor >= STABLE)
            commands = [foreign.python(machine, WORK, wanted)]
        except LookupError as error:
            return [f"{wheel.name}: not tried, as there is no Python for {machine}: {error}"]
    wrong = []
    for command in commands:
        arguments = [*command, "-I", str(Path(__file__).with_name("try_wheel.py")), str(folder)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            say(f"{wheel.name}: {done.stdout.strip()}")
        else:
            wrong.append(f"{wheel.name}: {command[-1]} cannot use it:\n{done.stderr}")
    return wrong


def say(text: str) -> None:
    """Prints a line of progress on standard error, among the output of builds."""
    print(f"wheels: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"wheels: {error}")
