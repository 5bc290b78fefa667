"""Names of others, and words of a coordinator that lies, are refused or shown as text.

The coordinators here that lie are sockets of the test; their bytes are those of harness/wire.py.
Which names and addresses a real one refuses is engine/protocol/hostile_test.zig.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

import pccl_py as pccl
from harness import wire
from harness.wire import message, words
from pccl_py.cli import status as status_view

MS = 10**6
SETTINGS = struct.pack("<QQQQIBQ", 500 * MS, 5000 * MS, 1 << 24, 1 << 28, 1 << 18, 2, 10_000 * MS)

OBEYED = "\x1b[2J\x9b2J\u202e\nWARNING forged"


@contextlib.contextmanager
def liar(answer: bytes, later: bytes = b"") -> Iterator[str]:
    """A coordinator that welcomes whoever comes, says `answer`, and `later` to each join.

    Gives its token.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as peer:
            try:
                wire.read(peer, wire.HELLO_BYTES)
            except ConnectionError:
                return  # the test will say that no answer came
            peer.sendall(wire.answer(wire.WELCOME) + answer)
            with contextlib.suppress(ConnectionError):  # the end of the connection: all was said
                while True:
                    number, size = wire.number_and_size(wire.read(peer, wire.HEAD_BYTES))
                    wire.read(peer, size)
                    if number == wire.JOIN_END:
                        peer.sendall(later)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield pccl.token_create(f"127.0.0.1:{listener.getsockname()[1]}")
    finally:
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xfe",
        b'{"schema": 1, "run": "\xff"}',
        b"no json",
        b"[1, 2]",
        b"[" * 10_000 + b"]" * 10_000,
        b"9" * 10_000,
    ],
)
def test_a_status_that_is_none_is_an_error_of_pccl(answer: bytes) -> None:
    with (
        liar(message(wire.STATUS_REPLY, words(answer))) as token,
        pytest.raises(pccl.VersionMismatch),
    ):
        pccl.run_status(token, timeout=30)


def test_the_reason_of_a_coordinator_that_lies_is_shown_as_text() -> None:
    """A reason that is no UTF-8 raised RuntimeError; one with escape sequences was obeyed."""
    refusal = message(wire.REFUSED, words(b"default", b"\xff\x1b[2J\xe2\x80\xae\nno"))
    with (
        liar(message(wire.WELCOMED, SETTINGS), refusal) as token,
        pytest.raises(pccl.PcclError) as caught,
    ):
        pccl.connect(token, group="default", bind="127.0.0.1:0", deadline=30)
    assert r"\xff\x1b[2J\u{202e}\x0ano" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("heartbeat_ns", "silence_ns"),
    [(1, 1), (500 * MS, 1), (500 * MS, 2**64 - 1), (2**64 - 1, 2**64 - 1)],
)
def test_a_silence_that_no_coordinator_has_is_an_error_of_pccl(
    heartbeat_ns: int, silence_ns: int
) -> None:
    settings = struct.pack("<QQ", heartbeat_ns, silence_ns) + SETTINGS[16:]
    joined = message(wire.JOINED, words(b"default") + struct.pack("<H", 0))
    with (
        liar(message(wire.WELCOMED, settings), joined) as token,
        pytest.raises(pccl.VersionMismatch, match="did not answer as a coordinator does"),
    ):
        pccl.connect(token, group="default", bind="127.0.0.1:0", connect_timeout=30, deadline=30)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a\u202eb", "a\u2028b", "\x7f"])
def test_names_that_a_terminal_obeys_are_refused_where_they_are_given(
    coordinator: pccl.Coordinator, name: str
) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(pccl.InvalidArgument, match="control characters") as caught:
        pccl.connect(coordinator.token, group=name, bind="127.0.0.1:0")
    assert str(caught.value).isprintable()
    with (
        pccl.connect(coordinator.token, bind="127.0.0.1:0") as comm,
        pytest.raises(pccl.InvalidArgument, match="control characters"),
    ):
        comm.shared_state({name: numpy.zeros(3)})


def test_the_id_of_zeros_is_nobody(coordinator: pccl.Coordinator) -> None:
    with pytest.raises(pccl.InvalidArgument, match="zeros"):
        pccl.connect(coordinator.token, peer_id=bytes(16), bind="127.0.0.1:0")
    assert pccl.run_status(coordinator.token)["peers"] == 0


def test_a_page_obeys_nothing_that_a_status_says() -> None:
    """Every text of it is markup that rich refuses, and has what a terminal obeys."""
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "reference" / "STATUS.md").read_text()
    example = json.loads(page.split("```json")[1].split("```")[0])
    nasty = f"[/red]{OBEYED}:1"

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoil(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [spoil(entry) for entry in value]
        return nasty if isinstance(value, str) else value

    spoilt = spoil(example)
    spoilt["groups"][0]["pending"] = [{"peer_id": nasty, "address": nasty, "prepared": True}]
    spoilt["groups"][0]["broken_links"] = [{"peer_id": nasty, "other": nasty, "state": nasty}]
    dialed = {"peer_id": nasty, "other": nasty, "address": nasty, "why": nasty}
    spoilt["groups"][0]["unreached"] = [dialed]
    spoilt |= {"journal": "failed", "journal_failure": nasty}
    console = Console(width=400, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(status_view.page(spoilt))
    text = console.export_text()
    assert "[/red]" in text and r"\x1b[2J\x9b2J\u{202e}\x0aWARNING forged" in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert not any(line.lstrip().startswith("WARNING") for line in text.split("\n"))


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"schema": 1},
        {"schema": [1]},
        {"schema": 1, "run": 3, "address": None, "uptime_ns": "x", "peers": 0},
    ],
)
def test_a_page_of_no_status_is_an_error_of_pccl(status: dict[str, Any]) -> None:
    with pytest.raises(pccl.PcclError):
        status_view.page(status)
