"""Another backend beside pccl in one group: `dist.init_process_group("cpu:pccl,cuda:nccl")`.

PyTorch gives a process group one backend for each kind of device. But it takes a backend written in
Python for the whole group, and drops the other backends (`_new_process_group_helper`). So a group
of pccl holds a group of the other backend, and passes calls with that kind of device on to it. The
first such call makes the other group, and `dist.destroy_process_group()` ends it. staging.py asks
`Beside.of` before it copies tensors of a device.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch.distributed
from torch import Tensor
from torch.distributed import distributed_c10d

from pccl_py import InvalidUsage

# The stubs of torch.distributed describe C++ types, without subclasses and their overrides.
dist: Any = torch.distributed
c10d: Any = distributed_c10d

_NONE = "pccl"


class Beside:
    """The groups of other backends that one group of pccl holds, by kind of device."""

    def __init__(self, group: Any) -> None:
        self._group = weakref.ref(group)
        self._lock = threading.Lock()
        # Backends by kind of device; None until the first call, as PyTorch knows them only then.
        self._names: dict[str, str] | None = None
        self._made: dict[str, Any] = {}
        self._ranks: list[int] = []

    def of(self, x: Tensor) -> Any:
        """The other backend's group that takes tensors on the device of `x`; None: pccl takes them.

        The first call makes that group, together with the first calls of all other members. Raises
        InvalidUsage if members have come or gone since: other backends cannot change members.
        """
        names = self._names
        if names is None:
            names = self._names = _names_of(self._group())
        if not names:
            return None
        name = names.get(x.device.type, _NONE)
        return None if name == _NONE else self._held(name)

    def _held(self, name: str) -> Any:
        group = self._group()
        ranks = dist.get_process_group_ranks(group)
        with self._lock:
            if name not in self._made:
                # Local: only members call it, and processes may have made other groups before.
                self._made[name] = dist.new_group(
                    ranks, backend=name, use_local_synchronization=True
                )
                self._ranks = ranks
        if ranks != self._ranks:
            raise InvalidUsage(
                f"the members of the group have changed, and those of its {name} cannot: for "
                "groups whose members come and go, name pccl alone, as in "
                'new_group(backend="pccl")'
            )
        return self._made[name]


def has_other_backends(group: Any) -> bool:
    """Whether the group has a backend other than pccl for some kind of device."""
    return bool(_names_of(group))


def _names_of(group: Any) -> dict[str, str]:
    """Names of backends by kind of device; empty if pccl is the only backend."""
    told: str = c10d._world.pg_backend_config.get(group, "")
    names = dict(part.split(":", 1) for part in told.split(",") if ":" in part)
    return names if set(names.values()) - {_NONE} else {}
