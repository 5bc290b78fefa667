"""Small senders and receivers in the emulated network, for `python -m bench wan --verify`.

It owns what goes over the sockets; what is measured by which, and beside what, is in wan_verify.py.
Each prints one object of JSON at its end.

    echo ADDRESS COUNT                      sends packets back, until it is killed
    ask ADDRESS COUNT GAP_MS                the round trips of those that come back
    flood-send ADDRESS MBIT BYTES SECONDS   UDP at a rate of IP packets
    flood-receive ADDRESS MBIT BYTES SECONDS
    stream-send ADDRESS STREAMS SECONDS     TCP, as much as goes
    stream-receive ADDRESS STREAMS SECONDS
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = 5000
IP_HEADERS_BYTES = 28  # of UDP over IPv4
BEGIN_SECONDS_MAX = 20.0
ANSWER_SECONDS_MAX = 1.0
LAST = 0xFFFFFFFF
CHUNK_BYTES = 1 << 18
MARGIN_SECONDS = 1.0  # of a stream, at its beginning, that does not count
HEAD = struct.Struct("!IQ")  # number, and nanoseconds of the clock that all share


def udp(address: str = "") -> socket.socket:
    """A socket, bound where it receives."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if address:
        made.bind((address, PORT))
    return made


def overflows() -> int:
    """Packets of UDP that have come here, but found their socket full."""
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("Udp:"))
    return int(values[names.index("RcvbufErrors")])


def until_there(address: str) -> socket.socket:
    """A connection to a port that may open in a moment."""
    limit = time.monotonic() + BEGIN_SECONDS_MAX
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=BEGIN_SECONDS_MAX)
        except ConnectionRefusedError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)


def echo(address: str, count: str) -> dict[str, Any]:
    """Sends packets back to where they come from."""
    with udp(address) as here:
        while True:
            data, sender = here.recvfrom(2048)
            here.sendto(data, sender)


def ask(address: str, count: str, gap_ms: str) -> dict[str, Any]:
    """Packets at equal distances, whether or not the ones before have come back."""
    trips = []
    with udp() as here:
        here.settimeout(ANSWER_SECONDS_MAX)
        time.sleep(0.5)  # the other end is about to open its port

        def send() -> None:
            for number in range(int(count)):
                here.sendto(HEAD.pack(number, time.monotonic_ns()), (address, PORT))
                time.sleep(float(gap_ms) / 1e3)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(int(count)):
                sent_ns = HEAD.unpack(here.recv(2048))[1]
                trips.append((time.monotonic_ns() - sent_ns) / 1e6)
        except TimeoutError:
            pass
        sender.join()
    return {"trips_ms": trips}


def flood_send(address: str, mbit: str, size: str, seconds: str) -> dict[str, Any]:
    """In steps of a millisecond, at the rate; then its end, several times over."""
    bytes_ = int(size)
    gap = (bytes_ + IP_HEADERS_BYTES) * 8 / (float(mbit) * 1e6)
    with udp() as here:
        time.sleep(0.5)
        begin, number = time.monotonic(), 0
        while (passed := time.monotonic() - begin) < float(seconds):
            while number * gap < passed:
                head = HEAD.pack(number, time.monotonic_ns())
                here.sendto(head.ljust(bytes_, b"\0"), (address, PORT))
                number += 1
            time.sleep(0.001)
        for _ in range(20):
            time.sleep(0.05)
            here.sendto(HEAD.pack(LAST, number), (address, PORT))
    return {}


def flood_receive(address: str, mbit: str, size: str, seconds: str) -> dict[str, Any]:
    """How many came, at which rate, after which times, and whether in order. Those that this
    program was too slow for have come.
    """
    delays: list[float] = []
    times: list[float] = []
    before, out_of_order, sent = -1, 0, 0
    with udp(address) as here:
        here.settimeout(BEGIN_SECONDS_MAX)
        while True:
            data = here.recv(2048)
            number, sent_ns = HEAD.unpack(data[: HEAD.size])
            if number == LAST:
                sent = sent_ns
                break
            now_ns = time.monotonic_ns()
            delays.append((now_ns - sent_ns) / 1e6)
            times.append(now_ns / 1e9)
            out_of_order += number < before
            before = max(before, number)
    packets = len(times) + overflows()
    bits = (packets - 1) * (int(size) + IP_HEADERS_BYTES) * 8
    return {
        "sent": sent,
        "packets": packets,
        "mbit": bits / (times[-1] - times[0]) / 1e6,
        "out_of_order": out_of_order,
        "shortest_ms": min(delays),
        "steady_ms": statistics.median(delays[len(delays) // 2 :]),
    }


def stream_send(address: str, streams: str, seconds: str) -> dict[str, Any]:
    """On each connection as much as goes."""
    chunk = bytes(CHUNK_BYTES)
    end = time.monotonic() + float(seconds) + MARGIN_SECONDS

    def send() -> None:
        with until_there(address) as connection:
            while time.monotonic() < end:
                connection.sendall(chunk)

    _all(int(streams), send)
    return {}


def stream_receive(address: str, streams: str, seconds: str) -> dict[str, Any]:
    """The rate of payload, from a second after the beginning on."""
    counts: list[int] = []
    begin = time.monotonic() + 1.0 + MARGIN_SECONDS
    end = begin + float(seconds) - 1.0
    with socket.create_server((address, PORT)) as listener:

        def receive() -> None:
            connection, _ = listener.accept()
            count = 0
            with connection:
                while data := connection.recv(CHUNK_BYTES):
                    if begin <= time.monotonic() < end:
                        count += len(data)
            counts.append(count)

        _all(int(streams), receive)
    return {"mbit": sum(counts) * 8 / (end - begin) / 1e6}


def _all(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {
    "echo": echo,
    "ask": ask,
    "flood-send": flood_send,
    "flood-receive": flood_receive,
    "stream-send": stream_send,
    "stream-receive": stream_receive,
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](*sys.argv[2:])))
