"""Staging: collectives of tensors on a CUDA device, through pinned memory of the CPU.

`staged` wraps the collectives of ProcessGroupPccl (backend.py), which take CPU tensors only. A call
with tensors of a device begins to copy its inputs, after the earlier work of the caller's CUDA
stream, and returns. A thread of the group waits for the copies and calls the collective for the
twins (copies on the CPU), in the order of the calls. Calls without copies, the safe point and syncs
of shared states wait until earlier calls have begun (`drain`, `drain_of`). When the collective is
done, its results are copied to the device. Only then the Work is done, so after `wait` the results
are in the device's memory, for any stream.

An all_reduce of a large tensor is cut into pieces, so that one piece travels while the next is
copied. Results are copied back only when all pieces have arrived: after an error the tensors are as
they were. If the device itself fails, this process leaves the group, so that no member waits for
it.

The protocol `Device` has all that staging needs of a device: `Cuda`, or a double in the tests.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from pccl_py import Group
from pccl_torch.tensors import check_dtype, check_written
from pccl_torch.work import Event, PcclWork, profiler_is_on

PIECE_BYTES = 16 << 20
"""Bytes of a piece of an all_reduce; at 25 GB/s a piece is copied to the CPU in less than 1 ms."""

# Half of torch.cuda has no types.
_cuda: Any = torch.cuda

Method: TypeAlias = Callable[..., Any]
Class = TypeVar("Class", bound=type)


class Mark(Protocol):
    """A point in the queue of a device's copies."""

    def wait(self) -> None:
        """Waits until all copies before the mark are done; RuntimeError if the device failed."""


class Device(Protocol):
    """A queue of copies to and from a device, beside the program's own work on the device."""

    def follow(self) -> None:
        """Orders later copies after all work that the calling thread has given the device."""

    def twin(self, x: Tensor) -> Tensor:
        """A new CPU tensor with the shape and the dtype of `x`, for copies to and from `x`."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queues a copy. Both tensors must live until the copy is done."""

    def mark(self) -> Mark:
        """Marks the end of the queue: the mark is reached when all copies so far are done."""


class Cuda:
    """A CUDA device with a stream for copies, pinned memory, events; RuntimeError without CUDA."""

    def __init__(self, device: torch.device) -> None:
        if not _cuda.is_available():
            raise RuntimeError(
                f"tensors of {device} need CUDA, which this PyTorch has not, or no device of it is "
                "there: pass tensors of the CPU"
            )
        self._device = device
        self._stream: Any = _cuda.Stream(device)

    def follow(self) -> None:
        self._stream.wait_stream(_cuda.current_stream(self._device))

    def twin(self, x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=True)

    def copy(self, target: Tensor, source: Tensor) -> None:
        written = torch.inference_mode(target.is_inference())
        with _cuda.stream(self._stream), written, torch.no_grad():
            target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        event = _cuda.Event()
        event.record(self._stream)
        return _CudaMark(event)


class _CudaMark(NamedTuple):
    event: Any

    def wait(self) -> None:
        self.event.synchronize()


class Staged:
    """An operation on twins, with the methods of a `pccl_py.Work` that PcclWork calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the results are in the device's memory. Raises the error, or TimeoutError."""
        if not self._over.wait(timeout):
            raise TimeoutError(f"the operation is not done after {timeout} s")
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return self._over.is_set()

    def exception(self) -> Exception | None:
        self._over.wait()
        return self._error

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        with self._lock:
            if not self._over.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def end(self, error: Exception | None) -> None:
        """Ends the operation, with `error` if it failed, and calls its callbacks; called once."""
        with self._lock:
            self._error = error
            self._over.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Stager:
    """The staging of one group. `leave` is called if the device fails."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._lock = threading.Lock()
        self._devices: dict[torch.device, Device] = {}
        self._thread: ThreadPoolExecutor | None = None
        # Number of calls whose collectives have not begun.
        self.waiting = 0
        # The id of the staging thread, which must not wait for itself.
        self._own: int | None = None
        self._none_waiting = threading.Condition(self._lock)

    def drain(self) -> None:
        """Waits until all earlier calls have begun, so that members see calls in one order."""
        if self.waiting and threading.get_ident() != self._own:
            with self._lock:
                self._none_waiting.wait_for(lambda: not self.waiting)

    def close(self) -> None:
        """Ends the thread after the waiting calls, which begin, and fail as the group is left."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    def device(self, where: torch.device) -> Device:
        """The queue of copies of a device. Raises RuntimeError for a device that is not CUDA."""
        with self._lock:
            known = self._devices.get(where)
            if known is None:
                known = self._devices[where] = DEVICES(where)
            return known

    def begin(self, plan: Plan, group: Any, method: Method) -> Staged:
        """Queues the copies that `plan` reads, and has the thread call the collective by pieces."""
        operation = Staged()
        plan.device.follow()
        marks = []
        for piece in plan.pieces:
            for twin, x in piece.reads:
                plan.device.copy(twin, x)
            marks.append(plan.device.mark())
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="pccl-staging")
            self.waiting += 1
            self._thread.submit(self._call, plan, marks, group, method, operation)
        return operation

    def _call(
        self, plan: Plan, marks: list[Mark], group: Any, method: Method, operation: Staged
    ) -> None:
        self._own = threading.get_ident()
        begun: list[PcclWork] = []
        error: Exception | None = None
        try:
            for piece, mark in zip(plan.pieces, marks, strict=True):
                self._wait(mark)
                begun.append(method(group, *piece.arguments, **plan.options))
        except Exception as refused:  # noqa: BLE001  `Staged.wait` raises it
            error = refused
        with self._lock:
            self.waiting -= 1
            self._none_waiting.notify_all()
        ending = _Ending(len(begun) + 1, functools.partial(self._end, plan, begun, operation))
        for work in begun:
            work._work.add_done_callback(lambda _: ending.one())
        ending.one(error)

    def _wait(self, mark: Mark) -> None:
        """Waits for copies; if the device fails, leaves the group, so that no member waits."""
        try:
            mark.wait()
        except BaseException:
            self._leave()
            raise

    def _end(
        self, plan: Plan, begun: list[PcclWork], operation: Staged, error: Exception | None
    ) -> None:
        try:
            for work in begun:
                work.wait()
            if error is None:
                plan.device.follow()
                for piece in plan.pieces:
                    for x, twin in piece.writes:
                        plan.device.copy(x, twin)
                self._wait(plan.device.mark())
        except Exception as failed:  # noqa: BLE001  `Staged.wait` raises it
            error = error or failed
        operation.end(error)


class _Ending:
    """Calls `end` with the first error of a part, or None, when `parts` parts have ended."""

    def __init__(self, parts: int, end: Callable[[Exception | None], None]) -> None:
        self._lock = threading.Lock()
        self._left = parts
        self._end = end
        self._error: Exception | None = None

    def one(self, error: Exception | None = None) -> None:
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        self._end(self._error)


# The Stager of each group; both are held weakly.
_stagers: weakref.WeakKeyDictionary[Group, weakref.ref[Stager]] = weakref.WeakKeyDictionary()


def stages_for(stager: Stager, comm: Group) -> None:
    """Registers `stager` as the Stager of the process group that makes its calls in `comm`."""
    _stagers[comm] = weakref.ref(stager)


def drain_of(comm: Group) -> None:
    """Calls `Stager.drain` for the process group of `comm`, if `comm` has one."""
    known = _stagers.get(comm)
    stager = None if known is None else known()
    if stager is not None:
        stager.drain()


class Piece(NamedTuple):
    """One call of the collective for a piece, and the copies (to, from) before and after it."""

    arguments: tuple[Any, ...]  # with twins in the place of tensors
    reads: list[tuple[Tensor, Tensor]]
    writes: list[tuple[Tensor, Tensor]]


class Plan(NamedTuple):
    """A call with tensors of a device, cut into pieces; `outputs`: the tensors that it writes."""

    device: Device
    pieces: list[Piece]
    options: dict[str, Any]
    outputs: list[Tensor]


# For each collective, whether its first arguments are read ("r"), written ("w") or both.
_BOTH = ("rw",)
_APART = ("w", "r")
HOW: dict[str, tuple[str, ...]] = {
    "allreduce": _BOTH,
    "allreduce_coalesced": _BOTH,
    "average": _BOTH,
    "reduce": _BOTH,
    "broadcast": _BOTH,
    "allgather": _APART,
    "allgather_coalesced": _APART,
    "all_gather_single": _APART,
    "all_gather_single_coalesced": _APART,
    "_allgather_base": _APART,
    "allgather_into_tensor_coalesced": _APART,
    "reduce_scatter": _APART,
    "reduce_scatter_single": _APART,
    "reduce_scatter_single_coalesced": _APART,
    "_reduce_scatter_base": _APART,
    "reduce_scatter_tensor_coalesced": _APART,
    "gather": _APART,
    "gather_single": _APART,
    "scatter": _APART,
    "alltoall": _APART,
    "alltoall_base": _APART,
    "all_to_all_single": _APART,
    "send": ("r",),
    "recv": ("w",),
    "barrier": (),
}
# The name of the profiler's event (work.py) by the first letters of the method's name.
_EVENTS = {
    "allreduce": "all_reduce",
    "average": "all_reduce",
    "allgather": "all_gather",
    "_allgather": "all_gather",
    "all_gather": "all_gather",
    "_reduce_scatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "gather": "gather",
}


def staged(group: Class) -> Class:
    """Makes the collectives of the class `group`, which has `_stager`, take device tensors."""
    for name, how in HOW.items():
        setattr(group, name, _staged(getattr(group, name), name, how))
    return group


def _staged(method: Method, name: str, how: tuple[str, ...]) -> Method:
    title = next((title for start, title in _EVENTS.items() if name.startswith(start)), name)

    def begin(group: Any, x: Tensor | None, arguments: Any, options: dict[str, Any]) -> Any:
        if x is None or not is_accelerated(x):
            return method(group, *arguments, **options)
        stager: Stager = group._stager
        plan = plan_of(stager.device(x.device), name, how, arguments, options)
        operation: Any = stager.begin(plan, group, method)
        return group._keep(PcclWork(group.comm, operation, plan.outputs))

    @functools.wraps(method)
    def call(group: Any, *arguments: Any, **options: Any) -> Any:
        x = _first(arguments[: len(how)])
        other = None if x is None else group._beside.of(x)
        if other is not None:
            return getattr(other, name)(*arguments, **options)
        if not profiler_is_on():
            return begin(group, x, arguments, options)
        read = [given for given, kind in zip(arguments, how, strict=False) if "r" in kind]
        event = Event(f"pccl:{title}", list(_tensors(read or list(arguments[:1]))))
        try:
            work = begin(group, x, arguments, options)
        except BaseException:
            event.end()
            raise
        event.end_with(work)
        return work

    return call


def plan_of(
    device: Device, name: str, how: tuple[str, ...], given: tuple[Any, ...], options: dict[str, Any]
) -> Plan:
    """Makes the twins of a call and lists its copies; raises for a bad tensor before any copy."""
    where, outputs = None, []
    for argument, kind in zip(given, how, strict=False):
        for x in _tensors(argument):
            where = x.device if where is None else where
            _check(x, where, name, "w" in kind)
            if "w" in kind:
                outputs.append(x)
    if name in ("allreduce", "allreduce_coalesced") and len(outputs) == 1:
        parts = _split(outputs[0])
        pieces = [_piece(device, ([part], *given[1:]), how) for part in parts]
    else:
        pieces = [_piece(device, given, how)]
    return Plan(device, pieces, options, outputs)


def _piece(device: Device, given: tuple[Any, ...], how: tuple[str, ...]) -> Piece:
    reads: list[tuple[Tensor, Tensor]] = []
    writes: list[tuple[Tensor, Tensor]] = []

    def replaced(argument: Any, kind: str) -> Any:
        if not isinstance(argument, Tensor):
            return [replaced(each, kind) for each in argument]
        twin, x = device.twin(argument), argument.detach()
        if "r" in kind:
            reads.append((twin, x))
        if "w" in kind:
            writes.append((x, twin))
        return twin

    taken = [replaced(argument, kind) for argument, kind in zip(given, how, strict=False)]
    return Piece((*taken, *given[len(how) :]), reads, writes)


def _split(x: Tensor) -> Sequence[Tensor]:
    """Cuts `x` into pieces by size alone, so that all members cut alike; refuses other layouts."""
    count = PIECE_BYTES // x.element_size()
    if x.numel() <= count:
        return [x]
    if not x.is_contiguous():
        raise RuntimeError(
            f"an all_reduce of more than {PIECE_BYTES >> 20} MiB on {x.device} needs a contiguous "
            "tensor: pass x.contiguous()"
        )
    return torch.split(x.detach().view(-1), count)


def _check(x: Tensor, where: torch.device, name: str, is_written: bool) -> None:
    if x.device != where:
        raise RuntimeError(
            f"{name} has tensors on {where} and on {x.device}: those of one call must be on one"
        )
    if x.layout != torch.strided or x.is_quantized or x.is_nested:
        raise NotImplementedError(
            f"the tensor on {x.device} is not dense: pass its parts, or x.to_dense()"
        )
    check_dtype(x.dtype, adds=False)
    if is_written:
        check_written(x)


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _tensors(each)


def _first(arguments: tuple[Any, ...]) -> Tensor | None:
    for argument in arguments:
        while isinstance(argument, list | tuple) and argument:
            argument = argument[0]
        if isinstance(argument, Tensor):
            return argument
    return None


def is_accelerated(x: Tensor) -> bool:
    """Whether the memory of `x` is a device's; "meta" tensors are left to the CPU's errors."""
    return not x.is_cpu and x.device.type != "meta"


def device_of(where: torch.device) -> Device:
    """Makes the queue of copies of a device. Raises RuntimeError for a device but CUDA."""
    if where.type != "cuda":
        raise RuntimeError(
            f"the tensor is on {where}: pccl takes tensors of the CPU and of CUDA; pass x.cpu()"
        )
    return Cuda(where)


DEVICES: Callable[[torch.device], Device] = device_of
"""Makes the Device that copies to and from a device; tests put a double here."""
