"""Plot: draws `loss.png`: the loss, the rounds of each peer, and the result of the all_reduce that
lost a peer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from examples.demo import look
from examples.demo.story import Story, names

LOSS_TICKS = [1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5]
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": look.INK,
    "axes.labelcolor": look.INK,
    "axes.edgecolor": look.FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": look.FAINT,
    "ytick.color": look.FAINT,
    "xtick.labelcolor": look.INK,
    "ytick.labelcolor": look.INK,
}


def draw(story: Story, path: Path) -> None:
    """Draws the run to the file `path`; a run that failed is drawn as far as it went."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 8.4), dpi=160)
        grid = figure.add_gridspec(
            3,
            1,
            height_ratios=[5, 1.8, 0.65],
            hspace=0.36,
            left=0.075,
            right=0.89,
            top=0.9,
            bottom=0.075,
        )
        loss, lives, ranges = (figure.add_subplot(grid[row]) for row in range(3))
        draw_titles(figure, story)
        draw_loss(loss, story)
        draw_lives(lives, story)
        draw_ranges(ranges, story)
        figure.savefig(path)


def draw_titles(figure: Figure, story: Story) -> None:
    """Draws the title, and a line about the run."""
    settings = story.settings
    figure.text(
        0.075, 0.955, "One model, trained by peers that come and go", fontsize=17, fontweight="bold"
    )
    figure.text(
        0.075,
        0.925,
        f"{settings.model.size:,} parameters learn the source of Python's standard library. "
        f"DiLoCo: {settings.steps} local steps a round, then one all_reduce.",
        color=look.FAINT,
        fontsize=10.5,
    )


def draw_loss(axes: Axes, story: Story) -> None:
    """Draws the loss on held-out text, and the loss of each peer on its own text."""
    for index in sorted(story.peers):
        rounds = story.peers[index].rounds
        axes.plot(
            [event["round"] for event in rounds],
            [event["train_loss"] for event in rounds],
            color=look.peer_colour(index),
            linewidth=1.2,
        )
    rounds_done = sorted(story.held_out)
    losses = [story.held_out[number] for number in rounds_done]
    axes.plot(rounds_done, losses, color=look.INK, linewidth=2.6)
    if losses:
        note(axes, f"{losses[0]:.2f}", rounds_done[0], losses[0])
        note(axes, f"{losses[-1]:.2f}", rounds_done[-1], losses[-1])
    axes.set_ylabel("loss, nats per byte")
    axes.set_yscale("log")  # the loss falls mostly in the first rounds
    axes.yaxis.set_major_locator(FixedLocator(LOSS_TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlim(0, story.settings.rounds)
    axes.grid(axis="y", color=look.FAINT, alpha=0.2)
    handles = [
        Line2D([], [], color=look.INK, linewidth=2.6, label="all peers, on held-out text"),
        Line2D(
            [],
            [],
            color=look.FAINT,
            linewidth=1.2,
            label="each peer, on its own text while it trains",
        ),
    ]
    axes.legend(handles=handles, frameon=False, loc="upper right")
    mark_moments(axes, story)


def note(axes: Axes, text: str, x: float, y: float) -> None:
    """Draws a value beside its point."""
    axes.annotate(
        text,
        (x, y),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontweight="bold",
        annotation_clip=False,
    )


def mark_moments(axes: Axes, story: Story) -> None:
    """Draws labelled lines where a peer was lost, and where another peer joined."""
    lost = story.broken_round()
    if lost is not None:
        kept = sum(
            part["end"] - part["begin"]
            for part in lost["ranges"]
            if len(part["contributors"]) == story.settings.peers
        )
        share = 100 * kept / story.settings.model.size
        text = (
            f"peer {story.settings.victim} is killed\ninside the all_reduce:\n"
            f"{share:.0f} % of it was done\nand is kept"
        )
        mark(axes, lost["round"], text, look.LOSS)
    newcomer = story.peers.get(story.settings.newcomer)
    if newcomer is not None and newcomer.rounds:
        text = f"{newcomer.name} joins and\ngets the parameters"
        mark(axes, newcomer.rounds[0]["round"] - 1, text, look.JOIN)


def mark(axes: Axes, x: float, text: str, colour: str) -> None:
    """Draws a vertical line at `x` with a caption to its right, at a height without curves."""
    axes.plot(
        [x, x],
        [0, 0.72],
        transform=axes.get_xaxis_transform(),
        color=colour,
        linewidth=1.5,
        dashes=(4, 3),
    )
    axes.annotate(
        text,
        (x, 0.72),
        xycoords=axes.get_xaxis_transform(),
        xytext=(7, 0),
        textcoords="offset points",
        color=colour,
        va="top",
        fontweight="bold",
        linespacing=1.35,
    )


def draw_lives(axes: Axes, story: Story) -> None:
    """Draws a bar for each peer over the rounds in which it took part."""
    settings = story.settings
    for index in sorted(story.peers):
        peer = story.peers[index]
        if not peer.rounds:
            continue
        begin, end = peer.rounds[0]["round"] - 1, peer.rounds[-1]["round"]
        ending, colour = f"{(peer.digest or '')[:12]}", look.INK
        if peer.text is None:
            ending, colour = peer.state, look.LOSS
        if peer.state == "killed" and peer.round is not None:
            end = peer.round
            axes.plot(
                end, index, marker="X", markersize=11, color=look.LOSS, clip_on=False, zorder=3
            )
        if index == settings.newcomer:
            axes.plot(
                begin, index, marker=">", markersize=10, color=look.JOIN, clip_on=False, zorder=3
            )
        axes.barh(index, end - begin, left=begin, height=0.62, color=look.peer_colour(index))
        axes.annotate(
            ending,
            (end, index),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            family="DejaVu Sans Mono",
            color=colour,
            annotation_clip=False,
        )
    axes.set_yticks(sorted(story.peers), [story.peers[index].name for index in sorted(story.peers)])
    axes.set_xlim(0, settings.rounds)
    axes.invert_yaxis()
    axes.set_xlabel("rounds")
    axes.set_title(
        "Who took part, and the digest of what each holds at the end", loc="left", fontsize=10.5
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def draw_ranges(axes: Axes, story: Story) -> None:
    """Draws the result of the all_reduce that lost a peer, coloured by contributors of ranges."""
    settings = story.settings
    axes.set_xlim(0, settings.model.size)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
    axes.set_xlabel("values of the pseudo-gradient")
    lost = story.broken_round()
    if lost is None:
        axes.set_title("No all_reduce lost a peer", loc="left", fontsize=10.5)
        return
    for part in lost["ranges"]:
        colour = look.contributors_colour(part, settings.peers)
        axes.barh(0, part["end"] - part["begin"], left=part["begin"], height=1, color=colour)
    axes.margins(y=0)
    fewest = min(lost["ranges"], key=lambda part: len(part["contributors"]))
    survivors = names([story.name_of(peer) for peer in fewest["contributors"]])
    title = f"Inside the all_reduce of round {lost['round']}, on every survivor"
    axes.set_title(title, loc="left", fontsize=10.5)
    handles = [
        Patch(color=look.KEPT, label=f"average of all {settings.peers}, kept"),
        Patch(color=look.REDONE, label=f"redone by {survivors}"),
    ]
    axes.legend(
        handles=handles,
        frameon=False,
        ncols=2,
        loc="lower right",
        bbox_to_anchor=(1.0, 0.93),
        borderpad=0,
    )
