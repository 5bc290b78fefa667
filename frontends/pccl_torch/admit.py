"""admit: the safe point of all groups of torch.distributed in this process.

Here newcomers enter and those that are lost go, and ranks and sizes change, nowhere else:
`dist.get_rank()` and `dist.get_world_size()` follow. docs/TORCH.md says what a loss is before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d

import pccl_py
from pccl_torch import ddp, start
from pccl_torch.backend import ProcessGroupPccl
from pccl_torch.errors import PeerLost, losses_told

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
    answers for that, and tells of losses since then. If members have come or gone since, `joined`
    has no founders. DistributedDataParallel over a group that has changed goes by its new members.

    `deadline`: seconds for each group; the timeout of torch.distributed by default. Raises
    InvalidUsage without a run, and errors of `pccl_py.Group.admit`: call it again then.
    """
    run = start.current()
    world = run.world
    if run.answered is None:
        run.answered = world.peers
    heard, run.losses_told = run.losses_told, losses_told()
    told = run.losses_told > heard
    try:
        for group in list(run.groups):
            if not group.of_mesh and not _is_past(run, group):
                _pass_all(run, group, deadline, told)
    finally:
        if run.has_changed:
            tell_torch(run.groups)
    before = {peer: rank for rank, peer in enumerate(run.answered)}
    ranks = {peer: rank for rank, peer in enumerate(world.peers)}
    joined = ranks.keys() - before.keys()
    # If members have come or gone since the founders entered, the answer names only these members.
    if ranks.keys() == before.keys() or not run.joined >= before.keys():
        joined |= ranks.keys() & run.joined
    answer = Admission(
        joined=tuple(sorted(ranks[peer] for peer in joined)),
        left=tuple(sorted(before[peer] for peer in before if peer not in ranks)),
        changed=run.has_changed,
        rank=world.rank(),
        world_size=world.size(),
    )
    run.answered, run.has_changed = world.peers, False
    run.joined.clear()
    return answer


def _pass_all(run: start.Run, group: ProcessGroupPccl, deadline: float | None, told: bool) -> None:
    """The safe points of one group that this call of the program stands for.

    A newcomer has entered at one of them, for which the others have called `admit`; but if it was
    `told` of a loss since then, all call `admit` for that. Founders have entered together without
    a call of `admit`, so that all of them pass one more now.
    """
    entry = group.take_entry()
    if entry is not None:
        _note(run, group, entry)
    if entry is None or group.is_founder or told:
        _pass(run, group, deadline)
    if group.is_founder:
        _pass(run, group, deadline)


def _note(run: start.Run, group: ProcessGroupPccl, admission: pccl_py.Admission) -> None:
    run.has_changed |= admission.changed
    if group is run.world:
        run.joined.update(admission.joined)


def _pass(run: start.Run, group: ProcessGroupPccl, deadline: float | None) -> None:
    """The safe point of one group, and what follows from it, also if another one fails later."""
    epoch, joined = group.comm.epoch, True
    try:
        if group is run.world and run.mesh is not None:
            admission, changed = run.mesh.pass_safe_point(deadline)
            run.has_changed |= changed
        else:
            admission = group.pass_safe_point(deadline)
        _note(run, group, admission)
        joined = bool(admission.joined)
    finally:
        run.has_changed |= group.comm.epoch != epoch
        if epoch not in (0, group.comm.epoch):
            ddp.renew({group: joined})


def _is_past(run: start.Run, group: ProcessGroupPccl) -> bool:
    """Whether it has not begun, and would wait for somebody who is lost."""
    if group.comm.epoch != 0 or group is run.world:
        return False
    there, before = set(run.world.peers), run.answered or ()
    if any(peer in before and peer not in there for peer in group.peers):
        group.bar(
            PeerLost(
                f"group {group.pg_name!r} has not begun, and some of the {group.size()} members "
                "that it was made for have left or were lost: make it anew"
            )
        )
    return group.is_barred


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
