"""Verdict: checks the demo's claims, one function each, on the story of a finished run.

The demo exits with status 0 only if all claims hold.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from examples.demo.story import COORDINATOR, Event, Peer, Story, names, shares

LOSS_RATIO_MAX = (
    0.75  # last held-out loss over the first, at most; the first is 5.55 nats, byte counts give 3.3
)


@dataclass(frozen=True)
class Check:
    """One claim, whether it holds, and the evidence, a phrase."""

    claim: str
    holds: bool
    evidence: str


def judge(story: Story) -> list[Check]:
    """Checks all claims about a finished run, in the order in which they are shown."""
    claims: list[Callable[[Story], Check]] = [
        loss_fell,
        victim_died_inside,
        operation_went_on,
        coordinator_came_back,
        newcomer_got_state,
        equal_bytes_in_every_round,
        equal_bytes_at_the_end,
        nobody_else_failed,
    ]
    return [claim(story) for claim in claims]


def loss_fell(story: Story) -> Check:
    """Claims that the held-out loss fell below LOSS_RATIO_MAX of its first value."""
    claim = "the loss on held-out text fell"
    rounds = story.settings.rounds
    if sorted(story.held_out) != list(range(rounds + 1)):
        return Check(claim, False, f"{len(story.held_out)} of {rounds + 1} losses were reported")
    first, last = story.held_out[0], story.held_out[rounds]
    return Check(claim, last < LOSS_RATIO_MAX * first, f"{first:.3f} -> {last:.3f} nats per byte")


def victim_died_inside(story: Story) -> Check:
    """Claims that the victim died after it called the all_reduce, and before the call returned."""
    settings = story.settings
    claim = f"peer {settings.victim} died inside the all_reduce of round {settings.kill_round}"
    victim = story.peers.get(settings.victim)
    if victim is None or victim.exit_code != -signal.SIGKILL:
        status = "not started" if victim is None else f"exit status {victim.exit_code}"
        return Check(claim, False, f"no SIGKILL: {status}")
    rounds_done = [event["round"] for event in victim.rounds]
    inside = victim.round == settings.kill_round and rounds_done == list(
        range(1, settings.kill_round)
    )
    last = [event["kind"] for event in story.events if event.get("index") == victim.index][-2:]
    inside = inside and last == ["reducing", "exited"]
    return Check(
        claim,
        inside,
        f"SIGKILL in round {victim.round}, after {len(rounds_done)} rounds; last said {last[0]}",
    )


def operation_went_on(story: Story) -> Check:
    """Claims that the victim's last all_reduce kept the ranges averaged with the victim, and redid
    the rest without it, equally on all survivors."""
    settings = story.settings
    claim = "that all_reduce kept the finished part and redid the rest"
    survivors = [peer for peer in starters(story) if peer.index != settings.victim]
    reports = [
        event
        for peer in survivors
        for event in peer.rounds
        if event["round"] == settings.kill_round
    ]
    if len(reports) != settings.peers - 1:
        return Check(claim, False, f"{len(reports)} of {settings.peers - 1} survivors finished it")
    alike = all(
        (event["ranges"], event["result_digest"])
        == (reports[0]["ranges"], reports[0]["result_digest"])
        for event in reports
    )
    if not alike:
        return Check(claim, False, "the survivors differ in their outcomes")
    report = reports[0]
    if report["sequence"] != settings.kill_sequence:
        return Check(
            claim, False, f"it is operation {report['sequence']}, the fault was set for another"
        )
    everybody = {peer.peer_id for peer in starters(story)}
    left_over = {peer.peer_id for peer in survivors}
    complete = covers(report["ranges"], settings.model.size)
    contributors = [set(part["contributors"]) for part in report["ranges"]]
    split = everybody in contributors and left_over in contributors
    known = all(each in (everybody, left_over) for each in contributors)
    evidence = shares(report["ranges"])
    if not complete:
        evidence += "; but the ranges do not cover the result"
    if not split:
        evidence += "; but there are not both ranges with the victim and ranges without"
    if not known:
        evidence += "; but a range lists other contributors than these"
    return Check(claim, complete and split and known, evidence)


def coordinator_came_back(story: Story) -> Check:
    """Claims that the coordinator was killed, came back, and that all survivors finished rounds
    after that without leaving the group."""
    settings = story.settings
    claim = f"the coordinator died in round {settings.restart_round}, came back, nobody noticed"
    told = [event for event in story.events if event["source"] == COORDINATOR]
    ends = [event["exit_code"] for event in told if event["kind"] == "exited"]
    ready = [event["seconds"] for event in told if event["kind"] == "listening"]
    if len(ready) != 2 or not ends or ends[0] != -signal.SIGKILL:
        return Check(claim, False, f"{len(ready)} starts, exit statuses {ends}")
    killed = next(event["seconds"] for event in told if event["kind"] == "exited")
    survivors = [peer for peer in starters(story) if peer.index != settings.victim]
    after = [
        peer.name for peer in survivors if any(event["seconds"] > ready[1] for event in peer.rounds)
    ]
    lost = {
        peer_id
        for peer in story.peers.values()
        for event in peer.admissions
        for peer_id in event["left"]
    }
    others = {peer.peer_id for peer in survivors if peer.peer_id is not None} & lost
    holds = len(after) == len(survivors) and not others
    return Check(
        claim,
        holds,
        f"back after {ready[1] - killed:.1f} s; {names(after)} finished rounds after that"
        + (f"; but lost: {names([story.name_of(other) for other in others])}" if others else ""),
    )


def newcomer_got_state(story: Story) -> Check:
    """Claims that the newcomer joined, received the members' state, and trained to the end."""
    newcomer = story.peers.get(story.settings.newcomer)
    claim = f"peer {story.settings.newcomer} joined and got the state"
    if newcomer is None or not newcomer.admissions:
        return Check(claim, False, "it was never admitted")
    entry = newcomer.admissions[0]
    welcomed = [
        event
        for peer in story.peers.values()
        for event in peer.admissions
        if event["epoch"] == entry["epoch"]
    ]
    digests = {event["digest"] for event in welcomed}
    # The newcomer has not trained in these rounds, so equal digests prove that it received state.
    rounds_done = entry["rounds_done"]
    given = rounds_done >= story.settings.join_round
    given = given and all(newcomer.peer_id in event["joined"] for event in welcomed)
    complete = len(welcomed) == entry["world_size"] == story.settings.peers
    trained = [event["round"] for event in newcomer.rounds]
    went_on = bool(trained) and trained == list(range(trained[0], story.settings.rounds + 1))
    evidence = (
        f"epoch {entry['epoch']}: {len(welcomed)} of {entry['world_size']} members report, "
        f"{len(digests)} digest, of {rounds_done} rounds; then {len(trained)} rounds"
    )
    return Check(claim, given and complete and len(digests) == 1 and went_on, evidence)


def equal_bytes_in_every_round(story: Story) -> Check:
    """Claims that after each round, all peers that took part had the same bytes."""
    claim = "in every round all peers held the same bytes"
    for number in range(1, story.settings.rounds + 1):
        reports = [
            event
            for peer in story.peers.values()
            for event in peer.rounds
            if event["round"] == number
        ]
        digests = {event["digest"] for event in reports}
        if len(reports) < story.settings.peers - 1 or len(digests) != 1:
            return Check(
                claim, False, f"round {number}: {len(reports)} reports, {len(digests)} digests"
            )
    return Check(claim, True, f"{story.settings.rounds} rounds, one digest each")


def equal_bytes_at_the_end(story: Story) -> Check:
    """Claims that all peers except the victim ended with the same bytes."""
    claim = "at the end all peers hold the same bytes"
    left = [peer for peer in story.peers.values() if peer.index != story.settings.victim]
    finished = [peer for peer in left if peer.text is not None]
    digests = {peer.digest for peer in finished}
    holds = len(finished) == story.settings.peers and len(digests) == 1
    return Check(
        claim, holds, f"{len(finished)} peers, digests {', '.join(sorted(map(str, digests)))}"
    )


def nobody_else_failed(story: Story) -> Check:
    """Claims that only the victim failed, and that no peer raised an exception."""
    claim = "nobody else failed, no survivor saw an exception"
    bad = [
        peer.name
        for peer in story.peers.values()
        if peer.index != story.settings.victim and not went_well(peer)
    ]
    bad += [
        peer.name
        for peer in story.peers.values()
        if peer.error is not None and peer.name not in bad
    ]
    if story.coordinator_exit_code != 0:
        bad.append(f"coordinator (exit status {story.coordinator_exit_code})")
    if story.failure is not None:
        return Check(claim, False, story.failure)
    return Check(claim, not bad, f"failed: {names(bad)}" if bad else "all exit statuses are 0")


def starters(story: Story) -> list[Peer]:
    """The peers that took part from the start: all but the newcomer."""
    return [peer for peer in story.peers.values() if peer.index < story.settings.peers]


def went_well(peer: Peer) -> bool:
    """Whether a peer ended with exit status 0 and reported no exception."""
    return peer.exit_code == 0 and peer.error is None


def covers(ranges: list[Event], elements: int) -> bool:
    """Whether the ranges follow each other without gap or overlap from 0 to `elements`."""
    edge = 0
    for part in ranges:
        if part["begin"] != edge or part["end"] <= part["begin"]:
            return False
        edge = part["end"]
    return edge == elements
