"""One peer of the benchmark of long links: it makes the calls that it is told, at their instants.

It owns the calls, and the check of their results. The plan, and what the times come to, are in
wan_measure.py, which starts this in a namespace of the emulated network and talks to it in JSON
lines, on standard input and output:

    {"rank": ..., "world": ..., "address": ..., ...}    the Job
    {"do": "meet"}      the offer of this process: {"token": ...} or {"store_port": ...} or {}
    {"meeting": ...}    the offers of all; then {"met": true}
    {"do": "call", "library": ..., "at": ..., "work": ..., ...}     an Asked; then one Sample
    {"do": "epoch"}     the epoch of the coordinator's status, from the process that has it
    {"do": "part"}      leaves the others; then {"parted": true}; it may meet them again

`at` is an instant of the clock that all processes of the machine share, at which all begin: over
long links no barrier can say so.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import pccl_py as pccl
from bench import common, wan_lanes
from bench.wan_cases import Control, Plan, Work

Values = NDArray[np.float32]
DEVICE = "wan"

# The root mean square; four bits lose a sixth, as docs/internals/BENCHMARKS.md tells of `accuracy`.
CODEC_ERROR_MAX = 0.5


@dataclass(frozen=True)
class Job:
    """The place of a process, and what it measures. `groups`: of gloo, each with a part."""

    rank: int
    world: int
    address: str
    libraries: list[str]
    size: int  # the largest
    lanes: int | None = None
    control: Control | None = None
    coordinator: int = 0
    groups: int = 4


@dataclass(frozen=True)
class Asked:
    """One operation that a process is to make. `sizes`, `after`: of each call of it."""

    library: str
    work: Work
    codec: str
    plan: Plan
    sizes: list[int]
    after: list[float]
    at: float
    serial: int


@dataclass(frozen=True)
class Sample:
    """One operation of one process. `ends`: of each call, on the clock that all share."""

    begin: float
    ends: list[float]
    cpu: float
    peak: int  # bytes beside the idle process and the buffer
    attempts: int
    contributors: int  # of the range that has the fewest
    predicted: float | None = None  # seconds, as the outcome has it; None: not known
    bound: float | None = None


class Library(Protocol):
    """A measured library. Its calls run at the same time, each after its seconds."""

    def offer(self) -> dict[str, Any]: ...
    def meet(self, meeting: dict[str, Any]) -> None: ...
    def call(self, parts: list[Values], asked: Asked) -> list[float]: ...
    def sync(self, serial: int, is_newcomer: bool) -> float: ...
    def contributors(self, values: Values) -> tuple[int, int, Values | float]: ...
    def figures(self) -> tuple[float | None, float | None]: ...
    def epoch(self) -> dict[str, Any]: ...
    def part(self) -> None: ...


class Ours:
    """PCCL with its defaults. The coordinator is in the process of a rank, and its CPU counts."""

    def __init__(self, job: Job, values: Values) -> None:
        self._job, self._values = job, values
        self._coordinator: pccl.Coordinator | None = None
        self._state: Any = None
        self._outcomes: list[Any] = []

    def offer(self) -> dict[str, Any]:
        if self._job.rank != self._job.coordinator:
            return {}
        self._coordinator = pccl.Coordinator(
            bind=f"{self._job.address}:0",
            initial_world_size=self._job.world,
            lanes_per_link=self._job.lanes,
        )
        return {"token": self._coordinator.token}

    def meet(self, meeting: dict[str, Any]) -> None:
        # Ranks are in the order of ids, so that a ring goes the same way in each run.
        own = pccl.PeerId((1 + self._job.rank).to_bytes(16))
        bind = f"{self._job.address}:{wan_lanes.PORT}"
        self._comm = pccl.connect(
            meeting["token"], bind=bind, peer_id=own, congestion=self._job.control
        )
        self._comm.admit()

    def call(self, parts: list[Values], asked: Asked) -> list[float]:
        works: list[Any] = []
        ends: list[float] = []
        begin = time.monotonic()
        for tag, (part, seconds) in enumerate(zip(parts, asked.after, strict=True)):
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
            works.append(self._begin(part, tag, asked))
        self._outcomes = []
        for work in reversed(works):  # the later ones are the smaller ones
            self._outcomes.insert(0, work.wait())
            ends.insert(0, time.monotonic())
        return ends

    def _begin(self, part: Values, tag: int, asked: Asked) -> Any:
        if asked.work == "barrier":
            return self._comm.barrier(tag=tag, async_op=True)
        if asked.work == "broadcast":
            return self._comm.broadcast(part, tag=tag, async_op=True)
        codec: Any = asked.codec
        return self._comm.all_reduce(part, tag=tag, codec=codec, plan=asked.plan, async_op=True)

    def sync(self, serial: int, is_newcomer: bool) -> float:
        if self._state is None:
            self._state = self._comm.shared_state({"values": self._values})
        strategy: Any = "receive_only" if is_newcomer else "popular"
        self._outcomes = [self._state.sync(strategy, revision=0 if is_newcomer else serial)]
        return time.monotonic()

    def contributors(self, values: Values) -> tuple[int, int, Values | float]:
        """Attempts, the fewest contributors, and what the result must be."""
        attempts = max(outcome.attempts for outcome in self._outcomes)
        if self._state is not None or len(self._outcomes) > 1:
            return attempts, self._job.world, _sum_of(range(self._job.world))
        (outcome,) = self._outcomes
        expected = np.full_like(values, np.nan)
        for part in outcome.ranges:
            ranks = [int.from_bytes(peer) - 1 for peer in part.contributors]
            expected[part.begin : part.end] = _sum_of(ranks)
        counts = (len(part.contributors) for part in outcome.ranges)
        return attempts, min(counts, default=self._job.world), expected

    def figures(self) -> tuple[float | None, float | None]:
        """How long the last operation takes by what is known of the links, and at least."""
        if self._state is not None or len(self._outcomes) > 1:
            return None, None
        (outcome,) = self._outcomes
        return outcome.predicted, outcome.bound

    def epoch(self) -> dict[str, Any]:
        if self._coordinator is None:
            return {}
        epoch: dict[str, Any] = pccl.run_status(self._coordinator.token)["groups"][0]["epochs"][-1]
        return epoch

    def part(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None
        self._comm.close()
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None


class Gloo:
    """The baseline: gloo by torch.distributed, in several groups, which each have a connection."""

    def __init__(self, job: Job, values: Values) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
        torch = importlib.import_module("torch")  # only where it is measured: it takes seconds
        self._dist: Any = importlib.import_module("torch.distributed")
        torch.set_num_threads(1)
        self._torch, self._job = torch, job
        self._is_sum = True  # the last call

    def offer(self) -> dict[str, Any]:
        self._store = None
        if self._job.rank != 0:
            return {}
        self._store = self._dist.TCPStore(
            self._job.address, 0, is_master=True, wait_for_workers=False
        )
        return {"store_port": self._store.port}

    def meet(self, meeting: dict[str, Any]) -> None:
        dist, job = self._dist, self._job
        port = meeting["store_port"]
        store = self._store or dist.TCPStore(meeting["store_address"], port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=job.rank, world_size=job.world)
        self._groups = [dist.new_group(backend="gloo") for _ in range(job.groups)]

    def call(self, parts: list[Values], asked: Asked) -> list[float]:
        (values,) = parts
        self._is_sum = asked.work != "broadcast"
        if asked.work == "barrier":
            self._dist.barrier(group=self._groups[0])
            return [time.monotonic()]
        begin = functools.partial(self._dist.broadcast, src=0)
        if self._is_sum:
            begin = self._dist.all_reduce
        chunks = self._torch.from_numpy(values).chunk(len(self._groups))
        works = [
            begin(chunk, group=group, async_op=True)
            for chunk, group in zip(chunks, self._groups, strict=False)
        ]
        for work in works:
            work.wait()
        return [time.monotonic()]

    def sync(self, serial: int, is_newcomer: bool) -> float:
        raise NotImplementedError

    def contributors(self, values: Values) -> tuple[int, int, Values | float]:
        count = self._job.world if self._is_sum else 1
        return 1, count, _sum_of(range(count))

    def figures(self) -> tuple[float | None, float | None]:
        return None, None

    def epoch(self) -> dict[str, Any]:
        return {}

    def part(self) -> None:
        self._dist.destroy_process_group()


LIBRARIES: dict[str, type[Ours] | type[Gloo]] = {"pccl": Ours, "gloo": Gloo}


def _sum_of(ranks: Any) -> float:
    return float(sum(rank + 1 for rank in ranks))


def _difference(values: Values, expected: Values | float) -> float:
    """The root mean square of the difference, over that of what is expected."""
    off = np.subtract(values, expected, dtype=np.float64)
    return float(np.sqrt(np.mean(off * off) / np.mean(np.square(expected))))


class Worker:
    """One process: its libraries, and the one buffer that all of them use."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._values = np.ones(job.size // 4, np.float32)
        self._libraries: dict[str, Library] = {
            name: LIBRARIES[name](job, self._values) for name in job.libraries
        }
        self._idle_bytes = 0

    def meet(self) -> None:
        """Connects each library with its like."""
        offer: dict[str, Any] = {}
        for library in self._libraries.values():
            offer.update(library.offer())
        tell(offer)
        meeting = hear()["meeting"]
        for library in self._libraries.values():
            library.meet(meeting)
        self._idle_bytes = common.memory_bytes()
        tell({"met": True})

    def tell_epoch(self) -> None:
        """Tells the epoch of the status; nothing where the coordinator is not in this process."""
        tell(self._libraries["pccl"].epoch())

    def part(self) -> None:
        """Leaves the others."""
        for library in self._libraries.values():
            library.part()
        tell({"parted": True})

    def sample(self, asked: Asked) -> Sample:
        """One operation."""
        library, is_sync = self._libraries[asked.library], asked.work == "sync"
        edges = np.cumsum([0, *asked.sizes]) // 4
        parts = [self._values[a:b] for a, b in itertools.pairwise(edges)]
        values = self._values[: edges[-1]]
        is_newcomer = is_sync and self._job.rank == self._job.world - 1
        self._fill(values, asked.serial if is_sync else None, is_newcomer)
        common.peak_memory_reset()
        time.sleep(max(0.0, asked.at - time.monotonic()))
        cpu, begin = time.process_time(), time.monotonic()
        serial = asked.serial
        ends = [library.sync(serial, is_newcomer)] if is_sync else library.call(parts, asked)
        spent = time.process_time() - cpu
        peak = common.peak_memory_bytes() - self._idle_bytes
        attempts, contributors, expected = library.contributors(values)
        is_of_all = asked.work not in ("broadcast", "kill")  # the root alone; those that are left
        if is_of_all and contributors < self._job.world:
            raise RuntimeError(f"{asked.library}: {asked.work} of {contributors} peers only")
        if is_sync:
            expected = np.arange(len(values), dtype=np.float32) + np.float32(asked.serial)
        lost = 0.0 if asked.codec == "none" else CODEC_ERROR_MAX
        if values.size > 0 and not _difference(values, expected) <= lost:
            raise RuntimeError(f"{asked.library} gave a wrong result of {asked.work}")
        return Sample(begin, ends, spent, peak, attempts, contributors, *library.figures())

    def _fill(self, values: Values, serial: int | None, is_newcomer: bool) -> None:
        if serial is None:
            values[:] = self._job.rank + 1
        elif is_newcomer:
            values[:] = -np.arange(len(values), dtype=np.float32)
        else:
            values[:] = np.arange(len(values), dtype=np.float32) + np.float32(serial)


def tell(report: object) -> None:
    """A line to the process that started this one."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def hear() -> dict[str, Any]:
    """The next line; SystemExit if nobody is there any more."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    heard: dict[str, Any] = json.loads(line)
    return heard


def main() -> None:
    """Does what it is told, until nobody tells it anything."""
    worker = Worker(Job(**hear()))
    while True:
        heard = hear()
        what = heard.pop("do")
        if what == "meet":
            worker.meet()
        elif what == "part":
            worker.part()
        elif what == "epoch":
            worker.tell_epoch()
        else:
            tell(asdict(worker.sample(Asked(**heard))))


if __name__ == "__main__":
    main()
