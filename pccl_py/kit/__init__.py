"""The kit of frontends: each describes its arrays to Frontend, and gets all collectives.

    class NumPy(Frontend[NDArray[Any]]): ...        # shapes, packing, dtypes
    arrays: Functions[Single] = Functions(NumPy(), one)
    all_reduce = arrays.all_reduce                  # with types and a docstring
    trees: Functions[Any] = Functions(NumPy(), flatten)   # the same for nested dicts and lists

functions.py has their types and docstrings, frontend.py what they do, rows.py which rows a rank
has, trees.py trees. Options, and their part of a docstring, are in pccl_py.options. No array
library is imported here.
"""

from __future__ import annotations

from pccl_py.kit.frontend import Form, Frontend, one
from pccl_py.kit.functions import Functions, Single
from pccl_py.kit.rows import Rows
from pccl_py.kit.trees import flatten

__all__ = ["Form", "Frontend", "Functions", "Rows", "Single", "flatten", "one"]
