"""The entry point of the `pccl` command. The commands are in commands.py.

`pccl --version` does not import commands.py, because typer and rich take long to import.
"""

from __future__ import annotations

import sys

import pccl_py


def version() -> str:
    """The line that `pccl --version` prints."""
    wire, level = pccl_py.wire_version(), pccl_py.cpu_level()
    return f"pccl {pccl_py.__version__} (wire version {wire}, CPU level {level})"


def main() -> None:
    """Entry point of the `pccl` command."""
    if sys.argv[1:] == ["--version"]:
        print(version())
        return
    from pccl_py.cli import commands

    commands.main()
