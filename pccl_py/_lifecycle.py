"""How a process ends, is terminated or forks while communicators are open.

At the exit all open handles are closed, which ends operations in flight with `Cancelled`, and the
interpreter waits, with a bound, for threads inside the library to leave it. After a fork, the
child's copies of the parent's handles refuse every use.
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

# The exit waits this long for handles to close, which takes a few round trips.
EXIT_CLOSE_SECONDS_MAX = 5.0
# The exit waits this long for threads to leave the library; blocked threads look for the exit at
# least every 50 ms, and later threads are parked.
EXIT_LEAVE_NS_MAX = 250_000_000


class Handle(Protocol):
    """An object that is registered here: a group or a coordinator."""

    _exit_order: int

    def _exit(self) -> None: ...

    def _fork(self) -> None: ...

    def _leave(self) -> None: ...


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
# The exit status after SIGTERM, once its SystemExit was raised in the main thread; else None.
_exit_status: int | None = None


@contextmanager
def opening() -> Iterator[None]:
    """Encloses the making of a native handle: log events of a failure come before its error.

    Raises SystemRefused if the watcher's thread cannot start.
    """
    exit_again()
    _watcher.watcher.start()
    try:
        yield
    except BaseException:
        _watcher.watcher.drain_log()
        raise


def register(handle: Handle) -> None:
    """Keeps a weak reference to an open handle, so that the exit closes the handle."""
    _handles.add(handle)


def _close_all() -> None:
    # Groups close before coordinators, which must still answer when a group is left.
    for handle in sorted(_handles, key=lambda handle: handle._exit_order):
        try:
            handle._exit()
        except Exception:  # noqa: BLE001  the other handles must still be closed
            _watcher.logger.exception("closing %r at exit failed", handle)


@atexit.register
def _at_exit() -> None:
    _pccl.exit_begin()
    # The watcher's thread closes handles: since Python 3.12 no new thread can start at exit.
    if not _watcher.watcher.stop(at_end=_close_all, timeout=EXIT_CLOSE_SECONDS_MAX):
        _watcher.logger.warning(
            "communicators did not close within %g s; exiting without", EXIT_CLOSE_SECONDS_MAX
        )
    _pccl.exit_finish(EXIT_LEAVE_NS_MAX)


def exit_on_sigterm() -> None:
    """Makes SIGTERM end this process as sys.exit does, after it has left its groups.

    At SIGTERM the process leaves its groups at once, as with `close`, and the other members finish
    operations in flight without it; Ctrl-C in a call does the same. Then SystemExit(143) is raised
    in the main thread, within 50 ms also inside a call of PCCL. Without this function, SIGTERM
    kills a Python process, and the other members see a loss. Call this function from the main
    thread, for example before `connect`; the library installs no other signal handler.

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
