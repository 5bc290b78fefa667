"""One process of the loopback benchmark: it holds all libraries at once and measures them in turn.

It owns the measuring: in what order the libraries are called, and when the clock runs. How each is
called is told in `loopback_libraries.py`. The numbers of all processes are put together by
`loopback.py`, which starts this and talks to it in JSON lines, over a connection to a port
of its own, as those that mpiexec starts have no standard input:

    here  -> there  1                                                     our rank
    here  -> there  {"token": ..., "store_port": ..., "tcp_port": ...}    where the others find us
    there -> here   {"token": ..., "store_port": ..., "tcp_ports": [...]} where we find the others
    here  -> there  {"library": ..., "size": ..., "samples": [...]}       one line per case
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bench import common
from bench.loopback_libraries import LIBRARIES, Case, Encoded, Job, Library, Meeting, Pccl, Values
from pccl_py.measure_collectives import COLLECTIVES, ROOT, SHARDED, encodes

# For equal elements: four bits, rounded to nearest, twice.
CODEC_ERROR_MAX = 0.3


@dataclass(frozen=True)
class Sample:
    """One sample of one process: seconds on a clock all share, CPU seconds of all its threads."""

    begin: float
    end: float
    cpu: float


class Worker:
    """One process: its libraries, and the one buffer that all of them use."""

    def __init__(self, job: Job, libraries: dict[str, Library]) -> None:
        self._job = job
        self._libraries = libraries
        largest = max(case.size for case in job.cases)
        self._values = np.ones(largest // 4, np.float32)
        # Where what is not done in place arrives.
        is_needed = any(map(job.is_apart, job.collectives))
        self._other = np.ones(largest // 4 if is_needed else 0, np.float32)
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
            if name not in self._job.codecs or encodes(collective)
        ]
        for call in calls:
            self._check(*call, case)
        keyed = {key_of(*call): call for call in calls}
        return in_turn(list(keyed), case, lambda key: self._sample(*keyed[key], case))

    def measure_memory(self, case: Case, name: str, idle_bytes: int) -> int:
        """The most that this size took beside the idle process and the buffer itself."""
        self._check(name, COLLECTIVES[0], case)  # a first call; its own arrays are gone afterwards
        common.peak_memory_reset()
        self._sample(name, COLLECTIVES[0], case)
        return common.peak_memory_bytes() - idle_bytes

    def _values_of(self, collective: str, case: Case) -> Values:
        """As many as the size has, or a few less, so that the shards of all ranks are equal."""
        count = case.size // 4
        if collective in SHARDED:
            count -= count % self._job.world
        return self._values[:count]

    def _call(self, name: str, collective: str, values: Values) -> Values | None:
        return self._libraries[name].call(collective, values, self._other[: len(values)])

    def _sample(self, name: str, collective: str, case: Case) -> Sample:
        library, values = self._libraries[name], self._values_of(collective, case)
        fill(values, self._fresh)
        library.barrier()
        return timed(lambda: self._call(name, collective, values), case)

    def _check(self, name: str, collective: str, case: Case) -> None:
        """A library that is fast and wrong must not get a row."""
        if name == "tcp":
            return
        job, values = self._job, self._values_of(collective, case)
        ranks, own = np.arange(job.world, dtype=np.float32), np.float32(job.rank)
        # This rank has a number for each rank's shard, and must get one from each.
        values[:] = own + 1
        if collective in SHARDED:
            values.reshape(job.world, -1)[:] += ranks[:, None] * job.world
        summed = np.float32(job.world * (job.world + 1) / 2)
        expected: Any = {
            "all_reduce": summed,
            "reduce": summed,
            "broadcast": ROOT + 1,
            "send_recv": own,  # the rank before ours has one less
            "reduce_scatter": summed + own * job.world**2,
            "scatter": ROOT + 1 + own * job.world,
            "all_gather": (ranks + 1 + ranks * job.world)[:, None],
            "gather": (ranks + 1 + ranks * job.world)[:, None],
            "all_to_all": (ranks + 1 + own * job.world)[:, None],
        }[collective]
        result = self._call(name, collective, values)
        if result is None:
            return
        if np.ndim(expected):
            result = result.reshape(job.world, -1)
        lost = CODEC_ERROR_MAX if name in job.codecs else 0.0
        if not (abs(result - expected) <= lost * expected).all():
            raise RuntimeError(f"{name} gave a wrong {collective} at {case.size} bytes")


def main() -> None:
    """Meets the others, measures, and tells."""
    job = Job.from_json(sys.argv[1])
    os.sched_setaffinity(0, common.cores_of(job.rank, job.world))
    with socket.create_connection(("127.0.0.1", job.port)) as connection:
        work(job, Line(connection, job.rank))


class Line:
    """The connection to the process that started this one."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        self._file = connection.makefile("rw", encoding="utf-8")
        self.tell(rank)

    def tell(self, report: object) -> None:
        self._file.write(json.dumps(report) + "\n")
        self._file.flush()

    def hear(self) -> Meeting:
        heard: Meeting = json.loads(self._file.readline())
        return heard


def work(job: Job, line: Line) -> None:
    """Makes the libraries, and measures case by case."""
    libraries: dict[str, Library] = {name: LIBRARIES[name](job) for name in job.libraries}
    ours = libraries.get("pccl")
    if isinstance(ours, Pccl):
        libraries.update({codec: Encoded(ours, codec) for codec in job.codecs})
    meet(libraries.values(), line)
    worker = Worker(job, libraries)
    for library in libraries.values():
        library.barrier()
    idle_bytes = common.memory_bytes()
    for case in job.cases:
        if job.purpose.startswith("memory"):
            (name,) = job.libraries
            line.tell({"library": name, "peak": worker.measure_memory(case, name, idle_bytes)})
            continue
        line.tell(told(worker.measure_time(case)))
    for library in libraries.values():
        library.close()


class Found(Protocol):
    """A library before its calls: it says where it is, and connects to the others."""

    def offer(self) -> Meeting: ...
    def connect(self, meeting: Meeting) -> None: ...


def meet(libraries: Iterable[Found], line: Line) -> None:
    """Connects each with its like in the other processes."""
    offer: Meeting = {}
    for library in libraries:
        offer.update(library.offer())
    line.tell(offer)
    meeting = line.hear()
    for library in libraries:
        library.connect(meeting)


def fill(values: NDArray[Any], fresh: NDArray[Any]) -> None:
    """Repeats `fresh` all over `values`."""
    for begin in range(0, len(values), len(fresh)):
        part = values[begin : begin + len(fresh)]
        part[:] = fresh[: len(part)]


def timed(call: Callable[[], object], case: Case) -> Sample:
    """One sample, from here, which is after a barrier."""
    cpu, begin = time.process_time(), time.monotonic()
    for _ in range(case.iterations):
        call()
    return Sample(begin, time.monotonic(), time.process_time() - cpu)


def in_turn(
    keys: list[str], case: Case, sample: Callable[[str], Sample]
) -> dict[str, list[Sample]]:
    """Samples of all, after a warm-up, each time beginning with another one."""
    samples: dict[str, list[Sample]] = {key: [] for key in keys}
    for key in keys:
        sample(key)
    order = keys
    for _ in range(case.samples):
        for key in order:
            samples[key].append(sample(key))
        order = [*order[1:], order[0]]
    return samples


def told(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """The report of one case."""
    return {key: [asdict(sample) for sample in of] for key, of in samples.items()}


def key_of(library: str, collective: str) -> str:
    """Where the samples of a collective are in a report; those of all_reduce, under the library."""
    return library if collective == COLLECTIVES[0] else f"{library}/{collective}"


if __name__ == "__main__":
    main()
