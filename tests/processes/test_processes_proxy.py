"""The faulty proxy is itself measured: a rig that does not disturb proves nothing.

Plain sockets on both sides of one gate; the dialer says the hello of peer "1", and the process
behind the gate is "0". Times are lower bounds of what the rule says, and upper bounds wide enough
for a busy machine.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from proxy import HELLO_BYTES, SENDER, Fate, Gate, Proxy, Rule

pytestmark = pytest.mark.alone  # times have upper bounds

SECONDS_MAX = 20.0
QUIET_SECONDS = 0.3  # in which nothing may arrive
LATE = 1.0  # what a busy machine may add
MIB = 1024 * 1024


def hello(number: int) -> bytes:
    message = bytearray(HELLO_BYTES)
    message[SENDER] = bytes([number + 1]) * 16
    return bytes(message)


@dataclass
class Pair:
    """A connection through the proxy, from peer 1 to the process 0 behind the gate."""

    proxy: Proxy
    gate: Gate
    listener: socket.socket
    one: socket.socket
    zero: socket.socket

    def again(self) -> tuple[socket.socket, socket.socket]:
        """A further connection, with its hello said and heard."""
        one = dial(self.gate)
        return one, accept(self.listener)


def dial(gate: Gate) -> socket.socket:
    one = socket.create_connection(gate.address, SECONDS_MAX)
    one.sendall(hello(1))
    return one


def accept(listener: socket.socket) -> socket.socket:
    zero, _ = listener.accept()
    zero.settimeout(SECONDS_MAX)
    assert receive(zero, HELLO_BYTES) == hello(1), "the hello goes on to the process"
    return zero


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(SECONDS_MAX)
        proxy = stack.enter_context(Proxy(lambda peer: str(peer[0] - 1)))
        gate = proxy.gate("0", listener.getsockname())
        one = stack.enter_context(dial(gate))
        zero = stack.enter_context(accept(listener))
        yield Pair(proxy, gate, listener, one, zero)


def receive(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        assert more, f"the end came after {len(data)} of {count} bytes"
        data += more
    return data


def round_trip(a: socket.socket, b: socket.socket) -> float:
    began = time.monotonic()
    a.sendall(b"ping")
    assert receive(b, 4) == b"ping"
    b.sendall(b"pong")
    assert receive(a, 4) == b"pong"
    return time.monotonic() - began


def is_quiet(end: socket.socket) -> bool:
    """Nothing arrives for a while, and the connection stays."""
    end.settimeout(QUIET_SECONDS)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(SECONDS_MAX)
    return False


def test_without_rules_bytes_and_ends_go_through(pair: Pair) -> None:
    assert round_trip(pair.one, pair.zero) < LATE
    data = bytes(range(256)) * 4096
    pair.one.sendall(data)
    assert receive(pair.zero, len(data)) == data
    pair.one.shutdown(socket.SHUT_WR)
    assert pair.zero.recv(1) == b""
    pair.zero.sendall(b"the other way is still open")
    assert receive(pair.one, 3) == b"the"
    assert pair.proxy.moved("1", "0") == HELLO_BYTES + 4 + len(data)


def test_delay_is_that_of_each_direction(pair: Pair) -> None:
    pair.proxy.set_rule("1", "0", Rule(delay=0.2))
    assert 0.2 <= round_trip(pair.one, pair.zero) < 0.2 + LATE
    pair.proxy.set_rules("1", "0", Rule(delay=0.15))
    assert 0.3 <= round_trip(pair.zero, pair.one) < 0.3 + LATE
    pair.proxy.heal()
    assert round_trip(pair.one, pair.zero) < 0.2


def test_a_delay_delays_and_does_not_throttle(pair: Pair) -> None:
    pair.proxy.set_rule("1", "0", Rule(delay=0.2))
    began = time.monotonic()
    for _ in range(10):
        pair.one.sendall(b"x" * 1000)
    receive(pair.zero, 10_000)
    assert 0.2 <= time.monotonic() - began < 0.2 + LATE


@pytest.mark.parametrize("rate", [100_000.0, 2_000_000.0])
def test_rate_is_kept_in_one_direction_only(pair: Pair, rate: float) -> None:
    pair.proxy.set_rule("1", "0", Rule(rate=rate))
    count = int(rate / 2)
    began = time.monotonic()
    pair.one.sendall(b"x" * count)
    first = receive(pair.zero, count // 10)
    assert len(first) == count // 10 and time.monotonic() - began < 0.2 + LATE, "in heaps"
    receive(pair.zero, count - count // 10)
    seconds = time.monotonic() - began
    assert 0.45 <= seconds < 0.5 + LATE, f"{count / seconds:.0f} bytes/s, not {rate:.0f}"
    began = time.monotonic()
    pair.zero.sendall(b"x" * 100_000)
    receive(pair.one, 100_000)
    assert time.monotonic() - began < 0.45


def test_segments_come_one_by_one(pair: Pair) -> None:
    pair.proxy.set_rule("1", "0", Rule(rate=500, segment=1))
    pair.one.sendall(b"x" * 100)
    reads: list[int] = []
    while sum(reads) < 100:
        reads.append(len(pair.zero.recv(1000)))
    assert len(reads) > 50, reads  # a busy machine lets some wait together


def test_a_direction_that_is_held_is_silent_while_the_other_works(pair: Pair) -> None:
    pair.proxy.set_rule("1", "0", Rule(fate=Fate.HOLD))
    pair.one.sendall(b"late")
    assert is_quiet(pair.zero)
    pair.zero.sendall(b"works")
    assert receive(pair.one, 5) == b"works"
    pair.proxy.heal()
    assert receive(pair.zero, 4) == b"late", "nothing was lost"


def test_silence_keeps_connections_open_and_closes_the_window(pair: Pair) -> None:
    pair.proxy.set_rules("1", "0", Rule(fate=Fate.HOLD))
    pair.one.settimeout(QUIET_SECONDS)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 64 * MIB:  # until the kernel's buffers are full
            sent += pair.one.send(b"x" * MIB)
    assert is_quiet(pair.zero) and sent < 64 * MIB
    with dial(pair.gate):  # the kernel says yes, and nobody answers
        pair.listener.settimeout(QUIET_SECONDS)
        with pytest.raises(TimeoutError):
            pair.listener.accept()
        pair.listener.settimeout(SECONDS_MAX)
        pair.proxy.heal()
        accept(pair.listener).close()
    receive(pair.zero, sent)


def test_swallowed_bytes_never_come_and_healing_breaks_the_connection(pair: Pair) -> None:
    pair.proxy.set_rule("1", "0", Rule(fate=Fate.SWALLOW))
    pair.one.sendall(b"x" * 16 * MIB)  # is taken
    assert is_quiet(pair.zero)
    pair.zero.sendall(b"works")
    assert receive(pair.one, 5) == b"works"
    pair.proxy.heal()
    for end in (pair.one, pair.zero):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_a_reset_is_one_at_both_ends_and_counted(pair: Pair) -> None:
    second = pair.again()
    assert pair.proxy.connections("0", "1") == 2
    assert pair.proxy.reset("1", "0") == 2
    for end in (pair.one, pair.zero, *second):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
        end.close()
    for end in pair.again():
        end.close()  # new ones are let in


def test_half_open_leaves_one_end_alone(pair: Pair) -> None:
    assert pair.proxy.half_open("1", "0") == 1
    with pytest.raises(ConnectionResetError):
        pair.zero.recv(1)
    pair.one.sendall(b"x" * 16 * MIB)  # is taken
    assert is_quiet(pair.one)
    pair.proxy.half_open("1", "0")  # as it is already
    assert is_quiet(pair.one)
    pair.one.close()
    assert round_trip(*pair.again()) < LATE


def test_refused_connections_are_reset_and_old_ones_stay(pair: Pair) -> None:
    pair.proxy.set_rule("1", "0", Rule(refuse=True))
    with dial(pair.gate) as one, pytest.raises(ConnectionResetError):
        one.recv(1)
    assert round_trip(pair.one, pair.zero) < LATE
    pair.proxy.heal()
    assert round_trip(*pair.again()) < LATE


def test_a_closed_gate_refuses_as_a_port_without_a_process_does(pair: Pair) -> None:
    pair.proxy.close_gate(pair.gate)
    with pytest.raises(ConnectionRefusedError):
        dial(pair.gate)
    pair.proxy.open_gate(pair.gate)
    assert round_trip(*pair.again()) < LATE


def test_a_process_that_does_not_listen_is_seen_as_a_reset(pair: Pair) -> None:
    pair.listener.close()
    with dial(pair.gate) as one, pytest.raises(ConnectionResetError):
        one.recv(1)


def test_rules_are_of_one_pair(pair: Pair) -> None:
    pair.proxy.set_rules("0", "2", Rule(fate=Fate.HOLD))
    pair.proxy.set_rules("1", "2", Rule(fate=Fate.SWALLOW))
    assert round_trip(pair.one, pair.zero) < LATE


def test_an_end_that_resets_is_seen_at_the_other(pair: Pair) -> None:
    pair.proxy.set_rule("1", "0", Rule(delay=0.05))
    pair.one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    pair.one.close()
    with pytest.raises(ConnectionResetError):
        pair.zero.recv(1)
