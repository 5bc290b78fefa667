"""PCCL for PyTorch: the collectives of a Communicator in PyTorch's habits.

    import pccl_torch as pt

    mean = pt.all_reduce(comm, loss, op="avg")          # a new tensor
    pt.all_reduce_(comm, p.grad, op="avg")              # in place, of any strides
    mine = pt.reduce_scatter(comm, gradients)           # this rank's rows of the sum
    whole = pt.all_gather(comm, mine)                   # the rows of all ranks
    table = pt.gather(comm, mine)                       # the rows of all ranks; on rank 0 alone
    mine = pt.scatter(comm, table, out=mine)            # this rank's rows of rank 0's table
    theirs = pt.all_to_all(comm, whole)                 # this rank's rows of every rank's tensor
    pt.send(comm, mine, dst=1)                          # rank 1 calls pt.recv_(comm, mine, src=0)
    pt.tree.all_reduce_(comm, {"w": w, "b": b})         # several tensors as one operation
    w, b = pt.all_reduce_many(comm, [w, b])             # an operation each, retried if aborted
    state = pt.shared_state(comm, model.state_dict())   # state.sync() makes all members equal
    y = pt.nn.all_reduce(comm, x)                       # with a gradient

A function whose name ends in an underscore writes into its argument; the others return new tensors.
All of them take CPU tensors of any strides; tensors.py lists the tensors that are refused, and the
errors. With `async_op=True` a function returns a Work, whose `wait` returns the result. Functions
that return tensors also take `return_outcome=True`. Errors, deadlines and recovery are pccl_py's.
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
    """The public names, for completion; imported modules are left out."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
