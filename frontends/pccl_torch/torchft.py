"""ProcessGroupPccl: the process group of torchft, a group of pccl for each of its quorums.

    group = pccl_torch.torchft.ProcessGroupPccl(timeout=timedelta(seconds=30))
    manager = torchft.Manager(pg=group, ...)
    ddp = pccl_torch.torchft.DistributedDataParallel(manager, model)

torchft decides who is in a quorum, repairs newcomers, and says whether a step counts. Here each
quorum gets a group, and losses become errors in it, or sums that are right without the lost. The
collectives are those of backend.py; the token of a run goes through the store as in start.py.
docs/guides/TORCH.md has what is raised and what goes on.

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

# They have types of C++, or none, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed
Wrapper: Any = process_group.ProcessGroupWrapper
Parallel: Any = ddp.DistributedDataParallel

_TIMEOUT = timedelta(seconds=60)
_NAME = "pccl/group"
_RECOVERIES = ("complete", "resume")


class _Quorum(backend.ProcessGroupPccl):
    """The group of one quorum, which was entered by all of its replicas.

    `participants`: how many of them contribute to averages now, if sums may lack a lost one.
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
        # Operations in flight, whoever drops their Works.
        self._flying: list[PcclWork] = []

    def errored(self) -> Exception | None:
        """The error of the first operation that is done and has failed."""
        with self._lock:
            for work in self._flying:
                if self._failure is None and work.is_completed():
                    self._failure = work.exception()
            return self._failure

    def _keep(self, work: PcclWork) -> PcclWork:
        self.errored()  # those that are done are forgotten now
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
                return work  # an average is over those that have contributed already
            self._flying.remove(work)
            return self._keep(_Scaled(self.comm, work._work, outputs, self.size()))

    def _resumes(self, op: ReduceOp, tensors: Sequence[Tensor]) -> bool:
        """Sums of floats go on without a lost replica, if all contribute to the average.

        While one is being repaired, or is a spare, nobody knows whether the lost one was to
        contribute: then, and for other ops, all of them must be there.
        """
        return (
            self._participants is not None
            and op in (ReduceOp.SUM, ReduceOp.AVG)
            and all(x.is_floating_point() for x in tensors)
            and self._participants() == self.size()
        )


class _Scaled(PcclWork):
    """A sum that may lack members: it is made what it would be over all with the same mean."""

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

    With PCCL_TOKEN in the environment the groups are in that run, so that the loss of no replica
    takes the coordinator along. Otherwise rank 0 of each quorum starts a coordinator for it.

    `timeout`: what making a group may take, and each operation that names no timeout.
    `recovery`: what the loss of a replica does. "complete": operations raise `PeerLost` on all
    others, torchft does not commit the step, and the next quorum is without it. "resume": an
    all_reduce of floats goes on, and its sum is scaled by planned over contributing replicas, so
    that the average that torchft makes of it is over the contributors, and the step is committed;
    all other operations are as with "complete". It needs `participants`, which returns the number
    that torchft divides by, `lambda: manager.num_participants()`: if that is not the size of the
    quorum (a replica is being repaired, or is a spare), a loss is as with "complete".
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
        """ "torchft-pccl"."""
        return "torchft-pccl"

    _device_types = backend.ProcessGroupPccl._device_types

    @property
    def parent(self) -> backend.ProcessGroupPccl:
        """The group of the quorum. Raises InvalidUsage if there is none."""
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
        """Leaves the group there was, and enters that of a new quorum: for the nightlies.

        Operations that are in flight end with Cancelled. Returns when all replicas of the quorum
        are in it. Raises DeadlineExceeded, CoordinatorUnreachable and errors of the store.
        """
        self._limit = self._timeout if opts.timeout is None else min(opts.timeout, self._timeout)
        return super().reconfigure(opts)

    def _opts_hook(self, opts: Any) -> Any:
        """torchft has reductions called with an op, too."""
        if not isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return opts
        options = dist.AllreduceOptions()
        options.reduceOp = opts
        return options

    def _create_pg(self, store: Any, rank: int, world_size: int) -> _Quorum:
        """Both `reconfigure` and `configure` (0.2) call it, once the group there was is left."""
        self._failure = None
        # Those who still leave that group need it.
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
        """Leaves the quorum. Operations in flight end with Cancelled. Twice is once."""
        if self._pg is not None and errored:
            self._failure = self._pg.errored() or _aborted()
        super().abort(errored)

    def shutdown(self) -> None:
        """Leaves the quorum for good. Twice is once.

        If its coordinator is here, waits for the other replicas to leave, 10 s at most: one may
        still wait for the decision on its last operation.
        """
        _made.discard(self)
        self.abort(errored=False)
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            await_others(coordinator)
            coordinator.close()

    def set_timeout(self, timeout: timedelta) -> None:
        """Limits the making of a group, and each later operation that names no timeout."""
        super().set_timeout(timeout)
        self._limit = timeout
        if self._pg is not None:
            self._pg.set_timeout(timeout)


def _average(state: Any, bucket: Any) -> Any:
    """The hook of DDP: the average of the bucket, or what is there after a failure."""
    work = state.allreduce(bucket.buffer())
    if work.wait():
        future = work.get_future()
        return getattr(future, "_fut", None) or future
    # The manager knows the error, so the step is not committed, and the gradients do not count.
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


_average.__annotations__.clear()  # PyTorch looks at them, and takes their text for a wrong type


class DistributedDataParallel(Parallel):  # type: ignore[misc]  # of type Any
    """The wrapper of torchft, with a `backward` that outlives the loss of a replica.

    In torchft 0.2.0 it fails with an AssertionError where an all_reduce has failed, over any
    process group of the CPU: it asks the work for a future that is made only when the work has
    succeeded. The nightlies are right, and there this one does the same as theirs.
    """

    _comm_hook = staticmethod(_average)


_made: weakref.WeakSet[ProcessGroupPccl] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """A program that ends without shutdown() leaves as if it had called it: most do."""
    for group in list(_made):
        group.shutdown()


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: ProcessGroupPccl, *args: Any, **options: Any) -> Any:
        return getattr(self.parent, name)(*args, **options)

    call.__name__ = name
    call.__doc__ = getattr(backend.ProcessGroupPccl, name).__doc__
    return call


# torchft's wrapper passes on what its own backends have. PyTorch asks the class for these names.
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
    """Multiplies each range of the tensors by planned over contributing members."""
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
    """A name for the group of a quorum, made by rank 0."""
    if rank != 0:
        return str(store.get(_NAME).decode())
    name = f"torchft/{secrets.token_hex(8)}"
    store.set(_NAME, name)
    return name


def _aborted() -> PcclError:
    return InvalidUsage("the process group was aborted: the next quorum makes another group")
