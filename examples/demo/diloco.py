"""DiLoCo: how peers that talk rarely train one model.

It owns the two optimisers and their state; who averages the pseudo-gradients in between is
`peer.py`'s matter.

DiLoCo is Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
(arXiv 2311.08105). Each peer starts a round from the shared parameters, takes H steps of AdamW
(Loshchilov and Hutter, arXiv 1711.05101) on its own text, and calls the way it came back its
pseudo-gradient. The average of these over the peers is the gradient of one step of SGD with
Nesterov momentum (in the form of Sutskever et al., 2013), with the paper's learning rate of 0.7 and
momentum of 0.9. AdamW's state stays with its peer; the outer momentum, like the parameters, is the
same on all peers, because all feed it the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from examples.demo.model import Floats


@dataclass
class AdamW:
    """The inner optimiser. State: two moments per parameter, and the number of steps taken."""

    size: int
    learning_rate: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    steps: int = 0
    mean: Floats = field(init=False, repr=False)
    square: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.mean = np.zeros(self.size, np.float32)
        self.square = np.zeros(self.size, np.float32)

    def step(self, parameters: Floats, gradient: Floats, schedule: float = 1.0) -> None:
        """Moves `parameters` in place by one step of `schedule` times the learning rate."""
        self.steps += 1
        self.mean += (1 - self.beta1) * (gradient - self.mean)
        self.square += (1 - self.beta2) * (gradient * gradient - self.square)
        # Both moments start at zero; dividing by these takes out the bias towards it.
        mean_weight = 1 - self.beta1**self.steps
        square_weight = 1 - self.beta2**self.steps
        direction = (self.mean / mean_weight) / (
            np.sqrt(self.square / square_weight) + self.epsilon
        )
        rate = schedule * self.learning_rate
        parameters *= 1 - rate * self.weight_decay
        parameters -= rate * direction


@dataclass
class OuterNesterov:
    """The outer optimiser. State: the momentum, which a newcomer must be given too."""

    size: int
    learning_rate: float = 0.7
    momentum_decay: float = 0.9
    momentum: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.momentum = np.zeros(self.size, np.float32)

    def step(self, parameters: Floats, pseudo_gradient: Floats) -> None:
        """Moves the shared `parameters` in place. Equal inputs give equal bits."""
        self.momentum *= np.float32(self.momentum_decay)
        self.momentum += pseudo_gradient
        look_ahead = pseudo_gradient + np.float32(self.momentum_decay) * self.momentum
        parameters -= np.float32(self.learning_rate) * look_ahead
