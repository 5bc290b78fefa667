"""A process that this one has started: fed, heard, frozen, killed and reaped.

The Python tests, the chaos run, the benchmarks and the demo start peers and coordinators with
`Child`. The meaning of the lines is the caller's. A child is ended by its own id, and only
before it is reaped, since afterwards the id may belong to somebody else; it is in a process group
of its own, so that Ctrl-C in a terminal is for the one who started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# A killed process ends at once, but on a machine that is very busy.
END_SECONDS_MAX = 60.0


def _nothing(*_: object) -> None:
    return


def held_port(host: str = "127.0.0.1") -> socket.socket:
    """A free port, at `getsockname()[1]`, for a process that is yet to listen there.

    The socket is bound on all addresses and does not listen: the system gives the port to nobody
    else, and a server that reuses addresses, as servers do, can bind it as well.
    """
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


class Child:
    """`heard` is given each line, `frozen` is called when a signal stops it, and `ended`, with its
    exit status (negative for a signal), once it is gone and all that it said was heard. They are
    called on threads of the child, one line after the other.

    Its standard error is collected in `errors`, or goes to `log`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        heard: Callable[[str], None] = _nothing,
        frozen: Callable[[], None] = _nothing,
        ended: Callable[[int], None] = _nothing,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        log: IO[str] | None = None,
    ) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if log is None else log,
            encoding="utf-8",
            errors="surrogateescape",  # a killed process may leave half a letter
            env={**os.environ, **(environment or {})},
            cwd=folder,
            process_group=0,
        )
        self.pid = self._popen.pid
        self.code: int | None = None
        self._heard, self._frozen, self._ended = heard, frozen, ended
        self._errors: list[str] = []
        self._is_frozen = False
        self._news = threading.Condition()
        self._readers = [threading.Thread(target=self._read, args=(self._popen.stdout, heard))]
        if log is None:
            keep = self._errors.append
            self._readers.append(
                threading.Thread(target=self._read, args=(self._popen.stderr, keep))
            )
        self._watcher = threading.Thread(target=self._watch)
        for thread in (*self._readers, self._watcher):
            thread.start()

    @property
    def running(self) -> bool:
        """It has not ended, frozen or not."""
        return self.code is None

    @property
    def errors(self) -> str:
        """Its standard error so far."""
        return "".join(self._errors)

    def say(self, line: str) -> None:
        """Writes a line to its standard input. One that it has no time to read is lost."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has just ended: `ended` tells
            self._popen.stdin.write(line + "\n")
            self._popen.stdin.flush()

    def close_input(self) -> None:
        """Its standard input ends here."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()

    def signal(self, number: int, *, group: bool = False) -> bool:
        """Sends a signal, to what it has started as well if `group`. False: it has ended."""
        with self._news:
            if self.code is not None:
                return False
            (os.killpg if group else os.kill)(self.pid, number)
            if number == signal.SIGCONT:
                self._is_frozen = False
            return True

    def wait(self, seconds: float | None = None) -> int:
        """Waits until it has ended, and returns its exit status. Raises TimeoutError."""
        with self._news:
            if not self._news.wait_for(lambda: self.code is not None, seconds):
                raise TimeoutError(f"process {self.pid} has not ended within {seconds} s")
            assert self.code is not None
            return self.code

    def wait_until_heard(self, seconds: float | None = None) -> int:
        """The same, and all that it said was heard: whoever has its output has closed it."""
        self._watcher.join(seconds)
        if self._watcher.is_alive():
            raise TimeoutError(f"process {self.pid} has not ended within {seconds} s")
        return self.wait()

    def wait_until_frozen(self, seconds: float | None = None) -> bool:
        """Waits until a signal has stopped it. False: it has ended instead, or did not in time."""
        with self._news:
            self._news.wait_for(lambda: self._is_frozen or self.code is not None, seconds)
            return self._is_frozen and self.code is None

    def end(self, *, group: bool = False) -> None:
        """Kills it if it runs, waits until it is gone, and releases what belonged to it.

        Raises TimeoutError if something that it has started keeps its output open.
        """
        self.signal(signal.SIGKILL, group=group)
        self.wait_until_heard(END_SECONDS_MAX)
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a line that nobody will read
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    @staticmethod
    def _read(pipe: IO[str], heard: Callable[[str], None]) -> None:
        for line in pipe:
            heard(line)

    def _watch(self) -> None:
        while self.code is None:
            # Only looked at: until it is reaped, its id is its own.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            with self._news:
                state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG)
                if state is None:
                    continue  # it was frozen, and is no more
                if state.si_code == os.CLD_STOPPED:
                    self._is_frozen = True
                else:
                    killed = state.si_code != os.CLD_EXITED
                    self.code = -state.si_status if killed else state.si_status
                    self._popen.returncode = self.code
                self._news.notify_all()
            if self.code is None:
                self._frozen()
        for reader in self._readers:
            reader.join()
        self._ended(self.code)
