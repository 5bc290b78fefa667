"""Runs the operations of an all_reduce_many, with a bounded number of them in flight.

This file decides the order in which operations begin, and begin again after an abort. Each
operation has a tag of its own, so operations depend on each other only by this order.
collectives.py checks the arrays.

Members agree on repeats without messages: an abort reaches all members that have called the
operation, so all members repeat the same operations. No member waits for ever: all members begin
the operations in one order, and each member waits for its first operation that is not over. All
earlier operations are over on all members, so every member has begun that operation; an aborted
operation begins again in its place. A member whose deadline has passed stops, and the operations of
other members end by their own deadlines.
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
# Most collectives in flight in a group, operations_in_flight_max of engine/base/limits.zig.
IN_FLIGHT_MAX = 64
RETRY = 3

Begin: TypeAlias = Callable[[float, Made], object]
"""Begins an operation with a deadline in seconds. The Made gets its Work before it begins."""


def run(
    begins: Sequence[Begin], origin: Origin, *, in_flight: int, retry: int, seconds: float
) -> list[Any]:
    """Runs all operations, and returns their results in order.

    All operations are tried, also after one has failed; then the error of the first failed
    operation is raised. A result that a frontend has to copy is copied when all operations are
    over, because its array may share memory with the input of another operation.
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
    """One array of the call, with the `work` and the `error` of its last operation."""

    def __init__(self, begin: Begin, retry: int, until: float) -> None:
        self.work: Work[Any] | None = None
        self.error: PcclError | None = None
        self.has_begun = False
        self._begin = begin
        self._is_in_flight = False
        self._tries = 1 + retry
        self._until = until

    def begin(self) -> None:
        """Begins the operation, or begins it again, unless the deadline has passed."""
        left = self._until - time.monotonic()
        if left <= 0:
            return
        self.has_begun = True
        self._tries -= 1
        self.error = None
        try:
            self._begin(left, self._keep)
            self._is_in_flight = True
        except PcclError as error:  # the operation was refused
            self.error = error
            self.work = None

    def wait(self) -> None:
        """Returns once the operation is not in flight."""
        if self._is_in_flight and self.work is not None:
            self.work.exception()

    def goes_on(self) -> bool:
        """Whether the operation is in flight. Begins it again if it was aborted."""
        if self._is_in_flight and self.work is not None and self.work.done():
            self._is_in_flight = False
            self.error = self.work.exception(0)
            if isinstance(self.error, Aborted) and self._tries > 0:
                self.begin()
        return self._is_in_flight

    def result(self) -> Any:
        """The result of a committed operation, which a frontend makes now; None if it failed."""
        return self.work.wait() if self.work is not None and self.error is None else None

    def withdraw(self, error: BaseException) -> None:
        """Cancels the operation because `error` ends the call, and waits until it is done."""
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
