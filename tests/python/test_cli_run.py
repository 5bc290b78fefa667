"""`pccl run`: processes, their environment and output, exits, signals; none is left behind."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import pccl_py as pccl
from pccl_py.cli import run

PYTHON = [sys.executable, "-u", "-c"]
CLI = "pccl_py.cli"
EXAMPLE = "For example: pccl run -n 4 -- python train.py"


def test_each_process_learns_who_it_is_and_where_to_connect(start: Any) -> None:
    program = start(
        "run", "-n", "3", "--", *PYTHON,
        "import os, socket\n"
        "e = os.environ\n"
        "print(e['RANK'], e['WORLD_SIZE'], e['PCCL_INITIAL_WORLD_SIZE'], e['PCCL_RESTARTS'],"
        "e['PCCL_TOKEN'][:6], e['LOCAL_RANK'], e['LOCAL_WORLD_SIZE'], e['MASTER_ADDR'],"
        "e.get('TORCHELASTIC_RUN_ID'))\n"
        "port = int(e['MASTER_PORT'])\n"
        "if e['RANK'] == '0': socket.create_server(('', port))\n"
        "else:\n"
        "    try: socket.socket().bind(('127.0.0.2', port))\n"
        "    except OSError: pass\n"
        "    else: print('the port was given away')",
        module=CLI, MASTER_ADDR="elsewhere.invalid", TORCHELASTIC_RUN_ID="7",
    )  # fmt: skip
    assert program.end() == 0, program.errors
    lines = sorted(program.rest().splitlines())
    assert lines == [f"[{rank}] {rank} 3 3 0 pccl1- {rank} 3 127.0.0.1 None" for rank in range(3)]
    assert program.errors == ""


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, "warning"), ({"PCCL_LOG": ""}, ""), ({"PCCL_LOG_LEVEL": "DEBUG"}, None)],
)
def test_a_process_prints_warnings_unless_its_user_says_otherwise(
    start: Any, given: dict[str, str], told: str | None
) -> None:
    source = (
        "import logging, os, pccl_py as pccl\n"
        "pccl.Coordinator().close()\n"  # the log begins
        "print(repr(os.environ.get('PCCL_LOG')))\n"
        "logging.getLogger('pccl').warning('so it is')"
    )
    program = start("run", "-n", "1", "--", *PYTHON, source, module=CLI, **given)
    assert program.end() == 0, program.errors
    assert program.rest() == f"[0] {told!r}\n"
    assert ("[0] " in program.errors and "so it is" in program.errors) == (told == "warning")


def test_the_first_processes_have_their_numbers_as_ranks_and_nobody_else_has_their_ids(
    start: Any,
) -> None:
    """Method: while a process is connected, it connects again, and so do a fork of it and a program
    that it starts. Once its first connection is closed, its id is free."""
    source = (
        "import os, subprocess, sys, pccl_py as pccl\n"
        "def own(comm): return int(comm.peer_id.short, 16) == 1 + int(os.environ['RANK'])\n"
        "def tell(what):\n"
        "    group = what + os.environ['RANK']\n"
        "    with pccl.connect(group=group, initial_world_size=1) as comm: print(what, own(comm))\n"
        "if sys.argv[1:]: sys.exit(tell('started'))\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    print('first', own(comm), comm.rank == int(os.environ['RANK']))\n"
        "    tell('second')\n"
        "    pid = os.fork()\n"
        "    if pid == 0: sys.exit(tell('forked'))\n"
        "    os.waitpid(pid, 0)\n"
        "    subprocess.run([*sys.orig_argv, 'again'], check=True)\n"
        "    comm.barrier()\n"
        "tell('later')\n"
    )
    program = start("run", "-n", "2", "--", *PYTHON, source, module=CLI)
    assert program.end() == 0, program.errors
    lines = program.rest().splitlines()
    for number in range(2):
        assert [line for line in lines if line.startswith(f"[{number}]")] == [
            f"[{number}] {what}"
            for what in (
                "first True True", "second False", "forked False", "started False", "later True",
            )
        ]  # fmt: skip


def test_an_id_is_given_to_first_processes_alone_and_not_where_there_is_one(start: Any) -> None:
    """Neither to a process that is started again, nor to those of an inner `pccl run`."""
    told = "import os, sys; print(os.environ.get('PCCL_PEER_ID')); sys.exit(7)"
    program = start("run", "-n", "1", "--restarts", "1", "--", *PYTHON, told, module=CLI)
    assert program.end() == 7
    first, second = program.rest().splitlines()
    assert re.fullmatch(r"\[0\] 0{7}1[0-9a-f]{24}@\d+", first) and second == "[0] None"

    inner = ["-m", CLI, "run", "-n", "2", "--", *PYTHON]
    run_inner = f"import subprocess, sys; subprocess.run([sys.executable, *{inner}, sys.argv[1]])"
    program = start("run", "-n", "1", "--", *PYTHON, run_inner, told, module=CLI)
    assert program.end() == 0 and sorted(program.rest().splitlines()) == [
        "[0] [0] None", "[0] [1] None",
    ]  # fmt: skip

    program = start("run", "-n", "1", "--", *PYTHON, told, module=CLI, PCCL_PEER_ID="ab" * 16)
    assert program.end() == 7 and program.rest() == f"[0] {'ab' * 16}\n"


@pytest.mark.parametrize("label", ["", "mine"])
def test_the_label_of_each_process_has_its_number(start: Any, label: str) -> None:
    source = (
        "import os, socket, pccl_py as pccl\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    own = comm.label(comm.peer_id)\n"
        "    here = f'{socket.gethostname()}:{os.getpid()}'\n"
        "    print(own.replace(here, 'here'), len(comm.labels))\n"
    )
    program = start("run", "-n", "2", "--", *PYTHON, source, module=CLI, PCCL_LABEL=label)
    assert program.end() == 0, program.errors
    name = label or "here"
    assert sorted(program.rest().splitlines()) == [f"[{n}] {name} #{n} 2" for n in range(2)]


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
    """It is there when a process starts."""
    reads = ("sh", "-c", 'test "$(cat "$0")" = "$PCCL_TOKEN"', str(tmp_path / "token"))
    program = start("run", "-n", "1", "--token-file", reads[-1], "--", *reads, module=CLI)
    assert program.end() == 0, program.errors


def test_processes_join_the_run_of_a_token(start: Any, tmp_path: Path) -> None:
    """Method: the run has a member here, and waits for three; one process fails once, and is
    started again. Numbers, restarts and --token-file are as in a run of `pccl run`'s own."""
    source = (
        "import os, sys, pccl_py as pccl\n"
        "e = os.environ\n"
        "if e['RANK'] == '1' and e['PCCL_RESTARTS'] == '0': sys.exit(3)\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    comm.barrier()\n"
        "    print(*map(e.get, ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE',\n"
        "        'PCCL_INITIAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT']), comm.world_size)\n"
    )
    with pccl.Coordinator(initial_world_size=3) as coordinator, ThreadPoolExecutor(1) as pool:
        here = pool.submit(pccl.connect, coordinator.token, bind="127.0.0.1:0")
        program = start(
            "run", "-n", "2", "--restarts", "1", "--token-file", str(tmp_path / "token"), "--",
            *PYTHON, source, module=CLI, PCCL_TOKEN=coordinator.token,
            MASTER_ADDR="elsewhere.invalid", MASTER_PORT="29500",
        )  # fmt: skip
        with here.result() as comm:
            comm.admit()
            comm.barrier()
        assert program.end() == 0, program.errors
        assert (tmp_path / "token").read_text() == coordinator.token + "\n"
        address = f"127.0.0.1:{coordinator.port}"
    assert sorted(program.rest().splitlines()) == [
        f"[{n}] {n} 2 {n} 2 None elsewhere.invalid 29500 3" for n in range(2)
    ]
    joining = f"pccl run: joining the run of PCCL_TOKEN, whose coordinator is at {address}\n"
    assert program.errors.startswith(joining)


def test_a_new_run_is_started_with_a_token_where_that_is_asked_for(start: Any) -> None:
    """A process of `pccl run` has a token, and may start a run of its own."""
    source = (
        "import os, subprocess, sys\n"
        "inner = 'import os, sys; print(os.environ[\"PCCL_TOKEN\"] == sys.argv[1])'\n"
        f"subprocess.run([sys.executable, '-m', '{CLI}', 'run', *sys.argv[1:], '--',\n"
        "    sys.executable, '-c', inner, os.environ['PCCL_TOKEN']], check=True)\n"
    )
    options = ("-n", "1", "--new-run", "--bind", "127.0.0.1")
    program = start("run", "-n", "1", "--", *PYTHON, source, *options, module=CLI)
    assert program.end() == 0, program.errors
    assert (program.rest(), program.errors) == ("[0] [0] False\n", "")


@pytest.mark.parametrize(("minimum", "code"), [(1, 0), (2, 0), (3, 3)])
def test_enough_processes_must_succeed(minimum: int, code: int) -> None:
    written = io.StringIO()
    processes = run.Processes(
        ["sh", "-c", "exit $((RANK == 1 ? 3 : 0))"],
        3,
        "token",
        run.Policy(min_world_size=minimum),
        console=Console(file=written, width=200),
    )
    assert processes.run() == code
    assert "process 1 exited with status 3" in written.getvalue()
    said = re.search("[0-2] of 3 processes succeeded, 3 needed", written.getvalue())
    assert (said is not None) == (code != 0), written.getvalue()


def test_those_that_are_left_wait_to_begin_only_where_the_run_has_not_begun() -> None:
    """Method: what is said of a loss when nobody, one of two, and both of a group have come."""
    with pccl.Coordinator(initial_world_size=2) as coordinator, ThreadPoolExecutor(2) as pool:
        token = coordinator.token
        processes = run.Processes(["true"], 2, token, run.Policy(), console=Console())
        unknown = "; if the run has not begun yet, they wait for 2 peers (`pccl status`)"
        assert processes._beginning() == unknown
        first = pool.submit(pccl.connect, token)
        while not pccl.run_status(token)["groups"]:
            continue
        assert processes._beginning() == "; they wait for 2 peers to begin (`pccl status`)"
        with pccl.connect(token) as comm, first.result() as other:
            list(pool.map(lambda each: each.admit(), [comm, other]))
            assert processes._beginning() == ""
    assert processes._beginning() == unknown  # nobody answers


def test_the_others_are_ended_once_too_few_can_succeed(start: Any) -> None:
    """Method: two of three must succeed; the third failure is that of a process that only waits, so
    without the rule the run would never end."""
    source = (
        "import os, signal, sys\n"
        "if os.environ['RANK'] == '0': signal.pause()\n"
        "sys.exit(3 + int(os.environ['RANK']))"
    )
    program = start(
        "run", "-n", "3", "--min-world-size", "2", "--", *PYTHON, source, module=CLI
    )  # fmt: skip
    assert program.end() in {4, 5}
    assert "2 of 3 processes are left" in program.errors
    assert "2 of 3 processes must succeed, and 1 still can: stopping the others" in program.errors
    assert "process 0 was killed by SIGTERM" in program.errors
    assert "0 of 3 processes succeeded, 2 needed" in program.errors


def test_the_others_are_ended_when_one_that_is_needed_is_not_started_again(tmp_path: Path) -> None:
    """Process 1 waits for its restart when process 0 ends with 0: nothing is started again then, so
    the two that must succeed cannot, and process 2 would run for nothing."""
    source = (
        'case "$RANK" in\n0) cat "$0/failed" > /dev/null;;\n1) exit 9;;\n2) exec sleep 600;;\nesac'
    )
    os.mkfifo(tmp_path / "failed")
    written = io.StringIO()

    def write(text: str) -> None:
        if "is started again" in text:
            (tmp_path / "failed").write_bytes(b"")

    class Told(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*objects, **options)
            write(str(objects[0]))

    processes = run.Processes(
        ["sh", "-c", source, str(tmp_path)],
        3,
        "token",
        run.Policy(min_world_size=3, restarts=1),
        console=Told(file=written),
    )
    assert processes.run() == 9
    assert "process 1 is not started again: others are ending" in written.getvalue()
    assert "3 of 3 processes must succeed, and 2 still can: stopping the others" in " ".join(
        written.getvalue().split()
    )


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_passed_on_once(start: Any, number: int) -> None:
    source = (
        "import signal, sys\n"
        "def handle(number, frame):\n"
        "    print('got', number, flush=True); sys.exit(0)\n"
        "for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):\n"
        "    signal.signal(n, handle)\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    program = start("run", "-n", "2", "--", *PYTHON, source, module=CLI)
    assert sorted(program.line() for _ in range(2)) == ["[0] ready", "[1] ready"]
    program.interrupt(number)
    assert program.end() == 128 + number
    assert sorted(program.rest().splitlines()) == [f"[{i}] got {int(number)}" for i in range(2)]


def test_how_the_processes_use_the_network_is_told_to_them(start: Any) -> None:
    names = ("PCCL_SEND_RATE", "PCCL_CONGESTION")
    source = (
        "import os, pccl_py as pccl\n"
        "pccl.connect().close()\n"
        f"print(*[os.environ.get(name) for name in {names}])"
    )
    options = (
        "--lanes",
        "auto",
        "--probe",
        "off",
        "--send-rate",
        "200mbit",
        "--congestion",
        "system",
    )
    program = start("run", "-n", "1", *options, "--", *PYTHON, source, module=CLI)
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] 200mbit system\n"
    inherits = start("run", "-n", "1", "--", *PYTHON, source, module=CLI, PCCL_SEND_RATE="25MB")
    assert inherits.end() == 0 and inherits.rest() == "[0] 25MB None\n"


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
    ("options", "words"),
    [
        (["-n", "1"], f"COMMAND...'. {EXAMPLE}"),
        (["-n", "2", "--min-world-size", "3", "--"], "--min-world-size is 3"),
        (["-n", "1", "--chunk-bytes", "1000", "--"], "1000"),
    ],
)
def test_bad_usage_is_said_and_nothing_is_run(
    start: Any, tmp_path: Path, options: list[str], words: str
) -> None:
    command = ("touch", str(tmp_path / "ran")) if "--" in options else ()
    program = start("run", *options, *command, module=CLI, COLUMNS="200")
    assert program.end() == 2
    assert words in uncoloured(program.errors), program.errors
    assert "Traceback" not in program.errors
    assert not os.listdir(tmp_path)


def uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture
def refused(tmp_path: Path, pccl_command: Any) -> Callable[..., str]:
    """Calls `pccl run` in this process, where it must run nothing, and returns its stderr."""

    def call(*options: str, **environment: str) -> str:
        command = ["touch", str(tmp_path / "ran")]
        done = pccl_command("run", *options, "--", *command, COLUMNS="200", **environment)
        assert done.returncode == 2
        assert not os.listdir(tmp_path), "the command was run"
        return uncoloured(done.stderr)

    return call


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-n", "0"], f"greater than or equal to 1. {EXAMPLE}"),
        (["-np", "2"], f"unable to parse string as an integer. {EXAMPLE}"),
        ([], f"Missing option '-n'. {EXAMPLE}"),
        (["-n", "1", "--no-such-option"], "--no-such-option"),
        (["-n", "1", "--lanes", "65"], "must be 'auto' or 1 to 64, not '65'"),
        (["-n", "1", "--lanes", "0"], "must be 'auto' or 1 to 64, not '0'"),
        (["-n", "1", "--lanes", "abc"], "'auto' or 1 to 64, not 'abc'"),
        (["-n", "1", "--send-rate", "fast"], "8kbit to 10tbit per second"),
        (["-n", "1", "--send-rate", "0"], 'such as "200mbit", "25MB"'),
        (["-n", "1", "--congestion", "reno"], "'system', 'bbr', 'cubic'"),
        (["-n", "1", "--probe", "on"], "'auto', 'off'"),
    ],
)
def test_an_option_that_is_wrong_is_refused_before_anything_is_run(
    refused: Callable[..., str], options: list[str], words: str
) -> None:
    assert words in refused(*options)


@pytest.mark.parametrize(
    ("token", "options", "words"),
    [
        (
            pccl.token_create("127.0.0.1:9", bytes(range(16))),
            ["--stall-warning", "9"],
            "--stall-warning is for a new run, and PCCL_TOKEN names a run that has a coordinator: "
            "leave --stall-warning out to join that run, or pass --new-run",
        ),
        (
            "pccl1-nonsense",
            [],
            "PCCL_TOKEN: the token is mistyped or cut: its checksum does not fit; copy it whole; "
            "--new-run starts a run without it",
        ),
    ],
)
def test_a_token_that_cannot_be_joined_so_is_said_and_nothing_is_run(
    refused: Callable[..., str], token: str, options: list[str], words: str
) -> None:
    assert refused("-n", "1", *options, PCCL_TOKEN=token) == f"pccl: {words}\n"


@pytest.mark.parametrize(
    ("variable", "said", "words"),
    [
        ("PCCL_BIND", "127.0.0.1:29555", "only one of 2 processes.*PCCL_PORTS"),
        ("PCCL_BIND", "[::1]:29555", "only one of 2 processes.*PCCL_PORTS"),
        ("PCCL_ADVERTISE", "localhost:29555", "only one of 2 processes.*PCCL_PORTS"),
        ("PCCL_PEER_ID", "ab" * 16, "only one of 2 processes"),
    ],
)
def test_what_only_one_process_can_have_is_refused_for_more(
    refused: Callable[..., str], variable: str, said: str, words: str
) -> None:
    assert re.search(f"{variable} .*{words}", refused("-n", "2", **{variable: said}))


@pytest.mark.parametrize(
    ("variable", "said", "words"),
    [
        ("PCCL_SEND_RATE", "-1mbit", "8kbit to 10tbit"),
        ("PCCL_CONGESTION", "foo", "'cubic'"),
        ("PCCL_PROBE", "on", "'off'"),
    ],
)
def test_a_variable_that_each_process_would_refuse_is_refused_before_any_starts(
    refused: Callable[..., str], variable: str, said: str, words: str
) -> None:
    assert re.search(f"{variable} .*{words}", refused("-n", "2", **{variable: said}))


@pytest.mark.parametrize("address", ["", "127.0.0.1:0", "localhost", "[::1]:0", "::1", ":0"])
def test_addresses_without_a_port_are_for_all_processes(address: str) -> None:
    run.refuse_what_one_process_can_have(2, {"PCCL_BIND": address, "PCCL_ADVERTISE": address})
    run.refuse_what_one_process_can_have(1, {"PCCL_BIND": "127.0.0.1:29555"})


def test_options_of_run_reach_the_coordinator_and_its_variables_no_process(start: Any) -> None:
    source = (
        "import os, pccl_py as pccl\n"
        "assert not [name for name in os.environ if name.startswith('PCCL_COORDINATOR_')]\n"
        "status = pccl.run_status(os.environ['PCCL_TOKEN'])\n"
        "print(pccl.token_parse(os.environ['PCCL_TOKEN']).address.partition(':')[0],"
        " status['min_world_size'], status['memory'] >> 20)\n"
    )
    program = start(
        "run", "-n", "2", "--advertise", "localhost", "--window-bytes", "1048576",
        "--memory", str(32 << 20), "--prepare", "5", "--", *PYTHON, source,
        module=CLI, PCCL_COORDINATOR_MIN_WORLD_SIZE="2", PCCL_COORDINATOR_MEMORY="1",
    )  # fmt: skip
    assert program.end() == 0, program.errors
    assert sorted(program.rest().splitlines()) == [f"[{n}] localhost 2 32" for n in range(2)]


def test_nohup_keeps_a_run_alive_that_loses_its_terminal(start: Any) -> None:
    """SIGHUP is ignored by whoever started us, so it is neither obeyed nor passed on."""
    source = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'pccl_py.cli', 'run', '-n', '1', '--',\n"
        "    'sh', '-c', 'echo ready; kill -HUP $PPID $$; echo end'])"
    )
    program = start(source)
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] ready\n[0] end\n"


# ---- Python files


def test_a_python_file_is_run_by_this_python(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import sys; print(sys.executable, sys.argv[1:])")
    program = start("run", "-n", "1", str(file), "--steps", "3", module=CLI)
    assert program.end() == 0, program.errors
    assert program.rest() == f"[0] {sys.executable} ['--steps', '3']\n"


def test_a_python_file_that_can_be_executed_chooses_its_interpreter(
    start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text("#!/bin/sh\necho a shell")
    file.chmod(0o755)
    program = start("run", "-n", "1", str(file), module=CLI)
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] a shell\n"


def test_a_python_file_that_is_not_there_is_said_before_anything_is_run(start: Any) -> None:
    program = start("run", "-n", "2", "no_such_train.py", module=CLI)
    assert program.end() == 127
    assert program.errors == "pccl: there is no file no_such_train.py\n"


# ---- restarts


def test_a_dead_process_is_started_again_and_joins_again(start: Any) -> None:
    """Goal: with --restarts the run has its size back. Method: rank 1 of the first epoch dies; the
    others call admit until three are members again, and the newcomer knows that it is one."""
    source = (
        "import array, os, signal, pccl_py as pccl\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    came_back = os.environ['PCCL_RESTARTS'] == '1'\n"
        "    if comm.rank == 1 and not came_back: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    values = array.array('q', [0])\n"
        "    while values[0] < 3 or comm.world_size < 3:\n"
        "        if not came_back: comm.admit()\n"
        "        came_back = False\n"
        "        values[0] = 1\n"
        "        comm.all_reduce(values)\n"
        "    print('together', values[0], os.environ['PCCL_RESTARTS'])\n"
    )
    program = start("run", "-n", "3", "--restarts", "2", "--", *PYTHON, source, module=CLI)
    assert program.end() == 0, program.errors
    lines = sorted(line[4:] for line in program.rest().splitlines())
    assert lines == ["together 3 0", "together 3 0", "together 3 1"]
    assert "is started again in 0.5 s (restart 1 of 2)" in program.errors
    assert "restart 2 of 2" not in program.errors


def test_a_process_that_is_back_before_its_loss_is_known_is_told_of_that_and_of_no_port(
    start: Any,
) -> None:
    """Nothing listens any more where it listened itself; it enters once it is lost. The silence
    limit is longer than a process takes to start on a busy machine."""
    source = (
        "import os, signal, pccl_py as pccl\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    if os.environ['PCCL_RESTARTS'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    print(comm.epoch, comm.world_size)\n"
    )
    program = start(
        "run", "-n", "1", "--restarts", "1", "--silence", "8", "--heartbeat", "0.3", "--", *PYTHON,
        source, module=CLI, PCCL_LOG="warning",
    )  # fmt: skip
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] 2 1\n"
    assert re.search(r"rank 0 \(.*\) must come back to the coordinator first", program.errors)
    assert "PCCL_PORTS" not in program.errors, program.errors


def test_restarts_are_counted_and_end(start: Any) -> None:
    """Each restart waits twice as long; then the last status is that of the process."""
    source = "import os, sys; print(os.environ['PCCL_RESTARTS']); sys.exit(7)"
    program = start("run", "-n", "1", "--restarts", "2", "--", *PYTHON, source, module=CLI)
    assert program.end() == 7
    assert program.rest() == "[0] 0\n[0] 1\n[0] 2\n"
    assert program.errors.splitlines() == [
        "pccl run: process 0 exited with status 7",
        "pccl run: process 0 is started again in 0.5 s (restart 1 of 2)",
        "pccl run: process 0 exited with status 7",
        "pccl run: process 0 is started again in 1 s (restart 2 of 2)",
        "pccl run: process 0 exited with status 7",
        "pccl run: 0 of 1 processes succeeded, 1 needed",
    ]


def test_backoff_doubles_up_to_a_limit() -> None:
    waits = [run.backoff_seconds(restarts) for restarts in (0, 1, 2, 5, 6, 7, 10**6)]
    assert waits == [0.5, 1.0, 2.0, 16.0, 30.0, 30.0, 30.0]


def test_a_new_group_waits_for_nobody_who_has_given_up(start: Any, tmp_path: Path) -> None:
    """Process 1 fails for good, then process 0 fails: its next group is of one."""
    ended = tmp_path / "ended"
    os.mkfifo(ended)  # process 0 reads its end when process 1 is gone
    source = (
        'case "$RANK $PCCL_RESTARTS" in\n'
        '"1 0") exit 1;;\n'
        '"1 1") exec 3> "$0"; exit 1;;\n'
        '"0 0") cat "$0"; exit 1;;\n'
        "esac\n"
        "echo $PCCL_INITIAL_WORLD_SIZE of $WORLD_SIZE"
    )
    program = start(
        "run", "-n", "2", "--restarts", "1", "--", "sh", "-c", source, str(ended), module=CLI
    )
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] 1 of 2\n"


def test_nobody_is_started_again_once_a_process_has_finished(start: Any, tmp_path: Path) -> None:
    """It would find the run over, and begin the work anew, alone. Process 0 waits 2 s for its third
    restart; process 1 ends meanwhile."""
    ended = tmp_path / "ended"
    os.mkfifo(ended)
    source = (
        'if [ $RANK = 1 ]; then cat "$0"; exit 0; fi\n'
        "echo $PCCL_RESTARTS\n"
        'if [ $PCCL_RESTARTS = 2 ]; then exec 3> "$0"; fi\n'
        "exit 5"
    )
    program = start(
        "run", "-n", "2", "--restarts", "9", "--", "sh", "-c", source, str(ended), module=CLI
    )
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] 0\n[0] 1\n[0] 2\n"


def test_who_fails_after_another_has_finished_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 fails when the end of process 1, with 0, has been seen."""
    seen = tmp_path / "seen"
    os.mkfifo(seen)
    source = (
        'echo "$RANK $PCCL_RESTARTS" >> "$0/log"\n'
        'case "$RANK $PCCL_RESTARTS" in\n'
        "1*) exit 0;;\n"
        '"0 0") cat "$0/seen";;\n'
        "esac\n"
        "exit 5"
    )
    forget_due = run.Processes._forget_due

    def see_the_end(processes: run.Processes) -> None:
        forget_due(processes)
        seen.write_bytes(b"")

    monkeypatch.setattr(run.Processes, "_forget_due", see_the_end)
    processes = run.Processes(
        ["sh", "-c", source, str(tmp_path)],
        2,
        "token",
        run.Policy(restarts=3),
        console=Console(file=io.StringIO()),
    )
    assert processes.run() == 0
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["0 0", "1 0"]


def test_who_waits_for_a_restart_is_not_started_again_once_all_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 fails for good, with `--on-failure stop`, while process 0 waits for its restart."""
    ended, started = tmp_path / "ended", tmp_path / "started"
    os.mkfifo(ended)
    os.mkfifo(started)
    source = (
        'echo "$RANK $PCCL_RESTARTS" >> "$0/log"\n'
        'case "$RANK $PCCL_RESTARTS" in\n'
        '"0 0") cat "$0/started";;\n'
        '"1 1") : > "$0/started"; cat "$0/ended";;\n'
        "esac\n"
        "exit $((RANK + 3))"
    )
    waits = iter([0.0, 60.0])

    def backoff_seconds(restarts: int) -> float:
        assert restarts == 0
        seconds = next(waits)
        if seconds > 0:  # it is process 0 that waits from here on: process 1 may end
            ended.write_bytes(b"")
        return seconds

    monkeypatch.setattr(run, "backoff_seconds", backoff_seconds)
    processes = run.Processes(
        ["sh", "-c", source, str(tmp_path)],
        2,
        "token",
        run.Policy(stop_on_failure=True, restarts=1),
        console=Console(file=io.StringIO()),
    )
    assert processes.run() == 3
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["0 0", "1 0", "1 1"]


def test_nobody_is_started_again_after_a_signal(start: Any) -> None:
    source = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    program = start("run", "-n", "1", "--restarts", "3", "--", "sh", "-c", source, module=CLI)
    program.expect("[0] ready")
    program.interrupt(signal.SIGTERM)
    assert program.end() == 128 + signal.SIGTERM
    assert program.rest() == ""


def test_stop_ends_the_others_when_restarts_are_used_up(start: Any) -> None:
    source = "test $RANK != 1 || exit 5; exec sleep 600"
    program = start(
        "run", "-n", "3", "--restarts", "1", "--on-failure", "stop", "--", "sh", "-c", source,
        module=CLI,
    )  # fmt: skip
    assert program.end() == 5
    assert program.errors.count("process 1 exited with status 5") == 2
    assert "stopping the others" in program.errors
    assert program.errors.count("was killed by SIGTERM") == 2


def test_a_restart_that_comes_when_the_others_have_finished_ends_with_them(
    start: Any, tmp_path: Path
) -> None:
    """Method: the others end once process 1 runs again, and it connects once they have ended: then
    it waits for three peers, and two are gone for good."""
    again = tmp_path / "again"
    os.mkfifo(again)
    source = (
        "import os, signal, sys, pccl_py as pccl\n"
        "if os.environ['PCCL_RESTARTS'] == '1': open(sys.argv[1]).read()\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    comm.barrier()\n"
        "    if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    file = open(sys.argv[1], 'w')\n"
    )
    program = start(
        "run", "-n", "3", "--restarts", "1", "--", *PYTHON, source, str(again), module=CLI
    )
    assert program.end() == 0, program.errors
    said = "pccl run: the run is over, and what is left waits for it to begin again: stopping that"
    assert said in program.errors
    assert "process 1 was killed by SIGTERM" in program.errors


@pytest.mark.parametrize("first", ["dies", "lives"])
def test_a_restart_that_comes_too_late_ends_where_others_have_joined_the_run(
    start: Any, tmp_path: Path, first: str
) -> None:
    """As the test above, with two processes in a run and two of another `pccl run` that joined.

    Where the run of these two comes back too late, the coordinator may have ended before, too."""
    second = "lives" if first == "dies" else "dies"
    again, token = tmp_path / "again", tmp_path / "token"
    os.mkfifo(again)
    source = (
        "import os, signal, sys, pccl_py as pccl\n"
        "if os.environ['PCCL_RESTARTS'] == '1':\n"
        "    ended, pipe = 0, os.open(sys.argv[1], os.O_RDWR)\n"  # which no writer finds closed
        "    while ended < 3: ended += len(os.read(pipe, 3))\n"
        "with pccl.connect() as comm:\n"
        "    print('connected')\n"
        "    while comm.admit().world_size < 4: comm.barrier()\n"
        "    comm.barrier()\n"
        "    dies = os.environ['RANK'] == '1' and sys.argv[2] == 'dies'\n"
        "    if dies: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    file = open(sys.argv[1], 'w')\n"
        "    file.write('x')\n"  # as it ends
    )
    command = ("run", "-n", "2", "--restarts", "1", "--token-file", str(token), "--", *PYTHON)
    begun = start(*command, source, str(again), first, module=CLI)
    assert begun.line()[4:] == begun.line()[4:] == "connected"
    joined = start(
        *command, source, str(again), second,
        module=CLI, PCCL_TOKEN=token.read_text(), PCCL_CONNECT_TIMEOUT="5",
    )  # fmt: skip
    assert joined.end() == 0, joined.errors + begun.errors
    assert begun.end() == 0, begun.errors
    if first == "dies":
        assert "the run is over, and what is left waits for it to begin again" in begun.errors
        assert "process 1 was killed by SIGTERM" in begun.errors
    else:
        assert "process 1 " in joined.errors.split("is started again")[1]


def test_a_process_that_waits_for_a_coordinator_that_has_ended_ends_too(start: Any) -> None:
    """In a `pccl run` that joined, where a process has finished and another one came too late."""
    source = "import os, pccl_py as pccl\nif os.environ['RANK'] == '1': pccl.connect(deadline=60)\n"
    with pccl.Coordinator(bind="127.0.0.1:0", initial_world_size=2) as coordinator:
        command = ("run", "-n", "2", "--", *PYTHON, source)
        joined = start(*command, module=CLI, PCCL_TOKEN=coordinator.token)
        while not pccl.run_status(coordinator.token)["groups"]:
            assert joined.process.running, joined.errors
    assert joined.end() == 0, joined.errors
    assert "the coordinator has ended, and without a journal the run ends" in joined.errors
    assert "process 1 exited with status 1" in joined.errors


def test_a_run_goes_on_for_members_elsewhere_when_the_processes_that_began_it_have_ended(
    start: Any, tmp_path: Path
) -> None:
    """Method: a process of a `pccl run` that joined goes on alone, with calls of the coordinator,
    once the other `pccl run`, which has that coordinator, has seen its own process end."""
    goes_on, token = tmp_path / "goes on", tmp_path / "token"
    os.mkfifo(goes_on)
    source = (
        "import sys, pccl_py as pccl\n"
        "with pccl.connect() as comm:\n"
        "    print('connected')\n"
        "    while comm.admit().world_size < 2: comm.barrier()\n"
        "    comm.barrier()\n"
        "    if sys.argv[1] != 'leaves':\n"
        "        open(sys.argv[1]).read()\n"
        "        comm.admit()\n"
        "        comm.barrier(deadline=30)\n"
        "        print('went on')\n"
    )
    command = ("run", "-n", "1", "--token-file", str(token), "--", *PYTHON, source)
    begun = start(*command, "leaves", module=CLI)
    begun.expect("[0] connected")
    joined = start(*command, str(goes_on), module=CLI, PCCL_TOKEN=token.read_text())
    said = "pccl run: the processes here have ended; waiting for the other members of the run"
    while said not in begun.errors:
        pccl.run_status(token.read_text().strip())
    goes_on.write_text("")
    assert joined.end() == 0, joined.errors
    assert joined.rest() == "[0] connected\n[0] went on\n"
    assert begun.end() == 0, begun.errors


WAITING = {"here": 1, "needed": 3, "emptied": True, "pending": [{}], "epochs": []}
LONE = {"pending": [], "epochs": [{"members": [{"alive": True}]}]}
GONE = {"pending": [], "epochs": [{"members": [{"alive": False}]}]}


@pytest.mark.parametrize(
    ("groups", "restarts", "is_over"),
    [
        ([WAITING], 0, True),
        ([WAITING, GONE], 0, True),
        ([], 1, False),
        ([GONE], 1, False),  # what is left has not come back, and may never want to
        ([{**WAITING, "emptied": False}], 0, False),  # it may wait for peers from elsewhere
        ([{**WAITING, "emptied": False}], 1, True),
        ([{**WAITING, "needed": 2}], 1, False),  # two processes are left
        ([{**WAITING, "needed": 4, "here": 3}], 0, True),
        ([{**WAITING, "needed": 4, "here": 4}], 0, False),
        ([WAITING, LONE], 0, False),
        ([WAITING, {**GONE, "pending": [{}]}], 0, False),
    ],
)
def test_a_run_is_over_where_what_is_left_cannot_begin_it_again(
    monkeypatch: pytest.MonkeyPatch, groups: list[dict[str, Any]], restarts: int, is_over: bool
) -> None:
    monkeypatch.setattr(run, "run_status", lambda token, timeout: {"groups": groups})
    processes = run.Processes(["true"], 3, "token", run.Policy(), console=Console())
    processes._running = dict.fromkeys([0, 2])  # type: ignore[assignment]
    processes._restarts[2] = restarts
    assert processes._is_over() is is_over


# ---- a run that can be started again


def test_a_run_with_a_state_goes_on_after_it_was_killed(start: Any, tmp_path: Path) -> None:
    """The same token leads to it, so peers on other machines come back by themselves."""
    state = str(tmp_path / "state")
    source = (
        "import array, hashlib, os, signal, sys, pccl_py as pccl\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "    values = array.array('q', [1])\n"
        "    comm.all_reduce(values)\n"
        "    token = hashlib.sha256(os.environ['PCCL_TOKEN'].encode()).hexdigest()\n"
        "    print(values[0], comm.epoch > 1, token, flush=True)\n"
        "    if sys.argv[1] == 'stay': signal.pause()\n"
    )
    command = ["run", "-n", "2", "--silence", "1", "--heartbeat", "0.1", "--state", state, "--"]
    first = start(*command, *PYTHON, source, "stay", module=CLI)
    lines = {first.line()[4:] for _ in range(2)}
    first.interrupt(signal.SIGKILL)
    first.end()
    second = start(*command, *PYTHON, source, "end", module=CLI)
    assert second.end() == 0, second.errors
    assert len(lines) == 1
    expected = lines.pop().replace("False", "True")
    assert [line[4:] for line in second.rest().splitlines()] == [expected] * 2


def test_a_state_of_another_number_of_processes_is_refused(start: Any, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    peer = (*PYTHON, "import pccl_py; comm = pccl_py.connect(); comm.admit(); comm.close()")
    assert start("run", "-n", "1", "--state", state, "--", *peer, module=CLI).end() == 0
    program = start("run", "-n", "2", "--state", state, "--", "true", module=CLI)
    assert program.end() == 2
    assert "initial_world_size" in program.errors


# ---- log files


def test_a_log_folder_has_a_file_for_each_process_and_the_coordinator(
    start: Any, tmp_path: Path
) -> None:
    """With the host and the process id of `pccl run` in its name; lines are printed as well."""
    source = (
        "import array, os, sys, pccl_py as pccl\n"
        "with pccl.connect() as comm:\n"
        "    comm.admit()\n"
        "print('out', os.environ['RANK'], os.environ['PCCL_RESTARTS'])\n"
        "print('err', file=sys.stderr)\n"
        "if os.environ['PCCL_RESTARTS'] == '0' == os.environ['RANK']: sys.exit(3)\n"
    )
    folder = str(tmp_path / "logs" / "%h-%p-100%%")
    program = start(
        "run", "-n", "1", "--restarts", "1", "--log-dir", folder, "--", *PYTHON, source, module=CLI
    )
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] out 0 0\n[0] out 0 1\n"
    named = tmp_path / "logs" / f"{socket.gethostname()}-{program.process.pid}-100%"
    assert sorted(os.listdir(named)) == ["coordinator.log", "process-0.log"]
    lines = (named / "process-0.log").read_text().splitlines()
    assert sorted(lines) == ["err", "err", "out 0 0", "out 0 1"]
    said = (named / "coordinator.log").read_text()
    assert "process 0 is started again in 0.5 s (restart 1 of 1)" in said
    assert "epoch 1" in said, said
    assert "epoch" not in program.errors  # that would be --verbose


def test_a_log_file_that_cannot_be_written_ends_and_the_run_does_not(
    start: Any, tmp_path: Path
) -> None:
    os.symlink("/dev/full", tmp_path / "process-0.log")
    os.symlink("/dev/full", tmp_path / "coordinator.log")
    source = "print('one'); print('two')"
    program = start("run", "-n", "1", "--log-dir", str(tmp_path), "--", *PYTHON, source, module=CLI)
    assert program.end() == 0, program.errors
    assert program.rest() == "[0] one\n[0] two\n"
    assert program.errors.count("the file of process 0 ends here: No space left on device") == 1
    assert program.errors.count("coordinator.log ends here") == 1
    assert "Traceback" not in program.errors


def test_a_log_folder_that_cannot_be_made_is_said_before_anything_is_run(
    start: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "logs")
    program = start("run", "-n", "1", "--log-dir", folder, "--", "true", module=CLI)
    assert program.end() == 1
    assert program.errors == f"pccl: --log-dir: {folder}: Not a directory\n"
