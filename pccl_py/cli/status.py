"""Showing the status of a run: as JSON, as a page, and as a page that refreshes.

What the numbers mean is docs/STATUS.md; here they only get a shape for people.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import pccl_py


def show_json(token: str, *, timeout: float) -> None:
    """Prints the status as one JSON document on stdout."""
    print(json.dumps(_ask(token, timeout), indent=2))


def show(token: str, *, timeout: float) -> None:
    """Prints the status as a page on stdout."""
    Console().print(render(_ask(token, timeout)))


def watch(token: str, *, interval: float, timeout: float) -> None:
    """Shows the status and refreshes it until Ctrl-C, also while the coordinator is away."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Live(Text("asking the coordinator ..."), auto_refresh=False) as live:
            while True:
                page: RenderableType
                try:
                    page = render(_ask(token, timeout))
                except pccl_py.CoordinatorUnreachable as error:
                    page = Text(f"coordinator unreachable: {error}", style="bold red")
                live.update(page, refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def _ask(token: str, timeout: float) -> dict[str, Any]:
    """run_status on a thread of its own, so that Ctrl-C does not wait for the answer."""
    answers: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(pccl_py.run_status(token, timeout))
        except Exception as error:  # noqa: BLE001  raised again below
            answers.put(error)

    threading.Thread(target=ask, name="pccl-status", daemon=True).start()
    answer = answers.get()
    if isinstance(answer, Exception):
        raise answer
    return answer


def render(status: dict[str, Any]) -> RenderableType:
    """A status (docs/STATUS.md, schema 1) as a page."""
    if status["schema"] != 1:
        sys.exit(f"pccl status: schema {status['schema']} is newer than this command; use --json")
    head = Text.assemble(
        ("run ", "dim"),
        (status["run_id"][:8], "bold cyan"),
        ("  at ", "dim"),
        status["address"],
        ("  up ", "dim"),
        duration(status["uptime_ns"]),
        ("  refused connections ", "dim"),
        str(status["strangers"]),
    )
    parts: list[RenderableType] = [head]
    if not status["groups"]:
        parts.append(Text("no group yet", style="dim"))
    for group in status["groups"]:
        parts += [Text(), _group_head(group), _members(group)]
        if group["operations"]:
            parts.append(_operations(group))
    return Group(*parts)


def _group_head(group: dict[str, Any]) -> Text:
    return Text.assemble(
        ("group ", "dim"),
        (group["name"], "bold"),
        ("  epoch ", "dim"),
        str(group["epoch"]),
        ("  attempt ", "dim"),
        str(group["attempt"]),
        ("  safe points ", "dim"),
        str(group["safe_points"]),
        ("  ", ""),
        (group["state"], "green"),
    )


def _members(group: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("rank", "peer", "address", "silent", "sent", "received"):
        table.add_column(title, justify="left" if title in ("peer", "address") else "right")
    for member in sorted(group["members"], key=lambda member: member["rank"]):
        table.add_row(
            str(member["rank"]),
            member["peer_id"][:8],
            member["address"],
            duration(member["silence_ns"]),
            size(member["bytes_sent"]),
            size(member["bytes_received"]),
        )
    for newcomer in group["pending"]:
        table.add_row("-", newcomer["peer_id"][:8], Text("waits to enter", style="yellow"))
    return table


def _operations(group: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    world = len(group["members"])
    for title in ("tag", "sequence", "operation", "count", "dtype", "op", "called", "done"):
        table.add_column(title, justify="right" if title != "operation" else "left")
    for operation in group["operations"]:
        table.add_row(
            str(operation["tag"]),
            str(operation["sequence"]),
            operation["kind"],
            str(operation["count"]),
            operation["dtype"],
            operation["op"],
            f"{operation['called']}/{world}",
            f"{operation['done']}/{world}",
        )
    return table


def duration(ns: int) -> str:
    """Nanoseconds for people: "340 ms", "4.2 s", "2 h 05 min"."""
    seconds = ns / 1e9
    if seconds < 1:
        return f"{ns / 1e6:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


def size(count: int) -> str:
    """Bytes for people: "512 B", "1.5 MiB"."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
