"""Look: the colours of the demo, the same on the screen and in the plot. Nothing else knows a
colour by its code."""

from __future__ import annotations

from examples.demo.story import Event

# Okabe and Ito's palette, which colour-blind people can tell apart; one colour per peer.
PEERS = ("#56B4E9", "#E69F00", "#CC79A7", "#009E73", "#9D8DF1")

INK = "#24292F"
FAINT = "#8C959F"
LOSS = "#D1495B"
JOIN = "#2E8B57"
KEPT = "#7F93AA"  # averaged over everybody, before the loss
REDONE = LOSS  # averaged over the survivors, after it

MOODS = {"plain": "", "loss": LOSS, "join": JOIN, "good": "bold green", "bad": "bold red"}


def peer_colour(index: int) -> str:
    """The colour of a peer."""
    return PEERS[index % len(PEERS)]


def contributors_colour(part: Event, most: int) -> str:
    """The colour of a range of an outcome: whether all `most` peers are in it."""
    return KEPT if len(part["contributors"]) == most else REDONE
