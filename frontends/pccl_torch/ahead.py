"""A newcomer fetches its ElasticState with `prefetch` before it enters the group.

A shared state is fetched in the background (docs/internals/ALGORITHMS.md) if the newcomer makes it
after connecting and before entering, with the names and shapes that the members have. So start.py
calls `connected` after each connection, which lets the waiting ElasticStates begin. And
`entries_to_come` predicts the state that an optimizer's first step makes, because all members share
that state from the beginning. If names or shapes differ, the newcomer fetches nothing ahead, and
its first sync transfers the whole state.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pccl_py import Group

log = logging.getLogger("pccl.torch")

_waiting: weakref.WeakSet[Any] = weakref.WeakSet()


def await_connection(state: Any) -> None:
    """Makes `connected` call `state.begin_to_fetch` for each later default group."""
    _waiting.add(state)


def connected(group: Group) -> None:
    """Starts the waiting fetches: this process is connected to the default `group`, and outside."""
    for state in list(_waiting):
        state.begin_to_fetch(group)


def entries_to_come(
    optimizer: Optimizer | None, parameters: list[Tensor]
) -> Iterator[tuple[int, str, Tensor | float]]:
    """The state that the optimizer's first step makes: place of the parameter, key, value.

    A copy of the optimizer makes a step on parameters without memory, so values have no content.
    Yields nothing if the optimizer already has state, or if that step fails.
    """
    if optimizer is None or optimizer.state:
        return
    twins = {id(each): _twin(each) for each in parameters}
    try:
        twin: Any = copy.deepcopy(optimizer, dict[int, Any](twins))
        step: Callable[[], object] = twin.step
        step()
    except Exception as error:  # noqa: BLE001  an optimizer may raise anything
        log.info(
            "the state of %s is not known before its first step (%s: %s): a newcomer fetches "
            "nothing ahead",
            type(optimizer).__name__,
            type(error).__name__,
            error,
        )
        return
    for place, parameter in enumerate(parameters):
        for key, value in twin.state.get(twins[id(parameter)], {}).items():
            if isinstance(value, Tensor | int | float):
                yield place, str(key), value


def _twin(parameter: Tensor) -> Tensor:
    made = nn.Parameter(
        torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"),
        requires_grad=parameter.requires_grad,
    )
    if parameter.requires_grad:
        made.grad = torch.empty_like(made)
    return made
