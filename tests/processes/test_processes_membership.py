"""Peers join, leave and die while the others work: worlds, sums and safe points agree everywhere.

The load is loop.py, in every process; what each of them logged is compared here, round by round.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from peers import Peer, World

COUNT = 20_011
SETTINGS: dict[str, Any] = {"heartbeat": 0.2, "silence": 10}

Log = list[dict[str, Any]]


def wait_for_members(peers: list[Peer], members: list[int]) -> None:
    """Until each of them has finished a round in an epoch of exactly these members."""
    for peer in peers:
        while True:
            event = peer.event()
            assert event != "ended", f"peer {peer.number} ended: {peer.ask('loop_log')[-1]}"
            if sorted(event["members"]) == sorted(members):
                break  # the others were epochs on the way there


def wait_for_end(peers: list[Peer]) -> dict[int, Log]:
    """The logs, once all loops have ended."""
    for peer in peers:
        while peer.event() != "ended":
            continue  # an epoch that nobody waited for
    return {peer.number: peer.ask("loop_log") for peer in peers}


def join_and_work(world: World, newcomers: list[Peer]) -> None:
    """They enter while the others work, and begin to work themselves."""
    for peer in newcomers:
        peer.send("join", token=world.coordinator.token, deadline=world.deadline)
        peer.send("loop_begin", count=COUNT)
    for peer in newcomers:
        admission = peer.answer()
        assert admission["changed"] and peer.number in admission["joined"]
        peer.answer()


def check_logs(logs: dict[int, Log], founders: int) -> None:
    """Every round of every log: a right sum of the right peers, the same on all who were there."""
    rounds: dict[tuple[int, int], dict[str, Any]] = {}
    epochs: dict[int, list[int]] = {}
    for number, log in logs.items():
        assert log, f"peer {number} took part in no round"
        previous = None
        for entry in log:
            where = f"peer {number}, {entry}"
            assert entry["sum_is_right"], where
            assert entry["members"][entry["rank"]] == number, where
            assert entry["world_size"] == len(entry["members"]), where
            assert number in entry["contributors"], where
            assert set(entry["contributors"]) <= set(entry["members"]), where
            members = epochs.setdefault(entry["epoch"], entry["members"])
            assert entry["members"] == members, where
            shared = {key: entry[key] for key in ("digest", "contributors")}
            known = rounds.setdefault((entry["epoch"], entry["sequence"]), shared)
            assert shared == known, where
            if previous is not None:
                check_step(previous, entry, where)
            elif number < founders:
                assert entry["epoch"] == 1, where
            previous = entry
    # Whoever joined is in the very first sum of the epoch that it joined in.
    for number, log in logs.items():
        first = log[0]
        assert (first["sequence"], number in first["contributors"]) == (0, True), first
    # A newcomer logs nothing of the epochs before it, and no epoch is skipped.
    assert sorted(epochs) == list(range(1, max(epochs) + 1)), sorted(epochs)


def check_step(previous: dict[str, Any], entry: dict[str, Any], where: str) -> None:
    """From one safe point to the next: either nothing changes, or a new epoch says what did."""
    if not entry["changed"]:
        assert entry["epoch"] == previous["epoch"], where
        assert entry["members"] == previous["members"], where
        assert entry["sequence"] == previous["sequence"] + 1, where
        return
    assert entry["epoch"] == previous["epoch"] + 1, where
    assert entry["sequence"] == 0, where
    before, after = set(previous["members"]), set(entry["members"])
    assert set(entry["joined"]) == after - before, where
    assert set(entry["left"]) == before - after, where
    stayed = [member for member in previous["members"] if member in after]
    assert entry["members"] == stayed + sorted(entry["joined"]), where


def leave(peer: Peer) -> int:
    peer.ask("loop_leave")
    return 0


def die(peer: Peer) -> int:
    peer.signal(signal.SIGKILL)
    return peer.ended()


@pytest.mark.parametrize(("go", "code"), [(leave, 0), (die, -signal.SIGKILL)])
def test_peers_come_and_go_while_the_others_work(go: Callable[[Peer], int], code: int) -> None:
    with World(3, **SETTINGS) as world:
        founders = list(world.peers)
        world.all("loop_begin", count=COUNT)
        wait_for_members(founders, [0, 1, 2])

        one = world.start(3)
        join_and_work(world, [one])
        wait_for_members([*founders, one], [0, 1, 2, 3])

        pair = [world.start(4), world.start(5)]
        join_and_work(world, pair)
        present = [*founders, one, *pair]
        wait_for_members(present, [0, 1, 2, 3, 4, 5])

        # The first rank and one in the middle go, at the same time as another one comes.
        gone = [founders[0], one]
        present = [peer for peer in present if peer not in gone]
        late = world.start(6)
        late.send("join", token=world.coordinator.token, deadline=world.deadline)
        late.send("loop_begin", count=COUNT)
        assert [go(peer) for peer in gone] == [code] * 2
        assert late.answer()["changed"]
        late.answer()
        present.append(late)
        wait_for_members(present, [1, 2, 4, 5, 6])

        late.ask("loop_end")
        logs = wait_for_end(present)
        last = {number: log[-1] for number, log in logs.items()}
        assert len({(entry["epoch"], entry["sequence"]) for entry in last.values()}) == 1
        assert sorted(last[1]["contributors"]) == [1, 2, 4, 5, 6]
        if go is leave:
            logs.update(wait_for_end(gone))
        check_logs(logs, founders=3)


def test_all_leave_but_one_which_goes_on_alone_and_is_joined_again() -> None:
    with World(3, **SETTINGS) as world:
        last, *others = list(world.peers)
        world.all("loop_begin", count=COUNT)
        wait_for_members([last, *others], [0, 1, 2])
        for peer in others:
            peer.ask("loop_leave")
        wait_for_members([last], [0])
        newcomer = world.start(9)
        join_and_work(world, [newcomer])
        wait_for_members([last, newcomer], [0, 9])
        newcomer.ask("loop_end")
        check_logs(wait_for_end([last, newcomer, *others]), founders=3)


def test_everybody_is_replaced_while_the_work_goes_on() -> None:
    """The run outlives all of its founders."""
    with World(2, **SETTINGS) as world:
        everybody = list(world.peers)
        world.all("loop_begin", count=COUNT)
        wait_for_members(everybody, [0, 1])
        for number in range(2, 6):
            newcomer = world.start(number)
            join_and_work(world, [newcomer])
            everybody.append(newcomer)
            wait_for_members(everybody[-3:], [number - 2, number - 1, number])
            everybody[-3].ask("loop_leave")
            wait_for_members(everybody[-2:], [number - 1, number])
        everybody[-1].ask("loop_end")
        check_logs(wait_for_end(everybody), founders=2)


def test_a_newcomer_that_dies_before_it_enters_holds_nobody_up() -> None:
    """Killed between connect and its first safe point: the others may be waiting for it there."""
    with World(2, **SETTINGS) as world:
        founders = list(world.peers)
        world.all("loop_begin", count=COUNT)
        wait_for_members(founders, [0, 1])
        newcomer = world.start(2)
        newcomer.ask("connect", token=world.coordinator.token)
        newcomer.signal(signal.SIGKILL)
        newcomer.ended()
        other = world.start(3)
        join_and_work(world, [other])
        wait_for_members([*founders, other], [0, 1, 3])
        other.ask("loop_end")
        check_logs(wait_for_end([*founders, other]), founders=2)
