"""The CPU time that the costliest attacks take from those who go on, held against limits.

The aims are 0.9 while strangers attack and 0.5 while somebody who has the token does; ratios of one
attack differ by 0.1 from run to run, so the limits leave room. All attacks, and what is measured:
bench/hostile.py, docs/internals/BENCHMARKS.md.
"""

from __future__ import annotations

import sys

import pytest

from bench.hostile import PEERS, SILENCE, SIZE, STRANGERS, Bench, Plan
from bench.recovery_world import World

STRANGER_RATIO_MIN = 0.7
INSIDER_RATIO_MIN = 0.4


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")
@pytest.mark.parametrize("attack", ["slow", "questions"])
def test_most_of_the_cpu_time_stays_for_the_work(attack: str) -> None:
    with World(PEERS, SIZE, SILENCE) as world:
        measured = Bench(world, Plan(tries=2, newcomers=False)).measure(attack)
    least = STRANGER_RATIO_MIN if attack in STRANGERS else INSIDER_RATIO_MIN
    assert measured.cpu_ratio > least, measured
