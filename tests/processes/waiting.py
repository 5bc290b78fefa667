"""Whether processes wait for what they need, or look for it again and again.

A process that waits sleeps in the kernel until something comes; each time that it wakes is one
voluntary context switch, and little work. One that looks again and again either never sleeps, so
that it works long for each time, or wakes much too often. Both are counts and ratios of what the
process has done itself, so a machine that is busy with others makes no difference.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from peers import Peer

# Measured where a heartbeat comes twice a second: 40 each second, and 0.04 ms of work for each.
WAKEUPS_MAX = 100
WAKEUPS_PER_SECOND_MAX = 80
SECONDS_PER_WAKEUP_MAX = 0.0004


def done_so_far(pid: int) -> tuple[int, float]:
    """Wakeups and CPU seconds of all threads of a process."""
    wakeups, nanoseconds = 0, 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        status = (thread / "status").read_text()
        found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", status, re.MULTILINE)
        assert found is not None, status
        wakeups += int(found[1])
        nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return wakeups, nanoseconds / 1e9


@contextmanager
def waits(peers: Iterable[Peer]) -> Iterator[None]:
    """Meanwhile these processes wait."""
    before = {peer: done_so_far(peer.process.pid) for peer in peers}
    began = time.monotonic()
    yield
    passed = time.monotonic() - began
    for peer, (wakeups_before, seconds_before) in before.items():
        wakeups, seconds = done_so_far(peer.process.pid)
        wakeups, seconds = wakeups - wakeups_before, seconds - seconds_before
        said = f"peer {peer.number} woke {wakeups} times in {passed:.1f} s, for {seconds:.3f} s"
        assert wakeups < WAKEUPS_MAX + WAKEUPS_PER_SECOND_MAX * passed, said
        assert seconds < SECONDS_PER_WAKEUP_MAX * wakeups, said
