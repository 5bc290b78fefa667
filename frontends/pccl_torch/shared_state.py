"""SharedState over tensors of any strides, parameters and buffers of a model for example.

Contiguous tensors are shared in place, others through packed copies. The kit
(pccl_py/kit/shared_state.py) packs and syncs.
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

    A sync writes to parameters outside of autograd, and raises the version of each tensor that it
    has changed. A tensor must not be resized (`x.resize_`, or `resize_` of its storage) until the
    state is closed: PyTorch frees the old memory, and with `prefetch` newcomers may read that
    memory at any time. If a tensor was resized, or its memory was replaced (`x.data = y`), `sync`
    raises InvalidUsage. Raises the errors of tensors.py for what is not a CPU tensor, RuntimeError
    for an expanded tensor that is not among `may_differ`, and the errors of `Group.shared_state`.
    With `prefetch`, newcomers get a tensor that is not contiguous as it was at the last sync.
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

        First waits until earlier calls of the process group, whose CUDA tensors are still being
        copied, have begun. Raises InvalidUsage, too, if a tensor's memory was replaced.
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
