"""InTurn: two operations as one Work, of which the second begins when the first is done.

The watcher's thread begins it, or whoever waits sooner; so it needs no caller, and a Work that is
dropped goes on: a Turn has the two, and lives until both are done, whether or not its InTurn does.
Until the second has begun, its tag is in use, and a safe point waits: all members begin it between
the same safe points. Which operations these are is the caller's (objects.py).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from pccl_py import _watcher
from pccl_py.errors import InDoubt, InvalidUsage, PcclError, SystemRefused
from pccl_py.outcome import Origin, Outcome
from pccl_py.work import Work

if TYPE_CHECKING:
    import asyncio

Made = Callable[[Work[Any]], object]
"""Is given the Work of an operation before that begins, as `made` of Call.run."""

# Those that are not done stay, whether or not their users keep them.
_under_way: set[Turn] = set()


class Steps(Protocol):
    """The two operations: each method begins one, or raises instead."""

    def first(self, made: Made) -> object: ...

    def second(self, made: Made) -> object: ...

    def again(self) -> None:
        """The deadline is counted anew: the second begins when a doubt about the first is over."""


def run(steps: Steps, origin: Origin, turns: set[Turn], tag: int, async_op: bool) -> Any:
    """Begins both, and returns their Work, or waits for it and returns its result.

    `turns`: those of the group whose second operation has not begun, with this one.
    """
    turn = Turn(steps, turns, tag, watched=async_op)
    work = (_Dropped if async_op else InTurn)(turn, origin)
    try:
        turn.begin()
        return work if async_op else work.wait()
    except BaseException as error:
        if turn.has_begun():
            error.__dict__["work"] = work
            turn.withdraw()
        raise


class InTurn(Work[Any]):
    """Result and outcome are those of the second operation; an error of the first is of both."""

    __slots__ = ("_turn",)

    def __init__(self, turn: Turn, origin: Origin) -> None:
        super().__init__(None, None, origin)
        self._turn = turn

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
        if self._turn.is_beginning():
            return False
        last = self._turn.last()
        return last is None or last.done()

    def fileno(self) -> int:
        with self._turn.lock:
            if self._pipe is None:
                self._pipe = self._turn.watched_by()
                weakref.finalize(self, os.close, self._pipe)
            return self._pipe

    def cancel(self) -> None:
        self._turn.cancel()

    def resolve(self, timeout: float | None = None, *, copy: bool = True) -> Any:
        left = _left(timeout)
        self._turn.resolve_first(timeout)
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


class _Dropped(InTurn):
    """One of `async_op`; as _Dropped of work.py, others have no `__del__`."""

    __slots__ = ()

    def __del__(self) -> None:
        # __init__ may have been left by an exception.
        turn = getattr(self, "_turn", None)
        if turn is not None:
            turn.is_dropped = True


class Turn:
    """The two operations. Any thread may call any method.

    Without `watched`, the second begins where its caller waits for it.
    """

    def __init__(self, steps: Steps, turns: set[Turn], tag: int, *, watched: bool) -> None:
        # A signal handler may come while this thread has it, and asks for this Work, too.
        self.lock = threading.RLock()
        self.tag = tag
        self.is_dropped = False  # its InTurn is gone, and nobody asks
        self._steps = steps
        self._turns = turns
        self._watched = watched
        self._beginning = False
        self._cancelled = False
        self._error: Exception | None = None
        self._pipe_end: int | None = None  # closed once all is done
        self._first: Work[Any] | None = None
        self._second: Work[Any] | None = None

    def begin(self) -> None:
        """Begins the first operation."""
        self._steps.first(self._keep_first)
        self._turns.add(self)
        if self._watched:
            _under_way.add(self)
            self.first._when_done(self._go_on)

    def has_begun(self) -> bool:
        """Whether anything was begun."""
        return self._first is not None and self._first._native.begun

    @property
    def first(self) -> Work[Any]:
        """The first operation."""
        assert self._first is not None
        return self._first

    def begun(self) -> Work[Any]:
        """The second operation, which begins here unless it has. Raises if it could not begin."""
        with self.lock:
            if self._beginning:
                raise InvalidUsage(
                    "the second of the two operations of this Work is being begun by the code that "
                    "the signal handler has interrupted: ask for it after the handler"
                )
            if self._second is None and self._error is None:
                self._begin_second()
            if self._second is None:
                assert self._error is not None
                raise self._error
            return self._second

    def is_beginning(self) -> bool:
        """Whether the second is being begun: seen by the code in there, for which others wait."""
        with self.lock:
            return self._beginning

    def is_in_order(self) -> bool:
        """Whether the second has begun, or never will: begins it if it is time."""
        if not self.first.done():
            return False
        if not self.is_beginning():
            self.last()
        return True

    def put_in_order(self, timeout: float) -> None:
        """Waits until the second has begun, or never will. Raises TimeoutError."""
        self.first.exception(timeout)
        self.last()

    def last(self) -> Work[Any] | None:
        """The operation whose end is that of both, if the first is done; None if none began."""
        if self.first.exception(0) is not None:
            self._turns.discard(self)
            return self.first
        try:
            return self.begun()
        except (PcclError, MemoryError):  # kept for those who ask
            return None

    def resolve_first(self, timeout: float | None) -> None:
        """Settles a doubt about the first operation."""
        left = _left(timeout)
        in_doubt = isinstance(self.first.exception(timeout), InDoubt)
        self.first.resolve(left())
        with self.lock:
            if in_doubt and self._second is None:
                self._steps.again()
                self._watched = True  # nobody may be left who waits for the second

    def cancel(self) -> None:
        """Withdraws the operation that is in flight, or both."""
        with self.lock:
            self._cancelled = True
            (self._second or self.first).cancel()

    def withdraw(self) -> None:
        """Cancels, and waits until it is done. The others do not wait for the second, either.

        After a doubt about the first there is no second, unless that doubt is resolved.
        """
        self.first._native.withdraw()
        self._cancelled = self.first.exception(0) is None
        last = self.last()
        if last is not None:
            last._native.withdraw()

    def watched_by(self) -> int:
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

    def _keep_first(self, work: Work[Any]) -> None:
        self._first = work

    def _keep_second(self, work: Work[Any]) -> None:
        self._second = work

    def _begin_second(self) -> None:
        self._beginning = True
        try:
            self._steps.second(self._keep_second)
        except (PcclError, MemoryError) as error:
            self._error = error
        finally:
            self._beginning = False
            # An exception of a signal handler may have come before: then it can still begin.
            if self._second is not None and not self._second._native.begun:
                self._second = None
            if self._second is not None or self._error is not None:
                self._turns.discard(self)
        second = self._second
        if second is None:
            return
        if self._cancelled:
            second.cancel()
        if self._watched:
            _under_way.add(self)
            second._when_done(self._end)

    def _go_on(self) -> None:
        """On the watcher's thread, when the first is done."""
        last = self.last()
        if last is None or last is self.first:
            self._end()

    def _end(self) -> None:
        with self.lock:
            _under_way.discard(self)
            if self._pipe_end is not None:
                os.close(self._pipe_end)
                self._pipe_end = None
        if self.is_dropped:
            last = self.last()
            error = self._error if last is None else last.exception(0)
            if error is not None:
                _watcher.tell_of_dropped(error)


def _left(timeout: float | None) -> Callable[[], float | None]:
    """The seconds that are left of a time limit."""
    until = None if timeout is None else time.monotonic() + timeout
    return lambda: None if until is None else max(0.0, until - time.monotonic())
