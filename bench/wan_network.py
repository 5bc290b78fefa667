"""The emulated network of a case: bench/wan built, started, told what to be, and counted.

It owns the process of the emulator and the ways into its namespaces. They have no names, end with
that process, and it ends with this one, however this one ends: nothing is left behind, and nothing
else of the machine is changed. Needs root, /dev/net/tun, and `nsenter`, `setpriv` (util-linux),
`ip` and `ss` (iproute2).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import wan_lanes
from bench.wan_topology import Topology
from pccl_py.closing import Closing

ROOT = Path(__file__).resolve().parents[1]
PREFIX = ROOT / ".zig-cache" / "wan"
DEVICE = "wan"
NETWORK = "10.88.0"
ALGORITHMS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
ANSWER_SECONDS_MAX = 30.0
SEGMENT_BYTES = 1500  # that of TCP which is full, with its headers
# Each run begins alike: nothing is remembered of the connections before it.
SYSTEM_SETTINGS = {
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv6/conf/all/disable_ipv6": "1",
}


def missing() -> str:
    """Why there can be no such network here; empty if there can."""
    if sys.platform != "linux":
        return "an emulated network is made of Linux network namespaces; run it there"
    if os.geteuid() != 0:
        return "an emulated network is made of network namespaces, which need root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "an emulated network needs /dev/net/tun, which is not here"
    needed = ("ip", "nsenter", "setpriv", "ss", "unshare")
    lacking = [name for name in needed if shutil.which(name) is None]
    if lacking:
        return f"an emulated network needs {' and '.join(lacking)}: install iproute2, util-linux"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"network namespaces are refused here ({tried.stderr.strip()})"
    return ""


def build() -> Path:
    """Compiles the emulator where it has changed; the program."""
    command = [sys.executable, "-m", "ziglang", "build", "wan", "--prefix", str(PREFIX)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    return PREFIX / "bin" / "wan"


def algorithms_here() -> list[str]:
    """The ways of congestion control that the kernel has."""
    return ALGORITHMS.read_text().split()


def allowed_here() -> list[str]:
    """Those of them that each process may choose."""
    return ALLOWED.read_text().split()


def address(node: int) -> str:
    """Where a node is reached by the others."""
    return f"{NETWORK}.{node + 1}"


@dataclass(frozen=True)
class Sums:
    """Sums over all paths: packets and bytes that entered, and packets dropped, by reason."""

    packets: int
    bytes: int
    dropped: dict[str, int]


class Network(Closing):
    """A network of nodes. Raises OSError where it is refused."""

    def __init__(self, program: Path, topology: Topology, seed: int = 1) -> None:
        ours, theirs = socket.socketpair()
        self.topology = topology
        command = [str(program), str(topology.count), str(seed)]
        self._process = subprocess.Popen(command, stdin=theirs.fileno())
        theirs.close()
        ours.settimeout(ANSWER_SECONDS_MAX)
        self._socket, self._lines = ours, ours.makefile("rw", encoding="utf-8")
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        greeting = json.loads(self._lines.readline() or '{"error":"it ended"}')
        if "error" in greeting:
            raise OSError(f"the emulator was refused its network: {greeting['error']}")
        self._namespaces = [f"/proc/{greeting['pid']}/fd/{fd}" for fd in greeting["namespaces"]]
        self.is_realtime = bool(greeting["realtime"])
        for command in self.topology.commands():
            self.command(command)
        for node in range(self.topology.count):
            self._settle(node)

    def _settle(self, node: int) -> None:
        """The settings of the kernel in a namespace. Its route names the congestion control: so a
        namespace may have any that the kernel has, and the machine's own setting stays.
        """
        script = [f"echo {value} > /proc/sys/{key}" for key, value in SYSTEM_SETTINGS.items()]
        route = f"{NETWORK}.0/24 dev {DEVICE} src {address(node)}"
        script.append(f"ip route change {route} congctl {self.topology.congestion}")
        command = [*self._inside(node), "sh", "-ec", "\n".join(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"node {node} could not be set up: {done.stderr.strip()}")

    def command(self, line: str) -> str:
        """Tells the emulator, and returns its answer. Raises ValueError where it says error."""
        self._lines.write(line + "\n")
        self._lines.flush()
        answer = self._lines.readline().strip()
        if answer.startswith("error") or not answer:
            raise ValueError(answer or "the emulator has ended")
        return answer

    def statistics(self) -> dict[str, Any]:
        """The counters; their names are in bench/wan/control.zig and counters.zig."""
        counted: dict[str, Any] = json.loads(self.command("statistics"))
        return counted

    def lanes(self, node: int) -> wan_lanes.Acknowledged:
        """The lanes of the peer on a node, and what the other ends have of each."""
        command = [*self._inside(node), "ss", "-tinHO", "state", "established"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return wan_lanes.told_by(done.stdout)

    def _inside(self, node: int) -> list[str]:
        return ["nsenter", f"--net={self._namespaces[node]}", "--"]

    def prefix(self, node: int) -> list[str]:
        """The prefix of a command that is to run on a node. The process keeps its pid, ends with
        this one, and may do no more to the network than any user's could.
        """
        limits = ["--pdeathsig", "KILL", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
        return [*self._inside(node), "setpriv", *limits, "--"]

    def close(self) -> None:
        """The namespaces are gone, with all that is still in them cut off."""
        self._lines.close()
        self._socket.close()
        try:
            self._process.wait(ANSWER_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def sums(statistics: dict[str, Any]) -> Sums:
    """Over all paths."""
    paths = statistics["paths"]
    dropped: dict[str, int] = {}
    for path in paths:
        for why, count in path["dropped"].items():
            dropped[why] = dropped.get(why, 0) + count
    packets = sum(path["in_packets"] for path in paths)
    return Sums(packets, sum(path["in_bytes"] for path in paths), dropped)


def retransmitted_segments(pid: int) -> int:
    """Segments that TCP sent again in the namespace of this process, since it was made."""
    names, values = _lines_of(Path(f"/proc/{pid}/net/snmp"), "Tcp:")
    return int(values[names.index("RetransSegs")])


def ring_overflows(pid: int) -> int:
    """Packets that the emulator was too slow to take from the namespace of this process."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == DEVICE:
            return int(numbers.split()[11])
    raise RuntimeError(f"process {pid} is on no node")


def _lines_of(path: Path, key: str) -> Iterator[list[str]]:
    """The names and the values, which are two lines that begin alike."""
    return (line.split() for line in path.read_text().splitlines() if line.startswith(key))
