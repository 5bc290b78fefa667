"""Shared by all Python tests: programs in processes of their own, `pccl` in this one, coordinators,
and the order of the tests.

No test sleeps to wait for something: programs under test say on stdout when they are there, and
reading that line is the synchronisation. Nothing here knows what is tested.

Most of their time the tests wait for limits to pass, so `make test` runs several files side by side
(pytest-xdist). A file stays on one worker, with what its tests share. A test that is marked `alone`
measures something, or keeps all cores busy: it comes after the others, and while it runs no other
does.
"""

from __future__ import annotations

import fcntl
import io
import logging
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pytest

import pccl_py as pccl
from harness.child import Child
from pccl_py import cli

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadGroupScheduling

PROGRAM_SECONDS_MAX = 45.0

ROOT = Path(__file__).parent.parent


# ---- which test runs when

# Files that take longest, for the worker that has one of them must not be the last to end.
LONG = (
    "test_processes_losses.py",
    "test_chaos_run.py",
    "test_processes_shards.py",
    "test_processes_links.py",
    "test_c_examples.py",
    "test_processes_values.py",
    "test_cli_commands.py",
    "test_processes_namespaces.py",
    "test_processes_frozen.py",
    "test_api_process.py",
    "test_processes_state.py",
    "test_api_shards.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run in the order of this seed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        if item.get_closest_marker("alone"):
            return len(LONG) + 1
        return LONG.index(item.path.name) if item.path.name in LONG else len(LONG)

    seed = config.getoption("--shuffle")
    if seed is None:
        items.sort(key=rank)
    else:
        random.Random(seed).shuffle(items)
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if item.get_closest_marker("alone"):
                item.add_marker(pytest.mark.xdist_group("alone"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling:
    """A form of `--dist loadgroup`, whose groups are single tests, that keeps files together."""
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return str(super()._split_scope(nodeid)).partition("::")[0]

    config.option.loadscopereorder = False  # they are in order
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Workers are processes, so it takes a lock that processes share: this file."""
    with Path(__file__).open() as lock:
        alone = item.get_closest_marker("alone") is not None
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        return (yield)


# ---- programs


def pytest_configure() -> None:
    """Programs inherit what is ignored: in the background a shell ignores SIGINT, nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            default = signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
            signal.signal(number, default)


@pytest.fixture
def coordinator() -> Iterator[pccl.Coordinator]:
    """A coordinator on loopback, with fast heartbeats so that losses are seen soon."""
    with pccl.Coordinator(heartbeat=0.1, silence=2.0) as running:
        yield running


class Program:
    """A Python program in a process of its own, killed at the end of the test if it still runs."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.process = Child(
            command,
            heard=self._lines.put,
            ended=lambda _: self._lines.put(None),
            environment=environment,
            folder=ROOT,
        )
        self._limit = threading.Timer(PROGRAM_SECONDS_MAX, self.kill)
        self._limit.start()

    def line(self) -> str:
        """The next line of its stdout. Fails the test at the end of the output."""
        line = self._lines.get()
        if line is None:
            code = self.process.wait()
            pytest.fail(f"the program ended with {code} before the line: {self.errors}")
        return line.rstrip("\n")

    def expect(self, text: str) -> None:
        """Reads a line that must be `text`."""
        line = self.line()
        assert line == text, f"expected {text!r}, got {line!r}; stderr: {self.errors}"

    def say(self, text: str) -> None:
        """Writes a line to its stdin."""
        self.process.say(text)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Sends a signal to the process alone."""
        self.process.signal(number)

    def end(self) -> int:
        """Waits for its end and returns the exit status; negative for a signal."""
        code = self.process.wait_until_heard()
        self._limit.cancel()
        return code

    def rest(self) -> str:
        """The rest of its stdout, once it has ended."""
        return "".join(iter(self._lines.get, None))

    @property
    def errors(self) -> str:
        """Its stderr so far; all of it after `end`."""
        return self.process.errors

    def kill(self) -> None:
        """Ends the program and what it started."""
        self.process.signal(signal.SIGKILL, group=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._limit.cancel()
        self.process.end(group=True)


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program: `start(source, *arguments)`, or `start(module="pccl_py.cli", ...)`.

    Or a file that can be executed: `start(file=path, ...)`.
    """
    programs: list[Program] = []

    def start_program(
        *arguments: str,
        module: str | None = None,
        file: Path | None = None,
        **environment: str,
    ) -> Program:
        command = [sys.executable, "-m", module] if module else [sys.executable, "-u", "-c"]
        program = Program(
            [*(command if file is None else [str(file)]), *arguments],
            {"PYTHONUNBUFFERED": "1", **environment},
        )
        programs.append(program)
        return program

    yield start_program
    for program in programs:
        with program:
            continue


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pccl_command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Calls `pccl` in this process, which takes a tenth of the time that a new one needs.

    `pccl_command("status", PCCL_TOKEN=token)`; `said` is its standard input. `pccl coordinator`,
    which runs until a signal comes, gets the signal at once. `pccl run` gets none: it ends with its
    processes.
    """

    def stop_coordinator(handle: Callable[[int], Any], *of_run: signal.Signals) -> None:
        if not of_run:
            handle(signal.SIGTERM)

    def call(
        *arguments: str, said: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        logger = logging.getLogger("pccl")
        handlers, level = logger.handlers[:], logger.level
        code: object = 0
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["pccl", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
            patch.delenv("PCCL_TOKEN", raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr("pccl_py.cli.commands._on_stop_signals", stop_coordinator)
            try:
                cli.main()
            except SystemExit as end:
                code = end.code or 0
            finally:
                logger.handlers[:] = handlers
                logger.setLevel(level)
        assert isinstance(code, int), code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return call
