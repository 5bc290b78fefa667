"""The library's log on stderr or in a file, when PCCL_LOG and PCCL_LOG_FILE ask for it.

Without them the log goes to logging.getLogger("pccl") alone, and nothing is printed. `connect` and
Coordinator call `configure` first of all; native events reach the logger through _watcher.py.
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

    In the file's name places are filled in as by `filled_in`; lines are appended. A
    program that has handlers of its own on the logger keeps those alone. Raises InvalidArgument
    for an unknown level, and SystemRefused for a file that cannot be opened.
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
    """Puts the host in the place of %h, the process id in that of %p, a percent sign for %%."""
    parts = {"%h": socket.gethostname(), "%p": str(os.getpid()), "%%": "%"}
    return re.sub("%[hp%]", lambda found: parts[found.group()], pattern)
