"""Work: one operation in flight, which a program waits for, awaits, cancels or resolves.

The operation runs in the native library; a Work holds the operation's buffers until it is settled.
A Call begins the operation (call.py). docs/internals/PROMISE.md says what a failed operation leaves
behind. Completions reach asyncio through _watcher.py, without a thread per operation.
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

    The result is the outcome, or what a frontend returns; the type `Work` is `Work[Outcome]`. Any
    thread may use a Work. The input may not be written, and the output neither read nor written,
    until the operation is done. An operation whose Work is dropped goes on, and its buffers are
    kept until it is done; if it fails, the log says so (logger `pccl`).

    An exception that leaves a call after its operation began carries the Work as `error.work`: an
    InDoubt, and also a KeyboardInterrupt or another exception of a signal handler. An exception of
    a signal handler withdraws the operation, as `cancel` does, unless the operation was done by
    then: `error.work.exception()` and `error.work.outcome` tell how it ended. An exception without
    `work` came before the operation began.
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
        # Puts an error of the library into the words of a frontend; None for no frontend.
        self._reword = reword
        self._outcome: Outcome | None = None
        self._pipe: int | None = None
        self._result: object = _NOTHING
        self._lock = threading.Lock()
        # Held by the thread that makes the result; code of the program may use this Work meanwhile.
        self._result_lock = threading.RLock()
        self._finishing = False
        self._waiters: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[Work[ResultType]], object]] = []

    def wait(self, timeout: float | None = None) -> ResultType:
        """Waits until the operation is done, and returns its result.

        After `timeout` seconds `wait` raises TimeoutError, and the operation continues; use
        `cancel` to give the operation up. If the operation failed, each call of `wait` raises its
        error.
        """
        if self._result is _NOTHING:
            self._wait(timeout)
        return self._read_result()

    def done(self) -> bool:
        """True if `wait` would not block, also for an operation that failed."""
        return self._result is not _NOTHING or self._native.poll()

    def fileno(self) -> int:
        """A descriptor for select, selectors and event loops that take one; asyncio has `await`.

        The descriptor is readable once `wait` would not block, and from then on; do not read from
        it. Each Work has a descriptor of its own, which is closed with the Work: take the
        descriptor out of a selector first. Raises SystemRefused if there are too many open files.
        """
        native = self._native.fileno()
        return self._readable() if native < 0 else native

    def _readable(self) -> int:
        """A readable descriptor, for an operation that has committed and left the library."""
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

        The callback is called once: at once by this function if the operation is done already, else
        on a thread of the library, in the order in which the callbacks of a Work were added. A
        callback may wait for other works, or take long: it delays only later callbacks of its own
        Work. The Work is kept until its callbacks are called, also if the program drops the Work.
        An exception of a callback goes to `threading.excepthook`, or to the caller of this
        function. Callbacks that are left at the end of the process are not called.
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
        """Withdraws the operation, and this peer from the group; does nothing once `done` is true.

        The other members go on, with this operation too, as if this peer had died. On this peer the
        operation ends with `Cancelled`, the input keeps its content, and later calls in the group
        raise `Expelled`: connect again to go on. After this peer's vote the other members can
        finish the operation without this peer: the operation ends with `InDoubt` here, and this
        peer stays a member. A message concerns two peers only: `cancel` withdraws the message, not
        this peer, and the message ends with `Aborted` on the other side. `cancel` returns at once;
        `wait` tells how the operation ended.
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

        If the operation was committed, `resolve` fills the output and returns the result; with
        `copy` false it leaves the output alone and returns the outcome. Raises `Aborted` if the
        operation was not committed, and TimeoutError if the decision is still unknown after
        `timeout` seconds. If there was no doubt, `resolve` answers like `wait`.
        """
        try:
            self._native.resolve(wait_nanoseconds(timeout, _pccl.FOREVER_NS), copy)
        except PcclError as error:
            self._origin.mark(error)
            raise
        return self._read_result() if copy else self._read_outcome()

    def exception(self, timeout: float | None = None) -> PcclError | None:
        """Waits like `wait`, and returns the error of the operation, or None if it committed.

        If a frontend has packed an array, only `wait`, `await` and `resolve` copy the result into
        the caller's array; `exception` and `outcome` do not.
        """
        try:
            self._wait(timeout)
        except PcclError as error:
            return error
        return None

    @property
    def outcome(self) -> Outcome:
        """The outcome of a finished operation. Raises InvalidUsage before that, or its error.

        Never blocks.
        """
        if not self.done():
            raise InvalidUsage("the operation is not done; wait() for it, or await it")
        self._wait(0)
        return self._read_outcome()

    def __await__(self) -> Generator[asyncio.Future[None], None, ResultType]:
        """For asyncio: waits without blocking the event loop, then answers like `wait`.

        A Work may be passed to `asyncio.gather`, `wait_for` and `ensure_future`. A Work is not a
        coroutine, so `create_task` does not take a Work. Cancelling a task that awaits a Work does
        not withdraw the operation: `cancel` does.
        """
        if not self.done():
            import asyncio  # slow to import: only awaiting needs asyncio

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
        """Calls `call`, which must not wait, on the watcher's thread once the operation is done."""
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
            except Exception:  # noqa: BLE001  a callback is code of the program
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
            return  # `wait` has marked this error already
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
                # If `finish` raises, the next call of this method calls `finish` again.
                try:
                    self._result = outcome if finish is None else finish(outcome)
                finally:
                    self._finishing = False
                self._finish = None  # releases the arrays that `finish` holds
            return cast(ResultType, self._result)


class Dropped(Work[ResultType]):
    """A Work of `async_op`, which the program may drop before the operation is done.

    The Work of a blocking call is done when the call ends, and has no `__del__`: Python swallows an
    exception that a signal handler raises in `__del__`, so Ctrl-C would be lost.
    """

    __slots__ = ()

    def __del__(self) -> None:
        # An exception may have ended __init__ before `_native` was there.
        native = getattr(self, "_native", None)
        if native is not None and native.in_flight():
            _watcher.watcher.keep(native)


Made: TypeAlias = Callable[[Work[Any]], object]
"""Is given the Work of an operation before that begins."""


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, future)
    except RuntimeError:
        if not loop.is_closed():  # a closed loop has no waiting tasks
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
