"""Finds the header pccl.h and the library libpccl of this installation, for a C compiler.

`pccl flags` prints the folders of both as compiler flags. docs/guides/C.md says how to embed PCCL
in a program.
"""

from __future__ import annotations

from pathlib import Path

from pccl_py.errors import SystemRefused

PACKAGE = Path(__file__).resolve().parent


def include_dir() -> str:
    """The folder of pccl.h, for the flag -I. Raises SystemRefused if pccl.h is not there."""
    return _holding(PACKAGE / "include", "pccl.h")


def library_dir() -> str:
    """The folder of libpccl, for the flags -L and -rpath. Raises SystemRefused if it has no
    libpccl.
    """
    return _holding(PACKAGE, "libpccl.*")


def _holding(folder: Path, name: str) -> str:
    if not any(folder.glob(name)):
        raise SystemRefused(f"{name} is not in {folder}: install pccl-py again, or `make build`")
    return str(folder)
