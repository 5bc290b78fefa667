"""Story: the history of one run, put together from the reports of its processes.

It keeps the events, the state of each peer that follows from them, and the sentences of the
timeline. `verdict.py` judges a story, and `view.py`, `plot.py` and `report.py` show it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

from examples.demo.settings import Settings

Event = dict[str, Any]

COORDINATOR = "coordinator"


def peer_name(index: int) -> str:
    """The name of a peer in views and reports."""
    return f"peer {index}"


@dataclass
class Peer:
    """One peer's state, from its reports."""

    index: int
    pid: int
    peer_id: str | None = None
    state: str = "starting"
    round: int | None = None
    train_loss: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    bandwidth: float | None = None  # bytes per second that it sent in its last all_reduce
    digest: str | None = None
    text: str | None = None
    exit_code: int | None = None
    error: str | None = None
    admissions: list[Event] = field(default_factory=list)
    rounds: list[Event] = field(default_factory=list)

    @property
    def name(self) -> str:
        return peer_name(self.index)


@dataclass(frozen=True)
class Moment:
    """A line of the timeline. `mood` is "plain", "loss", "join", "good" or "bad"."""

    seconds: float
    text: str
    mood: str = "plain"


@dataclass
class Story:
    """All events of a run, and the state of its processes. Times are seconds since it began."""

    settings: Settings
    peers: dict[int, Peer] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    timeline: list[Moment] = field(default_factory=list)
    held_out: dict[int, float] = field(default_factory=dict)  # rounds done -> nats per byte
    coordinator_pid: int | None = None
    coordinator_starts: int = 0
    coordinator_exit_code: int | None = None  # None while the coordinator runs
    failure: str | None = None  # why the run was stopped early; None if it was not

    def take(self, event: Event) -> None:
        """Adds one event: `source` (a process), `kind`, `seconds`, and fields that depend on the
        kind."""
        self.events.append(event)
        if event["source"] == COORDINATOR:
            self._take_of_coordinator(event)
            return
        if event["kind"] == "started":
            self.peers[event["index"]] = Peer(event["index"], event["pid"])
        getattr(self, f"_on_{event['kind']}")(self.peers[event["index"]], event)

    def fail(self, seconds: float, reason: str) -> None:
        """Records why the run cannot go on, unless a reason is recorded already."""
        if self.failure is None:
            self.failure = reason
            self._tell(seconds, reason, "bad")

    def name_of(self, peer_id: str) -> str:
        """The name of the peer with id `peer_id`; the id itself if no peer has reported it yet."""
        for peer in self.peers.values():
            if peer.peer_id == peer_id:
                return peer.name
        return peer_id

    @property
    def rounds_done(self) -> int:
        """Number of the last round that any peer has reported."""
        return max(self.held_out, default=0)

    def broken_round(self) -> Event | None:
        """A survivor's report of the round in which the victim died; None before any report."""
        for peer in self.peers.values():
            if peer.index == self.settings.victim:
                continue
            for event in peer.rounds:
                if event["round"] == self.settings.kill_round:
                    return event
        return None

    def _take_of_coordinator(self, event: Event) -> None:
        match event["kind"]:
            case "started":
                self.coordinator_pid = event["pid"]
                self.coordinator_starts += 1
                self.coordinator_exit_code = None
            case "listening":
                name = f"coordinator (pid {self.coordinator_pid})"
                again = self.coordinator_starts > 1
                sentence = f"{name} goes on with the run" if again else f"{name} is ready"
                self._tell(event["seconds"], sentence, "join" if again else "plain")
            case "exited":
                self.coordinator_exit_code = event["exit_code"]
                if event["exit_code"] == -signal.SIGKILL:
                    name = f"coordinator (pid {self.coordinator_pid})"
                    rounds = self.settings.restart_round
                    sentence = f"{name} is killed with SIGKILL in round {rounds}; peers work on"
                    self._tell(event["seconds"], sentence, "loss")

    def _on_started(self, peer: Peer, event: Event) -> None:
        if peer.index == self.settings.newcomer:
            peer.state = "waiting"

    def _on_joining(self, peer: Peer, event: Event) -> None:
        peer.state = "joining"
        sentence = f"{peer.name} (pid {peer.pid}) joins; the others work on"
        self._tell(event["seconds"], sentence, "join")

    def _on_connected(self, peer: Peer, event: Event) -> None:
        peer.peer_id = event["peer_id"]
        peer.state = "connected"

    def _on_admitted(self, peer: Peer, event: Event) -> None:
        known = any(e["epoch"] == event["epoch"] for p in self.peers.values() for e in p.admissions)
        peer.admissions.append(event)
        peer.state = "admitted"
        rounds_done = event["rounds_done"]
        if not known:
            listed = names([self.name_of(member) for member in event["members"]])
            sentence = f"epoch {event['epoch']}: {listed}"
            if event["left"]:
                left = names([self.name_of(member) for member in event["left"]])
                sentence += f", without {left}"
            self._tell(event["seconds"], sentence)
        if rounds_done == 0:
            self.held_out[0] = event["held_out_loss"]
        elif peer.peer_id in event["joined"]:
            sentence = f"{peer.name} gets parameters and momentum of {rounds_done} rounds"
            self._tell(event["seconds"], sentence, "join")

    def _on_training(self, peer: Peer, event: Event) -> None:
        peer.state, peer.round = "training", event["round"]

    def _on_reducing(self, peer: Peer, event: Event) -> None:
        peer.state, peer.train_loss = "reducing", event["train_loss"]

    def _on_round(self, peer: Peer, event: Event) -> None:
        first = event["round"] > self.rounds_done
        peer.rounds.append(event)
        peer.state = "averaged"
        peer.digest = event["digest"]
        peer.bytes_sent, peer.bytes_received = event["bytes_sent"], event["bytes_received"]
        if event["reduce_seconds"] > 0:
            peer.bandwidth = event["reduce_bytes_sent"] / event["reduce_seconds"]
        if first:
            self.held_out[event["round"]] = event["held_out_loss"]
            if len(event["ranges"]) > 1:
                sentence = f"the all_reduce of round {event['round']} goes on without it: "
                self._tell(event["seconds"], sentence + shares(event["ranges"]), "loss")
            elif event["attempts"] > 1:
                sentence = f"the all_reduce of round {event['round']} finishes, for all its peers"
                self._tell(event["seconds"], sentence, "join")

    def _on_finished(self, peer: Peer, event: Event) -> None:
        peer.state, peer.digest, peer.text = "finished", event["digest"], event["text"]

    def _on_error(self, peer: Peer, event: Event) -> None:
        peer.state, peer.error = "failed", f"{event['error']}: {event['message']}"
        self._tell(event["seconds"], f"{peer.name} failed with {peer.error}", "bad")

    def _on_exited(self, peer: Peer, event: Event) -> None:
        peer.exit_code = event["exit_code"]
        if peer.exit_code == -signal.SIGKILL:
            peer.state = "killed"
            where = (
                f" inside the all_reduce of round {peer.round}" if peer.round is not None else ""
            )
            self._tell(
                event["seconds"],
                f"{peer.name} (pid {peer.pid}) kills itself with SIGKILL{where}",
                "loss",
            )
        elif peer.exit_code != 0:
            peer.state = "failed"
            self._tell(
                event["seconds"], f"{peer.name} ended with exit status {peer.exit_code}", "bad"
            )
        else:
            peer.state = "done"

    def _tell(self, seconds: float, text: str, mood: str = "plain") -> None:
        self.timeline.append(Moment(seconds, text, mood))


def names(items: list[str]) -> str:
    """["peer 3", "peer 0", "peer 1"] -> "peers 0, 1 and 3"; other names are joined as they are."""
    if len(items) > 1 and all(item.startswith("peer ") for item in items):
        items = [item.removeprefix("peer ") for item in sorted(items)]
        return "peers " + ", ".join(items[:-1]) + " and " + items[-1]
    return " and ".join(items)


def shares(ranges: list[Event]) -> str:
    """A phrase for the parts of a result by number of contributors: "59 % of it averages 4 peers,
    41 % 3"."""
    elements: dict[int, int] = {}
    for part in ranges:
        count = len(part["contributors"])
        elements[count] = elements.get(count, 0) + part["end"] - part["begin"]
    total = sum(elements.values())
    most, *fewer = sorted(elements, reverse=True)
    first = f"{100 * elements[most] / total:.0f} % of it averages {most} peers"
    return ", ".join([first, *(f"{100 * elements[n] / total:.0f} % {n}" for n in fewer)])
