"""Watcher: threads that pass on log events of the native library and completions of works.

One thread leads: it sleeps in the native library, where each finished work puts its key into a
queue. A callback of the program may wait for other works. So a thread that is about to run a
callback first hands the lead to another thread, and waits to lead again afterwards: two threads as
a rule, and one more for each callback that waits (the pattern leader and followers: Schmidt et al.,
Pattern-Oriented Software Architecture, volume 2). The first coordinator or communicator of the
process starts the first thread. work.py says what a completion does, _lifecycle.py how the process
ends.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pccl_py import _pccl
from pccl_py.errors import PcclError, SystemRefused

if TYPE_CHECKING:
    from pccl_py._pccl import Work as NativeWork

logger = logging.getLogger("pccl")
logger.addHandler(logging.NullHandler())  # without a handler, Python would print warnings on stderr

# Interval at which the library is asked for log events, which have no notification.
LOG_INTERVAL_NS = 100_000_000

LOG_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}


class Awaited(Protocol):
    """An object that is told when a native work is finished: a pccl_py Work."""

    def _on_finished(self) -> Callable[[], object] | None:
        """Tells waiters, which never blocks, and returns a function that calls the callbacks."""


class Watcher:
    """The threads and their state. Public methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leader: threading.Thread | None = None
        # The thread that waits to lead; None if no thread does.
        self._follower: threading.Thread | None = None
        self._leader_changed = threading.Condition(self._lock)
        # Callbacks whose works are finished; only the leader uses this queue.
        self._due: deque[Callable[[], object]] = deque()
        self._stopping = False
        self._at_end: Callable[[], None] | None = None
        self._keys = itertools.count(1)
        # Works by key. Weak: a task keeps the work that it awaits, and a completion may never come.
        self._awaited: weakref.WeakValueDictionary[int, Awaited] = weakref.WeakValueDictionary()
        # Works with callbacks, by key, which are kept until the callbacks are called.
        self._kept: dict[int, Awaited] = {}
        self._dropped: dict[int, NativeWork] = {}

    def start(self) -> None:
        """Starts a thread unless one runs or the process is ending. Raises SystemRefused."""
        with self._lock:
            if self._leader is None and not self._stopping:
                self._start_leader()

    def _start_leader(self) -> None:
        thread = threading.Thread(target=self._run, name="pccl-watcher", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise SystemRefused(
                "the operating system gives this process no more threads"
            ) from error
        self._leader = thread

    def stop(self, at_end: Callable[[], None], timeout: float) -> bool:
        """Ends the threads for good; the leader calls `at_end` as its last act.

        Waits at most `timeout` seconds for `at_end`, and returns False if it took longer. If no
        thread was started, no handle was opened, and `at_end` is not called. Callbacks under way
        are not waited for, and no other callback is called.
        """
        with self._lock:
            self._at_end = at_end
            self._stopping = True
            leader = self._leader
            self._leader_changed.notify()
        if leader is None:
            return True
        _pccl.completions_wake()
        leader.join(timeout)
        return not leader.is_alive()

    def notify(self, native: NativeWork, awaited: Awaited, *, keep: bool = False) -> None:
        """Calls `awaited._on_finished()` on a thread once `native` is finished.

        A later notification of a work replaces the one before. `keep`: whether `awaited` is kept
        alive until then; pass it once for a work.
        """
        self.start()
        key = next(self._keys)
        if keep:
            self._kept[key] = awaited
        self._awaited[key] = awaited
        _pccl.work_notify(native, key)

    def keep(self, native: NativeWork) -> None:
        """Holds a dropped work and its buffers until it is finished, and logs its error."""
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
            except Exception:  # noqa: BLE001  a handler is code of the program
                report()

    def _run(self) -> None:
        while self._is_leader():
            if (callback := self._lead()) is None:
                return
            callback()
            del callback  # releases the work that it holds

    def _is_leader(self) -> bool:
        """Waits until this thread leads. False if another thread waits already, or at the end."""
        own = threading.current_thread()
        with self._lock:
            if self._leader is not own:
                if self._follower is not None:
                    return False
                self._follower = own
                while self._follower is own and not self._stopping:
                    self._leader_changed.wait()
            return self._leader is own

    def _hand_over(self) -> bool:
        """Makes another thread lead; False at the end of the process.

        If no other thread can be started, this thread leads on after the callback.
        """
        with self._lock:
            if self._stopping:
                return False
            if self._follower is None:
                try:
                    self._start_leader()
                except SystemRefused as error:
                    logger.warning("callbacks of works hold up others: %s", error)
            else:
                self._leader, self._follower = self._follower, None
                self._leader_changed.notify()
            return True

    def _lead(self) -> Callable[[], object] | None:
        """Leads until a callback is due, hands over, and returns the callback; None at the end."""
        while not self._stopping:
            if self._due:
                callback = self._due.popleft()
                if self._hand_over():
                    return callback
                continue
            for key in _pccl.completions_wait(LOG_INTERVAL_NS):
                try:
                    self._finished(key)
                except Exception:  # noqa: BLE001  an event loop of the program may raise
                    report()
            self.drain_log()
        if self._at_end is not None:
            self._at_end()
        self.drain_log()
        return None

    def _finished(self, key: int) -> None:
        # Locals end with this call, so that a work does not live on while this thread sleeps.
        if (dropped := self._dropped.pop(key, None)) is not None:
            try:
                dropped.wait(0)
            except PcclError as error:
                tell_of_dropped(error)
        if (awaited := self._awaited.pop(key, None)) is not None:
            self._kept.pop(key, None)
            if (callback := awaited._on_finished()) is not None:
                self._due.append(callback)


def tell_of_dropped(error: Exception) -> None:
    """Logs the error of an operation whose Work was dropped."""
    logger.warning("an operation whose Work was dropped has failed: %s", error)


def report() -> None:
    """Passes the exception at hand to threading.excepthook; this thread goes on."""
    kind, error, traceback = sys.exc_info()
    assert kind is not None
    threading.excepthook(
        threading.ExceptHookArgs((kind, error, traceback, threading.current_thread()))
    )


watcher = Watcher()


def after_fork_in_child() -> None:
    """Gives a forked child a new Watcher, because threads and works stay with the parent."""
    global watcher
    _pccl.fork_child()
    watcher = Watcher()
