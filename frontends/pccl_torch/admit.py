"""admit: the safe point of all groups of torch.distributed in this process.

Here newcomers enter and those that are lost go, and ranks and sizes change, nowhere else:
`dist.get_rank()` and `dist.get_world_size()` follow. Losses before it: docs/TORCH.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d

from pccl_torch import start
from pccl_torch.backend import ProcessGroupPccl

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed
c10d: Any = distributed_c10d


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer of a safe point.

    `joined` has the ranks, in the default group, of those that are new in it; `left` the ranks that
    those had who are there no more. `changed`: some group has other members now, also if this
    process is itself new. `rank` and `world_size` are of the default group.
    """

    joined: tuple[int, ...]
    left: tuple[int, ...]
    changed: bool
    rank: int
    world_size: int


def admit(deadline: float | None = None) -> Admission:
    """Passes the safe point of each group, in the order in which they were made.

    All members must call it equally often, between the same collectives; nothing may be in flight
    that others have not called. With nothing pending it costs no network round trip. The first call
    of a process enters the groups that it has made, or, if its collectives have entered them,
    answers for that.

    `deadline`: seconds for each group; the timeout of torch.distributed by default. Raises
    InvalidUsage without a run, and errors of `pccl_py.Group.admit`: call it again then.
    """
    run = start.current()
    world = run.world
    before = {peer: rank for rank, peer in enumerate(world.peers)}
    admission = world.pass_safe_point(deadline)
    changed = admission.changed
    for group in run.groups[1:]:
        changed |= group.pass_safe_point(deadline).changed
    if changed:
        _tell_torch(run.groups)
    ranks = {peer: rank for rank, peer in enumerate(world.peers)}
    return Admission(
        joined=tuple(sorted(ranks[peer] for peer in admission.joined if peer in ranks)),
        left=tuple(sorted(before[peer] for peer in admission.left if peer in before)),
        changed=changed,
        rank=world.rank(),
        world_size=world.size(),
    )


def _tell_torch(groups: list[ProcessGroupPccl]) -> None:
    """The tables that torch.distributed keeps of the ranks of each group."""
    ranks = {peer: rank for rank, peer in enumerate(groups[0].peers)}
    tables = c10d._world.pg_group_ranks
    for group in groups:
        if group not in tables:
            continue
        members = enumerate(group.peers)
        tables[group] = {ranks[peer]: number for number, peer in members if peer in ranks}
        if group is dist.group.WORLD:
            c10d._update_default_pg(group)
