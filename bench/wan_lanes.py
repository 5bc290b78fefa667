"""The lanes of each link in one operation, by what the kernel says of their connections.

It owns the arithmetic. Each peer of the benchmark listens for lanes at one port, so a connection
with this port at either end is a lane; `ss` tells how many bytes of it were acknowledged. A lane
that is open and carries nothing does not count, because lanes that a link has tried and given up
stay open for a minute.
"""

from __future__ import annotations

import re

from bench.common import MIB

PORT = 4000  # below those that a kernel chooses, so no other connection has it
OPERATION_BYTES_MIN = 4 * MIB  # for less, links need no lanes, and probes beside it move more
LINK_PART = 8  # one that carries less than this part of the busiest link moves no data
LANE_PART = 16  # the same for a lane, of the busiest lane of its link

Lane = tuple[str, str]  # where its two ends are, this one first: address and port
Acknowledged = dict[Lane, int]  # bytes since each lane opened


def told_by(text: str) -> Acknowledged:
    """The lanes among the connections of one node, from `ss -tinHO state established`."""
    found = {}
    for line in text.splitlines():
        _, _, here, there, *_ = line.split()
        if any(end.endswith(f":{PORT}") for end in (here, there)):
            counted = re.search(r"\bbytes_acked:(\d+)", line)
            found[here, there] = int(counted[1]) if counted else 0
    return found


def of_links(before: Acknowledged, after: Acknowledged) -> list[int]:
    """How many lanes carried each link that was used in between; each direction is a link."""
    moved: dict[Lane, list[int]] = {}
    for (here, there), count in after.items():
        link = here.partition(":")[0], there.partition(":")[0]
        moved.setdefault(link, []).append(count - before.get((here, there), 0))
    busiest = max(map(sum, moved.values()), default=0)
    return [
        sum(count * LANE_PART >= max(counts) for count in counts)
        for counts in moved.values()
        if sum(counts) * LINK_PART >= busiest > 0
    ]
