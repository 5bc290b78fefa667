"""Newcomers that cost others their time: many at once that go one by one, and those who are never
ready. Each of them has the token. How rounds let newcomers in: docs/internals/PROTOCOL.md.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest
from honest import MIB, Run, bytes_acknowledged

from harness.attacker import Attackers

FOUNDERS = 3
# All that find a place in a run beside its founders and somebody honest.
NEWCOMERS = 490
# Whoever is ready waits 2 s for the others. The preparation, for which it would wait otherwise,
# takes 10 s.
NEWCOMER_SECONDS_MAX = 5
NEWCOMERS_HONEST = 5


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="counts bytes the way of Linux")
def test_newcomers_that_read_nothing_and_go_cost_little(
    tmp_path: Path,
) -> None:
    """They send 200 KiB in all. The coordinator sends, and keeps for them, a bounded amount; all
    members stay, and an honest newcomer is in."""
    with Run(FOUNDERS, tmp_path) as run:
        run.go_on(50)
        before = bytes_acknowledged(run.coordinator.pid)
        with run.bounded(descriptors=512, peak_bytes=64 * MIB) as count:
            with Attackers([run.insider("newcomers", connections=NEWCOMERS)]) as attackers:
                while attackers.at_work:
                    run.go_on(1)
                    count()
            sent = bytes_acknowledged(run.coordinator.pid) - before
            assert sent < 64 * MIB
        run.until_whole()
        run.newcomer()


@pytest.mark.long
def test_newcomers_that_are_never_ready_keep_nobody_out(tmp_path: Path) -> None:
    """One a second, which opens no lane. Newcomers in the middle count: on a busy machine one of
    them may take long for other reasons."""
    with Run(FOUNDERS, tmp_path) as run:
        run.go_on(50)
        with Attackers([run.insider("never_ready")]):
            seconds = []
            for _ in range(NEWCOMERS_HONEST):
                seconds.append(run.newcomer())
                run.go_on()
        assert statistics.median(seconds) < NEWCOMER_SECONDS_MAX, seconds
        run.until_whole()
