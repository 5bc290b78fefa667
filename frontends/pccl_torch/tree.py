"""Trees of tensors as one operation: what a model's parameters or gradients usually are.

    import pccl_torch as pt

    gradients = {name: p.grad for name, p in model.named_parameters()}
    pt.tree.all_reduce_(comm, gradients, op="avg", codec="int8")    # in place
    mean = pt.tree.all_reduce(comm, {"w": w, "b": [b0, b1]}, op="avg")    # a new tree

A tree is a dict, list, tuple or named tuple of trees, None, or a tensor; a dict's values are taken
in the order of its keys. All tensors of a tree are one operation, which succeeds or fails for all
of them. `flatten` of pccl_py.kit says more about trees.
"""

from __future__ import annotations

from pccl_py.kit import Trees
from pccl_torch.tensors import TORCH

_trees = Trees(TORCH)
all_reduce = _trees.all_reduce
all_reduce_ = _trees.all_reduce_
all_reduce_many = _trees.all_reduce_many
all_reduce_many_ = _trees.all_reduce_many_
reduce = _trees.reduce
reduce_ = _trees.reduce_
broadcast = _trees.broadcast
broadcast_ = _trees.broadcast_
reduce_scatter = _trees.reduce_scatter
all_gather = _trees.all_gather
scatter = _trees.scatter
gather = _trees.gather
all_to_all = _trees.all_to_all
