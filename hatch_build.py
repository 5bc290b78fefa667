"""Builds the native part of the wheel: `zig build python`, with the Zig of the ziglang package.

Pip runs the class `Hook` (PEP 517, through hatchling); no system compiler is needed. Run as a
program, `python hatch_build.py`, it rebuilds in place what an editable install uses. build.zig says
what is compiled, and how; pyproject.toml what goes where.

PCCL_ZIG_ARGS in the environment is appended to the command, for example `-Doptimize=Debug`.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import nanobind
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent


class Plan(NamedTuple):
    """The needs of this interpreter: the Zig target, the wheel's tag, and the extension's name."""

    target: str
    tag: str
    stable_abi: bool
    extension: str


def plan() -> Plan:
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if sys.platform == "linux":
        if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
            target, system = f"{machine}-linux-musl", f"musllinux_1_2_{machine}"
        else:
            target, system = f"{machine}-linux-gnu.2.17", f"manylinux_2_17_{machine}"
    elif sys.platform == "darwin":
        apple = "arm64" if machine == "aarch64" else machine
        target, system = f"{machine}-macos.11.0", f"macosx_11_0_{apple}"
    else:
        raise RuntimeError(f"PCCL does not build on {sys.platform} yet: use Linux or macOS.")

    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    is_cpython = platform.python_implementation() == "CPython"
    # Nanobind supports the stable ABI from Python 3.12 on: one extension for all later versions.
    stable_abi = sys.version_info >= (3, 12) and is_cpython and not free_threaded
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    python = "cp312-abi3" if stable_abi else f"{version}-{version}{'t' if free_threaded else ''}"
    suffix = ".abi3.so" if stable_abi else sysconfig.get_config_var("EXT_SUFFIX")
    return Plan(target, f"{python}-{system}", stable_abi, f"_pccl{suffix}")


def python_include() -> Path:
    """The folder of Python.h, or an error that says which package holds it."""
    include = Path(sysconfig.get_paths()["include"])
    if (include / "Python.h").exists():
        return include
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise RuntimeError(
        f"Python.h is not in {include}: the C headers of Python {version} are missing. Install:\n"
        f"  Debian, Ubuntu:        apt install python3-dev       (or python{version}-dev)\n"
        f"  Fedora, RHEL, SUSE:    dnf install python3-devel     (or python{version}-devel)\n"
        f"  Alpine:                apk add python3-dev"
    )


def platform_include(include: Path) -> Path | None:
    """A folder for Debian's pyconfig.h, which includes <x86_64-linux-gnu/python3.11/pyconfig.h>.

    That file is below /usr/include, where the C library of this machine is as well, which must not
    be mixed with the one that Zig brings. So the one header is copied.
    """
    name = Path(sysconfig.get_config_var("MULTIARCH") or "") / include.name / "pyconfig.h"
    original = include.parent / name
    if len(name.parts) < 3 or not original.exists():
        return None
    folder = ROOT / ".zig-cache" / "python-include"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(original, folder / name)
    return folder


def build_native(prefix: Path) -> Plan:
    """Builds the extension, libpccl and its header into `prefix`/pccl_py."""
    made = plan()
    include = python_include()
    includes = [folder for folder in (include, platform_include(include)) if folder is not None]
    command = [
        *(sys.executable, "-m", "ziglang", "build", "python"),
        *("--prefix", str(prefix)),
        f"-Dtarget={made.target}",
        *(f"-Dpython-include={folder}" for folder in includes),
        f"-Dnanobind={Path(nanobind.__file__).parent}",
        f"-Dext-name={made.extension}",
        f"-Dabi3={str(made.stable_abi).lower()}",
        *shlex.split(os.environ.get("PCCL_ZIG_ARGS", "")),
    ]
    finished = subprocess.run(command, cwd=ROOT, check=False)
    if finished.returncode != 0:
        raise RuntimeError(
            f"zig build failed with status {finished.returncode}; its message is above. "
            f"The command was: {shlex.join(command)}"
        )
    return made


class Hook(BuildHookInterface[Any]):
    """Hatchling calls `initialize` before it collects the files of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            made = build_native(ROOT)
        else:
            # For this build only: a file left from another Python must not get into the wheel.
            prefix = ROOT / ".zig-cache" / "wheel"
            shutil.rmtree(prefix, ignore_errors=True)
            made = build_native(prefix)
            for path in sorted(prefix.rglob("*")):
                if path.is_file():
                    build_data["force_include"][str(path)] = str(path.relative_to(prefix))
        build_data["pure_python"] = False
        build_data["tag"] = made.tag


if __name__ == "__main__":
    try:
        build_native(ROOT)
    except RuntimeError as error:
        sys.exit(str(error))
