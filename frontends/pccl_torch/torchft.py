"""ProcessGroupPccl: the process group of torchft, a group of pccl for each of its quorums.

    group = pccl_torch.torchft.ProcessGroupPccl(timeout=timedelta(seconds=30))
    manager = torchft.Manager(pg=group, ...)
    ddp = pccl_torch.torchft.DistributedDataParallel(manager, model)

torchft chooses the replicas of a quorum, repairs newcomers, and decides whether a step counts. This
module makes a group for each quorum. A loss in the group raises an error, or leaves sums that are
scaled for the remaining replicas. backend.py has the collectives; the store carries the run's
token, as in start.py. docs/guides/TORCH.md says which calls raise and which go on.

This module needs torchft, a nightly or 0.2: pip install torchft.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed
from torch import Tensor

from pccl_py import (
    Codec,
    CodecKind,
    Communicator,
    Coordinator,
    Group,
    Outcome,
    PcclError,
    Plan,
    ReduceOp,
    Work,
)
from pccl_py.codec import CodecName
from pccl_py.errors import InvalidArgument, InvalidUsage
from pccl_py.words import PlanName, parse_op
from pccl_torch import backend, quorum
from pccl_torch.options import Options
from pccl_torch.start import await_others, share_token
from pccl_torch.work import PcclWork

try:
    from torchft import ddp, process_group
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pccl_torch.torchft needs torchft: pip install torchft", name=error.name
    ) from error

# The stubs of these describe C++ types, without subclasses and overrides, or do not exist.
dist: Any = torch.distributed
Wrapper: Any = process_group.ProcessGroupWrapper
Parallel: Any = ddp.DistributedDataParallel

_TIMEOUT = timedelta(seconds=60)
_NAME = "pccl/group"
_RECOVERIES = ("complete", "resume")


class _Quorum(backend.ProcessGroupPccl):
    """The group of one quorum, which all of its replicas have entered.

    `participants`: returns how many replicas contribute to averages now; None: sums may not lack a
    lost replica.
    """

    def __init__(
        self,
        comm: Communicator,
        options: Options,
        store: Any,
        participants: Callable[[], int] | None,
    ) -> None:
        super().__init__(
            comm, comm.members, comm.rank, comm.name, options, store, lambda: comm.close()
        )
        self._participants = participants
        self._failure: Exception | None = None
        # Operations in flight, also those whose Works the program has dropped.
        self._flying: list[PcclWork] = []

    def errored(self) -> Exception | None:
        """The error of the first operation of the quorum that has failed, or None."""
        with self._lock:
            for work in self._flying:
                if self._failure is None and work.is_completed():
                    self._failure = work.exception()
            return self._failure

    def _keep(self, work: PcclWork) -> PcclWork:
        self.errored()  # notes a failure before the operations that are done are dropped
        with self._lock:
            self._flying[:] = [one for one in self._flying if not one.is_over()]
            self._flying.append(work)
        return work

    def _begin(
        self,
        call: str,
        *given: Any,
        outputs: Sequence[Tensor],
        fill: Callable[[], None] | None = None,
        deadline: timedelta | None = None,
        **options: Any,
    ) -> PcclWork:
        resumes = call == "all_reduce" and self._resumes(parse_op(options["op"]), outputs)
        if resumes:
            options["recovery"] = "resume"
        with self._lock:
            work = super()._begin(
                call, *given, outputs=outputs, fill=fill, deadline=deadline, **options
            )
            if not resumes or parse_op(options["op"]) == ReduceOp.AVG:
                return work  # an average is already over the contributors
            self._flying.remove(work)
            return self._keep(_Scaled(self.comm, work._work, outputs, self.size()))

    def _resumes(self, op: ReduceOp, tensors: Sequence[Tensor]) -> bool:
        """Whether a reduction may go on without a lost replica: a sum or average of floats.

        All replicas of the quorum must participate: while a replica is being repaired, or is a
        spare, it is not known whether a lost replica was to contribute.
        """
        return (
            self._participants is not None
            and op in (ReduceOp.SUM, ReduceOp.AVG)
            and all(x.is_floating_point() for x in tensors)
            and self._participants() == self.size()
        )


class _Scaled(PcclWork):
    """A sum that may lack members; `wait` scales it to a sum of `planned` members, once."""

    def __init__(
        self, group: Group, work: Work[Any], outputs: Sequence[Tensor], planned: int
    ) -> None:
        super().__init__(group, work, outputs)
        self._planned = planned
        self._scaling = threading.Lock()
        self._is_scaled = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the operation is done, and returns True, or raises its error."""
        super().wait(timeout)
        with self._scaling:
            if not self._is_scaled:
                _scale(self._outputs, self._work.outcome, self._planned)
                self._is_scaled = True
        return True


class ProcessGroupPccl(Wrapper):  # type: ignore[misc]  # of type Any
    """The process group of a `torchft.Manager`: it makes a group of pccl for each quorum.

    With PCCL_TOKEN in the environment the groups are in the token's run, so that the coordinator
    survives the loss of any replica. Otherwise rank 0 of each quorum starts a coordinator for it.

    `timeout`: the time that making a group, or an operation without a timeout of its own, may take.
    `recovery`: what the loss of a replica does. "complete": operations raise `PeerLost` on the
    other replicas, torchft does not commit the step, and the next quorum lacks the lost replica.
    "resume": an all_reduce of floats goes on, and its sum is multiplied by planned over
    contributing replicas, so that torchft's average is over the contributors, and the step is
    committed; all other operations behave as with "complete". "resume" needs `participants`, which
    returns the number that torchft divides by, `lambda: manager.num_participants()`. If this number
    is not the size of the quorum (a replica is being repaired, or is a spare), a loss is treated as
    with "complete".
    `codec` and `plan` are as in `Options`.

    Raises InvalidArgument for a value that is none of these.
    """

    def __init__(
        self,
        timeout: timedelta = _TIMEOUT,
        *,
        recovery: str = "complete",
        participants: Callable[[], int] | None = None,
        codec: Codec | CodecKind | CodecName = "none",
        plan: Plan | PlanName = "auto",
    ) -> None:
        if recovery not in _RECOVERIES:
            raise InvalidArgument(
                f"recovery of a group of torchft must be one of {', '.join(_RECOVERIES)}, not "
                f"{recovery!r}"
            )
        if (recovery == "resume") != (participants is not None):
            raise InvalidArgument(
                "recovery='resume' needs participants=lambda: manager.num_participants(), and "
                "nothing else takes it: sums are scaled only where all replicas participate"
            )
        super().__init__(timeout)
        self._options = Options(codec=codec, plan=plan)
        self._participants = participants
        self._coordinator: Coordinator | None = None
        self._failure: Exception | None = None
        self._limit = timeout
        _made.add(self)

    # ---- what torchft asks of a group

    def getBackendName(self) -> str:
        """The name of the backend, "torchft-pccl"."""
        return "torchft-pccl"

    _device_types = backend.ProcessGroupPccl._device_types

    @property
    def parent(self) -> backend.ProcessGroupPccl:
        """The group of the current quorum. Raises InvalidUsage if there is no quorum."""
        if self._pg is None:
            raise InvalidUsage(
                "the process group has no quorum yet, or was aborted: torchft.Manager makes one at "
                "the next start_quorum()"
            ) from self._failure
        return self._pg  # type: ignore[no-any-return]

    def rank(self) -> int:
        """The rank of this replica in the quorum."""
        return self.parent.rank()

    def reconfigure(self, opts: Any) -> Any:
        """Leaves the current group, and enters that of a new quorum; torchft's nightlies call it.

        Operations in flight end with Cancelled. Returns when all replicas of the quorum have
        entered. Raises DeadlineExceeded, CoordinatorUnreachable and errors of the store.
        """
        self._limit = self._timeout if opts.timeout is None else min(opts.timeout, self._timeout)
        return super().reconfigure(opts)

    def _opts_hook(self, opts: Any) -> Any:
        """Makes AllreduceOptions of an op: torchft calls reductions with options or with an op."""
        if not isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return opts
        options = dist.AllreduceOptions()
        options.reduceOp = opts
        return options

    def _create_pg(self, store: Any, rank: int, world_size: int) -> _Quorum:
        """Enters a quorum's group, after `reconfigure` (0.2: `configure`) has left the last one."""
        self._failure = None
        # Other replicas, which may still leave the last group, need its coordinator.
        before, self._coordinator = self._coordinator, None
        try:
            return self._enter(store, rank, world_size)
        finally:
            if before is not None:
                before.close()

    def _enter(self, store: Any, rank: int, world_size: int) -> _Quorum:
        limit = min(self._limit, self._timeout)
        until = time.monotonic() + limit.total_seconds()
        store.set_timeout(limit)
        token, name = os.environ.get("PCCL_TOKEN", "").strip(), "torchft"
        shared = bool(token)
        if shared:
            name = _agree(store, rank)
        else:
            host = socket.gethostname()
            self._coordinator, token = share_token(store, rank, world_size, host)
        comm = quorum.enter(token, name, rank, world_size, until, coordinator_stays=shared)
        made = _Quorum(comm, self._options, store, self._participants)
        made.set_timeout(self._timeout)
        return made

    def errored(self) -> Exception | None:
        """The first error of an operation in this quorum, or what aborted it, or None."""
        return self._failure if self._pg is None else self._pg.errored()

    def abort(self, errored: bool = True) -> None:
        """Leaves the quorum. Operations in flight end with Cancelled. Idempotent."""
        if self._pg is not None and errored:
            self._failure = self._pg.errored() or _aborted()
        super().abort(errored)

    def shutdown(self) -> None:
        """Leaves the quorum for good. Idempotent.

        If this process has the quorum's coordinator, waits at most 10 s for the other replicas to
        leave: a replica may still wait for the decision on its last operation.
        """
        _made.discard(self)
        self.abort(errored=False)
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            await_others(coordinator)
            coordinator.close()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time that making a group, or a later operation without a timeout, may take."""
        super().set_timeout(timeout)
        self._limit = timeout
        if self._pg is not None:
            self._pg.set_timeout(timeout)


def _average(state: Any, bucket: Any) -> Any:
    """The hook of DDP: the average of a bucket; after a failure, the bucket's memory as it is."""
    work = state.allreduce(bucket.buffer())
    if work.wait():
        future = work.get_future()
        return getattr(future, "_fut", None) or future
    # The manager has noted the error, so it does not commit the step with these gradients.
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


_average.__annotations__.clear()  # PyTorch would take annotations as text for wrong types


class DistributedDataParallel(Parallel):  # type: ignore[misc]  # of type Any
    """The wrapper of torchft, with a `backward` that survives the loss of a replica.

    The wrapper of torchft 0.2.0 raises AssertionError after a failed all_reduce, over any process
    group of the CPU: it asks the work for a future that exists only after success. This wrapper
    averages as the wrapper of torchft's nightlies does, which does not ask for that future.
    """

    _comm_hook = staticmethod(_average)


_made: weakref.WeakSet[ProcessGroupPccl] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """Calls shutdown() for a program that ends without it, as most programs do."""
    for group in list(_made):
        group.shutdown()


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: ProcessGroupPccl, *args: Any, **options: Any) -> Any:
        return getattr(self.parent, name)(*args, **options)

    call.__name__ = name
    call.__doc__ = getattr(backend.ProcessGroupPccl, name).__doc__
    return call


# torchft's wrapper lacks these collectives. PyTorch looks for them in the class.
for _name in (
    "reduce",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "_reduce_scatter_base",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "_allgather_base",
    "gather",
    "scatter",
    "alltoall",
    "all_to_all_single",
    "monitored_barrier",
    "recv_anysource",
):
    setattr(ProcessGroupPccl, _name, _passed_on(_name))


def _scale(tensors: Sequence[Tensor], outcome: Outcome, planned: int) -> None:
    """Multiplies each range of the tensors by `planned` divided by its number of contributors."""
    lacking = [part for part in outcome.ranges if 0 < len(part.contributors) < planned]
    behind = 0
    for tensor in tensors if lacking else ():
        begin, behind = behind, behind + tensor.numel()
        values = tensor.detach()
        flat = values.reshape(-1)
        for part in lacking:
            first, last = max(part.begin, begin), min(part.end, behind)
            if first < last:
                flat[first - begin : last - begin] *= planned / len(part.contributors)
        if flat.data_ptr() != values.data_ptr():
            values.copy_(flat.view(values.shape))


def _agree(store: Any, rank: int) -> str:
    """The name for a quorum's group: rank 0 makes it, and the store tells the other ranks."""
    if rank != 0:
        return str(store.get(_NAME).decode())
    name = f"torchft/{secrets.token_hex(8)}"
    store.set(_NAME, name)
    return name


def _aborted() -> PcclError:
    return InvalidUsage("the process group was aborted: the next quorum makes another group")
