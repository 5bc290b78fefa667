"""A training loop without the training, in a thread of the peer program: load that never stops.

Each round: a safe point, an all_reduce of the digit oracle, and a small one that tells whether
anybody wants to end, so that all end in the same round. It checks its own sums and keeps a log;
whether the logs of all peers agree is for the test to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import contributions
import pccl_py as pccl

SALTS = 1000


class Loop(threading.Thread):
    """Says {"event": {"epoch": ..., "world_size": ...}} after the first round of each epoch.

    And {"event": "ended"} at its end.
    """

    def __init__(
        self,
        comm: pccl.Communicator,
        number: int,
        say: Callable[[dict[str, Any]], None],
        count: int,
    ) -> None:
        super().__init__(daemon=True)
        self.ending = False
        self.leaving = False
        self._comm = comm
        self._number = number
        self._say = say
        self._count = count
        self._log: list[dict[str, Any]] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._round():
                pass
            if self.leaving:
                self._comm.close()
        except BaseException as error:  # noqa: BLE001  raised again by result()
            self._error = error
        self._say({"event": "ended"})

    def _round(self) -> bool:
        admission = self._comm.admit()
        leaving = self.leaving  # decided here: what comes later counts for the next round
        array = contributions.digits(self._number, self._count, admission.epoch % SALTS)
        outcome = self._comm.all_reduce(array)
        contributors = [peer[0] - 1 for peer in outcome.contributors]
        flag = np.array([self.ending], np.uint8)
        self._comm.all_reduce(flag, op="max", tag=1)
        self._log.append(
            {
                "epoch": admission.epoch,
                "sequence": outcome.sequence,
                "rank": admission.rank,
                "world_size": admission.world_size,
                "changed": admission.changed,
                "members": [peer[0] - 1 for peer in self._comm.members],
                "joined": [peer[0] - 1 for peer in admission.joined],
                "left": [peer[0] - 1 for peer in admission.left],
                "digest": outcome.digest,
                "contributors": contributors,
                "sum_is_right": self._is_sum(array, contributors, admission.epoch % SALTS),
            }
        )
        if admission.changed:
            self._say({"event": {key: self._log[-1][key] for key in ("epoch", "members")}})
        return not (leaving or flag[0])

    def _is_sum(self, array: np.ndarray, contributors: list[int], salt: int) -> bool:
        wanted = sum(contributions.digits(peer, self._count, salt) for peer in contributors)
        return bool(np.array_equal(array, wanted))

    def result(self) -> list[dict[str, Any]]:
        self.join()
        if self._error is not None:
            raise self._error
        return self._log
