"""Error classes, one for each status of include/pccl.h.

The native library writes the message of an error (pccl_last_error): which peer, what was expected,
what to do. Arguments that Python checks raise the same classes, but a wrong dtype or byte order
raises a plain TypeError. docs/internals/PROMISE.md says what holds after each error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pccl_py import _pccl

if TYPE_CHECKING:
    from pccl_py.outcome import Origin
    from pccl_py.work import Work


class PcclError(Exception):
    """Base of every error of PCCL.

    `work` is the operation that has failed, if it had begun; `works` has the last operation of each
    array of an `all_reduce_many`, None for an array whose operation never began. `operation` and
    `group` are the names of the call and of its group, "all_reduce" and "default" for example; both
    are None if the error does not come from an operation, a sync or a safe point.
    """

    work: Work[Any] | None = None
    works: tuple[Work[Any] | None, ...] = ()
    _origin: Origin | None = None

    @property
    def operation(self) -> str | None:
        """The name of the call that has failed in a group."""
        return None if self._origin is None else self._origin.operation

    @property
    def group(self) -> str | None:
        """The name of the group in which the call has failed."""
        return None if self._origin is None else self._origin.group


class InvalidArgument(PcclError, ValueError):
    """A bad argument. Nothing was sent, and no sequence number was used.

    If only this peer passed a bad argument, the other members wait for this peer's call: repeat the
    call with valid arguments. If this peer made its next call instead, the other members would take
    that call for this one.
    """


class InvalidUsage(PcclError, RuntimeError):
    """A call in a wrong state: after close, in a forked child, with a tag already in use.

    Also raised if the coordinator refuses the group; the message has the coordinator's reason.
    """


class OutOfMemory(PcclError, MemoryError):
    """The memory for the operation is not available. Nothing was sent."""


class Mismatch(PcclError):
    """Peers called the same operation differently, or cut it differently. The input keeps its
    content.

    A sync raises Mismatch if names, shapes or dtypes of the shared states differ (the message lists
    the differences), or if two peers insist on different contents. If the first call or state of a
    newcomer differs from that of the members, only the newcomer gets Mismatch, and the members go
    on. The newcomer is out of the group; correct its program before it connects again.
    """


class Aborted(PcclError):
    """The operation was aborted for all peers. The input keeps its content."""


class Expelled(PcclError):
    """This peer is no longer a member of the group. Connect again to go on.

    The coordinator has removed this peer, or this peer has withdrawn an operation of several
    members; the message says which of the two, and why.
    """


class InDoubt(PcclError):
    """The call ended after this peer's vote without a decision: neither success nor failure.

    The deadline passed, the call was cancelled, or the coordinator was lost. The input keeps its
    content, and `work` keeps the result. `work.resolve()` waits for the coordinator's decision and
    returns the result of the call; it raises CoordinatorUnreachable if no decision can come any
    more.
    """


class DeadlineExceeded(PcclError, TimeoutError):
    """The deadline of the operation passed. The input keeps its content."""


class TooFewPeers(PcclError):
    """Fewer than min_world_size peers are left in the group."""


class CoordinatorUnreachable(PcclError, ConnectionError):
    """The connection to the coordinator could not be made, or was lost."""


class AuthenticationFailed(PcclError):
    """The token belongs to another run."""


class VersionMismatch(PcclError):
    """The other side speaks another wire version, or is not PCCL at all."""


class StateUnavailable(PcclError):
    """No member holds the shared state any more. The tensors of the sync keep their content."""


class Cancelled(PcclError):
    """This peer withdrew the operation, or closed the communicator; the other members go on.

    The input keeps its content.
    """


class SystemRefused(PcclError, OSError):
    """The operating system refused (port in use, too many open files), or a journal is damaged."""


CLASS_OF_STATUS: dict[int, type[Exception]] = {
    1: TimeoutError,  # a wait timed out; the operation goes on, so this is no PcclError
    2: InvalidArgument,
    3: InvalidUsage,
    4: OutOfMemory,
    5: Mismatch,
    6: Aborted,
    7: Expelled,
    8: InDoubt,
    9: DeadlineExceeded,
    10: TooFewPeers,
    11: CoordinatorUnreachable,
    12: AuthenticationFailed,
    13: VersionMismatch,
    14: StateUnavailable,
    15: Cancelled,
    16: SystemRefused,
}


def class_name(status: int) -> str | None:
    """The name of the exception class of a status; None for success."""
    return CLASS_OF_STATUS.get(status, PcclError).__name__ if status else None


def make(status: int, message: str) -> Exception:
    """Makes the exception of a status; an unknown status (of a newer library) gives a PcclError."""
    if status == 1 and not message:
        message = "not finished yet; the operation continues"
    cls = CLASS_OF_STATUS.get(status, PcclError)
    return cls(message or _pccl.status_name(status))


_pccl.set_error_factory(make)
