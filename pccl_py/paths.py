"""Where this installation has what a C compiler needs: pccl.h, and the library beside this package.

`pccl flags` prints them as a compiler takes them. How to embed PCCL in a program: docs/guides/C.md.
"""

from __future__ import annotations

from pathlib import Path

from pccl_py.errors import SystemRefused

PACKAGE = Path(__file__).resolve().parent


def include_dir() -> str:
    """The folder of pccl.h, for -I. Raises SystemRefused where the package has none."""
    return _holding(PACKAGE / "include", "pccl.h")


def library_dir() -> str:
    """The folder of libpccl, for -L and for the path in which a program looks for it (rpath)."""
    return _holding(PACKAGE, "libpccl.*")


def _holding(folder: Path, name: str) -> str:
    if not any(folder.glob(name)):
        raise SystemRefused(f"{name} is not in {folder}: install pccl-py again, or `make build`")
    return str(folder)
