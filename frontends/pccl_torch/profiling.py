"""Events of torch.profiler, as gloo's: "pccl:all_reduce", with the shapes of its tensors.

An event begins with the call of a collective, and ends when the operation is done, on another
thread: by that the profiler knows that it is asynchronous. staging.py begins one for each call
while a profiler is on. The Work (work.py) waits for the end of its event, so that the event is
whole for whoever has waited for the Work.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import profiler
from torch.futures import Future

if TYPE_CHECKING:
    from pccl_torch.work import PcclWork

# Half of them have no types.
_autograd: Any = torch.autograd
_ops: Any = torch.ops


def is_on() -> bool:
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
