"""`pccl run`: processes, their environment and output, exits, signals; none is left behind."""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = [sys.executable, "-u", "-c"]
CLI = "pccl_py.cli"


def test_each_process_learns_who_it_is_and_where_to_connect(start: Any) -> None:
    program = start(
        "run", "-n", "3", "--", *PYTHON,
        "import os; e = os.environ; print(e['RANK'], e['WORLD_SIZE'], e['PCCL_INITIAL_WORLD_SIZE'],"
        "e['PCCL_TOKEN'][:6])",
        module=CLI,
    )  # fmt: skip
    assert program.end() == 0, program.errors
    lines = sorted(program.rest().splitlines())
    assert lines == [f"[{rank}] {rank} 3 3 pccl1-" for rank in range(3)]
    assert program.errors == ""


def test_the_processes_reduce_together(start: Any) -> None:
    source = (
        "import array, pccl_py as pccl\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    values = array.array('f', [comm.rank] * 1000)\n"
        "    comm.all_reduce(values)\n"
        "    print(comm.world_size, values[-1])\n"
    )
    program = start("run", "-n", "4", "--", *PYTHON, source, module=CLI)
    assert program.end() == 0, program.errors
    assert sorted(program.rest().splitlines()) == [f"[{rank}] 4 6.0" for rank in range(4)]


def test_output_is_passed_on_line_by_line_to_the_stream_it_came_from(start: Any) -> None:
    """Bytes that are no text and a last line without an end come through as well."""
    source = (
        "import os, sys\n"
        "os.write(1, b'out \\xff\\n'); os.write(2, b'err\\n'); os.write(1, b'no end')"
    )
    program = start("run", "-n", "1", "--", *PYTHON, source, module=CLI, PYTHONIOENCODING="latin-1")
    assert program.end() == 0
    assert program.rest().encode("utf-8", "surrogateescape") == b"[0] out \xff\n[0] no end\n"
    assert program.errors == "[0] err\n"


def test_options_of_the_command_are_not_ours(start: Any) -> None:
    program = start("run", "-n", "1", "--", "echo", "-n", "7", "--help", "--", module=CLI)
    assert program.end() == 0
    assert program.rest() == "[0] 7 --help --\n"


def test_the_token_is_written_for_others_who_join(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    source = "import os, sys\nprint(open(sys.argv[1]).read() == os.environ['PCCL_TOKEN'] + '\\n')"
    program = start(
        "run", "-n", "1", "--token-file", str(file), "--", *PYTHON, source, str(file), module=CLI
    )
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] True\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


FAILING = "import os, sys; sys.exit(3 if os.environ['RANK'] == '1' else 0)"


@pytest.mark.parametrize(("minimum", "code"), [(1, 0), (2, 0), (3, 3)])
def test_enough_processes_must_succeed(start: Any, minimum: int, code: int) -> None:
    program = start(
        "run", "-n", "3", "--min-world-size", str(minimum), "--", *PYTHON, FAILING, module=CLI
    )
    assert program.end() == code
    assert "process 1 exited with status 3" in program.errors
    assert ("2 of 3 processes succeeded, 3 needed" in program.errors) == (code != 0)


def test_a_process_that_is_killed_is_reported_by_its_signal(start: Any) -> None:
    source = "import os; os.kill(os.getpid(), 9)"
    program = start("run", "-n", "1", "--", *PYTHON, source, module=CLI)
    assert program.end() == 128 + 9
    assert "process 0 was killed by SIGKILL" in program.errors


def test_the_others_go_on_without_one_that_fails(start: Any) -> None:
    """`continue`, the default: the survivors' all_reduce finishes among themselves."""
    source = (
        "import array, os, signal, pccl_py as pccl\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    comm.barrier()\n"
        "    if comm.rank == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    values = array.array('q', [1])\n"
        "    comm.all_reduce(values)\n"
        "    print('sum', values[0])\n"
    )
    program = start("run", "-n", "3", "--", *PYTHON, source, module=CLI)
    assert program.end() == 0, program.errors
    lines = program.rest().splitlines()
    assert [line[4:] for line in lines] == ["sum 2", "sum 2"]
    assert "was killed by SIGKILL" in program.errors


def test_stop_ends_the_others(start: Any) -> None:
    source = "import os, signal, sys\nif os.environ['RANK'] == '2': sys.exit(5)\nsignal.pause()"
    program = start("run", "-n", "3", "--on-failure", "stop", "--", *PYTHON, source, module=CLI)
    assert program.end() == 5
    assert "stopping the others" in program.errors
    assert program.errors.count("was killed by SIGTERM") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once(start: Any, number: int) -> None:
    source = (
        "import signal, sys\n"
        "def handle(number, frame):\n"
        "    print('got', number, flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGINT, handle); signal.signal(signal.SIGTERM, handle)\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    program = start("run", "-n", "2", "--", *PYTHON, source, module=CLI)
    assert sorted(program.line() for _ in range(2)) == ["[0] ready", "[1] ready"]
    program.interrupt(number)
    assert program.end() == 128 + number
    assert sorted(program.rest().splitlines()) == [f"[{i}] got {int(number)}" for i in range(2)]


def test_a_second_signal_kills_what_does_not_listen(start: Any) -> None:
    source = (
        "import signal\n"
        "signal.signal(signal.SIGINT, lambda n, f: print('no', flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    program = start("run", "-n", "1", "--", *PYTHON, source, module=CLI)
    program.expect("[0] ready")
    program.interrupt()
    program.expect("[0] no")
    program.interrupt()
    assert program.end() == 128 + signal.SIGINT
    assert "killing them" in program.errors
    assert "was killed by SIGKILL" in program.errors


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
def test_the_processes_die_with_us(start: Any) -> None:
    """Goal: nothing is left behind, not even by kill -9. Method: the kernel tells their end."""
    source = "import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()"
    program = start("run", "-n", "3", "--", *PYTHON, source, module=CLI)
    pids = [int(program.line().split()[1]) for _ in range(3)]
    waits = [os.pidfd_open(pid) for pid in pids]
    program.interrupt(signal.SIGKILL)
    for wait in waits:
        ready, _, _ = select.select([wait], [], [], 20)
        os.close(wait)
        assert ready, "a process survived its parent"


def test_a_command_that_does_not_exist_is_said(start: Any) -> None:
    program = start("run", "-n", "2", "--", "no-such-command-anywhere", module=CLI)
    assert program.end() == 127
    assert program.errors.count("no-such-command-anywhere: command not found") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-n", "2", "--min-world-size", "3", "--", "true"], "--min-world-size is 3"),
        (["run", "-n", "0", "--", "true"], "greater than or equal to 1"),
        (["run", "-n", "1"], "COMMAND"),
        (["run", "--", "true"], "-n"),
        (["run", "-n", "1", "--no-such-option", "--", "true"], "--no-such-option"),
        (["run", "-n", "1", "--chunk-bytes", "1000", "--", "true"], "1000"),
        (["run", "-n", "1", "--lanes", "65", "--", "true"], "less than or equal to 64"),
    ],
)
def test_bad_usage_is_said_and_nothing_is_run(start: Any, arguments: list[str], words: str) -> None:
    program = start(*arguments, module=CLI, COLUMNS="200")
    assert program.end() == 2
    assert words in re.sub(r"\x1b\[[0-9;]*m", "", program.errors), program.errors
    assert "Traceback" not in program.errors
