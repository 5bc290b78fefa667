"""PCCL for PyTorch: the collectives of a Communicator in PyTorch's habits.

    import pccl_torch as pt

    mean = pt.all_reduce(comm, loss, op="avg")          # a new tensor
    pt.all_reduce_(comm, p.grad, op="avg")              # in place, of any strides
    mine = pt.reduce_scatter(comm, gradients)           # this rank's rows of the sum
    whole = pt.all_gather(comm, mine)                   # the rows of all ranks
    table = pt.gather(comm, mine)                       # the same on rank 0, None elsewhere
    mine = pt.scatter(comm, table, out=mine)            # from rank 0, to each its rows
    theirs = pt.all_to_all(comm, whole)                 # this rank's rows of every rank's tensor
    pt.send(comm, mine, dst=1)                          # rank 1 calls pt.recv_(comm, mine, src=0)
    pt.tree.all_reduce_(comm, {"w": w, "b": b})         # several tensors as one operation
    w, b = pt.all_reduce_many(comm, [w, b])             # each as its own, repeated if aborted
    state = pt.shared_state(comm, model.state_dict())   # state.sync() makes all members equal
    y = pt.nn.all_reduce(comm, x)                       # with a gradient

Functions without an underscore return new tensors; those with one write into their argument. Both
take tensors of the CPU, of any strides: tensors.py says which are refused, and how. With
`async_op=True` each returns a Work, whose `wait` has the result; those that return tensors also
take `return_outcome=True`. Everything else is pccl_py's: errors, deadlines, recovery.
"""

try:
    import torch as _  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pccl_torch needs PyTorch: pip install 'pccl-py[torch]', or torch alone", name=error.name
    ) from error

from pccl_torch_entry import register

from pccl_torch import nn, tree
from pccl_torch.backend import ProcessGroupPccl
from pccl_torch.ddp import AverageHook, average_hook
from pccl_torch.elastic import ElasticState
from pccl_torch.errors import PeerLost, last_error
from pccl_torch.functions import (
    all_gather,
    all_gather_,
    all_reduce,
    all_reduce_,
    all_reduce_many,
    all_reduce_many_,
    all_to_all,
    barrier,
    broadcast,
    broadcast_,
    gather,
    recv,
    recv_,
    reduce,
    reduce_,
    reduce_scatter,
    reduce_scatter_,
    scatter,
    send,
)
from pccl_torch.mesh import Hsdp
from pccl_torch.options import Options
from pccl_torch.shared_state import SharedState, shared_state
from pccl_torch.start import Admission, admit

__all__ = [
    "Admission",
    "AverageHook",
    "ElasticState",
    "Hsdp",
    "Options",
    "PeerLost",
    "ProcessGroupPccl",
    "SharedState",
    "admit",
    "all_gather",
    "all_gather_",
    "all_reduce",
    "all_reduce_",
    "all_reduce_many",
    "all_reduce_many_",
    "all_to_all",
    "average_hook",
    "barrier",
    "broadcast",
    "broadcast_",
    "gather",
    "last_error",
    "nn",
    "recv",
    "recv_",
    "reduce",
    "reduce_",
    "reduce_scatter",
    "reduce_scatter_",
    "scatter",
    "send",
    "shared_state",
    "tree",
]

register()


def __dir__() -> list[str]:
    """For completion: public names, and none of the modules that happen to be imported."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
