"""Pythons for another CPU, from this machine's Debian or Ubuntu by apt, run under qemu-user.

Installs nothing and changes no setting of the machine: apt uses separate package lists for the
other CPU, and the packages are unpacked into a folder. If this release of the system lacks the
wanted Python, other releases in the same archive are tried. wheels.py tries its wheels with these
Pythons.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
# Packages of the libraries that Python and libpccl are linked to.
LIBRARIES = ("libc6", "libexpat1", "libffi8", "libgcc-s1", "libuuid1", "zlib1g")
# Releases to search for a Python, by Debian's names; "own": the one that this system runs.
RELEASES = ("own", "oldstable", "stable", "testing")
SECONDS_MAX = 300


def python(machine: str, work: Path, wanted: Callable[[int], bool]) -> list[str]:
    """The command that runs a Python 3.x for `machine`, with `wanted(x)` true.

    Raises RuntimeError if qemu-user or apt is missing or fails, and LookupError if no release has a
    wanted Python.
    """
    emulator = shutil.which(f"qemu-{machine}")
    if emulator is None or shutil.which("apt-get") is None:
        raise RuntimeError(f"qemu-{machine} or apt-get is missing: apt install qemu-user")
    seen = []
    for release in RELEASES:
        try:
            archive = Archive(machine, work / f"{machine}-{release}", release)
            minor = archive.minor()
        except RuntimeError as error:
            if release == "own":
                raise
            seen.append(f"{release}: {str(error).splitlines()[-1]}")
            continue
        if wanted(minor):
            return [
                emulator,
                "-L",
                str(archive.root()),
                f"{archive.root()}/usr/bin/python3.{minor}",
            ]
        seen.append(f"{release} has 3.{minor}")
    raise LookupError("; ".join(seen))


class Archive:
    """The packages of one release for another CPU, in a folder that later runs use again."""

    def __init__(self, machine: str, folder: Path, release: str) -> None:
        self._folder = folder
        self._packages = folder / "packages"
        apt = folder / "apt"
        for needed in ("lists/partial", "archives/partial", "parts"):
            (apt / needed).mkdir(parents=True, exist_ok=True)
        self._packages.mkdir(exist_ok=True)
        (apt / "status").touch()
        options = [
            f"APT::Architecture={DEBIAN_NAMES[machine]}",
            f"APT::Architectures::={DEBIAN_NAMES[machine]}",
            f"Dir::State={apt}",
            f"Dir::State::status={apt / 'status'}",
            f"Dir::Cache={apt}",
            "APT::Sandbox::User=root",
        ]
        if release != "own":
            options += [
                f"Dir::Etc::sourcelist={apt / 'list'}",
                f"Dir::Etc::sourceparts={apt / 'parts'}",
            ]
            site = run(["apt-get", "indextargets", "--format", "$(SITE)"], folder).split()[0]
            (apt / "list").write_text(f"deb {site} {release} main\n")
        self._options = [word for option in options for word in ("-o", option)]

    def minor(self) -> int:
        """The minor version of the release's Python 3."""
        if not any((self._folder / "apt" / "lists").glob("*Packages*")):
            self._apt("apt-get", "update")
        named = re.search(
            r"\bpython3\.(\d+)-minimal\b", self._apt("apt-cache", "show", "python3-minimal")
        )
        if named is None:
            raise RuntimeError("apt knows no python3-minimal")
        return int(named[1])

    def root(self) -> Path:
        """A folder with the unpacked Python; made complete, or not at all."""
        root = self._folder / "root"
        if root.exists():
            return root
        version = f"python3.{self.minor()}"
        own = (f"{version}-minimal", f"lib{version}-minimal", f"lib{version}-stdlib")
        self._apt("apt-get", "download", *own, *LIBRARIES)
        part = root.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        for package in sorted(self._packages.glob("*.deb")):
            run(["dpkg-deb", "-x", str(package), str(part)], self._packages)
        if not (part / "lib").exists():  # later releases have this link in a package not fetched
            (part / "lib").symlink_to("usr/lib")
        part.rename(root)
        return root

    def _apt(self, program: str, *words: str) -> str:
        return run([program, *self._options, *words], self._packages)


def run(command: list[str], folder: Path) -> str:
    """Runs a command in `folder`, and returns its output. Raises RuntimeError if it fails."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout
