"""Work: one operation in flight, to be waited for, awaited, withdrawn, or settled when in doubt.

The operation itself runs in the native library; a Work holds its buffers until it is settled. A
Call begins it (call.py). docs/PROMISE.md says what a failed operation
leaves behind. Completions reach asyncio through _watcher.py, without a thread per operation.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, cast, overload

from pccl_py import _lifecycle, _pccl, _watcher
from pccl_py.errors import InDoubt, InvalidUsage, PcclError, SystemRefused
from pccl_py.outcome import PLANS_TAKEN, Origin, Outcome, Range, Rosters, figure
from pccl_py.words import PeerId, wait_nanoseconds

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import TypeVar

    ResultType = TypeVar("ResultType", default=Outcome)
else:
    from typing import TypeVar

    ResultType = TypeVar("ResultType")


_NOTHING = object()


class Work(Generic[ResultType]):
    """An operation that was begun with async_op=True, or that an exception carries as `work`.

    Its result is the outcome, or what a frontend returns: `Work` alone is `Work[Outcome]`. Any
    thread may use it. Until it is done, neither its input nor its output may be read or written.
    One that is dropped before it is done goes on, and its buffers are kept until then; if it fails,
    the log says so (logger `pccl`).

    An InDoubt carries one, and so does every other exception that leaves a call after it began:
    KeyboardInterrupt too, and any other exception of a signal handler. Such an exception withdraws
    the operation, as `cancel` does, unless it was done by then: `error.work.exception()` and
    `error.work.outcome` tell how it ended. An exception without `work` came before the operation.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_finish",
        "_finishing",
        "_lock",
        "_native",
        "_origin",
        "_outcome",
        "_pipe",
        "_result",
        "_result_lock",
        "_reword",
        "_waiters",
    )

    def __init__(
        self,
        finish: Callable[[Outcome], ResultType] | None,
        reword: Callable[[str], str] | None,
        origin: Origin,
    ) -> None:
        self._native = _pccl.Work()
        self._origin = origin
        self._finish = finish
        # Says what a sentence of the library says in the words of a frontend.
        self._reword = reword
        self._outcome: Outcome | None = None
        self._pipe: int | None = None
        self._result: object = _NOTHING
        self._lock = threading.Lock()
        # One thread makes the result, with code of the program: that may ask for the Work, too.
        self._result_lock = threading.RLock()
        self._finishing = False
        self._waiters: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[Work[ResultType]], object]] = []

    def wait(self, timeout: float | None = None) -> ResultType:
        """Waits until the operation is done, and returns its result.

        After `timeout` seconds it raises TimeoutError, and the operation continues; use `cancel` to
        give it up. Raises the error of the operation, as often as it is called.
        """
        if self._result is _NOTHING:
            self._wait(timeout)
        return self._read_result()

    def done(self) -> bool:
        """True if `wait` would not block. Also true for an operation that failed."""
        return self._result is not _NOTHING or self._native.poll()

    def fileno(self) -> int:
        """A descriptor for select, selectors and event loops that take one; asyncio has `await`.

        It is readable once `wait` would not block, and from then on; do not read from it. It is
        closed with the Work: take it out of a selector first. Each Work has its own.
        Raises SystemRefused if there are too many open files.
        """
        native = self._native.fileno()
        return self._readable() if native < 0 else native

    def _readable(self) -> int:
        """The same for an operation of which the library keeps nothing: it has committed."""
        with self._lock:
            if self._pipe is None:
                try:
                    self._pipe, end = os.pipe()
                except OSError as error:
                    raise SystemRefused(str(error)) from error
                os.close(end)
                weakref.finalize(self, os.close, self._pipe)
            return self._pipe

    def add_done_callback(self, callback: Callable[[Work[ResultType]], object]) -> None:
        """Calls `callback(work)` once the operation is done, also if it has failed or is in doubt.

        It is called once: on a thread of the library, those of one Work one after the other; or
        here and now, if the operation is done already. A callback may wait for other works, or take
        long. It holds up the later callbacks of its own Work alone. Until then the Work is kept,
        also if the program drops it. An exception goes to `threading.excepthook`, or to the caller
        of this function. At the end of the process callbacks that are left are not called.
        """
        if self.done():
            callback(self)
            return
        with self._lock:
            first = not self._callbacks
            self._callbacks.append(callback)
        if first:
            _watcher.watcher.notify(self._native, self, keep=True)

    def cancel(self) -> None:
        """Withdraws the operation, and this peer from the group; does nothing if it is done.

        To the others it is like the death of this peer: they go on without it, with this operation
        too. Here it ends with `Cancelled`, the input is as it was, and later calls in the group
        raise `Expelled`: connect again to go on. After this peer's vote the others no longer need
        it for this operation: it ends with `InDoubt`, and the peer stays. A message, which concerns
        two peers only, is withdrawn alone, and ends with `Aborted` on the other side. Returns at
        once; `wait` tells how the operation ended.
        """
        self._native.cancel()

    @overload
    def resolve(
        self, timeout: float | None = None, *, copy: Literal[True] = True
    ) -> ResultType: ...
    @overload
    def resolve(self, timeout: float | None = None, *, copy: bool) -> ResultType | Outcome: ...
    def resolve(self, timeout: float | None = None, *, copy: bool = True) -> ResultType | Outcome:
        """After `InDoubt`: waits for the coordinator's decision.

        If the operation was committed, it fills the output and returns the result; with `copy`
        false it leaves the output alone and returns the outcome. Raises `Aborted` if it was not
        committed, and TimeoutError if that is still unknown after `timeout` seconds.
        Without doubt it answers like `wait`.
        """
        try:
            self._native.resolve(wait_nanoseconds(timeout, _pccl.FOREVER_NS), copy)
        except PcclError as error:
            self._origin.mark(error)
            raise
        return self._read_result() if copy else self._read_outcome()

    def exception(self, timeout: float | None = None) -> PcclError | None:
        """Waits like `wait`, and returns the error of the operation, or None if it committed.

        Like `outcome`, it unpacks nothing: if a frontend has packed an array, only `wait`, `await`
        and `resolve` fill the caller's.
        """
        try:
            self._wait(timeout)
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
        self._wait(0)
        return self._read_outcome()

    def __await__(self) -> Generator[asyncio.Future[None], None, ResultType]:
        """For asyncio: waits without blocking the event loop, then answers like `wait`.

        For `asyncio.gather`, `wait_for` and `ensure_future`; no coroutine, which a task is made of.
        A task that is cancelled while it awaits does not withdraw the operation: `cancel` does.
        """
        if not self.done():
            import asyncio  # heavy, and only awaiting needs it

            yield from self._future(asyncio.get_running_loop()).__await__()
        return self.wait(0)

    def __repr__(self) -> str:
        if self._outcome is not None:
            return f"<Work {self._outcome!r}>"
        return f"<Work {'done' if self.done() else 'in flight'}>"

    def _future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future of `loop` that is done once the operation is."""
        future: asyncio.Future[None] = loop.create_future()
        self._when_done(lambda: _tell(loop, future))
        return future

    def _when_done(self, call: Callable[[], object]) -> None:
        """Calls it on the watcher's thread, where it must not wait. One notification serves all."""
        with self._lock:
            first = not self._waiters and not self._callbacks
            self._waiters.append(call)
        if first:
            _watcher.watcher.notify(self._native, self)

    def _on_finished(self) -> Callable[[], object] | None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
            callbacks, self._callbacks = self._callbacks, []
        for call in waiters:
            call()
        return functools.partial(self._call_back, callbacks) if callbacks else None

    def _call_back(self, callbacks: list[Callable[[Work[ResultType]], object]]) -> None:
        for call in callbacks:
            try:
                call(self)
            except Exception:  # noqa: BLE001  of the program
                _watcher.report()

    def _wait(self, timeout: float | None) -> None:
        try:
            self._native.wait(wait_nanoseconds(timeout, _pccl.FOREVER_NS))
        except PcclError as error:
            _lifecycle.exit_again()
            if isinstance(error, InDoubt):
                error.work = self
            self._in_own_words(error)
            raise

    def _in_own_words(self, error: BaseException) -> None:
        if not isinstance(error, PcclError) or error._origin is self._origin:
            return  # it is so already, by `wait`
        self._origin.mark(error)
        if self._reword is not None:
            error.args = (self._reword(str(error)),)

    def _read_outcome(self) -> Outcome:
        with self._result_lock:
            if self._outcome is None:
                self._outcome = _outcome(self._native, self._origin.rosters)
            return self._outcome

    def _read_result(self) -> ResultType:
        with self._result_lock:
            if self._result is _NOTHING:
                if self._finishing:
                    raise InvalidUsage(
                        "the result of this Work is being made by the code that has called this "
                        "(as an object is unpickled, or in a signal handler): ask for it later"
                    )
                outcome, finish = self._read_outcome(), self._finish
                self._finishing = True
                # Where an exception ends it, the next call does it again.
                try:
                    self._result = outcome if finish is None else finish(outcome)
                finally:
                    self._finishing = False
                self._finish = None  # with the arrays that it holds
            return cast(ResultType, self._result)


class Dropped(Work[ResultType]):
    """A Work of `async_op`, which may be dropped before it is done.

    Others are done when their call ends, and have no `__del__`: Python swallows an exception that a
    signal handler raises in there, so that Ctrl-C would be lost.
    """

    __slots__ = ()

    def __del__(self) -> None:
        # __init__ may have been left by an exception.
        native = getattr(self, "_native", None)
        if native is not None and native.in_flight():
            _watcher.watcher.keep(native)


Made: TypeAlias = Callable[[Work[Any]], object]
"""Is given the Work of an operation before that begins."""


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, future)
    except RuntimeError:
        if not loop.is_closed():  # else nobody is left to be told
            raise


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():  # the awaiting task may have been cancelled
        future.set_result(None)


def _outcome(native: _pccl.Work, rosters: Rosters) -> Outcome:
    told = native.outcome()
    epoch, tag, sequence, attempts, digest, sent, received, duration_ns = told[:8]
    plan, predicted_ns, bound_ns, ranges = told[8:]
    roster = rosters.of(epoch)
    return Outcome(
        epoch=epoch,
        tag=tag,
        sequence=sequence,
        attempts=attempts,
        digest=digest.hex(),
        ranges=tuple(
            Range(begin, end, tuple(PeerId(peer) for peer in contributors), roster)
            for begin, end, contributors in ranges
        ),
        bytes_sent=sent,
        bytes_received=received,
        duration=duration_ns / 1e9,
        plan=PLANS_TAKEN[plan],
        predicted=figure(predicted_ns),
        bound=figure(bound_ns),
        roster=roster,
    )
