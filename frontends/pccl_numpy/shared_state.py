"""SharedState over NumPy arrays of any strides and byte order.

Arrays that are contiguous and in native byte order are shared as they are, others by packed copies.
That, and sync, is the kit's (pccl_py/kit/shared_state.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pccl_numpy.arrays import NUMPY, Array
from pccl_py import Group
from pccl_py.kit import SharedState as KitState
from pccl_py.words import StateRules


class SharedState(KitState[Array]):
    """Named arrays that `sync` makes equal on all members; see `pccl_py.Group.shared_state`.

    Raises TypeError for anything but numpy.ndarray, or for a dtype that is not in `pccl_py.DType`,
    ValueError for a read-only array that is not among `may_differ`, and the errors of
    `Group.shared_state`. With `prefetch`, newcomers get a packed array as it was at the last sync.
    """

    def __init__(
        self,
        comm: Group,
        arrays: Mapping[str, Array],
        *,
        name: str = "state",
        revision: int = 0,
        may_differ: Iterable[str] = (),
        prefetch: bool = False,
        rules: StateRules = (),
    ) -> None:
        super().__init__(
            NUMPY,
            comm,
            arrays,
            name=name,
            revision=revision,
            may_differ=may_differ,
            prefetch=prefetch,
            rules=rules,
        )


def shared_state(
    comm: Group,
    arrays: Mapping[str, Array],
    *,
    name: str = "state",
    revision: int = 0,
    may_differ: Iterable[str] = (),
    prefetch: bool = False,
    rules: StateRules = (),
) -> SharedState:
    """Named arrays, of any strides, that `SharedState.sync` makes equal on all members."""
    return SharedState(
        comm,
        arrays,
        name=name,
        revision=revision,
        may_differ=may_differ,
        prefetch=prefetch,
        rules=rules,
    )
