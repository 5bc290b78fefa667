"""Processes of a program that carries out requests, one a line, for tests that kill some of them.

Those that come out of a test well serve the next one: importing torch takes seconds. Programs:
elastic_program.py, reconfigure_program.py.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
from pathlib import Path
from typing import Any, Self

from harness.child import Child

ANSWER_SECONDS_MAX = 120.0


class Raised(Exception):
    """A request has raised in its process: the names of its classes, and the text."""

    def __init__(self, kinds: list[str], message: str) -> None:
        super().__init__(f"{kinds[0]}: {message}")
        self.kinds = kinds


class Member:
    """A process of a program that answers each request with a line."""

    def __init__(self, program: Path) -> None:
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.waits = 0
        self.child = Child(
            [sys.executable, str(program)],
            heard=lambda line: self._answers.put(json.loads(line) if line.endswith("\n") else None),
            ended=lambda _: self._answers.put(None),
            environment={"OMP_NUM_THREADS": "1"},
        )

    def ask(self, name: str, **options: Any) -> Member:
        self.waits += 1
        self.child.say(json.dumps([name, options]))
        return self

    def answer(self) -> Any:
        """The result of the oldest request without one."""
        said = self._answers.get(timeout=ANSWER_SECONDS_MAX)
        assert said is not None, f"it has ended with {self.child.code}: {self.child.errors}"
        self.waits -= 1
        if "raised" in said:
            raise Raised(said["raised"], said["message"])
        return said["result"]

    def killed(self) -> None:
        assert self.child.wait(ANSWER_SECONDS_MAX) == -signal.SIGKILL


class Pool:
    """Processes of a program that wait for requests."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._all: list[Member] = []
        self._used = 0

    def take(self, count: int) -> list[Member]:
        """So many that nobody else has in this test."""
        while len(self._all) < self._used + count:
            self._all.append(Member(self._program))
        taken = self._all[self._used : self._used + count]
        self._used += count
        return taken

    def give_back(self) -> None:
        """After a test: those that are idle may go on, the others may not."""
        for member in list(self._all):
            member.child.signal(signal.SIGCONT)
            if member.child.running and member.waits == 0:
                member.ask("leave")  # all at once: one with a coordinator waits for the others
            else:
                self._all.remove(member)
                member.child.end()
        for member in self._all:
            member.answer()
        self._used = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._all:
            member.child.end()


def all_of(members: list[Member], name: str, **options: Any) -> list[Any]:
    """The results of a request of all, by member."""
    for member in members:
        member.ask(name, **options)
    return [member.answer() for member in members]


def serve(requests: Any) -> None:
    """The main function of such a program: calls methods of `requests` until its input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what is printed must not be taken for an answer
    for line in sys.stdin:
        name, options = json.loads(line)
        try:
            answer = {"result": getattr(requests, name)(**options)}
        except Exception as error:  # noqa: BLE001  the answer is the error
            kinds = [kind.__name__ for kind in type(error).__mro__]
            answer = {"raised": kinds, "message": str(error)}
        answers.write(json.dumps(answer) + "\n")
