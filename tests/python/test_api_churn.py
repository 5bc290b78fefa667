"""A hundred runs in which peers join and leave while members reduce, none of which hangs.

Goal: every call returns, every sum is that of the contributors which its outcome lists, and members
count the same rounds. Method: each run is a coordinator, two members that work in threads, and
visitors that come, take part and go, drawn by the seed: how many at once, for how many rounds, at
which kind of safe point, and whether they leave between operations or inside one.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pccl_py as pccl

LOOPBACK = "127.0.0.1:0"
RUNS = 100
MEMBERS = 2
SECONDS_MAX = 30.0
SIZE = 500


class Run:
    """One run, as its seed has drawn it."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.is_together = draw.random() < 0.5
        # For each visitor: the rounds that it takes part in, and whether it leaves inside of one.
        self.visitors = [
            (draw.randint(1, 4), draw.random() < 0.4) for _ in range(draw.randint(1, 3))
        ]
        self.over = threading.Event()
        self.numbers: dict[pccl.PeerId, int] = {}
        self.token = ""

    def enter(self, number: int) -> pccl.Communicator:
        comm = pccl.connect(self.token, bind=LOOPBACK, deadline=SECONDS_MAX)
        self.numbers[comm.peer_id] = number
        return comm

    def round(self, comm: pccl.Communicator) -> bool:
        """One round of all who are there; whether it is the last."""
        array = np.full(SIZE, 10 ** self.numbers[comm.peer_id])
        outcome = comm.all_reduce(array, recovery="restart")
        wanted = sum(10 ** self.numbers[peer] for peer in outcome.contributors)
        assert (array == wanted).all(), f"{array[0]}, and not {wanted}"
        flag = np.array([comm.rank == 0 and self.over.is_set()])
        comm.all_reduce(flag.view(np.uint8), op="max", tag=1)
        return bool(flag[0])

    def work(self, comm: pccl.Communicator) -> int:
        """A member, until all visitors have left. Returns the rounds."""
        rounds = 0
        while True:
            comm.admit(together=self.is_together)
            rounds += 1
            if self.round(comm):
                return rounds

    def visit(self, number: int, rounds: int, leaves_inside: bool) -> None:
        comm = self.enter(number)
        for _ in range(rounds):
            comm.admit(together=self.is_together)
            assert not self.round(comm), "it was over before all visitors had left"
        if leaves_inside:
            comm.admit(together=self.is_together)
            comm.all_reduce(np.full(SIZE, 10**number), recovery="restart", async_op=True)
        comm.close()


def gathered(futures: list[Future[Any]], seed: int) -> list[Any]:
    try:
        return [future.result(SECONDS_MAX) for future in futures]
    except BaseException as error:
        error.add_note(f"run {seed}")
        raise


@pytest.mark.parametrize("first", range(0, RUNS, 20))
def test_runs_of_join_and_leave_while_members_reduce(first: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        for seed in range(first, first + 20):
            run = Run(seed)
            with pccl.Coordinator(initial_world_size=MEMBERS) as coordinator:
                run.token = coordinator.token
                members = list(pool.map(run.enter, range(MEMBERS)))
                working = [pool.submit(run.work, comm) for comm in members]
                visits = [
                    pool.submit(run.visit, MEMBERS + number, *how)
                    for number, how in enumerate(run.visitors)
                ]
                try:
                    gathered(visits, seed)
                finally:
                    run.over.set()
                one, other = gathered(working, seed)
                assert one == other
                for comm in members:
                    comm.close()
