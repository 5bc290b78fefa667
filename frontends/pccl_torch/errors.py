"""Errors as users of torch.distributed expect them: errors of pccl_py that are RuntimeErrors, too.

backend.py and work.py raise what `torch_error` returns. Programs catch PeerLost:
docs/guides/TORCH.md says how to go on after it.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import Any

from torch.distributed import DistBackendError

from pccl_py import Aborted, Group, InDoubt, InvalidUsage, PcclError


class PeerLost(Aborted, DistBackendError):
    """A member of the group is lost, or has left, and the call needs all members.

    The call's inputs are as they were. The call raises PeerLost on all members, and so does every
    further call in the group, until `pccl_torch.admit()` removes or replaces the lost member.
    """


# "call admit" in a sentence of the library; "call admit on ..." names a sub-group, and stays.
_CALL_ADMIT = re.compile(r"\bcall admit\b(?! on )")
_both: dict[type[PcclError], type[PcclError]] = {Aborted: PeerLost}
_lock = threading.Lock()
# The last error, held weakly as its traceback and its Work keep the call's tensors; and a copy
# without them.
_last: tuple[weakref.ref[PcclError], PcclError] | None = None
# How many calls have raised PeerLost.
_losses = 0


def torch_error(error: PcclError, group: Group | None) -> PcclError:
    """Makes an error of pccl_py one of torch.distributed too: a `DistBackendError`, a RuntimeError.

    The class of the new error is a subclass of the old class, with the same name; but an Aborted
    for the loss of a member becomes a PeerLost. `group`: the group whose call raised it, or None.
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
    """Returns `error`, and makes it the answer of `last_error`."""
    global _last, _losses
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)
    if not isinstance(error, InDoubt):  # the Work of an InDoubt can still be resolved
        for name in ("work", "works"):
            copy.__dict__.pop(name, None)
    with _lock:
        _last = weakref.ref(error), copy
        _losses += isinstance(error, PeerLost)
    return error


def last_error(of: BaseException | None = None) -> PcclError | None:
    """The last error of a call of torch.distributed in this process, or None.

    DistributedDataParallel raises errors of a backward as RuntimeErrors that have only the text;
    this function returns the original, with its class, `operation` and `group`. Once the program
    has dropped the original, this function returns a copy, which keeps no tensors: the copy has no
    traceback, and no `work` unless the error is an InDoubt. `of`: the error that was caught; the
    answer is None unless `of` is the last error or contains its text.
    """
    if _last is None:
        return None
    original, copy = _last
    last = original() or copy
    if of is None or of is last or str(last) in str(of):
        return last
    return None


def is_whole(group: Group) -> bool:
    """Whether no member of the group's epoch is known to be lost or to have left."""
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
