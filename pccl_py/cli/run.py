"""Processes of `pccl run`: starting them, passing output and signals on, and judging their exits.

The coordinator is the caller's. Each process has a process group of its own, so that a signal
reaches it once, from here, and reaches what it started too; launch.py ties it to our life.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

# After a signal or a failure the processes have this long to end by themselves.
GRACE_SECONDS = 10.0
# Output of what a process left behind is not waited for longer than this.
DRAIN_SECONDS = 2.0
LINE_BYTES_MAX = 64 * 1024

COLOURS = ("36", "33", "35", "32", "34", "31", "96", "93")


class Processes:
    """`n` processes of one command. `run` once; `signal` from a signal handler."""

    def __init__(self, command: Sequence[str], n: int, token: str, *, console: Console) -> None:
        self._command = list(command)
        self._n = n
        self._token = token
        self._console = console
        self._write_lock = threading.Lock()
        self._events: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._signalled: int | None = None
        self._stop_at: float | None = None

    def run(self, *, stop_on_failure: bool, min_world_size: int) -> int:
        """Runs all to their end and returns the exit status for `pccl run`."""
        codes: dict[int, int] = {}
        readers: list[threading.Thread] = []
        try:
            for index in range(self._n):
                readers += self._start(index)
            while self._running:
                event = self._next_event()
                if event is None:
                    continue
                index, code = event
                codes[index] = code
                self._report(index, code)
                if code != 0 and stop_on_failure and self._stop_at is None:
                    self._say("stopping the others")
                    self._stop(signal.SIGTERM)
        finally:
            self._kill()
        drain_until = time.monotonic() + DRAIN_SECONDS
        for reader in readers:
            reader.join(max(0.0, drain_until - time.monotonic()))
        return self._judge(codes, self._n if stop_on_failure else min_world_size)

    def signal(self, number: int) -> None:
        """Passes a signal on; after a while, or at the second one, the processes are killed."""
        if self._signalled is not None:
            self._stop_at = time.monotonic()
        self._signalled = self._signalled or number
        self._stop(number)

    def _start(self, index: int) -> list[threading.Thread]:
        if self._signalled is not None:
            return []
        environment = {
            **os.environ,
            "PCCL_TOKEN": self._token,
            "PCCL_INITIAL_WORLD_SIZE": str(self._n),
            "RANK": str(index),
            "WORLD_SIZE": str(self._n),
            "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
        }
        launcher = str(Path(__file__).with_name("launch.py"))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", launcher, str(os.getpid()), *self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
        self._running[index] = process
        if self._signalled is not None:  # it came while the process was being started
            _signal_group(process, self._signalled)
        assert process.stdout is not None and process.stderr is not None
        readers = [
            threading.Thread(target=self._pass_on, args=(index, pipe, out), daemon=True)
            for pipe, out in (
                (process.stdout, sys.stdout.buffer),
                (process.stderr, sys.stderr.buffer),
            )
        ]
        for thread in readers:
            thread.start()
        threading.Thread(target=self._await, args=(index, process), daemon=True).start()
        return readers

    def _await(self, index: int, process: subprocess.Popen[bytes]) -> None:
        self._events.put((index, process.wait()))

    def _next_event(self) -> tuple[int, int] | None:
        """The next exit; None if something else happened. Kills when the grace is over."""
        timeout = None if self._stop_at is None else max(0.0, self._stop_at - time.monotonic())
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            self._say("some processes did not end; killing them")
            self._send(signal.SIGKILL)
            self._stop_at = None
            return None
        if event is not None:
            self._running.pop(event[0])
        return event

    def _stop(self, number: int) -> None:
        self._send(number)
        if self._stop_at is None:
            self._stop_at = time.monotonic() + GRACE_SECONDS
        self._events.put(None)  # so that _next_event sees the new limit

    def _send(self, number: int) -> None:
        for process in list(self._running.values()):
            _signal_group(process, number)

    def _kill(self) -> None:
        """Nothing of ours is left behind, whatever ended `run`."""
        self._send(signal.SIGKILL)
        for process in self._running.values():
            process.wait()

    def _pass_on(self, index: int, pipe: BinaryIO, out: BinaryIO) -> None:
        prefix = self._prefix(index, coloured=out.isatty() and "NO_COLOR" not in os.environ)
        with pipe:
            while line := pipe.readline(LINE_BYTES_MAX):
                if not line.endswith(b"\n"):
                    line += b"\n"
                with self._write_lock:
                    out.write(prefix + line)
                    out.flush()

    def _prefix(self, index: int, *, coloured: bool) -> bytes:
        label = f"[{index:>{len(str(self._n - 1))}}] "
        if coloured:
            label = f"\x1b[{COLOURS[index % len(COLOURS)]}m{label}\x1b[0m"
        return label.encode()

    def _report(self, index: int, code: int) -> None:
        if code < 0:
            self._say(f"process {index} was killed by {_signal_name(-code)}")
        elif code > 0:
            self._say(f"process {index} exited with status {code}")

    def _say(self, text: str) -> None:
        with self._write_lock:
            self._console.print(f"pccl run: {text}", style="bold", markup=False, soft_wrap=True)

    def _judge(self, codes: dict[int, int], needed: int) -> int:
        if self._signalled is not None:
            return 128 + self._signalled
        succeeded = sum(1 for code in codes.values() if code == 0)
        if succeeded >= needed:
            return 0
        self._say(f"{succeeded} of {self._n} processes succeeded, {needed} needed")
        failed = next(code for code in codes.values() if code != 0)  # the first to fail
        return failed if failed > 0 else 128 - failed


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # it ended meanwhile; its exit is on its way through the queue


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
