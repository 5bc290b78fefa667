"""DiLoCo and related methods: training with rare exchanges, by workers that may join and fail.

    import pccl_train.torch

    with pccl_train.torch.DiLoCo(comm, [model], inner_optimizer, sync_every=50) as diloco:
        ...  # the loop as it was: each inner_optimizer.step() counts

`pccl_train.torch`, `pccl_train.jax` and `pccl_train.numpy` each have a `DiLoCo` for the parameters
of their framework, with the same settings (`Method`), outer optimizers and bytes on the network.
docs/guides/DILOCO.md compares the methods.
"""

from pccl_train.fragments import Tensor
from pccl_train.loop import Turn, steps
from pccl_train.method import Method
from pccl_train.outer import SGD, Adam, Nesterov
from pccl_train.privacy import Privacy
from pccl_train.rounds import Exchange, Replica, Rounds
from pccl_train.schedule import Schedule
from pccl_train.sparse import Sparse

__all__ = [
    "SGD",
    "Adam",
    "Exchange",
    "Method",
    "Nesterov",
    "Privacy",
    "Replica",
    "Rounds",
    "Schedule",
    "Sparse",
    "Tensor",
    "Turn",
    "steps",
]
