"""SharedState over the arrays of a frontend. Only layout is decided here.

Packed arrays are shared as they are. Others are packed before each sync and written back when it
has committed, so that on an error every array is as it was. Everything else is pccl_py's:
election, transfer, errors (pccl_py/shared_state.py).
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

    Raises what the frontend raises for what is no array of its own, or one that must not be
    written, unless it is among `may_differ`; and the errors of `Group.shared_state`. With
    `prefetch`, newcomers get an array that is packed for a sync as it was at the last one.
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
        # Arrays of other layouts, and the packed ones that stand for them.
        self._packed: list[tuple[ArrayType, ArrayType]] = []
        # Arrays that are shared as they are, by their names, and where they are.
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
        if not may_differ:  # else its content counts for nothing
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

        Raises InvalidUsage, too, if an array has been given other memory since the state was made.
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
        """Lets go of the arrays, which stay as they are. Idempotent."""
        self._state.close()

    def __repr__(self) -> str:
        return repr(self._state)
