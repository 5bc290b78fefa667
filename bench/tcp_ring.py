"""The ceiling of a ring: what bare TCP sockets move between these processes, without arithmetic.

It owns one ring of connections, each process sending to the next and receiving from the one before
at the same time, from one thread. It is no collective: nothing is reduced. Its sockets have what
ours have within a machine (engine/session/flow.zig: Pace.held), because with BBR and the buffers of
Linux they are slower. Used by `loopback_worker.py`.
"""

from __future__ import annotations

import os
import select
import socket

from bench.common import KIB

PIECE_BYTES = 64 << 10  # small enough to stay in the cache between the two copies


class TcpRing:
    """A listening socket at first; `connect` makes it a ring."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._sink = memoryview(bytearray(PIECE_BYTES))

    def connect(self, next_port: int, world: int) -> None:
        """Dials the next process and takes the connection of the one before."""
        self._world = world
        self._next = socket.create_connection(("127.0.0.1", next_port))
        self._previous, _ = self._listener.accept()
        for peer in (self._next, self._previous):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            held = 256 * KIB if world <= (os.cpu_count() or 1) else 512 * KIB
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, held)
            peer.setblocking(False)

    def exchange(self, size: int) -> None:
        """Sends what an all_reduce of `size` bytes sends in a ring, and receives as much.

        That is 2 (n-1)/n of it. Raises ConnectionError when a neighbour is gone.
        """
        self._move(2 * (self._world - 1) * size // self._world)

    def barrier(self) -> None:
        """Returns once all have called it: after n-1 bytes each has heard of everybody."""
        for _ in range(self._world - 1):
            self._move(1)

    def close(self) -> None:
        """Closes all sockets."""
        for peer in (self._next, self._previous, self._listener):
            peer.close()

    def _move(self, count: int) -> None:
        to_send, to_receive = count, count
        while to_send or to_receive:
            progress = False
            if to_send:
                sent = self._send(min(to_send, PIECE_BYTES))
                to_send -= sent
                progress |= sent > 0
            if to_receive:
                received = self._receive(min(to_receive, PIECE_BYTES))
                to_receive -= received
                progress |= received > 0
            if not progress:
                reading = [self._previous] if to_receive else []
                writing = [self._next] if to_send else []
                select.select(reading, writing, [])

    def _send(self, count: int) -> int:
        try:
            return self._next.send(self._buffer[:count])
        except BlockingIOError:
            return 0

    def _receive(self, count: int) -> int:
        try:
            received = self._previous.recv_into(self._sink, count)
        except BlockingIOError:
            return 0
        if received == 0:
            raise ConnectionError("the process before this one in the ring is gone")
        return received
