"""Logging of the command line: events of the library on stderr. A library never does this."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler


def to_stderr() -> None:
    """Shows everything that `logging.getLogger("pccl")` gets."""
    handler = RichHandler(console=Console(stderr=True), show_path=False, markup=False)
    logger = logging.getLogger("pccl")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
