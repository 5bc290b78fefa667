"""View: shows the run while it goes on, and a summary at its end.

A terminal shows a live table, and any other output plain lines. The data is in `story.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.demo import look
from examples.demo.settings import PROMPT
from examples.demo.story import Event, Moment, Peer, Story
from examples.demo.verdict import Check

MOMENTS_SHOWN = 8
BAR_CELLS = 64
STATE_STYLES = {
    "training": "green",
    "reducing": "cyan",
    "killed": look.LOSS,
    "failed": "bold red",
    "done": "bold",
}


class View:
    """Base class of views, which the orchestrator calls; it shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def take(self, story: Story, event: Event) -> None:
        """The orchestrator calls this after each event."""

    def tick(self, story: Story) -> None:
        """The orchestrator calls this when no event came for TICK_SECONDS."""


class LiveView(View):
    """A table in a terminal, updated after each event."""

    def __init__(self, console: Console) -> None:
        # Without auto_refresh only the orchestrator's thread draws, so no other thread reads the
        # story while it changes.
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def take(self, story: Story, event: Event) -> None:
        self._live.update(screen(story), refresh=True)

    def tick(self, story: Story) -> None:
        self._live.update(screen(story), refresh=True)


class PlainView(View):
    """One line for each moment and each round, for a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._moments_told = 0
        self._rounds_told = 0

    def take(self, story: Story, event: Event) -> None:
        for moment in story.timeline[self._moments_told :]:
            self._line(moment_line(moment))
        self._moments_told = len(story.timeline)
        if story.rounds_done > self._rounds_told:
            self._rounds_told = story.rounds_done
            text = (
                f"{event['seconds']:6.1f} s  round {event['round']:2d} of {story.settings.rounds}: "
                f"held-out loss {event['held_out_loss']:.3f}, parameters {event['digest'][:8]}"
            )
            self._line(Text(text))

    def _line(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def screen(story: Story) -> RenderableType:
    """The contents of the live view: headline, peers, the broken round, and last moments."""
    parts: list[RenderableType] = [headline(story), peer_table(story)]
    broken = story.broken_round()
    if broken is not None:
        parts.append(range_panel(story, broken))
    moments = sorted(story.timeline, key=lambda moment: moment.seconds)[-MOMENTS_SHOWN:]
    parts.append(panel(Group(*map(moment_line, moments)), title="what happened"))
    return Group(*parts)


def headline(story: Story) -> RenderableType:
    """The title, the number of rounds done, and the held-out loss."""
    rounds, done = story.settings.rounds, story.rounds_done
    grid = Table.grid(padding=(0, 2))
    loss = f"{story.held_out[done]:.3f}" if story.held_out else "..."
    grid.add_row(
        Text("PCCL", style=f"bold {look.peer_colour(0)}"),
        Text("four peers, a loss, a join", style="bold", no_wrap=True),
        ProgressBar(total=rounds, completed=done, width=14, complete_style=look.peer_colour(0)),
        Text(f"round {done}/{rounds}", style=look.FAINT),
        Text(f"held-out {loss}"),
    )
    return grid


def peer_table(story: Story) -> Table:
    """The table with a row for each peer."""
    table = Table(box=box.SIMPLE_HEAD, border_style=look.FAINT, header_style=look.FAINT)
    for heading in ("peer", "pid", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("round", "loss", "bytes", "all_reduce"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    for index in sorted(story.peers):
        table.add_row(*peer_row(story.peers[index]))
    return table


def peer_row(peer: Peer) -> list[Text]:
    """The cells of one peer's row in the table of peers."""
    dim = look.FAINT if peer.state in ("killed", "failed") else ""
    return [
        Text(peer.name, style=f"bold {look.peer_colour(peer.index)}"),
        Text(str(peer.pid), style=dim),
        Text(peer.state, style=STATE_STYLES.get(peer.state, "")),
        Text("" if peer.round is None else str(peer.round), style=dim),
        Text("" if peer.train_loss is None else f"{peer.train_loss:.3f}", style=dim),
        Text(human_bytes(peer.bytes_sent + peer.bytes_received), style=dim),
        Text("" if peer.bandwidth is None else f"{human_bytes(peer.bandwidth)}/s", style=dim),
        Text("" if peer.digest is None else peer.digest[:8], style=dim),
    ]


def range_panel(story: Story, event: Event) -> Panel:
    """The result of the all_reduce that lost a peer, as a bar coloured by contributors."""
    elements = story.settings.model.size
    most = story.settings.peers
    bar = Text()
    for cell in range(BAR_CELLS):
        middle = (cell + 0.5) * elements / BAR_CELLS
        part = next(part for part in event["ranges"] if middle < part["end"])
        bar.append("█", style=look.contributors_colour(part, most))
    legend = Text.assemble(
        ("█ ", look.KEPT),
        f"averaged over all {most}, kept    ",
        ("█ ", look.REDONE),
        f"redone by the {most - 1} left",
    )
    title = f"the {elements:,} values of the all_reduce of round {event['round']}"
    return panel(Group(bar, legend), title=title)


def summary(story: Story, checks: list[Check], paths: Iterable[Path]) -> RenderableType:
    """The summary of a finished run: digest of each peer, timeline, and checked claims."""
    digests = Table.grid(padding=(0, 2))
    for index in sorted(story.peers):
        peer = story.peers[index]
        ending = peer.digest if peer.text is not None else f"{peer.state} in round {peer.round}"
        name = Text(peer.name, style=f"bold {look.peer_colour(index)}")
        digests.add_row(name, Text(peer.peer_id or "", style=look.FAINT), Text(str(ending)))

    moments = [
        moment_line(moment) for moment in sorted(story.timeline, key=lambda moment: moment.seconds)
    ]
    claims = Table.grid(padding=(0, 1))
    for check in checks:
        mark = Text("✓", style="bold green") if check.holds else Text("✗", style="bold red")
        claims.add_row(mark, Text(check.claim), Text(check.evidence, style=look.FAINT))

    parts: list[RenderableType] = [
        panel(
            digests,
            title="each peer, its id, and the digest of what it holds at the end",
        ),
        panel(Group(*moments), title="what happened"),
    ]
    broken = story.broken_round()
    if broken is not None:
        parts.append(range_panel(story, broken))
    texts = [peer.text for peer in story.peers.values() if peer.text is not None]
    if texts:
        written = Text(PROMPT + texts[0].rstrip(), style="italic")
        parts.append(panel(written, title=f'what the model writes after "{PROMPT}"'))
    parts.append(panel(claims, title="what it shows"))
    parts.append(Text("written: " + "  ".join(map(str, paths)), style=look.FAINT))
    return Group(*parts)


def moment_line(moment: Moment) -> Text:
    """A line of the timeline."""
    return Text.assemble(
        (f"{moment.seconds:6.1f} s  ", look.FAINT), (moment.text, look.MOODS[moment.mood])
    )


def panel(content: RenderableType, title: str) -> Panel:
    """A frame around a part of the screen."""
    return Panel(content, title=title, title_align="left", box=box.ROUNDED, border_style=look.FAINT)


def human_bytes(count: float) -> str:
    """A number of bytes as text, in powers of 1000 with at most three digits: 1536 -> "1.5 kB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the loop returns")
