"""A peer is lost inside a message, or beside one: the sender, the receiver, a third.

As in test_processes_losses.py the victim kills itself at a fault point of the engine.
"""

from __future__ import annotations

import signal
from typing import Any

import contributions
import numpy as np
import pytest
from peers import World

COUNT = 95_004  # about 200 chunks
SALT = 21
SETTINGS: dict[str, Any] = {
    "chunk_bytes": 4096,
    "window_bytes": 64 * 1024,
    "heartbeat": 0.2,
    "silence": 10,
}
SENDER, RECEIVER, THIRD = 0, 1, 2


def world_with(victim: int, point: str) -> World:
    environments = {victim: {"PCCL_FAULT_POINT": f"operation.{point}"}}
    world = World(3, environments=environments, **SETTINGS)
    for peer in world.peers:
        peer.ask("make", name="x", of="digits", count=COUNT, salt=SALT)
    return world


@pytest.mark.parametrize(
    ("victim", "point"),
    [
        (SENDER, "called:0:0.0"),
        (SENDER, "opened:0:0.0"),
        (RECEIVER, "called:0:0.0"),
        (RECEIVER, "settled:0:0.0"),
        (RECEIVER, "settled:0:0.5"),
    ],
)
def test_a_lost_partner_ends_the_message_and_the_next_one(victim: int, point: str) -> None:
    """The sender's buffer is as it was, and the others go on."""
    with world_with(victim, point) as world:
        left = world.peers[1 - victim]
        parts = [
            {"kind": "send", "array": "x", "dst": RECEIVER},
            {"kind": "recv", "array": "x", "src": SENDER},
        ]
        for peer, part in zip(world.peers, parts, strict=False):
            peer.send("run", **part)
        raised = left.failure()
        assert raised.kind == "Aborted", raised
        assert world.peers[victim].ended() == -signal.SIGKILL
        before = contributions.digits(1 - victim, COUNT, SALT)
        if victim == RECEIVER:
            assert np.array_equal(left.read("x"), before)
        else:
            left.ask("make", name="x", of="digits", count=COUNT, salt=SALT)
        left.send("run", **parts[1 - victim])
        raised = left.failure()
        assert raised.kind == "Aborted", raised
        left.send("run", kind="send", array="x", dst=THIRD)
        world.peers[THIRD].send("run", kind="recv", array="x", src=1 - victim)
        left.answer()
        world.peers[THIRD].answer()
        assert np.array_equal(world.peers[THIRD].read("x"), before)


def test_the_loss_of_a_third_ends_no_message() -> None:
    """It dies while the sender waits for the receiver, and the message goes on."""
    with World(3, **SETTINGS) as world:
        sender, receiver, third = world.peers
        for peer in world.peers:
            peer.ask("make", name="x", of="digits", count=COUNT, salt=SALT)
        sender.ask("begin", work="w", kind="send", array="x", dst=RECEIVER)
        third.signal(signal.SIGKILL)
        assert third.ended() == -signal.SIGKILL
        outcome = receiver.ask("run", kind="recv", array="x", src=SENDER)
        sender.ask("wait", work="w")
        assert np.array_equal(receiver.read("x"), contributions.digits(SENDER, COUNT, SALT))
        assert [part["contributors"] for part in outcome["ranges"]] == [[SENDER]]
