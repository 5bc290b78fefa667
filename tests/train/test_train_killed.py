"""Workers in processes of their own, one of which is killed at a phase of an exchange.

The fault points are those of the library (engine/net/fault.zig), with the sequence of an operation
on its tag: the third announcement or contribution of a fragment.
"""

from __future__ import annotations

import itertools
import signal
from collections import defaultdict
from typing import Any

import pytest

import pccl_py as pccl

pytestmark = pytest.mark.long

PROGRAM = """
import sys
import numpy as np
import pccl_py as pccl
import pccl_train.numpy

number, method = int(sys.argv[1]), sys.argv[2]
settings = {
    "diloco": dict(sync_every=3, codec="int8", error_feedback=True),
    "streaming": dict(sync_every=6, fragments=(("a",), ("b",)), fragment_sync_delay=4,
                      fragment_update_alpha=0.5),
    "sparse": dict(sync_every=3, outer="sgd", sparse=pccl_train.Sparse(kept=512, chunk=1024)),
}[method]
random = np.random.default_rng(number)
parameters = {name: random.standard_normal(300_000).astype(np.float32) for name in "ab"}
with pccl.connect(bind="127.0.0.1:0", initial_world_size=3) as comm:
    lost = []
    def ended(exchange):
        lost.extend(exchange.lost)
        if method == "sparse":  # a piece is there whole or not at all
            ranges = exchange.outcome.ranges
            size = ranges[-1].end // len(exchange.members)
            for rank in range(len(exchange.members)):
                assert len({bool(r.contributors) for r in ranges if r.begin // size == rank}) == 1
    diloco = pccl_train.numpy.DiLoCo(comm, parameters, on_exchange=ended, **settings)
    diloco.begin()
    while diloco.round < 6:
        for name, value in parameters.items():
            value -= 0.1 * (value - random.random(len(value), np.float32))
        diloco.step()
        print(diloco.progress, diloco.digest(), flush=True)
    diloco.finish()
    print("end", diloco.digest(), flush=True)
    print("lost", *lost, flush=True)
"""

POINTS = (
    "operation.called:3",
    "operation.settled:3:0",
    "operation.settled:3:0.5",
    "operation.voted:3",
    "sync.offered:0",
)
# Partial sums are sent by an all_reduce alone: of contributions, and not of sparse ones.
INSIDE = "operation.partial:3:0.5"
# Few chunks in flight, so that half of an all_reduce is settled before the rest is sent.
CHUNKS: dict[str, Any] = {"chunk_bytes": 16 << 10, "window_bytes": 64 << 10}


@pytest.mark.parametrize(
    ("method", "point"),
    [
        *itertools.product(("diloco", "streaming", "sparse"), POINTS),
        *itertools.product(("diloco", "streaming"), (INSIDE,)),
        ("sparse", "operation.settled:3:0.8"),
    ],
)
def test_survivors_of_a_kill_hold_the_same_after_every_step(
    start: Any, method: str, point: str
) -> None:
    with pccl.Coordinator(heartbeat=0.1, silence=5, **CHUNKS) as coordinator:
        token = {"PCCL_TOKEN": coordinator.token}
        *survivors, victim = (
            start(PROGRAM, str(number), method, **token, **fault)
            for number, fault in enumerate(({}, {}, {"PCCL_FAULT_POINT": point}))
        )
        assert victim.end() == -signal.SIGKILL, victim.errors
        held = defaultdict(set)
        for survivor in survivors:
            assert survivor.end() == 0, survivor.errors
            for line in survivor.rest().splitlines():
                step, *digest = line.split()
                held[step].add(tuple(digest))
    rounds = 6 * (6 if method == "streaming" else 3)
    assert held.keys() == {*map(str, range(1, rounds + 1)), "end", "lost"}
    assert all(len(digests) == 1 for digests in held.values()), held
    if point == INSIDE:
        (lost,) = held["lost"]
        assert len(set(lost)) == 1, "a part of its contribution has come, and not all"
