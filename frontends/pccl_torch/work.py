"""PcclWork: an operation in flight, as a Work of torch.distributed. backend.py makes it.

A PcclWork wraps a `pccl_py.Work`, which waits and reports. PcclWork adds the Future that DDP and
functional collectives need, and turns errors into those of PyTorch (errors.py).

A Work that is written in Python is a Python object and a C++ object: if C++ keeps the C++ object
alone, its `wait` never returns. C++ keeps both objects of a Work if it calls the collective itself.
Where Python passes a PcclWork to C++, it passes `kept(work)`, a Work of C++ that keeps both.

An Event is an event of torch.profiler, such as "pccl:all_reduce", with the shapes of the call's
tensors. An Event begins with the call of a collective, and ends on another thread when the
operation is done, which shows the profiler that the event is asynchronous. staging.py begins an
Event for each call while a profiler is on. `PcclWork.wait` also waits for the end of the event, so
that the profile has the event once `wait` has returned.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch._C import _distributed_c10d
from torch.autograd import profiler
from torch.futures import Future

from pccl_py import Group, Outcome, PcclError, Work
from pccl_torch.errors import torch_error

# Half of torch.autograd and torch.ops has no types.
_autograd: Any = torch.autograd
_ops: Any = torch.ops


def profiler_is_on() -> bool:
    """Whether a profiler is on in some thread of this process."""
    return profiler._is_profiler_enabled


class Event:
    """A profiler event of a collective, which begins on the thread that makes this object."""

    def __init__(self, name: str, tensors: Sequence[Tensor]) -> None:
        self._thread = threading.get_ident()
        self._over: Any = Future()
        # Disabled, as subclasses of Tensor, such as DTensor, would intercept the two calls.
        with torch._C.DisableTorchFunctionSubclass():
            record = _autograd._record_function_with_args_enter(name, *tensors)
            # Ends the record, with its thread's profiler state, on the thread that sets `_over`.
            self._ended: Any = _ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(
                record, self._over
            )

    def end_with(self, work: PcclWork) -> None:
        """Ends the event when the operation of `work` is done."""
        work._event = self
        work._work.add_done_callback(lambda _: self._end())

    def _end(self) -> None:
        if threading.get_ident() == self._thread:
            threading.Thread(target=self.end).start()
        else:
            self.end()

    def end(self) -> None:
        """Ends the event on this thread; called once."""
        self._over.set_result(None)

    def wait(self) -> None:
        """Waits until the event has ended."""
        self._ended.wait()


# The stubs of torch.distributed describe C++ types, without subclasses and their overrides.
dist: Any = torch.distributed
# The stubs of _distributed_c10d lack names that exist.
native: Any = _distributed_c10d

_NEVER = timedelta(0)


class PcclWork(dist.Work):  # type: ignore[misc]  # of type Any
    """An operation that has begun. Any thread may use it.

    The operation goes on if the program drops its PcclWork. `get_future()` has the outputs, or the
    error, which C++ (DDP) sees as a RuntimeError with the same text; `wait` raises the error
    itself.
    """

    def __init__(
        self,
        group: Group,
        work: Work[Any],
        outputs: Sequence[Tensor],
        source: int = -1,
        failed: Callable[[PcclError], None] | None = None,
    ) -> None:
        """`failed` is called with the operation's error before `wait` raises it, perhaps often."""
        super().__init__()
        self._group = group
        self._work = work
        self._outputs = outputs
        self._source = source
        self._lock = threading.Lock()
        self._future: Any = None
        # The profiler's event of this operation, if a profiler is on.
        self._event: Event | None = None
        self._failed = failed
        if failed is not None:
            work.add_done_callback(lambda _: self.exception())

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the operation is done, and returns True, or raises its error.

        Raises TimeoutError after a `timeout` above zero; the operation goes on.
        """
        try:
            self._work.wait(timeout.total_seconds() if timeout > _NEVER else None)
        except PcclError as error:
            raise self._error(error) from None
        finally:
            if self._event is not None and self._work.done():
                self._event.wait()
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would not block: the operation has failed, or its outputs are filled."""
        if not self._work.done():
            return False
        with contextlib.suppress(Exception):  # `wait` raises the operation's error
            self._work.wait()
        return True

    def is_over(self) -> bool:
        """Whether the operation has ended, though its outputs may be filled only in `wait`."""
        return self._work.done()

    def is_success(self) -> bool:
        """Whether the operation is done, and has not failed."""
        return self.is_completed() and self._work.exception() is None

    def exception(self) -> Exception | None:
        """The error of an operation that is done and has failed, or None. Never blocks.

        The error is a PcclError, unless a device has failed (staging.py).
        """
        if not self._work.done():
            return None
        error: Exception | None = self._work.exception()
        return self._error(error) if isinstance(error, PcclError) else error

    def result(self) -> list[Tensor]:
        """Waits for the operation, and returns its outputs."""
        self.wait()
        return list(self._outputs)

    @property
    def outcome(self) -> Outcome:
        """The contributors of each range, and the operation's cost. Waits, and raises as `wait`."""
        self.wait()
        return self._work.outcome

    def synchronize(self) -> None:
        """Waits for the operation, as `wait`."""
        self.wait()

    def source_rank(self) -> int:
        """The rank that sent a received tensor; -1 for other operations."""
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def boxed(self) -> Any:
        """The Work as a ScriptObject, for operators of PyTorch."""
        return kept(self).boxed()

    def get_future(self) -> Any:
        """A `torch.futures.Future` of the list of outputs."""
        with self._lock:
            if self._future is not None:
                return self._future
            # C++ sees an exception that a callback raises, but not one set with set_exception.
            trigger: Any = Future()
            future = self._future = trigger.then(self._value)
        self._work.add_done_callback(lambda _: trigger.set_result(None))
        return future

    def _value(self, _: object) -> list[Tensor]:
        self.wait()
        return list(self._outputs)

    def _error(self, error: PcclError) -> PcclError:
        made = torch_error(error, self._group)
        if self._failed is not None and self._work.done():
            self._failed(made)
        return made


class _Giver(dist.ProcessGroup):  # type: ignore[misc]  # of type Any
    """A process group whose `barrier` returns an existing Work: C++ calls it, and so keeps both."""

    def __init__(self, work: PcclWork) -> None:
        super().__init__(0, 1)
        self._work = work

    def barrier(self, _: Any) -> PcclWork:
        return self._work


def kept(work: PcclWork) -> Any:
    """A Work of C++ that keeps `work` alive, and passes `wait` and `get_future` on to it."""
    return dist.ProcessGroup.barrier(_Giver(work))


def _keep_for_reducers() -> None:
    """Makes DDP's Reducer in C++ keep the Python object of a Work that DDP.join passes to it.

    No other function of PyTorch keeps the C++ object of a Work alone; a test checks them all.
    """
    hand_over = native.Reducer._set_forward_pass_work_handle

    @functools.wraps(hand_over)
    def call(reducer: Any, work: Any, use_static_world_size: bool) -> None:
        work = kept(work) if isinstance(work, PcclWork) else work
        hand_over(reducer, work, use_static_world_size)

    native.Reducer._set_forward_pass_work_handle = call


_keep_for_reducers()
