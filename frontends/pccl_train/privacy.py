"""Privacy: clips contributions, adds Gaussian noise, and computes the differential privacy of both.

An exchange is one Gaussian mechanism (Dwork and Roth 2014): a contribution's norm is at most
`clip`, and the noise in the sum of all contributions has a standard deviation of `noise` times
`clip`. Each worker adds its share of the noise itself, so no peer and no coordinator sees a sum
without noise: DP-FedAvg (arXiv 1710.06963) with distributed noise. The guarantee is for all data of
a worker as a unit. Google's dp_accounting computes the guarantee over many exchanges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pccl_py.errors import InvalidArgument
from pccl_train.outer import Vector


@dataclass(frozen=True, slots=True)
class Privacy:
    """`clip`: the greatest norm of a contribution. `noise`: the noise multiplier: the standard
    deviation of the noise in a sum, divided by `clip`. Raises InvalidArgument unless `clip` and
    `noise` are finite and above 0."""

    clip: float
    noise: float

    def __post_init__(self) -> None:
        for name, value in (("clip", self.clip), ("noise", self.noise)):
            if not (value > 0 and math.isfinite(value)):
                raise InvalidArgument(f"{name} must be a number above 0, not {value}")

    def epsilon(self, exchanges: int, delta: float = 1e-5) -> float:
        """The epsilon of (epsilon, delta) differential privacy for adding or removing a worker,
        after `exchanges` exchanges, counted for each fragment separately.

        The epsilon holds only if no member is lost: a lost member's share of the noise is missing.
        Needs dp-accounting (`pip install 'pccl-py[privacy]'`).
        """
        try:
            from dp_accounting import GaussianDpEvent
            from dp_accounting.rdp import RdpAccountant
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "the accountant needs dp-accounting: pip install 'pccl-py[privacy]'",
                name=error.name,
            ) from error
        accountant = RdpAccountant()
        accountant.compose(GaussianDpEvent(self.noise), exchanges)
        return float(accountant.get_epsilon(delta))

    def cover(
        self, gradient: Vector, norm: float, members: int, random: np.random.Generator
    ) -> None:
        """Clips `gradient`, whose norm is `norm`, and adds this worker's share of the noise in a
        sum over `members` contributions."""
        if norm > self.clip:
            gradient *= np.float32(self.clip / norm)
        part = self.noise * self.clip / math.sqrt(members)
        gradient += np.float32(part) * random.standard_normal(gradient.size, np.float32)
