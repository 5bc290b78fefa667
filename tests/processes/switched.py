"""A world whose processes meet at a switch, each in a network namespace (namespaces.py).

Peer r is called "r" there, and the coordinator COORDINATOR: it is in the process of the test, with
its sockets in its namespace. The processes of a Stage serve one world after the other.
"""

from __future__ import annotations

from typing import Any

from contributions import SLOTS
from linked import COORDINATOR, await_condition
from namespaces import Switch
from peers import Nursery, Peer, World

import pccl_py as pccl
from pccl_py.closing import Closing


def name_of(number: int) -> str:
    return str(number % SLOTS)


class Stage(Closing):
    """The switch, and idle processes at it."""

    def __init__(self, n: int) -> None:
        names = [name_of(number) for number in range(n)]
        self.switch = Switch([COORDINATOR, *names])
        self.nurseries = {name: Nursery(self.switch.prefix(name)) for name in names}

    def close(self) -> None:
        """Ends what was started on the peers' machines, and removes the network."""
        for nursery in self.nurseries.values():
            nursery.close()
        self.switch.close()


class SwitchedWorld(World):
    """Like World; its switch is whole at first."""

    def __init__(self, stage: Stage, n: int, **options: Any) -> None:
        self._stage = stage
        self.switch = stage.switch
        self.switch.heal()
        super().__init__(n, **options)

    def _start_coordinator(self, **options: Any) -> pccl.Coordinator:
        bind = f"{self.switch.address(COORDINATOR)}:0"
        return self.switch.inside(COORDINATOR, lambda: pccl.Coordinator(bind=bind, **options))

    def _nursery(self, number: int) -> Nursery:
        return self._stage.nurseries[name_of(number)]

    def _addresses(self, peer: Peer) -> dict[str, str]:
        return {"bind": f"{self.switch.address(name_of(peer.number))}:0"}

    def await_bytes(self, number: int, more: int) -> None:
        """Until this peer has heard so many bytes more: an operation is on its way there."""
        name = name_of(number)
        start = self.switch.heard(name)
        await_condition(lambda: self.switch.heard(name) >= start + more, f"{name} to hear")
