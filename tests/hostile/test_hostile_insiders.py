"""Somebody with the token who holds places and memory of the coordinator: nobody is kept out, and
what waits for those who read nothing is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from honest import Run

FOUNDERS = 3
PEERS_MAX = 512  # engine/base/limits.zig


@pytest.mark.parametrize("attack", ["statuses", "zero_windows"])
def test_somebody_with_the_token_holds_what_there_is_and_stops_nobody(
    tmp_path: Path, attack: str
) -> None:
    """64 that ask for the status and do not go on; peers that beat without end and read nothing."""
    with Run(FOUNDERS, tmp_path) as run:
        run.go_on(50)
        run.strike([run.insider(attack)], descriptors=PEERS_MAX)
