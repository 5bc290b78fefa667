"""`pccl doctor`: checks what a peer on this machine needs, and prints a line for each check.

It checks the token, the way to the coordinator, the ways to and from every member, how the
coordinator sees this machine, clocks, descriptors, and the kernel's settings for TCP. Each check
stands alone, so that a check that fails does not hide others. docs/guides/NETWORKING.md says what
to do in general. engine/protocol/status.zig chooses the members that dial this machine.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import resource
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import pccl_py
from pccl_py.words import counted, shown

DESCRIPTORS_MIN = 1024
# The round trip by which settings are judged, if no member or coordinator that is far away has
# answered. Else the longest round trip that was found counts.
FAR_SECONDS = 0.15
FAR_SECONDS_MIN = 2e-3  # far_ns of engine/session/flow.zig
FAST_BYTES_PER_SECOND = 25_000_000
IN_FLIGHT_BYTES_WANTED = 16 << 20
NEAR_BUFFER_BYTES = 512 << 10  # Pace.held of engine/session/flow.zig
PACKET_BYTES = 1448
FIRST_PACKETS = 10
LOSS = 0.001
DIALS_AT_ONCE = 32
PORT_VARIABLES = ("PCCL_PORTS", "PCCL_BIND")
# Dials of members end after 5 s, and the coordinator waits 8 s for reports of these dials.
VISIT_SECONDS_MAX = 10.0
ASK_SECONDS = 0.2
CLOCK_SECONDS = 1.0
CLOCK_APART_SECONDS_MAX = 1.0
KERNEL = Path("/proc/sys/net")
OPEN = "open PCCL_PORTS on one of the two, or PCCL_ADVERTISE there"


@dataclass(frozen=True)
class Finding:
    """A line of the doctor. `remedy`: what to do, if something is wrong or could be better."""

    what: str
    ok: bool
    says: str
    remedy: str = ""
    seconds: float | None = None  # to connect to another machine; else None


@dataclass(frozen=True)
class Way:
    """A way to another machine: its round trip, and words for it in a sentence."""

    seconds: float
    over: str

    @classmethod
    def longest(cls, found: list[Finding]) -> Way:
        """The way to the farthest machine that has accepted a connection."""
        seconds, what = max(((each.seconds or 0.0, each.what) for each in found), default=(0.0, ""))
        if seconds < FAR_SECONDS_MIN:
            return cls(FAR_SECONDS, f"over {FAR_SECONDS * 1e3:.0f} ms")
        return cls(seconds, f"over the {seconds * 1e3:.0f} ms to {what}")


@dataclass(frozen=True)
class Answer:
    """A status, and when it was made: `wall` and `at` (monotonic), in seconds, within `error`."""

    status: dict[str, Any]
    wall: float
    at: float
    error: float


@dataclass(frozen=True)
class Visit:
    """A peer of the doctor, which joins the run as any peer of this machine would."""

    token: str
    timeout: float
    ports: str | None
    peer_id: pccl_py.PeerId

    @property
    def group(self) -> str:
        """The name of a group of the doctor's own, so that no other group is disturbed."""
        return f"pccl doctor {self.peer_id.short}"

    def stay(self, world_size: int, over: threading.Event) -> None:
        """Joins the run until `over`.

        In a run whose groups need several peers, connect fails earlier, because no other peer joins
        this group.
        """
        with pccl_py.connect(
            self.token,
            group=self.group,
            initial_world_size=world_size,
            deadline=VISIT_SECONDS_MAX,
            connect_timeout=self.timeout,
            ports=self.ports,
            peer_id=self.peer_id,
        ):
            over.wait()

    def ask(self, *, dial_back: bool) -> Answer:
        began, wall = time.monotonic(), time.time()
        peer = self.peer_id if dial_back else None
        status = pccl_py.run_status(self.token, self.timeout, dial_back=peer)
        half = (time.monotonic() - began) / 2
        return Answer(status, wall + half, began + half, half)


def examine(token: str, *, timeout: float, ports: str | None = None) -> Iterator[Finding]:
    """Runs all checks, so that each check comes after those that it needs."""
    found = []
    for finding in _network(token, timeout, ports):
        found.append(finding)
        yield finding
    yield _descriptors()
    yield from _kernel(Way.longest(found))


def _network(token: str, timeout: float, ports: str | None) -> Iterator[Finding]:
    address = pccl_py.token_parse(token).address
    host, _, port = address.rpartition(":")
    yield from _coordinator(host.strip("[]"), int(port), timeout)
    visit = Visit(token, timeout, ports, pccl_py.PeerId(uuid.uuid4().bytes))
    try:
        first = visit.ask(dial_back=False)
        yield Finding("run", True, f"{first.status['run']} answers in {first.error * 2e3:.0f} ms")
        yield from _reach(visit, first.status)
        time.sleep(max(0.0, first.at + CLOCK_SECONDS - time.monotonic()))  # lets clocks run
        yield _clock(first, visit.ask(dial_back=False))
    except pccl_py.PcclError as error:
        yield Finding("run", False, str(error))


def _coordinator(host: str, port: int, timeout: float) -> Iterator[Finding]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        remedy = "check the name in the token, and the name service or hosts file of this machine"
        yield Finding("name", False, f"{host}: {error.strerror}", remedy)
        return
    numbers = [str(each[4][0]) for each in found]
    yield Finding("name", True, f"{host} is {', '.join(dict.fromkeys(numbers))}")
    if all(map(_is_loopback, numbers)):
        says = f"{host} is this machine itself"
        remedy = "if the coordinator is elsewhere, start it with --advertise"
        yield Finding("home", True, says, remedy)
    yield _dial("coordinator", host, port, timeout)


def _dial(what: str, host: str, port: int, timeout: float) -> Finding:
    at = f"{host}:{port}"
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout) as connection:
            took = time.monotonic() - began
            here = _is_loopback(str(connection.getpeername()[0]))
    except ConnectionRefusedError:
        remedy = "nothing listens there, or a firewall rejects it: check host and port"
        return Finding(what, False, f"{at} refuses connections", remedy)
    except TimeoutError:
        remedy = "a firewall or NAT drops it, or the host is down: open the port"
        return Finding(what, False, f"{at} does not answer in {timeout:g} s", remedy)
    except OSError as error:
        remedy = "no way leads there: advertise an address that this machine reaches"
        return Finding(what, False, f"{at}: {error.strerror}", remedy)
    # A connection within this machine is no measure of a way.
    seconds = None if here else took
    return Finding(what, True, f"{at} accepts in {took * 1e3:.0f} ms", seconds=seconds)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _reach(visit: Visit, status: dict[str, Any]) -> Iterator[Finding]:
    """A peer visits the run; this process dials the members, and the members dial the peer."""
    members = _members(status)
    over = threading.Event()
    with ThreadPoolExecutor(DIALS_AT_ONCE) as threads:
        peer = threads.submit(visit.stay, max(status["min_world_size"], 1), over)
        ways = {
            member["peer_id"]: threads.submit(
                _dial_at, _named(member), member["address"], visit.timeout
            )
            for member in members
        }
        try:
            answer = _dialed_back(visit, peer)
        finally:
            over.set()
        yield _seen(visit, answer, peer)
        back = {each["peer_id"]: each for each in answer.get("dial_back", {}).get("members", ())}
        found = {
            member["peer_id"]: _both(
                ways[member["peer_id"]].result(),
                bool(member["address"]),
                back.get(member["peer_id"]),
            )
            for member in members
        }
        reached = {member for member, finding in found.items() if finding.ok}
        for member, finding in found.items():
            yield finding if finding.ok else _around(finding, member, reached, status)


def _members(status: dict[str, Any]) -> list[dict[str, Any]]:
    members = {
        member["peer_id"]: member
        for group in status["groups"]
        for epoch in group["epochs"]
        for member in epoch["members"]
        if member["alive"]
    }
    return list(members.values())


def _named(member: dict[str, Any]) -> str:
    """A member as lines name it: "member 7f3a01c2 (node7:4242)"."""
    label = member.get("label", "")
    return f"member {member['peer_id'][:8]}" + (f" ({label})" if label else "")


def _dialed_back(visit: Visit, peer: Future[None]) -> dict[str, Any]:
    """Waits for the status in which all members have reported their dials, or time is up.

    If another doctor was first, its dials must end before the members dial this machine.
    """
    until = time.monotonic() + VISIT_SECONDS_MAX
    while True:
        status = visit.ask(dial_back=True).status
        said = status.get("dial_back", {})
        is_ours = said.get("peer_id") == str(visit.peer_id)
        if not is_ours:
            status.pop("dial_back", None)
        if (is_ours and said["over"]) or peer.done() or time.monotonic() >= until:
            return status
        time.sleep(ASK_SECONDS)


def _seen(visit: Visit, status: dict[str, Any], peer: Future[None]) -> Finding:
    groups = [group for group in status["groups"] if group["name"] == visit.group]
    seen = [each["address"] for group in groups for each in group["pending"]]
    if not seen:
        error = peer.exception()
        # The value of a variable was wrong, not the network.
        what = "settings" if isinstance(error, pccl_py.InvalidArgument) else "seen"
        return Finding(
            what, False, "no peer of this machine got in" if error is None else str(error)
        )
    if not seen[0]:
        remedy = (
            "well as long as this machine can dial all others, or one that reaches all others; "
            "else open PCCL_PORTS, PCCL_ADVERTISE"
        )
        return Finding("seen", True, "nobody can dial a peer of this machine", remedy)
    chosen = visit.ports or any(os.environ.get(name) for name in PORT_VARIABLES)
    note = "" if chosen else "; any free port, because PCCL_PORTS is not set"
    if "dial_back" not in status:
        note += "; no member was asked to dial it, because another doctor was first"
    elif left_out := status["dial_back"]["left_out"]:
        verb = "was" if left_out == 1 else "were"
        note += f"; {counted(left_out, 'member')} {verb} not asked, because 32 are enough"
    return Finding("seen", True, f"others dial a peer of this machine at {seen[0]}{note}")


def _dial_at(what: str, address: str, timeout: float) -> Finding:
    if not address:
        return Finding(what, False, "has no address that others can dial")
    host, _, port = address.rpartition(":")
    return _dial(what, host.strip("[]"), int(port), timeout)


def _both(way: Finding, has_address: bool, back: dict[str, Any] | None) -> Finding:
    """Joins both directions of a member; one is enough. `back`: None for a member not asked."""
    if back is None:
        says = way.says if has_address else f"{way.says}: it dials this machine"
        return replace(way, ok=way.ok or not has_address, says=says)
    at = f" at {back['address']}" if back["address"] else ""
    if back["state"] == "reached":
        says = f"{way.says}; it has dialed this machine{at}"
        remedy = "" if way.ok else "one direction is enough"
        return replace(way, ok=True, says=says, remedy=remedy)
    why = back.get("why", "it has not said how that went")
    missed = (
        f"it has not reached this machine{at}: {why}"
        if back["address"]
        else "it has no address of this machine to dial"
    )
    remedy = (
        "one direction is enough; for both, open PCCL_PORTS here, or PCCL_ADVERTISE what leads here"
        if way.ok
        else f"neither reaches the other: {OPEN}"
    )
    return replace(way, says=f"{way.says}; {missed}", remedy=remedy)


def _around(finding: Finding, member: str, reached: set[str], status: dict[str, Any]) -> Finding:
    """The finding on a member that neither reaches this machine nor is reached by it.

    The member and a peer here can be in one group if data finds a way around their link, as the
    coordinator looks for one (engine/protocol/path.zig).
    """
    epochs = [group["epochs"][-1] for group in status["groups"] if group["epochs"]]
    through = [
        _ways(epoch, reached)
        for epoch in epochs
        if any(each["peer_id"] == member for each in epoch["members"])
    ]
    if not through or not all(through):
        return finding
    remedy = (
        f"neither reaches the other, and data goes through {' or '.join(through[0])}, without which"
        f" one of the two loses its place: {OPEN}"
    )
    return replace(finding, ok=True, remedy=remedy)


def _ways(epoch: dict[str, Any], reached: set[str]) -> list[str]:
    """Names of peers that pass data on between an epoch and a newcomer that reaches `reached`."""
    named = {each["peer_id"]: _named(each) for each in epoch["members"]}
    by_rank = {each["rank"]: each["peer_id"] for each in epoch["members"]}
    hubs = [by_rank[rank] for rank in epoch["hubs"] if by_rank[rank] in reached]
    ring = [by_rank[rank] for rank in epoch["order"]] if epoch["has_ring"] else []
    neighbours = zip(ring, [*ring[1:], *ring[:1]], strict=True)
    fits_in = len(ring) > 2 and any({one, other} <= reached for one, other in neighbours)
    return [named[hub] for hub in hubs] or (["other members"] if fits_in else [])


def _clock(first: Answer, last: Answer) -> Finding:
    """Compares clocks. The protocol does not use wall clocks, but people compare logs by them."""
    best = min(first, last, key=lambda each: each.error)
    ahead = best.status["wall_ns"] / 1e9 - best.wall
    if abs(ahead) - best.error >= CLOCK_APART_SECONDS_MAX:
        side = "ahead of" if ahead > 0 else "behind"
        says = f"the coordinator's is {abs(ahead):.1f} s {side} this machine's"
        remedy = "logs cannot be compared by time; have NTP set both: timedatectl set-ntp true"
        return Finding("clock", False, says, remedy)
    says = f"{abs(ahead):.1f} s from the coordinator's"
    here = last.at - first.at
    there = (last.status["uptime_ns"] - first.status["uptime_ns"]) / 1e9
    # A status may be 0.25 s old. `there` is below 0 if the coordinator was started again.
    room = first.error + last.error + 0.25 + here / 10
    if there >= 0 and abs(there - here) > room:
        says += f", but in {here:.1f} s here it went on by {there:.1f} s"
        remedy = "one of the two clocks stands still or leaps: look at that machine's clock source"
        return Finding("clock", False, says, remedy)
    return Finding("clock", True, f"{says}, and goes on as fast")


def _descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_MIN
    says = "any number" if soft == resource.RLIM_INFINITY else f"{soft} at a time"
    return Finding("descriptors", many, says, "" if many else f"ulimit -n {DESCRIPTORS_MIN}")


def _kernel(way: Way) -> Iterator[Finding]:
    """Reports TCP settings that an administrator could improve; no value of them is wrong."""
    if not (control := _setting("ipv4/tcp_congestion_control")):
        return  # a system without these files
    yield Finding("congestion control", True, control[0])
    yield _bbr(control[0], way)
    if restarts := _setting("ipv4/tcp_slow_start_after_idle"):
        slow = restarts[0] != "0" and control[0] != "bbr"
        remedy = f"0 is better far away: after a pause {_after_a_pause(control[0], way)}"
        yield Finding("tcp_slow_start_after_idle", True, restarts[0], remedy if slow else "")
    # A receiver grants half of its largest buffer as a window.
    for name, part in (("tcp_rmem", 2), ("tcp_wmem", 1)):
        if len(sizes := _setting(f"ipv4/{name}")) == 3:
            yield _buffer(name, int(sizes[2]), part, way)
    if most := _setting("core/wmem_max"):
        remedy = f"{NEAR_BUFFER_BYTES} is better: lanes between peers of one machine ask for it"
        lacks = int(most[0]) < NEAR_BUFFER_BYTES
        yield Finding("wmem_max", True, f"{most[0]} bytes", remedy if lacks else "")


def _after_a_pause(control: str, way: Way) -> str:
    wanted = FAST_BYTES_PER_SECOND * way.seconds / (FIRST_PACKETS * PACKET_BYTES)
    trips = math.ceil(math.log2(wanted))
    return (
        f"{control} begins with {FIRST_PACKETS} packets again, and a lane takes {trips} round trips"
        f" until {_rate(FAST_BYTES_PER_SECOND)}: {trips * way.seconds:.2f} s {way.over}"
    )


def _buffer(name: str, most: int, part: int, way: Way) -> Finding:
    says = f"at most {most} bytes: a lane carries {_rate(most / part / way.seconds)} {way.over}"
    wanted = IN_FLIGHT_BYTES_WANTED * part
    allowed = _rate(IN_FLIGHT_BYTES_WANTED / way.seconds)
    return Finding(name, True, says, "" if most >= wanted else f"{wanted} would allow {allowed}")


def _rate(bytes_per_second: float) -> str:
    rate = bytes_per_second / 1e6
    return f"{rate:.0f} MB/s" if rate >= 10 else f"{rate:.1f} MB/s"


def _bbr(control: str, way: Way) -> Finding:
    """Reports whether peers may use bbr, which a lost packet or a pause does not slow down."""
    # Other controls take each lost packet for a full link (Mathis et al., 1997).
    lossy = _rate(1.22 * PACKET_BYTES / (way.seconds * math.sqrt(LOSS)))
    matters = (
        f"where {LOSS:.1%} of packets are lost, a lane of {control} carries {lossy} {way.over}, "
        "and one of bbr what the way does"
    )
    if control == "bbr" or "bbr" in _setting("ipv4/tcp_allowed_congestion_control"):
        return Finding("bbr", True, "peers may use it")
    if "bbr" in _setting("ipv4/tcp_available_congestion_control"):
        remedy = f"{matters}: add it to sysctl net.ipv4.tcp_allowed_congestion_control"
        return Finding("bbr", True, "only peers of root may use it", remedy)
    remedy = f"{matters}: modprobe tcp_bbr, sysctl net.ipv4.tcp_allowed_congestion_control"
    return Finding("bbr", True, "this system has not loaded it", remedy)


def _setting(name: str) -> list[str]:
    """The words of a setting of the kernel; an empty list if there is no such setting."""
    try:
        return (KERNEL / name).read_text().split()
    except OSError:
        return []


def show(token: str, *, timeout: float, ports: str | None, as_json: bool) -> bool:
    """Prints each finding as it is made, or all findings as JSON. True if all are ok."""
    console = Console()
    findings = []
    for finding in examine(token, timeout=timeout, ports=ports):
        findings.append(finding)
        if as_json:
            continue
        line = Text.assemble(
            ("ok     " if finding.ok else "wrong  ", "green" if finding.ok else "bold red"),
            (f"{shown(finding.what)}: ", "bold"),
            shown(finding.says),
            (f" ({shown(finding.remedy)})" if finding.remedy else "", "yellow"),
        )
        console.print(line, soft_wrap=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return all(finding.ok for finding in findings)
