"""Work: one operation in flight, to be waited for, awaited, withdrawn, or settled when in doubt.

The operation itself runs in the native library; a Work holds its buffers until it is settled.
docs/PROMISE.md says what a failed operation leaves behind. Completions reach asyncio through
_watcher.py, without a thread per operation.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TYPE_CHECKING

from pccl_py import _pccl, _watcher
from pccl_py.errors import InDoubt, InvalidUsage, PcclError
from pccl_py.outcome import Outcome, Range
from pccl_py.words import PeerId, wait_nanoseconds

if TYPE_CHECKING:
    import asyncio


class Work:
    """An operation that was begun with async_op=True, or that an `InDoubt` carries.

    Any thread may use it. Until it is done, neither its input nor its output may be read or
    written. One that is dropped before it is done goes on, and its buffers are kept until then; if
    it fails, the log says so (logger `pccl`).
    """

    __slots__ = ("__weakref__", "_lock", "_native", "_outcome", "_waiters")

    def __init__(self, native: _pccl.Work) -> None:
        self._native = native
        self._outcome: Outcome | None = None
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def wait(self, timeout: float | None = None) -> Outcome:
        """Waits until the operation is done, and returns its outcome.

        After `timeout` seconds it raises TimeoutError, and the operation goes on: this is not
        giving up (`cancel` is). Raises the error of the operation, as often as it is called.
        """
        if self._outcome is not None:
            return self._outcome
        try:
            self._native.wait(wait_nanoseconds(timeout, _pccl.FOREVER_NS))
        except InDoubt as error:
            error.work = self
            raise
        return self._read_outcome()

    def done(self) -> bool:
        """True if `wait` would not block. Also true for an operation that failed."""
        return self._outcome is not None or self._native.poll()

    def fileno(self) -> int:
        """A descriptor for select, selectors and event loops that take one; asyncio has `await`.

        Readable once `wait` would not block, and from then on; nothing is to be read from it. It is
        closed with the Work: take it out of a selector first. Each Work that is asked has its own.
        Raises SystemRefused if there are too many open files.
        """
        return self._native.fileno()

    def cancel(self) -> None:
        """Withdraws the operation, and this peer from the group; does nothing if it is done.

        To the others it is what the death of this peer would be: they go on without it, with this
        operation too. Here it ends with `Cancelled`, the input is as it was, and later calls in the
        group raise `Expelled`: connect again to go on. After this peer's vote nobody needs it any
        more for this operation: it ends with `InDoubt`, and the peer stays. A message, which two
        alone exchange, is withdrawn by itself, and ends with `Aborted` on the other side. Returns
        at once: `wait` tells.
        """
        self._native.cancel()

    def resolve(self, timeout: float | None = None, *, copy: bool = True) -> Outcome:
        """After `InDoubt`: waits for the coordinator's decision.

        Returns the outcome if the operation was committed; the result is then in the output
        buffer, unless `copy` is false. Raises `Aborted` if it was not, and TimeoutError if that
        is still unknown after `timeout` seconds. Without doubt it answers like `wait`.
        """
        self._native.resolve(wait_nanoseconds(timeout, _pccl.FOREVER_NS), copy)
        return self._read_outcome()

    def exception(self, timeout: float | None = None) -> PcclError | None:
        """Waits like `wait`, and returns the error of the operation, or None if it committed."""
        try:
            self.wait(timeout)
        except PcclError as error:
            return error
        return None

    @property
    def outcome(self) -> Outcome:
        """The outcome of an operation that is done. Raises InvalidUsage before that, or its error.

        Never blocks.
        """
        if not self.done():
            raise InvalidUsage("the operation is not done; wait() for it, or await it")
        return self.wait(0)

    def __await__(self) -> Generator[asyncio.Future[None], None, Outcome]:
        """For asyncio: waits without blocking the event loop, then answers like `wait`.

        For `asyncio.gather`, `wait_for` and `ensure_future`; no coroutine, which a task is made of.
        A task that is cancelled while it awaits does not withdraw the operation: `cancel` does.
        """
        if not self.done():
            import asyncio  # heavy, and only awaiting needs it

            yield from self._future(asyncio.get_running_loop()).__await__()
        return self.wait(0)

    def __del__(self) -> None:
        # __init__ may have been left by an exception.
        native = getattr(self, "_native", None)
        if native is not None and self._outcome is None and native.in_flight():
            _watcher.watcher.keep(native)

    def __repr__(self) -> str:
        if self._outcome is not None:
            return f"<Work {self._outcome!r}>"
        return f"<Work {'done' if self.done() else 'in flight'}>"

    def _future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future of `loop` that is done once the operation is. One notification serves all."""
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            first = not self._waiters
            self._waiters.append((loop, future))
        if first:
            _watcher.watcher.notify(self._native, self)
        return future

    def _on_finished(self) -> None:
        """On the watcher's thread: tells every loop whose task awaits this work."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            if not loop.is_closed():  # else nobody is left to be told
                loop.call_soon_threadsafe(_settle, future)

    def _read_outcome(self) -> Outcome:
        with self._lock:
            if self._outcome is None:
                self._outcome = _outcome(self._native)
            return self._outcome


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():  # the awaiting task may have been cancelled
        future.set_result(None)


def _outcome(native: _pccl.Work) -> Outcome:
    epoch, tag, sequence, attempts, digest, sent, received, duration_ns, ranges = native.outcome()
    return Outcome(
        epoch=epoch,
        tag=tag,
        sequence=sequence,
        attempts=attempts,
        digest=digest.hex(),
        ranges=tuple(
            Range(begin, end, tuple(PeerId(peer) for peer in contributors))
            for begin, end, contributors in ranges
        ),
        bytes_sent=sent,
        bytes_received=received,
        duration=duration_ns / 1e9,
    )
