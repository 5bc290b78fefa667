"""admit: the safe point of all groups of torch.distributed in this process.

Here newcomers enter and those that are lost go, and ranks and sizes change, nowhere else:
`dist.get_rank()` and `dist.get_world_size()` follow. docs/TORCH.md says what a loss is before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d

from pccl_py import Admission as GroupAdmission
from pccl_py import PeerId
from pccl_torch import ddp, sharded, start
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
    answers for that. DistributedDataParallel over a group that has changed goes by its new members.

    `deadline`: seconds for each group; the timeout of torch.distributed by default. Raises
    InvalidUsage without a run, and errors of `pccl_py.Group.admit`: call it again then.
    """
    run = start.current()
    world = run.world
    members = [(group, group.peers) for group in run.groups]
    before = {peer: rank for rank, peer in enumerate(world.peers)}
    epochs = {group: group.comm.epoch for group in run.groups}
    renewed: dict[ProcessGroupPccl, bool] = {}

    def note(group: ProcessGroupPccl, admission: GroupAdmission) -> bool:
        if epochs[group] not in (0, group.comm.epoch):
            renewed[group] = bool(admission.joined)
        return admission.changed

    if run.mesh is None:
        admission, changed = world.pass_safe_point(deadline), False
    else:
        admission, changed = run.mesh.pass_safe_point(deadline)
    changed |= note(world, admission)
    for group in run.groups[1:]:
        if not group.of_mesh:
            changed |= note(group, group.pass_safe_point(deadline))
    if changed:
        tell_torch(run.groups)
        ddp.renew(renewed)
        for group, peers in members:
            if group.peers != peers and not group.of_mesh:
                sharded.cut_off(group, peers, _why(group, peers))
    ranks = {peer: rank for rank, peer in enumerate(world.peers)}
    return Admission(
        joined=tuple(sorted(ranks[p] for p in ranks if p not in before or p in admission.joined)),
        left=tuple(sorted(before[peer] for peer in before if peer not in ranks)),
        changed=changed,
        rank=world.rank(),
        world_size=world.size(),
    )


def _why(group: ProcessGroupPccl, peers: tuple[PeerId, ...]) -> str:
    return (
        f"the shards of this model are on the {len(peers)} members that group {group.pg_name!r} "
        f"had, and it has {group.size()} others now: make the model anew with fully_shard, and "
        "load a checkpoint"
    )


def tell_torch(groups: list[ProcessGroupPccl]) -> None:
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
