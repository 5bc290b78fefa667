"""The arguments that `connect` takes from the environment, and the log that PCCL_LOG asks for."""

from __future__ import annotations

import inspect
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl
from pccl_py import _log_output, _pccl

LOOPBACK = "127.0.0.1:0"
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "ENVIRONMENT.md"

JOIN = """
import pccl_py as pccl
with pccl.Coordinator(bind="127.0.0.1:0") as coordinator:
    with pccl.connect(coordinator.token, bind="127.0.0.1:0") as comm:
        comm.admit()
print("end", flush=True)
"""


@pytest.fixture
def coordinator() -> Iterator[pccl.Coordinator]:
    with pccl.Coordinator(bind=LOOPBACK) as running:
        yield running


def test_every_argument_of_connect_has_a_variable(
    coordinator: pccl.Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "PCCL_TOKEN": coordinator.token,
        "PCCL_GROUP": "another",
        "PCCL_INITIAL_WORLD_SIZE": "1",
        "PCCL_BIND": LOOPBACK,
        "PCCL_ADVERTISE": "127.0.0.1",
        "PCCL_PORTS": "20000-29999",
        "PCCL_DEADLINE": "2",  # connecting takes longer than 0.3 s on a busy machine
        "PCCL_CONNECT_TIMEOUT": "7.5",
        "PCCL_PEER_ID": "ab" * 16,
        "PCCL_LABEL": "%h/%p 100%%",
        "PCCL_RECONNECT_TIMEOUT": "0",
        "PCCL_SEND_RATE": "200mbit,eu-1=20mbit",
        "PCCL_CONGESTION": "system",
        "PCCL_PROBE": "off",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pccl.connect() as comm, pccl.connect(peer_id="cd" * 16) as other:
        assert comm.name == other.name == "another"
        assert str(comm.peer_id) == "ab" * 16
        entering = threading.Thread(target=other.admit, kwargs={"deadline": 30})
        entering.start()
        while comm.admit(deadline=30).world_size == 1:
            pass
        entering.join()
        assert comm.label(comm.peer_id) == f"{socket.gethostname()}/{os.getpid()} 100%"
        (group,) = pccl.run_status(coordinator.token)["groups"]
        for member in group["epochs"][-1]["members"]:
            assert re.fullmatch(r"127\.0\.0\.1:2\d{4}", member["address"])
        with pytest.raises(pccl.DeadlineExceeded):
            comm.all_reduce(np.ones(3))  # nobody else calls it
        coordinator.close()
        with pytest.raises((pccl.CoordinatorUnreachable, pccl.InDoubt)):
            comm.all_reduce(np.ones(3), tag=1, deadline=60)


def test_a_label_that_is_passed_has_the_same_places_as_the_variable(
    coordinator: pccl.Coordinator,
) -> None:
    with pccl.connect(coordinator.token, bind=LOOPBACK, label="ck%p on %h, 100%%") as comm:
        comm.admit()
        named = f"ck{os.getpid()} on {socket.gethostname()}, 100%"
        assert comm.label(comm.peer_id) == named


COORDINATOR = {
    "bind": (LOOPBACK, LOOPBACK),
    "advertise": ("localhost", "localhost"),
    "run_id": (b"\xab" * 16, "ab" * 16),
    "min_world_size": (2, "2"),
    "initial_world_size": (3, "3"),
    "lanes_per_link": (5, "5"),
    "chunk_bytes": (4096, "4096"),
    "window_bytes": (1 << 20, str(1 << 20)),
    "heartbeat": (0.1, "0.1"),
    "silence": (1.5, "1.5"),
    "prepare": (7.0, "7"),
    "stall_warning": (3.0, "3"),
    "stall": (9.0, "9"),
    "memory": (1 << 25, str(1 << 25)),
    "probe": ("off", "off"),
    "plans": ("fixed", "fixed"),
}


def test_every_argument_of_the_coordinator_has_a_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: a variable does what its argument does. Method: two coordinators, one after the other,
    are made with arguments and with variables; the library must be given the same."""
    values = {**COORDINATOR, "state": (str(tmp_path / "run"), str(tmp_path / "run"))}
    assert set(inspect.signature(pccl.Coordinator).parameters) == set(values)
    made, native = [], _pccl.Coordinator

    def recorded(**options: Any) -> Any:
        made.append(options)
        return native(**options)

    monkeypatch.setattr(_pccl, "Coordinator", recorded)
    arguments: dict[str, Any] = {name: argument for name, (argument, _) in values.items()}
    with pccl.Coordinator(**arguments):
        pass
    for name, (_, said) in values.items():
        monkeypatch.setenv(f"PCCL_COORDINATOR_{name.upper()}", said)
    with pccl.Coordinator() as coordinator:
        assert pccl.token_parse(coordinator.token).run_id == b"\xab" * 16
        assert pccl.run_status(coordinator.token)["min_world_size"] == 2
    assert made[0] == made[1] and all(value for value in made[0].values())
    with pccl.Coordinator(bind="127.0.0.1:0", min_world_size=2, state=tmp_path / "b") as other:
        assert other.port != 0 and made[2]["state_dir"] == str(tmp_path / "b")


@pytest.mark.parametrize(
    ("variable", "said", "words"),
    [
        ("BIND", "no where", "no where"),
        ("RUN_ID", "abc", "PCCL_COORDINATOR_RUN_ID must be 32 hexadecimal digits"),
        ("LANES_PER_LINK", "many", "PCCL_COORDINATOR_LANES_PER_LINK.*'auto' or 1 to 64.*'many'"),
        ("LANES_PER_LINK", "0", "PCCL_COORDINATOR_LANES_PER_LINK.*'auto' or 1 to 64.*'0'"),
        ("MEMORY", "0", "PCCL_COORDINATOR_MEMORY"),
        ("SILENCE", "-1", "PCCL_COORDINATOR_SILENCE"),
        ("STALL", "soon", "PCCL_COORDINATOR_STALL.*'soon'"),
        ("PROBE", "on", "unknown PCCL_COORDINATOR_PROBE 'on'.*'auto', 'off'"),
        ("PLANS", "on", "unknown PCCL_COORDINATOR_PLANS 'on'.*'auto', 'fixed'"),
    ],
)
def test_a_variable_of_the_coordinator_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, said: str, words: str
) -> None:
    monkeypatch.setenv(f"PCCL_COORDINATOR_{variable}", said)
    with pytest.raises(pccl.InvalidArgument, match=words) as raised:
        pccl.Coordinator()
    assert "abc" not in str(raised.value)  # a run id is secret


@pytest.mark.parametrize(
    "variable", ["PCCL_INITIAL_WORLD_SIZE", "PCCL_DEADLINE", "PCCL_CONNECT_TIMEOUT"]
)
def test_a_number_that_is_none_names_its_variable(
    coordinator: pccl.Coordinator, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(pccl.InvalidArgument, match=f"{variable}.*'soon'"):
        pccl.connect(coordinator.token, bind=LOOPBACK)


@pytest.mark.parametrize("count", ["65", "-1", "many"])
def test_a_number_of_workers_that_is_none_is_named(
    coordinator: pccl.Coordinator, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    monkeypatch.setenv("PCCL_WORKERS", count)
    with pytest.raises(pccl.InvalidArgument, match=f'PCCL_WORKERS is "{count}".* 0 to 64'):
        pccl.connect(coordinator.token, bind=LOOPBACK)


@pytest.mark.parametrize("empty", ["", "\n"])
def test_an_empty_token_is_none(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCCL_TOKEN", empty)
    for token in (None, empty):
        with pytest.raises(pccl.InvalidArgument, match="^no token: pass one, or set PCCL_TOKEN"):
            pccl.connect(token)


@pytest.mark.parametrize("ports", ["29400-", "5-4", "0", "70000", "x" * 50])
def test_ports_that_are_no_range_are_named(coordinator: pccl.Coordinator, ports: str) -> None:
    with pytest.raises(pccl.InvalidArgument, match=re.escape(ports[:10])):
        pccl.connect(coordinator.token, bind=LOOPBACK, ports=ports)


def test_a_peer_takes_the_first_free_port_of_its_range_and_says_when_there_is_none(
    coordinator: pccl.Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        monkeypatch.setenv("PCCL_PORTS", f"{first}-{first}")
        with pytest.raises(pccl.SystemRefused, match=f"{first}-{first}.*PCCL_PORTS"):
            pccl.connect(coordinator.token)
        with pccl.connect(coordinator.token, bind=LOOPBACK, ports=f"{first}-{first + 99}") as comm:
            comm.admit()
            (group,) = pccl.run_status(coordinator.token)["groups"]
            (member,) = group["epochs"][-1]["members"]
            assert first < int(member["address"].rpartition(":")[2]) < first + 100


def test_a_token_with_a_loopback_address_is_named_where_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    token = pccl.token_create(address)
    with pytest.raises(pccl.CoordinatorUnreachable, match="leads every machine to itself"):
        pccl.connect(token, connect_timeout=0.1)


def test_without_a_variable_nothing_is_printed(start: Any) -> None:
    program = start(JOIN)
    program.expect("end")
    assert program.end() == 0 and program.errors == ""


def test_the_log_goes_to_stderr_where_it_is_asked_for(start: Any) -> None:
    program = start(JOIN, PCCL_LOG="info")
    program.expect("end")
    assert program.end() == 0
    assert re.search(r"^\S+ \S+ \d+ pccl INFO: epoch 1 begins", program.errors, re.MULTILINE)


def test_a_peer_tells_the_log_once_which_epoch_it_is_in(start: Any) -> None:
    program = start(JOIN.replace("comm.admit()", "comm.admit(), comm.admit()"), PCCL_LOG="info")
    program.expect("end")
    assert program.end() == 0
    line = "pccl INFO: entered epoch 1 of group default as rank 0 of 1\n"
    assert program.errors.count(line) == 1, program.errors


@pytest.mark.parametrize(
    ("connecting", "line"),
    [
        ("pccl.connect(TOKEN)", r"pccl INFO: 1 of 3 peers are here"),
        (
            "pccl.connect(NOWHERE, connect_timeout=0.5)",
            r"pccl INFO: .* 127\.0\.0\.1:\d+ is not reached: .*refused",
        ),
    ],
)
def test_the_log_of_the_first_connect_is_there_before_its_error(
    start: Any, connecting: str, line: str
) -> None:
    """Goal: nothing that `connect` says is lost, though no handle was ever open in the process.

    Method: a process of its own, whose only connect fails, by its deadline or since nothing listens
    at the token's address; its stderr must have the line above the traceback.
    """
    with (
        pccl.Coordinator(bind=LOOPBACK, initial_world_size=3) as coordinator,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        nowhere = pccl.token_create(f"127.0.0.1:{taken.getsockname()[1]}")
        taken.close()
        source = (
            f"import pccl_py as pccl\nTOKEN, NOWHERE = {coordinator.token!r}, {nowhere!r}\n"
            f"{connecting}"
        )
        program = start(source, PCCL_LOG="debug", PCCL_DEADLINE="1.5")
        assert program.end() == 1
    before, traceback, _ = program.errors.partition("Traceback")
    assert traceback and re.search(line, before), program.errors


def test_the_log_goes_to_a_file_of_each_process(start: Any, tmp_path: Path) -> None:
    program = start(JOIN, PCCL_LOG="debug", PCCL_LOG_FILE=str(tmp_path / "a%%b-%h-%p.log"))
    program.expect("end")
    assert program.end() == 0 and program.errors == ""
    (log,) = tmp_path.iterdir()
    assert re.fullmatch(rf"a%b-{re.escape(socket.gethostname())}-\d+\.log", log.name)
    assert "epoch 1 begins" in log.read_text()


def test_the_log_has_no_line_below_its_level(start: Any) -> None:
    program = start(JOIN, PCCL_LOG="error")
    program.expect("end")
    assert program.end() == 0 and program.errors == ""


@pytest.mark.parametrize(
    ("variables", "kind", "text"),
    [
        ({"PCCL_LOG": "loud"}, "InvalidArgument", "debug, info, warning, error"),
        ({"PCCL_LOG": "info", "PCCL_LOG_FILE": "/"}, "SystemRefused", "PCCL_LOG_FILE: /"),
    ],
)
def test_a_log_that_cannot_be_is_an_error(
    start: Any, variables: dict[str, str], kind: str, text: str
) -> None:
    program = start(JOIN, **variables)
    assert program.end() == 1
    assert kind in program.errors and text in program.errors


def test_a_program_with_a_handler_of_its_own_keeps_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger, handler = logging.getLogger("pccl"), logging.Handler()
    monkeypatch.setattr(logger, "handlers", [handler])
    _log_output.configure({"PCCL_LOG": "debug"})
    assert logger.handlers == [handler]


def test_the_page_has_every_variable_that_the_package_reads() -> None:
    package = Path(pccl.__file__).parent
    read = {
        name
        for file in package.rglob("*.py")
        for name in re.findall(r"\bPCCL_[A-Z_]+\b", file.read_text())
        if not name.endswith("_INIT")
    }
    for function, prefix in ((pccl.connect, "PCCL_"), (pccl.Coordinator, "PCCL_COORDINATOR_")):
        read |= {prefix + name.upper() for name in inspect.signature(function).parameters}
    read.discard("PCCL_COORDINATOR_")
    page = DOCUMENT.read_text()
    assert {name for name in read if f"`{name}`" not in page} == set()


def test_pccl_numpy_without_numpy_says_what_to_install(start: Any) -> None:
    program = start("import sys; sys.modules['numpy'] = None\nimport pccl_numpy")
    assert program.end() == 1
    assert "pccl_numpy needs NumPy: pip install 'pccl-py[numpy]'" in program.errors


def test_pccl_torch_without_torch_says_what_to_install(start: Any) -> None:
    program = start("import sys; sys.modules['torch'] = None\nimport pccl_torch")
    assert program.end() == 1
    assert "pccl_torch needs PyTorch: pip install 'pccl-py[torch]'" in program.errors
