"""The plan of a chaos run: which fault when and to whom, drawn from a seed and nothing else.

Kinds come from a shuffled deck, so that a run of a minute has each of them. Slot 0 is never killed
nor cut off for long: its memory is measured from start to end. Slots that a fault has taken are
left alone until they have had time to come back, so that two peers at least are well at any time.
How faults are done: strikes.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

POINTS = ("called", "opened", "partial", "settled", "voted", "committed")
FRACTIONS = (0.0, 0.3, 0.5, 0.8)
COORDINATOR = -1
# Until a process that was ended has a successor that works.
BACK_SECONDS = 1.5

# Kinds by the slots that they take; the second slot of a link may be any other.
PROCESS_KINDS = (
    *("kill", "freeze_short", "freeze_long", "leave", "terminate", "leave_loop"),
    *("kill_newcomer", "kill_while_joining"),
)
PAIR_KINDS = ("kill_two", "kill_in_recovery")
LINK_KINDS = (
    *("cut_short", "cut_long", "one_way_short", "one_way_long", "swallow", "half_open"),
    *("reset", "refuse", "crawl", "delay"),
)
ISOLATION_KINDS = ("isolate_short", "isolate_long")
CONTROL_KINDS = ("control_cut_short", "control_cut_long", "control_reset", "control_one_way")
COORDINATOR_KINDS = (
    *("coordinator_freeze_short", "coordinator_freeze_long", "coordinator_kill"),
    *("coordinator_kill_behind_gate", "coordinator_kill_and_peer"),
)
# Faults that only a proxy can make; all others are possible where packets arrive or vanish.
PROXY_KINDS = (
    *("swallow", "half_open", "reset", "refuse", "crawl", "delay"),
    *("control_reset", "coordinator_kill_behind_gate"),
)

# Every kind of fault point once in so many, dying and stopping.
STRIKES = tuple((point, stop) for point in POINTS for stop in (False, True))


@dataclass(frozen=True)
class Fault:
    """One line of the plan. `seconds` is how long it lasts, where it lasts."""

    number: int
    at: float
    kind: str
    slots: tuple[int, ...]
    seconds: float = 0.0
    point: str = ""

    def __str__(self) -> str:
        words = [f"#{self.number} at {self.at:.2f} s: {self.kind}"]
        words += ["coordinator" if slot == COORDINATOR else str(slot) for slot in self.slots]
        words += [f"for {self.seconds:.2f} s"] if self.seconds else []
        return " ".join([*words, self.point]).rstrip()


@dataclass(frozen=True)
class Plan:
    """The whole run."""

    seed: int
    seconds: float
    slots: int
    silence: float
    namespaces: bool  # instead of the proxy
    faults: tuple[Fault, ...]


def draw(
    seed: int,
    seconds: float,
    *,
    slots: int | None = None,
    silence: float = 2.0,
    gap: float = 0.9,
    namespaces: bool = False,
) -> Plan:
    """The plan of a seed."""
    source = random.Random(f"chaos {seed}")
    drawn = source.randint(4, 8)
    return _Drawing(source, seed, seconds, slots or drawn, silence, gap, namespaces).plan()


class _Drawing:
    def __init__(
        self,
        source: random.Random,
        seed: int,
        seconds: float,
        slots: int,
        silence: float,
        gap: float,
        namespaces: bool,
    ) -> None:
        self._source = source
        self._seed, self._seconds, self._slots = seed, seconds, slots
        self._silence, self._gap, self._namespaces = silence, gap, namespaces
        self._free_at = [0.0] * slots
        self._coordinator_free_at = 0.0
        self._deck: list[str] = []
        self._points: list[tuple[str, bool]] = []

    def plan(self) -> Plan:
        faults: list[Fault] = []
        at = 0.5
        while at < self._seconds:
            fault = self._fault(len(faults), at)
            if fault is not None:
                faults.append(fault)
            at += self._source.uniform(0.3, 1.7) * self._gap
        return Plan(
            *(self._seed, self._seconds, self._slots, self._silence, self._namespaces),
            tuple(faults),
        )

    def _fault(self, number: int, at: float) -> Fault | None:
        kind = self._next_kind()
        size = 2 if kind in PAIR_KINDS or kind == "kill_while_joining" else 1
        free = [slot for slot in range(1, self._slots) if self._free_at[slot] <= at]
        well = sum(free_at <= at for free_at in self._free_at)
        if len(free) < size or well - size < 2:
            self._deck.append(kind)  # its time will come
            return None
        about_coordinator = "control" in kind or "coordinator" in kind
        if about_coordinator and self._coordinator_free_at > at:
            self._deck.append(kind)
            return None
        slots = tuple(self._source.sample(free, size))
        seconds = self._lasting(kind)
        point = ""
        if kind == "point":
            name, stop = self._next_point()
            point = f"{'stop=' if stop else ''}operation.{name}:{self._source.randint(1, 3)}"
            if name in ("partial", "settled"):
                point += f":{self._source.choice(FRACTIONS)}"
            seconds = self._source.uniform(1.5, 2.5) * self._silence if stop else 0.0
        noticed = self._silence if seconds > self._silence else 0.0
        over = at + seconds + noticed + BACK_SECONDS
        for slot in slots:
            self._free_at[slot] = over
        if kind in LINK_KINDS:
            others = [slot for slot in range(self._slots) if slot not in slots]
            slots = (*slots, self._source.choice(others))
        elif kind in CONTROL_KINDS or kind == "coordinator_kill_and_peer":
            slots = (*slots, COORDINATOR)
        elif kind in COORDINATOR_KINDS:
            slots = (COORDINATOR,)
        if about_coordinator:
            self._coordinator_free_at = over
        return Fault(number, at, kind, slots, seconds, point)

    def _next_kind(self) -> str:
        if not self._deck:
            kinds = [*PROCESS_KINDS, *PAIR_KINDS, *LINK_KINDS, *ISOLATION_KINDS]
            kinds += [*CONTROL_KINDS, *COORDINATOR_KINDS]
            if self._namespaces:
                kinds = [kind for kind in kinds if kind not in PROXY_KINDS]
            self._deck = kinds + ["point"] * len(STRIKES)
            self._source.shuffle(self._deck)
        return self._deck.pop(0)

    def _next_point(self) -> tuple[str, bool]:
        if not self._points:
            self._points = list(STRIKES)
            self._source.shuffle(self._points)
        return self._points.pop()

    def _lasting(self, kind: str) -> float:
        """In parts of the silence limit: below it nobody is lost, above it somebody may be."""
        if kind in ("reset", "half_open", "control_reset", "leave_loop"):
            return 0.0
        if kind.endswith("_short") or kind == "refuse":
            return self._source.uniform(0.1, 0.5) * self._silence
        if kind.startswith("coordinator_kill"):
            return self._source.uniform(0.05, 0.8) * self._silence
        lasts = kind.endswith("_long") or kind in ("swallow", "control_one_way")
        if lasts or kind in ("crawl", "delay"):
            return self._source.uniform(1.3, 2.0) * self._silence
        return 0.0
