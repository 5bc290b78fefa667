"""Errors as users of torch.distributed expect them: those of pccl_py that are RuntimeErrors, too.

`torch_error` makes them; backend.py and work.py raise what it returns. PeerLost is the one that
programs catch: docs/guides/TORCH.md says what to do then.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import Any

from torch.distributed import DistBackendError

from pccl_py import Aborted, Group, InDoubt, InvalidUsage, PcclError


class PeerLost(Aborted, DistBackendError):
    """A member of the group is lost, or has left, and the call needs all of them.

    Its inputs are as they were. All members get this, and so does every further call in the group,
    until `pccl_torch.admit()` has made it whole again without the lost member, or with another.
    """


# For sub-groups of a communicator the library says more than `call admit`.
_CALL_ADMIT = re.compile(r"\bcall admit\b(?! on )")
_both: dict[type[PcclError], type[PcclError]] = {Aborted: PeerLost}
_lock = threading.Lock()
# The last error, as long as somebody has it, and else a copy. Its traceback and its Work have the
# tensors of the call.
_last: tuple[weakref.ref[PcclError], PcclError] | None = None
# How many calls have raised PeerLost.
_losses = 0


def torch_error(error: PcclError, group: Group | None) -> PcclError:
    """The same error as one of torch.distributed: a `DistBackendError`, which is a RuntimeError.

    Its class has the name of that of pccl_py, and is a subclass of it, but that an Aborted for the
    loss of a member is a PeerLost. `group`: in which it was raised, or None before there is one.
    """
    kind = type(error)
    if isinstance(error, DistBackendError):
        return error
    made: PcclError
    args = [_in_words_of_torch(str(each)) for each in error.args]
    if kind is Aborted and (group is None or is_whole(group)):
        made = _class_of(Aborted, "Aborted")(*args)
    else:
        made = _both.get(kind, _class_of(kind, kind.__name__))(*args)
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return remembered(made)


def _in_words_of_torch(text: str) -> str:
    return _CALL_ADMIT.sub("call pccl_torch.admit()", text)


def losses_told() -> int:
    """How many calls in any group of this process have raised PeerLost."""
    return _losses


def remembered(error: PcclError) -> PcclError:
    """The error, which is what `last_error` answers now."""
    global _last, _losses
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)
    if not isinstance(error, InDoubt):  # whose Work still has something to tell
        for name in ("work", "works"):
            copy.__dict__.pop(name, None)
    with _lock:
        _last = weakref.ref(error), copy
        _losses += isinstance(error, PeerLost)
    return error


def last_error(of: BaseException | None = None) -> PcclError | None:
    """The last error of a call of torch.distributed in this process, or None.

    DistributedDataParallel turns errors of a backward into RuntimeErrors with their text alone;
    here is what it was: its class, `operation` and `group`. The error itself is the answer as long
    as the program has it, and else a copy, which keeps no tensors: it has no traceback, and no
    `work` unless it is an InDoubt. `of`: the error that was caught; the answer is None unless it is
    the last one, or has its text.
    """
    if _last is None:
        return None
    original, copy = _last
    last = original() or copy
    if of is None or of is last or str(last) in str(of):
        return last
    return None


def is_whole(group: Group) -> bool:
    """Whether nobody of the group's epoch is known to be lost or to have left."""
    try:
        now = group.info()
    except InvalidUsage:  # closed
        return False
    return now.lost is None and now.alive == now.world_size


_whole: dict[tuple[type[PcclError], str], type[PcclError]] = {}


def _class_of(kind: type[PcclError], name: str) -> type[PcclError]:
    with _lock:
        known = _whole.get((kind, name))
        if known is None:
            about: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": __name__}
            known = _whole[kind, name] = type(name, (kind, DistBackendError), about)
        return known
