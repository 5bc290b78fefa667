"""Somebody with the token who holds places and memory of the coordinator: nobody is kept out, and
what waits for those who read nothing is bounded, as is what is kept for those who have not seen it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from honest import MIB, PEAK_BYTES_MAX, Run

FOUNDERS = 3
PEERS_MAX = 512  # engine/base/limits.zig
FLOODERS = 8  # at once (harness/attacker.py)
QUEUE_BYTES_MAX = 4 * MIB
SPARE_BYTES = 16 * MIB  # what the coordinator has otherwise, and what its allocator keeps


@pytest.mark.long
@pytest.mark.parametrize("attack", ["statuses", "zero_windows"])
def test_somebody_with_the_token_holds_what_there_is_and_stops_nobody(
    tmp_path: Path, attack: str
) -> None:
    """64 that ask for the status and do not go on; peers that beat without end and read nothing."""
    with Run(FOUNDERS, tmp_path) as run:
        run.go_on(50)
        run.strike([run.insider(attack)], descriptors=PEERS_MAX, peak_bytes=SPARE_BYTES)


@pytest.mark.long
def test_members_that_read_nothing_are_let_go_when_four_mebibytes_wait_for_each(
    tmp_path: Path,
) -> None:
    """They are alone in groups of their own and vote, so decisions are made as fast as they may
    speak, 3 MiB a second for each. The allocator may keep their queues for others. The silence
    limit is long, so that on a busy machine they do not go for that."""
    with Run(FOUNDERS, tmp_path, silence=30, verbose=True) as run:
        run.go_on(50)
        job = run.insider("unread_decisions", connections=2 * FLOODERS)
        budget = FLOODERS * QUEUE_BYTES_MAX + SPARE_BYTES
        run.strike([job], descriptors=PEERS_MAX, peak_bytes=budget, kept_bytes=budget)
        log = run.coordinator.errors
        assert log.count("it does not read what it is told") >= FLOODERS, log


@pytest.mark.long
def test_members_that_do_not_say_what_they_have_seen_cost_little(tmp_path: Path) -> None:
    """Their votes make decisions, each of which is kept until they have seen it."""
    with Run(FOUNDERS, tmp_path) as run:
        run.go_on(50)
        job = run.insider("untold_decisions", connections=3 * FLOODERS, nice=19)
        run.strike([job], descriptors=PEERS_MAX, kept_bytes=PEAK_BYTES_MAX)
