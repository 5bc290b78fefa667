"""The kit of frontends: each describes its arrays to Frontend, and gets all collectives.

    class NumPy(Frontend[NDArray[Any]]): ...        # shapes, packing, dtypes
    arrays: Functions[Single] = Functions(NumPy())
    all_reduce = arrays.all_reduce                  # with types and a docstring
    trees = Trees(NumPy())                          # the same for nested dicts and lists

functions.py has them, frontend.py how their arrays are prepared and what a tree is, shared_state.py
states. Which rows a rank has is in pccl_py.rows, options and their part of a docstring in
pccl_py.call. No array library is imported here.
"""

from __future__ import annotations

from pccl_py.kit.frontend import Form, Frontend
from pccl_py.kit.functions import Functions, Single, Trees
from pccl_py.kit.shared_state import SharedState
from pccl_py.rows import Rows

__all__ = ["Form", "Frontend", "Functions", "Rows", "SharedState", "Single", "Trees"]
