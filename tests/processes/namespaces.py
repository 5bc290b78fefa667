"""Network namespaces at a switch: kernels speak TCP to each other over links that lose packets.

This does to packets what the proxy (proxy.py) does to bytes, and no FIN, RST or error tells
anybody. Each name has a namespace of its own with an eth0; all of them meet at a bridge in one more
namespace, so nothing touches the interfaces of the machine and nothing leaves it. Needs root; see
`require`. Neighbours are fixed, so that a packet that is lost is just lost: unanswered questions
for an address would be errors at the sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from pccl_py.closing import Closing

STEM = "pccl-test"
CLONE_NEWNET = 0x4000_0000
# The address of nobody: a packet to it crosses the switch, and no one takes it.
NOWHERE = "02:00:00:00:00:fe"
BYTES_OUT = 9  # of the columns of /proc/net/dev

T = TypeVar("T")
_numbers = itertools.count()


class Refused(Exception):
    """The complaint of `ip`."""


def ip(*arguments: str, lines: Iterable[str] = ()) -> str:
    """Runs `ip`, with `lines` as its batch if there are any."""
    script = "\n".join(lines)
    command = ["ip", *arguments, *(["-batch", "-"] if script else [])]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _started(pid: int) -> str:
    """When the process began, in ticks of the kernel; empty if there is none. Pids come again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except FileNotFoundError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def new_stem() -> str:
    """Begins the names of one switch, and says of which process they are."""
    return f"{STEM}-{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"


def names_there() -> dict[str, bool]:
    """The namespaces of tests that this machine has, and whether their process lives."""
    found = {}
    for name in re.findall(rf"^{STEM}-\d+-\d+-\S+", ip("netns", "list"), re.MULTILINE):
        pid, started = name.removeprefix(f"{STEM}-").split("-")[:2]
        found[name] = _started(int(pid)) == started
    return found


def remove_leftovers() -> None:
    """Removes the namespaces of runs that were killed."""
    for name, lives in names_there().items():
        if not lives:
            try:
                ip("netns", "delete", name)
            except Refused:
                if name in names_there():  # else another run has been faster
                    raise


@functools.cache
def missing() -> str:
    """Names what this machine lacks, and what to do about it; empty if it has everything."""
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip`: install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root: run pytest as root, with the Python of .venv"
    name = new_stem()
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "port0", "type", "veth")
            ip("-n", name, "link", "add", "switch", "type", "bridge")
        finally:
            ip("netns", "delete", name)
    except Refused as error:
        needs = "CAP_SYS_ADMIN, CAP_NET_ADMIN, and the kernel's veth and bridge"
        return f"network namespaces are refused here ({error}); they need {needs}"
    return ""


def require() -> None:
    """Skips the test where there can be no namespaces; without `ip` it fails in the gate."""
    if shutil.which("ip") is None:
        skip(missing())
    if missing():
        pytest.skip(missing())


def skip(reason: str) -> NoReturn:
    """For a command that is missing: the gate, which installs it, must not be without the test."""
    if os.environ.get("PCCL_GATE"):
        pytest.fail(reason)
    pytest.skip(reason)


def on_thread_in(namespace: str, function: Callable[[], T]) -> T:
    """Calls it on a thread that is there: so are the sockets and threads that it makes."""

    def enter() -> T:
        with open(f"/run/netns/{namespace}", "rb") as space:
            # os.setns came with Python 3.12.
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(space.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns to {namespace}")
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter).result()


class Place:
    """One namespace, and the port of the switch that it is at."""

    def __init__(self, stem: str, index: int) -> None:
        self.namespace = f"{stem}-{index}"
        self.port = f"port{index}"
        self.address = f"10.0.0.{index + 1}"
        self.link_address = f"02:00:00:00:00:{index + 1:02x}"

    def towards(self, other: Place, link_address: str) -> str:
        """For a batch of `ip` in this namespace: where packets to the other one go."""
        to = f"{other.address} lladdr {link_address}"
        return f"neighbour replace {to} dev eth0 nud permanent"


class Switch(Closing):
    """A namespace for each name. Changes are in force when their call returns."""

    def __init__(self, names: Iterable[str]) -> None:
        remove_leftovers()
        stem = new_stem()
        self._places = {name: Place(stem, index) for index, name in enumerate(names)}
        self._hub = f"{stem}-switch"
        self._cuts: set[tuple[str, str]] = set()
        self._isolated: set[str] = set()
        with contextlib.ExitStack() as stack:
            stack.callback(self._remove)
            self._make()
            # Once opened it stays a view of the hub, whoever reads it.
            counters = Path("/proc/thread-self/net/dev")
            self._counters = on_thread_in(self._hub, counters.open)
            stack.pop_all()

    def _make(self) -> None:
        places = list(self._places.values())
        spaces = [self._hub, *(place.namespace for place in places)]
        ip(lines=[f"netns add {space}" for space in spaces])
        hub = ["link add switch type bridge", "link set switch up"]
        for place in places:
            end = f"eth0 address {place.link_address} netns {place.namespace}"
            hub.append(f"link add {place.port} type veth peer name {end}")
            hub.append(f"link set {place.port} master switch up")
        ip("-n", self._hub, lines=hub)
        for place in places:
            here = ["link set lo up", f"address add {place.address}/24 dev eth0"]
            here.append("link set eth0 up")
            others = [other for other in places if other is not place]
            here += [place.towards(other, other.link_address) for other in others]
            ip("-n", place.namespace, lines=here)

    def address(self, name: str) -> str:
        return self._places[name].address

    def prefix(self, name: str) -> list[str]:
        """The prefix of a command that is to run there. The process keeps its pid."""
        return ["ip", "netns", "exec", self._places[name].namespace]

    def inside(self, name: str, function: Callable[[], T]) -> T:
        """Calls it on a thread that is there."""
        return on_thread_in(self._places[name].namespace, function)

    def cut(self, sender: str, receiver: str) -> None:
        """Packets from one to the other vanish; the other direction works."""
        there = self._places[receiver]
        place = self._places[sender]
        ip("-n", place.namespace, lines=[place.towards(there, NOWHERE)])
        self._cuts.add((sender, receiver))

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def mend(self, sender: str, receiver: str) -> None:
        """Undoes a cut, if there is one."""
        place, there = self._places[sender], self._places[receiver]
        ip("-n", place.namespace, lines=[place.towards(there, there.link_address)])
        self._cuts.discard((sender, receiver))

    def isolate(self, name: str) -> None:
        """All packets from and to it vanish. Its cable still looks plugged in."""
        ip("-n", self._hub, "link", "set", self._places[name].port, "nomaster")
        self._isolated.add(name)

    def reconnect(self, name: str) -> None:
        """Undoes an isolation, if there is one."""
        ip("-n", self._hub, "link", "set", self._places[name].port, "master", "switch")
        self._isolated.discard(name)

    def heal(self) -> None:
        """No packet vanishes any more."""
        for name in list(self._isolated):
            self.reconnect(name)
        for pair in list(self._cuts):
            self.mend(*pair)

    def heard(self, name: str) -> int:
        """Bytes that the switch has handed to this one so far, those to nobody included."""
        port = self._places[name].port
        self._counters.seek(0)
        for line in self._counters:
            interface, _, columns = line.partition(":")
            if interface.strip() == port:
                return int(columns.split()[BYTES_OUT - 1])
        raise AssertionError(f"no {port} in the switch")

    def _remove(self) -> None:
        mine = {self._hub, *(place.namespace for place in self._places.values())}
        for name in mine.intersection(names_there()):
            ip("netns", "delete", name)

    def close(self) -> None:
        """The names are gone; a process that still runs in one keeps its eth0, at no switch."""
        self._counters.close()
        self._remove()
