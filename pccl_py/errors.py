"""Errors: which class belongs to which status of include/pccl.h, and nothing else.

The sentence in an error comes from the native library (pccl_last_error): which peer, what was
expected, what to do. Errors of arguments that Python itself checks use the same classes; a wrong
dtype or byte order is a plain TypeError. docs/internals/PROMISE.md says what holds after each
error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pccl_py import _pccl

if TYPE_CHECKING:
    from pccl_py.outcome import Origin
    from pccl_py.work import Work


class PcclError(Exception):
    """Base of every error of PCCL.

    `work` is the operation that has failed, if the call had begun it; `works` has the last
    operation of each array of an `all_reduce_many`, None for an array whose operation never began.
    `operation` and `group` are the names of the call and of its group, "all_reduce" and "default"
    for example; None where the error is not that of an operation, a sync or a safe point.
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
        """The name of that group."""
        return None if self._origin is None else self._origin.group


class InvalidArgument(PcclError, ValueError):
    """A bad argument. Nothing was sent, and no sequence number was used.

    If only this peer was wrong, the other members wait for this call: repeat it with valid
    arguments. If this peer went on to its next call, the others would take that for this one.
    """


class InvalidUsage(PcclError, RuntimeError):
    """Called in a wrong state: after close, in a forked child, with a tag already in use.

    Or the coordinator has refused the group; the message has its reason.
    """


class OutOfMemory(PcclError, MemoryError):
    """The memory for the operation is not available. Nothing was sent."""


class Mismatch(PcclError):
    """Peers called the same operation differently, or cut it differently. The input is kept.

    In a sync: names, shapes or dtypes of the shared states differ, and the message lists how; or
    two peers insist on different contents.
    If the first call or state of a newcomer is not that of the members, only the newcomer gets
    Mismatch, and the members go on. The newcomer is no member any more; its program must be
    corrected before it connects again.
    """


class Aborted(PcclError):
    """The operation was aborted for all peers. The input keeps its content."""


class Expelled(PcclError):
    """This peer is no longer a member of the group. Connect again to go on.

    The coordinator has removed this peer, or this peer has withdrawn an operation of several
    members; the message says which, and why.
    """


class InDoubt(PcclError):
    """This call ended after this peer had voted, without an answer: neither success nor failure.

    Its deadline passed, it was cancelled, or the coordinator was lost. The input keeps its content,
    and `work` keeps the result. `work.resolve()` waits for the coordinator's answer and returns the
    result of the call; it raises CoordinatorUnreachable if no answer can come any more.
    """


class DeadlineExceeded(PcclError, TimeoutError):
    """The deadline of the operation passed. The input keeps its content."""


class TooFewPeers(PcclError):
    """Fewer than min_world_size peers are left in the group."""


class CoordinatorUnreachable(PcclError, ConnectionError):
    """No connection to the coordinator could be made, or it was lost."""


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
    """The operating system refused: port in use, too many open files; a journal that is damaged."""


CLASS_OF_STATUS: dict[int, type[Exception]] = {
    1: TimeoutError,  # of a wait: the operation goes on, so it is no error of PCCL
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
    """The name of the exception of a status, None for success."""
    return CLASS_OF_STATUS.get(status, PcclError).__name__ if status else None


def make(status: int, message: str) -> Exception:
    """The exception of a status; an unknown one (a newer library) is a plain PcclError."""
    if status == 1 and not message:
        message = "not finished yet; the operation continues"
    cls = CLASS_OF_STATUS.get(status, PcclError)
    return cls(message or _pccl.status_name(status))


_pccl.set_error_factory(make)
