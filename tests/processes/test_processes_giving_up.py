"""Calls that cannot end well: no coordinator, the wrong one, one that dies, peers that never call.

Each ends with its own error within bounded time, with the caller's memory as it was. Losses of
peers are in test_processes_losses.py.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import socket
import threading
import time
from collections.abc import Iterator

import contributions
import numpy as np
import oracle
import pytest
from peers import Peer, World, ask_all

import pccl_py as pccl

COUNT = 60_001
HTTP = b"HTTP/1.1 400 Bad Request\r\nServer: something else\r\n\r\n"


def check_untouched(peer: Peer, salt: int) -> None:
    assert np.array_equal(peer.read("x"), contributions.digits(peer.number, COUNT, salt))


@contextlib.contextmanager
def http_server() -> Iterator[int]:
    """Says HTTP to whoever comes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # shut down: the test is over
                with connection, contextlib.suppress(OSError):
                    connection.sendall(HTTP * 10)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def lonely() -> Iterator[Peer]:
    """A process that is in no run."""
    peer = Peer()
    peer.become(0)
    peer.answer()
    yield peer
    peer.end()


def test_a_coordinator_address_where_nothing_listens(lonely: Peer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    token = pccl.token_create(f"127.0.0.1:{port}")
    lonely.send("connect", token=token, connect_timeout=0.5)
    raised = lonely.failure()
    assert raised.kind == "CoordinatorUnreachable"
    assert f"127.0.0.1:{port}" in raised.message


def test_a_coordinator_address_where_something_else_listens(lonely: Peer) -> None:
    with http_server() as port:
        token = pccl.token_create(f"127.0.0.1:{port}")
        lonely.send("connect", token=token, connect_timeout=5)
        raised = lonely.failure()
        assert raised.kind == "VersionMismatch"
        assert f"127.0.0.1:{port}" in raised.message


def test_the_token_of_another_run(lonely: Peer) -> None:
    """And the peer that was refused may come in with the right one."""
    with World(1) as world:
        address = pccl.token_parse(world.coordinator.token).address
        lonely.become(1)
        lonely.answer()
        lonely.send("connect", token=pccl.token_create(address), connect_timeout=5)
        raised = lonely.failure()
        assert raised.kind == "AuthenticationFailed" and "run" in raised.message
        world.all("make", name="x", of="digits", count=3, salt=0)
        world.all("run", kind="all_reduce", array="x")
        lonely.ask("connect", token=world.coordinator.token)
        lonely.ask("close")


def test_one_peer_never_calls() -> None:
    """The one whose deadline passes is told so, the one that waits is told who gave up."""
    with World(3) as world:
        world.all("make", name="x", of="digits", count=COUNT, salt=3)
        hasty, patient, absent = world.peers
        patient.ask("begin", work="w", kind="all_reduce", array="x", deadline=60)
        began = time.monotonic()
        hasty.send("run", kind="all_reduce", array="x", deadline=0.5)
        assert hasty.failure().kind == "DeadlineExceeded"
        assert 0.4 < time.monotonic() - began < 10
        patient.send("wait", work="w")
        raised = patient.failure()
        assert raised.kind == "Aborted" and hasty.name in raised.message, raised
        for peer in (hasty, patient):
            check_untouched(peer, 3)

        absent.send("run", kind="all_reduce", array="x")  # comes when all is over
        raised = absent.failure()
        assert raised.kind == "Aborted" and hasty.name in raised.message, raised
        check_untouched(absent, 3)

        outcomes = world.all("run", kind="all_reduce", array="x")
        for peer, outcome in zip(world.peers, outcomes, strict=True):
            assert outcome["sequence"] == 1
            oracle.check(outcome, peer.read("x"), 3)


def test_a_call_that_is_withdrawn_costs_the_others_what_a_death_does() -> None:
    with World(3) as world:
        world.all("make", name="x", of="digits", count=COUNT, salt=4)
        first, second, third = world.peers
        for peer in (first, second):
            peer.ask("begin", work="w", kind="all_reduce", array="x")
        first.ask("cancel", work="w")
        first.send("wait", work="w")
        raised = first.failure()
        assert raised.kind == "Cancelled" and "go on without this peer" in raised.message, raised
        check_untouched(first, 4)
        third.ask("begin", work="w", kind="all_reduce", array="x")
        for peer in (second, third):
            outcome = peer.ask("wait", work="w")
            assert {n for each in outcome["ranges"] for n in each["contributors"]} == {1, 2}
            oracle.check(outcome, peer.read("x"), 4)
        first.send("run", kind="all_reduce", array="x")
        assert first.failure().kind == "Expelled"


def test_waiting_with_a_timeout_is_not_giving_up() -> None:
    with World(2) as world:
        world.all("make", name="x", of="digits", count=COUNT, salt=5)
        first, second = world.peers
        first.ask("begin", work="w", kind="all_reduce", array="x")
        first.send("wait", work="w", timeout=0.1)
        assert first.failure().kind == "TimeoutError"
        second.ask("run", kind="all_reduce", array="x")
        oracle.check(first.ask("wait", work="w"), first.read("x"), 5)


def test_a_deadline_after_the_vote_is_in_doubt_until_the_coordinator_decides() -> None:
    """The other peer is frozen with everything settled; when it is given up, the vote counts."""
    frozen = {"PCCL_FAULT_POINT": "stop=operation.committed"}
    with World(2, environments={1: frozen}, heartbeat=0.2, silence=3) as world:
        first, other = world.peers
        # Frozen in the commit of this operation, before it calls the next.
        world.all("make", name="x", of="digits", count=COUNT, salt=6)
        for peer in world.peers:
            peer.send("run", kind="all_reduce", array="x")
        first.answer()
        assert other.stopped()
        first.ask("make", name="x", of="digits", count=COUNT, salt=6)
        # A broadcast from here is complete here: this peer votes at once.
        first.ask("begin", work="w", kind="broadcast", array="x", root=0, deadline=0.3)
        first.send("wait", work="w")
        assert first.failure().kind == "InDoubt"
        check_untouched(first, 6)
        outcome = first.ask("resolve", work="w", timeout=25)
        oracle.check_contributors(outcome, [[0]])
        other.signal(signal.SIGCONT)
        assert other.answer()["sequence"] == 0


class Coordinator:
    """A coordinator in a process of its own, which a test may kill."""

    def __init__(self, state: pathlib.Path | None) -> None:
        self._options = {} if state is None else {"state": str(state)}
        self.token = self._start()

    def _start(self) -> str:
        self.peer = Peer()
        self.peer.become(99)
        self.peer.answer()
        token: str = self.peer.ask("coordinate", **self._options)
        return token

    def start_again(self) -> None:
        assert self._start() == self.token

    def kill(self) -> None:
        self.peer.signal(signal.SIGKILL)
        assert self.peer.ended() == -signal.SIGKILL


@contextlib.contextmanager
def killable_run(
    n: int, state: pathlib.Path | None = None
) -> Iterator[tuple[Coordinator, list[Peer]]]:
    coordinator = Coordinator(state)
    peers = [Peer() for _ in range(n)]
    try:
        for number, peer in enumerate(peers):
            peer.become(number)
            peer.answer()
        ask_all(peers, "join", token=coordinator.token, initial_world_size=n)
        yield coordinator, peers
    finally:
        for peer in (coordinator.peer, *peers):
            peer.end()


def test_a_coordinator_that_stays_away() -> None:
    """Calls end by their deadline, nobody's input changes, and whoever has voted says so."""
    with killable_run(3) as (coordinator, peers):
        ask_all(peers, "make", name="x", of="digits", count=COUNT, salt=1)
        ask_all(peers, "run", kind="all_reduce", array="x")
        ask_all(peers, "make", name="x", of="digits", count=COUNT, salt=2)
        first, second, absent = peers
        for peer in (first, second):
            peer.ask("begin", work="w", kind="all_reduce", array="x", deadline=2)
        # A broadcast is complete at its root, and a barrier everywhere: these have voted.
        first.ask("make", name="y", of="digits", count=COUNT, salt=3)
        first.ask("begin", work="root", kind="broadcast", array="y", root=0, tag=1, deadline=2)
        for peer in (first, second):
            peer.ask("begin", work="barrier", kind="barrier", tag=2, deadline=2)
        assert first.ask("in_flight") == 3

        coordinator.kill()
        for peer in (first, second):
            peer.send("wait", work="w")
            raised = peer.failure()
            assert raised.kind == "CoordinatorUnreachable"
            lost = "the connection to the coordinator was lost "
            assert lost in raised.message and " s ago. " in raised.message, raised
            assert "start it again on the same address (`pccl coordinator" in raised.message
            peer.send("wait", work="barrier")
            raised = peer.failure()
            assert raised.kind == "InDoubt"
            assert lost in raised.message and " s ago)" in raised.message, raised
            peer.send("resolve", work="barrier", timeout=0.5)
            assert peer.failure().kind == "TimeoutError"
        first.send("wait", work="root")
        assert first.failure().kind == "InDoubt"
        for peer in peers:
            check_untouched(peer, 2)
        # A safe point with nothing pending asks nobody.
        assert absent.ask("admit") is not None
        assert absent.ask("close") is None


def test_a_coordinator_that_is_killed_and_comes_back(tmp_path: pathlib.Path) -> None:
    """Nobody's call fails: what was in flight finishes, what was voted is committed."""
    with killable_run(3, tmp_path) as (coordinator, peers):
        first, second, last = peers
        for salt in range(1, 4):
            ask_all(peers, "make", name="x", of="digits", count=COUNT, salt=salt)
            for peer in (first, second):
                peer.ask("begin", work="w", kind="all_reduce", array="x")
                peer.ask("begin", work="barrier", kind="barrier", tag=2)
            coordinator.kill()
            last.ask("begin", work="w", kind="all_reduce", array="x")
            last.ask("begin", work="barrier", kind="barrier", tag=2)
            coordinator.start_again()
            for peer in peers:
                oracle.check(peer.ask("wait", work="w"), peer.read("x"), salt)
                assert peer.ask("wait", work="barrier")["sequence"] == salt - 1


def test_a_coordinator_that_is_killed_under_load(tmp_path: pathlib.Path) -> None:
    """Wherever it hits: the loops go on as if nothing had been."""
    with killable_run(3, tmp_path) as (coordinator, peers):
        ask_all(peers, "loop_begin", count=COUNT)
        for peer in peers:
            peer.event()
        for _ in range(3):
            coordinator.kill()
            coordinator.start_again()
        ask_all(peers, "loop_end")
        for peer in peers:
            assert peer.event() == "ended"
        for peer in peers:
            log = peer.ask("loop_log")
            assert log and all(entry["sum_is_right"] for entry in log)
            assert not any(entry["left"] for entry in log), "a peer was lost with the coordinator"
