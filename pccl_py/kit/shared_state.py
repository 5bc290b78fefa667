"""SharedState over the arrays of a frontend, in any layout.

Packed arrays are shared themselves. An array that is not packed is copied into a packed array
before each sync, and back when the sync has committed, so that on an error every array keeps its
content. pccl_py/shared_state.py does everything else: election, transfer, errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic

from pccl_py.closing import Closing
from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument, InvalidUsage
from pccl_py.kit.frontend import ArrayType, Frontend
from pccl_py.outcome import SyncOutcome
from pccl_py.shared_state import SharedState as CoreState
from pccl_py.words import StateRules, Strategy, StrategyName


class SharedState(Closing, Generic[ArrayType]):
    """Named arrays that `sync` makes equal on all members; see `pccl_py.Group.shared_state`.

    Raises the frontend's error for a value that is no array of its library, or for a read-only
    array that is not among `may_differ`; and the errors of `Group.shared_state`. With `prefetch`,
    newcomers fetch an array that is not packed as it was at the last sync.
    """

    def __init__(
        self,
        frontend: Frontend[ArrayType],
        comm: Group,
        arrays: Mapping[str, Any],
        *,
        name: str = "state",
        revision: int = 0,
        may_differ: Iterable[str] = (),
        prefetch: bool = False,
        rules: StateRules = (),
    ) -> None:
        frontend.check_comm(comm)
        own = may_differ if isinstance(may_differ, str) else list(may_differ)
        self._frontend = frontend
        # Arrays that are not packed, each with the packed array that is shared in its place.
        self._packed: list[tuple[ArrayType, ArrayType]] = []
        # Arrays that are shared themselves: (name, array, its place in memory).
        self._plain: list[tuple[str, ArrayType, tuple[int, ...]]] = []
        shared = {key: self._share(key, array, key in own) for key, array in arrays.items()}
        self._state: CoreState = comm.shared_state(
            shared, name=name, revision=revision, may_differ=own, prefetch=prefetch, rules=rules
        )

    def _share(self, key: str, array: object, may_differ: bool) -> Any:
        frontend = self._frontend
        try:
            checked = frontend.shared(array, may_differ)
        except (TypeError, InvalidArgument, RuntimeError) as refusal:
            raise type(refusal)(f"array {key!r}: {refusal}") from None
        if frontend.is_packed(checked):
            self._plain.append((key, checked, frontend.place(checked)))
            return frontend.memory(checked)
        packed = frontend.empty(frontend.shape(checked), checked)
        if not may_differ:  # the content of a `may_differ` array is not synced
            self._packed.append((checked, packed))
        return frontend.memory(packed)

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
        """Makes the arrays equal on all members; see `pccl_py.SharedState.sync`.

        Also raises InvalidUsage if an array has moved in memory since the state was made.
        """
        frontend = self._frontend
        for key, array, place in self._plain:
            if frontend.place(array) != place:
                raise InvalidUsage(
                    f"array {key!r} is not where it was when the state was made: close the state, "
                    "and make it again"
                )
        for array, packed in self._packed:
            frontend.write(packed, array)
        outcome = self._state.sync(strategy, revision=revision, deadline=deadline)
        if outcome.leaves_moved + outcome.leaves_early > 0:
            for array, packed in self._packed:
                frontend.write(array, packed)
            for _, array, _ in self._plain:
                frontend.written(array)
        return outcome

    def close(self) -> None:
        """Releases the arrays, which keep their content. Idempotent."""
        self._state.close()

    def __repr__(self) -> str:
        return repr(self._state)
