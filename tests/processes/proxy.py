"""A TCP proxy that is a bad network: delay, rate, loss of a direction, silence, reset, refusal.

One Gate stands before each process; peers dial the gate's address and know no other. The dialing
process is read from the hello (docs/internals/PROTOCOL.md), so every ordered pair of processes has
a rule of its own for the bytes from one to the other. It runs in one thread; what is asked of it
from another thread is in force when the call returns. It knows no times: tests and tests/chaos do.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
import itertools
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tamper import Changer, Tamper

from pccl_py.closing import Closing

HELLO_BYTES = 96
SENDER = slice(32, 48)  # of the hello: the id of the peer that dials
READ_BYTES = 256 * 1024
# Bytes that wait in one direction; more stays with the sender, whose window closes.
QUEUE_BYTES_MAX = 1024 * 1024
QUEUE_SECONDS_MAX = 0.1  # of a line with a rate
READ_SECONDS = 0.02

Name = str
Address = tuple[str, int]


class Fate(enum.Enum):
    """The fate of bytes."""

    PASS = "pass"
    # Nothing moves, and nothing is lost: packets that vanish are sent again once the way is free.
    HOLD = "hold"
    # The sender sees its bytes taken; they never arrive. The connection is of no more use.
    SWALLOW = "swallow"


@dataclass(frozen=True)
class Rule:
    """One direction between two processes."""

    fate: Fate = Fate.PASS
    delay: float = 0.0
    rate: float | None = None  # bytes per second, of each connection
    segment: int | None = None  # largest piece that is sent at once
    refuse: bool = False  # of new connections: they are reset


CLEAR = Rule()


def reset(connection: socket.socket) -> None:
    """Closes it so that the other end sees a reset, not an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Gate:
    """Where a process is reached. The process itself listens at `target`."""

    def __init__(self, name: Name, target: Address) -> None:
        self.name = name
        self.target = target
        # Keeps the port while nobody listens.
        self.holder = hold_port()
        self.address: Address = self.holder.getsockname()
        self.listener: socket.socket | None = None

    def listen(self) -> socket.socket:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(self.address)
        self.listener.listen(128)
        self.listener.setblocking(False)
        return self.listener


def hold_port() -> socket.socket:
    """A port of loopback that is nobody else's; whoever sets SO_REUSEADDR may listen on it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


@dataclass(eq=False)
class Flow:
    """One direction of a connection."""

    sender: Name
    receiver: Name
    source: socket.socket
    sink: socket.socket
    rule: Rule = CLEAR
    changer: Changer | None = None
    waiting: deque[tuple[float, memoryview]] = field(default_factory=deque)
    waiting_bytes: int = 0
    free_at: float = 0.0  # when the line has sent what was given to it
    ended: bool = False  # the source has said its last
    over: bool = False  # the sink has been told
    stuffed: bool = False  # the sink takes no more right now
    swallowed: bool = False
    timer_at: float = 0.0  # when it is looked at again; 0: nothing is set

    @property
    def reads(self) -> bool:
        rate = self.rule.rate
        room = QUEUE_BYTES_MAX if rate is None else rate * QUEUE_SECONDS_MAX
        return not self.ended and self.waiting_bytes <= room and self.rule.fate is not Fate.HOLD

    @property
    def read_bytes(self) -> int:
        """A slow line is given little at a time, or bytes would arrive in heaps."""
        if self.rule.rate is None:
            return READ_BYTES
        return max(1, min(READ_BYTES, int(self.rule.rate * READ_SECONDS)))

    def due(self, now: float) -> bool:
        return bool(self.waiting) and self.waiting[0][0] <= now


@dataclass(eq=False)
class Connection:
    """Both directions between the process that dialed and the one behind the gate."""

    gate: Gate
    client: socket.socket
    hello: bytes = b""
    client_name: Name = ""
    server: socket.socket | None = None
    connecting: bool = False
    flows: list[Flow] = field(default_factory=list)
    closed: bool = False

    @property
    def pair(self) -> frozenset[Name]:
        return frozenset((self.client_name, self.gate.name))


class Proxy(Closing):
    """All gates, and the thread that moves the bytes. `name_of` names a peer by its id; `tamper`
    changes what some peer says."""

    def __init__(self, name_of: Callable[[bytes], Name], tamper: Tamper | None = None) -> None:
        self._name_of = name_of
        self._tamper = tamper
        self._selector = selectors.DefaultSelector()
        self._rules: dict[tuple[Name, Name], Rule] = {}
        self._connections: set[Connection] = set()
        self._gates: list[Gate] = []
        self._timers: list[tuple[float, int, Flow, Connection]] = []
        self._timer_number = itertools.count()
        self._moved: dict[tuple[Name, Name], int] = {}
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    # ---- from other threads

    def gate(self, name: Name, target: Address) -> Gate:
        """A new gate before a process that listens, or will listen, at `target`."""

        def make() -> Gate:
            gate = Gate(name, target)
            self._gates.append(gate)
            self._open(gate)
            return gate

        made: Gate = self._do(make)
        return made

    def close_gate(self, gate: Gate) -> None:
        """Nobody listens there any more, as when a process has died; its port stays taken."""
        self._do(lambda: self._shut(gate))

    def open_gate(self, gate: Gate) -> None:
        self._do(lambda: self._open(gate))

    def set_rule(self, sender: Name, receiver: Name, rule: Rule) -> None:
        """From now on, also for the connections that are there."""
        self._do(lambda: self._set_rule(sender, receiver, rule))

    def set_rules(self, one: Name, other: Name, rule: Rule) -> None:
        """In both directions."""
        self.set_rule(one, other, rule)
        self.set_rule(other, one, rule)

    def heal(self) -> None:
        """Forgets all rules."""

        def clear() -> None:
            for sender, receiver in list(self._rules):
                self._set_rule(sender, receiver, CLEAR)

        self._do(clear)

    def reset(self, one: Name, other: Name) -> int:
        """Resets every connection between the two, at both ends. How many there were."""
        return self._each(one, other, self._break)

    def half_open(self, victim: Name, other: Name) -> int:
        """Resets them at `other` only: `victim` goes on believing in connections of nobody."""
        return self._each(victim, other, lambda connection: self._orphan(connection, victim))

    def connections(self, one: Name, other: Name) -> int:
        """How many are up between the two."""
        return self._each(one, other, lambda connection: None)

    def moved(self, sender: Name, receiver: Name) -> int:
        """Bytes that have gone from one to the other so far."""
        count: int = self._do(lambda: self._moved.get((sender, receiver), 0))
        return count

    def close(self) -> None:
        """Ends the thread; every connection is reset."""

        def stop() -> None:
            self._stopping = True

        self._do(stop)
        self._thread.join()
        self._wake_write.close()

    def _do(self, job: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._jobs.append((job, done))
        self._wake_write.send(b"\0")
        return done.result()

    def _each(self, one: Name, other: Name, action: Callable[[Connection], None]) -> int:
        def act() -> int:
            found = [c for c in self._connections if c.pair == {one, other}]
            for connection in found:
                action(connection)
            return len(found)

        count: int = self._do(act)
        return count

    # ---- the thread

    def _run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select(self._until_timer()):
                key.data(events)
            self._run_timers()
        for connection in list(self._connections):
            self._break(connection)
        for gate in self._gates:
            self._shut(gate)
            gate.holder.close()
        self._selector.close()
        self._wake_read.close()

    def _woken(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(4096)
        while self._jobs:
            job, done = self._jobs.popleft()
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001  raised in the thread that asked
                done.set_exception(error)

    def _until_timer(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, flow, connection = heapq.heappop(self._timers)
            flow.timer_at = 0.0
            if not connection.closed:
                self._push(connection, flow)
                self._watch(connection)

    # ---- connections

    def _open(self, gate: Gate) -> None:
        listener = gate.listen()
        accept = lambda events: self._accept(gate, listener)  # noqa: E731
        self._selector.register(listener, selectors.EVENT_READ, accept)

    def _shut(self, gate: Gate) -> None:
        if gate.listener is None:
            return
        self._selector.unregister(gate.listener)
        gate.listener.close()
        gate.listener = None

    def _accept(self, gate: Gate, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it went as it came
        self._prepare(client)
        connection = Connection(gate, client)
        self._connections.add(connection)
        greet = lambda events: self._greeted(connection)  # noqa: E731
        self._selector.register(client, selectors.EVENT_READ, greet)

    def _prepare(self, end: socket.socket) -> None:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _greeted(self, connection: Connection) -> None:
        """Reads the hello, which says who is there; then the other half of the way is made."""
        try:
            read = connection.client.recv(HELLO_BYTES - len(connection.hello))
        except BlockingIOError:
            return None
        except OSError:
            read = b""
        if not read:
            return self._break(connection)
        connection.hello += read
        if len(connection.hello) < HELLO_BYTES:
            return None
        connection.client_name = self._name_of(connection.hello[SENDER])
        self._selector.unregister(connection.client)
        return self._go_on(connection)

    def _go_on(self, connection: Connection) -> None:
        rule = self._rules.get((connection.client_name, connection.gate.name), CLEAR)
        if rule.refuse:
            return self._break(connection)
        if rule.fate is not Fate.PASS:
            return None  # the dial has not arrived; it does when the way is free
        server = socket.socket()
        self._prepare(server)
        connection.server = server
        connection.connecting = True
        server.connect_ex(connection.gate.target)
        connected = lambda events: self._connected(connection)  # noqa: E731
        self._selector.register(server, selectors.EVENT_WRITE, connected)
        return None

    def _connected(self, connection: Connection) -> None:
        server = connection.server
        assert server is not None
        self._selector.unregister(server)
        connection.connecting = False
        if server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            return self._break(connection)
        here, there = connection.client_name, connection.gate.name
        forth = Flow(here, there, connection.client, server, self._rule_of(here, there))
        back = Flow(there, here, server, connection.client, self._rule_of(there, here))
        if self._tamper is not None:
            forth.changer = self._tamper.changer(here, dials=True)
            back.changer = self._tamper.changer(there, dials=False)
        connection.flows = [forth, back]
        self._take(connection, forth, connection.hello)
        return self._watch(connection)

    def _rule_of(self, sender: Name, receiver: Name) -> Rule:
        return self._rules.get((sender, receiver), CLEAR)

    def _set_rule(self, sender: Name, receiver: Name, rule: Rule) -> None:
        if rule == CLEAR:
            self._rules.pop((sender, receiver), None)
        else:
            self._rules[(sender, receiver)] = rule
        for connection in list(self._connections):
            waits = not connection.flows and not connection.connecting
            if waits and (connection.client_name, connection.gate.name) == (sender, receiver):
                self._go_on(connection)
            for flow in connection.flows:
                if (flow.sender, flow.receiver) != (sender, receiver):
                    continue
                flow.rule = rule
                if rule.fate is Fate.PASS and flow.swallowed:
                    self._break(connection)  # there is a hole in the stream
                    break
                self._push(connection, flow)
            self._watch(connection)

    def _break(self, connection: Connection) -> None:
        self._close(connection, [connection.client, connection.server])

    def _orphan(self, connection: Connection, victim: Name) -> None:
        """The end at `victim` stays open, and nobody is behind it."""
        stays = connection.client if connection.client_name == victim else connection.server
        if stays is None or not connection.flows:
            return self._break(connection)
        other = connection.server if stays is connection.client else connection.client
        assert other is not None
        if stays.fileno() < 0:
            return self._break(connection)  # it was the other end that stayed open
        if other.fileno() < 0:
            return None  # nobody is behind it already
        with contextlib.suppress(KeyError):
            self._selector.unregister(other)
        reset(other)
        for flow in connection.flows:
            if flow.source is stays:
                flow.rule, flow.swallowed = Rule(fate=Fate.SWALLOW), True
            else:
                flow.ended = flow.over = True
            flow.waiting.clear()
            flow.waiting_bytes = 0
        connection.flows = [flow for flow in connection.flows if flow.source is stays]
        return self._watch(connection)

    def _close(self, connection: Connection, ends: list[socket.socket | None]) -> None:
        if connection.closed:
            return
        connection.closed = True
        self._connections.discard(connection)
        for end in ends:
            if end is None or end.fileno() < 0:
                continue
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            reset(end)

    # ---- bytes

    def _served(self, connection: Connection, end: socket.socket, events: int) -> None:
        if connection.closed:
            return
        for flow in connection.flows:
            if events & selectors.EVENT_READ and flow.source is end and flow.reads:
                self._read(connection, flow)
            if connection.closed:
                return
            if events & selectors.EVENT_WRITE and flow.sink is end:
                flow.stuffed = False
                self._push(connection, flow)
            if connection.closed:
                return
        self._watch(connection)

    def _read(self, connection: Connection, flow: Flow) -> None:
        try:
            data = flow.source.recv(flow.read_bytes)
        except BlockingIOError:
            return None
        except OSError:
            return self._break(connection)
        if data:
            return self._take(connection, flow, data)
        flow.ended = True
        return self._push(connection, flow)

    def _take(self, connection: Connection, flow: Flow, data: bytes) -> None:
        if flow.rule.fate is Fate.SWALLOW:
            flow.swallowed = True
            return
        if flow.changer is not None:
            data = flow.changer.feed(data)
            if not data:
                return
        size = flow.rule.segment or len(data)
        for begin in range(0, len(data), size):
            piece = memoryview(data)[begin : begin + size]
            flow.waiting.append((self._due(flow, len(piece)), piece))
            flow.waiting_bytes += len(piece)
        self._push(connection, flow)

    def _due(self, flow: Flow, count: int) -> float:
        """When so many bytes more have gone over the line."""
        now = time.monotonic()
        due = now + flow.rule.delay
        if flow.rule.rate is not None:
            flow.free_at = max(now, flow.free_at) + count / flow.rule.rate
            return flow.free_at + flow.rule.delay
        # None overtakes another.
        return max(due, flow.waiting[-1][0]) if flow.waiting else due

    def _push(self, connection: Connection, flow: Flow) -> None:
        """Sends on what is due."""
        now = time.monotonic()
        if flow.rule.fate is Fate.HOLD:
            return None
        while flow.due(now) and not flow.stuffed:
            due, data = flow.waiting.popleft()
            try:
                count = flow.sink.send(data)
            except BlockingIOError:
                count = 0
            except OSError:
                return self._break(connection)
            flow.waiting_bytes -= count
            key = flow.sender, flow.receiver
            self._moved[key] = self._moved.get(key, 0) + count
            if count < len(data):
                flow.waiting.appendleft((due, data[count:]))
                flow.stuffed = True
        if flow.waiting and not flow.stuffed and not flow.timer_at:
            flow.timer_at = flow.waiting[0][0]
            entry = (flow.timer_at, next(self._timer_number), flow, connection)
            heapq.heappush(self._timers, entry)
        if flow.ended and not flow.waiting and not flow.over:
            flow.over = True
            try:
                flow.sink.shutdown(socket.SHUT_WR)
            except OSError:
                return self._break(connection)
            if all(other.over for other in connection.flows):
                self._break(connection)
        return None

    def _watch(self, connection: Connection) -> None:
        """Asks the selector for what the flows can use now."""
        if connection.closed or not connection.flows:
            return
        for end in dict.fromkeys(self._ends(connection)):
            wanted = 0
            for flow in connection.flows:
                if flow.source is end and flow.reads:
                    wanted |= selectors.EVENT_READ
                if flow.sink is end and flow.stuffed and flow.rule.fate is not Fate.HOLD:
                    wanted |= selectors.EVENT_WRITE
            self._ask(connection, end, wanted)

    def _ends(self, connection: Connection) -> Iterator[socket.socket]:
        for flow in connection.flows:
            for end in (flow.source, flow.sink):
                if end.fileno() >= 0:
                    yield end

    def _ask(self, connection: Connection, end: socket.socket, wanted: int) -> None:
        known = self._selector.get_map().get(end)
        if known is None and wanted:
            serve = lambda events: self._served(connection, end, events)  # noqa: E731
            self._selector.register(end, wanted, serve)
        elif known is not None and not wanted:
            self._selector.unregister(end)
        elif known is not None and known.events != wanted:
            self._selector.modify(end, wanted, known.data)
