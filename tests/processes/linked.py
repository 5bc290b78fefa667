"""A world whose links go through the faulty proxy: peers and coordinator by name, rules per pair.

Peer r is called "r" there, and the coordinator COORDINATOR. The meaning of the rules is proxy.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from peers import ANSWER_SECONDS_MAX, Peer, World
from proxy import Proxy, hold_port
from tamper import Tamper

COORDINATOR = "coordinator"


class LinkedWorld(World):
    """Like World; peers that join get a gate each."""

    def __init__(self, n: int, *, tamper: Tamper | None = None, **options: Any) -> None:
        self.proxy = Proxy(lambda peer: str(peer[0] - 1), tamper)
        # Ports that are taken, and on which only the processes listen.
        self._ports = [hold_port()]
        bound = self._ports[0].getsockname()
        gate = self.proxy.gate(COORDINATOR, bound)
        # The port is kept by its holder, so the coordinator may have exactly this one.
        addresses: dict[str, Any] = {
            "bind": "{}:{}".format(*bound),
            "advertise": "{}:{}".format(*gate.address),
        }
        try:
            super().__init__(n, **addresses, **options)
        except BaseException:
            self._close_links()
            raise

    def _addresses(self, peer: Peer) -> dict[str, str]:
        port = hold_port()
        self._ports.append(port)
        gate = self.proxy.gate(str(peer.number), port.getsockname())
        return {
            "bind": "{}:{}".format(*port.getsockname()),
            "advertise": "{}:{}".format(*gate.address),
        }

    def await_bytes(self, sender: int, receiver: int, more: int) -> None:
        """Until so many bytes more have gone this way: an operation is on its way there."""
        names = str(sender), str(receiver)
        start = self.proxy.moved(*names)
        await_condition(lambda: self.proxy.moved(*names) >= start + more, f"bytes from {names}")

    def _end(self) -> None:
        super()._end()
        self._close_links()

    def _close_links(self) -> None:
        self.proxy.close()
        for port in self._ports:
            port.close()


def await_condition(condition: Callable[[], bool], what: str) -> None:
    """Asks again and again; what is asked takes its own time. Fails after a while."""
    limit = time.monotonic() + ANSWER_SECONDS_MAX
    while not condition():
        assert time.monotonic() < limit, f"still waiting for {what}"
