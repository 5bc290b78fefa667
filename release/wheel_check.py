"""Checks that a wheel can run on other machines; wheels.py checks each wheel that it builds.

`auditwheel` checks symbol versions and libraries by the manylinux policies, `abi3audit` the stable
ABI. The functions here check what these tools do not: the CPU, where libraries are searched, memory
protection, and the files in the wheel.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from io import BytesIO
from pathlib import Path

from elftools.elf.constants import P_FLAGS
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
NEEDED = (
    *("pccl_py/__init__.py", "pccl_py/py.typed", "pccl_py/libpccl.so"),
    "pccl_py/libpccl_jax.so",
    *("pccl_py/include/pccl.h", "pccl_py/include/compat/pccl.h"),
)
FOLDERS = (
    *("pccl_py/", "pccl_jax/", "pccl_numpy/", "pccl_torch/", "pccl_torch_entry/", "pccl_train/"),
    "pccl_py-",
)
BIND_NOW = 8
RELATIVE_LINK = re.compile(r"\]\((?!\w+:|#)[^)]*\)")


def complaints(wheel: Path) -> list[str]:
    """A sentence for each rule that the wheel breaks."""
    abi, platform = wheel.stem.split("-")[3:]
    with zipfile.ZipFile(wheel) as archive:
        found = [
            *contents(archive.namelist(), abi),
            *description(archive),
            *(
                f"{name}: {complaint}"
                for name in archive.namelist()
                if name.endswith(".so")
                for complaint in library(archive.read(name), platform.split("_", 3)[3])
            ),
        ]
    found += audited(wheel, platform)
    if abi == "abi3":
        found += stable(wheel)
    return [f"{wheel.name}: {complaint}" for complaint in found]


def contents(names: list[str], abi: str) -> Iterator[str]:
    """Complaints about the wheel's files: it must have all NEEDED files, exactly one extension, and
    nothing outside FOLDERS."""
    for name in NEEDED:
        if name not in names:
            yield f"{name} is missing"
    extensions = [name for name in names if re.match(r"pccl_py/_pccl\..*so", name)]
    if len(extensions) != 1 or ("abi3" in extensions[0]) != (abi == "abi3"):
        yield f"its extensions are {extensions}"
    for name in names:
        if not name.startswith(FOLDERS) or "__pycache__" in name:
            yield f"{name} does not belong there"


def description(archive: zipfile.ZipFile) -> Iterator[str]:
    """Complaints about the description: it must be the README, without relative links, which are
    broken on PyPI."""
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = str(Parser().parsestr(archive.read(name).decode()).get_payload())
    if "all_reduce" not in text:
        yield "its description is not the README"
    for link in RELATIVE_LINK.findall(text):
        yield f"its description has the relative link {link}"


def library(image: bytes, machine: str) -> Iterator[str]:
    """Complaints about a library: it must be for the wheel's CPU, search libraries only in its own
    folder, and bind its symbols when it is loaded."""
    elf = ELFFile(BytesIO(image))
    if elf["e_machine"] != MACHINES[machine]:
        yield f"it is for {elf['e_machine']}, the wheel for {machine}"
    yield from mapped(elf)
    dynamic = elf.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    for tag in dynamic.iter_tags():
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            path = getattr(tag, "rpath", None) or getattr(tag, "runpath", None)
            if path != "$ORIGIN":
                yield f"it searches {path}"
    if not any(
        tag.entry.d_tag == "DT_FLAGS" and tag["d_val"] & BIND_NOW for tag in dynamic.iter_tags()
    ):
        yield "its symbols are not bound when it is loaded"


def mapped(elf: ELFFile) -> Iterator[str]:
    """Complaints about memory protection: no memory may be both writable and executable, and
    relocations must become read-only."""
    flags = {segment["p_type"]: segment["p_flags"] for segment in elf.iter_segments()}
    if "PT_GNU_STACK" not in flags or flags["PT_GNU_STACK"] & P_FLAGS.PF_X:
        yield "its stack is executable"
    if "PT_GNU_RELRO" not in flags:
        yield "its relocations stay writable"
    both = P_FLAGS.PF_W | P_FLAGS.PF_X
    if any(segment["p_flags"] & both == both for segment in elf.iter_segments()):
        yield "a segment is writable and executable"


def audited(wheel: Path, platform: str) -> Iterator[str]:
    """Complaints unless auditwheel confirms the platform tag: no symbol version newer than the tag,
    and no library that a system may lack."""
    said = run("auditwheel", "show", str(wheel))
    if f'"{platform}"' not in said.stdout:
        yield f"auditwheel does not find {platform}:\n{said.stdout}{said.stderr}"


def stable(wheel: Path) -> Iterator[str]:
    """Complaints of abi3audit: the wheel may use only symbols in the stable ABI of Python 3.12."""
    said = run("abi3audit", "--strict", "--report", str(wheel))
    if said.returncode != 0:
        yield f"abi3audit refuses it:\n{said.stdout}{said.stderr}"


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of this Python's environment, and returns its output and status."""
    program = Path(sys.executable).with_name(module)
    return subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
