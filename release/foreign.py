"""A Python for another CPU, run by qemu-user: that of this Debian or Ubuntu, fetched by apt.

Nothing is installed and no setting of the machine changes: apt has lists of its own for the other
CPU, and the packages are unpacked into a folder. wheels.py tries its wheels with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
# Beside Python's own three packages: what it and our library are linked to.
LIBRARIES = ("libc6", "libexpat1", "libffi8", "libgcc-s1", "libuuid1", "zlib1g")
SECONDS_MAX = 300


def python(machine: str, work: Path) -> tuple[int, list[str]]:
    """The minor version of that Python, and the command that runs it. Raises RuntimeError."""
    emulator = shutil.which(f"qemu-{machine}")
    if emulator is None or shutil.which("apt-get") is None:
        raise RuntimeError(f"qemu-{machine} or apt-get is missing: apt install qemu-user")
    root = work / f"root-{machine}"
    if not root.exists():
        fetch(machine, work, root)
    (program,) = (path for path in root.glob("usr/bin/python3.*") if path.suffix[1:].isdecimal())
    return int(program.suffix[1:]), [emulator, "-L", str(root), str(program)]


def fetch(machine: str, work: Path, root: Path) -> None:
    """Fills `root`; whole or not at all."""
    apt, packages = work / f"apt-{machine}", work / f"packages-{machine}"
    for folder in (apt / "lists" / "partial", apt / "archives" / "partial", packages):
        folder.mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    options = [
        f"APT::Architecture={DEBIAN_NAMES[machine]}",
        f"APT::Architectures::={DEBIAN_NAMES[machine]}",
        f"Dir::State={apt}",
        f"Dir::State::status={apt / 'status'}",
        f"Dir::Cache={apt}",
        "APT::Sandbox::User=root",
    ]
    common = [word for option in options for word in ("-o", option)]
    run(["apt-get", *common, "update"], packages)
    shown = run(["apt-cache", *common, "show", "python3-minimal"], packages)
    named = re.search(r"\bpython3\.\d+-minimal\b", shown)
    if named is None:
        raise RuntimeError("apt knows no python3-minimal")
    minimal = named[0]
    own = (minimal, f"lib{minimal}", f"lib{minimal.removesuffix('minimal')}stdlib")
    run(["apt-get", *common, "download", *own, *LIBRARIES], packages)
    part = root.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    for package in sorted(packages.glob("*.deb")):
        run(["dpkg-deb", "-x", str(package), str(part)], packages)
    part.rename(root)


def run(command: list[str], folder: Path) -> str:
    """Its output. Raises RuntimeError with what it said if it fails."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout
