"""One peer of the recovery benchmark: reduces the same buffer for ever, and says when it did.

It owns the loop of one process, which ends by being killed; who kills whom and when, and what the
times come to, is `recovery.py`'s. JSON lines on stdout, times of CLOCK_MONOTONIC, which all
processes of a machine share:

    {"connecting": t}, {"entered": t, "epoch": ...}           once
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
    """What one process shall do."""

    token: str
    place: int  # of the cores that the world shares
    world: int  # peers at first
    size: int  # bytes

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


def reduce_for_ever(comm: pccl.Communicator, size: int) -> None:
    """The mean of ones is one, whoever contributes: the buffer needs no refill, and is checked."""
    array = np.ones(size // 4, np.float32)
    admission = comm.admit()
    say(entered=time.monotonic(), epoch=admission.epoch)
    while True:
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
            reduce_for_ever(comm, job.size)
        except pccl.Expelled:
            say(expelled=time.monotonic())


if __name__ == "__main__":
    main()
