"""The kit for frontends: a frontend describes its arrays by Frontend and gets all collectives.

    class NumPy(Frontend[NDArray[Any]]): ...        # shapes, packing, dtypes
    arrays: Functions[Single] = Functions(NumPy())
    all_reduce = arrays.all_reduce                  # with types and a docstring
    trees = Trees(NumPy())                          # the same for nested dicts and lists

functions.py has the collectives, frontend.py prepares arrays and flattens trees, shared_state.py
has shared states. pccl_py.rows computes the rows of a rank; pccl_py.call has options, and describes
them in docstrings. The kit imports no array library.
"""

from __future__ import annotations

from pccl_py.kit.frontend import Form, Frontend
from pccl_py.kit.functions import Functions, Single, Trees
from pccl_py.kit.shared_state import SharedState
from pccl_py.rows import Rows

__all__ = ["Form", "Frontend", "Functions", "Rows", "SharedState", "Single", "Trees"]
