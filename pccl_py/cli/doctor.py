"""Looking at what a peer on this machine needs: `pccl doctor`. One line for each thing, ok or not.

The token, the way to the coordinator and to every member, how the coordinator sees this machine,
descriptors, and what the kernel does with TCP. Each check stands alone, so that one that fails
hides none behind it. docs/NETWORKING.md says what to do in general.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import resource
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import pccl_py
from pccl_py.cli.status import shown

DESCRIPTORS_MIN = 1024
# Enough for a transfer of 1 Gbit/s over 30 ms; less is slow over long distances.
BUFFER_BYTES_MIN = 4 << 20
DIALS_AT_ONCE = 32
TCP = Path("/proc/sys/net/ipv4")


@dataclass(frozen=True)
class Finding:
    """One line. `remedy` is what to do, where something is wrong or could be better."""

    what: str
    ok: bool
    says: str
    remedy: str = ""


def examine(token: str, *, timeout: float) -> Iterator[Finding]:
    """Everything, in the order in which one thing needs the other."""
    address = pccl_py.token_parse(token).address
    host, _, port = address.rpartition(":")
    yield from _coordinator(host.strip("[]"), int(port), timeout)
    status: dict[str, Any] = {}
    began = time.monotonic()
    try:
        status = pccl_py.run_status(token, timeout)
    except pccl_py.PcclError as error:
        yield Finding("run", False, str(error))
    else:
        seconds = time.monotonic() - began
        yield Finding("run", True, f"{status['run']} answers in {seconds * 1e3:.0f} ms")
        yield _seen(token, status, timeout)
        yield from _members(status, timeout)
    yield _descriptors()
    yield from _kernel()


def _coordinator(host: str, port: int, timeout: float) -> Iterator[Finding]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        remedy = "check the name in the token, and the name service or hosts file of this machine"
        yield Finding("name", False, f"{host}: {error.strerror}", remedy)
        return
    numbers = [str(each[4][0]) for each in found]
    yield Finding("name", True, f"{host} is {', '.join(dict.fromkeys(numbers))}")
    if all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in numbers):
        says = f"{host} is this machine itself"
        remedy = "if the coordinator is elsewhere, start it with --advertise"
        yield Finding("home", True, says, remedy)
    yield _dial("coordinator", host, port, timeout)


def _dial(what: str, host: str, port: int, timeout: float) -> Finding:
    at = f"{host}:{port}"
    began = time.monotonic()
    try:
        socket.create_connection((host, port), timeout).close()
    except ConnectionRefusedError:
        remedy = "nothing listens there, or a firewall rejects it: check host and port"
        return Finding(what, False, f"{at} refuses connections", remedy)
    except TimeoutError:
        remedy = "a firewall or NAT drops it, or the host is down: open the port"
        return Finding(what, False, f"{at} does not answer in {timeout:g} s", remedy)
    except OSError as error:
        remedy = "no way leads there: advertise an address that this machine reaches"
        return Finding(what, False, f"{at}: {error.strerror}", remedy)
    return Finding(what, True, f"{at} accepts in {(time.monotonic() - began) * 1e3:.0f} ms")


def _seen(token: str, status: dict[str, Any], timeout: float) -> Finding:
    """This machine as the others see it: a peer of its own joins a group of its own, and goes."""
    if status["min_world_size"] > 1:
        return Finding("seen", True, "not tried: no group of this run begins with one peer")
    peer_id = uuid.uuid4()
    group = f"pccl doctor {peer_id.hex[:8]}"
    try:
        with pccl_py.connect(
            token,
            group=group,
            initial_world_size=1,
            deadline=timeout,
            connect_timeout=timeout,
            peer_id=peer_id.bytes,
        ):
            groups = pccl_py.run_status(token, timeout)["groups"]
    except pccl_py.PcclError as error:
        return Finding("seen", False, str(error))
    seen = [each["address"] for one in groups if one["name"] == group for each in one["pending"]]
    if any(seen):
        return Finding("seen", True, f"others dial a peer of this machine at {seen[0]}")
    remedy = (
        "well as long as this machine can dial all others; else open PCCL_PORTS, PCCL_ADVERTISE"
    )
    return Finding("seen", True, "nobody can dial a peer of this machine", remedy)


def _members(status: dict[str, Any], timeout: float) -> Iterator[Finding]:
    members = {
        member["peer_id"]: member["address"]
        for group in status["groups"]
        for epoch in group["epochs"]
        for member in epoch["members"]
        if member["alive"]
    }

    def dial(peer: str) -> Finding:
        what, address = f"member {peer[:8]}", members[peer]
        if not address:
            return Finding(what, True, "has no address that others can dial: it dials this machine")
        host, _, port = address.rpartition(":")
        return _dial(what, host.strip("[]"), int(port), timeout)

    with ThreadPoolExecutor(DIALS_AT_ONCE) as threads:
        yield from threads.map(dial, members)


def _descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = soft == resource.RLIM_INFINITY or soft >= DESCRIPTORS_MIN
    says = "any number" if soft == resource.RLIM_INFINITY else f"{soft} at a time"
    return Finding("descriptors", many, says, "" if many else f"ulimit -n {DESCRIPTORS_MIN}")


def _kernel() -> Iterator[Finding]:
    with contextlib.suppress(OSError):  # a system that does not say
        control = (TCP / "tcp_congestion_control").read_text().strip()
        remedy = "" if control == "bbr" else "bbr is faster where packets are lost"
        yield Finding("congestion control", True, control, remedy)
        for name in ("tcp_rmem", "tcp_wmem"):
            most = int((TCP / name).read_text().split()[2])
            remedy = "" if most >= BUFFER_BYTES_MIN else f"{BUFFER_BYTES_MIN} is better far away"
            yield Finding(name, True, f"at most {most} bytes", remedy)


def show(token: str, *, timeout: float, as_json: bool) -> bool:
    """Prints each finding when it is there, or all of them as JSON. True if all is well."""
    console = Console()
    findings = []
    for finding in examine(token, timeout=timeout):
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
