"""Many: operations of one call, so many in flight at most, each repeated if it was aborted.

It owns the order in which they begin and begin again. Their arrays are those of collectives.py, and
each has a tag of its own, so they depend on each other in nothing but their turn.

Why members agree without asking: an abort is of all members that have called the operation, so all
repeat the same. Nobody waits for ever: all begin in one order, and each waits for the first that is
not over; before that one all are over everywhere, so all members have begun it, and one that was
aborted begins again in its place. A member whose deadline has passed leaves the others to theirs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pccl_py.errors import Aborted, DeadlineExceeded, PcclError
from pccl_py.outcome import Origin
from pccl_py.work import Made, Work

IN_FLIGHT = 8
# As base/limits.zig has it for a group: operations_in_flight_max.
IN_FLIGHT_MAX = 64
RETRY = 3

Begin: TypeAlias = Callable[[float, Made], object]
"""Begins an operation that has so many seconds. Its Work goes to the Made first."""


def run(
    begins: Sequence[Begin], origin: Origin, *, in_flight: int, retry: int, seconds: float
) -> list[Any]:
    """Runs them all, and returns their results in their order.

    All are tried, whatever becomes of the others; then the error of the first that failed is
    raised. A result that a frontend has to copy is copied when all are over: its array may share
    memory with the input of another operation.
    """
    until = time.monotonic() + seconds
    parts = [_Part(begin, retry, until) for begin in begins]
    waiting, window = deque(parts), list[_Part]()
    try:
        while waiting or window:
            while waiting and len(window) < in_flight:
                window.append(waiting.popleft())
                window[-1].begin()
            window[0].wait()
            window = [part for part in window if part.goes_on()]
        results = [part.result() for part in parts]
    except BaseException as error:
        error.__dict__["works"] = _works(parts)
        for part in window:
            part.withdraw(error)
        raise
    for number, part in enumerate(parts):
        if not part.has_begun:
            part.error = _late(number, len(parts), origin)
        if part.error is not None:
            part.error.work, part.error.works = part.work, _works(parts)
            raise part.error
    return results


class _Part:
    """One of them. Its `work` and its `error` are those of its last operation."""

    def __init__(self, begin: Begin, retry: int, until: float) -> None:
        self.work: Work[Any] | None = None
        self.error: PcclError | None = None
        self.has_begun = False
        self._begin = begin
        self._is_in_flight = False
        self._tries = 1 + retry
        self._until = until

    def begin(self) -> None:
        """Begins it, or begins it again, unless there is no time left."""
        left = self._until - time.monotonic()
        if left <= 0:
            return
        self.has_begun = True
        self._tries -= 1
        self.error = None
        try:
            self._begin(left, self._keep)
            self._is_in_flight = True
        except PcclError as error:  # it was refused
            self.error = error
            self.work = None

    def wait(self) -> None:
        """Returns once nothing of it is in flight."""
        if self._is_in_flight and self.work is not None:
            self.work.exception()

    def goes_on(self) -> bool:
        """Whether it is in flight. Begins again what was aborted."""
        if self._is_in_flight and self.work is not None and self.work.done():
            self._is_in_flight = False
            self.error = self.work.exception(0)
            if isinstance(self.error, Aborted) and self._tries > 0:
                self.begin()
        return self._is_in_flight

    def result(self) -> Any:
        """The result of a committed operation, which a frontend makes now; else None."""
        return self.work.wait() if self.work is not None and self.error is None else None

    def withdraw(self, error: BaseException) -> None:
        """Cancels it because of `error`, which ends the call, and waits until it is done."""
        if self.work is not None and self.work._native.begun:
            if "work" not in error.__dict__:
                error.__dict__["work"] = self.work
            self.work._native.withdraw()

    def _keep(self, work: Work[Any]) -> None:
        self.work = work


def _works(parts: Sequence[_Part]) -> tuple[Work[Any] | None, ...]:
    return tuple(part.work for part in parts)


def _late(number: int, count: int, origin: Origin) -> DeadlineExceeded:
    error = DeadlineExceeded(
        f"{origin.operation} in group {origin.group!r} timed out: the deadline passed before array "
        f"{number} of {count} had its turn"
    )
    origin.mark(error)
    return error
