"""One peer of the recovery benchmark: reduces the same buffer for ever, and says when it did.

It owns the loop of one process, which ends by being killed; who kills whom and when, and what the
times come to, is `recovery.py`'s. JSON lines on stdout, times of CLOCK_MONOTONIC, which all
processes of a machine share:

    {"connecting": t}, {"entered": t, "epoch": ...}           once
    {"synced": t, "early": n, "moved": n}                     of the first sync, with a state
    {"began": t, "ended": t, "world": n, "alive": n, "error": null}     for each call
    {"expelled": t}                                           at its end, if it was
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

import pccl_py as pccl
from bench import common

LOOPBACK = "127.0.0.1:0"


@dataclass(frozen=True)
class Job:
    """The task of one process."""

    token: str
    place: int  # of the cores that the world shares
    world: int  # peers at first
    founder: bool
    size: int  # bytes that are reduced
    state: int = 0  # bytes that newcomers get first

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))


def say(**what: object) -> None:
    """A line for `recovery.py`."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class State:
    """The founders' state, which a newcomer gets before it works, and knows by its digits."""

    def __init__(self, comm: pccl.Communicator, size: int, founder: bool) -> None:
        self._wanted = np.arange(size // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._array = self._wanted.copy() if founder else np.zeros_like(self._wanted)
        self._shared = comm.shared_state(
            {"state": self._array}, revision=int(founder), prefetch=True
        )
        self._told = False

    def sync(self) -> None:
        """Where somebody has entered."""
        outcome = self._shared.sync()
        if not self._told:
            self._told = True
            at = time.monotonic()
            if not np.array_equal(self._array, self._wanted):
                raise AssertionError("the state that came is another")
            say(synced=at, early=outcome.leaves_early, moved=outcome.leaves_moved)


def reduce_for_ever(comm: pccl.Communicator, job: Job) -> None:
    """The mean of ones is one, whoever contributes: the buffer needs no refill, and is checked."""
    size = job.size
    array = np.ones(size // 4, np.float32)
    state = State(comm, job.state, job.founder) if job.state else None
    admission = comm.admit()
    say(entered=time.monotonic(), epoch=admission.epoch)
    while True:
        if admission.joined and state is not None:
            state.sync()
        began = time.monotonic()
        error = None
        try:
            comm.all_reduce(array, op="avg")
        except pccl.Aborted as raised:
            error = str(raised)
        ended = time.monotonic()
        if array[0] != 1 or array[-1] != 1 or array[size // 8] != 1:
            raise AssertionError(f"the mean of ones is {array[0]}, {array[size // 8]}, {array[-1]}")
        alive = comm.info().alive
        say(began=began, ended=ended, world=admission.world_size, alive=alive, error=error)
        admission = comm.admit()


def main() -> None:
    """See the head of this file."""
    job = Job.from_json(sys.argv[1])
    os.sched_setaffinity(0, common.cores_of(job.place, job.world))
    say(connecting=time.monotonic())
    with pccl.connect(job.token, bind=LOOPBACK, initial_world_size=job.world) as comm:
        try:
            reduce_for_ever(comm, job)
        except pccl.Expelled:
            say(expelled=time.monotonic())


if __name__ == "__main__":
    main()
