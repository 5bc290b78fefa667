"""PCCL for NumPy: the collectives of a Communicator in NumPy's habits.

    import pccl_numpy as pnp

    mean = pnp.all_reduce(comm, gradients, op="avg")    # a new array
    pnp.all_reduce_(comm, gradients, op="avg")          # in place, of any strides
    mine = pnp.reduce_scatter(comm, gradients)          # this rank's rows of the sum
    whole = pnp.all_gather(comm, mine)                  # the rows of all ranks
    table = pnp.gather(comm, mine)                      # the rows of all ranks; on rank 0 alone
    mine = pnp.scatter(comm, table, out=mine)           # this rank's rows of rank 0's table
    theirs = pnp.all_to_all(comm, whole)                # this rank's rows of every rank's array
    pnp.send(comm, mine, dst=1)                         # rank 1 calls pnp.recv_(comm, mine, src=0)
    pnp.tree.all_reduce_(comm, {"w": w, "b": b})        # several arrays as one operation
    w, b = pnp.all_reduce_many(comm, [w, b])            # an operation each, retried if aborted
    state = pnp.shared_state(comm, {"weights": weights})    # arrays of any strides; state.sync()

A function whose name ends in an underscore writes into its argument; the others return new arrays.
All of them take arrays of any layout: an array that is not contiguous, or not in native byte order,
is packed, and its result unpacked. With `async_op=True` a function returns a Work, whose `wait`
returns the result. Functions that return arrays also take `return_outcome=True`. Errors, deadlines
and recovery are those of pccl_py.
"""

try:
    import numpy as _  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pccl_numpy needs NumPy: pip install 'pccl-py[numpy]', or numpy alone", name=error.name
    ) from error

from pccl_numpy import tree
from pccl_numpy.arrays import (
    SharedState,
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
    shared_state,
)

__all__ = [
    "SharedState",
    "all_gather",
    "all_gather_",
    "all_reduce",
    "all_reduce_",
    "all_reduce_many",
    "all_reduce_many_",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_",
    "gather",
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
