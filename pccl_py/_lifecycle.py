"""How a process ends, is terminated or forks while communicators are open.

Exit: all open handles are closed, which ends operations in flight with `Cancelled`, and the
interpreter waits, with a bound, for threads inside the library to leave it. Fork: a child's copies
of the parent's handles refuse every use. This file does not know what a handle does.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Protocol

from pccl_py import _pccl, _watcher

# Closing is a few round trips; a coordinator that does not answer must not hold up the exit.
EXIT_CLOSE_SECONDS_MAX = 5.0
# Threads blocked in the library look up at least every 50 ms; later ones are parked.
EXIT_LEAVE_NS_MAX = 250_000_000


class Handle(Protocol):
    """An object that is registered here: a group or a coordinator."""

    _exit_order: int

    def _exit(self) -> None: ...

    def _fork(self) -> None: ...

    def _leave(self) -> None: ...


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
# The status of SIGTERM's SystemExit, once that was raised in the main thread.
_exit_status: int | None = None


@contextmanager
def opening() -> Iterator[None]:
    """Encloses the making of a native handle: its log events come before its error.

    Raises SystemRefused.
    """
    exit_again()
    _watcher.watcher.start()
    try:
        yield
    except BaseException:
        _watcher.watcher.drain_log()
        raise


def register(handle: Handle) -> None:
    """Remembers an open handle (weakly)."""
    _handles.add(handle)


def _close_all() -> None:
    # Communicators first, so that they leave a coordinator that still answers.
    for handle in sorted(_handles, key=lambda handle: handle._exit_order):
        try:
            handle._exit()
        except Exception:  # noqa: BLE001  the other handles must still be closed
            _watcher.logger.exception("closing %r at exit failed", handle)


@atexit.register
def _at_exit() -> None:
    _pccl.exit_begin()
    # On the watcher's thread, as no new thread can be started at exit since Python 3.12.
    if not _watcher.watcher.stop(at_end=_close_all, timeout=EXIT_CLOSE_SECONDS_MAX):
        _watcher.logger.warning(
            "communicators did not close within %g s; exiting without", EXIT_CLOSE_SECONDS_MAX
        )
    _pccl.exit_finish(EXIT_LEAVE_NS_MAX)


def exit_on_sigterm() -> None:
    """From now on SIGTERM ends this process as sys.exit does, so that it leaves its groups.

    The process leaves at once, as with `close`, and the other members finish without it what is in
    flight; Ctrl-C in a call does the same. Then SystemExit(143) is raised in the main thread,
    within a twentieth of a second also inside a call of PCCL. Without this function, SIGTERM kills
    a Python process, and the others see a loss. Call it from the main thread, for example before
    `connect`; no signal handler is installed unless you do.

    Python drops an exception that a signal handler raises in a `__del__` or in the callback of a
    weak reference. So once SIGTERM has come, calls of PCCL in the main thread raise SystemExit
    instead of an error.
    """
    signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    global _exit_status
    for handle in list(_handles):
        handle._leave()
    _exit_status = 128 + number
    raise SystemExit(_exit_status)


def exit_again() -> None:
    """Raises the SystemExit of SIGTERM again, in the main thread: Python may have dropped it."""
    if _exit_status is not None and threading.current_thread() is threading.main_thread():
        raise SystemExit(_exit_status)


def _after_fork_in_child() -> None:
    global _exit_status
    _exit_status = None
    for handle in list(_handles):
        handle._fork()
    _handles.clear()
    _watcher.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
