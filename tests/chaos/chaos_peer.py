"""One peer of a chaos run: works without end, checks all that it can see, and says what it saw.

Its orders are one JSON object in argv[1], then words on stdin: "finish" (all end together),
"leave" (this one ends), "rejoin" (leaves and joins again). It says JSON lines on stdout, one per
round, per membership and per violation. Its calls: program.py; ledger.py judges the rounds of all
peers together.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracle
from contributions import SLOTS, digits
from marker import Glance, Marker, Phase
from program import STATE_TAG, Call, draw
from told import number_of, outcome_fields, peer_id

import pccl_py as pccl

STATE_COUNT = 128 * 1024  # four leaves
DEADLINE_SECONDS = 60.0
RESOLVE_SECONDS = 30.0
# How long a coordinator may stay away while this peer looks for it.
CONNECT_SECONDS = 60.0
LOST = (pccl.Expelled, pccl.CoordinatorUnreachable, pccl.InDoubt)


class Lost(Exception):
    """This peer is no member any more; nothing is wrong with that by itself."""


@dataclass
class Pending:
    """A call in flight."""

    call: Call
    where: tuple[int, int]  # epoch and round in which it began
    send: np.ndarray  # in place it is recv
    recv: np.ndarray
    before: np.ndarray  # what send was
    work: pccl.Work


class ChaosPeer:
    """The loop of rounds, over as many memberships as it takes."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders
        self._marker = Marker(Path(orders["marker"]))
        self._speaking = threading.Lock()
        self._number = orders["number"]
        self._phase = Phase.STARTING
        self._epoch = self._round = self._in_flight = self._begun = 0
        self._finish = self._leave = self._rejoin = False
        self._state = np.zeros(STATE_COUNT, np.uint64)
        self._revision = 0
        self._shared: pccl.SharedState | None = None
        self._comm: pccl.Communicator | None = None
        self._carried: Pending | None = None

    # ---- talking

    def say(self, kind: str, **what: Any) -> None:
        with self._speaking:
            sys.stdout.write(json.dumps({"say": kind, "number": self._number, **what}) + "\n")
            sys.stdout.flush()

    def listen(self) -> None:
        """On a thread of its own."""
        for line in sys.stdin:
            setattr(self, f"_{line.strip()}", True)

    def violation(self, text: str) -> None:
        self.say("violation", text=f"peer {self._number}: {text}")

    def mark(self) -> None:
        incarnation = self._number // SLOTS
        self._marker.write(
            Glance(
                *(self._phase, self._epoch, self._round),
                *(self._in_flight, self._begun, incarnation),
            )
        )

    def enter(self, phase: Phase) -> None:
        self._phase = phase
        self.mark()
        self.say("phase", phase=phase.name)

    # ---- memberships

    def run(self) -> None:
        while True:
            try:
                self._membership()
            except Lost as error:
                self.say("lost", error=str(error))
            except LOST as error:
                self.say("lost", error=f"{type(error).__name__}: {error}")
            finally:
                self._in_flight = 0
                self.enter(Phase.LEAVING)
                self._close()
            if self._leave or self._finish:
                return
            self._rejoin = False
            self._number += SLOTS

    def _close(self) -> None:
        """Leaves, whatever is still in flight."""
        carried, self._carried = self._carried, None
        if self._comm is not None:
            self._comm.close()
            self._comm = self._shared = None
        if carried is not None:
            error = carried.work.exception()
            kind = type(error).__name__
            if error is None:
                self._check(carried, outcome_fields(carried.work.outcome))
            elif isinstance(error, (pccl.Cancelled, pccl.Aborted, *LOST)):
                self._check_input(carried, kind)
            else:
                self.violation(f"{carried.call} ended with {kind}: {error}")

    def _membership(self) -> None:
        self.enter(Phase.CONNECTING)
        self._comm = pccl.connect(
            self._orders["token"],
            peer_id=peer_id(self._number),
            bind=self._orders["bind"],
            advertise=self._orders["advertise"],
            initial_world_size=self._orders["initial_world_size"],
            deadline=DEADLINE_SECONDS,
            connect_timeout=CONNECT_SECONDS,
        )
        # Before the first safe point, so that some fetch it while the others work.
        prefetch = self._number % 2 == 0
        self._shared = self._comm.shared_state(
            {"state": self._state}, revision=self._revision, prefetch=prefetch
        )
        self.enter(Phase.ENTERING)
        admission = self._comm.admit()
        self.enter(Phase.WORKING)
        self.say("joined", epoch=admission.epoch)
        while self._round_after(admission):
            admission = self._comm.admit()

    # ---- rounds

    def _round_after(self, admission: pccl.Admission) -> bool:
        """False: this was the last one of this membership."""
        assert self._comm is not None
        going = self._leave or self._rejoin
        if admission.changed:
            self._epoch, self._round = admission.epoch, 0
        else:
            self._round += 1
        report: dict[str, Any] = {
            "epoch": self._epoch,
            "round": self._round,
            "members": [number_of(peer) for peer in self._comm.members],
            "operations": [],
        }
        self.mark()
        finish = self._sync(admission, report)
        calls = draw(self._orders["seed"], self._epoch, self._round, admission.world_size)
        lost = None
        pending = [] if self._carried is None else [self._carried]
        self._carried = None
        try:
            for call in calls:
                pending.append(self._begin(call))
            self._carried = pending.pop()
        except LOST as error:
            lost = f"{type(error).__name__}: {error}"
        for one in pending:
            lost = self._settle(one, report) or lost
        self.say("round", **report)
        if lost is not None:
            self._check_lost(lost)
            raise Lost(lost)
        if finish:
            self._finish_carried()
        return not (going or finish)

    def _finish_carried(self) -> None:
        report: dict[str, Any] = {"epoch": self._epoch, "round": self._round, "operations": []}
        carried, self._carried = self._carried, None
        assert carried is not None
        lost = self._settle(carried, report)
        self.say("round", **report)
        if lost is not None:
            self._check_lost(lost)
            raise Lost(lost)

    def _begin(self, call: Call) -> Pending:
        assert self._comm is not None
        where = self._epoch, self._round
        rank = self._comm.rank
        if call.root is not None and call.root != rank:
            send = np.zeros(call.count, np.uint64)
        else:
            send = digits(self._number, call.count, call.salt)
        recv = send if call.in_place else np.full(call.count, 5, np.uint64)
        before = send.copy()
        self._in_flight += 1
        self._begun += 1
        self.mark()
        options: dict[str, Any] = {"tag": call.tag, "recovery": call.recovery, "async_op": True}
        if call.root is None:
            work = self._comm.all_reduce(send, recv, plan=call.plan, **options)
        else:
            work = self._comm.broadcast(recv, call.root, **options)
        return Pending(call, where, send, recv, before, work)

    def _settle(self, pending: Pending, report: dict[str, Any]) -> str | None:
        """Waits and judges. An error of this membership, if that is how it ended."""
        lost = None
        entry: dict[str, Any] = {"key": [*pending.where, pending.call.index]}
        try:
            try:
                fields = outcome_fields(pending.work.wait())
            except pccl.InDoubt:
                self._check_input(pending, "InDoubt")
                fields = outcome_fields(pending.work.resolve(RESOLVE_SECONDS))
            self._check(pending, fields)
            if pending.where == (self._epoch, self._round):
                self._fold(pending)
            kept = ("epoch", "tag", "sequence", "digest", "ranges", "attempts")
            entry.update({key: fields[key] for key in kept})
        except LOST as error:
            self._check_input(pending, type(error).__name__)
            entry["lost"] = lost = f"{type(error).__name__}: {error}"
        except pccl.Aborted as error:
            self._check_input(pending, "Aborted")
            entry["aborted"] = str(error)
            if not pending.call.may_abort:
                self.violation(f"{pending.call} aborted: {error}")
        except (pccl.PcclError, TimeoutError) as error:
            entry["unknown"] = f"{type(error).__name__}: {error}"
            self.violation(f"{pending.call} ended with {entry['unknown']}")
        self._in_flight -= 1
        self.mark()
        report["operations"].append(entry)
        return lost

    def _check(self, pending: Pending, fields: dict[str, Any]) -> None:
        """The values are those that the outcome says; a broadcast's are its root's."""
        call = pending.call
        try:
            wanted = oracle.expected(fields, call.count, call.salt)
            if call.root is None:
                for part in fields["ranges"]:
                    assert self._number in part["contributors"], f"without {self._number}: {part}"
            assert np.array_equal(pending.recv, wanted), oracle.explain(pending.recv, wanted)
        except AssertionError as error:
            self.violation(f"{pending.where} {call}: {error}")

    def _check_input(self, pending: Pending, kind: str) -> None:
        if not np.array_equal(pending.send, pending.before):
            self.violation(
                f"{pending.where} {pending.call} ended with {kind} and changed its input: "
                f"{oracle.explain(pending.send, pending.before)}"
            )

    def _check_lost(self, error: str) -> None:
        """A peer that was removed does not go on."""
        assert self._comm is not None
        try:
            self._comm.barrier(tag=STATE_TAG, deadline=DEADLINE_SECONDS)
        except LOST:
            return
        except pccl.PcclError as other:
            self.violation(f"after {error} a barrier ended with {type(other).__name__}: {other}")
            return
        self.violation(f"after {error} a barrier was committed")

    # ---- state

    def _fold(self, pending: Pending) -> None:
        """A result becomes part of the state: equal results keep states equal.

        Not one that was carried across a safe point: who entered there does not know it.
        """
        size = min(STATE_COUNT, pending.call.count)
        self._state[:size] += pending.recv[:size]

    def _sync(self, admission: pccl.Admission, report: dict[str, Any]) -> bool:
        """All members hold equal state, and newcomers get it. True: somebody wants to finish."""
        assert self._comm is not None and self._shared is not None
        fresh = admission.changed and self._comm.peer_id in admission.joined
        members = set(self._comm.members) if admission.changed else set()
        before = self._digest()
        outcome = self._shared.sync()
        self._revision = outcome.revision
        mine = self._digest()
        # Newcomers alone may have anything, of which one content was elected.
        if not fresh and (outcome.leaves_moved or mine != before):
            self.violation(f"a sync moved {outcome} at a member whose state was that of all")
        if members == set(admission.joined):
            self.say("fresh", epoch=admission.epoch)
        told = np.array([mine, ~np.uint64(mine), self._finish], np.uint64)
        self._comm.all_reduce(told, op="max", tag=STATE_TAG, recovery="restart")
        if int(told[0]) != mine or int(told[1]) != int(~np.uint64(mine)):
            self.violation(f"states differ after {outcome}")
        report["state"] = f"{mine:016x}/{outcome.revision}"
        report["moved"] = [outcome.leaves_moved, outcome.leaves_early, outcome.sources]
        return bool(told[2])

    def _digest(self) -> int:
        weights = np.arange(1, 2 * STATE_COUNT, 2, dtype=np.uint64)
        return int((self._state * weights).sum())


def main() -> None:
    pccl.exit_on_sigterm()
    peer = ChaosPeer(json.loads(sys.argv[1]))
    threading.Thread(target=peer.listen, daemon=True).start()
    peer.run()
    peer.say("ended")


if __name__ == "__main__":
    main()
