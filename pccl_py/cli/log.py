"""Logging of the command line: events of the library on stderr. A library never does this."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler


def to_stderr(level: int) -> None:
    """Shows what `logging.getLogger("pccl")` gets from this level on."""
    console = Console(stderr=True)
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False)
    else:  # a file or a pipe: one line an event, of any length
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(message)s"))
    logger = logging.getLogger("pccl")
    logger.addHandler(handler)
    logger.setLevel(level)
