"""Machines of a small internet, each a network namespace: public ones at a bridge, and some behind
a router, which masquerades or gives its one machine its own address. Some drop what comes in, and
hosts files say what a test wants.

Nothing touches the interfaces of the machine, and nothing leaves it. Needs root, iproute2 and
nftables; see `require`. Partitions and lost packets are tests/processes/namespaces.py's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import namespaces

import pccl_py as pccl
from pccl_py.closing import Closing

T = TypeVar("T")

# A machine that is busy; each test is over in some seconds otherwise.
SECONDS_MAX = 120.0

MASQUERADE = """
table ip nat {
  chain out { type nat hook postrouting priority 100; oifname "eth0" masquerade; }
}
table ip door {
  chain in {
    type filter hook forward priority 0;
    iifname "eth0" ct state established,related accept
    iifname "eth0" drop
  }
}
"""

ONE_TO_ONE = """
table ip nat {
  chain in { type nat hook prerouting priority -100; iifname "eth0" dnat to 192.168.7.2; }
  chain out { type nat hook postrouting priority 100; oifname "eth0" masquerade; }
}
"""

DROPS = """
table ip door {
  chain in { type filter hook input priority 0; iifname "eth0" tcp flags & (syn|ack) == syn drop; }
}
"""

PEER = """
import array, sys
import pccl_py as pccl
try:
    with pccl.connect() as comm:
        comm.admit()
        values = array.array("f", [1.0])
        comm.all_reduce(values)
        print("sum", int(values[0]))
        comm.barrier()
except pccl.PcclError as error:
    print(type(error).__name__, error)
"""


def require() -> None:
    """Skips the test where there can be no such networks, and says what is missing.

    In the gate it fails where that is a command.
    """
    namespaces.require()
    if shutil.which("nft") is None:
        namespaces.skip("networks with NAT and firewalls need the command `nft`: install nftables")


class Machine:
    """One namespace."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace = namespace
        self.address = address
        # Where machines at the bridge see it.
        self.outside = address

    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.namespace]

    def inside(self, function: Callable[[], T]) -> T:
        return namespaces.on_thread_in(self.namespace, function)

    def rule(self, script: str) -> None:
        command = [*self.prefix(), "nft", "-f", "-"]
        subprocess.run(command, input=script, text=True, check=True, timeout=SECONDS_MAX)

    def hosts(self, text: str) -> None:
        """Processes that `start` begins here have this hosts file."""
        folder = Path("/etc/netns") / self.namespace
        folder.mkdir(parents=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{text}\n")

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix(), sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PCCL_LOG": "warning", **variables},
        )

    def peer(self, token: str, number: int, **variables: str) -> subprocess.Popen[str]:
        """One of two; of these the one with the larger number leads when lanes are made."""
        defaults = {"PCCL_INITIAL_WORLD_SIZE": "2", "PCCL_DEADLINE": "60"}
        identity = {"PCCL_TOKEN": token, "PCCL_PEER_ID": f"{number:02x}" * 16}
        return self.start("-c", PEER, **{**defaults, **identity, **variables})


def ends(*peers: subprocess.Popen[str]) -> list[tuple[str, str]]:
    """Each one's stdout and stderr, once all have ended."""
    return [peer.communicate(timeout=SECONDS_MAX) for peer in peers]


class Internet(Closing):
    """10.1.0.0/24 is public, 192.168.7.0/24 is behind each router."""

    def __init__(self) -> None:
        namespaces.remove_leftovers()
        self._stem = namespaces.new_stem()
        self._hub = f"{self._stem}-hub"
        self._made = [self._hub]
        self._ports = 0
        namespaces.ip("netns", "add", self._hub)
        lines = ["link add switch type bridge", "link set switch up"]
        namespaces.ip("-n", self._hub, lines=lines)

    def _add(self, address: str) -> Machine:
        namespace = f"{self._stem}-{len(self._made)}"
        self._made.append(namespace)
        namespaces.ip("netns", "add", namespace)
        namespaces.ip("-n", namespace, "link", "set", "lo", "up")
        return Machine(namespace, address)

    def public(self) -> Machine:
        """At the bridge; it has a way to nothing else."""
        return self._at_bridge("10.1.0.{}", "/24")

    def public_v6(self) -> Machine:
        """At the bridge, without IPv4, and with a way out."""
        machine = self._at_bridge("fd00:1::{}", "/64 nodad")
        namespaces.ip("-6", "-n", machine.namespace, "route", "add", "default", "dev", "eth0")
        return machine

    def _at_bridge(self, address: str, form: str) -> Machine:
        self._ports += 1
        machine = self._add(address.format(self._ports))
        port = f"port{self._ports}"
        end = f"eth0 netns {machine.namespace}"
        lines = [f"link add {port} type veth peer name {end}", f"link set {port} master switch up"]
        namespaces.ip("-n", self._hub, lines=lines)
        lines = [f"address add {machine.address}{form} dev eth0", "link set eth0 up"]
        namespaces.ip("-n", machine.namespace, lines=lines)
        return machine

    def behind_nat(self) -> Machine:
        """Its connections come from its router, which lets none in."""
        return self._routed(MASQUERADE)

    def in_cloud(self) -> Machine:
        """It has a public address of its own, its router's, and does not know it: 1:1 NAT."""
        return self._routed(ONE_TO_ONE)

    def _routed(self, script: str) -> Machine:
        router, machine = self.public(), self._add("192.168.7.2")
        machine.outside = router.address
        end = f"eth0 netns {machine.namespace}"
        lines = [f"link add inner type veth peer name {end}"]
        lines += ["address add 192.168.7.1/24 dev inner", "link set inner up"]
        namespaces.ip("-n", router.namespace, lines=lines)
        lines = [f"address add {machine.address}/24 dev eth0", "link set eth0 up"]
        namespaces.ip("-n", machine.namespace, lines=[*lines, "route add default via 192.168.7.1"])
        forward = Path("/proc/sys/net/ipv4/ip_forward")
        router.inside(lambda: forward.write_text("1"))
        router.rule(script)
        return machine

    def firewalled(self) -> Machine:
        """A public one that drops whatever would connect to it."""
        machine = self.public()
        machine.rule(DROPS)
        return machine

    def apart(self) -> Machine:
        """No interface but its own loopback."""
        return self._add("127.0.0.1")

    def coordinator(self, machine: Machine, **options: Any) -> pccl.Coordinator:
        """In this process, with its sockets there."""
        bind = options.pop("bind", f"{machine.address}:0")
        return machine.inside(lambda: pccl.Coordinator(bind=bind, **options))

    def close(self) -> None:
        for name in set(self._made).intersection(namespaces.names_there()):
            namespaces.ip("netns", "delete", name)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
