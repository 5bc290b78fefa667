"""The part of ElasticState that begins before a process enters its group: newcomers fetch ahead.

A shared state with `prefetch` is fetched in the background if it is made between connecting and
entering, with the names and shapes that the members have. So start.py tells `connected` of a
connection, which asks the states that wait for one to begin; and `entries_to_come` says what an
optimizer will keep before it has made a step, which all members share from the beginning. When it
is fetched: docs/internals/ALGORITHMS.md. If names or shapes differ nothing is fetched ahead, and
the first sync brings all of it.
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
    """Has `state.begin_to_fetch` called for each default group, before it is entered."""
    _waiting.add(state)


def connected(group: Group) -> None:
    """This process will enter `group`, the default one, and has not yet."""
    for state in list(_waiting):
        state.begin_to_fetch(group)


def entries_to_come(
    optimizer: Optimizer | None, parameters: list[Tensor]
) -> Iterator[tuple[int, str, Tensor | float]]:
    """The state that the optimizer's first step makes of each parameter, without its content.

    A copy of it makes a step on parameters without memory. Nothing, if it has state already, or if
    it cannot make such a step.
    """
    if optimizer is None or optimizer.state:
        return
    twins = {id(each): _twin(each) for each in parameters}
    try:
        twin: Any = copy.deepcopy(optimizer, dict[int, Any](twins))
        step: Callable[[], object] = twin.step
        step()
    except Exception as error:  # noqa: BLE001  optimizers are others' code
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
