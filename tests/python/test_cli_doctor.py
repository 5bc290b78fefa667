"""`pccl doctor`: its findings, its advice, and its exit status.

With firewalls and NAT it is looked at in tests/networks.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

import pccl_py as pccl
from pccl_py.cli import doctor

CLI = "pccl_py.cli"


def findings(program: Any) -> dict[str, dict[str, Any]]:
    return {each["what"]: each for each in json.loads(program.rest())}


def test_where_all_is_well_everything_is_ok(start: Any) -> None:
    with (
        pccl.Coordinator() as coordinator,
        pccl.connect(coordinator.token, peer_id="ab" * 16) as comm,
    ):
        comm.admit()
        program = start("doctor", "--json", module=CLI, PCCL_TOKEN=coordinator.token)
        assert program.end() == 0, program.errors
        found = findings(program)
        assert {"name", "coordinator", "run", "seen", "member abababab"} <= found.keys()
        assert all(each["ok"] for each in found.values())
        assert "this machine itself" in found["home"]["says"]
        assert "127.0.0.1:" in found["seen"]["says"]
        lines = start("doctor", module=CLI, PCCL_TOKEN=coordinator.token)
        assert lines.end() == 0, lines.errors
        assert all(line.startswith("ok  ") for line in lines.rest().splitlines())


def test_a_coordinator_that_is_not_there_is_wrong_and_the_rest_is_still_said(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    token = pccl.token_create(f"127.0.0.1:{port}")
    program = start("doctor", "--json", "--timeout", "0.5", module=CLI, PCCL_TOKEN=token)
    assert program.end() == 1
    found = findings(program)
    assert not found["coordinator"]["ok"] and "refuses" in found["coordinator"]["says"]
    assert not found["run"]["ok"] and found["descriptors"]["says"]


def test_a_name_that_nobody_knows_is_wrong(start: Any) -> None:
    token = pccl.token_create("no-such-host.invalid:1")
    program = start("doctor", "--timeout", "0.5", module=CLI, PCCL_TOKEN=token)
    assert program.end() == 1
    assert "wrong  name: no-such-host.invalid" in program.rest()


def test_a_token_is_no_argument(start: Any) -> None:
    program = start("doctor", pccl.token_create("127.0.0.1:1"), module=CLI)
    assert program.end() != 0 and "PCCL_TOKEN" in program.errors


def test_too_few_descriptors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    finding = doctor._descriptors()
    assert not finding.ok and "ulimit -n" in finding.remedy
