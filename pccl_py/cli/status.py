"""`pccl status`: shows the status of a run as JSON or as a page, once or repeatedly.

docs/reference/STATUS.md says what the numbers mean. A coordinator may lie, or be of a release that
refused fewer texts, so every text of the status passes `shown` on its way to the terminal.
"""

from __future__ import annotations

import json
import os
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
from pccl_py.words import shown

SCHEMA = 1
# Kinds of operations without elements (EMPTY), and with an op (REDUCING).
EMPTY = ("barrier", "sync")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
# Seconds without an answer after which `pccl status` says that it waits.
SILENCE = 1.0


def show_json(token: str, *, timeout: float) -> None:
    """Prints the status as one JSON document on stdout."""
    print(json.dumps(_ask(token, timeout, told_after=SILENCE), indent=2))


def show(token: str, *, timeout: float, plan: bool = False) -> None:
    """Prints the status as a page on stdout; with `plan` the page of plans and links."""
    Console().print(page(_ask(token, timeout, told_after=SILENCE), plan=plan))


def stream_json(token: str, *, interval: float, timeout: float) -> None:
    """Prints the status as one line of JSON per interval until Ctrl-C or the end of the reader.

    While the coordinator does not answer, the lines are `{"unreachable": "why"}`.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            try:
                line = json.dumps(_ask(token, timeout))
            except pccl_py.CoordinatorUnreachable as error:
                line = json.dumps({"unreachable": str(error)})
            print(line, flush=True)
            time.sleep(interval)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # The reader is gone; the interpreter would report that once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def watch(token: str, *, interval: float, timeout: float, plan: bool = False) -> None:
    """Shows the status and refreshes it until Ctrl-C, also while the coordinator is away."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Live(Text("asking the coordinator ..."), auto_refresh=False) as live:
            while True:
                view: RenderableType
                try:
                    view = page(_ask(token, timeout), plan=plan)
                except pccl_py.CoordinatorUnreachable as error:
                    view = Text(f"coordinator unreachable: {error}", style="bold red")
                live.update(view, refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def _ask(token: str, timeout: float, *, told_after: float | None = None) -> dict[str, Any]:
    """Calls run_status on a thread of its own, so that Ctrl-C does not wait for the answer.

    After `told_after` seconds without an answer, a line on stderr names the coordinator.
    """
    answers: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(pccl_py.run_status(token, timeout))
        except Exception as error:  # noqa: BLE001  raised again below
            answers.put(error)

    threading.Thread(target=ask, name="pccl-status", daemon=True).start()
    try:
        answer = answers.get(timeout=told_after)
    except queue.Empty:
        address = pccl_py.token_parse(token).address
        said = f"{shown(address)} does not answer yet: waiting for {timeout:g} s in all"
        print(said, file=sys.stderr, flush=True)
        answer = answers.get()
    if isinstance(answer, Exception):
        raise answer
    return answer


def page(status: dict[str, Any], *, plan: bool = False) -> RenderableType:
    """Renders a coordinator's answer. Raises PcclError if the answer is not a status."""
    try:
        return render(status, plan=plan)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise pccl_py.PcclError(
            "the coordinator's answer is not a status: use its release, or --json"
        ) from error


def render(status: dict[str, Any], *, plan: bool = False) -> RenderableType:
    """A status (docs/reference/STATUS.md) as a page: members, links that move, and operations.

    With `plan`: plans and all links. Raises PcclError unless the schema is 1.
    """
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
    # A coordinator of an earlier release tells no `incarnation`.
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
        names = _names(group)
        # A coordinator of an earlier release tells neither `broken_links` nor `unreached`.
        parts += [_broken(link, names) for link in group.get("broken_links", [])]
        parts += [_unreached(pair, names) for pair in group.get("unreached", [])]
        parts += _awaited(group, names)
        parts += _attendance(group)
        for epoch in group["epochs"]:
            if plan:
                parts += [_epoch_head(epoch), *_plan(epoch)]
                continue
            parts += [_epoch_head(epoch), _members(epoch), *_measured(epoch)]
            if epoch["operations"]:
                parts += [_operations(epoch)]
            parts += _waits(epoch)
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


def _name(peer: dict[str, Any]) -> str:
    """A member or a newcomer as sentences name it: "node7:4242, 7f3a01c2"."""
    # A coordinator of an earlier release has no labels, and a peer may have none.
    label, short = peer.get("label", ""), peer["peer_id"][:8]
    return f"{label}, {short}" if label else short


def _names(group: dict[str, Any]) -> dict[str, str]:
    """The names of all peers of a group by their ids."""
    return {peer["peer_id"]: _name(peer) for peer in [*_members_of(group), *group["pending"]]}


def _broken(link: dict[str, Any], names: dict[str, str]) -> Text:
    one, other = (names.get(link[key], link[key][:8]) for key in ("peer_id", "other"))
    says = f"{one} cannot reach {other}: the link is {link['state']}"
    return Text(shown(says), style="yellow")


def _unreached(pair: dict[str, Any], names: dict[str, str]) -> Text:
    one, other = (names.get(pair[key], pair[key][:8]) for key in ("peer_id", "other"))
    at = f" at {pair['address']}" if pair["address"] else ""
    source = f" from {pair['from']}" if pair.get("from") else ""
    says = f"{one} cannot dial {other}{at}{source}: {pair['why']}"
    return Text(shown(says), style="yellow")


_AWAITS = {
    "begin": "to call admit",
    "safe_point": "to pass its next safe point (admit)",
    "in_flight": "to finish its calls of the epoch before",
    "founders": "to ask for the sub-group, of which it is a founder",
    "away": "to come back, or to be lost",
}


def _awaited(group: dict[str, Any], names: dict[str, str]) -> list[Text]:
    """The peers that newcomers wait for, a line for each."""
    # A coordinator of an earlier release tells neither `awaits` nor `awaited_ns`.
    what = _AWAITS.get(group.get("awaits", "begin"), "to go on")
    since = group.get("awaited_ns", 0)
    lasts = f", for {duration(since)}" if since else ""
    ranks = {member["peer_id"]: member["rank"] for member in _members_of(group)}
    lines = []
    for peer in group.get("awaited", []):
        name = names.get(peer, peer[:8])
        who = f"rank {ranks[peer]} ({name})" if peer in ranks else name
        lines.append(Text(shown(f"newcomers wait for {who} {what}{lasts}"), style="yellow"))
    return lines


def _members_of(group: dict[str, Any]) -> list[dict[str, Any]]:
    """The members of the epochs of a group; members of the newest epoch come last."""
    return [member for epoch in group["epochs"] for member in epoch["members"]]


def _attendance(group: dict[str, Any]) -> list[Text]:
    """A line that says how many of the peers that a group needs to begin are there."""
    if "here" not in group:
        return []
    says = f"{group['here']} of {group['needed']} peers are here; the group begins when all are"
    if group["emptied"]:
        says = f"all earlier members are gone; {says}"
    return [Text(shown(says), style="yellow")]


def _newcomer(newcomer: dict[str, Any]) -> Text:
    state = "waits for the next safe point" if newcomer["prepared"] else "opens its lanes"
    says = f"{_name(newcomer)}  {newcomer['address']}  {state}"
    return Text(shown(says), style="yellow")


def _members(epoch: dict[str, Any]) -> Table:
    table = _table("rank", "peer", "label", "address", "silent", "sent", "received")
    for member in epoch["members"]:
        who = (member["rank"], member["peer_id"][:8], member.get("label", ""))
        if member["alive"]:
            _add_row(
                table,
                *who,
                member["address"],
                duration(member["silence_ns"]),
                size(member["bytes_sent"]),
                size(member["bytes_received"]),
            )
        else:
            _add_row(table, *who, "left or lost", style="red")
    return table


def _measured(epoch: dict[str, Any]) -> list[RenderableType]:
    """A table of each member's rates, in all and by link, and of how late its calls are.

    The list is empty for a coordinator of an earlier release.
    """
    table = _table("rank", "to", "sent/s", "received/s", "over", "last to call", "late", "carries")
    for member in epoch["members"]:
        if "last_to_call" not in member:
            continue
        _add_row(
            table,
            member["rank"],
            "all",
            size(member["sent_per_s"]),
            size(member["received_per_s"]),
            duration(member["span_ns"]) if member.get("span_ns") else "",
            f"{member['last_to_call']} of {member['calls']}",
            duration(member["late_ns"]),
            _carries_in_all(member),
        )
        for link in member["links"]:
            if not link["sent_per_s"] and not link["received_per_s"]:
                continue  # `pccl status --plan` shows the links that move nothing
            speeds = (size(link["sent_per_s"]), size(link["received_per_s"]))
            _add_row(table, "", link["rank"], *speeds, "", "", "", carries(link))
    return [table] if table.row_count else []


def _carries_in_all(member: dict[str, Any]) -> str:
    """The most that all links of a member have carried at once: "up 22.8 MiB/s, down 9.1 MiB/s"."""
    rates = ((way, member.get(way, 0)) for way in ("up", "down"))
    return ", ".join(f"{way} {size(rate)}/s" for way, rate in rates if rate)


def carries(link: dict[str, Any]) -> str:
    """How a link carries what its member sends: "22.8 MiB/s, 90 ms, 0.1 % again, 4 lanes".

    A part that is unknown or zero is left out; an earlier release tells no part.
    """
    rate, rtt_ns, lanes = (link.get(key, 0) for key in ("rate", "rtt_ns", "lanes"))
    again = link.get("retransmitted_ppm", 0) / 1e4
    parts = [f"{size(rate)}/s"] if rate else []
    if rtt_ns:
        # The round trip to a near peer is below a millisecond.
        parts.append(duration(rtt_ns) if rtt_ns >= 10e6 else f"{rtt_ns / 1e6:.2g} ms")
    if again >= 0.05:
        parts.append(f"{again:.1f} % again")
    if lanes:
        parts.append(f"{lanes} lane{'s' if lanes > 1 else ''}")
    return ", ".join(parts)


# ---- plans

# Members of the largest epoch whose links are shown as a matrix; of more, as a list.
_MATRIX_MAX = 4
# Members of the largest epoch that is planned.
_PLANNED_MAX = 32
# Rates of this age are shown with their age.
_OLD_NS = 60 * 10**9
# Between members that are nearer it does not matter where the coordinator is.
_NEAR_NS = 10**7


def _plan(epoch: dict[str, Any]) -> list[RenderableType]:
    """The plan of an epoch, why it was chosen, and the links that it rests on."""
    parts: list[RenderableType] = [Text.assemble(("plan ", "dim"), (shown(_way(epoch)), "bold"))]
    planned = epoch.get("planned")
    if planned is None:
        few = len(epoch["members"]) <= _PLANNED_MAX
        says = "no rates are known yet" if few else "epochs of more than 32 members are not planned"
        parts.append(Text(says, style="dim"))
        return parts
    if planned["predicted_ns"] and planned["bound_ns"]:
        share = planned["bound_ns"] / planned["predicted_ns"]
        limits = " and ".join(_limit(epoch, limit) for limit in planned["limits"])
        parts.append(
            Text(
                f"64 MiB take {_seconds(planned['predicted_ns'])}, {share:.0%} of what these "
                f"links can give; limited by {shown(limits)}"
            )
        )
    tried = [f"{name} {_seconds(planned[key])}" for key, name in _TRIED.items() if planned[key]]
    if tried:
        says = "the planner expected, if links carry as much as their ends: " + ", ".join(tried)
        parts.append(Text(says, style="dim"))
    if planned.get("middle_rtt_ns", 0) >= _NEAR_NS:
        nearest = _ranked(epoch, planned["middle"])
        far = duration(planned["middle_rtt_ns"])
        says = f"the coordinator would best be beside {nearest}: {far} at most to any member"
        parts.append(Text(shown(says), style="dim"))
    parts.append(_links(epoch))
    return parts


_TRIED = {
    "ring_of_ranks_ns": "ring in rank order",
    "best_ring_ns": "best ring",
    "direct_even_ns": "direct",
    "direct_shares_ns": "direct with shares",
}


def _way(epoch: dict[str, Any]) -> str:
    """The plan in words: "ring 0 2 1 3, direct below 64 KiB"."""
    if epoch["plan"] == "ring":
        way = "ring " + " ".join(map(str, epoch["order"]))
    elif epoch["shares"]:
        owners = (f"{rank}:{share}" for rank, share in enumerate(epoch["shares"]) if share)
        way = "direct, shares " + " ".join(owners)
    else:
        way = "direct by ranks " + " ".join(map(str, epoch["hubs"]))
    small = epoch["small_bytes"]
    return f"{way}, direct below {size(small)}" if small else way


def _limit(epoch: dict[str, Any], limit: dict[str, Any]) -> str:
    start, end = limit["from"], limit["to"]
    if end is None:
        return f"what {_ranked(epoch, start)} sends"
    if start is None:
        return f"what {_ranked(epoch, end)} receives"
    return f"{_ranked(epoch, start)} -> {_ranked(epoch, end)}"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.3g} s"


def _links(epoch: dict[str, Any]) -> Table:
    """The known links of all members, as a matrix where few members are alive."""
    alive = [member for member in epoch["members"] if member["alive"]]
    if len(alive) > _MATRIX_MAX:
        table = _table("from", "to", "carries", "age")
        for member in alive:
            for link in sorted(member["links"], key=lambda link: int(link["rank"])):
                row = (member["rank"], link["rank"], carries(link), duration(link.get("age_ns", 0)))
                _add_row(table, *row)
        return table
    table = _table("from", "in all", *(f"to {member['rank']}" for member in alive))
    for column in table.columns:
        column.justify = "left"
    for member in alive:
        links = {link["rank"]: link for link in member["links"]}
        cells = ["-" if other is member else _cell(links.get(other["rank"])) for other in alive]
        row = (member["rank"], _carries_in_all(member), *cells)
        # Each part of a cell has a line of its own.
        table.add_row(*(Text(shown(cell).replace(", ", "\n")) for cell in row))
    return table


def _cell(link: dict[str, Any] | None) -> str:
    if link is None:
        return "?"
    old = f", {duration(link['age_ns'])} old" if link.get("age_ns", 0) > _OLD_NS else ""
    return carries(link) + old


def _operations(epoch: dict[str, Any]) -> Table:
    table = _table("tag", "sequence", "operation", "count", "dtype", "op", "called", "done")
    alive = sum(1 for member in epoch["members"] if member["alive"])
    for operation in epoch["operations"]:
        kind = operation["kind"]
        _add_row(
            table,
            "" if kind == "sync" else operation["tag"],
            operation["sequence"],
            _kind(operation),
            "" if kind in EMPTY else operation["count"],
            "" if kind in EMPTY else operation["dtype"],
            operation["op"] if kind in REDUCING else "",
            f"{operation.get('called', operation['done'])} of {alive}",
            f"{operation['done']} of {alive}",
        )
    return table


def _waits(epoch: dict[str, Any]) -> list[Text]:
    """Lines about members that operations wait for; none from an earlier release."""
    lines = []
    for operation in epoch["operations"]:
        for rank in operation.get("waits_for", []):
            # The tag of a sync says nothing to a person.
            tag = "" if operation["kind"] == "sync" else f"tag {operation['tag']}, "
            peer = _name(epoch["members"][rank])
            says = (
                f"waiting for rank {rank} ({peer}): it has not called {_kind(operation)} ({tag}"
                f"sequence {operation['sequence']}) for {duration(operation['stalled_ns'])}"
            )
            lines.append(Text(shown(says), style="yellow"))
        for link in operation.get("stuck_links", []):
            says = (
                f"nothing of {_call(operation)} moves between {_ranked(epoch, link['rank'])} and "
                f"{_ranked(epoch, link['other'])}, though all have called it"
            )
            lines.append(Text(shown(says), style="yellow"))
        lines += _minority(epoch, operation)
        lines += _elsewhere(epoch, operation)
    named = {rank for operation in epoch["operations"] for rank in operation.get("waits_for", [])}
    silent = {rank for operation in epoch["operations"] for rank in operation.get("not_called", [])}
    for rank in sorted(silent):
        if not epoch["members"][rank].get("entered", True):
            says = (
                f"{_ranked(epoch, rank)} has not entered the epoch, as a member from before does "
                "when its program calls admit"
            )
            lines.append(Text(shown(says), style="yellow"))
    for member in epoch["members"]:
        if member.get("waited_for") and member["rank"] not in named:
            says = (
                f"waiting for rank {member['rank']} ({_name(member)}): it owes the others a vote "
                "or a report; the coordinator's log says which"
            )
            lines.append(Text(shown(says), style="yellow"))
    return lines


def _elsewhere(epoch: dict[str, Any], operation: dict[str, Any]) -> list[Text]:
    """Lines about members that are waited for, and wait in another operation themselves."""
    lines = []
    for waits in operation.get("elsewhere", []):
        whom = " and ".join(_ranked(epoch, rank) for rank in waits["waits_for"][:4])
        if len(waits["waits_for"]) > 4:
            whom += f" and {len(waits['waits_for']) - 4} more"
        says = f"{_ranked(epoch, waits['rank'])} waits in {_call(waits)} for {whom}"
        lines.append(Text(shown(says), style="yellow"))
    return lines


def _call(operation: dict[str, Any]) -> str:
    """An operation as lines name it; a sync without its tag, which says nothing to people."""
    tag = "" if operation["kind"] == "sync" else f" tag {operation['tag']}"
    return f"{_kind(operation)}{tag} sequence {operation['sequence']}"


def _kind(operation: dict[str, Any]) -> str:
    """The kind of an operation; a sync with the name of its state, if the coordinator knows it."""
    kind: str = operation["kind"]
    return f'{kind} of "{operation["state"]}"' if operation.get("state") else kind


def _ranked(epoch: dict[str, Any], rank: int) -> str:
    return f"rank {rank} ({_name(epoch['members'][rank])})"


def _minority(epoch: dict[str, Any], operation: dict[str, Any]) -> list[Text]:
    """Lines about members that only a minority waits for, which `_waits` does not name."""
    if operation.get("waits_for") or not operation.get("not_called"):
        return []
    whom = " and ".join(_ranked(epoch, rank) for rank in operation["not_called"][:4])
    if len(operation["not_called"]) > 4:
        whom += f" and {len(operation['not_called']) - 4} more"
    says = f"{_call(operation)} has been waiting {duration(operation['waited_ns'])} for {whom}"
    return [Text(shown(says), style="yellow")]


def _add_row(table: Table, *values: object, style: str | None = None) -> None:
    table.add_row(*(Text(shown(value)) for value in values), style=style)


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        left = title in ("peer", "label", "address", "operation", "dtype", "op", "carries")
        # Long columns wrap if the terminal is narrow.
        wraps = title in ("label", "address", "carries")
        table.add_column(
            title, justify="left" if left else "right", no_wrap=not wraps, overflow="fold"
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
