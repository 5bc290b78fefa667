"""InTurn: two operations as one Work, of which the second begins when the first is done.

The watcher's thread begins it, or whoever waits sooner; so it needs no caller, and a Work that is
dropped goes on: a _Turn has the two, and lives until both are done, whether or not its InTurn does.
Which operations these are is the caller's (objects.py).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from pccl_py import _watcher
from pccl_py.errors import InDoubt, InvalidUsage, PcclError, SystemRefused
from pccl_py.outcome import Outcome, Rosters
from pccl_py.work import Work

if TYPE_CHECKING:
    import asyncio

# Those that are not done stay, whether or not their users keep them.
_under_way: set[_Turn] = set()


class InTurn(Work[Any]):
    """Result and outcome are those of the second operation; an error of the first is one of both.

    `begin` makes the first, and `then` the second, or raises instead.
    """

    __slots__ = ("_pipe", "_turn")

    def __init__(self, begin: Callable[[], Work], then: Callable[[], Work[Any]]) -> None:
        super().__init__(None, None, Rosters())  # the outcome is that of one of the two
        self._pipe: int | None = None
        self._turn = _Turn(begin, then)

    def __del__(self) -> None:
        # __init__ may have been left by an exception.
        turn = getattr(self, "_turn", None)
        if turn is not None:
            turn.is_dropped = True

    def wait(self, timeout: float | None = None) -> Any:
        left = _left(timeout)
        try:
            self._turn.first.wait(timeout)
            return self._turn.begun().wait(left())
        except InDoubt as error:
            error.work = self
            raise

    def done(self) -> bool:
        if not self._turn.first.done():
            return False
        last = self._turn.last()
        return last is None or last.done()

    def fileno(self) -> int:
        with self._turn.lock:
            if self._pipe is None:
                self._pipe = self._turn.watched()
                weakref.finalize(self, os.close, self._pipe)
            return self._pipe

    def cancel(self) -> None:
        self._turn.cancel()

    def resolve(self, timeout: float | None = None, *, copy: bool = True) -> Any:
        left = _left(timeout)
        self._turn.first.resolve(timeout)
        second = self._turn.begun()
        second.exception(left())  # after a doubt about the first it has begun only now
        return second.resolve(left(), copy=copy)

    def exception(self, timeout: float | None = None) -> PcclError | None:
        try:
            left = _left(timeout)
            self._turn.first._wait(timeout)
            self._turn.begun()._wait(left())
        except PcclError as error:
            if isinstance(error, InDoubt):
                error.work = self
            return error
        return None

    @property
    def outcome(self) -> Outcome:
        if not self.done():
            raise InvalidUsage("the operation is not done; wait() for it, or await it")
        last = self._turn.last()
        return (self._turn.begun() if last is None else last).outcome

    def __await__(self) -> Generator[asyncio.Future[None], None, Any]:
        try:
            yield from self._turn.first.__await__()
            return (yield from self._turn.begun().__await__())
        except InDoubt as error:
            error.work = self
            raise


class _Turn:
    """The two operations. Any thread may call any method."""

    def __init__(self, begin: Callable[[], Work], then: Callable[[], Work[Any]]) -> None:
        self.lock = threading.RLock()
        self.is_dropped = False  # its InTurn is gone, and nobody asks
        self._cancelled = False
        self._error: Exception | None = None
        self._pipe_end: int | None = None  # closed once all is done
        self._second: Work[Any] | None = None
        self._then = then
        self.first = begin()
        _under_way.add(self)
        self.first._when_done(self._go_on)

    def begun(self) -> Work[Any]:
        """The second operation, which begins here unless it has. Raises what `then` raises."""
        with self.lock:
            if self._second is None and self._error is None:
                try:
                    self._second = self._then()
                    if self._cancelled:
                        self._second.cancel()
                except (PcclError, MemoryError) as error:
                    self._error = error
            if self._second is None:
                assert self._error is not None
                raise self._error
            return self._second

    def last(self) -> Work[Any] | None:
        """The operation whose end is that of both, if the first is done; None if none began."""
        if self.first.exception(0) is not None:
            return self.first
        try:
            return self.begun()
        except (PcclError, MemoryError):  # kept for those who ask
            return None

    def cancel(self) -> None:
        with self.lock:
            self._cancelled = True
            (self._second or self.first).cancel()

    def watched(self) -> int:
        """A descriptor that is readable once all is done, and that the caller closes."""
        with self.lock:
            try:
                watched, end = os.pipe()
            except OSError as error:
                raise SystemRefused(str(error)) from error
            if self in _under_way:
                self._pipe_end = end
            else:
                os.close(end)
            return watched

    def _go_on(self) -> None:
        """On the watcher's thread."""
        last = self.last()
        if last is None or last is self.first:
            self._end()
        else:
            last._when_done(self._end)

    def _end(self) -> None:
        with self.lock:
            _under_way.discard(self)
            if self._pipe_end is not None:
                os.close(self._pipe_end)
        if self.is_dropped:
            last = self.last()
            error = self._error if last is None else last.exception(0)
            if error is not None:
                _watcher.tell_of_dropped(error)


def _left(timeout: float | None) -> Callable[[], float | None]:
    """The seconds that are left of a time limit."""
    until = None if timeout is None else time.monotonic() + timeout
    return lambda: None if until is None else max(0.0, until - time.monotonic())
