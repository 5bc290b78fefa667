"""Models of FSDP2 whose shards lie on the members of a group, when those members change.

FSDP2 reads the size of its group at each call, and fits its buffers to the one it was made with: in
a smaller group it would hand out memory that nobody has written, and in one with other members the
shards of others. admit.py and mesh.py cut such models off from their group; the group goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torch.distributed import distributed_c10d

from pccl_py import PeerId
from pccl_torch.backend import ProcessGroupPccl

# Its types are those of C++, which describe neither subclasses nor what they may override.
c10d: Any = distributed_c10d

_GROUPS = ("shard_process_group", "reduce_scatter_process_group")


def cut_off(group: ProcessGroupPccl, peers: Sequence[PeerId], why: str) -> None:
    """Models that `fully_shard` has dealt out over these members of the group.

    Their forward and backward raise PeerLost(why) from now on. Their parameters are the shards of
    this process, as they were.
    """
    past: ProcessGroupPccl | None = None
    for info in _mesh_infos():
        for name in _GROUPS:
            if getattr(info, name, None) is not group:
                continue
            if past is None:
                past = group.past(peers, why)
                # Else it is no group to PyTorch, which names it in what it logs of the error.
                c10d._world.pg_map[past] = c10d._world.pg_map[group]
                c10d._world.pg_group_ranks[past] = _Anywhere(past.rank())
            setattr(info, name, past)


class _Anywhere(dict[int, int]):
    """The rank of this process in a group, whatever its rank in the default group is."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: int) -> int:
        return self._rank


def _mesh_infos() -> Iterator[Any]:
    """The groups that each model of FSDP2 in this process knows."""
    if "torch.distributed.fsdp" not in sys.modules:
        return
    from torch.distributed import _composable_state
    from torch.distributed.fsdp import FSDPModule

    for module, known in list(_composable_state._module_state_mapping.items()):
        state: Any = known()
        if state is None or not isinstance(module, FSDPModule):
            continue
        for params in state._fsdp_param_groups:
            yield params.mesh_info
            yield params.post_forward_mesh_info
