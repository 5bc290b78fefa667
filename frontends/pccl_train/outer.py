"""Outer: the parameters that all workers share, and the outer optimizer that updates them.

The outer parameters of a fragment and the moments of its optimizer are f32 in host memory. The
native library's kernels update them (kernels/outer.zig), so workers on every CPU and with every
framework have the same bytes after each step. Nesterov's momentum (Sutskever et al. 2013) has
PyTorch's form; defaults are those of DiLoCo (arXiv 2311.08105).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pccl_py import _pccl, buffers
from pccl_py.errors import InvalidArgument

Vector: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SGD:
    """outer -= learning_rate * g, with g the averaged pseudo-gradient."""

    learning_rate: float = 1.0

    rule = 0
    moments = 0

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)

    def _numbers(self) -> tuple[float, float, float, float, float]:
        return self.learning_rate, 0.0, 0.0, 0.0, 0.0


@dataclass(frozen=True, slots=True)
class Nesterov:
    """v = momentum * v + g;  outer -= learning_rate * (g + momentum * v)."""

    learning_rate: float = 0.7
    momentum: float = 0.9

    rule = 1
    moments = 1

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)
        _check_decay(self.momentum, "momentum")

    def _numbers(self) -> tuple[float, float, float, float, float]:
        return self.learning_rate, self.momentum, 0.0, 0.0, 0.0


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (arXiv 1412.6980) on the averaged pseudo-gradients; called FedAdam in FedOpt."""

    learning_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8

    rule = 2
    moments = 2

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)
        _check_decay(self.beta1, "beta1")
        _check_decay(self.beta2, "beta2")
        if not (self.epsilon >= 0 and math.isfinite(self.epsilon)):
            raise InvalidArgument(f"epsilon must be 0 or more, not {self.epsilon}")

    def _numbers(self) -> tuple[float, float, float, float, float]:
        return self.learning_rate, 0.0, self.beta1, self.beta2, self.epsilon


OuterOptimizer: TypeAlias = SGD | Nesterov | Adam

_BY_NAME: dict[str, type[OuterOptimizer]] = {"sgd": SGD, "nesterov": Nesterov, "adam": Adam}


def parse_outer(value: OuterOptimizer | str) -> OuterOptimizer:
    """Returns `value` if it is an outer optimizer, else the one of this name with defaults."""
    if isinstance(value, (SGD, Nesterov, Adam)):
        return value
    if value not in _BY_NAME:
        raise InvalidArgument(
            f"outer must be SGD, Nesterov or Adam, or one of {', '.join(map(repr, _BY_NAME))}, not "
            f"{value!r}"
        )
    return _BY_NAME[value]()


class Outer:
    """The outer parameters of one fragment, and the moments and step count of the outer optimizer.

    `parameters` and each of the `moments` are vectors of `size` f32; `steps` is one i64, an array.
    """

    def __init__(self, size: int, optimizer: OuterOptimizer) -> None:
        self.optimizer = optimizer
        self.parameters: Vector = np.zeros(size, np.float32)
        self.moments: list[Vector] = [np.zeros(size, np.float32) for _ in range(optimizer.moments)]
        self.steps: NDArray[np.int64] = np.zeros(1, np.int64)

    def step(self, gradient: Vector, scales: Sequence[tuple[slice, float]]) -> None:
        """Takes one optimizer step. `scales` has the slices of `gradient` to apply, each with its
        factor; parameters outside of these slices do not change."""
        self.steps += 1
        for part, scale in scales:
            moments = [moment[part] for moment in self.moments]
            advance(
                self.optimizer, self.parameters[part], moments, gradient[part], scale, self.steps[0]
            )


def advance(
    optimizer: OuterOptimizer,
    parameters: Vector,
    moments: Sequence[Vector],
    gradient: Vector,
    scale: float,
    step: int,
) -> None:
    """Updates `parameters` and `moments` by one step with `scale` times `gradient`."""
    if not parameters.size:
        return
    first, second = [*map(address, moments), 0, 0][:2]
    _pccl.outer_step(
        address(parameters),
        first,
        second,
        address(gradient),
        parameters.size,
        optimizer.rule,
        *optimizer._numbers(),
        scale,
        int(step),
    )


def difference(outer: Vector, parameters: Any, out: Vector) -> float:
    """Sets `out` to outer - parameters, and returns the sum of squares of `out`, which is infinite
    or NaN if an element is. `parameters`: any contiguous array of a float dtype on the CPU."""
    own = buffers.readable(parameters)
    _check_count(own, outer)
    return _pccl.outer_difference(
        address(outer), own.address, int(own.dtype), own.count, address(out)
    )


def mix(parameters: Any, outer: Vector, alpha: float) -> None:
    """Sets `parameters` to alpha * parameters + (1 - alpha) * outer, in place."""
    own = buffers.writable(parameters)
    _check_count(own, outer)
    _pccl.outer_mix(own.address, int(own.dtype), address(outer), own.count, alpha)


def address(array: NDArray[Any]) -> int:
    """The address of a contiguous array's memory."""
    return buffers.readable(array).address


def _check_count(own: buffers.Buffer, outer: Vector) -> None:
    if own.count != outer.size:
        raise InvalidArgument(f"parameters has {own.count} elements, outer has {outer.size}")


def _check_rate(value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise InvalidArgument(f"learning_rate must be a number of 0 or more, not {value}")


def _check_decay(value: float, name: str) -> None:
    if not 0 <= value < 1:
        raise InvalidArgument(f"{name} must be 0 or more and below 1, not {value}")
