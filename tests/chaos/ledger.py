"""The reports of all peers of a chaos run, compared: agreement, atomicity, equal state.

Each peer has checked its own values already (chaos_peer.py). A complaint here is a violation of
docs/internals/PROMISE.md. Old rounds are forgotten once nobody can speak of them any more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# A peer may be frozen for a while and then speak of what the others have long left behind.
ROUNDS_MAX = 4000

Key = tuple[int, int, int]  # epoch, round, index of the call in the round


@dataclass
class Operation:
    """The reports of one operation."""

    committed: dict[str, Any] | None = None
    aborted: dict[int, str] = field(default_factory=dict)  # at whom, and what it was told


class Ledger:
    """Takes the reports as they come. `violations` grows."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.committed = 0
        self.split = 0  # committed with several contributor sets
        self.rounds = 0
        self.newest_epoch = 0
        self.outcomes: Counter[str] = Counter()
        self.state: Counter[str] = Counter()
        self._operations: dict[Key, Operation] = {}
        self._rounds: dict[tuple[int, int], dict[str, Any]] = {}
        # Peers that lost their membership inside an operation, and must not be heard of again: a
        # peer that joins again takes a new number.
        self._lost: dict[int, str] = {}

    def take(self, number: int, report: dict[str, Any]) -> None:
        """One report of one peer."""
        self.rounds += 1
        self.newest_epoch = max(self.newest_epoch, report["epoch"])
        if number in self._lost:
            self._complain(f"peer {number} goes on in {report}, after {self._lost[number]}")
        if "members" in report:
            self._compare_round(number, report)
        for entry in report["operations"]:
            self._take_operation(number, entry)
        # Judged with the whole report: what was called before the loss may have been committed.
        for entry in report["operations"]:
            if "lost" in entry:
                self._lost[number] = f"{entry['key']} ended with {entry['lost']}"
        while len(self._rounds) > ROUNDS_MAX:
            self._rounds.pop(next(iter(self._rounds)))
        while len(self._operations) > 4 * ROUNDS_MAX:
            self._operations.pop(next(iter(self._operations)))

    def _compare_round(self, number: int, report: dict[str, Any]) -> None:
        where = report["epoch"], report["round"]
        said = {key: report[key] for key in ("members", "state")}
        known = self._rounds.setdefault(where, said)
        if known != said:
            self._complain(f"{where}: peer {number} has {said}, others {known}")
        moved, early, sources = report["moved"]
        self.state += Counter(syncs=1, leaves_moved=moved, leaves_early=early)
        self.state["sources_max"] = max(self.state["sources_max"], sources)
        if number not in said["members"]:
            self._complain(f"{where}: peer {number} works in an epoch of {said['members']}")

    def _take_operation(self, number: int, entry: dict[str, Any]) -> None:
        epoch, round_number, index = entry["key"]
        key = (epoch, round_number, index)
        operation = self._operations.setdefault(key, Operation())
        for kind in ("lost", "unknown"):
            if kind in entry:
                self.outcomes[kind] += 1
                return
        if "aborted" in entry:
            self.outcomes["aborted"] += 1
            operation.aborted[number] = entry["aborted"]
            if operation.committed is not None:
                self._complain_of_atomicity(key, operation)
            return
        self.outcomes["committed"] += 1
        said = {name: entry[name] for name in ("epoch", "tag", "sequence", "digest", "ranges")}
        if operation.committed is None:
            operation.committed = said
            self.committed += 1
            self.split += len({tuple(part["contributors"]) for part in said["ranges"]}) > 1
            if operation.aborted:
                self._complain_of_atomicity(key, operation)
        elif operation.committed != said:
            self._complain(f"{key}: peer {number} says {said}, others {operation.committed}")

    def _complain_of_atomicity(self, key: Key, operation: Operation) -> None:
        self._complain(
            f"{key} is {operation.committed} to some, and others say {operation.aborted}"
        )

    def _complain(self, text: str) -> None:
        self.violations.append(text)
