"""Showing the status of a run: as JSON, as a page, and as a page that refreshes.

docs/STATUS.md says what the numbers mean; here they only get a shape for people. A coordinator may
lie, or be older than what is refused today, so no text of it reaches the terminal but by `shown`.
"""

from __future__ import annotations

import json
import queue
import signal
import threading
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import pccl_py

SCHEMA = 1


def show_json(token: str, *, timeout: float) -> None:
    """Prints the status as one JSON document on stdout."""
    print(json.dumps(_ask(token, timeout), indent=2))


def show(token: str, *, timeout: float) -> None:
    """Prints the status as a page on stdout."""
    Console().print(page(_ask(token, timeout)))


def watch(token: str, *, interval: float, timeout: float) -> None:
    """Shows the status and refreshes it until Ctrl-C, also while the coordinator is away."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Live(Text("asking the coordinator ..."), auto_refresh=False) as live:
            while True:
                view: RenderableType
                try:
                    view = page(_ask(token, timeout))
                except pccl_py.CoordinatorUnreachable as error:
                    view = Text(f"coordinator unreachable: {error}", style="bold red")
                live.update(view, refresh=True)
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


def page(status: dict[str, Any]) -> RenderableType:
    """The same as `render`, for what a coordinator has answered. Raises PcclError."""
    try:
        return render(status)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise pccl_py.PcclError(
            "the coordinator answered something that is no status: use its release, or --json"
        ) from error


def shown(value: object) -> str:
    """Text of a coordinator or a peer as a terminal may have it.

    Characters that it would obey, that end a line or that turn the writing are escaped, as
    engine/base/text.zig does. In tables it must be a `Text` as well: rich takes a str for markup.
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(value))


def render(status: dict[str, Any]) -> RenderableType:
    """A status (docs/STATUS.md, schema 1) as a page. Raises PcclError for another schema."""
    if status["schema"] != SCHEMA:
        raise pccl_py.PcclError(
            f"the status has schema {status['schema']}, this command knows {SCHEMA}: use --json"
        )
    head = Text.assemble(
        ("run ", "dim"),
        (shown(status["run"])[:8], "bold cyan"),
        ("  at ", "dim"),
        shown(status["address"]),
        ("  up ", "dim"),
        duration(status["uptime_ns"]),
        ("  peers ", "dim"),
        shown(status["peers"]),
        ("  refused connections ", "dim"),
        shown(status["strangers_refused"]),
    )
    parts: list[RenderableType] = [head]
    # A coordinator of an earlier release does not say.
    if status.get("incarnation", 1) > 1:
        head.append("  restarts ", "dim").append(str(status["incarnation"] - 1))
    if status.get("journal") == "failed":
        parts.append(
            Text(
                f"the journal has failed: {shown(status['journal_failure'])}; the run goes on, and "
                "ends with this coordinator unless one of the tries that it makes every minute "
                "succeeds",
                style="bold red",
            )
        )
    if status.get("cut"):
        parts.append(
            Text(
                "the status is longer than a message may be: members, newcomers, links and "
                "operations are missing below",
                style="bold yellow",
            )
        )
    if not status["groups"]:
        parts.append(Text("no group yet", style="dim"))
    for group in status["groups"]:
        parts += [Text(), Text.assemble(("group ", "dim"), (shown(group["name"]), "bold"))]
        # A coordinator of an earlier release does not say.
        parts += [_broken(link) for link in group.get("broken_links", [])]
        for epoch in group["epochs"]:
            parts += [_epoch_head(epoch), _members(epoch)]
            if epoch["operations"]:
                parts += [_operations(epoch), *_waits(epoch)]
        parts += [_newcomer(newcomer) for newcomer in group["pending"]]
    return Group(*parts)


def _epoch_head(epoch: dict[str, Any]) -> Text:
    running = epoch["running"]
    return Text.assemble(
        ("epoch ", "dim"),
        shown(epoch["epoch"]),
        ("  attempt ", "dim"),
        shown(epoch["attempt"]),
        ("  committed ", "dim"),
        shown(epoch["committed"]),
        ("  running", "green") if running else ("  recovering", "yellow"),
    )


def _broken(link: dict[str, Any]) -> Text:
    says = f"{link['peer_id'][:8]} cannot reach {link['other'][:8]}: the link is {link['state']}"
    return Text(shown(says), style="yellow")


def _newcomer(newcomer: dict[str, Any]) -> Text:
    state = "waits for the next safe point" if newcomer["prepared"] else "opens its lanes"
    says = f"{newcomer['peer_id'][:8]}  {newcomer['address']}  {state}"
    return Text(shown(says), style="yellow")


def _members(epoch: dict[str, Any]) -> Table:
    table = _table("rank", "peer", "address", "silent", "sent", "received")
    for member in epoch["members"]:
        rank, peer = str(member["rank"]), member["peer_id"][:8]
        if member["alive"]:
            _add_row(
                table,
                rank,
                peer,
                member["address"],
                duration(member["silence_ns"]),
                size(member["bytes_sent"]),
                size(member["bytes_received"]),
            )
        else:
            _add_row(table, rank, peer, "lost", style="red")
    return table


def _operations(epoch: dict[str, Any]) -> Table:
    table = _table("tag", "sequence", "operation", "count", "dtype", "op", "done")
    alive = sum(1 for member in epoch["members"] if member["alive"])
    for operation in epoch["operations"]:
        _add_row(
            table,
            operation["tag"],
            operation["sequence"],
            operation["kind"],
            operation["count"],
            operation["dtype"],
            operation["op"],
            f"{operation['done']} of {alive}",
        )
    return table


def _waits(epoch: dict[str, Any]) -> list[Text]:
    """The peers that are waited for; a coordinator of an earlier release does not say."""
    lines = []
    for operation in epoch["operations"]:
        for rank in operation.get("waits_for", []):
            peer, tag = epoch["members"][rank]["peer_id"][:8], operation["tag"]
            says = (
                f"waiting for rank {rank}, {peer}: it has not called {operation['kind']} (tag "
                f"{tag}, number {operation['sequence']}) for {duration(operation['stalled_ns'])}"
            )
            lines.append(Text(shown(says), style="yellow"))
    named = {rank for operation in epoch["operations"] for rank in operation.get("waits_for", [])}
    for member in epoch["members"]:
        if member.get("waited_for") and member["rank"] not in named:
            says = (
                f"waiting for rank {member['rank']}, {member['peer_id'][:8]}: it owes the others a "
                "vote or a report; the coordinator's log says which"
            )
            lines.append(Text(shown(says), style="yellow"))
    return lines


def _add_row(table: Table, *values: object, style: str | None = None) -> None:
    table.add_row(*(Text(shown(value)) for value in values), style=style)


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        left = title in ("peer", "address", "operation", "dtype", "op")
        table.add_column(title, justify="left" if left else "right")
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
