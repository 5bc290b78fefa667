"""The test's side of the peer program: processes, requests, answers, and a world of them.

Nothing here sleeps: what a peer says is the synchronisation, and waiting for it has a limit.
Processes are ended by their own handle. The meaning of the requests is peer_program.py's.

Starting Python with NumPy takes longer than most tests, so processes that come out of a test well
serve the next one (Nursery), in a new run with a new coordinator.
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest

import pccl_py as pccl
from harness.child import Child

PROGRAM = Path(__file__).parent / "peer_program.py"
ANSWER_SECONDS_MAX = 60.0


class Raised(Exception):
    """An exception that a request raised in the peer: the name of the class, and the message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Peer:
    """A peer program. `number`, set by `become`, also stands for it in outcomes.

    `prefix` is that of a command which becomes the program, as `ip netns exec NAME` does.
    """

    def __init__(
        self, environment: dict[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self.number = -1
        self._awaited = 0
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._events: queue.Queue[Any] = queue.Queue()
        self.process = Child(
            [*prefix, sys.executable, str(PROGRAM)],
            heard=self._hear,
            ended=self._hear_the_end,
            environment=environment,
        )

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.number + 1:02x}" * 4

    def become(self, number: int) -> None:
        """Asks it to be this peer of a new test. The answer is still to be taken."""
        self.number = number
        self.send("become", number=number)

    def _hear(self, line: str) -> None:
        if not line.endswith("\n"):
            return  # it was killed while it wrote
        said = json.loads(line)
        if "event" in said:
            self._events.put(said["event"])
        else:
            self.answers.put(said)

    def _hear_the_end(self, _: int) -> None:
        self.answers.put(None)
        self._events.put(None)

    def send(self, do: str, **arguments: Any) -> None:
        """Says what to do, and does not wait for the answer."""
        self.process.say(json.dumps({"do": do, **arguments}))
        self._awaited += 1

    def answer(self, seconds: float = ANSWER_SECONDS_MAX) -> Any:
        """The next answer. Raises `Raised`; fails the test if none comes in time."""
        said = self._next(self.answers, "answer", seconds)
        self._awaited -= 1
        if "error" in said:
            raise Raised(said["error"], said["message"])
        return said["ok"]

    def ask(self, do: str, **arguments: Any) -> Any:
        self.send(do, **arguments)
        return self.answer()

    def failure(self, seconds: float = ANSWER_SECONDS_MAX) -> Raised:
        """The next answer, which must be an error."""
        try:
            value = self.answer(seconds)
        except Raised as raised:
            return raised
        pytest.fail(f"peer {self.number} should have failed, and answered {value}")

    def event(self, seconds: float = ANSWER_SECONDS_MAX) -> Any:
        """The next event of its loop."""
        return self._next(self._events, "event", seconds)

    def _next(self, said: queue.Queue[Any], what: str, seconds: float) -> Any:
        try:
            value = said.get(timeout=seconds)
        except queue.Empty:
            pytest.fail(f"peer {self.number}: no {what} within {seconds} s\n{self.errors}")
        if value is None:
            code = self.process.wait()
            pytest.fail(f"peer {self.number} ended with {code}: no {what}\n{self.errors}")
        return value

    def silent(self) -> bool:
        """True if no answer has come that was not taken."""
        with self.answers.mutex:
            return all(said is None for said in self.answers.queue)

    def read(self, name: str) -> np.ndarray:
        """An array of u64 that the peer holds."""
        return np.frombuffer(base64.b64decode(self.ask("read", name=name)), np.uint64)

    @property
    def errors(self) -> str:
        return self.process.errors

    def ended(self) -> int:
        """Waits for the end of the process; negative for a signal. `silent` has seen everything."""
        return self.process.wait_until_heard(ANSWER_SECONDS_MAX)

    def stopped(self) -> bool:
        """Waits until the process is frozen by a signal; False if it ends instead."""
        return self.process.wait_until_frozen(ANSWER_SECONDS_MAX)

    def signal(self, number: int) -> None:
        self.process.signal(number)
        if number == signal.SIGKILL:
            self.process.wait(ANSWER_SECONDS_MAX)

    def idle(self) -> bool:
        """It runs, and nothing that was asked or said is left over."""
        left_over = self._awaited or not self.answers.empty() or not self._events.empty()
        return self.process.running and not left_over

    def end(self) -> None:
        """Kills the process if it runs, and releases what belonged to it."""
        self.process.end()


class Nursery:
    """Processes that no test uses right now, all started with one prefix. Each second one has
    workers, so worlds are mixed, as those of machines with many cores and with few.
    """

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = prefix
        self._idle: list[Peer] = []
        self._workers = itertools.cycle(["2", "0"])

    def take(self, environment: dict[str, str] | None = None) -> Peer:
        """One with an environment of its own is not for others: its test ends it."""
        if environment is None and self._idle:
            return self._idle.pop()
        workers = {"PCCL_WORKERS": next(self._workers)}
        return Peer({**workers, **(environment or {})}, self._prefix)

    def give(self, peer: Peer) -> None:
        """Takes it back if its test left it in order, and ends it otherwise."""
        if peer.idle():
            self._idle.append(peer)
        else:
            peer.end()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


nursery = Nursery()


def ask_all(peers: Iterable[Peer], do: str, **arguments: Any) -> list[Any]:
    """Asks all at once, and returns their answers in order."""
    asked = list(peers)
    for peer in asked:
        peer.send(do, **arguments)
    return [peer.answer() for peer in asked]


class World:
    """A coordinator in this process and `n` peers in theirs, in one epoch: peer r has rank r.

    `environments` are those of single peers, by number, for fault points; such a peer has a process
    of its own. Other options are those of the coordinator.
    """

    def __init__(
        self,
        n: int,
        *,
        environments: dict[int, dict[str, str]] | None = None,
        joined: bool = True,
        deadline: float = 60,
        **options: Any,
    ) -> None:
        self.coordinator = self._start_coordinator(**options)
        self.deadline = deadline
        self.peers: list[Peer] = []
        self._own: list[Peer] = []
        try:
            for number in range(n):
                self.start(number, (environments or {}).get(number))
            if joined:
                self._join_all()
        except BaseException:
            self._end()
            raise

    def start(self, number: int, environment: dict[str, str] | None = None) -> Peer:
        """One more peer; it does not join by itself."""
        peer = self._nursery(number).take(environment)
        self.peers.append(peer)
        if environment is not None:
            self._own.append(peer)
        peer.become(number)
        peer.answer()
        return peer

    # ---- what another world does in another way

    def _start_coordinator(self, **options: Any) -> pccl.Coordinator:
        return pccl.Coordinator(**options)

    def _nursery(self, number: int) -> Nursery:
        """Where the processes of this peer come from, and go to."""
        return nursery

    def _addresses(self, peer: Peer) -> dict[str, str]:
        """How it is reached: options of its `connect`."""
        return {}

    def _end(self) -> None:
        for peer in self.peers:
            peer.end()
        self.coordinator.close()

    def _give_back(self) -> None:
        """Everybody leaves the run while its coordinator still answers."""
        for peer in [peer for peer in self.peers if peer not in self._own and peer.idle()]:
            number = peer.number
            peer.become(-1)
            peer.answer()
            self._nursery(number).give(peer)
            self.peers.remove(peer)
        self._end()

    def join(self, peers: Iterable[Peer], **options: Any) -> list[Any]:
        asked = list(peers)
        for peer in asked:
            self.begin_join(peer, **options)
        return [peer.answer() for peer in asked]

    def begin_join(self, peer: Peer, **options: Any) -> None:
        """The answer is still to be taken."""
        defaults = {"deadline": self.deadline, **self._addresses(peer)}
        peer.send("join", token=self.coordinator.token, **{**defaults, **options})

    def _join_all(self) -> None:
        n = len(self.peers)
        admissions = self.join(self.peers, initial_world_size=n)
        everybody = list(range(n))
        for number, admission in enumerate(admissions):
            assert (admission["epoch"], admission["changed"]) == (1, True)
            assert (admission["rank"], admission["world_size"]) == (number, n)
            assert (admission["joined"], admission["left"]) == (everybody, [])

    def all(self, do: str, **arguments: Any) -> list[Any]:
        return ask_all(self.peers, do, **arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._give_back()
        else:
            self._end()
