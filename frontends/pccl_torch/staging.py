"""Staging: collectives of tensors on a CUDA device, through pinned memory of the CPU.

`staged` wraps the collectives of ProcessGroupPccl (backend.py), which know CPU tensors only. A call
with tensors of a device begins to copy what it reads, behind all that the caller has asked of the
device, and returns. A thread of the group waits for the copies and calls the collective for their
twins on the CPU, in the order of the calls; calls of the group that need no copy, its safe point
and syncs of its states wait until those before them have begun (`drain`, `drain_of`). Once that is
done the results go back, and then the Work is done: whatever waits for it finds them in the
device's memory, on any stream.

An all_reduce of a large tensor goes in pieces, so that one travels while the next is copied. All
pieces arrive before any is written back: after an error the tensors are as they were. If the device
itself fails, this process leaves the group, and the others need not wait for it.

The protocol `Device` is all that is asked of a device: `Cuda` here, a double in the tests.
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
"""Bytes of a piece of an all_reduce; at 25 GB/s to the CPU a piece is there in less than 1 ms."""

# Half of it has no types.
_cuda: Any = torch.cuda

Method: TypeAlias = Callable[..., Any]
Class = TypeVar("Class", bound=type)


class Mark(Protocol):
    """A point in the line of a device's copies."""

    def wait(self) -> None:
        """Returns once all before it is done. Raises RuntimeError if the device has failed."""


class Device(Protocol):
    """A line of copies beside whatever the program has the device do."""

    def follow(self) -> None:
        """Copies from now on come after all that the calling thread has asked of the device."""

    def twin(self, x: Tensor) -> Tensor:
        """Memory of the CPU of the shape and the dtype of `x`, to be copied to and from."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Begins a copy, behind those before it. Both tensors must live until it is done."""

    def mark(self) -> Mark:
        """The point behind all copies so far."""


class Cuda:
    """A CUDA device: a stream of its own, pinned memory, events. Raises RuntimeError without."""

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
    """An operation on twins, for PcclWork: as much of a `pccl_py.Work` as that asks for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def wait(self, timeout: float | None = None) -> None:
        """Until the results are in the device's memory. Raises the error, or TimeoutError."""
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
        """Once."""
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
        # Calls whose collectives have not begun.
        self.waiting = 0
        self._own: int | None = None
        self._none_waiting = threading.Condition(self._lock)

    def drain(self) -> None:
        """Returns once all calls before have begun, so that members see calls in one order."""
        if self.waiting and threading.get_ident() != self._own:
            with self._lock:
                self._none_waiting.wait_for(lambda: not self.waiting)

    def close(self) -> None:
        """Ends the thread; calls that wait are begun, and raise what a group says that is over."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    def device(self, where: torch.device) -> Device:
        """The line of copies of a device. Raises RuntimeError for one that is not CUDA."""
        with self._lock:
            known = self._devices.get(where)
            if known is None:
                known = self._devices[where] = DEVICES(where)
            return known

    def begin(self, plan: Plan, group: Any, method: Method) -> Staged:
        """Copies what `plan` reads, and lets the thread call the collective for each piece."""
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
        except Exception as refused:  # noqa: BLE001  for whoever waits
            error = refused
        with self._lock:
            self.waiting -= 1
            self._none_waiting.notify_all()
        ending = _Ending(len(begun) + 1, functools.partial(self._end, plan, begun, operation))
        for work in begun:
            work._work.add_done_callback(lambda _: ending.one())
        ending.one(error)

    def _wait(self, mark: Mark) -> None:
        """Others would wait for a process whose device has failed: it leaves."""
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
        except Exception as failed:  # noqa: BLE001  for whoever waits
            error = error or failed
        operation.end(error)


class _Ending:
    """Calls `end` when so many parts are over, with the first error that one has told."""

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


# Stagers by their groups, which are not kept for it.
_stagers: weakref.WeakKeyDictionary[Group, weakref.ref[Stager]] = weakref.WeakKeyDictionary()


def stages_for(stager: Stager, comm: Group) -> None:
    """The calls of a process group go to `comm` from now on."""
    _stagers[comm] = weakref.ref(stager)


def drain_of(comm: Group) -> None:
    """`Stager.drain` for the process group of `comm`, if it has one."""
    known = _stagers.get(comm)
    stager = None if known is None else known()
    if stager is not None:
        stager.drain()


class Piece(NamedTuple):
    """A call of the collective: its arguments, with twins; (to, from) of copies, before, after."""

    arguments: tuple[Any, ...]
    reads: list[tuple[Tensor, Tensor]]
    writes: list[tuple[Tensor, Tensor]]


class Plan(NamedTuple):
    """A call with tensors of a device."""

    device: Device
    pieces: list[Piece]
    options: dict[str, Any]
    outputs: list[Tensor]


# Which of the first arguments of a collective are read, and which are written.
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
# How the names of methods begin, and the name of their events (work.py).
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
    """Wraps the collectives of a class of process groups, which has `_stager`."""
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
    """The twins and the copies of a call. Raises what is wrong with a tensor, before any copy."""
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
    """All members split alike: by the size alone, if no member has it in another layout."""
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
    """Whether its memory is a device's. Those of "meta" have none, and the CPU's errors."""
    return not x.is_cpu and x.device.type != "meta"


def device_of(where: torch.device) -> Device:
    """The line of copies of a device. Raises RuntimeError for a kind that is not known."""
    if where.type != "cuda":
        raise RuntimeError(
            f"the tensor is on {where}: pccl takes tensors of the CPU and of CUDA; pass x.cpu()"
        )
    return Cuda(where)


DEVICES: Callable[[torch.device], Device] = device_of
"""Makes what a device is driven by; tests put a double here."""
