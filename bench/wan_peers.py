"""The peers of one case in its emulated network: started, told what to call, heard, and killed.

It owns the processes and their lines, and what the machine did meanwhile. The plan, and what the
times come to, are in wan_measure.py; what runs in each process is in wan_worker.py.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import together, wan_lanes, wan_network
from bench.wan_network import Network
from bench.wan_worker import Job, Sample
from harness.child import Child
from pccl_py.closing import Closing

REPORT_SECONDS_MAX = 900.0
FILL_SECONDS = 0.4  # for all to fill their buffers, before they begin

LATE_SECONDS_MAX = 0.002
STOLEN_SHARE_MAX = 0.002  # the clock of the system counts in hundredths of a second
BUSY_SHARE_MAX = 0.8


@dataclass(frozen=True)
class Mood:
    """The state of the machine during one operation. `busy_cores`: how many of `cores` were."""

    late_seconds: float
    stolen_share: float
    busy_cores: float
    cores: int
    overflows: int

    def complaint(self) -> str:
        """Why the operation does not count; empty if it does."""
        found = []
        if self.late_seconds > LATE_SECONDS_MAX:
            found.append(f"packets were {self.late_seconds * 1e3:.1f} ms late (p99)")
        if self.stolen_share > STOLEN_SHARE_MAX:
            found.append(f"{self.stolen_share:.1%} of the CPU was stolen")
        if self.busy_cores > BUSY_SHARE_MAX * self.cores:
            found.append(f"{self.busy_cores:.2f} of {self.cores} cores were busy")
        if self.overflows:
            found.append(f"{self.overflows} packets did not reach the emulator")
        return ", ".join(found)


@dataclass(frozen=True)
class Operation:
    """One operation of all peers that finished it, by rank, and of the network meanwhile.

    `lanes`: of each link that was used, each direction by itself.
    """

    begin: float
    samples: dict[int, Sample]
    retransmitted_bytes: int
    wire_bytes: int
    dropped: dict[str, int]
    mood: Mood
    lanes: list[int] = field(default_factory=list)

    @property
    def end(self) -> float:
        """When the slowest rank had it all."""
        return max(max(sample.ends) for sample in self.samples.values())

    @property
    def seconds(self) -> float:
        """The time of the slowest rank, for all calls."""
        return self.end - self.begin

    def seconds_of(self, call: int, after: float) -> float:
        """The time of the slowest rank, for one of the calls that run at the same time."""
        ends = max(sample.ends[call] for sample in self.samples.values())
        return ends - self.begin - after


class Peers(Closing):
    """The processes of one case. None outlives this. Raises RuntimeError when one fails."""

    def __init__(self, network: Network, job: Job) -> None:
        """`job`: as for rank 0; the others differ by their place."""
        self.network = network
        self._heard: list[queue.Queue[str | None]] = []
        self._children: dict[int, Child] = {}
        self.ended_at = time.monotonic()
        self._serial = 0
        try:
            for rank in range(job.world):
                self._start(rank, job)
            self.meet()
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, job: Job) -> None:
        heard: queue.Queue[str | None] = queue.Queue()
        command = [*self.network.prefix(rank), sys.executable, "-m", "bench.wan_worker"]
        environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        child = Child(
            command,
            heard=heard.put,
            ended=lambda _: heard.put(None),
            environment=environment,
            log=sys.stderr,
        )
        self._heard.append(heard)
        self._children[rank] = child
        own = {**asdict(job), "rank": rank, "address": wan_network.address(rank)}
        child.say(json.dumps(own))

    def meet(self) -> None:
        """All connect with each other."""
        offers = self._ask({"do": "meet"})
        meeting = {key: value for offer in offers.values() for key, value in offer.items()}
        meeting["store_address"] = wan_network.address(0)
        self._ask({"meeting": meeting})
        self.ended_at = time.monotonic()

    def part(self) -> None:
        """All leave each other, and can meet again."""
        self._ask({"do": "part"})

    def epoch(self) -> dict[str, Any]:
        """The epoch as the coordinator's status has it: its plan, its members and their links."""
        return next(told for told in self._ask({"do": "epoch"}).values() if told)

    def begin(self, asked: dict[str, Any], pause: float) -> Begun:
        """Lets all begin an operation so many seconds after the end of the one before."""
        is_counted = sum(asked["sizes"]) >= wan_lanes.OPERATION_BYTES_MIN
        lanes = self.lanes() if is_counted else None
        at = max(self.ended_at + pause, time.monotonic() + FILL_SECONDS)
        self._serial += 1
        self._tell({"do": "call", "at": at, "serial": self._serial, **asked})
        time.sleep(max(0.0, at - time.monotonic() - 0.01))
        return Begun(self, at, lanes)

    def kill(self, rank: int) -> float:
        """Kills one; when."""
        child = self._children.pop(rank)
        at = time.monotonic()
        child.signal(signal.SIGKILL)
        child.end()
        return at

    def reports(self) -> dict[int, dict[str, Any]]:
        """The next report of each that is there."""
        found = {}
        for rank in sorted(self._children):
            try:
                line = self._heard[rank].get(timeout=REPORT_SECONDS_MAX)
            except queue.Empty:
                raise RuntimeError(f"rank {rank} said nothing for too long") from None
            if line is None:
                raise RuntimeError(f"rank {rank} of the benchmark ended early")
            found[rank] = json.loads(line)
        return found

    def pids(self) -> list[int]:
        """The ids of those that are there."""
        return [child.pid for child in self._children.values()]

    def lanes(self) -> wan_lanes.Acknowledged:
        """The lanes of those that are there."""
        found: wan_lanes.Acknowledged = {}
        for rank in self._children:
            found.update(self.network.lanes(rank))
        return found

    def _ask(self, what: dict[str, Any]) -> dict[int, dict[str, Any]]:
        self._tell(what)
        return self.reports()

    def _tell(self, what: dict[str, Any]) -> None:
        for child in self._children.values():
            child.say(json.dumps(what))

    def close(self) -> None:
        """Kills all of them: calls under way would wait for a coordinator that is gone."""
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        for child in self._children.values():
            child.end()
        self._children.clear()


class Begun:
    """An operation under way: what was counted at its beginning."""

    def __init__(self, peers: Peers, at: float, lanes: wan_lanes.Acknowledged | None) -> None:
        self._peers, self._at, self._lanes = peers, at, lanes
        peers.network.command("clear")
        self._segments = _of_each(wan_network.retransmitted_segments, peers.pids())
        self._overflows = _of_each(wan_network.ring_overflows, peers.pids())
        self._machine, self._since = _machine_seconds(), time.monotonic()

    def wait(self) -> None:
        """Until all have done it."""
        self._samples = {r: Sample(**report) for r, report in self._peers.reports().items()}

    def end(self) -> Operation:
        """Counts again, after `wait`."""
        peers = self._peers
        passed = time.monotonic() - self._since
        busy, stolen = (b - a for a, b in zip(self._machine, _machine_seconds(), strict=True))
        statistics = peers.network.statistics()
        pids = peers.pids()  # what a peer that was killed has sent again is not known any more
        segments = _more(_of_each(wan_network.retransmitted_segments, pids), self._segments)
        sums = wan_network.sums(statistics)
        cores = len(os.sched_getaffinity(0))
        before = self._lanes
        mood = Mood(
            late_seconds=statistics["late_us"]["p99"] / 1e6,
            stolen_share=stolen / passed / cores,
            busy_cores=busy / passed,
            cores=cores,
            overflows=_more(_of_each(wan_network.ring_overflows, pids), self._overflows),
        )
        done = Operation(
            begin=self._at,
            samples=self._samples,
            retransmitted_bytes=segments * wan_network.SEGMENT_BYTES,
            wire_bytes=sums.bytes,
            dropped=sums.dropped,
            mood=mood,
            lanes=[] if before is None else wan_lanes.of_links(before, peers.lanes()),
        )
        peers.ended_at = done.end
        return done


def _of_each(count: Callable[[int], int], pids: list[int]) -> dict[int, int]:
    return {pid: count(pid) for pid in pids}


def _more(now: dict[int, int], before: dict[int, int]) -> int:
    """By how much all those grew that are there now."""
    return sum(count - before[pid] for pid, count in now.items())


def _machine_seconds() -> tuple[float, float]:
    """CPU seconds of the whole machine since it runs: busy, and stolen by whoever runs it."""
    taken = together.machine_seconds()
    user, nice, system, _, _, interrupts, soft_interrupts, stolen = taken[:8]
    return user + nice + system + interrupts + soft_interrupts, stolen
