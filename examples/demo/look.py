"""Look: all colours of the demo, the same on the screen and in the plot."""

from __future__ import annotations

from examples.demo.story import Event

# A colour for each peer, from Okabe and Ito's palette for colour-blind readers.
PEERS = ("#56B4E9", "#E69F00", "#CC79A7", "#009E73", "#9D8DF1")

INK = "#24292F"
FAINT = "#8C959F"
LOSS = "#D1495B"
JOIN = "#2E8B57"
KEPT = "#7F93AA"  # ranges of a result averaged over all peers, before one was lost
REDONE = LOSS  # ranges of a result averaged over the survivors, after the loss

MOODS = {"plain": "", "loss": LOSS, "join": JOIN, "good": "bold green", "bad": "bold red"}


def peer_colour(index: int) -> str:
    """The colour of peer `index`."""
    return PEERS[index % len(PEERS)]


def contributors_colour(part: Event, most: int) -> str:
    """The colour of a range of an outcome: KEPT if all `most` peers contributed, else REDONE."""
    return KEPT if len(part["contributors"]) == most else REDONE
