"""Orchestrator: starts the coordinator and the peers, reads their reports, and ends all processes.

Reports of the processes go to the story (`story.py`), and then to a view (`view.py`). The peers run
`peer.py`. Processes are ended by their own id, and no process outlives the run.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.demo.settings import PROGRAMS, Settings
from examples.demo.story import COORDINATOR, Event, Story, peer_name
from examples.demo.view import View
from harness.child import Child

BLAS_THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
END_SECONDS_MAX = 10.0  # how long a process may take to end after SIGTERM before it is killed
TICK_SECONDS = 0.1  # how often the view is refreshed without events


class Processes:
    """The processes of one run. `events` has their reports, in order for each process."""

    def __init__(self, folder: Path, began: float) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self._folder = folder
        self._began = began
        self._started: dict[str, list[Child]] = {}
        self._order = threading.RLock()  # puts the event "started" before a process's reports

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        children = [child for started in self._started.values() for child in started]
        for child in children:
            child.signal(signal.SIGKILL)
        for child in children:
            child.end()

    def start(
        self, source: str, command: list[str], environment: dict[str, str], **fields: int
    ) -> None:
        """Starts a process. Its standard output has reports; its standard error goes to a log."""
        about: Event = {"source": source, **fields}
        mode = "a" if source in self._started else "w"  # a restarted process appends to its log
        with self._order, self.log_path(source).open(mode) as log:
            child = Child(
                command,
                heard=lambda line: self._hear(line, about),
                ended=lambda code: self._put({**about, "kind": "exited", "exit_code": code}),
                environment=environment,
                log=log,
            )
            self._started.setdefault(source, []).append(child)
            self._put({**about, "kind": "started", "pid": child.pid})

    def say(self, source: str, line: str) -> None:
        """Writes a line to a process's standard input."""
        self._started[source][-1].say(line)

    def kill(self, source: str) -> None:
        """Kills a process with SIGKILL."""
        self._started[source][-1].signal(signal.SIGKILL)

    def stop(self, source: str) -> None:
        """Ends a process with SIGTERM, or with SIGKILL after END_SECONDS_MAX."""
        child = self._started[source][-1]
        child.signal(signal.SIGTERM)
        try:
            child.wait(END_SECONDS_MAX)
        except TimeoutError:
            child.signal(signal.SIGKILL)

    def log_path(self, source: str) -> Path:
        """The file for a process's standard error."""
        return self._folder / f"{source.replace(' ', '-')}.log"

    def now(self) -> float:
        """Seconds since the run began."""
        return time.time() - self._began

    def _put(self, event: Event, at: float | None = None) -> None:
        with self._order:
            seconds = (time.time() if at is None else at) - self._began
            self.events.put({**event, "seconds": seconds})

    def _hear(self, line: str, about: Event) -> None:
        if not line.endswith("\n"):
            return  # the process died while it wrote this line
        report: Event
        if about["source"] == COORDINATOR:  # a coordinator prints only the token
            report = {"kind": "listening", "token": line.strip(), "at": time.time()}
        else:
            report = json.loads(line)
        self._put({**about, **report}, report.pop("at"))


class Orchestrator:
    """One run: starts and kills processes at the rounds of the settings, until the run is over."""

    def __init__(self, settings: Settings, folder: Path, view: View, seconds_max: float) -> None:
        self.story = Story(settings)
        self._settings = settings
        self._folder = folder
        self._view = view
        self._seconds_max = seconds_max
        self._token = ""
        self._started: set[int] = set()
        self._coordinator_killed = False
        self._newcomer_called = False
        self._state = ""  # folder of the coordinator's journal, for its restart

    def run(self) -> Story:
        """Runs to the end. If the run fails, stops it early, with the reason in `story.failure`."""
        with (
            tempfile.TemporaryDirectory(prefix="pccl-demo-") as state,
            Processes(self._folder, time.time()) as processes,
        ):
            self._state = state
            self._start_coordinator(processes)
            while not self._over():
                try:
                    event = processes.events.get(timeout=TICK_SECONDS)
                except queue.Empty:
                    self._view.tick(self.story)
                else:
                    self._take(event, processes)
                if processes.now() > self._seconds_max:
                    self.story.fail(processes.now(), f"not done after {self._seconds_max:g} s")
            self._end(processes)
        return self.story

    def _take(self, event: Event, processes: Processes) -> None:
        """Adds an event to the story, without its token, and starts or kills the processes that the
        event makes due."""
        settings = self._settings
        token = event.pop("token", None)
        self.story.take(event)
        self._view.take(self.story, event)
        if token is not None:
            again, self._token = self._token, token
            if again and again != token:
                self.story.fail(event["seconds"], "the coordinator came back with another token")
            for index in range(0 if again else settings.shards):
                self._start_peer(index, processes)
        elif event["kind"] == "reducing" and event["round"] == settings.restart_round:
            if not self._coordinator_killed:
                self._coordinator_killed = True
                processes.kill(COORDINATOR)
        elif event["source"] == COORDINATOR and self._expected(event):
            self._start_coordinator(processes)
        elif event["kind"] == "round" and event["round"] >= settings.join_round:
            if not self._newcomer_called:
                self._newcomer_called = True
                processes.say(peer_name(settings.newcomer), "join")
        elif event["kind"] == "exited" and not self._expected(event):
            log = processes.log_path(event["source"])
            reason = f"{event['source']} ended early, exit status {event['exit_code']}: see {log}"
            self.story.fail(event["seconds"], reason)
        elif event["kind"] == "exited" and event["exit_code"] == 0:
            newcomer = self.story.peers.get(settings.newcomer)
            if newcomer is None or not newcomer.admissions:
                reason = f"{peer_name(settings.newcomer)} came too late: the others were done"
                self.story.fail(event["seconds"], f"{reason}; take more rounds, or more steps")

    def _start_coordinator(self, processes: Processes) -> None:
        """Starts the coordinator, the first time or again: it restores its run from `_state`."""
        command = [sys.executable, "-m", "pccl_py.cli", "coordinator", "--bind", "127.0.0.1:0"]
        command += ["--state", self._state]
        command += ["--initial-world-size", str(self._settings.peers)]
        command += ["--chunk-bytes", str(self._settings.chunk_bytes)]
        command += ["--window-bytes", str(self._settings.window_bytes)]
        processes.start(COORDINATOR, command, {})

    def _start_peer(self, index: int, processes: Processes) -> None:
        environment = {
            **dict.fromkeys(BLAS_THREADS, "1"),
            "PCCL_TOKEN": self._token,
            "PCCL_GROUP": "demo",
            "PCCL_BIND": "127.0.0.1:0",
            "PCCL_INITIAL_WORLD_SIZE": str(self._settings.peers),
        }
        if index == self._settings.victim:
            environment["PCCL_FAULT_POINT"] = self._settings.fault_point
        program = PROGRAMS[self._settings.framework]
        command = [sys.executable, "-m", program, self._settings.to_json(), str(index)]
        processes.start(peer_name(index), command, environment, index=index)
        self._started.add(index)

    def _expected(self, event: Event) -> bool:
        if event["kind"] != "exited":
            return False
        if event["source"] == COORDINATOR:
            first = self.story.coordinator_starts == 1
            return first and self._coordinator_killed and event["exit_code"] == -signal.SIGKILL
        victim = event.get("index") == self._settings.victim
        return int(event["exit_code"]) == (-signal.SIGKILL if victim else 0)

    def _over(self) -> bool:
        ended = {peer.index for peer in self.story.peers.values() if peer.exit_code is not None}
        return (bool(ended) and ended == self._started) or self.story.failure is not None

    def _end(self, processes: Processes) -> None:
        """Unless the run has failed: stops the coordinator, and takes events until it has ended."""
        if self.story.failure is not None:
            return
        processes.stop(COORDINATOR)
        while self.story.coordinator_exit_code is None:
            event = processes.events.get()
            self.story.take(event)
            self._view.take(self.story, event)
