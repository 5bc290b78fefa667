"""A child process: writes to its input, reads its output, stops, kills and reaps it.

The Python tests, the chaos run, the benchmarks and the demo start peers and coordinators with
`Child`. A child is only signalled before it is reaped, because afterwards another process may get
its id. Each child has a process group of its own, so that Ctrl-C in a terminal does not reach it.
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

# A killed process ends at once, except on a very busy machine.
END_SECONDS_MAX = 60.0


def _nothing(*_: object) -> None:
    return


def held_port(host: str = "127.0.0.1") -> socket.socket:
    """A socket that reserves a free port, `getsockname()[1]`, for a process that will listen there.

    The socket is bound on all addresses and does not listen: the system assigns the port to no
    other process, but a server with SO_REUSEADDR can bind it.
    """
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


class Child:
    """A child process that runs `command`. The callbacks run on threads of this object.

    `heard`: called with each line of the child's output, in order. `frozen`: called when a signal
    stops the child. `ended`: called with the exit status (negative for a signal) after the child
    has ended and its last line was heard. `environment`: variables to add. `folder`: the working
    directory. Standard error is collected in `errors`, or written to `log`.
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
            errors="surrogateescape",  # a killed process may leave a part of a character
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
        """Whether the child has not ended; it may be stopped by a signal."""
        return self.code is None

    @property
    def errors(self) -> str:
        """The child's standard error so far."""
        return "".join(self._errors)

    def say(self, line: str) -> None:
        """Writes a line to the child's standard input; the line is lost if the child ends first."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the child has just ended
            self._popen.stdin.write(line + "\n")
            self._popen.stdin.flush()

    def close_input(self) -> None:
        """Closes the child's standard input."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()

    def signal(self, number: int, *, group: bool = False) -> bool:
        """Sends a signal to the child, or with `group` to the child and its descendants. Returns
        False if the child has ended."""
        with self._news:
            if self.code is not None:
                return False
            (os.killpg if group else os.kill)(self.pid, number)
            if number == signal.SIGCONT:
                self._is_frozen = False
            return True

    def wait(self, seconds: float | None = None) -> int:
        """Waits until the child has ended, and returns its exit status. Raises TimeoutError after
        `seconds`."""
        with self._news:
            if not self._news.wait_for(lambda: self.code is not None, seconds):
                raise TimeoutError(f"process {self.pid} has not ended within {seconds} s")
            assert self.code is not None
            return self.code

    def wait_until_heard(self, seconds: float | None = None) -> int:
        """Like `wait`, and waits until the last line is heard: until the child, and every process
        that inherited its output, has closed the output."""
        self._watcher.join(seconds)
        if self._watcher.is_alive():
            raise TimeoutError(f"process {self.pid} has not ended within {seconds} s")
        return self.wait()

    def wait_until_frozen(self, seconds: float | None = None) -> bool:
        """Waits until a signal has stopped the child. Returns False if the child has ended instead,
        or did not stop within `seconds`."""
        with self._news:
            self._news.wait_for(lambda: self._is_frozen or self.code is not None, seconds)
            return self._is_frozen and self.code is None

    def end(self, *, group: bool = False) -> None:
        """Kills the child if it runs, waits until it has ended, and closes the pipes.

        Raises TimeoutError if a process that the child has started keeps the output open.
        """
        self.signal(signal.SIGKILL, group=group)
        self.wait_until_heard(END_SECONDS_MAX)
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # an unread line to the dead child
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
            # WNOWAIT: waits without reaping, so that `signal` may use the child's id meanwhile.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
            with self._news:
                state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG)
                if state is None:
                    continue  # the child had stopped, and was continued since
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
