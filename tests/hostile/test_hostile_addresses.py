"""Members dial nobody, and look up no name, because a newcomer says so: it is found out first.

Everything is on this machine, whose loopback interface has many hosts: peers come from 127.0.0.1,
and 127.0.0.77 is somebody else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pccl_numpy
import psutil
import pytest

import pccl_py as pccl
from harness import wire

LIMIT = 256


class ThirdParty:
    """It has no part in the run, takes every connection, and counts what is said to it."""

    def __init__(self, answer: bytes = b"") -> None:
        self.connections = 0
        self.heard = b""
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.77", 0))
        self.address = f"127.0.0.77:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                first = connection.recv(4096)
                if first == b"end":
                    return
                self.connections += 1
                self.heard += first
                connection.sendall(self._answer)
                while more := connection.recv(4096):
                    self.heard += more

    def end(self) -> None:
        """Connections that came before are counted: they are served in their order."""
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port))) as last:
            last.sendall(b"end")
            self._thread.join()
        self._listener.close()


@contextlib.contextmanager
def third_party(answer: bytes = b"") -> Iterator[ThirdParty]:
    somebody = ThirdParty(answer)
    try:
        yield somebody
    finally:
        if somebody._thread.is_alive():
            somebody.end()


@contextlib.contextmanager
def two_members() -> Iterator[tuple[pccl.Coordinator, list[pccl.Communicator]]]:
    with pccl.Coordinator() as coordinator, ThreadPoolExecutor(2) as threads:
        comms = list(
            threads.map(lambda _: pccl.connect(coordinator.token, initial_world_size=2), range(2))
        )
        with comms[0], comms[1]:
            list(threads.map(lambda comm: comm.admit(), comms))
            yield coordinator, comms


def go_on(comms: list[pccl.Communicator]) -> None:
    """They pass a safe point, and reduce."""

    def step(comm: pccl.Communicator) -> None:
        comm.admit()
        total = pccl_numpy.all_reduce(comm, np.ones(1000, np.float32))
        assert (total == len(comms)).all()

    with ThreadPoolExecutor(len(comms)) as threads:
        list(threads.map(step, comms))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n".ljust(32),
        wire.answer(wire.WELCOME),
    ],
    ids=["silent", "another program", "welcome"],
)
def test_a_third_party_that_newcomers_name_is_asked_once_each_and_dialed_by_no_member(
    answer: bytes,
) -> None:
    """The coordinator alone asks it, and tells it nothing of the run; the newcomer hears why."""
    with third_party(answer) as somebody, two_members() as (coordinator, comms):
        for newcomers in (1, 2):
            with pytest.raises(pccl.PcclError, match=r"127\.0\.0\.77:\d+.*advertise"):
                pccl.connect(coordinator.token, advertise=somebody.address)
            go_on(comms)
            assert somebody.connections == newcomers
        somebody.end()
        assert somebody.connections == 2
        assert len(somebody.heard) == 2 * wire.HELLO_BYTES
        assert pccl.token_parse(coordinator.token).run_id not in somebody.heard


def test_a_peer_that_is_where_it_says_is_found_by_its_proof() -> None:
    """Its connection comes from 127.0.0.1, and it listens at 127.0.0.78."""
    with pccl.Coordinator() as coordinator, ThreadPoolExecutor(2) as threads:
        places = [
            {"bind": "127.0.0.78:0", "advertise": "127.0.0.78"},
            {"bind": "127.0.0.79:0", "advertise": "127.0.0.79"},
        ]
        comms = list(
            threads.map(
                lambda place: pccl.connect(coordinator.token, initial_world_size=2, **place),
                places,
            )
        )
        with comms[0], comms[1]:
            go_on(comms)


def addresses_of(status: object) -> list[str]:
    """All addresses in a status, wherever they are."""
    if isinstance(status, dict):
        own = [value for key, value in status.items() if key == "address"]
        return own + [found for value in status.values() for found in addresses_of(value)]
    if isinstance(status, list):
        return [found for value in status for found in addresses_of(value)]
    return []


def test_a_name_is_looked_up_by_the_coordinator_and_members_get_numbers() -> None:
    with pccl.Coordinator(advertise="127.0.0.1") as coordinator, ThreadPoolExecutor(2) as threads:
        comms = list(
            threads.map(
                lambda _: pccl.connect(
                    coordinator.token, initial_world_size=2, bind=":0", advertise="localhost"
                ),
                range(2),
            )
        )
        with comms[0], comms[1]:
            go_on(comms)
            found = addresses_of(pccl.run_status(coordinator.token))
            assert sum(one.startswith("127.0.0.1:") for one in found) >= 2
            assert not any("localhost" in one for one in found)


def test_a_name_that_nobody_knows_is_named_to_whoever_said_it() -> None:
    with (
        pccl.Coordinator() as coordinator,
        pytest.raises(pccl.PcclError, match=r"no-such-host\.invalid:\d+.*advertise"),
    ):
        pccl.connect(coordinator.token, advertise="no-such-host.invalid")


# A program that trains, and opens files of its own.
PEER = """
import os, resource, sys
import pccl_py as pccl
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
with pccl.connect(peer_id=bytes(15) + b"\\1") as comm:
    comm.admit()
    print("ready", flush=True)
    for line in sys.stdin:
        taken = len(os.listdir("/proc/self/fd"))
        files = [open("/dev/null") for _ in range(limit // 4 - 20)]
        print(taken, len(files), flush=True)
        for file in files:
            file.close()
        comm.barrier()
"""


def lane_of(run_id: bytes, sender: int, meant: int) -> bytes:
    ends = sender.to_bytes(16, "big"), meant.to_bytes(16, "big")
    return wire.hello(wire.LANE, run_id, *ends)


def test_lanes_under_made_up_ids_leave_the_program_its_own_descriptors() -> None:
    """All of them have the run id, and none has been named by the coordinator."""
    with pccl.Coordinator() as coordinator, contextlib.ExitStack() as held:
        run_id = pccl.token_parse(coordinator.token).run_id
        peer = held.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PEER, str(LIMIT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PCCL_TOKEN": coordinator.token},
            )
        )
        assert peer.stdin is not None and peer.stdout is not None
        assert peer.stdout.readline() == "ready\n"
        (at,) = {
            one.laddr
            for one in psutil.Process(peer.pid).net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        }
        for number in range(2 * LIMIT):
            stranger = held.enter_context(socket.create_connection(tuple(at)))
            stranger.sendall(lane_of(run_id, 1000 + number, meant=1))
            if number % 64 == 63:
                peer.stdin.write("open\n")
                peer.stdin.flush()
                taken, opened = map(int, peer.stdout.readline().split())
                assert opened == LIMIT // 4 - 20
                assert taken < LIMIT // 2
        peer.stdin.close()
        assert peer.wait(60) == 0
