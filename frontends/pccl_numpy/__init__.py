"""PCCL for NumPy: the collectives of a Communicator in NumPy's habits.

    import pccl_numpy as pnp

    mean = pnp.all_reduce(comm, gradients, op="avg")    # a new array
    pnp.all_reduce_(comm, gradients, op="avg")          # in place, of any strides
    mine = pnp.reduce_scatter(comm, gradients)          # this rank's rows of the sum
    whole = pnp.all_gather(comm, mine)                  # the rows of all ranks
    table = pnp.gather(comm, mine)                      # the same on rank 0, None elsewhere
    mine = pnp.scatter(comm, table, out=mine)           # from rank 0, to each its rows
    theirs = pnp.all_to_all(comm, whole)                # this rank's rows of every rank's array
    pnp.send(comm, mine, dst=1)                         # rank 1 calls pnp.recv_(comm, mine, src=0)
    pnp.tree.all_reduce_(comm, {"w": w, "b": b})        # several arrays as one operation
    w, b = pnp.all_reduce_many(comm, [w, b])            # each as its own, repeated if aborted
    state = pnp.shared_state(comm, {"weights": weights})    # arrays of any strides; state.sync()

Functions without an underscore return new arrays; those with one write into their argument. Both
take arrays of any layout: those not contiguous, or not in native byte order, are packed and
unpacked here. With `async_op=True` each returns a Work, whose `wait` has the result; those that
return arrays also take `return_outcome=True`. Everything else is pccl_py's: errors, deadlines,
recovery.
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
