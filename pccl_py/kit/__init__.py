"""The kit of frontends: each says of its arrays what Frontend asks, and has all collectives.

    class NumPy(Frontend[NDArray[Any]]): ...      # shapes, packing, dtypes
    NUMPY = NumPy()
    NUMPY.all_reduce(comm, one(x), None, options)   # behind a function with types and a docstring
    tree = Trees(NUMPY)                             # the same for nested dicts and lists

frontend.py has the collectives, rows.py which rows a rank has, trees.py trees. Options, and their
part of a docstring, are in pccl_py.options. No array library is imported here.
"""

from __future__ import annotations

from pccl_py.kit.frontend import Form, Frontend, one
from pccl_py.kit.rows import Rows
from pccl_py.kit.trees import Trees, flatten

__all__ = ["Form", "Frontend", "Rows", "Trees", "flatten", "one"]
