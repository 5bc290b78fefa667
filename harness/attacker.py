"""An attacker in a process of its own: what a stranger, or somebody with the token, does to a run.

`python -m harness.attacker` reads one line, a `Job` as JSON, and does it until its standard input
ends, or until it has made as many connections as the job says. It says {"began": 1} after its first
blow and {"connections": ..., "answered": ..., "bytes": ...} at its end. It knows of PCCL only what
harness/wire.py says, so it imports nothing of it. `Attackers` starts such processes, for
tests/hostile and `python -m bench hostile`; what must hold meanwhile is theirs.
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

# The answer to a hello, and what `welcome` says.
WELCOMED_BYTES = wire.ANSWER_BYTES + wire.HEAD_BYTES + 37
WAIT_SECONDS_MAX = 60.0
BYSTANDER_PLACES = 64  # as a coordinator has for strangers
RESET = struct.pack("ii", 1, 0)


def long_address(number: int) -> bytes:
    """255 bytes that are the address of a host, and lead nowhere."""
    labels = b".".join([b"x" * 60] * 3)
    head = b"n%06d." % number + labels
    return head + b"." + b"y" * (255 - len(head) - 1 - len(b".invalid:1")) + b".invalid:1"


@dataclass(frozen=True)
class Job:
    """One attack and its targets. Without a run id it is a stranger's."""

    attack: str
    ports: list[int]
    run_id: str = "00" * 16
    seed: int = 0
    connections: int = 0  # 0: no end of its own
    rate: int = 0  # connections in a second, at most; 0: as fast as it can
    sources: int = 0  # hosts of the loopback network that it comes from; 0: the usual one
    nice: int = 0  # as nice(1): what is left of the cores is enough for it
    group: str = "default"
    meant: str = "00" * 16  # the peer that lanes are for

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Job:
        """The inverse."""
        return cls(**json.loads(line))


class Attacker:
    """All attacks, and their count of connections, which come back when they are closed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.random = random.Random(job.seed)
        self.connections = self.answered = self.received = 0
        self.over = threading.Event()
        self._ports = job.ports
        self._began = time.monotonic()

    def wants_more(self) -> bool:
        """Nobody has ended it, and it has not done all of its job."""
        enough = self.job.connections and self.connections >= self.job.connections
        return not enough and not self.over.is_set()

    def secret(self) -> bytes:
        """The run id that it knows, if any."""
        return bytes.fromhex(self.job.run_id)

    def connect(self, *, receive_bytes: int = 0) -> socket.socket | None:
        """The next connection, one port after the other. None if it is refused, as while a
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
        """Where the next connection comes from, if not from the usual host."""
        return f"127.0.1.{1 + self.connections % self.job.sources}"

    def name(self) -> bytes:
        """A new id."""
        return self.random.randbytes(16)

    # ---- strangers

    def garbage(self) -> None:
        """Says nonsense, waits until it is hung up on, or goes with a reset."""
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
        """Nothing sensible, and what is more and more nearly right but for the run id."""
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
        """Connects and resets, as fast as it can."""
        while self.wants_more():
            to = self.connect()
            if to is not None:
                to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                to.close()

    def slow(self) -> None:
        """A thousand at once, each of which says a byte of a hello now and then."""
        self.hold(1000, lambda: b"", trickle=True)

    def silent(self) -> None:
        """More than there are places for strangers; none says anything."""
        self.hold(80, lambda: b"")

    def holds(self) -> None:
        """Connects and holds, a few hundred at once."""
        self.hold(300, lambda: MAGIC)

    # ---- with the run id

    def statuses(self) -> None:
        """As many as there are places; they are welcome, and do not go on."""
        self.hold(64, lambda: hello(STATUS, self.secret(), self.name()))

    def questions(self) -> None:
        """Asks for the status, again and again."""
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
        """Peers that are welcome, beat, and join nothing; fewer than a run takes."""
        self.hold(200, lambda: hello(CONTROL, self.secret(), self.name()), beats=True)

    def half_open(self) -> None:
        """Peers that were there and say no more, as if their machine had lost its power."""
        self.hold(200, lambda: hello(CONTROL, self.secret(), self.name()) + heartbeat(0))

    def zero_windows(self) -> None:
        """Peers that beat as fast as they may, and read nothing."""
        self.flood(8, self.beats)

    def unread_decisions(self) -> None:
        """Members, each alone in a group of its own, that vote as fast as they may, and read
        nothing of what is decided, though they say that they have."""
        self.flood(8, lambda to: self.votes(to, tells=True))

    def untold_decisions(self) -> None:
        """The same, and they do not say what they have seen."""
        self.flood(8, lambda to: self.votes(to, tells=False))

    def beats(self, to: socket.socket) -> Iterator[bytes]:
        """The words of a peer that joins nothing."""
        to.sendall(hello(CONTROL, self.secret(), self.name()))
        while True:
            yield b"".join(heartbeat(number) for number in range(256))

    def votes(self, to: socket.socket, *, tells: bool) -> Iterator[bytes]:
        """The votes of a member, once its group has begun. Its calls have numbers of their own,
        since each is decided once, and at once, so all before it are decided."""
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
        """Lanes to one peer, whose id the status tells, under ids that nobody has."""
        meant = bytes.fromhex(self.job.meant)
        largest = b"\xff"  # the one with the larger id dials
        self.hold(1000, lambda: hello(LANE, self.secret(), largest + self.name()[1:], meant))

    def groups(self) -> None:
        """Newcomers of groups that nobody has heard of, each with a name of its own. They go."""
        while self.wants_more():
            group = b"g%d-%d" % (self.job.seed, self.connections)
            self.come_and_go(group, b"127.0.0.1:1")

    def newcomers(self) -> None:
        """Newcomers, at once, that read nothing; they go one by one. Half of them say that they are
        at names of 255 bytes, which lead nowhere.
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
        """Newcomers without a pause, each for a second, which read nothing and open no lane. Half
        of them say that they are at names, which lead nowhere; the others say where they are.
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
        """One newcomer a second, which opens no lane and stays."""
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
        """One newcomer, until it hears of its group, or is hung up on."""
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
        """Is attacked itself: listens at the first port, which it says, keeps 64 connections, and
        hangs up on whoever says something. Attackers cost a machine as much when they attack this
        as they cost it anyway."""
        selector = selectors.DefaultSelector()
        held: dict[socket.socket, None] = {}  # in the order in which they came
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
        """Keeps so many connections, and makes new ones for those that are closed."""
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
        """Keeps so many connections that read nothing, and says on each what `words` gives, as fast
        as it is taken. Whoever is hung up on is `answered`, and comes again."""
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
                except OSError:  # it is gone before it was in
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
        """Takes what has come on one of them, perhaps its end."""
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
    """The other side: processes that attack until this ends. `told` is what they have done, then.

    They have begun when it is entered; `said` is how. Raises RuntimeError if one of them cannot.
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
        """The next line of one of them."""
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
        """One of them has not done all of its job."""
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
    """See the head of this file."""
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
