"""SharedState over tensors of any strides, parameters and buffers of a model for example.

Contiguous tensors are shared as they are, others by packed copies. That, and sync, is the kit's
(pccl_py/kit/shared_state.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from pccl_py import Group, Strategy, SyncOutcome
from pccl_py.kit import SharedState as KitState
from pccl_py.words import StateRules, StrategyName
from pccl_torch import staging
from pccl_torch.tensors import TORCH


class SharedState(KitState[Tensor]):
    """Named tensors that `sync` makes equal on all members; see `pccl_py.Group.shared_state`.

    Parameters are taken as they are: a sync writes to them outside of autograd. It raises their
    versions where something has moved. A tensor must not be resized (`x.resize_`, or `resize_` of
    its storage) until the state is closed: PyTorch frees the old memory, and with `prefetch`
    newcomers may read it at any time. If it was resized, or its memory was replaced (`x.data = y`),
    `sync` raises InvalidUsage. Raises the errors of tensors.py for what is not a tensor of the CPU,
    RuntimeError for an expanded one that is not among `may_differ`, and the errors of
    `Group.shared_state`. With `prefetch`, newcomers get a tensor that is not contiguous as it was
    at the last sync.
    """

    def __init__(
        self,
        comm: Group,
        tensors: Mapping[str, Tensor],
        *,
        name: str = "state",
        revision: int = 0,
        may_differ: Iterable[str] = (),
        prefetch: bool = False,
        rules: StateRules = (),
    ) -> None:
        super().__init__(
            TORCH,
            comm,
            tensors,
            name=name,
            revision=revision,
            may_differ=may_differ,
            prefetch=prefetch,
            rules=rules,
        )
        self._comm = comm

    def sync(
        self,
        strategy: Strategy | StrategyName = Strategy.POPULAR,
        *,
        revision: int | None = None,
        deadline: float | None = None,
    ) -> SyncOutcome:
        """Makes the tensors equal on all members; see `pccl_py.SharedState.sync`.

        In the group of a process group it comes after the calls before it whose tensors of CUDA are
        still copied. Raises InvalidUsage, too, if a tensor has been given other memory since.
        """
        staging.drain_of(self._comm)
        return super().sync(strategy, revision=revision, deadline=deadline)


def shared_state(
    comm: Group,
    tensors: Mapping[str, Tensor],
    *,
    name: str = "state",
    revision: int = 0,
    may_differ: Iterable[str] = (),
    prefetch: bool = False,
    rules: StateRules = (),
) -> SharedState:
    """Named tensors, of any strides, that `SharedState.sync` makes equal on all members."""
    return SharedState(
        comm,
        tensors,
        name=name,
        revision=revision,
        may_differ=may_differ,
        prefetch=prefetch,
        rules=rules,
    )
