"""Places at a coordinator: whoever takes many of them, or all, keeps no member and no newcomer out.

The attackers are sockets of the test, which is one host with the honest peers; their bytes are
harness/wire.py's. The rules one by one: engine/protocol/door_test.zig, engine/base/places.zig.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl
from harness.wire import (
    ANSWER_BYTES,
    CONTROL,
    FULL,
    HEAD_BYTES,
    HEARTBEAT_ACK,
    HELD,
    NOBODY,
    STATUS,
    WELCOME,
    heartbeat,
    hello,
    join,
    number_and_size,
    read,
    verdict_of,
)

LOOPBACK = "127.0.0.1:0"
PEERS_MAX = 512  # engine/base/limits.zig
GROUPS_MAX = 64
MESSAGES_BURST, MESSAGES_PER_S = 8192, 2000


def greeting(token: str, purpose: int, peer_id: bytes = NOBODY, instance: int = 1) -> bytes:
    return hello(purpose, pccl.token_parse(token).run_id, peer_id, instance=instance)


def dial(token: str) -> socket.socket:
    at = pccl.token_parse(token).address.rpartition(":")[2]
    return socket.create_connection(("127.0.0.1", int(at)), timeout=20)


def verdict(token: str, peer_id: bytes, instance: int) -> int:
    with dial(token) as one:
        one.sendall(greeting(token, CONTROL, peer_id, instance))
        return verdict_of(read(one, ANSWER_BYTES))


@contextlib.contextmanager
def crowd(token: str, words: bytes) -> Iterator[threading.Event]:
    """Connections that say this and no more, and another for each that is closed."""
    stop, full = threading.Event(), threading.Event()

    def run() -> None:
        held: list[socket.socket] = []
        while not stop.is_set():
            with contextlib.suppress(OSError):
                one = dial(token)
                one.sendall(words)
                held.append(one)
            if len(held) > 200:
                full.set()
                held.pop(0).close()
        for one in held:
            one.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert full.wait(30), "the crowd could not come together"
        yield full
    finally:
        stop.set()
        thread.join()


def connect(token: str, **options: Any) -> pccl.Communicator:
    return pccl.connect(token, bind=LOOPBACK, **{"deadline": 30.0, **options})


def connect_all(token: str, count: int) -> list[pccl.Communicator]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: connect(token, initial_world_size=count), range(count)))


def admit_all(comms: list[pccl.Communicator]) -> None:
    with ThreadPoolExecutor(len(comms)) as pool:
        list(pool.map(lambda comm: comm.admit(), comms))


def reduce_all(comms: list[pccl.Communicator]) -> None:
    arrays = [np.full(1000, float(index + 1)) for index in range(len(comms))]
    with ThreadPoolExecutor(len(comms)) as pool:
        list(pool.map(lambda comm, array: comm.all_reduce(array), comms, arrays))
    for array in arrays:
        assert (array == sum(range(1, len(comms) + 1))).all()


@pytest.mark.parametrize("purpose", [STATUS, None])
def test_a_crowd_that_asks_or_is_silent_keeps_no_newcomer_out(purpose: int | None) -> None:
    """F4: 64 questions for the status that were not gone on with kept 136 of 137 newcomers out."""
    with pccl.Coordinator() as coordinator:
        words = greeting(coordinator.token, purpose) if purpose else b""
        with crowd(coordinator.token, words):
            began = time.monotonic()
            comms = connect_all(coordinator.token, 3)
            admit_all(comms)
            reduce_all(comms)
            assert time.monotonic() - began < 20
        for comm in comms:
            comm.close()


def test_a_crowd_keeps_no_member_from_a_coordinator_that_starts_again(tmp_path: Path) -> None:
    """F4: around a restart 2 of 3 members were lost while strangers held the places."""
    with pccl.Coordinator(state=tmp_path) as coordinator:
        token = coordinator.token
        comms = connect_all(token, 3)
        admit_all(comms)
        coordinator.close()
        with pccl.Coordinator(state=tmp_path), crowd(token, greeting(token, STATUS)):
            for _ in range(3):
                reduce_all(comms)
            status = pccl.run_status(token)
            (epoch,) = status["groups"][0]["epochs"]
            assert [member["alive"] for member in epoch["members"]] == [True] * 3
    for comm in comms:
        comm.close()


def test_a_run_full_of_peers_that_join_nothing_has_room_for_a_newcomer_that_waits() -> None:
    """F5: hellos and no join filled the run for ever, and the next peer ended with InvalidUsage."""
    with pccl.Coordinator() as coordinator, contextlib.ExitStack() as stack:
        token = coordinator.token
        for number in range(PEERS_MAX):
            one = stack.enter_context(dial(token))
            one.sendall(greeting(token, CONTROL, struct.pack("<QQ", number + 1, 7)))
            assert verdict_of(one.recv(11)) == WELCOME
        assert verdict(token, b"\7" * 16, 1) == FULL
        with pytest.raises(pccl.DeadlineExceeded, match="its run is full"):
            connect(token, connect_timeout=0.3)
        with connect(token, connect_timeout=30.0) as comm:
            comm.admit()


def test_nobody_comes_back_as_a_member_that_is_away(tmp_path: Path) -> None:
    """F3: after a restart a hello with the id of each member was enough to expel them all."""
    with pccl.Coordinator(state=tmp_path) as coordinator:
        token = coordinator.token
        comms = connect_all(token, 3)
        admit_all(comms)
        ids = [bytes.fromhex(str(comm.peer_id)) for comm in comms]
        coordinator.close()
        with pccl.Coordinator(state=tmp_path):
            for peer_id in ids:
                # It is away, or back by now.
                assert verdict(token, peer_id, 99) in (5, HELD)
            reduce_all(comms)
            assert comms[0].info().attempt >= 1
    for comm in comms:
        comm.close()


def test_names_without_end_leave_room_for_another_group() -> None:
    """F11: 64 joins with new names, and there was no new group for the rest of the run."""
    with pccl.Coordinator() as coordinator:
        token = coordinator.token
        with connect(token) as comm:
            comm.admit()
            for number in range(2 * GROUPS_MAX // 8):
                # Each is gone with its groups when its connection ends.
                with dial(token) as one:
                    one.sendall(greeting(token, CONTROL, os.urandom(16)))
                    for turn in range(8):
                        one.sendall(join(b"%d.%d" % (number, turn), world_size=2))
                    one.shutdown(socket.SHUT_WR)
                    while one.recv(4096):
                        pass
            with comm.group("one more", initial_world_size=1) as group:
                group.admit()
                names = {known["name"] for known in pccl.run_status(token)["groups"]}
                assert "one more" in names
            # Those that nobody is in are over.
            deadline = time.monotonic() + 20
            while len(pccl.run_status(token)["groups"]) > 1:
                assert time.monotonic() < deadline


def test_a_peer_that_says_too_much_is_slowed_down_and_loses_nothing() -> None:
    """F27: nothing bounded how much one peer says. Every heartbeat has an answer, in its time."""
    extra_s = 3
    count = MESSAGES_BURST + extra_s * MESSAGES_PER_S
    beats = b"".join(heartbeat(number) for number in range(count))
    with pccl.Coordinator() as coordinator, dial(coordinator.token) as one:
        one.sendall(greeting(coordinator.token, CONTROL, b"\7" * 16) + join(b"g", world_size=2))
        began = time.monotonic()
        sender = threading.Thread(target=one.sendall, args=(beats,))
        sender.start()
        with one.makefile("rb") as answers:
            answers.read(ANSWER_BYTES)
            expected = 0
            while expected < count:
                kind, size = number_and_size(answers.read(HEAD_BYTES))
                body = answers.read(size)
                if kind == HEARTBEAT_ACK:
                    assert struct.unpack("<Q", body) == (expected,)
                    expected += 1
        sender.join()
        assert time.monotonic() - began > extra_s - 1
        # Others are served meanwhile, and afterwards.
        with connect(coordinator.token) as comm:
            comm.admit()
