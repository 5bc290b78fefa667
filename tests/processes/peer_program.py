"""One peer in a process of its own: does what JSON lines on its stdin say, and answers on stdout.

A request is {"do": name, ...}, where the name is a method of PeerProgram; the answer is {"ok":
value} or {"error": class, "message": text}, one per request, in order. Lines {"event": ...} come
in between, from the loop (loop.py). The first request is `become`, and so is the first of each
further test that the process serves. The other side is peers.py. Ends at the end of its stdin.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import sys
import threading
from typing import Any

import contributions
import numpy as np
import oracle
from loop import Loop
from told import admission_fields, number_of, outcome_fields, peer_id

import pccl_py as pccl

LOOPBACK = "127.0.0.1:0"


class PeerProgram:
    """The requests. Arrays and works are kept under names that the test gives them."""

    def __init__(self) -> None:
        self._speaking = threading.Lock()
        self.comm: pccl.Communicator | None = None
        self.coordinator: pccl.Coordinator | None = None
        self._forget(-1)

    def _forget(self, number: int) -> None:
        self.number = number
        self.comm = None
        self.admission: pccl.Admission | None = None
        self.arrays: dict[str, Any] = {}
        self.works: dict[str, pccl.Work] = {}
        self.state: pccl.SharedState | None = None
        self.loop: Loop | None = None

    def become(self, number: int) -> None:
        """A peer of a new test, without anything of the one before."""
        if self.comm is not None:
            self.comm.close()
        self._forget(number)

    def say(self, line: dict[str, Any]) -> None:
        with self._speaking:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    # ---- membership

    def coordinate(self, **options: Any) -> str:
        """This process is the coordinator. Answers the token."""
        self.coordinator = pccl.Coordinator(**options)
        return self.coordinator.token

    def connect(self, **options: Any) -> None:
        defaults = {"bind": LOOPBACK, "peer_id": peer_id(self.number)}
        self.comm = pccl.connect(**{**defaults, **options})

    def admit(self, **options: Any) -> dict[str, Any]:
        assert self.comm is not None
        self.admission = self.comm.admit(**options)
        return admission_fields(self.admission)

    def join(self, **options: Any) -> dict[str, Any]:
        self.connect(**options)
        return self.admit()

    def admit_until_joined(self, number: int) -> dict[str, Any]:
        """Passes safe points until this newcomer is in; barriers keep all peers in step."""
        assert self.comm is not None
        while True:
            fields = self.admit()
            if number in fields["joined"]:
                return fields
            self.comm.barrier(tag=1)

    def members(self) -> list[int]:
        assert self.comm is not None
        return [number_of(peer) for peer in self.comm.members]

    def in_flight(self) -> int:
        assert self.comm is not None
        return self.comm.info().operations_in_flight

    def pending(self) -> int:
        """Newcomers of whom this peer knows."""
        assert self.comm is not None
        return self.comm.info().pending

    def close(self) -> None:
        assert self.comm is not None
        self.comm.close()

    # ---- arrays

    def make(self, name: str, **what: Any) -> None:
        """An array of this peer; bf16 gets the type that says so."""
        array = contributions.make(self.number, what)
        if what.get("dtype") == "bf16":
            import ml_dtypes  # heavy, and only bf16 needs it

            array = array.view(ml_dtypes.bfloat16)
        self.arrays[name] = array

    def zeros(self, name: str, count: int) -> None:
        self.arrays[name] = np.zeros(count, np.uint64)

    def part(self, name: str, of: str, counts: list[int]) -> None:
        """The shard of this peer's rank, in the memory of another array."""
        assert self.comm is not None
        first = sum(counts[: self.comm.rank])
        self.arrays[name] = self.arrays[of][first : first + counts[self.comm.rank]]

    def fill(self, name: str, **what: Any) -> None:
        """Puts what `make` makes into memory that is there."""
        self.arrays[name][...] = contributions.make(self.number, what)

    def read(self, name: str) -> str:
        return base64.b64encode(self.arrays[name].tobytes()).decode()

    def fingerprint(self, name: str) -> str:
        return oracle.fingerprint(self.arrays[name])

    # ---- operations

    def call(
        self, kind: str, array: str | None = None, out: str | None = None, **options: Any
    ) -> Any:
        """An operation of the group, on arrays by name."""
        assert self.comm is not None
        arrays = [self.arrays[name] for name in (array, out) if name is not None]
        return getattr(self.comm, kind)(*arrays, **options)

    def run(self, kind: str, **options: Any) -> dict[str, Any]:
        return outcome_fields(self.call(kind, **options))

    def reduce_many(self, arrays: list[str], **options: Any) -> list[dict[str, Any]]:
        """An all_reduce_many of arrays by name, in place."""
        assert self.comm is not None
        given = [self.arrays[name] for name in arrays]
        return [outcome_fields(one) for one in self.comm.all_reduce_many(given, **options)]

    def begin(self, work: str, kind: str, **options: Any) -> None:
        self.works[work] = self.call(kind, async_op=True, **options)

    def wait(self, work: str, timeout: float | None = None) -> dict[str, Any]:
        return outcome_fields(self.works[work].wait(timeout))

    def cancel(self, work: str) -> None:
        self.works[work].cancel()

    def resolve(self, work: str, timeout: float | None = None) -> dict[str, Any]:
        return outcome_fields(self.works[work].resolve(timeout))

    def reduce_all(self, cases: list[dict[str, Any]]) -> list[str]:
        """Many small reductions, one after the other, every second one in place."""
        results = []
        for index, case in enumerate(cases):
            what = dict(case)
            kind = what.pop("kind", "all_reduce")
            names = ("op", "plan", "root", "counts")
            options = {name: what.pop(name) for name in names if name in what}
            self.make("in", **what)
            self.arrays["out"] = self.arrays["in"]
            if "counts" in options:
                self.part("out", "in", options["counts"])
            if index % 2 == 0:
                self.arrays["out"] = np.zeros_like(self.arrays["out"])
            self.call(kind, "in", "out", **options)
            results.append(self.read("out"))
        return results

    # ---- shared state

    def share(self, leaves: int, value: int, **options: Any) -> None:
        """A state of one array, of whole leaves."""
        assert self.comm is not None
        self.arrays["state"] = np.full(leaves * 256 * 1024, value, np.uint8)
        self.state = self.comm.shared_state({"state": self.arrays["state"]}, **options)

    def sync(self, strategy: pccl.StrategyName = "popular") -> dict[str, Any]:
        """The outcome, and the values that the state has then."""
        assert self.state is not None
        done = self.state.sync(strategy)
        outcome = dataclasses.asdict(done)
        del outcome["contributors"], outcome["holders"], outcome["roster"]
        values = np.unique(self.arrays["state"]).tolist()
        return {**outcome, "ranks": done.ranks, "values": values}

    # ---- load

    def loop_begin(self, **options: Any) -> None:
        assert self.comm is not None and self.admission is not None
        self.loop = Loop(self.comm, self.admission, self.number, self.say, **options)
        self.loop.start()

    def loop_rounds(self) -> int:
        """How many it has completed."""
        assert self.loop is not None
        return self.loop.rounds()

    def loop_end(self) -> None:
        """This peer asks everybody to end together."""
        assert self.loop is not None
        self.loop.ending = True

    def loop_leave(self) -> None:
        """This peer alone leaves after the round that it is in."""
        assert self.loop is not None
        self.loop.leaving = True

    def loop_array_is_input_or_sum(self) -> bool:
        """About the round that failed."""
        assert self.loop is not None
        return self.loop.array_is_input_or_sum()

    def loop_log(self) -> list[dict[str, Any]]:
        """The log of the loop, once it has ended."""
        assert self.loop is not None
        return self.loop.result()


def main() -> None:
    program = PeerProgram()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(program, request.pop("do"))(**request)}
        except Exception as error:  # noqa: BLE001  every error is an answer
            answer = {"error": type(error).__name__, "message": str(error)}
        program.say(answer)
    if program.comm is not None:
        with contextlib.suppress(pccl.PcclError):  # the coordinator may be gone already
            program.comm.close()


if __name__ == "__main__":
    main()
