"""SharedState: named arrays of a group, and `sync`, which makes them equal on all members.

The native library decides which content is elected, what moves and what a loss does; a SharedState
holds the arrays. docs/internals/ALGORITHMS.md has the rules, docs/internals/PROMISE.md the
promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import compress

from pccl_py import _pccl, buffers
from pccl_py.closing import Closing
from pccl_py.errors import InvalidArgument, PcclError
from pccl_py.outcome import Origin, SyncOutcome
from pccl_py.words import (
    PeerId,
    StateRules,
    Strategy,
    StrategyName,
    nanoseconds,
    parse_rules,
    parse_strategy,
    text,
    unsigned,
)


class SharedState(Closing):
    """Named arrays of a group that `sync` makes equal on all members; see `Group.shared_state`.

    Any thread may call any method, but one sync at a time. `close`, or leaving the `with` block,
    releases the arrays. Closing the group releases the arrays, too, and the state cannot be used
    any more.
    """

    def __init__(
        self,
        comm: _pccl.Comm,
        origin: Origin,
        tensors: Mapping[str, buffers.Array],
        name: str,
        revision: int,
        may_differ: Iterable[str],
        prefetch: bool,
        rules: StateRules,
    ) -> None:
        if not isinstance(tensors, Mapping):
            raise TypeError(f"tensors must map names to arrays, not be {type(tensors).__name__}")
        if not tensors:
            raise InvalidArgument(
                "tensors is empty, so there is nothing to make equal: name at least one array"
            )
        own = {text(tensor, "may_differ") for tensor in _names(may_differ)}
        unknown = sorted(own.difference(tensors))
        if unknown:
            raise InvalidArgument(
                f"may_differ names {unknown[0]!r}, which is not among the tensors"
            )
        given: list[tuple[str, int, tuple[int, ...], int, int]] = []
        owners: list[object] = []
        for key, array in tensors.items():
            try:
                buffer = buffers.readable(array) if key in own else buffers.writable(array)
            except (TypeError, InvalidArgument) as refusal:
                raise type(refusal)(f"tensor {key!r}: {refusal}") from None
            shape = (buffer.count,) if buffer.shape is None else buffer.shape
            flags = _pccl.TENSOR_MAY_DIFFER if key in own else 0
            given.append((_name_of(key, buffer), buffer.address, shape, buffer.dtype, flags))
            owners.append(buffer.owner)
        self._name = text(name, "name")
        self._origin = origin
        flags = parse_rules(rules) | (_pccl.STATE_PREFETCH if prefetch else 0)
        self._native = _pccl.State.create(
            comm, self._name, given, unsigned(revision, "revision", 64), flags, owners
        )

    @property
    def name(self) -> str:
        """The name of the state in its group."""
        return self._name

    @property
    def revision(self) -> int:
        """One more than the revision that the last committed sync elected.

        Before the first sync the revision is the one given at creation. The revision counts syncs,
        unless a sync is given a `revision`.
        """
        return self._native.revision()

    def sync(
        self,
        strategy: Strategy | StrategyName = Strategy.POPULAR,
        *,
        revision: int | None = None,
        deadline: float | None = None,
    ) -> SyncOutcome:
        """Makes the arrays equal on all members, which must call `sync` equally often. Blocks.

        If the arrays differ, one content is elected, and members with another content fetch it: see
        `Strategy`. Only leaves that differ move, from all members that hold the elected ones. On
        any error the arrays and the revision stay unchanged. The call runs without the GIL; other
        threads must not write or read the arrays until it returns. `revision`: the revision of this
        peer's content in this call (default: `self.revision`).

        Raises Mismatch if names, shapes or dtypes differ (the message lists the differences; it has
        bool, floats of eight bits and complex dtypes behind the name), if two peers insist on
        different contents, or if a rule of the state is broken. If a peer that differs is new in
        the group, or by the rule "refuse", only that peer gets Mismatch, and it is out of the
        group. Raises StateUnavailable if no member holds content that may be elected; InDoubt if
        the coordinator was lost before this peer knew its decision (call `sync` again, which makes
        this peer equal to the other members); and the errors of `Group.all_reduce`. `deadline` is
        in seconds from now (default: the communicator's).
        """
        asked = (
            parse_strategy(strategy),
            None if revision is None else unsigned(revision, "revision", 64),
            nanoseconds(deadline, "deadline"),
        )
        try:
            numbers, leaves, sizes, durations, peers, held = self._native.sync(*asked)
        except PcclError as error:
            self._origin.mark(error)
            raise
        contributors = tuple(map(PeerId, peers))
        return SyncOutcome(
            *numbers,
            *leaves,
            *sizes,
            duration=durations[0] / 1e9,
            hash_duration=durations[1] / 1e9,
            contributors=contributors,
            holders=tuple(compress(contributors, held)),
            roster=self._origin.rosters.of(numbers[2]),
        )

    def close(self) -> None:
        """Releases the arrays, which keep their content. Idempotent.

        A sync on another thread is withdrawn, which takes this peer out of the group as
        `Work.cancel` does; the sync ends with Cancelled or InDoubt.
        """
        self._native.close()

    def __repr__(self) -> str:
        return f"<SharedState {self._name!r} revision {self.revision}>"


def _name_of(key: str, buffer: buffers.Buffer) -> str:
    """The name that members compare: that of the tensor, and a kind that is no native dtype."""
    name = text(key, "the name of a tensor")
    return f"{name} ({buffer.kind})" if buffer.has_own_kind else name


def _names(value: Iterable[str]) -> list[str]:
    if isinstance(value, str):
        raise TypeError("may_differ must be a collection of names, not one str")
    return list(value)
