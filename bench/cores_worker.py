"""One process of the benchmark of cores: it calls each library in turn, and tells what it took.

It owns the calls; the plan and what samples come to are in `cores.py`, the clock and the meeting of
the processes in `loopback_worker.py`.
"""

from __future__ import annotations

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

import pccl_py as pccl
from bench import common
from bench.loopback_libraries import Case, Gloo, Job, Meeting, Pccl
from bench.loopback_worker import CODEC_ERROR_MAX, Line, Sample, fill, in_turn, meet, timed, told
from bench.tcp_ring import TcpRing

PREFIX = "workers="
Bits = NDArray[Any]


@dataclass(frozen=True)
class Kind:
    """An all_reduce to measure. The size is that of its elements, whatever their dtype."""

    dtype: Literal["f32", "bf16"]
    codec: Literal["none", "int8"]
    op: Literal["sum", "avg"]

    @property
    def name(self) -> str:
        """As in the name of a row's case."""
        return f"{self.dtype}/{self.codec}"


KINDS = [Kind("f32", "none", "sum"), Kind("f32", "int8", "sum"), Kind("bf16", "none", "avg")]


class Library(Protocol):
    """A measured library."""

    def offer(self) -> Meeting: ...
    def connect(self, meeting: Meeting) -> None: ...
    def barrier(self) -> None: ...
    def reduce(self, kind: Kind, values: Bits) -> None: ...
    def close(self) -> None: ...


class Ours(Pccl):
    """Ours with so many workers; each number of them has a run of its own."""

    def __init__(self, job: Job, workers: int) -> None:
        super().__init__(job)
        self._workers = workers

    def offer(self) -> Meeting:
        return {f"token/{self._workers}": token for token in super().offer().values()}

    def connect(self, meeting: Meeting) -> None:
        os.environ["PCCL_WORKERS"] = str(self._workers)
        super().connect({"token": meeting[f"token/{self._workers}"]})

    def reduce(self, kind: Kind, values: Bits) -> None:
        dtype = pccl.DType[kind.dtype.upper()]
        buffer = pccl.Buffer(values.ctypes.data, len(values), dtype, owner=values)
        self._comm.all_reduce(buffer, op=kind.op, codec=kind.codec)


class GlooReduce(Gloo):
    """The baseline, which has no codec, and no average."""

    def reduce(self, kind: Kind, values: Bits) -> None:
        tensor = self._torch.from_numpy(values)
        if kind.dtype == "bf16":
            tensor = tensor.view(self._torch.bfloat16)
        self._dist.all_reduce(tensor)
        if kind.op == "avg":
            tensor.div_(self._job.world)


class Streams:
    """The ceiling: the bytes of a ring over bare sockets, one and a thread for it on each core."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rings = [TcpRing() for _ in range(job.cores)]
        self._threads = ThreadPoolExecutor(job.cores)

    def offer(self) -> Meeting:
        return {"tcp_port": [ring.port for ring in self._rings]}

    def connect(self, meeting: Meeting) -> None:
        following = meeting["tcp_ports"][(self._job.rank + 1) % self._job.world]
        for ring, port in zip(self._rings, following, strict=True):
            ring.connect(port, self._job.world)

    def barrier(self) -> None:
        self._rings[0].barrier()

    def reduce(self, kind: Kind, values: Bits) -> None:
        share = values.nbytes // len(self._rings)
        for moved in [self._threads.submit(ring.exchange, share) for ring in self._rings]:
            moved.result()

    def close(self) -> None:
        self._threads.shutdown()
        for ring in self._rings:
            ring.close()


def library(name: str, job: Job) -> Library:
    """By its name in the plan."""
    if name.startswith(PREFIX):
        return Ours(job, int(name.removeprefix(PREFIX)))
    return GlooReduce(job) if name == "gloo" else Streams(job)


def calls(names: list[str]) -> dict[str, tuple[str, Kind]]:
    """Library and kind, by the key of their samples. A stream has no kind: it moves bytes."""
    return {
        f"{name}/{kind.name}": (name, kind)
        for kind in KINDS
        for name in names
        if name.startswith(PREFIX)
        or (name == "gloo" and kind.codec == "none")
        or (name == "tcp" and kind is KINDS[0])
    }


class Worker:
    """One process: its libraries, and the one buffer that all of them use."""

    def __init__(self, job: Job, libraries: dict[str, Library]) -> None:
        self._job, self._libraries = job, libraries
        self._bytes = np.ones(max(case.size for case in job.cases), np.uint8)
        rng = np.random.default_rng(job.rank)
        self._fresh = rng.random(1 << 16, np.float32) / 2 + np.float32(0.5)

    def measure(self, case: Case) -> dict[str, list[Sample]]:
        """Samples of every call, taken in turn."""
        planned = calls(self._job.libraries)
        for name, kind in planned.values():
            self._check(name, kind, case)
        return in_turn(list(planned), case, lambda key: self._sample(*planned[key], case))

    def _values(self, kind: Kind, case: Case) -> Bits:
        """bf16 as its bits, the upper half of those of f32."""
        return self._bytes[: case.size].view(np.float32 if kind.dtype == "f32" else np.uint16)

    def _sample(self, name: str, kind: Kind, case: Case) -> Sample:
        values = self._values(kind, case)
        fill(values, self._fresh if kind.dtype == "f32" else self._fresh.view(np.uint16)[1::2])
        self._libraries[name].barrier()
        return timed(lambda: self._libraries[name].reduce(kind, values), case)

    def _check(self, name: str, kind: Kind, case: Case) -> None:
        """A library that is fast and wrong must not get a row."""
        if name == "tcp":
            return
        values, own = self._values(kind, case), np.array([self._job.rank + 1], np.float32)
        values[:] = own if kind.dtype == "f32" else own.view(np.uint16)[1]
        self._libraries[name].reduce(kind, values)
        total = self._job.world * (self._job.world + 1) / 2
        expected = total / self._job.world if kind.op == "avg" else total
        wide = values if kind.dtype == "f32" else (values.astype(np.uint32) << 16).view(np.float32)
        lost = 0.0 if kind.codec == "none" else CODEC_ERROR_MAX
        if not (abs(wide - expected) <= lost * expected).all():
            raise RuntimeError(f"{name} gave a wrong {kind.op} of {kind.name}")


def main() -> None:
    """Meets the others, measures, and tells."""
    job = Job.from_json(sys.argv[1])
    os.sched_setaffinity(0, common.cores_of(job.rank, job.world, job.cores))
    with socket.create_connection(("127.0.0.1", job.port)) as connection:
        line = Line(connection, job.rank)
        libraries = {name: library(name, job) for name in job.libraries}
        meet(libraries.values(), line)
        worker = Worker(job, libraries)
        for case in job.cases:
            line.tell(told(worker.measure(case)))
        for each in libraries.values():
            each.close()


if __name__ == "__main__":
    main()
