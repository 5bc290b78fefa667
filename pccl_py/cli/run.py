"""Processes of `pccl run`: starting them, passing output and signals on, and judging their exits.

The caller makes the coordinator. Each process has a process group of its own, so that a signal
reaches the process once, from this file, and its children too. launch.py ends a process when `pccl
run` dies. docs/reference/RUN.md has the rules for users.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console

from pccl_py import network, words
from pccl_py.cli import log
from pccl_py.coordinator import run_status, token_parse
from pccl_py.errors import InvalidArgument, PcclError

# Seconds that processes have to end by themselves after a signal or a failure.
GRACE_SECONDS = 10.0
# Seconds that `pccl run` waits for output of children that processes have left behind.
DRAIN_SECONDS = 2.0
# Seconds that `pccl run` waits for a status of the coordinator.
STATUS_SECONDS = 2.0
# Interval at which the coordinator is asked whether the run is over, once a process has ended with
# 0.
LOOK_SECONDS = 1.0
LINE_BYTES_MAX = 64 * 1024
# Delay of the first restart of a process; each further restart waits twice as long.
BACKOFF_SECONDS = 0.5
BACKOFF_SECONDS_MAX = 30.0

# An address with a port that is not 0.
FIXED_PORT = re.compile(r"(\[[^]]*\]|[^:]*):0*[1-9][0-9]*")

COLOURS = ("36", "33", "35", "32", "34", "31", "96", "93")


def command_of(words: Sequence[str]) -> list[str]:
    """The command to run; this Python runs a Python file that cannot be executed.

    Raises FileNotFoundError if the Python file does not exist, and InvalidArgument for an empty
    word.
    """
    first = words[0]
    if not first:
        raise InvalidArgument("the command is an empty word: pass a program, or a Python file")
    if not first.endswith(".py") or shutil.which(first) is not None:
        return list(words)
    if not Path(first).is_file():
        raise FileNotFoundError(f"there is no file {first}")
    return [sys.executable, *words]


def token_to_join(environment: Mapping[str, str], options: Mapping[str, object]) -> str | None:
    """The token of the run that the processes join: PCCL_TOKEN, or None if it is not set.

    `options`: the options of a coordinator. Raises InvalidArgument if PCCL_TOKEN is no token, or if
    one of the options was given with it.
    """
    token = environment.get("PCCL_TOKEN", "").strip()
    if not token:
        return None
    try:
        token_parse(token)
    except InvalidArgument as error:
        raise InvalidArgument(f"PCCL_TOKEN: {error}; --new-run starts a run without it") from None
    given = [name for name, value in options.items() if value is not None]
    if given:
        option = {"lanes_per_link": "lanes"}.get(given[0], given[0]).replace("_", "-")
        raise InvalidArgument(
            f"--{option} is for a new run, and PCCL_TOKEN names a run that has a coordinator: "
            f"leave --{option} out to join that run, or pass --new-run"
        )
    return token


def refuse_what_one_process_can_have(n: int, environment: Mapping[str, str]) -> None:
    """Raises InvalidArgument if processes would inherit a port or an id that only one may have."""
    if n == 1:
        return
    for name in ("PCCL_BIND", "PCCL_ADVERTISE"):
        if (address := environment.get(name, "")) and FIXED_PORT.fullmatch(address):
            raise InvalidArgument(
                f"{name} is {address!r}, and only one of {n} processes on a machine can have that "
                "port: leave it out, and give them a range in PCCL_PORTS (29400-29500)"
            )
    if _is_for_any_process(environment.get("PCCL_PEER_ID", "")):
        raise InvalidArgument(
            f"PCCL_PEER_ID is set, and only one of {n} processes can have an id: unset it"
        )


def _is_for_any_process(peer_id: str) -> bool:
    """Whether a value of PCCL_PEER_ID has no "@PID", by which `pccl run` names a process."""
    return bool(peer_id) and "@" not in peer_id


def refuse_what_none_can_have(environment: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a variable with a rate or word that every process would refuse."""
    for name, parse in (
        ("PCCL_SEND_RATE", network.rates_text),
        ("PCCL_CONGESTION", words.parse_congestion),
        ("PCCL_PROBE", words.parse_probe),
    ):
        if value := environment.get(name):
            parse(value, name)


def backoff_seconds(restarts: int) -> float:
    """Seconds before the next restart of a process that was started again `restarts` times."""
    return float(min(BACKOFF_SECONDS * 2.0 ** min(restarts, 32), BACKOFF_SECONDS_MAX))


@dataclass(frozen=True)
class Policy:
    """The reaction to a process that fails, and the number of processes that must succeed."""

    min_world_size: int = 1
    stop_on_failure: bool = False
    restarts: int = 0


class Processes:
    """`n` processes of one command. Call `run` once, and `signal` from a signal handler."""

    def __init__(
        self,
        command: Sequence[str],
        n: int,
        token: str,
        policy: Policy,
        *,
        console: Console,
        is_joined: bool = False,
        logs: log.Folder | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._n = n
        self._token = token
        self._policy = policy
        self._console = console
        self._is_joined = is_joined  # the processes join a run of another coordinator
        self._logs = logs
        self._settings = dict(settings or {})  # environment variables of all processes
        self._write_lock = threading.Lock()
        self._events: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._readers: list[threading.Thread] = []
        self._codes: dict[int, int] = {}  # exit statuses by process, in the order of exits
        self._restarts = [0] * n
        self._due: dict[int, float] = {}  # time of the next start by process
        self._signalled: int | None = None
        self._ending = False  # all processes have been told to end
        self._stop_at: float | None = None
        # The port that process 0 may listen on, for "env://" of PyTorch.
        self._rendezvous: socket.socket | None = None
        self._is_ours = False  # the coordinator ends with this command, and has answered
        self._is_new = False  # the run begins with these processes
        self._look_at: float | None = None  # when to ask for the run's end
        self._over_since: float | None = None  # since when the run seems to be over

    def run(self) -> int:
        """Runs all processes to their end and returns the exit status for `pccl run`."""
        try:
            if not self._is_joined:
                self._rendezvous = _port_for_one_process()
                status = self._status()
                if status is None:
                    self._say("the coordinator does not answer: RANK may not be the rank")
                self._is_ours = status is not None
                self._is_new = status is not None and status["incarnation"] == 1
            else:
                address = token_parse(self._token).address
                self._say(f"joining the run of PCCL_TOKEN, whose coordinator is at {address}")
            for index in range(self._n):
                self._start(index)
            while self._running or self._due:
                event = self._next_event()
                if event is not None:
                    self._on_end(*event)
                self._start_due()
                self._look()
            ended_by = self._signalled
            self._await_others()
        finally:
            self._kill()
            if self._rendezvous is not None:
                self._rendezvous.close()
        drain_until = time.monotonic() + DRAIN_SECONDS
        for reader in self._readers:
            reader.join(max(0.0, drain_until - time.monotonic()))
        return self._judge(ended_by)

    def _on_end(self, index: int, code: int) -> None:
        self._codes[index] = code
        self._report(index, code)
        if code == 0:
            self._forget_due()
            self._look_at = self._look_at or time.monotonic()
        elif self._may_restart(index):
            delay = backoff_seconds(self._restarts[index])
            self._restarts[index] += 1
            self._due[index] = time.monotonic() + delay
            which = f"restart {self._restarts[index]} of {self._policy.restarts}"
            self._say(f"process {index} is started again in {delay:g} s ({which})")
        else:
            self._on_loss()

    def _on_loss(self) -> None:
        """Ends the other processes if too few can still succeed, else says how many are left."""
        left = len(self._running) + len(self._due)
        if self._ending or left == 0:
            return
        able, needed = self._succeeded() + left, self._needed()
        if able < needed:
            self._say(
                f"{needed} of {self._n} processes must succeed, and {able} still can: stopping the "
                "others"
            )
            self._stop(signal.SIGTERM)
        else:
            self._say(f"{left} of {self._n} processes are left{self._beginning()}")

    def _beginning(self) -> str:
        """The end of the sentence in `_on_loss` if the run may not have begun: processes wait."""
        groups = (self._status() or {}).get("groups", [])
        if not groups:
            whom = "others" if self._is_joined else f"{self._n} peers"
            return f"; if the run has not begun yet, they wait for {whom} (`pccl status`)"
        needed = [group["needed"] for group in groups if "needed" in group]
        if len(needed) < len(groups):
            return ""
        return f"; they wait for {max(needed)} peers to begin (`pccl status`)"

    def _status(self) -> dict[str, Any] | None:
        """The status of the run; None if the coordinator does not answer."""
        try:
            return run_status(self._token, STATUS_SECONDS)
        except PcclError:
            return None

    def _may_restart(self, index: int) -> bool:
        """Whether a failed process may start again: not after `_stop`, nor after another's success.

        After another process has finished the work, a new process would find no member, and begin
        the work anew, alone.
        """
        finished = any(code == 0 for code in self._codes.values())
        return not self._ending and not finished and self._restarts[index] < self._policy.restarts

    def _start_due(self) -> None:
        if self._ending:
            self._due.clear()
        for index, due in list(self._due.items()):
            if due <= time.monotonic():
                del self._due[index], self._codes[index]
                self._start(index)

    def _forget_due(self) -> None:
        if not self._due:
            return
        for index in self._due:
            self._say(f"process {index} is not started again: others are ending")
        self._due.clear()
        self._on_loss()

    def _look(self) -> None:
        """Ends the processes that are left if they wait for a run that is over."""
        if self._ending or not self._running or self._look_at is None:
            return
        if self._look_at > time.monotonic():
            return
        # In a run of several machines, processes elsewhere may be about to be started again.
        patience = BACKOFF_SECONDS_MAX if self._is_joined else 0.0
        now = time.monotonic()
        self._over_since = (self._over_since or now) if self._is_over() else None
        if self._over_since is not None and now >= self._over_since + patience:
            self._say(
                "the run is over, and what is left waits for it to begin again: stopping that"
            )
            self._stop(signal.SIGTERM)
        self._look_at = time.monotonic() + LOOK_SECONDS

    def _is_over(self) -> bool:
        """Whether all members are gone, and a group waits for more peers than there are.

        Peers that are connected or run here count. A process that was started again, and came when
        the others had ended, waits like this. The coordinator may have forgotten by then that the
        group had members. Members and peers are those of all machines.
        """
        groups = (self._status() or {}).get("groups", [])
        waiting = [group for group in groups if "needed" in group]
        came_again = any(self._restarts[index] for index in self._running)
        return bool(waiting) and all(
            (group["emptied"] or came_again)
            and group["needed"] > max(group["here"], len(self._running))
            if group in waiting
            else not group["pending"]
            and not any(member["alive"] for epoch in group["epochs"] for member in epoch["members"])
            for group in groups
        )

    def _await_others(self) -> None:
        """Waits for members on other machines, which need the coordinator, after success here.

        Peers that wait for the run to begin again get GRACE_SECONDS, in which their own `pccl run`
        finds that the run is over; the coordinator has the same time to answer.
        """
        has_told, peers_until = False, time.monotonic() + GRACE_SECONDS
        while self._is_ours and not self._ending and self._succeeded() >= self._needed():
            status = self._status()
            has_members = any(
                member["alive"]
                for group in (status or {}).get("groups", [])
                for epoch in group["epochs"]
                for member in epoch["members"]
            )
            if (status is not None and not status["peers"]) or (
                not has_members and time.monotonic() > peers_until
            ):
                return
            if has_members:
                peers_until = time.monotonic() + GRACE_SECONDS
                if not has_told:
                    self._say(
                        "the processes here have ended; waiting for the other members of the run"
                    )
                    has_told = True
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=LOOK_SECONDS)  # a signal ends this wait

    def signal(self, number: int) -> None:
        """Passes a signal on; after GRACE_SECONDS, or at the second signal, kills the processes."""
        if self._signalled is not None:
            self._stop_at = time.monotonic()
        self._signalled = self._signalled or number
        self._stop(number)

    def _environment(self, index: int) -> dict[str, str]:
        settings = dict(self._settings)
        if self._rendezvous is not None:
            # A new group must not wait for processes that have ended for good.
            given_up = sum(1 for other in self._codes if other not in self._due)
            settings["PCCL_INITIAL_WORLD_SIZE"] = str(self._n - given_up)
            port = self._rendezvous.getsockname()[1]
            settings |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # Variables of the coordinator are for the one of this command: a second coordinator could
        # have neither its port nor its state. Variables of torchrun are about other processes, if
        # one of those has called `pccl run`, and so are the address and port that an outer `pccl
        # run` has set.
        keeps_master = self._is_joined and "PCCL_RESTARTS" not in os.environ
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PCCL_COORDINATOR_", "TORCHELASTIC_"))
            and (name not in ("MASTER_ADDR", "MASTER_PORT") or keeps_master)
            and (name != "PCCL_PEER_ID" or _is_for_any_process(value))
        }
        # A program for PCCL 1.0 has its level in the second variable, which the first overrides.
        if not {"PCCL_LOG", "PCCL_LOG_LEVEL"} & inherited.keys():
            inherited["PCCL_LOG"] = "warning"
        return {
            **inherited,
            **settings,
            "PCCL_TOKEN": self._token,
            "PCCL_RESTARTS": str(self._restarts[index]),
            "PCCL_LABEL": f"{os.environ.get('PCCL_LABEL') or '%h:%p'} #{index}",
            "RANK": str(index),
            "WORLD_SIZE": str(self._n),
            "LOCAL_RANK": str(index),
            "LOCAL_WORLD_SIZE": str(self._n),
            "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
        }

    def _peer_id(self, index: int) -> str:
        """A peer id that makes the rank of a process its number; empty for a random id.

        Ranks of a first epoch are in the order of peer ids. The number of the process is in the
        eight digits by which people and rates name a peer. A process that is started again gets its
        rank from the run.
        """
        if _is_for_any_process(os.environ.get("PCCL_PEER_ID", "")):
            return ""
        if not self._is_new or self._restarts[index]:
            return ""
        return f"{1 + index:08x}{secrets.token_hex(12)}"

    def _start(self, index: int) -> None:
        if self._signalled is not None:
            return
        if self._logs is not None:
            self._logs.open(index)
        launcher = str(Path(__file__).with_name("launch.py"))
        arguments = [str(os.getpid()), self._peer_id(index), *self._command]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", launcher, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(index),
            process_group=0,
        )
        self._running[index] = process
        if self._signalled is not None:  # the signal came while the process was being started
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
        self._readers = [thread for thread in self._readers if thread.is_alive()] + readers
        threading.Thread(target=self._await, args=(index, process), daemon=True).start()

    def _await(self, index: int, process: subprocess.Popen[bytes]) -> None:
        self._events.put((index, process.wait()))

    def _next_event(self) -> tuple[int, int] | None:
        """Waits for an exit; None if another event comes first. Kills after GRACE_SECONDS."""
        looks_at = None if self._ending else self._look_at
        limits = [
            *self._due.values(),
            *(limit for limit in (self._stop_at, looks_at) if limit is not None),
        ]
        timeout = max(0.0, min(limits) - time.monotonic()) if limits else None
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            if self._stop_at is None or self._stop_at > time.monotonic():
                return None  # time to start a process again, or to ask the coordinator
            self._say("some processes did not end; killing them")
            self._send(signal.SIGKILL)
            self._stop_at = None
            return None
        if event is not None:
            self._running.pop(event[0])
        return event

    def _stop(self, number: int) -> None:
        self._ending = True
        self._send(number)
        if self._stop_at is None:
            self._stop_at = time.monotonic() + GRACE_SECONDS
        self._events.put(None)  # so that _next_event sees the new limit

    def _send(self, number: int) -> None:
        for process in list(self._running.values()):
            _signal_group(process, number)

    def _kill(self) -> None:
        """Kills all processes that still run, whatever ended `run`."""
        self._send(signal.SIGKILL)
        for process in self._running.values():
            process.wait()

    def _pass_on(self, index: int, pipe: BinaryIO, out: BinaryIO) -> None:
        prefix = self._prefix(index, coloured=out.isatty() and "NO_COLOR" not in os.environ)
        with pipe:
            while line := pipe.readline(LINE_BYTES_MAX):
                if not line.endswith(b"\n"):
                    line += b"\n"
                if self._logs is not None:
                    self._logs.write(index, line, self._say)
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
        log.run_logger.info(text)
        with self._write_lock:
            self._console.print(f"pccl run: {text}", style="bold", markup=False, soft_wrap=True)

    def _needed(self) -> int:
        return self._n if self._policy.stop_on_failure else self._policy.min_world_size

    def _succeeded(self) -> int:
        return sum(1 for code in self._codes.values() if code == 0)

    def _judge(self, ended_by: int | None) -> int:
        """The exit status; `ended_by`: the signal that came before all processes had ended."""
        if ended_by is not None:
            return 128 + ended_by
        succeeded, needed = self._succeeded(), self._needed()
        if succeeded >= needed:
            return 0
        self._say(f"{succeeded} of {self._n} processes succeeded, {needed} needed")
        failed = next(code for code in self._codes.values() if code != 0)  # of the first failure
        return failed if failed > 0 else 128 - failed


def _port_for_one_process() -> socket.socket:
    """Reserves a port by a socket that never listens, so that one process can listen on it.

    The system gives the port to no other program that asks for a free port, on any address. A store
    of PyTorch listens on all addresses, which fails if another program has the port on one.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # the process has ended; its exit is in the queue


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
