"""Privacy: clipped contributions with Gaussian noise, and what an observer may learn from them.

A worker's whole contribution to an exchange is one Gaussian mechanism (Dwork and Roth 2014): its
norm is at most `clip`, and the sum of all contributions has noise of `noise` times `clip`. Each
worker adds its part of the noise itself, so no peer, and no coordinator, has a sum without noise;
this is DP-FedAvg (arXiv 1710.06963) with distributed noise. It protects the data of a worker as a
whole. Google's dp_accounting computes the guarantee over many exchanges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pccl_py.errors import InvalidArgument
from pccl_train.outer import Vector


@dataclass(frozen=True, slots=True)
class Privacy:
    """`clip`: the greatest norm of a contribution; `noise`: the noise multiplier, the standard
    deviation of the noise of a sum over `clip`. Raises InvalidArgument for numbers that cannot be.
    """

    clip: float
    noise: float

    def __post_init__(self) -> None:
        for name, value in (("clip", self.clip), ("noise", self.noise)):
            if not (value > 0 and math.isfinite(value)):
                raise InvalidArgument(f"{name} must be a number above 0, not {value}")

    def epsilon(self, exchanges: int, delta: float = 1e-5) -> float:
        """The epsilon of (epsilon, delta) differential privacy after so many exchanges, each of
        which is counted for each fragment, with a worker added or removed.

        It holds for members that are not lost: each one that is lost takes its part of the noise
        with it. Needs dp-accounting (`pip install 'pccl-py[privacy]'`).
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
        """Clips a contribution, and adds this worker's part of the noise of a sum of `members`."""
        if norm > self.clip:
            gradient *= np.float32(self.clip / norm)
        part = self.noise * self.clip / math.sqrt(members)
        gradient += np.float32(part) * random.standard_normal(gradient.size, np.float32)
