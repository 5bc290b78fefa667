"""The libraries that the loopback benchmark compares: how each calls each collective.

It owns a class for each library, and the plan of a process that calls them (Job). When they are
called is `loopback_worker.py`'s matter; the names of the collectives, and how ours are called, are
in `pccl_py/measure_collectives.py`.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

import pccl_py as pccl
from bench.tcp_ring import TcpRing
from pccl_py import measure_collectives
from pccl_py.measure_collectives import COLLECTIVES, ROOT, SHARDED, partner_of

Meeting = dict[str, Any]
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """One size: how many calls a sample times, and how many samples are taken."""

    size: int
    iterations: int
    samples: int


@dataclass(frozen=True)
class Job:
    """The task of one process. `purpose`: "time", or "memory" (then with one library alone), or
    "memory_apart", with ours alone and results of all_reduce in another array.

    `port`: where the process that started this one listens. `cores`: how many it may use; 0: its
    share of them all.
    """

    purpose: str
    rank: int
    world: int
    libraries: list[str]
    cases: list[Case]
    port: int
    codecs: list[str] = field(default_factory=list)
    collectives: list[str] = field(default_factory=lambda: COLLECTIVES[:1])
    cores: int = 0

    def is_apart(self, collective: str) -> bool:
        """Whether the result arrives in another array."""
        return collective == "all_to_all" or self.purpose == "memory_apart"

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "cases": [Case(**case) for case in fields["cases"]]})


class Library(Protocol):
    """A measured library. Each is made first, tells where it can be found, then connects."""

    def offer(self) -> Meeting: ...
    def connect(self, meeting: Meeting) -> None: ...
    def barrier(self) -> None: ...
    def call(self, collective: str, values: Values, other: Values) -> Values | None:
        """In place in `values`, but for what arrives in `other` (Job.is_apart).

        Returns where the result of this rank is; None where it gets none.
        """

    def close(self) -> None: ...


class Pccl:
    """Ours. The coordinator is in the process of rank 0, as gloo's store is, so its CPU counts."""

    def __init__(self, job: Job) -> None:
        self._job, self._coordinator = job, None
        if job.rank == 0:
            self._coordinator = pccl.Coordinator(initial_world_size=job.world)

    def offer(self) -> Meeting:
        return {} if self._coordinator is None else {"token": self._coordinator.token}

    def connect(self, meeting: Meeting) -> None:
        # Ranks are in the order of ids: ours are those of the others.
        own = pccl.PeerId((1 + self._job.rank).to_bytes(16))
        self._comm = pccl.connect(meeting["token"], bind="127.0.0.1:0", peer_id=own)
        self._comm.admit()

    def barrier(self) -> None:
        self._comm.barrier()

    def call(
        self, collective: str, values: Values, other: Values, codec: Any = "none"
    ) -> Values | None:
        shard = shard_of(self._job, values)
        send = shard if collective in ("all_gather", "gather") else values
        recv = shard if collective in ("reduce_scatter", "scatter") else values
        measure_collectives.call(
            self._comm,
            collective,
            send,
            other if self._job.is_apart(collective) else recv,
            codec=codec,
        )
        return result_of(self._job, collective, values, other)

    def close(self) -> None:
        self._comm.close()
        if self._coordinator is not None:
            self._coordinator.close()


class Encoded:
    """Ours with a codec, over the communicator of ours without one."""

    def __init__(self, plain: Pccl, codec: str) -> None:
        self._plain, self._codec = plain, codec

    def offer(self) -> Meeting:
        return {}

    def connect(self, meeting: Meeting) -> None:
        """The other has."""

    def barrier(self) -> None:
        self._plain.barrier()

    def call(self, collective: str, values: Values, other: Values) -> Values | None:
        return self._plain.call(collective, values, other, self._codec)

    def close(self) -> None:
        """The other does."""


class Gloo:
    """The baseline: PyTorch's gloo on the same interface."""

    def __init__(self, job: Job) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        # Not at the top of the file: torch may be absent, and is where memory is measured for ours.
        torch = importlib.import_module("torch")
        dist = importlib.import_module("torch.distributed")
        torch.set_num_threads(1)
        self._torch, self._dist, self._job = torch, dist, job
        self._store = None
        if job.rank == 0:
            self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def offer(self) -> Meeting:
        return {} if self._store is None else {"store_port": self._store.port}

    def connect(self, meeting: Meeting) -> None:
        store = self._store or self._dist.TCPStore("127.0.0.1", meeting["store_port"])
        self._dist.init_process_group(
            "gloo", store=store, rank=self._job.rank, world_size=self._job.world
        )

    def barrier(self) -> None:
        self._dist.barrier()

    def call(self, collective: str, values: Values, other: Values) -> Values | None:
        dist, job = self._dist, self._job
        whole = self._torch.from_numpy(values)
        shards = list(whole.chunk(job.world)) if collective in SHARDED else []
        listed = shards if job.rank == ROOT else None
        if collective == "all_reduce":
            dist.all_reduce(whole)
        elif collective == "reduce":
            dist.reduce(whole, ROOT)
        elif collective == "broadcast":
            dist.broadcast(whole, ROOT)
        elif collective == "reduce_scatter":
            dist.reduce_scatter_single(shards[job.rank], whole)
        elif collective == "all_gather":
            dist.all_gather_single(whole, shards[job.rank])
        elif collective == "scatter":
            dist.scatter(shards[job.rank], listed, ROOT)
        elif collective == "gather":
            dist.gather(shards[job.rank], listed, ROOT)
        elif collective == "all_to_all":
            dist.all_to_all_single(self._torch.from_numpy(other), whole)
        else:
            pass_on(job, whole, dist.send, dist.recv)
        return result_of(job, collective, values, other)

    def close(self) -> None:
        self._dist.destroy_process_group()


class Mpi:
    """The baseline of what gloo does not have: MPI, through mpi4py, over TCP as the others.

    Its processes are those that mpiexec started; it needs no meeting.
    """

    # Without these MPICH goes through shared memory, which no two machines have.
    ENVIRONMENT: ClassVar = {
        "MPIR_CVAR_NOLOCAL": "1",
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "lo",
    }

    def __init__(self, job: Job) -> None:
        mpi4py = importlib.import_module("mpi4py")
        mpi4py.rc.thread_level = "funneled"  # others have threads here, and do not call it
        self._mpi: Any = importlib.import_module("mpi4py.MPI")
        self._job, self._comm = job, self._mpi.COMM_WORLD
        if (self._comm.rank, self._comm.size) != (job.rank, job.world):
            raise RuntimeError(
                f"rank {self._comm.rank} of {self._comm.size} in MPI is to be {job.rank} of "
                f"{job.world}: mpiexec and mpi4py are of different installations"
            )

    def offer(self) -> Meeting:
        return {}

    def connect(self, meeting: Meeting) -> None:
        """mpiexec has."""

    def barrier(self) -> None:
        self._comm.Barrier()

    def call(self, collective: str, values: Values, other: Values) -> Values | None:
        comm, job, in_place = self._comm, self._job, self._mpi.IN_PLACE
        shard, at_root = shard_of(job, values), job.rank == ROOT
        if collective == "all_reduce":
            comm.Allreduce(in_place, values)
        elif collective == "reduce":
            comm.Reduce(in_place if at_root else values, values if at_root else None, root=ROOT)
        elif collective == "broadcast":
            comm.Bcast(values, ROOT)
        elif collective == "reduce_scatter":
            comm.Reduce_scatter_block(in_place, values)
            return values[: len(shard)]  # where MPI puts it
        elif collective == "all_gather":
            comm.Allgather(in_place, values)
        elif collective == "scatter":
            comm.Scatter(values if at_root else None, in_place if at_root else shard, ROOT)
        elif collective == "gather":
            comm.Gather(in_place if at_root else shard, values if at_root else None, ROOT)
        elif collective == "all_to_all":
            comm.Alltoall(values, other)
        else:
            pass_on(job, values, comm.Send, comm.Recv)
        return result_of(job, collective, values, other)

    def close(self) -> None:
        self._mpi.Finalize()


class Tcp:
    """The ceiling: the bytes of a ring over bare sockets."""

    def __init__(self, job: Job) -> None:
        self._ring, self._job = TcpRing(), job

    def offer(self) -> Meeting:
        return {"tcp_port": self._ring.port}

    def connect(self, meeting: Meeting) -> None:
        next_port = meeting["tcp_ports"][(self._job.rank + 1) % self._job.world]
        self._ring.connect(next_port, self._job.world)

    def barrier(self) -> None:
        self._ring.barrier()

    def call(self, collective: str, values: Values, other: Values) -> Values | None:
        self._ring.exchange(values.nbytes)
        return values

    def close(self) -> None:
        self._ring.close()


def shard_of(job: Job, values: Values) -> Values:
    """The part of this rank."""
    count = len(values) // job.world
    return values[job.rank * count : (job.rank + 1) * count]


def pass_on(
    job: Job, array: Any, send: Callable[[Any, int], object], recv: Callable[[Any, int], object]
) -> None:
    """A message from each even rank to the next."""
    partner = partner_of(job.rank, job.world)
    if partner is not None:
        (recv if job.rank % 2 else send)(array, partner)


def result_of(job: Job, collective: str, values: Values, other: Values) -> Values | None:
    """Where the result of this rank is."""
    if not measure_collectives.receives(collective, job.rank, job.world):
        return None
    if collective in ("reduce_scatter", "scatter"):
        return shard_of(job, values)
    return other if job.is_apart(collective) else values


LIBRARIES: dict[str, type[Pccl] | type[Gloo] | type[Mpi] | type[Tcp]] = {
    "pccl": Pccl,
    "gloo": Gloo,
    "mpi4py": Mpi,
    "tcp": Tcp,
}
