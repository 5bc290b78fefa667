"""Another backend beside ours in one group: `dist.init_process_group("cpu:pccl,cuda:nccl")`.

PyTorch gives a process group one backend for each kind of device; but one that is written in Python
is taken for the whole group, and the others are dropped (`_new_process_group_helper`). So our group
holds a group of the other backend, made by its first call with tensors of that kind of device, and
hands such calls on. It ends where all groups do, in `dist.destroy_process_group()`. staging.py asks
here, before it takes tensors of a device itself.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch.distributed
from torch import Tensor
from torch.distributed import distributed_c10d

from pccl_py import InvalidUsage

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed
c10d: Any = distributed_c10d

_NONE = "pccl"


class Beside:
    """The other backends of one group, by kinds of devices."""

    def __init__(self, group: Any) -> None:
        self._group = weakref.ref(group)
        self._lock = threading.Lock()
        # PyTorch tells only after the group is made. None: it has not been asked.
        self._names: dict[str, str] | None = None
        self._made: dict[str, Any] = {}
        self._ranks: list[int] = []

    def of(self, x: Tensor) -> Any:
        """The group that is to be called for tensors like `x`; None: ours.

        The first call makes it, and so do all members by theirs. Raises InvalidUsage if members
        have come or gone since: other backends have no `pccl_torch.admit()`.
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
                # Called by members alone, whatever other groups this process has made.
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
    """Whether the group has another backend than ours for some kind of device."""
    return bool(_names_of(group))


def _names_of(group: Any) -> dict[str, str]:
    """Backends by kinds of devices, if there is another one than ours."""
    told: str = c10d._world.pg_backend_config.get(group, "")
    names = dict(part.split(":", 1) for part in told.split(",") if ":" in part)
    return names if set(names.values()) - {_NONE} else {}
