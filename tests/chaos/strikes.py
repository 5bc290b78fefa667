"""How each kind of fault of a plan is done to the processes and links of a run.

A strike begins a fault and arranges its end; `Record` keeps what it hit, as the victims' markers
say at that instant. When faults come is plan.py's, and what follows from them orchestrator.py's.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import plan
from marker import Phase
from network import COORDINATOR
from processes import Slot

if TYPE_CHECKING:
    from orchestrator import Run

LEAVES = 4
# How long a fault waits for its victims to be there.
PATIENCE_SECONDS = 6.0
RETRY_SECONDS = 0.2
# A fault that nobody else suffers from is none of an operation.
GRACEFUL = ("leave", "leave_loop")


@dataclass
class Record:
    """The result of one fault."""

    fault: plan.Fault
    at: float | None = None
    skipped: str = ""
    # Slot, and the operations in flight in its process then.
    in_flight: dict[int, int] = field(default_factory=dict)
    phases: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def struck(self) -> bool:
        return self.at is not None

    @property
    def counts(self) -> bool:
        """Among those that should hit an operation."""
        return self.struck and self.fault.kind not in GRACEFUL

    @property
    def hit(self) -> bool:
        return any(self.in_flight.values())

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "hit": self.hit}


class Strikes:
    """The faults of one run, as they are done."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.records: list[Record] = []

    def begin(self, fault: plan.Fault) -> None:
        """The time of a fault has come. If its victims are not there, it waits a little."""
        record = Record(fault)
        self.records.append(record)
        self._try(record)

    def _try(self, record: Record) -> None:
        fault = record.fault
        slots = [self._run.slots[index] for index in fault.slots if index != plan.COORDINATOR]
        record.skipped = self._unable(fault, slots)
        if record.skipped:
            if self._run.now() < fault.at + PATIENCE_SECONDS and not self._run.quiet:
                self._run.later(RETRY_SECONDS, lambda: self._try(record))
            return
        strike: Callable[[Record, list[Slot]], None]
        if fault.kind in plan.LINK_KINDS:
            strike = self._link
        elif fault.kind in plan.CONTROL_KINDS:
            strike = self._control
        else:
            strike = getattr(self, f"_{fault.kind.removesuffix('_short').removesuffix('_long')}")
        strike(record, slots)

    def _unable(self, fault: plan.Fault, slots: list[Slot]) -> str:
        """Why it cannot be done now: its victims must be there, and no other fault on its way."""
        for slot in slots:
            if slot.armed is not None and not slot.armed.struck:
                return f"slot {slot.index} waits for its fault point"
            if not slot.working:
                return f"slot {slot.index} is not working"
        coordinator = self._run.coordinator
        about = plan.COORDINATOR in fault.slots or "coordinator" in fault.kind
        if about and not coordinator.working:
            return "the coordinator is not working"
        return ""

    def _note(self, record: Record, slots: list[Slot]) -> None:
        """Notes what the victims are doing, at the instant of the fault."""
        record.at = self._run.now()
        for slot in slots:
            glance = slot.glance()
            record.in_flight[slot.index] = glance.in_flight
            record.phases[slot.index] = glance.phase.name

    def _note_everybody(self, record: Record) -> None:
        self._note(record, [slot for slot in self._run.slots if slot.working])

    # ---- processes

    def _kill_slot(self, record: Record, slot: Slot) -> None:
        assert slot.process is not None
        slot.process.signal(signal.SIGKILL)
        self._run.expect_end(slot, -signal.SIGKILL)
        self._run.kills += 1
        self._note(record, [slot])

    def _kill(self, record: Record, slots: list[Slot]) -> None:
        for slot in slots:
            self._kill_slot(record, slot)

    _kill_two = _kill

    def _freeze(self, record: Record, slots: list[Slot]) -> None:
        for slot in slots:
            assert slot.process is not None
            slot.process.signal(signal.SIGSTOP)
            slot.frozen = True
            self._run.later(record.fault.seconds, functools.partial(self._thaw, slot))
        self._note(record, slots)

    def _thaw(self, slot: Slot) -> None:
        if slot.process is not None and slot.frozen:
            slot.frozen = False
            slot.process.signal(signal.SIGCONT)

    def _kill_in_recovery(self, record: Record, slots: list[Slot]) -> None:
        """The second victim is frozen, so that the recovery from the first waits for it."""
        first, second = slots
        assert second.process is not None
        second.process.signal(signal.SIGSTOP)
        second.frozen = True
        self._kill_slot(record, first)

        def finish() -> None:
            status = self._run.status()
            groups = [] if status is None else status["groups"]
            stands = [epoch for group in groups for epoch in group["epochs"]]
            if any(not epoch["running"] for epoch in stands):
                record.notes.append("inside a recovery")
            self._kill_slot(record, second)

        self._run.later(0.1, finish)

    def _leave(self, record: Record, slots: list[Slot]) -> None:
        self._note(record, slots)
        for slot in slots:
            self._run.ask_to_leave(slot)

    def _terminate(self, record: Record, slots: list[Slot]) -> None:
        """SIGTERM: it leaves, wherever it is."""
        for slot in slots:
            assert slot.process is not None
            self._note(record, [slot])
            slot.process.signal(signal.SIGTERM)
            self._run.expect_end(slot, 128 + signal.SIGTERM)

    def _leave_loop(self, record: Record, slots: list[Slot]) -> None:
        self._note(record, slots)
        (slot,) = slots
        left = LEAVES

        def again() -> None:
            nonlocal left
            if left and slot.process is not None:
                left -= 1
                self._run.on_phase(slot, Phase.WORKING, again)
                slot.process.say("rejoin")

        again()

    def _kill_newcomer(self, record: Record, slots: list[Slot]) -> None:
        """Somewhere between connecting and its first safe point."""
        (slot,) = slots
        phase = (Phase.CONNECTING, Phase.ENTERING)[record.fault.number % 2]

        def newcomer_is_there() -> None:
            self._note_everybody(record)
            record.in_flight.pop(slot.index, None)
            self._kill_slot(record, slot)

        self._run.ask_to_leave(slot)
        self._run.on_phase(slot, phase, newcomer_is_there)

    def _kill_while_joining(self, record: Record, slots: list[Slot]) -> None:
        """A member dies while the members prepare for a newcomer."""
        newcomer, member = slots

        def newcomer_is_there() -> None:
            if member.working:
                self._kill_slot(record, member)
            else:
                record.skipped = "the member was gone already"

        self._run.ask_to_leave(newcomer)
        self._run.on_phase(newcomer, Phase.CONNECTING, newcomer_is_there)

    def _point(self, record: Record, slots: list[Slot]) -> None:
        """The next process of this slot will strike itself."""
        (slot,) = slots
        slot.armed = record
        self._run.ask_to_leave(slot)

    def point_struck(self, slot: Slot) -> None:
        """A process has killed or frozen itself at its fault point."""
        record: Record = slot.armed
        self._note(record, [slot])
        if record.fault.point.startswith("stop="):
            slot.frozen = True
            self._run.ask_to_leave(slot)  # when it thaws: it would meet the point again
            self._run.later(record.fault.seconds, lambda: self._thaw(slot))
        else:
            self._run.kills += 1

    # ---- links

    def _link(self, record: Record, slots: list[Slot]) -> None:
        one, other = slots
        self._between(record, one.name, other.name)
        self._note(record, slots)

    def _control(self, record: Record, slots: list[Slot]) -> None:
        self._between(record, slots[0].name, COORDINATOR)
        self._note(record, slots)

    def _between(self, record: Record, one: str, other: str) -> None:
        """One direction is that to `other` for faults of even number, else that from it."""
        network, kind = self._run.network, record.fault.kind.removeprefix("control_")
        kind = kind.removesuffix("_short").removesuffix("_long")
        pair = (one, other) if record.fault.number % 2 == 0 else (other, one)
        said = network.strike(kind, *pair)
        record.notes += [said] if said else []
        if record.fault.seconds:
            self._run.later(record.fault.seconds, lambda: network.mend(one, other))

    def _isolate(self, record: Record, slots: list[Slot]) -> None:
        (slot,) = slots
        network = self._run.network
        network.isolate(slot.name)
        self._note(record, slots)
        self._run.later(record.fault.seconds, lambda: network.reconnect(slot.name))

    # ---- the coordinator

    def _coordinator_freeze(self, record: Record, slots: list[Slot]) -> None:
        coordinator = self._run.coordinator
        assert coordinator.process is not None
        coordinator.process.signal(signal.SIGSTOP)
        coordinator.frozen = True
        self._note_everybody(record)
        self._run.later(record.fault.seconds, self.thaw_coordinator)

    def thaw_coordinator(self) -> None:
        coordinator = self._run.coordinator
        if coordinator.process is not None and coordinator.frozen:
            coordinator.frozen = False
            coordinator.process.signal(signal.SIGCONT)

    def _coordinator_kill(self, record: Record, slots: list[Slot]) -> None:
        self._note_everybody(record)
        self._run.kill_coordinator(back_after=record.fault.seconds)

    def _coordinator_kill_behind_gate(self, record: Record, slots: list[Slot]) -> None:
        """As behind a load balancer: whoever dials is let in, and put out again."""
        self._note_everybody(record)
        self._run.kill_coordinator(back_after=record.fault.seconds, gate_closes=False)

    def _coordinator_kill_and_peer(self, record: Record, slots: list[Slot]) -> None:
        self._coordinator_kill(record, [])
        for slot in slots:
            self._kill_slot(record, slot)
