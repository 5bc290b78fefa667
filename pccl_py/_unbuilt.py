"""Says why the native part cannot be imported; `pccl_py/__init__.py` asks after an ImportError."""

from __future__ import annotations

import sys
from pathlib import Path


def reason(folder: Path) -> str | None:
    """The reason and a cure; None if `folder` has a native part, and something else is wrong."""
    built = sorted(path.name for path in folder.glob("_pccl.*so"))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    suffixes = (f"_pccl.cpython-{sys.version_info[0]}{sys.version_info[1]}-", "_pccl.abi3.so")
    if any(name.startswith(suffixes) for name in built):
        return None
    if (folder.parent / "build.zig").exists():
        return (
            f"pccl_py is imported from its source directory {folder.parent}, where its native part "
            f"is not built for Python {version}: leave that directory to import the installed "
            "package, or run `make build` there and use its .venv (minutes the first time)"
        )
    return (
        f"pccl_py in {folder} has no native part for Python {version}"
        + (f", but {', '.join(built)}" if built else "")
        + ": install it again with this Python"
    )
