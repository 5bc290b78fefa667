"""An honest run under attack: a coordinator and peers in their processes, and what they hold.

Peers add up the digits of the oracle without a pause (tests/processes/loop.py), and judge each sum.
The attacks are in harness/attacker.py; the tests say which of them they ask for, and what they
allow. Nothing here sleeps: it waits for what processes say, with a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from peers import Peer

import pccl_py as pccl
from harness.attacker import Attackers, Job
from harness.child import Child, held_port

COUNT = 3_001
WAIT_SECONDS_MAX = 60.0
KIB, MIB = 1 << 10, 1 << 20
PEAK_BYTES_MAX = 64 * MIB
KEPT_BYTES_MAX = 16 * MIB
NEWCOMER_SECONDS_MAX = 5
# A file that is being written, and the sockets of one round of the engine, which accepts up to 64
# and closes those without a place.
SPARE_DESCRIPTORS = 8 + 64
LOOKUPS_MAX = 4  # names that the coordinator looks up at once, each on a thread of its own


@dataclass(frozen=True)
class Held:
    """The descriptors, threads and memory of a process."""

    descriptors: int
    threads: int
    resident_bytes: int
    peak_bytes: int

    @classmethod
    def by(cls, pid: int) -> Held:
        """As its kernel counts it."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
        resident, peak = (int(sizes[key].split()[0]) * KIB for key in ("VmRSS", "VmHWM"))
        descriptors, threads = (len(os.listdir(f"/proc/{pid}/{of}")) for of in ("fd", "task"))
        return cls(descriptors, threads, resident, peak)


def forget_peak(pid: int) -> None:
    """Its peak begins again from what it holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _port_of(member: dict[str, Any]) -> int:
    return int(member["address"].rpartition(":")[2])


def bytes_acknowledged(pid: int) -> int:
    """Counts what the TCP sockets that a process has now have sent, and the other side has got."""
    pidfd_getfd, acknowledged_at = 438, 120  # linux/tcp.h: tcpi_bytes_acked
    system = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    sent = 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            number = system.syscall(pidfd_getfd, process, int(name), 0)
            if number < 0:
                continue  # it was closed meanwhile
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                os.close(number)
                continue
            with socket.socket(fileno=number) as found:
                if found.proto != socket.IPPROTO_TCP:
                    continue  # the resolver's datagram socket, for example
                info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent += int.from_bytes(info[acknowledged_at : acknowledged_at + 8], "little")
    finally:
        os.close(process)
    return sent


class Run:
    """`n` peers, numbers 0 to n - 1, that work from the beginning to the end of it.

    `environment` is the coordinator's; `verbose`: its log is in `coordinator.errors`.
    """

    def __init__(
        self,
        n: int,
        folder: Path,
        *,
        silence: float = 5,
        environment: dict[str, str] | None = None,
        verbose: bool = False,
    ) -> None:
        self._silence = silence
        self._environment = environment
        self._verbose = ["--verbose"] if verbose else []
        self._folder = folder
        self._port = held_port()  # also while no coordinator runs
        self.port = self._port.getsockname()[1]
        self.run_id = os.urandom(16)
        self.token = pccl.token_create(f"127.0.0.1:{self.port}", self.run_id)
        self.coordinator = self._start_coordinator()
        self.founders = [Peer() for _ in range(n)]
        self._spare = Peer()  # starting Python takes longer than to join
        self._newcomers = 0

    def _start_coordinator(self) -> Child:
        lines: queue.Queue[str] = queue.Queue()
        command = [sys.executable, "-u", "-m", "pccl_py.cli", "coordinator"]
        command += ["--bind", f"127.0.0.1:{self.port}", "--run-id-file", "-"]
        command += ["--heartbeat", "0.2", "--silence", str(self._silence)]
        command += ["--state", str(self._folder / "state"), *self._verbose]
        child = Child(command, heard=lines.put, environment=self._environment)
        child.say(self.run_id.hex())
        assert lines.get(timeout=WAIT_SECONDS_MAX).strip() == self.token
        return child

    def __enter__(self) -> Self:
        for number, peer in enumerate(self.founders):
            self._begin_join(peer, number, initial_world_size=len(self.founders))
        for peer in self.founders:
            self._end_join(peer)
        self.go_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.judge()
        finally:
            for peer in (*self.founders, self._spare):
                peer.end()
            self.coordinator.end()
            self._port.close()

    def _begin_join(self, peer: Peer, number: int, **options: Any) -> None:
        peer.become(number)
        peer.answer()
        peer.send("join", token=self.token, deadline=WAIT_SECONDS_MAX, **options)

    def _end_join(self, peer: Peer) -> None:
        peer.answer()
        peer.ask("loop_begin", count=COUNT)

    # ---- what goes on

    def job(self, attack: str, **options: Any) -> Job:
        """Against the coordinator, by somebody who knows nothing."""
        return Job(attack, [self.port], **options)

    def insider(self, attack: str, **options: Any) -> Job:
        """The same by somebody who has the token."""
        return replace(self.job(attack, **options), run_id=self.run_id.hex())

    def lanes(self, **options: Any) -> Job:
        """Lanes of somebody who has the token, to the founder that others dial."""
        to = min(self._members(), key=lambda member: str(member["peer_id"]))
        job = self.insider("lanes", meant=to["peer_id"], **options)
        return replace(job, ports=[_port_of(to)])

    def peer_ports(self) -> list[int]:
        """Where the founders listen."""
        return [_port_of(member) for member in self._members()]

    def _members(self) -> list[dict[str, Any]]:
        status = pccl.run_status(self.token, timeout=WAIT_SECONDS_MAX)
        (group,) = [group for group in status["groups"] if group["name"] == "default"]
        members: list[dict[str, Any]] = group["epochs"][-1]["members"]
        return members

    def rounds(self) -> int:
        """How often the first founder has added up."""
        done: int = self.founders[0].ask("loop_rounds")
        return done

    def go_on(self, more: int = 5) -> None:
        """Until everybody has added up so often."""
        until = self.rounds() + more
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while self.rounds() < until:
            assert time.monotonic() < deadline, "the run stands"

    def newcomer(self) -> float:
        """Somebody honest joins, works a round, and leaves. How many seconds it took to be in."""
        self._newcomers += 1
        number = len(self.founders) + 16 * self._newcomers  # a digit of its own (told.py)
        peer, self._spare = self._spare, Peer()
        try:
            began = time.monotonic()
            self._begin_join(peer, number)
            peer.answer()
            seconds = time.monotonic() - began
            peer.ask("loop_begin", count=COUNT)
            assert number in peer.event(WAIT_SECONDS_MAX)["members"]
            peer.ask("loop_leave")
            assert peer.event(WAIT_SECONDS_MAX) == "ended"
            assert all(entry["sum_is_right"] for entry in peer.ask("loop_log"))
        finally:
            peer.end()
        return seconds

    def restart_coordinator(self) -> None:
        """Kills it, and starts it again on the same state."""
        self.coordinator.end()
        self.coordinator = self._start_coordinator()

    # ---- what is judged

    def held(self) -> dict[str, Held]:
        """The holdings of each process, by its name."""
        founders = {f"peer {peer.number}": peer.process.pid for peer in self.founders}
        return {name: Held.by(pid) for name, pid in [*self._coordinator(), *founders.items()]}

    def _coordinator(self) -> list[tuple[str, int]]:
        return [("coordinator", self.coordinator.pid)]

    def forget_peaks(self) -> None:
        """The peak of each process begins again."""
        for pid in (self.coordinator.pid, *(peer.process.pid for peer in self.founders)):
            forget_peak(pid)

    @contextlib.contextmanager
    def bounded(
        self, *, descriptors: int, peak_bytes: int, kept_bytes: int = KEPT_BYTES_MAX
    ) -> Iterator[Callable[[], None]]:
        """Nobody holds more than this beyond what it held before, and only the coordinator has more
        threads, for names that it looks up; afterwards all of it comes back, but for `kept_bytes`,
        which allocators and logs of the loops may keep. Gives what counts descriptors and threads,
        to be called while the attack goes on; peaks of memory the kernel keeps."""
        before = self.held()
        self.forget_peaks()

        def count() -> None:
            for name, now in self.held().items():
                more = now.descriptors - before[name].descriptors
                assert more <= descriptors, f"{name} has {more} descriptors more"
                more = now.threads - before[name].threads
                most = LOOKUPS_MAX if name == "coordinator" else 0
                assert more <= most, f"{name} has {more} threads more"

        yield count
        for name, now in self.held().items():
            grown = now.peak_bytes - before[name].resident_bytes
            assert grown <= peak_bytes, f"{name} has grown by {grown / MIB:.1f} MiB"
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while left := self._left(before, kept_bytes):
            assert time.monotonic() < deadline, left
            self.rounds()

    def _left(self, before: dict[str, Held], kept_bytes: int) -> str:
        """Names something that has not come back yet."""
        for name, now in self.held().items():
            then = before[name]
            if now.descriptors > then.descriptors:
                return f"{name} keeps {now.descriptors - then.descriptors} descriptors"
            if now.resident_bytes > then.resident_bytes + kept_bytes:
                return f"{name} keeps {(now.resident_bytes - then.resident_bytes) / MIB:.1f} MiB"
        return ""

    def strike(
        self,
        jobs: list[Job],
        *,
        descriptors: int,
        peak_bytes: int = PEAK_BYTES_MAX,
        kept_bytes: int = KEPT_BYTES_MAX,
    ) -> None:
        """All of it, while the run goes on and somebody joins, again and again, and is in within
        five seconds. One in five may take longer: a busy machine may hold one up."""
        seconds: list[float] = []
        limited = any(job.connections for job in jobs)
        budget = descriptors + SPARE_DESCRIPTORS
        with self.bounded(
            descriptors=budget, peak_bytes=peak_bytes, kept_bytes=kept_bytes
        ) as count:
            with Attackers(jobs) as attackers:
                while len(seconds) < 5 or (limited and attackers.at_work):
                    seconds.append(self.newcomer())
                    self.go_on(20)
                    count()
            for job, told in zip(jobs, attackers.told, strict=True):
                assert told["connections"] >= job.connections, told
        self.go_on()
        assert self.is_whole()
        late = [each for each in seconds if each > NEWCOMER_SECONDS_MAX]
        assert len(late) <= len(seconds) // 5, seconds

    def world_size(self) -> int:
        """Members of the newest epoch, of which they need not have heard yet."""
        return len(self._members())

    def is_whole(self) -> bool:
        """All founders are members of its epoch, and nobody else is."""
        members = self._members()
        return len(members) == len(self.founders) and all(one["alive"] for one in members)

    def until_whole(self) -> None:
        """A gap that somebody has left is closed at a safe point, and a round may have been on."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while not self.is_whole():
            assert time.monotonic() < until, pccl.run_status(self.token)
            self.go_on(1)

    def judge(self) -> None:
        """Nobody has ended; all sums of all rounds are right, and all founders are in them."""
        assert self.coordinator.running, self.coordinator.errors
        self.founders[0].ask("loop_end")
        everybody = {peer.number for peer in self.founders}
        for peer in self.founders:
            while (said := peer.event(WAIT_SECONDS_MAX)) != "ended":
                assert everybody <= set(said["members"])
            log = peer.ask("loop_log")
            assert log
            for entry in log:
                assert entry["sum_is_right"], entry
                assert everybody <= set(entry["contributors"]), entry
