"""Models, meshes and DTensors that lie on the members of a group, when those members change.

They are cut for the members that the group had. FSDP2 reads the size of its group at each call, and
fits its buffers to the one it was made with: in a smaller group it would hand out memory that
nobody has written, and a norm of a DTensor would lack the shards of the lost. FSDP1 keeps the size
and divides by it. So they keep a group of the past, whose every call raises PeerLost; the group
itself goes on. backend.py and mesh.py call this.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from pccl_py import PeerId

if TYPE_CHECKING:
    from pccl_torch.backend import ProcessGroupPccl

# Its types are those of C++, which describe neither subclasses nor what they may override.
c10d: Any = distributed_c10d
# Its types do not have all that there is.
native: Any = _distributed_c10d

# The names that objects of FSDP2 and of FSDP1 have for their groups.
_GROUPS = (
    "shard_process_group",
    "reduce_scatter_process_group",
    "process_group",
    "_inter_node_pg",
)


def leave_behind(group: ProcessGroupPccl, peers: Sequence[PeerId], rank: int, event: str) -> None:
    """Everything that was made for these members of the group, among which this process had `rank`.

    Its calls raise PeerLost from now on, and tell of the `event`. Models of FSDP2 know the group
    itself. DeviceMesh, DTensors and compiled code know it by its name: that is the name of a group
    of the past now, and the group has a new one.
    """
    if group not in c10d._world.pg_map:  # PyTorch does not know it (torchft.py)
        return
    cut_off(
        group,
        peers,
        rank,
        f"{event}, and the shards of this model are on those from before: make the model anew with "
        "fully_shard or FullyShardedDataParallel, and load a checkpoint",
    )
    name = group.pg_name
    past = _past(
        group,
        peers,
        rank,
        f"{event}, and this DeviceMesh is made for those from before: make the mesh anew, and its "
        "DTensors, whose shards come from a checkpoint (code that was compiled with them is made "
        "anew after torch.compiler.reset())",
    )
    group.rename()
    c10d._world.pg_names[group] = group.pg_name
    native._unregister_process_group(name)
    native._register_process_group(name, past)
    native._register_process_group(group.pg_name, group)
    for mesh in _meshes(name):
        # Else it is equal to a new one of that shape, and DTensors of that could get to be on it.
        mesh._thread_id, mesh._hash = name, None


def cut_off(group: ProcessGroupPccl, peers: Sequence[PeerId], rank: int, why: str) -> None:
    """Models that `fully_shard` or FSDP1 has dealt out over these members of the group.

    Their forward and backward raise PeerLost(why) from now on. Their parameters are the shards of
    this process, as they were.
    """
    past: ProcessGroupPccl | None = None
    for holder in (*_mesh_infos(), *_states_of_fsdp1()):
        for name in _GROUPS:
            if getattr(holder, name, None) is not group:
                continue
            if past is None:
                past = _past(group, peers, rank, why)
            setattr(holder, name, past)


def _past(group: ProcessGroupPccl, peers: Sequence[PeerId], rank: int, why: str) -> Any:
    past = group.past(peers, rank, why)
    # Else it is no group to PyTorch, which names it in what it logs of the error.
    c10d._world.pg_map[past] = c10d._world.pg_map[group]
    c10d._world.pg_group_ranks[past] = _Anywhere(past.rank())
    return past


class _Anywhere(dict[int, int]):
    """The rank of this process in a group, whatever its rank in the default group is."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: int) -> int:
        return self._rank


def _meshes(name: str) -> Iterator[Any]:
    """Those that know a group by this name. A few may be missing, after gc.freeze()."""
    for one in gc.get_objects():
        if issubclass(type(one), DeviceMesh) and name in getattr(one, "_dim_group_names", ()):
            yield one


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


def _states_of_fsdp1() -> Iterator[Any]:
    """The objects that know the groups of models of FSDP1: these, their hooks and parameters."""
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    for one in () if kind is None else gc.get_objects():
        if issubclass(type(one), kind):
            own: Any = one
            yield from (own, own._handle, own._exec_order_data, own._comm_hook_state)
