"""Bytes of a stranger, to a coordinator or a peer, crash nothing, cost nothing, stop nobody.

Strangers here are plain TCP clients of the test. Bytes that are nearly right come from
docs/internals/PROTOCOL.md. That the decoders refuse every wrong byte is unit-tested beside them.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import oracle
import psutil
import pytest
from peers import Peer, World

import pccl_py as pccl
from harness.wire import CONTROL, JOIN, LANE, MAGIC, STATUS, head, hello

COUNT = 30_011
MIB = 1024 * 1024
SETTINGS: dict[str, Any] = {"heartbeat": 0.2, "silence": 10}
STRANGERS_MAX = 64  # engine/base/limits.zig


def greeting(purpose: int, run_id: bytes, **options: Any) -> bytes:
    return hello(purpose, run_id, **{"sender": bytes(range(16)), "instance": 1, **options})


def messages(run_id: bytes, seed: int) -> list[bytes]:
    """The words of strangers: nothing sensible, and things that are more and more nearly right."""
    generator = random.Random(seed)
    noise = generator.randbytes(10_000)
    wrong_run = generator.randbytes(16)
    return [
        b"\0" * 8,
        b"\0",
        noise,
        b"GET / HTTP/1.1\r\nHost: pccl\r\n\r\n",
        MAGIC,
        MAGIC + noise,
        greeting(CONTROL, wrong_run) + noise,
        greeting(LANE, wrong_run) + noise,
        greeting(CONTROL, run_id, version=99) + noise,
        greeting(77, run_id) + noise,
        greeting(CONTROL, run_id)[:95],
        # With the run id, which a token carries: what follows is still nonsense.
        greeting(CONTROL, run_id) + noise,
        greeting(CONTROL, run_id) + head(0xFFFFFFFF, JOIN),
        greeting(CONTROL, run_id) + head(2 * MIB, JOIN) + noise,
        greeting(CONTROL, run_id) + head(4, JOIN) + b"\xff\xff\xff\xff",
        greeting(LANE, run_id, meant=b"\1" * 16) + noise,
        greeting(STATUS, run_id) + noise,
        greeting(STATUS, run_id),
    ]


def in_the_name_of_a_member(run_id: bytes, seed: int) -> list[bytes]:
    """Peer 0 takes it for peer 1, which opens a lane again: it gives up the one that it has."""
    opening = greeting(LANE, run_id, sender=b"\2" * 16, meant=b"\1" * 16)
    return [opening + (b"\0" * 10_000, random.Random(seed).randbytes(10_000))[seed % 2]]


def say(port: int, message: bytes, *, reset: bool) -> None:
    """Connects, says it, and goes: orderly once the other side has hung up, or with a reset."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as to:
        to.settimeout(10)
        to.sendall(message)
        if reset:
            to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        try:
            to.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # the other side has reset it
                raise
        while to.recv(65_536):
            pass


def bombard(
    ports: list[int],
    run_id: bytes,
    seeds: range,
    words: Callable[[bytes, int], list[bytes]] = messages,
) -> None:
    for seed in seeds:
        for message in words(run_id, seed):
            for port in ports:
                say(port, message, reset=seed % 2 == 1)


def listening_port(peer: Peer) -> int:
    ports = {
        connection.laddr.port
        for connection in psutil.Process(peer.process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len(ports) == 1, f"a peer listens on one port, not on {ports}"
    return ports.pop()


def resident_bytes(peers: list[Peer]) -> list[int]:
    return [psutil.Process(peer.process.pid).memory_info().rss for peer in peers]


def reduce(peers: list[Peer], salt: int, *, undisturbed: bool = True) -> None:
    """The work goes on; undisturbed without a new attempt: no lane was broken in use."""
    for peer in peers:
        peer.send("make", name="x", of="digits", count=COUNT, salt=salt)
        peer.send("run", kind="all_reduce", array="x")
    for peer in peers:
        peer.answer()
    outcomes = [peer.answer() for peer in peers]
    oracle.check_agreement(outcomes)
    for peer, outcome in zip(peers, outcomes, strict=True):
        oracle.check(outcome, peer.read("x"), salt)
        assert outcome["attempts"] == 1 or not undisturbed


@contextlib.contextmanager
def run_of(n: int) -> Iterator[tuple[Peer, str, list[Peer]]]:
    """A coordinator and peers, all in fresh processes, whose memory can be watched."""
    coordinator, *peers = [Peer() for _ in range(n + 1)]
    try:
        coordinator.become(99)
        coordinator.answer()
        token = coordinator.ask("coordinate", **SETTINGS)
        for number, peer in enumerate(peers):
            peer.become(number)
            peer.answer()
            peer.send("join", token=token, initial_world_size=n)
        for peer in peers:
            peer.answer()
        yield coordinator, token, peers
    finally:
        for peer in (coordinator, *peers):
            peer.end()


def test_nonsense_costs_no_memory_and_stops_nobody() -> None:
    with run_of(2) as (coordinator, token, peers):
        run_id = pccl.token_parse(token).run_id
        everybody = [coordinator, *peers]
        ports = [listening_port(peer) for peer in everybody]
        reduce(peers, 0)
        bombard(ports, run_id, range(4))  # buffers grow to their size, once
        reduce(peers, 1)
        before = resident_bytes(everybody)
        bombard(ports, run_id, range(4, 20))
        reduce(peers, 2)
        grown = [now - then for now, then in zip(resident_bytes(everybody), before, strict=True)]
        # 300 connections and 2 MB went to each of them.
        assert max(grown) < MIB, f"coordinator and peers grew by {grown} bytes"
        assert all(peer.process.running for peer in everybody)
        status = pccl.run_status(token)
        assert status["peers"] == 2 and status["strangers_refused"] > 0


@pytest.mark.parametrize("words", [messages, in_the_name_of_a_member])
def test_the_work_goes_on_while_strangers_talk(
    words: Callable[[bytes, int], list[bytes]],
) -> None:
    """One who knows the token and a member's id can break a lane, which costs attempts, no more."""
    undisturbed = words is messages
    seeds = range(5 if undisturbed else 400)
    with World(3, **SETTINGS) as world:
        run_id = pccl.token_parse(world.coordinator.token).run_id
        ports = [world.coordinator.port, *map(listening_port, world.peers)]
        with ThreadPoolExecutor(1) as executor:
            stranger = executor.submit(bombard, ports, run_id, seeds, words)
            salt = 0
            while not stranger.done():
                reduce(world.peers, salt, undisturbed=undisturbed)
                salt += 1
            stranger.result()
        reduce(world.peers, salt, undisturbed=undisturbed)


def test_connections_that_say_no_more_are_closed_and_let_newcomers_in() -> None:
    """More of them than a coordinator and a peer keep; a newcomer comes in all the same."""
    with World(2, **SETTINGS) as world, contextlib.ExitStack() as stack:
        ports = [world.coordinator.port, *map(listening_port, world.peers)]
        silent = []
        for port in ports:
            for index in range(STRANGERS_MAX + 16):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                with contextlib.suppress(ConnectionError):  # too many: it may be closed already
                    connection.sendall((b"", MAGIC, b"\0" * 8)[index % 3])
                silent.append(connection)
        reduce(world.peers, 0)

        newcomer = world.start(2)
        newcomer.send("join", token=world.coordinator.token)
        for peer in world.peers[:2]:
            peer.send("admit_until_joined", number=2)
        for peer in world.peers:
            peer.answer()
        reduce(world.peers, 1)
        for connection in silent:
            connection.settimeout(20)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b"", "a stranger got an answer"
