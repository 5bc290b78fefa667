"""PcclWork: an operation in flight as torch.distributed has it.

It wraps a `pccl_py.Work`, which waits and reports; here are the Future that DDP and functional
collectives take, and errors in words and classes of PyTorch (errors.py). backend.py makes it.

A Work that is written in Python has a half in C++, which can do nothing without it: where C++ keeps
that half alone, its `wait` waits for ever. Where C++ itself calls a collective of ours, it keeps
the whole Work. A PcclWork that Python hands to C++ goes there as `kept`, a Work of C++ that has it.

An Event is one of torch.profiler, as gloo's: "pccl:all_reduce", with the shapes of its tensors. It
begins with the call of a collective, and ends when the operation is done, on another thread: by
that the profiler knows that it is asynchronous. staging.py begins one for each call while a
profiler is on. The Work waits for the end of its event, so that the event is whole for whoever has
waited for the Work.
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

# Half of them have no types.
_autograd: Any = torch.autograd
_ops: Any = torch.ops


def profiler_is_on() -> bool:
    """Whether a profiler is on, in whatever thread of this process."""
    return profiler._is_profiler_enabled


class Event:
    """An event that has begun in this thread, which the profiler of this thread shows."""

    def __init__(self, name: str, tensors: Sequence[Tensor]) -> None:
        self._thread = threading.get_ident()
        self._over: Any = Future()
        # No subclass of Tensor, such as a DTensor, sees the two calls.
        with torch._C.DisableTorchFunctionSubclass():
            record = _autograd._record_function_with_args_enter(name, *tensors)
            # Ends the record where `_over` is set, with what the profiler keeps by threads.
            self._ended: Any = _ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(
                record, self._over
            )

    def end_with(self, work: PcclWork) -> None:
        """Ends it when the operation is done."""
        work._event = self
        work._work.add_done_callback(lambda _: self._end())

    def _end(self) -> None:
        if threading.get_ident() == self._thread:
            threading.Thread(target=self.end).start()
        else:
            self.end()

    def end(self) -> None:
        """Ends it in this thread, once."""
        self._over.set_result(None)

    def wait(self) -> None:
        """Until it has ended."""
        self._ended.wait()


# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed
# Its types do not have all that there is.
native: Any = _distributed_c10d

_NEVER = timedelta(0)


class PcclWork(dist.Work):  # type: ignore[misc]  # of type Any
    """An operation that was begun. Any thread may use it.

    It goes on if the program drops it. `get_future()` has the outputs, or the error: what C++ (DDP)
    sees of it is a RuntimeError with its text, what `wait` raises is the error itself.
    """

    def __init__(
        self,
        group: Group,
        work: Work[Any],
        outputs: Sequence[Tensor],
        source: int = -1,
        failed: Callable[[PcclError], None] | None = None,
    ) -> None:
        """`failed` is called with the error, before any `wait` raises it; perhaps repeatedly."""
        super().__init__()
        self._group = group
        self._work = work
        self._outputs = outputs
        self._source = source
        self._lock = threading.Lock()
        self._future: Any = None
        # That of a profiler.
        self._event: Event | None = None
        self._failed = failed
        if failed is not None:
            work.add_done_callback(lambda _: self.exception())

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the operation is done, and returns True, or raises its error.

        After `timeout`, if it is above zero, raises TimeoutError, and the operation goes on.
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
        """Whether `wait` would not block. Then the outputs are there, or it has failed."""
        if not self._work.done():
            return False
        with contextlib.suppress(Exception):  # which `wait` raises
            self._work.wait()
        return True

    def is_over(self) -> bool:
        """The same, though the outputs may not be there yet: who asks for them fills them."""
        return self._work.done()

    def is_success(self) -> bool:
        """Whether it is done, and has not failed."""
        return self.is_completed() and self._work.exception() is None

    def exception(self) -> Exception | None:
        """The error of an operation that is done and has failed, or None. Never blocks.

        It is a PcclError, unless a device has failed (staging.py).
        """
        if not self._work.done():
            return None
        error: Exception | None = self._work.exception()
        return self._error(error) if isinstance(error, PcclError) else error

    def result(self) -> list[Tensor]:
        """The outputs of an operation that is done."""
        self.wait()
        return list(self._outputs)

    @property
    def outcome(self) -> Outcome:
        """The contributors of each range, and the cost. Waits, and raises as `wait`."""
        self.wait()
        return self._work.outcome

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def source_rank(self) -> int:
        """The rank that a received tensor has come from."""
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def boxed(self) -> Any:
        """A ScriptObject of it, for operators of PyTorch."""
        return kept(self).boxed()

    def get_future(self) -> Any:
        """A `torch.futures.Future` of the list of outputs."""
        with self._lock:
            if self._future is not None:
                return self._future
            # An exception that is set is none to C++. One that a callback raises is.
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
    """A process group whose only call returns a Work that there is already."""

    def __init__(self, work: PcclWork) -> None:
        super().__init__(0, 1)
        self._work = work

    def barrier(self, _: Any) -> PcclWork:
        return self._work


def kept(work: PcclWork) -> Any:
    """A Work of C++ that keeps `work`, and waits and has a Future as it does."""
    return dist.ProcessGroup.barrier(_Giver(work))


def _keep_for_reducers() -> None:
    """DDP.join hands the Work of an all_reduce to its Reducer in C++, and drops it.

    No other function of PyTorch's keeps a Work without its half in Python; a test looks at all.
    """
    hand_over = native.Reducer._set_forward_pass_work_handle

    @functools.wraps(hand_over)
    def call(reducer: Any, work: Any, use_static_world_size: bool) -> None:
        work = kept(work) if isinstance(work, PcclWork) else work
        hand_over(reducer, work, use_static_world_size)

    native.Reducer._set_forward_pass_work_handle = call


_keep_for_reducers()
