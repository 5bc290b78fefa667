"""Builds the native part of the wheel: `zig build python`, with the Zig of the ziglang package.

Pip runs the class `Hook` (PEP 517, through hatchling); no system compiler is needed. Run as a
program, `python hatch_build.py` rebuilds the native part of an editable install in place. build.zig
says what is compiled, and how; pyproject.toml says where the files go.

Environment variables:

    PCCL_ZIG_ARGS       arguments appended to the command of Zig, for example `-Doptimize=Debug`
    PCCL_WHEEL_PYTHON   the interpreter that the wheel is for; default: the one that runs this file
    PCCL_WHEEL_MACHINE  the CPU of the wheel, x86_64 or aarch64 (release/wheels.py sets both)
"""

from __future__ import annotations

import json
import os
import platform
import queue
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import nanobind
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
# The oldest glibc that a wheel runs with, that of manylinux_2_17.
GLIBC = (2, 17)
# Interval between lines of progress of a build.
PROGRESS_SECONDS = 10.0
TERMINAL = Path("/dev/tty")
# Words behind the name of a target in a line of progress. Zig compiles the C++ library file by file
# before the first target that needs it.
NOTES = {"_pccl": ", the last; the first time the C++ library is compiled for it, for minutes"}
# Matches a compile command in the output of `zig build --verbose`.
COMMAND = re.compile(r"\S*zig(\.exe)? build-(obj|lib|exe) .*--name (?P<name>\S+)")

ASK = """
import json, platform, sys, sysconfig
of = sysconfig.get_config_var
print(json.dumps({
    "version": sys.version_info[:2], "include": sysconfig.get_paths()["include"],
    "suffix": of("EXT_SUFFIX"), "multiarch": of("MULTIARCH") or "",
    "is_free_threaded": bool(of("Py_GIL_DISABLED")),
    "is_musl": "musl" in (of("HOST_GNU_TYPE") or ""),
    "is_cpython": platform.python_implementation() == "CPython",
}))
"""


class Interpreter(NamedTuple):
    """The Python that a wheel is for."""

    version: tuple[int, int]
    include: Path
    suffix: str
    multiarch: str
    is_free_threaded: bool
    is_musl: bool
    is_cpython: bool

    @classmethod
    def of(cls, python: str) -> Interpreter:
        """Runs the interpreter `python`, which prints these facts about itself."""
        asked = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
        told = json.loads(asked.stdout)
        return cls(**{**told, "version": tuple(told["version"]), "include": Path(told["include"])})

    @property
    def is_stable(self) -> bool:
        """Whether the extension uses the stable ABI, as nanobind can from Python 3.12 on."""
        return self.version >= (3, 12) and self.is_cpython and not self.is_free_threaded


class Plan(NamedTuple):
    """The build for an interpreter and a machine: Zig's target, the wheel's tag, the extension."""

    target: str
    tag: str
    stable_abi: bool
    extension: str


def machine_here() -> str:
    """The CPU of this machine, as wheels name it."""
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())


def plan(python: Interpreter, machine: str) -> Plan:
    if sys.platform == "linux":
        if python.is_musl:
            target, system = f"{machine}-linux-musl", f"musllinux_1_2_{machine}"
        else:
            major, minor = GLIBC
            target = f"{machine}-linux-gnu.{major}.{minor}"
            system = f"manylinux_{major}_{minor}_{machine}"
    elif sys.platform == "darwin":
        apple = "arm64" if machine == "aarch64" else machine
        target, system = f"{machine}-macos.11.0", f"macosx_11_0_{apple}"
    else:
        raise RuntimeError(f"PCCL does not build on {sys.platform} yet: use Linux or macOS.")

    version = "cp{}{}".format(*python.version)
    threads = "t" if python.is_free_threaded else ""
    tag = "cp312-abi3" if python.is_stable else f"{version}-{version}{threads}"
    suffix = python.suffix.replace(machine_here(), machine)
    extension = "_pccl.abi3.so" if python.is_stable else f"_pccl{suffix}"
    return Plan(target, f"{tag}-{system}", python.is_stable, extension)


def check_headers(python: Interpreter) -> None:
    """Raises RuntimeError, which says which package holds Python.h, if Python.h is missing."""
    if (python.include / "Python.h").exists():
        return
    version = "{}.{}".format(*python.version)
    raise RuntimeError(
        f"Python.h is not in {python.include}: the C headers of Python {version} are missing. "
        "Install:\n"
        f"  Debian, Ubuntu:        apt install python3-dev       (or python{version}-dev)\n"
        f"  Fedora, RHEL, SUSE:    dnf install python3-devel     (or python{version}-devel)\n"
        f"  Alpine:                apk add python3-dev"
    )


def platform_include(python: Interpreter, machine: str) -> Path | None:
    """Copies the platform's pyconfig.h into a folder of its own; None if there is no such file.

    Debian's pyconfig.h includes <x86_64-linux-gnu/python3.11/pyconfig.h>, which lies below
    /usr/include. That folder must not be on the include path: it also has the headers of this
    machine's C library, and Zig brings its own. A build for aarch64 may use the pyconfig.h of
    x86-64, as both say the same about everything that an extension asks.
    """
    include = python.include
    original = include.parent / python.multiarch / include.name / "pyconfig.h"
    if not python.multiarch or not original.exists():
        return None
    folder = ROOT / ".zig-cache" / "python-include"
    copy = folder / python.multiarch.replace(machine_here(), machine) / include.name / "pyconfig.h"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(original, copy)
    return folder


def nanobind_sources(cache: Path) -> Path:
    """Copies nanobind into the build cache, to the same path in every environment.

    Zig's cache compares the paths of a command. Pip installs nanobind for each build in a folder
    with a random name, so without the copy nanobind and the bindings would be compiled each time.
    """
    copy = cache / f"nanobind-{nanobind.__version__}"
    if not copy.exists():
        cache.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            source = Path(folder) / "nanobind"
            shutil.copytree(Path(nanobind.__file__).parent, source)
            try:
                source.rename(copy)
            except OSError:  # no error if another build has made the copy meanwhile
                if not copy.exists():
                    raise
    return copy


def build_native(prefix: Path, say: Callable[[str], None]) -> Plan:
    """Builds the extension and libpccl with pccl.h into `prefix`/pccl_py. `say` gets progress."""
    python = Interpreter.of(os.environ.get("PCCL_WHEEL_PYTHON") or sys.executable)
    machine = os.environ.get("PCCL_WHEEL_MACHINE") or machine_here()
    made = plan(python, machine)
    check_headers(python)
    found = (python.include, platform_include(python, machine))
    includes = [folder for folder in found if folder is not None]
    command = [
        *(sys.executable, "-m", "ziglang", "build", "python"),
        *("--prefix", str(prefix)),
        f"-Dtarget={made.target}",
        *(f"-Dpython-include={folder}" for folder in includes),
        f"-Dnanobind={nanobind_sources(ROOT / '.zig-cache')}",
        f"-Dext-name={made.extension}",
        f"-Dabi3={str(made.stable_abi).lower()}",
        *shlex.split(os.environ.get("PCCL_ZIG_ARGS", "")),
    ]
    status = run_zig(command, say)
    if status != 0:
        raise RuntimeError(
            f"zig build failed with status {status}; its message is above. "
            f"The command was: {shlex.join(command)}"
        )
    return made


def run_zig(command: list[str], say: Callable[[str], None]) -> int:
    """Runs `command` and returns its exit status. Without a terminal `say` gets the progress."""
    if sys.stderr.isatty():
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    news: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    with subprocess.Popen(
        [*command, "--verbose"], cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as running:
        assert running.stderr is not None
        lines = running.stderr

        def read() -> None:
            for line in lines:
                news.put(line)
            news.put(None)

        reader = threading.Thread(target=read)
        reader.start()
        tell_progress(news, say)
        reader.join()
    return running.returncode


def tell_progress(news: queue.SimpleQueue[str | None], say: Callable[[str], None]) -> None:
    """Prints Zig's messages except commands; every PROGRESS_SECONDS `say` gets the last command."""
    begin = said = time.monotonic()
    state, commands = "compiling the build script", 0
    while True:
        try:
            line = news.get(timeout=max(0.0, said + PROGRESS_SECONDS - time.monotonic()))
        except queue.Empty:
            said = time.monotonic()
            say(f"zig build: {said - begin:.0f} s of 2 to 5 minutes the first time, {state}")
            continue
        if line is None:
            return
        if found := COMMAND.match(line):
            commands += 1
            note = NOTES.get(found["name"], "")
            state = f"compiling {found['name']} (command {commands}){note}"
        elif not line.startswith("install -C "):
            print(line, end="", file=sys.stderr, flush=True)


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def to_terminal(text: str) -> None:
    """Prints on the terminal itself: pip shows the output of a build only after an error."""
    try:
        with TERMINAL.open("w") as terminal:
            print(text, file=terminal)
    except OSError:  # no terminal, as in a job of CI
        to_stderr(text)


class Hook(BuildHookInterface[Any]):
    """Hatchling calls `initialize` before it collects the files of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            made = build_native(ROOT, to_terminal)
        else:
            # Each build empties `prefix`: a file of another Python must not get into the wheel.
            prefix = ROOT / ".zig-cache" / "wheel"
            shutil.rmtree(prefix, ignore_errors=True)
            made = build_native(prefix, to_terminal)
            for path in sorted(prefix.rglob("*")):
                if path.is_file():
                    build_data["force_include"][str(path)] = str(path.relative_to(prefix))
        build_data["pure_python"] = False
        build_data["tag"] = made.tag


if __name__ == "__main__":
    try:
        build_native(ROOT, to_stderr)
    except RuntimeError as error:
        sys.exit(str(error))
