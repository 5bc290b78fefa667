"""The network of a chaos run: where its processes are, and what a fault does to their links.

Either everybody is behind a gate of the faulty proxy (tests/processes/proxy.py), or in a network
namespace (tests/processes/namespaces.py). The words for faults are those of plan.py, without
"control_" and how long it lasts: a link to the coordinator is one like the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from socket import socket
from typing import TypeVar

from namespaces import Switch
from proxy import Fate, Gate, Proxy, Rule, hold_port

COORDINATOR = "coordinator"
CRAWL_BYTES_PER_SECOND = 20_000.0
DELAY_SECONDS = 0.05
# In a namespace of its own every port is free.
PORT = 7000

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """Where a process is: it listens at `bind`, and others dial `advertise`."""

    bind: str
    advertise: str
    prefix: tuple[str, ...] = ()  # of its command


class Network(ABC):
    """The operations of both. Names are those of slots, and COORDINATOR. A call that ends a fault
    of a pair or of all links of one process may end another one of the same pair too."""

    @abstractmethod
    def site(self, name: str) -> Site: ...

    @abstractmethod
    def strike(self, kind: str, sender: str, receiver: str) -> str:
        """Breaks a link; what is of one direction is of that to `receiver`. Says what it hit."""

    @abstractmethod
    def mend(self, one: str, other: str) -> None: ...

    @abstractmethod
    def isolate(self, name: str) -> None: ...

    @abstractmethod
    def reconnect(self, name: str) -> None: ...

    @abstractmethod
    def heal(self) -> None: ...

    @abstractmethod
    def refuse(self, name: str) -> None:
        """Connections to this process are refused, as where nobody listens."""

    @abstractmethod
    def admit(self, name: str) -> None: ...

    @abstractmethod
    def inside(self, function: Callable[[], T]) -> T:
        """Calls it where the coordinator's `bind` can be dialed, past all faults of links."""

    @abstractmethod
    def close(self) -> None: ...


class ProxyNetwork(Network):
    """Loopback, with a gate before each process. It can do every kind of fault."""

    def __init__(self, names: Iterable[str]) -> None:
        self._proxy = Proxy(lambda peer: str(peer[0] - 1))
        self._ports: dict[str, socket] = {name: hold_port() for name in names}
        self._gates: dict[str, Gate] = {
            name: self._proxy.gate(name, port.getsockname()) for name, port in self._ports.items()
        }

    def site(self, name: str) -> Site:
        bind = "{}:{}".format(*self._ports[name].getsockname())
        return Site(bind, "{}:{}".format(*self._gates[name].address))

    def strike(self, kind: str, sender: str, receiver: str) -> str:
        proxy, pair = self._proxy, (sender, receiver)
        if kind == "reset":
            return f"{proxy.reset(*pair)} connections"
        if kind == "half_open":
            return f"{proxy.half_open(*pair)} connections"
        if kind == "refuse":
            proxy.set_rules(*pair, Rule(refuse=True))
            return f"{proxy.reset(*pair)} connections"
        if kind == "one_way":
            proxy.set_rule(*pair, Rule(fate=Fate.HOLD))
        elif kind == "swallow":
            proxy.set_rule(*pair, Rule(fate=Fate.SWALLOW))
        else:
            rules = {
                "cut": Rule(fate=Fate.HOLD),
                "crawl": Rule(rate=CRAWL_BYTES_PER_SECOND),
                "delay": Rule(delay=DELAY_SECONDS),
            }
            proxy.set_rules(*pair, rules[kind])
        return ""

    def mend(self, one: str, other: str) -> None:
        self._proxy.set_rules(one, other, Rule())

    def isolate(self, name: str) -> None:
        self._set_all(name, Rule(fate=Fate.HOLD))

    def reconnect(self, name: str) -> None:
        self._set_all(name, Rule())

    def _set_all(self, name: str, rule: Rule) -> None:
        for other in self._gates.keys() - {name}:
            self._proxy.set_rules(name, other, rule)

    def heal(self) -> None:
        self._proxy.heal()

    def refuse(self, name: str) -> None:
        self._proxy.close_gate(self._gates[name])

    def admit(self, name: str) -> None:
        if self._gates[name].listener is None:
            self._proxy.open_gate(self._gates[name])

    def inside(self, function: Callable[[], T]) -> T:
        return function()

    def close(self) -> None:
        self._proxy.close()
        for port in self._ports.values():
            port.close()


class SwitchNetwork(Network):
    """Namespaces: packets arrive or vanish (all but plan.PROXY_KINDS)."""

    def __init__(self, names: Iterable[str]) -> None:
        self._switch = Switch(names)

    def site(self, name: str) -> Site:
        address = f"{self._switch.address(name)}:{PORT}"
        return Site(address, address, tuple(self._switch.prefix(name)))

    def strike(self, kind: str, sender: str, receiver: str) -> str:
        assert kind in ("cut", "one_way"), kind
        self._switch.cut(sender, receiver)
        if kind == "cut":
            self._switch.cut(receiver, sender)
        return ""

    def mend(self, one: str, other: str) -> None:
        self._switch.mend(one, other)
        self._switch.mend(other, one)

    def isolate(self, name: str) -> None:
        self._switch.isolate(name)

    def reconnect(self, name: str) -> None:
        self._switch.reconnect(name)

    def heal(self) -> None:
        self._switch.heal()

    def refuse(self, name: str) -> None:
        """Nobody listens where no process is: the kernel says so."""

    def admit(self, name: str) -> None:
        """See `refuse`."""

    def inside(self, function: Callable[[], T]) -> T:
        return self._switch.inside(COORDINATOR, function)

    def close(self) -> None:
        self._switch.close()
