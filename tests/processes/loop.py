"""A training loop without the training, in a thread of the peer program: load that never stops.

Each round: a safe point, an all_reduce of the digit oracle, and a small one that tells whether
anybody wants to end, so that all end in the same round. It checks its own sums and keeps a log;
whether the logs of all peers agree is for the test to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import contributions
import numpy as np
from told import number_of

import pccl_py as pccl

SALTS = 1000


class _Round(NamedTuple):
    """A line of the log. There are many thousands, so it shares what is as in the round before."""

    admission: pccl.Admission
    sequence: int
    digest: str
    members: list[int]
    contributors: list[int]
    sum_is_right: bool

    def told(self) -> dict[str, Any]:
        """As a test reads it."""
        return {
            "epoch": self.admission.epoch,
            "sequence": self.sequence,
            "rank": self.admission.rank,
            "world_size": self.admission.world_size,
            "changed": self.admission.changed,
            "members": self.members,
            "joined": [number_of(peer) for peer in self.admission.joined],
            "left": [number_of(peer) for peer in self.admission.left],
            "digest": self.digest,
            "contributors": self.contributors,
            "sum_is_right": self.sum_is_right,
        }


class Loop(threading.Thread):
    """Says {"event": {"epoch": ..., "members": [...]}} after the first round of each epoch.

    And {"event": "ended"} at its end. `admission` is that of the safe point that the peer has just
    passed: its first round begins after it, like everybody's.
    """

    def __init__(
        self,
        comm: pccl.Communicator,
        admission: pccl.Admission,
        number: int,
        say: Callable[[dict[str, Any]], None],
        count: int,
    ) -> None:
        super().__init__(daemon=True)
        self.ending = False
        self.leaving = False
        self._comm = comm
        self._admission = admission
        self._number = number
        self._say = say
        self._count = count
        self._array = np.zeros(0, np.uint64)
        self._input = self._array
        self._members: list[int] = []
        self._salt = 0
        self._log: list[_Round] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._round(self._admission):
                self._admission = self._comm.admit()
            if self.leaving:
                self._comm.close()
        except BaseException as error:  # noqa: BLE001  raised again by result()
            self._error = error
        self._say({"event": "ended"})

    def _round(self, admission: pccl.Admission) -> bool:
        leaving = self.leaving  # decided here: what comes later counts for the next round
        if admission.changed or not self._members:
            self._members = [number_of(peer) for peer in self._comm.members]
        self._salt = admission.epoch % SALTS
        self._array = contributions.digits(self._number, self._count, self._salt)
        self._input = self._array.copy()
        outcome = self._comm.all_reduce(self._array)
        contributors = [number_of(peer) for peer in outcome.contributors]
        flag = np.array([self.ending], np.uint8)
        self._comm.all_reduce(flag, op="max", tag=1)
        if contributors == self._members:
            contributors = self._members
        right = self._is_sum_of(contributors)
        new_epoch = not self._log or self._log[-1].admission.epoch != admission.epoch
        if self._log and self._log[-1].admission == admission:
            admission = self._log[-1].admission
        self._log.append(
            _Round(admission, outcome.sequence, outcome.digest, self._members, contributors, right)
        )
        if new_epoch:
            self._say({"event": {"epoch": admission.epoch, "members": self._members}})
        return not (leaving or flag[0])

    def _is_sum_of(self, peers: list[int]) -> bool:
        wanted = sum(contributions.digits(peer, self._count, self._salt) for peer in peers)
        return bool(np.array_equal(self._array, wanted))

    def rounds(self) -> int:
        """Completed so far."""
        return len(self._log)

    def array_is_input_or_sum(self) -> bool:
        """After a failure: nothing in between."""
        self.join()
        is_input = bool(np.array_equal(self._array, self._input))
        return is_input or self._is_sum_of(self._members)

    def result(self) -> list[dict[str, Any]]:
        self.join()
        if self._error is not None:
            raise self._error
        return [each.told() for each in self._log]
