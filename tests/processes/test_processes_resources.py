"""Refusals and changes of the system: descriptors, memory, and the wall clock.

A process that runs out says so in a clear error, or turns away the newcomer alone; what works goes
on working, and all is well when the shortage is over.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import oracle
import pytest
from peers import Peer, World, ask_all

import pccl_py as pccl

COUNT = 30_011
SETTINGS: dict[str, Any] = {"heartbeat": 0.2, "silence": 3, "prepare": 1}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and prlimit are Linux's")


def highest_descriptor(pid: int) -> int:
    return max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))


class Shortage:
    """No descriptor more for a process than it has, but for the holes among their numbers."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def __enter__(self) -> None:
        limit = highest_descriptor(self._pid) + 1
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, (limit, self._before[1]))

    def __exit__(self, *error: object) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, self._before)


def reduce(peers: list[Peer], salt: int) -> None:
    ask_all(peers, "make", name="x", of="digits", count=COUNT, salt=salt)
    outcomes = ask_all(peers, "run", kind="all_reduce", array="x")
    oracle.check_agreement(outcomes)
    oracle.check_contributors(outcomes[0], [[peer.number for peer in peers]])
    for peer, outcome in zip(peers, outcomes, strict=True):
        assert outcome["attempts"] == 1
        oracle.check(outcome, peer.read("x"), salt)


def test_a_member_without_descriptors_lets_nobody_in_and_works_on() -> None:
    """Its lanes to the newcomer cannot be opened; when it has some again, they are."""
    with World(2, **SETTINGS) as world:
        founders = list(world.peers)
        newcomer = world.start(2)
        with Shortage(founders[0].process.pid):
            newcomer.send("join", token=world.coordinator.token, deadline=world.deadline)
            while not founders[0].ask("pending"):
                continue
            while founders[0].ask("pending"):  # it is released: it could not be prepared
                reduce(founders, 1)
            assert newcomer.silent()
        for peer in founders:
            peer.send("admit_until_joined", number=2)
        for peer in (*founders, newcomer):
            assert peer.answer()["world_size"] == 3
        reduce(world.peers, 2)


def test_a_coordinator_without_descriptors_turns_newcomers_away_and_serves_its_peers() -> None:
    coordinator = Peer()
    coordinator.become(99)
    coordinator.answer()
    peers = [Peer() for _ in range(3)]
    try:
        token = coordinator.ask("coordinate", **SETTINGS)
        for number, peer in enumerate(peers):
            peer.become(number)
            peer.answer()
        *founders, newcomer = peers
        ask_all(founders, "join", token=token, initial_world_size=2)
        reduce(founders, 0)
        with Shortage(coordinator.process.pid):
            newcomer.send("connect", token=token, connect_timeout=1)
            raised = newcomer.failure()
            assert raised.kind in ("CoordinatorUnreachable", "VersionMismatch"), raised
            assert pccl.token_parse(token).address in raised.message
            reduce(founders, 1)
        newcomer.send("join", token=token)
        for peer in founders:
            peer.send("admit_until_joined", number=2)
        for peer in peers:
            assert peer.answer()["world_size"] == 3
        reduce(peers, 2)
    finally:
        for peer in (coordinator, *peers):
            peer.end()


def test_connect_without_descriptors_says_so() -> None:
    with World(1, **SETTINGS) as world:
        peer = world.start(1)
        with Shortage(peer.process.pid):
            peer.send("connect", token=world.coordinator.token)
            raised = peer.failure()
            assert raised.kind == "SystemRefused", raised
            assert "file" in raised.message or "descriptor" in raised.message, raised
        world.peers.remove(peer)
        reduce(world.peers, 0)
        world.peers.append(peer)


STARVED = """
import resource, sys
import pccl_py as pccl

def limited(bytes_more):
    words = open("/proc/self/statm").read().split()
    used = int(words[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + bytes_more, resource.RLIM_INFINITY))

token, more = sys.argv[1], int(sys.argv[2])
limited(more)
try:
    with pccl.connect(token, bind="127.0.0.1:0") as comm:
        comm.admit()
        comm.barrier()
except (pccl.OutOfMemory, pccl.SystemRefused, MemoryError) as error:
    print(type(error).__name__, error)
else:
    print("works")
"""
STARVED_COORDINATOR = STARVED.replace(
    """    with pccl.connect(token, bind="127.0.0.1:0") as comm:
        comm.admit()
        comm.barrier()
""",
    """    with pccl.Coordinator() as coordinator:
        pccl.run_status(coordinator.token)
""",
)


@pytest.mark.parametrize("program", [STARVED, STARVED_COORDINATOR], ids=["peer", "coordinator"])
def test_memory_that_is_refused_at_the_start_is_an_error_that_says_so(program: str) -> None:
    """Whatever of the start it hits: an error or success, never a crash."""
    said = {}
    with pccl.Coordinator() as coordinator:
        for kib in (0, 64, 256, 1024, 2048, 4096, 8192, 9216, 12_288, 20_480, 65_536, 1_048_576):
            done = subprocess.run(
                [sys.executable, "-c", program, coordinator.token, str(kib * 1024)],
                capture_output=True,
                text=True,
                timeout=60,
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            )
            assert done.returncode == 0, f"{kib} KiB: {done.returncode}\n{done.stderr}"
            said[kib] = done.stdout.strip()
            coordinator_lives = pccl.run_status(coordinator.token)
            assert coordinator_lives["schema"] == 1
    assert said[1_048_576] == "works", said
    refused = [text for text in said.values() if text != "works"]
    assert refused, said
    for text in refused:
        assert "memory" in text or "thread" in text, said


HUNGRY = """
import resource, sys
import numpy as np
import pccl_py as pccl

comm = pccl.connect(sys.argv[1], bind="127.0.0.1:0", initial_world_size=2)
comm.admit()
array = np.arange(32 * 1024 * 1024, dtype=np.float64)
kept = array[::4096].copy()
hungry = comm.rank == 0
if hungry:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
    try:
        comm.all_reduce(array)
    except pccl.OutOfMemory as error:
        print(error)
    assert (array[::4096] == kept).all()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
comm.all_reduce(array)
assert (array[::4096] == 2 * kept).all()
print("works")
"""


def test_memory_that_is_refused_for_an_operation_is_an_error_before_anything_is_sent() -> None:
    """The other one waits meanwhile, and finishes with the call that has its memory."""
    with pccl.Coordinator() as coordinator:
        command = [sys.executable, "-c", HUNGRY, coordinator.token]
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        programs = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(2)
        ]
        said = sorted(program.communicate(timeout=60)[0] for program in programs)
    assert all(program.returncode == 0 for program in programs)
    assert said[1] == "works\n" and said[0].endswith("works\n"), said
    assert "not enough memory" in said[0] and "nothing was sent" in said[0], said


JUMPING = r"""
/* Preloaded: the wall clock jumps an hour back and forth, each time somebody looks. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void) {
  static int looks;
  return __atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED) % 2 ? 3600 : -3600;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int result = (int)syscall(SYS_clock_gettime, id, now);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec precise;
  if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
  if (out != NULL) *out = precise.tv_sec;
  return precise.tv_sec;
}
"""

CLOCKED = """
import time
looks = [time.time() for _ in range(4)]
assert max(looks) - min(looks) > 3600, "the clock of this process does not jump"
import numpy as np
import pccl_py as pccl
with pccl.LocalWorld(3, heartbeat=0.2, silence=3, deadline=30) as world:
    def work(comm):
        began = time.monotonic()
        while True:
            array = np.ones(50_000)
            outcome = comm.all_reduce(array)
            # Longer than the silence limit; that all have agreed, or one ends a call too early.
            more = np.array([time.monotonic() - began < 3.5], np.uint8)
            comm.all_reduce(more, op="min", tag=1)
            assert outcome.attempts == 1 and (array == 3).all()
            assert not comm.admit().changed
            if not more[0]:
                break
    world.run(work)
    status = pccl.run_status(world.coordinator.token)
    assert status["peers"] == 3
    try:
        world.comms[0].all_reduce(np.ones(3), deadline=0.3)
    except pccl.DeadlineExceeded:
        print("fine")
"""


@pytest.mark.long
def test_nothing_depends_on_the_wall_clock(tmp_path: Path) -> None:
    """Hours back and forth at every look: no loss, no early or late deadline."""
    source, shim = tmp_path / "jumping.c", tmp_path / "jumping.so"
    source.write_text(JUMPING)
    compiler = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1"]
    subprocess.run([*compiler, "-o", str(shim), str(source)], check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, "-c", CLOCKED],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
