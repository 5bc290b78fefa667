"""Logging of the command line: events on stderr, and the folder of `pccl run --log-dir`.

The library logs to stderr or a file only with PCCL_LOG (pccl_py/_log_output.py).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.logging import RichHandler

from pccl_py import _log_output
from pccl_py.errors import SystemRefused

FORMAT = "%(asctime)s %(levelname)-8s %(message)s"
# The messages of `pccl run` itself, which are printed already and go only to the file.
run_logger = logging.getLogger("pccl.run")
run_logger.propagate = False


def to_stderr(level: int) -> None:
    """Writes events of `logging.getLogger("pccl")` from this level on to stderr."""
    console = Console(stderr=True)
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False)
    else:  # a file or a pipe: one line an event, of any length
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(FORMAT))
    handler.setLevel(level)
    _add(logging.getLogger("pccl"), handler, level)


class Folder:
    """The folder of --log-dir, with a file for the coordinator and one for each process.

    Lines are appended to files. `pattern` is the folder's name, in which %h and %p are filled in.
    Raises SystemRefused.
    """

    def __init__(self, pattern: str) -> None:
        self._path = Path(_log_output.filled_in(pattern))
        self._lock = threading.Lock()
        self._files: dict[int, BinaryIO] = {}
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            handler = _FileUntilRefused(self._path / "coordinator.log")
        except OSError as error:
            raise SystemRefused(f"--log-dir: {error.filename}: {error.strerror}") from error
        handler.setFormatter(logging.Formatter(FORMAT))
        for logger in (logging.getLogger("pccl"), run_logger):
            _add(logger, handler, logging.DEBUG)

    def open(self, index: int) -> None:
        """Makes the file of a process, before the process is started. Raises SystemRefused."""
        with self._lock:
            if index in self._files:
                return
            path = self._path / f"process-{index}.log"
            try:
                self._files[index] = path.open("ab", buffering=0)
            except OSError as error:
                raise SystemRefused(f"--log-dir: {path}: {error.strerror}") from error

    def write(self, index: int, line: bytes, say: Callable[[str], None]) -> None:
        """Adds a line to the file of a process. At a disk error, reports it and closes the file.

        The pipe of the process is still read: a full disk must not block or end the process.
        """
        with self._lock:
            file = self._files.get(index)
            if file is None or file.closed:
                return
            try:
                file.write(line)
                return
            except OSError as error:
                file.close()
                reason = error.strerror
        say(f"--log-dir: the file of process {index} ends here: {reason}")


class _FileUntilRefused(logging.FileHandler):
    """A log file that after a disk error says so once on stderr, and writes no more lines."""

    def handleError(self, record: logging.LogRecord) -> None:
        self.setLevel(logging.CRITICAL + 1)
        sys.stderr.write(f"pccl: {self.baseFilename} ends here: {sys.exc_info()[1]}\n")


def _add(logger: logging.Logger, handler: logging.Handler, level: int) -> None:
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > level or logger.level == logging.NOTSET:
        logger.setLevel(level)
