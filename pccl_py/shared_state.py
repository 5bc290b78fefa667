"""SharedState: named arrays that all members of a group want equal, and `sync`, which sees to it.

The native library decides who wins when they differ, what moves and what a loss does; a
SharedState holds the arrays. The rules are in docs/ALGORITHMS.md, what is promised in
docs/PROMISE.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pccl_py import _pccl, buffers
from pccl_py.closing import Closing
from pccl_py.errors import InvalidArgument, PcclError
from pccl_py.outcome import Origin, SyncOutcome
from pccl_py.words import Strategy, StrategyName, nanoseconds, parse_strategy, text, unsigned


class SharedState(Closing):
    """Made by `Group.shared_state`. Any thread may call any method; one sync at a time.

    `close`, or leaving the `with` block, lets go of the arrays; so does closing the group, after
    which the state is of no use.
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
        owners = []
        for key, array in tensors.items():
            try:
                buffer = buffers.readable(array) if key in own else buffers.writable(array)
            except (TypeError, InvalidArgument) as refusal:
                raise type(refusal)(f"tensor {key!r}: {refusal}") from None
            shape = (buffer.count,) if buffer.shape is None else buffer.shape
            flags = _pccl.TENSOR_MAY_DIFFER if key in own else 0
            given.append(
                (text(key, "the name of a tensor"), buffer.address, shape, buffer.dtype, flags)
            )
            owners.append(buffer.owner)
        self._name = text(name, "name")
        self._origin = origin
        self._native = _pccl.State.create(
            comm, self._name, given, unsigned(revision, "revision", 64), bool(prefetch), owners
        )

    @property
    def name(self) -> str:
        """The name of the state in its group."""
        return self._name

    @property
    def revision(self) -> int:
        """Number of committed syncs, counted from the revision given at creation."""
        return self._native.revision()

    def sync(
        self, strategy: Strategy | StrategyName = Strategy.POPULAR, *, deadline: float | None = None
    ) -> SyncOutcome:
        """Makes the arrays equal on all members, which must call it equally often. Blocks.

        If they differ, one content is elected and the others get it: see `Strategy`. Only differing
        leaves move, from all members that hold them. On any error the arrays and the revision are
        as they were. The call runs without the GIL; other threads must not write or read the arrays
        until it returns.

        Raises Mismatch if names, shapes or dtypes differ (the message lists how) or two peers
        insist on different contents (if one of them is new in the group, it raises there alone,
        and that peer is out of the group); StateUnavailable if no member holds content that may be
        taken; InDoubt if the coordinator was lost at the last moment (call it again: it makes this
        peer equal to the others); and the errors of `Group.all_reduce`. `deadline` is in
        seconds from now (default: the communicator's).
        """
        asked = parse_strategy(strategy), nanoseconds(deadline, "deadline")
        try:
            answer = self._native.sync(*asked)
        except PcclError as error:
            self._origin.mark(error)
            raise
        revision, epoch, sequence, attempts, sources, leaves, moved = answer[:7]
        bytes_sent, bytes_received, duration_ns, hash_ns, early = answer[7:]
        return SyncOutcome(
            revision=revision,
            epoch=epoch,
            sequence=sequence,
            attempts=attempts,
            sources=sources,
            leaves=leaves,
            leaves_moved=moved,
            leaves_early=early,
            bytes_sent=bytes_sent,
            bytes_received=bytes_received,
            duration=duration_ns / 1e9,
            hash_duration=hash_ns / 1e9,
        )

    def close(self) -> None:
        """Lets go of the arrays, which stay as they are. Idempotent.

        A sync on another thread is withdrawn, which leaves the group as `Work.cancel` does; it ends
        with Cancelled or InDoubt.
        """
        self._native.close()

    def __repr__(self) -> str:
        return f"<SharedState {self._name!r} revision {self.revision}>"


def _names(value: Iterable[str]) -> list[str]:
    if isinstance(value, str):
        raise TypeError("may_differ must be a collection of names, not one str")
    return list(value)
