"""The library's log on stderr or in a file, when PCCL_LOG and PCCL_LOG_FILE ask for it.

Without these variables the log goes to logging.getLogger("pccl") alone, and nothing is printed.
`connect` and Coordinator call `configure` first of all; native events reach the logger through
_watcher.py.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Mapping

from pccl_py.errors import InvalidArgument, SystemRefused

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMAT = "%(asctime)s %(process)d pccl %(levelname)s: %(message)s"


def configure(environment: Mapping[str, str] = os.environ) -> None:
    """Adds a handler to the logger if PCCL_LOG names a level: to stderr, or to PCCL_LOG_FILE.

    `filled_in` completes the file's name; lines are appended. If the program has put handlers on
    the logger, `configure` adds none. Raises InvalidArgument for an unknown level, and
    SystemRefused for a file that cannot be opened.
    """
    logger = logging.getLogger("pccl")
    wanted = environment.get("PCCL_LOG", "")
    if not wanted or any(not isinstance(one, logging.NullHandler) for one in logger.handlers):
        return
    level = LEVELS.get(wanted.lower())
    if level is None:
        raise InvalidArgument(f"PCCL_LOG is {wanted!r}; it must be one of {', '.join(LEVELS)}")
    handler = _handler(environment.get("PCCL_LOG_FILE", ""))
    handler.setLevel(level)
    handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > level:
        logger.setLevel(level)


def _handler(pattern: str) -> logging.Handler:
    if not pattern:
        return logging.StreamHandler()
    name = filled_in(pattern)
    try:
        return logging.FileHandler(name)
    except OSError as error:
        raise SystemRefused(f"PCCL_LOG_FILE: {name}: {error.strerror}") from error


def filled_in(pattern: str) -> str:
    """Replaces %h by the name of the host, %p by the process id, and %% by a percent sign."""
    parts = {"%h": socket.gethostname(), "%p": str(os.getpid()), "%%": "%"}
    return re.sub("%[hp%]", lambda found: parts[found.group()], pattern)
