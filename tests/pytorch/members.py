"""Processes of a program that carries out requests, one a line, for tests that kill some of them.

Importing torch takes seconds, so one process of the program imports it, and forks a member whenever
a test needs one more. Members that come out of a test well serve the next one. Programs:
elastic_program.py, reconfigure_program.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from harness.child import Child

ANSWER_SECONDS_MAX = 120.0


class Raised(Exception):
    """A request has raised in its process: the names of its classes, and the text."""

    def __init__(self, kinds: list[str], message: str) -> None:
        super().__init__(f"{kinds[0]}: {message}")
        self.kinds = kinds


class Origin:
    """The process that members are forked from."""

    def __init__(self, program: Path) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = str(Path(self._folder.name) / "members")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen()
        self._listener.settimeout(ANSWER_SECONDS_MAX)
        self._answers: queue.Queue[Any] = queue.Queue()
        self._child = Child(
            [sys.executable, str(program)],
            heard=lambda line: self._answers.put(json.loads(line)),
            ended=lambda _: self._answers.put(None),
            environment={"OMP_NUM_THREADS": "1"},
        )

    @property
    def errors(self) -> str:
        """The standard error of all members so far."""
        return self._child.errors

    def fork(self) -> tuple[int, socket.socket]:
        """The process id of a new member, and the connection with it."""
        pid = self._ask("fork", self._path)
        return pid, self._listener.accept()[0]

    def look(self, pid: int) -> int | None:
        """Waits until a member has ended, for its exit status, or until it is frozen, for None."""
        status: int | None = self._ask("look", pid)
        return status

    def _ask(self, verb: str, given: object) -> Any:
        self._child.say(json.dumps([verb, given]))
        said = self._answers.get(timeout=ANSWER_SECONDS_MAX)
        assert said is not None, f"the origin of members has ended: {self.errors}"
        return said["answer"]

    def end(self) -> None:
        """After its members."""
        self._child.end()
        self._listener.close()
        self._folder.cleanup()


class Member:
    """A process of a program that answers each request with a line."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._over = threading.Event()
        self._code: int | None = None
        self.waits = 0
        self.pid, self._connection = origin.fork()
        self._lines = self._connection.makefile("rw", encoding="utf-8")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(ConnectionResetError):  # killed, with requests before it
            for line in self._lines:
                self._answers.put(json.loads(line) if line.endswith("\n") else None)
        self._over.set()
        self._answers.put(None)

    @property
    def running(self) -> bool:
        """It has not ended, frozen or not."""
        return not self._over.is_set()

    def ask(self, name: str, **options: Any) -> Member:
        self.waits += 1
        with contextlib.suppress(BrokenPipeError):  # it has just ended: `answer` tells
            self._lines.write(json.dumps([name, options]) + "\n")
            self._lines.flush()
        return self

    def answer(self) -> Any:
        """The result of the oldest request without one."""
        said = self._answers.get(timeout=ANSWER_SECONDS_MAX)
        assert said is not None, f"member {self.pid} has ended: {self._origin.errors}"
        self.waits -= 1
        if "raised" in said:
            raise Raised(said["raised"], said["message"])
        return said["result"]

    def signal(self, number: int) -> None:
        """Sends it a signal, if it has not been seen to end."""
        if self._code is None:
            os.kill(self.pid, number)

    def frozen(self) -> None:
        """Waits until a signal has stopped it."""
        self._code = self._origin.look(self.pid)
        assert self._code is None, f"member {self.pid} has ended with {self._code}"

    def killed(self) -> None:
        """Waits until it has ended, which must be by SIGKILL."""
        assert self._wait() == -signal.SIGKILL

    def end(self) -> None:
        """Kills it if it runs, and waits until it is gone."""
        self.signal(signal.SIGKILL)
        self._wait()
        self._reader.join()
        with contextlib.suppress(BrokenPipeError):  # a line that nobody will read
            self._lines.close()
        self._connection.close()

    def _wait(self) -> int:
        while self._code is None:
            self._code = self._origin.look(self.pid)
        return self._code


class Pool:
    """Processes of a program that wait for requests."""

    def __init__(self, program: Path) -> None:
        self._origin = Origin(program)
        self._all: list[Member] = []
        self._used = 0

    def take(self, count: int) -> list[Member]:
        """So many that nobody else has in this test."""
        while len(self._all) < self._used + count:
            self._all.append(Member(self._origin))
        taken = self._all[self._used : self._used + count]
        self._used += count
        return taken

    def give_back(self) -> None:
        """After a test: those that are idle may go on, the others may not."""
        for member in list(self._all):
            member.signal(signal.SIGCONT)
            if member.running and member.waits == 0:
                member.ask("leave")  # all at once: one with a coordinator waits for the others
            else:
                self._all.remove(member)
                member.end()
        for member in self._all:
            member.answer()
        self._used = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._all:
            member.end()
        self._origin.end()


def all_of(members: list[Member], name: str, **options: Any) -> list[Any]:
    """The results of a request of all, by member."""
    for member in members:
        member.ask(name, **options)
    return [member.answer() for member in members]


def serve(make: Callable[[], object]) -> None:
    """The main function of such a program: forks members until its input ends.

    Each calls methods of what `make` returns until the test closes the connection.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what is printed must not be taken for an answer
    for line in sys.stdin:
        verb, given = json.loads(line)
        if verb == "fork":
            answer: int | None = os.fork()
            if answer == 0:
                _carry_out(make(), given)
                os._exit(0)
        else:
            _, status = os.waitpid(given, os.WUNTRACED)
            answer = None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        answers.write(json.dumps({"answer": answer}) + "\n")


def _carry_out(requests: object, path: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    with connection, connection.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            name, options = json.loads(line)
            try:
                answer = {"result": getattr(requests, name)(**options)}
            except Exception as error:  # noqa: BLE001  the answer is the error
                kinds = [kind.__name__ for kind in type(error).__mro__]
                answer = {"raised": kinds, "message": str(error)}
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
