"""SharedState over NumPy arrays of any strides and byte order. Only layout is decided here.

Arrays that are contiguous and in native byte order are shared as they are. Others are packed before
each sync and written back when it has committed, so that on an error every array is as it was.
Everything else is pccl_py's: election, transfer, errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pccl_numpy.arrays import NUMPY, Array
from pccl_py import Group, InvalidArgument, Strategy, StrategyName, SyncOutcome
from pccl_py import SharedState as CoreState
from pccl_py.closing import Closing
from pccl_py.words import StateRules


class SharedState(Closing):
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
        own = may_differ if isinstance(may_differ, str) else list(may_differ)
        # Arrays of other layouts, and the packed ones that stand for them.
        self._packed: list[tuple[Array, Array]] = []
        shared = {key: self._share(key, array, key in own) for key, array in arrays.items()}
        self._state: CoreState = comm.shared_state(
            shared, name=name, revision=revision, may_differ=own, prefetch=prefetch, rules=rules
        )

    def _share(self, key: str, array: object, may_differ: bool) -> Array:
        try:
            checked = NUMPY.target(array, adds=False, only_read=True)
        except TypeError as refusal:
            raise TypeError(f"array {key!r}: {refusal}") from None
        if NUMPY.is_packed(checked):
            return checked
        if not may_differ and not checked.flags.writeable:
            raise InvalidArgument(
                f"array {key!r} is read-only, but may receive the content of others"
            )
        packed = NUMPY.empty(checked.shape, checked)
        if not may_differ:  # else its content counts for nothing
            self._packed.append((checked, packed))
        return packed

    @property
    def name(self) -> str:
        """The name of the state in its group."""
        return self._state.name

    @property
    def revision(self) -> int:
        """One more than the revision that the last committed sync elected."""
        return self._state.revision

    def sync(
        self,
        strategy: Strategy | StrategyName = Strategy.POPULAR,
        *,
        revision: int | None = None,
        deadline: float | None = None,
    ) -> SyncOutcome:
        """Makes the arrays equal on all members; see `pccl_py.SharedState.sync`."""
        for array, packed in self._packed:
            packed[...] = array
        outcome = self._state.sync(strategy, revision=revision, deadline=deadline)
        if outcome.leaves_moved + outcome.leaves_early > 0:
            for array, packed in self._packed:
                array[...] = packed
        return outcome

    def close(self) -> None:
        """Lets go of the arrays, which stay as they are. Idempotent."""
        self._state.close()

    def __repr__(self) -> str:
        return repr(self._state)


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
