"""One thread for the whole process: passes native log events on, and completions to whoever awaits.

It sleeps in the native library, not in a poll of works: a finished work puts its key into a queue
there. It is started by the first coordinator or communicator of the process. The meaning of a
completion is the caller's (work.py); how the process ends is _lifecycle.py's.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pccl_py import _pccl
from pccl_py.errors import PcclError, SystemRefused

if TYPE_CHECKING:
    from pccl_py._pccl import Work as NativeWork

logger = logging.getLogger("pccl")
logger.addHandler(logging.NullHandler())  # without one, Python would print warnings on stderr

# Log events have no notification of their own: they are looked for this often.
LOG_INTERVAL_NS = 100_000_000

LOG_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}


class Awaited(Protocol):
    """An object that is told of a finished work: a pccl_py Work."""

    def _on_finished(self) -> None: ...


class Watcher:
    """The thread and what it knows. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._at_end: Callable[[], None] | None = None
        self._keys = itertools.count(1)
        # Weak: a task that awaits a work keeps it, not the completion that may never come.
        self._awaited: weakref.WeakValueDictionary[int, Awaited] = weakref.WeakValueDictionary()
        self._dropped: dict[int, NativeWork] = {}

    def start(self) -> None:
        """Starts the thread unless it runs or the process is ending. Raises SystemRefused."""
        with self._lock:
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._run, name="pccl-watcher", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise SystemRefused(
                        "the operating system gives this process no more threads"
                    ) from error
                self._thread = thread

    def stop(self, at_end: Callable[[], None], timeout: float) -> bool:
        """Ends the thread for good, which calls `at_end` as its last act.

        Waits for that at most `timeout` seconds; False if it was not enough. Without a thread,
        nothing was ever opened, and `at_end` is not called.
        """
        with self._lock:
            self._at_end = at_end
            self._stopping = True
            thread = self._thread
        if thread is None:
            return True
        _pccl.completions_wake()
        thread.join(timeout)
        return not thread.is_alive()

    def notify(self, native: NativeWork, awaited: Awaited) -> None:
        """Calls `awaited._on_finished()` on the thread once `native` is finished."""
        self.start()
        key = next(self._keys)
        self._awaited[key] = awaited
        _pccl.work_notify(native, key)

    def keep(self, native: NativeWork) -> None:
        """Holds a work that its user has dropped, and its buffers, until it is finished. An error
        that nobody else would see goes to the log."""
        self.start()
        key = next(self._keys)
        self._dropped[key] = native
        _pccl.work_notify(native, key)

    def drain_log(self) -> None:
        """Hands queued native events to logging.getLogger("pccl")."""
        while (event := _pccl.log_next()) is not None:
            level, message = event
            try:
                logger.log(LOG_LEVELS.get(level, logging.ERROR), "%s", message)
            except Exception:  # noqa: BLE001  of a handler of the program
                _report()

    def _run(self) -> None:
        while not self._stopping:
            for key in _pccl.completions_wait(LOG_INTERVAL_NS):
                try:
                    self._finished(key)
                except Exception:  # noqa: BLE001  of a handler of the program, or of its event loop
                    _report()
            self.drain_log()
        if self._at_end is not None:
            self._at_end()
        self.drain_log()

    def _finished(self, key: int) -> None:
        # Nothing here outlives the call: a work must not live on because this thread sleeps.
        if (dropped := self._dropped.pop(key, None)) is not None:
            try:
                dropped.wait(0)
            except PcclError as error:
                tell_of_dropped(error)
        if (awaited := self._awaited.pop(key, None)) is not None:
            awaited._on_finished()


def tell_of_dropped(error: Exception) -> None:
    """To the log: an error of an operation that its user does not wait for."""
    logger.warning("an operation whose Work was dropped has failed: %s", error)


def _report() -> None:
    """Reports an exception as Python does one that ends a thread; this thread goes on."""
    kind, error, traceback = sys.exc_info()
    assert kind is not None
    threading.excepthook(
        threading.ExceptHookArgs((kind, error, traceback, threading.current_thread()))
    )


watcher = Watcher()


def after_fork_in_child() -> None:
    """A forked child has no watcher thread, and nothing of the parent's to watch."""
    global watcher
    _pccl.fork_child()
    watcher = Watcher()
