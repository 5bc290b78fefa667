"""One process of the loopback benchmark: it holds all libraries at once and measures them in turn.

It owns the measuring: what is called, in what order, and when the clock runs. What the numbers of
all processes come to is `loopback.py`'s matter, which starts this and talks to it in JSON lines:

    here  -> there  {"token": ..., "store_port": ..., "tcp_port": ...}    where the others find us
    there -> here   {"token": ..., "store_port": ..., "tcp_ports": [...]} where we find the others
    here  -> there  {"library": ..., "size": ..., "samples": [...]}       one line per case
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import pccl_py as pccl
from bench import common
from bench.tcp_ring import TcpRing

Meeting = dict[str, Any]
Values = NDArray[np.float32]

# What is measured, all of it in place; the first with a ceiling and its memory as well.
COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "reduce"]
ROOT = 0

# Of equal elements: four bits, rounded to nearest, twice.
CODEC_ERROR_MAX = 0.3


@dataclass(frozen=True)
class Case:
    """One size: how many calls a sample times, and how many samples are taken."""

    size: int
    iterations: int
    samples: int


@dataclass(frozen=True)
class Job:
    """What one process shall do. `purpose`: "time", or "memory" (then with one library alone)."""

    purpose: str
    rank: int
    world: int
    libraries: list[str]
    cases: list[Case]
    codecs: list[str] = field(default_factory=list)
    collectives: list[str] = field(default_factory=lambda: COLLECTIVES[:1])

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "cases": [Case(**case) for case in fields["cases"]]})


@dataclass(frozen=True)
class Sample:
    """One sample of one process: seconds on a clock all share, CPU seconds of all its threads."""

    begin: float
    end: float
    cpu: float


class Library(Protocol):
    """What is measured. Each is made first, tells where it can be found, then connects."""

    def offer(self) -> Meeting: ...
    def connect(self, meeting: Meeting) -> None: ...
    def barrier(self) -> None: ...
    def call(self, collective: str, values: Values) -> None: ...
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

    def call(self, collective: str, values: Values, codec: str = "none") -> None:
        if collective == "all_reduce":
            self._comm.all_reduce(values, codec=codec)
        elif collective == "reduce_scatter":
            self._comm.reduce_scatter(values, shard_of(self._job, values), codec=codec)
        elif collective == "all_gather":
            self._comm.all_gather(shard_of(self._job, values), values, codec=codec)
        else:
            self._comm.reduce(values, root=ROOT, codec=codec)

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

    def call(self, collective: str, values: Values) -> None:
        self._plain.call(collective, values, self._codec)

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

    def call(self, collective: str, values: Values) -> None:
        whole = self._torch.from_numpy(values)
        if collective == "all_reduce":
            self._dist.all_reduce(whole)
            return
        if collective == "reduce":
            self._dist.reduce(whole, ROOT)
            return
        shard = self._torch.from_numpy(shard_of(self._job, values))
        if collective == "reduce_scatter":
            self._dist.reduce_scatter_single(shard, whole)
        else:
            self._dist.all_gather_single(whole, shard)

    def close(self) -> None:
        self._dist.destroy_process_group()


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

    def call(self, collective: str, values: Values) -> None:
        self._ring.exchange(values.nbytes)

    def close(self) -> None:
        self._ring.close()


def shard_of(job: Job, values: Values) -> Values:
    """The part of this rank."""
    count = len(values) // job.world
    return values[job.rank * count : (job.rank + 1) * count]


LIBRARIES: dict[str, type[Pccl] | type[Gloo] | type[Tcp]] = {"pccl": Pccl, "gloo": Gloo, "tcp": Tcp}


class Worker:
    """One process: its libraries, and the one buffer that all of them use."""

    def __init__(self, job: Job, libraries: dict[str, Library]) -> None:
        self._job = job
        self._libraries = libraries
        largest = max(case.size for case in job.cases)
        self._values = np.ones(largest // 4, np.float32)
        # In [0.5, 1): the sum of a few dozen calls in place stays far from overflow and denormals.
        rng = np.random.default_rng(job.rank)
        self._fresh = rng.random(1 << 16, np.float32) / 2 + np.float32(0.5)

    def measure_time(self, case: Case) -> dict[str, list[Sample]]:
        """Samples of each library, taken in turn, so that all see the same moods of the machine."""
        calls = [(name, COLLECTIVES[0]) for name in self._libraries]
        compared = [name for name in self._libraries if name != "tcp"]
        calls += [
            (name, collective)
            for collective in self._job.collectives
            if collective != COLLECTIVES[0]
            for name in compared
        ]
        samples: dict[str, list[Sample]] = {key_of(*call): [] for call in calls}
        for call in calls:
            self._check(*call, case)
            self._sample(*call, case)  # warm-up
        order = calls
        for _ in range(case.samples):
            for call in order:
                samples[key_of(*call)].append(self._sample(*call, case))
            order = [*order[1:], order[0]]
        return samples

    def measure_memory(self, case: Case, name: str, idle_bytes: int) -> int:
        """The most that this size took beside the idle process and the buffer itself."""
        common.peak_memory_reset()
        self._check(name, COLLECTIVES[0], case)
        self._sample(name, COLLECTIVES[0], case)
        return common.peak_memory_bytes() - idle_bytes

    def _values_of(self, collective: str, case: Case) -> Values:
        """As many as the size has, or a few less, so that the shards of all ranks are equal."""
        count = case.size // 4
        if collective in ("reduce_scatter", "all_gather"):
            count -= count % self._job.world
        return self._values[:count]

    def _sample(self, name: str, collective: str, case: Case) -> Sample:
        library, values = self._libraries[name], self._values_of(collective, case)
        for begin in range(0, len(values), len(self._fresh)):
            part = values[begin : begin + len(self._fresh)]
            part[:] = self._fresh[: len(part)]
        library.barrier()
        cpu, begin_time = time.process_time(), time.monotonic()
        for _ in range(case.iterations):
            library.call(collective, values)
        return Sample(begin_time, time.monotonic(), time.process_time() - cpu)

    def _check(self, name: str, collective: str, case: Case) -> None:
        """A library that is fast and wrong must not get a row."""
        if name == "tcp":
            return
        job, values = self._job, self._values_of(collective, case)
        values[:] = job.rank + 1
        self._libraries[name].call(collective, values)
        expected: Any = job.world * (job.world + 1) / 2
        result = values
        if collective == "reduce_scatter":
            result = shard_of(job, values)
        elif collective == "all_gather":
            expected = np.arange(1, job.world + 1)[:, None]
            result = values.reshape(job.world, -1)
        elif collective == "reduce" and job.rank != ROOT:
            return
        lost = CODEC_ERROR_MAX if name in job.codecs else 0.0
        if not (abs(result - expected) <= lost * expected).all():
            raise RuntimeError(f"{name} gave a wrong {collective} at {case.size} bytes")


def main() -> None:
    """Meets the others, measures, and tells."""
    job = Job.from_json(sys.argv[1])
    os.sched_setaffinity(0, common.cores_of(job.rank, job.world))
    libraries: dict[str, Library] = {name: LIBRARIES[name](job) for name in job.libraries}
    ours = libraries.get("pccl")
    if isinstance(ours, Pccl):
        libraries.update({codec: Encoded(ours, codec) for codec in job.codecs})
    offer: Meeting = {}
    for library in libraries.values():
        offer.update(library.offer())
    tell(offer)
    meeting = json.loads(sys.stdin.readline())
    for library in libraries.values():
        library.connect(meeting)

    worker = Worker(job, libraries)
    for library in libraries.values():
        library.barrier()
    idle_bytes = common.memory_bytes()
    for case in job.cases:
        if job.purpose == "memory":
            (name,) = job.libraries
            tell({"library": name, "peak": worker.measure_memory(case, name, idle_bytes)})
            continue
        samples = worker.measure_time(case)
        tell({name: [asdict(sample) for sample in samples[name]] for name in samples})
    for library in libraries.values():
        library.close()


def key_of(library: str, collective: str) -> str:
    """Where the samples of a collective are in a report; those of all_reduce, under the library."""
    return library if collective == COLLECTIVES[0] else f"{library}/{collective}"


def tell(report: dict[str, Any]) -> None:
    """One line to the process that started this one."""
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
