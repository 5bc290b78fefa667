"""What all peers of a chaos run said of their rounds, compared: agreement, atomicity, equal state.

Each peer has checked its own values already (chaos_peer.py). A complaint here is a violation of
docs/PROMISE.md. Old rounds are forgotten once nobody can speak of them any more.
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
    """What was said of one operation."""

    committed: dict[str, Any] | None = None
    failed: set[int] = field(default_factory=set)


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
        # Who failed where others succeeded, and must not be heard of again in this membership.
        self._left_behind: dict[int, Key] = {}

    def take(self, number: int, report: dict[str, Any]) -> None:
        """One report of one peer."""
        self.rounds += 1
        self.newest_epoch = max(self.newest_epoch, report["epoch"])
        if "members" in report:
            self._compare_round(number, report)
        for entry in report["operations"]:
            self._take_operation(number, entry)
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
        if not entry["ok"]:
            self.outcomes["lost" if "lost" in entry else "aborted"] += 1
            operation.failed.add(number)
            if operation.committed is not None:
                self._left_behind.setdefault(number, key)
            return
        self.outcomes["committed"] += 1
        left_behind = self._left_behind.get(number)
        # What it called before it knew may have been committed all the same.
        if left_behind is not None and key[:2] > left_behind[:2]:
            self._complain(
                f"peer {number} failed in {left_behind}, which others committed, "
                f"and went on to commit {key}"
            )
        said = {name: entry[name] for name in ("epoch", "tag", "sequence", "digest", "ranges")}
        if operation.committed is None:
            operation.committed = said
            self.committed += 1
            self.split += len({tuple(part["contributors"]) for part in said["ranges"]}) > 1
            for other in operation.failed:
                self._left_behind.setdefault(other, key)
        elif operation.committed != said:
            self._complain(f"{key}: peer {number} says {said}, others {operation.committed}")

    def _complain(self, text: str) -> None:
        self.violations.append(text)
