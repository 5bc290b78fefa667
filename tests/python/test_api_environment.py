"""The arguments that `connect` takes from the environment, and the log that PCCL_LOG asks for."""

from __future__ import annotations

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
from pccl_py import _log_output

LOOPBACK = "127.0.0.1:0"
DOCUMENT = Path(__file__).parents[2] / "docs" / "ENVIRONMENT.md"

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
        "PCCL_DEADLINE": "0.3",
        "PCCL_CONNECT_TIMEOUT": "7.5",
        "PCCL_PEER_ID": "ab" * 16,
        "PCCL_LABEL": "%h/%p 100%%",
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


def test_a_label_that_is_passed_has_the_same_places_as_the_variable(
    coordinator: pccl.Coordinator,
) -> None:
    with pccl.connect(coordinator.token, bind=LOOPBACK, label="ck%p on %h, 100%%") as comm:
        comm.admit()
        named = f"ck{os.getpid()} on {socket.gethostname()}, 100%"
        assert comm.label(comm.peer_id) == named


@pytest.mark.parametrize(
    "variable", ["PCCL_INITIAL_WORLD_SIZE", "PCCL_DEADLINE", "PCCL_CONNECT_TIMEOUT"]
)
def test_a_number_that_is_none_names_its_variable(
    coordinator: pccl.Coordinator, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(pccl.InvalidArgument, match=f"{variable}.*'soon'"):
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
    page = DOCUMENT.read_text()
    assert {name for name in read if f"`{name}`" not in page} == set()


def test_pccl_numpy_without_numpy_says_what_to_install(start: Any) -> None:
    program = start("import sys; sys.modules['numpy'] = None\nimport pccl_numpy")
    assert program.end() == 1
    assert "pccl_numpy needs NumPy: pip install 'pccl-py[numpy]'" in program.errors
