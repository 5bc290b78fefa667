"""An attacker process: attacks a run as a stranger, or as somebody who has the token.

`python -m harness.attacker` reads one line, a `Job` as JSON, and attacks until its standard input
ends, or until it has made `Job.connections` connections. It prints {"began": 1} after its first
connection and {"connections": ..., "answered": ..., "bytes": ...} at its end. It imports nothing of
PCCL: harness/wire.py encodes its messages. `Attackers` starts attacker processes for tests/hostile
and `python -m bench hostile`, which check the run meanwhile.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import queue
import random
import resource
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Self

from harness import wire
from harness.child import Child
from harness.wire import CONTROL, LANE, MAGIC, STATUS, heartbeat, hello, join, message

# Number of bytes that a peer receives before it hears of its group: an answer and `welcomed`.
WELCOMED_BYTES = wire.ANSWER_BYTES + wire.HEAD_BYTES + 37
# How long `Attackers` waits for a line of an attacker.
WAIT_SECONDS_MAX = 60.0
BYSTANDER_PLACES = 64  # connections that a bystander keeps; a coordinator keeps 64 strangers
# The value of SO_LINGER with which closing a socket sends a reset.
RESET = struct.pack("ii", 1, 0)


def long_address(number: int) -> bytes:
    """An address of 255 bytes, HOST:PORT, whose host name does not resolve."""
    labels = b".".join([b"x" * 60] * 3)
    head = b"n%06d." % number + labels
    return head + b"." + b"y" * (255 - len(head) - 1 - len(b".invalid:1")) + b".invalid:1"


@dataclass(frozen=True)
class Job:
    """One attack and its targets. Without a run id the attacker is a stranger."""

    attack: str  # a key of ATTACKS
    ports: list[int]  # ports of 127.0.0.1 to attack in turn
    run_id: str = "00" * 16  # the run's id in hexadecimal digits, if the attacker has the token
    seed: int = 0  # seed of the attacker's random numbers
    connections: int = 0  # number of connections after which the attack ends; 0: no end
    rate: int = 0  # the most connections in a second; 0: no limit
    sources: int = 0  # number of loopback addresses to connect from; 0: only 127.0.0.1
    nice: int = 0  # nice(1) value of the attacker's process
    group: str = "default"  # name of the group that newcomers ask to join
    meant: str = "00" * 16  # id of the peer that lanes are dialed to, in hexadecimal digits

    def to_json(self) -> str:
        """The job as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Job:
        """The job in a line of `to_json`."""
        return cls(**json.loads(line))


class Attacker:
    """All attacks, as methods. Counts connections made, answers (mostly closes by the other side),
    and bytes received."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.random = random.Random(job.seed)
        self.connections = self.answered = self.received = 0
        self.over = threading.Event()
        self._ports = job.ports
        self._began = time.monotonic()

    def wants_more(self) -> bool:
        """Whether to make more connections: fewer than the job's number, and not told to end."""
        enough = self.job.connections and self.connections >= self.job.connections
        return not enough and not self.over.is_set()

    def secret(self) -> bytes:
        """The run id in the job's `run_id`; zeros for a stranger."""
        return bytes.fromhex(self.job.run_id)

    def connect(self, *, receive_bytes: int = 0) -> socket.socket | None:
        """Connects to the next port in turn. None if the connection is refused, as while a
        coordinator is away."""
        if self.job.rate:
            due = self._began + self.connections / self.job.rate
            self.over.wait(max(0.0, due - time.monotonic()))
        port = self._ports[self.connections % len(self._ports)]
        to = socket.socket()
        try:
            if receive_bytes:
                to.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            to.settimeout(10)
            if self.job.sources:
                to.bind((self.source(), 0))
            to.connect(("127.0.0.1", port))
        except OSError:
            to.close()
            self.over.wait(0.01)
            return None
        self.connections += 1
        if self.connections == 1:
            print(json.dumps({"began": 1}), flush=True)
        return to

    def source(self) -> str:
        """The loopback address from which the next connection is made, if the job has `sources`."""
        return f"127.0.1.{1 + self.connections % self.job.sources}"

    def name(self) -> bytes:
        """A random peer id."""
        return self.random.randbytes(16)

    # ---- strangers

    def garbage(self) -> None:
        """Sends nonsense, then resets the connection, or waits until the other side closes it."""
        while self.wants_more():
            to = self.connect()
            if to is None:
                continue
            with to, contextlib.suppress(OSError):
                to.sendall(self.nonsense())
                if self.random.random() < 0.5:
                    to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    continue
                to.shutdown(socket.SHUT_WR)
                while to.recv(4096):
                    self.answered += 1

    def nonsense(self) -> bytes:
        """Random choice between noise and hellos that are valid except for the run id."""
        noise = self.random.randbytes(self.random.randrange(1, 2000))
        some = self.name()
        return self.random.choice(
            [
                b"\0",
                noise,
                b"GET / HTTP/1.1\r\nHost: pccl\r\n\r\n",
                MAGIC,
                MAGIC + noise,
                hello(CONTROL, some, some) + noise,
                hello(LANE, some, some, some),
                hello(STATUS, some, some)[: self.random.randrange(96)],
                hello(self.random.randrange(256), some, some) + noise,
                hello(CONTROL, some, some, version=99),
                wire.head(2**31, wire.JOIN) + noise,
            ]
        )

    def resets(self) -> None:
        """Connects and resets the connection, as fast as possible."""
        while self.wants_more():
            to = self.connect()
            if to is not None:
                to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                to.close()

    def slow(self) -> None:
        """Holds a thousand connections, each of which sends a hello byte by byte."""
        self.hold(1000, lambda: b"", trickle=True)

    def silent(self) -> None:
        """Holds more connections than a coordinator has places for strangers, and sends nothing."""
        self.hold(80, lambda: b"")

    def holds(self) -> None:
        """Holds 300 connections that send the first 8 bytes of a hello."""
        self.hold(300, lambda: MAGIC)

    # ---- with the run id

    def statuses(self) -> None:
        """Holds 64 status connections that send a valid hello and no request."""
        self.hold(64, lambda: hello(STATUS, self.secret(), self.name()))

    def questions(self) -> None:
        """Requests the status, again and again."""
        while self.wants_more():
            to = self.connect()
            if to is None:
                continue
            with to, contextlib.suppress(OSError):
                to.sendall(hello(STATUS, self.secret(), self.name()) + message(wire.STATUS_REQUEST))
                to.shutdown(socket.SHUT_WR)
                while got := len(to.recv(1 << 16)):
                    self.received += got
                self.answered += 1

    def joins_nothing(self) -> None:
        """Holds 200 peers that send heartbeats and join no group; fewer than a run's limit."""
        self.hold(200, lambda: hello(CONTROL, self.secret(), self.name()), beats=True)

    def half_open(self) -> None:
        """Holds 200 peers that send one heartbeat and then nothing, as after a loss of power."""
        self.hold(200, lambda: hello(CONTROL, self.secret(), self.name()) + heartbeat(0))

    def zero_windows(self) -> None:
        """Peers that send heartbeats as fast as possible, and never read."""
        self.flood(8, self.beats)

    def unread_decisions(self) -> None:
        """Members, each alone in a group of its own, that vote as fast as possible and never read
        the decisions, which their votes falsely acknowledge."""
        self.flood(8, lambda to: self.votes(to, tells=True))

    def untold_decisions(self) -> None:
        """Like `unread_decisions`, but the votes acknowledge no decisions."""
        self.flood(8, lambda to: self.votes(to, tells=False))

    def beats(self, to: socket.socket) -> Iterator[bytes]:
        """The heartbeats of a peer that joins no group."""
        to.sendall(hello(CONTROL, self.secret(), self.name()))
        while True:
            yield b"".join(heartbeat(number) for number in range(256))

    def votes(self, to: socket.socket, *, tells: bool) -> Iterator[bytes]:
        """Joins a group, and yields the votes of its single member: one vote for each new call,
        which is decided at once. `tells`: votes acknowledge the decisions of all calls before."""
        group = b"v%d-%d" % (self.job.seed, self.connections)
        to.sendall(hello(CONTROL, self.secret(), self.name()) + join(group, b"127.0.0.1:1"))
        wire.read(to, wire.ANSWER_BYTES)
        number, body = 0, b""
        while number != wire.ACTIVATE:
            number, size = wire.number_and_size(wire.read(to, wire.HEAD_BYTES))
            body = wire.read(to, size)
            if number == wire.PREPARE:
                to.sendall(wire.prepared(*struct.unpack_from("<HQ", body)))
        place, _, epoch = struct.unpack_from("<HQQ", body)
        for first in itertools.count(0, 256):
            calls = range(first, first + 256)
            yield b"".join(wire.vote(place, epoch, call, call if tells else 0) for call in calls)

    def lanes(self) -> None:
        """Holds a thousand lanes to the peer `meant`, from ids of no known peer."""
        meant = bytes.fromhex(self.job.meant)
        largest = b"\xff"  # the peer with the larger id dials a lane
        self.hold(1000, lambda: hello(LANE, self.secret(), largest + self.name()[1:], meant))

    def groups(self) -> None:
        """Newcomers that each join a new group of another name, and leave."""
        while self.wants_more():
            group = b"g%d-%d" % (self.job.seed, self.connections)
            self.come_and_go(group, b"127.0.0.1:1")

    def newcomers(self) -> None:
        """Newcomers that join at once, never read, and leave one by one at the end. Half of them
        give as their address a name of 255 bytes that does not resolve.
        """
        held: list[socket.socket] = []
        while self.wants_more():
            to = self.connect(receive_bytes=2048)
            if to is None:
                continue
            held.append(to)
            by_name = self.connections % 2 == 0
            address = long_address(self.connections) if by_name else b"127.0.0.1:1"
            wish = join(self.job.group.encode(), address)
            with contextlib.suppress(OSError):
                to.sendall(hello(CONTROL, self.secret(), self.name()) + wish)
        for to in held:
            to.close()
            self.over.wait(0.005)

    def names(self) -> None:
        """Newcomers without a pause, each for a second, that never read and open no lane. Half of
        them give as their address a name that does not resolve, the others their real host.
        """
        held: collections.deque[tuple[float, socket.socket]] = collections.deque()
        while self.wants_more():
            host = self.source() if self.job.sources else "127.0.0.1"
            to = self.connect(receive_bytes=2048)
            if to is None:
                continue
            by_name = self.connections % 4 < 2
            address = long_address(self.connections) if by_name else f"{host}:1".encode()
            wish = join(self.job.group.encode(), address)
            with contextlib.suppress(OSError):
                to.sendall(hello(CONTROL, self.secret(), self.name()) + wish)
            held.append((time.monotonic() + 1, to))
            while held and held[0][0] < time.monotonic():
                held.popleft()[1].close()
        for _, to in held:
            to.close()

    def never_ready(self) -> None:
        """One newcomer a second, which opens no lane and stays connected."""
        with contextlib.ExitStack() as stack:
            while self.wants_more():
                to = self.connect()
                if to is None:
                    continue
                stack.enter_context(to)
                wish = join(self.job.group.encode(), b"127.0.0.1:1")
                with contextlib.suppress(OSError):
                    to.sendall(hello(CONTROL, self.secret(), self.name()) + wish)
                self.over.wait(1)

    def come_and_go(self, group: bytes, address: bytes) -> None:
        """One newcomer of `group`, which leaves when it hears of its group or is disconnected."""
        to = self.connect()
        if to is None:
            return
        with to, contextlib.suppress(OSError):
            to.sendall(hello(CONTROL, self.secret(), self.name()) + join(group, address))
            heard = 0
            while heard <= WELCOMED_BYTES and (more := len(to.recv(4096))):
                heard += more
            self.received += heard
            self.answered += heard > WELCOMED_BYTES

    # ---- nobody's enemy

    def bystander(self) -> None:
        """A target without PCCL, to measure what attackers alone cost a machine. Prints its port,
        keeps the 64 newest connections, and closes a connection that sends something."""
        selector = selectors.DefaultSelector()
        held: dict[socket.socket, None] = {}  # open connections, the oldest first
        with socket.create_server(("127.0.0.1", self._ports[0]), backlog=128) as listener:
            print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ)
            while not self.over.is_set():
                for key, _ in selector.select(0.1):
                    leaves: object
                    if key.fileobj is listener:
                        with contextlib.suppress(BlockingIOError):
                            came, _ = listener.accept()
                            selector.register(came, selectors.EVENT_READ)
                            held[came] = None
                            self.connections += 1
                        leaves = next(iter(held)) if len(held) > BYSTANDER_PLACES else None
                    else:
                        leaves = key.fileobj
                    if isinstance(leaves, socket.socket) and leaves in held:
                        selector.unregister(leaves)
                        del held[leaves]
                        leaves.close()
        for left in held:
            left.close()

    # ---- many at once

    def hold(
        self,
        count: int,
        opening: Callable[[], bytes],
        *,
        trickle: bool = False,
        beats: bool = False,
    ) -> None:
        """Holds `count` connections, and replaces closed ones. Each sends `opening()` first, then
        with `trickle` a hello byte by byte, or with `beats` two heartbeats a second."""
        selector = selectors.DefaultSelector()
        words: dict[socket.socket, Iterator[int]] = {}
        beat_at = time.monotonic()
        while self.wants_more() or (words and not self.over.is_set()):
            while len(words) < count and self.wants_more():
                to = self.connect()
                if to is None:
                    break
                to.setblocking(False)
                with contextlib.suppress(OSError):
                    to.send(opening())
                words[to] = iter(hello(CONTROL, self.name(), self.name()))
                selector.register(to, selectors.EVENT_READ)
            for key, _ in selector.select(0.02):
                self.hear(selector, words, key.fileobj)
            if trickle or (beats and time.monotonic() > beat_at):
                beat_at = time.monotonic() + 0.5
                for to, rest in words.items():
                    with contextlib.suppress(OSError):
                        to.send(bytes([next(rest, 0)]) if trickle else heartbeat(1))
                self.over.wait(0.2 if trickle else 0)
        for to in words:
            to.close()
        selector.close()

    def flood(self, count: int, words: Callable[[socket.socket], Iterator[bytes]]) -> None:
        """Holds `count` connections that never read, and sends the bytes of `words` on each as fast
        as the other side takes them. Counts a closed connection as answered, and replaces it."""
        selector = selectors.DefaultSelector()
        unsaid: dict[socket.socket, tuple[Iterator[bytes], bytes]] = {}
        while self.wants_more():
            while len(unsaid) < count and self.wants_more():
                to = self.connect(receive_bytes=2048)
                if to is None:
                    break
                said = words(to)
                try:
                    unsaid[to] = said, next(said)
                except OSError:  # the other side has closed the connection already
                    to.close()
                    continue
                to.setblocking(False)
                selector.register(to, selectors.EVENT_WRITE)
            for key, _ in selector.select(0.1):
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                said, rest = unsaid[ready]
                try:
                    rest = rest[ready.send(rest) :]
                except OSError:
                    self.answered += 1
                    selector.unregister(ready)
                    del unsaid[ready]
                    ready.close()
                    continue
                unsaid[ready] = said, rest or next(said)
        for to in unsaid:
            to.close()
        selector.close()

    def hear(
        self,
        selector: selectors.BaseSelector,
        words: dict[socket.socket, Iterator[int]],
        to: object,
    ) -> None:
        """Reads what has arrived on the connection `to`; drops the connection if it was closed."""
        assert isinstance(to, socket.socket)
        try:
            got = len(to.recv(1 << 16))
        except BlockingIOError:
            return
        except OSError:
            got = 0
        self.received += got
        if got == 0:
            self.answered += 1
            selector.unregister(to)
            del words[to]
            to.close()


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    name: getattr(Attacker, name)
    for name in (
        *("garbage", "resets", "slow", "silent", "holds"),
        *("statuses", "questions", "joins_nothing", "half_open"),
        *("zero_windows", "unread_decisions", "untold_decisions", "lanes"),
        *("groups", "newcomers", "names", "never_ready", "bystander"),
    )
}


class Attackers:
    """Attacker processes, one for each job, which attack during the `with` block.

    `said`: the first line of each attacker, which it prints before the block begins. `told`: the
    last line of each attacker, after the block. Raises RuntimeError if an attacker ends too early.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.said: list[dict[str, int]] = []
        self.told: list[dict[str, int]] = []
        self._lines: list[queue.Queue[str | None]] = []
        self._children: list[Child] = []
        for job in jobs:
            lines: queue.Queue[str | None] = queue.Queue()
            child = Child(
                [sys.executable, "-m", "harness.attacker"],
                heard=lines.put,
                ended=lambda _, lines=lines: lines.put(None),  # type: ignore[misc]
            )
            child.say(job.to_json())
            self._lines.append(lines)
            self._children.append(child)

    def _next(self, place: int) -> dict[str, int]:
        """The next line of attacker number `place`."""
        line = self._lines[place].get(timeout=WAIT_SECONDS_MAX)
        if line is None:
            raise RuntimeError(f"an attacker ended: {self._children[place].errors}")
        said: dict[str, int] = json.loads(line)
        return said

    def __enter__(self) -> Self:
        try:
            for place in range(len(self._children)):
                self.said.append(self._next(place))
        except BaseException:
            self._end()
            raise
        return self

    @property
    def at_work(self) -> bool:
        """Whether an attacker has not finished its job."""
        return any(lines.empty() for lines in self._lines)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for child in self._children:
                child.close_input()
            if kind is None:
                self.told = [self._next(place) for place in range(len(self._children))]
        finally:
            self._end()

    def _end(self) -> None:
        for child in self._children:
            child.end()


def main() -> None:
    """Reads a job from standard input, and attacks until the job or standard input ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    job = Job.from_json(sys.stdin.readline())
    os.nice(job.nice)
    attacker = Attacker(job)

    def wait_for_the_end() -> None:
        sys.stdin.read()
        attacker.over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    ATTACKS[attacker.job.attack](attacker)
    told = {
        "connections": attacker.connections,
        "answered": attacker.answered,
        "bytes": attacker.received,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
