"""DistributedDataParallel (DDP) over groups of pccl: an averaging hook, and wrappers after a loss.

    ddp.register_comm_hook(None, pccl_torch.average_hook(codec="int8"))

The hook averages a bucket over the members that contribute, so a member that dies inside of
`backward` costs no step. Without a hook DDP divides by the group size that it has read before, even
after a backward that failed; start.py calls `renew`, which makes DDP read the size again.
elastic.py has the state that a newcomer needs; the hook calls `ProcessGroupPccl.average`.
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from pccl_py import Codec, CodecKind, ErrorFeedback, InvalidUsage, Outcome, PeerId, Recovery
from pccl_py.codec import CodecName, parse_codec
from pccl_py.errors import InvalidArgument
from pccl_py.words import DIFFER_IN_FORM, RecoveryName, form_of, parse_recovery
from pccl_torch.backend import ProcessGroupPccl
from pccl_torch.work import PcclWork

# The stubs of torch.distributed describe C++ types, without subclasses and their overrides.
dist: Any = torch.distributed

log = logging.getLogger("pccl.torch")

_REMEDY = (
    "after an admit() at which somebody joined, all members wrap the model anew: "
    "DistributedDataParallel(model, init_sync=False)"
)

_lock = threading.Lock()
# All living wrappers; the weak set keeps no model alive.
_wrappers: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
# Wrappers that have rebuilt their buckets in the order in which gradients arrived; a newcomer's
# wrapper has other buckets.
_rebuilt: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
# Wrappers whose next forward raises, as buckets differ from a newcomer's (`renew`).
_refused: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


# The signature that DDP checks: with annotations as objects, where `__annotations__` has text.
_SIGNATURE = inspect.Signature(
    [
        inspect.Parameter("state", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        inspect.Parameter(
            "bucket", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=dist.GradBucket
        ),
    ],
    return_annotation=torch.futures.Future[torch.Tensor],
)


class AverageHook:
    """The hook that `average_hook` makes and describes. One hook may serve several wrappers."""

    def __init__(
        self,
        codec: Codec | CodecKind | CodecName | None = None,
        *,
        error_feedback: bool = True,
        recovery: Recovery | RecoveryName = "resume",
    ) -> None:
        if codec is not None:
            parse_codec(codec)
        if recovery is None:
            raise InvalidArgument("recovery of a hook must be named, it cannot be None")
        parse_recovery(recovery)
        self.__name__ = self.__qualname__ = "average_hook"  # DDP logs the name
        self.__signature__ = _SIGNATURE  # DDP checks the signature
        self._codec = codec
        self._feeds_back = error_feedback
        self._recovery = recovery
        self._buckets = _Buckets()
        self._works: list[PcclWork] = []
        self._missed: set[PeerId] = set()

    def __call__(self, state: Any, bucket: Any) -> Any:
        """Averages a bucket in place; returns a Future of its buffer."""
        group = _group(state)
        known = self._buckets.of(bucket)
        work = group.average(
            bucket.buffer(),
            codec=self._codec,
            recovery=self._recovery,
            form=known.form,
            feedback=known.next_feedback() if self._feeds_back else None,
            reword=_reword,
        )
        known.work = work
        if bucket.index() == 0:
            self._works = []
        self._works.append(work)
        return work.get_future().then(partial(self._take, work))

    def _take(self, work: PcclWork, future: Any) -> Tensor:
        """The averaged bucket. Logs each lost member whose gradients it lacks, once a member."""
        averaged: Tensor = future.value()[0]
        self._note(work.outcome)
        return averaged

    def _note(self, outcome: Outcome) -> None:
        """Logs each member whose gradients a bucket lacks, wholly or partly, once a member."""
        if not outcome.ranges:
            return
        members = outcome.roster.members
        everywhere = set(members).intersection(*(part.contributors for part in outcome.ranges))
        lost = set(members) - everywhere
        with _lock:
            fresh, self._missed = lost - self._missed, lost
        for peer in sorted(fresh, key=members.index):
            log.info(
                "average_hook goes on without %s, which has left or was lost: a bucket is the "
                "average over %d of %d members. The next pccl_torch.admit() goes on without it, "
                "too",
                outcome.roster.named(peer),
                len(everywhere),
                len(members),
            )

    @property
    def outcomes(self) -> list[Outcome]:
        """Outcomes of the last backward's buckets, in order: the contributors of each range.

        Waits for all buckets, and raises the error of the first bucket that failed.
        """
        return [work.outcome for work in self._works]


def average_hook(
    codec: Codec | CodecKind | CodecName | None = None,
    *,
    error_feedback: bool = True,
    recovery: Recovery | RecoveryName = "resume",
) -> AverageHook:
    """A communication hook for DDP: the average of each bucket over the members that contribute.

    For `ddp.register_comm_hook(state, hook)`; `state` is the process group of `ddp`, or None for
    the default group. A lost member takes no part, and the other members get no error; so two
    buckets may be averages over different numbers of members, but all members have equal averages.
    With `torch.distributed.algorithms.Join`, members that have joined contribute zeros.

    `codec`: how buckets of float32 travel, the group's codec by default. `error_feedback`: what the
    codec rounds away in a bucket is added to the bucket at the next step; it starts from zero when
    DDP rebuilds its buckets, which it does after the first step. `recovery`: "resume", "restart",
    or any other of `pccl_torch.Options`. All members must pass the same `codec` and `recovery`.

    If a bucket has other parameters on another member, all members get a `Mismatch`. `backward`
    raises errors as RuntimeErrors: `pccl_torch.last_error()` is the original error. This function
    raises InvalidArgument for a value that is none of these; the hook raises InvalidUsage for a
    group of another backend.
    """
    return AverageHook(codec, error_feedback=error_feedback, recovery=recovery)


class _Parameters(dict[str, inspect.Parameter]):
    def __missing__(self, name: str) -> inspect.Parameter:
        if name != "bucket":
            raise KeyError(name)
        raise TypeError(
            "average_hook makes a hook and is none, so call it: "
            "ddp.register_comm_hook(None, pccl_torch.average_hook())"
        )


class _NoHook(inspect.Signature):
    """The signature of `average_hook`: raises TypeError if DDP takes the function for a hook."""

    @property
    def parameters(self) -> Any:
        return _Parameters(super().parameters)


average_hook.__signature__ = _NoHook.from_callable(average_hook)  # type: ignore[attr-defined]


def renew(groups: Mapping[ProcessGroupPccl, bool]) -> None:
    """Tells DDP wrappers that the members of these groups changed; True: a member is new.

    A wrapper reads its group's size again, rebuilds its buckets after the next step, and runs again
    if its last backward raised. A new member has buckets in another order. So with a new member, a
    wrapper that has rebuilt its buckets raises InvalidUsage in its next forward; so does a wrapper
    with a hook of the program, which may count its calls. An AverageHook finds the difference
    itself.
    """
    for wrapper in _living():
        group = wrapper.__dict__.get("process_group")
        if not isinstance(group, ProcessGroupPccl) or group not in groups:
            continue
        if wrapper._has_rebuilt_buckets:
            _rebuilt.add(wrapper)
        notices = any(isinstance(hook, AverageHook) for hook, _ in wrapper._comm_hooks)
        differs = wrapper in _rebuilt or bool(wrapper._comm_hooks)
        if groups[group] and differs and wrapper not in _refused and not notices:
            _refused.add(wrapper)
            wrapper.register_forward_pre_hook(_refuse)
        wrapper._update_process_group(group)


def _refuse(*_: object) -> None:
    raise InvalidUsage(
        "the buckets of this DistributedDataParallel, or what its hook has seen of them, are not "
        "those of a member that has joined, and sums could be of other parameters: "
        f"{_REMEDY}"
    )


def _notice(module: nn.Module, name: str, submodule: nn.Module) -> None:
    if isinstance(module, DistributedDataParallel):
        with _lock:
            _wrappers.add(module)


def _living() -> list[Any]:
    with _lock:
        return list(_wrappers)


def _group(state: Any) -> ProcessGroupPccl:
    group = dist.group.WORLD if state is None else state
    if not isinstance(group, ProcessGroupPccl):
        raise InvalidUsage(
            "average_hook needs a process group of pccl as its state, or None for the default "
            f"group, not {type(group).__name__}"
        )
    return group


def _reword(sentence: str) -> str:
    told = f"The parameters of this bucket of DistributedDataParallel differ: {_REMEDY}"
    return sentence.replace(DIFFER_IN_FORM, told)


@dataclass
class _Bucket:
    """The hook's record of a bucket, as long as the bucket has the same parameters."""

    parameters: list[weakref.ref[Tensor]]
    form: int
    feedback: ErrorFeedback = field(default_factory=lambda: ErrorFeedback(0))
    work: PcclWork | None = None

    def is_of(self, parameters: list[Tensor]) -> bool:
        return len(self.parameters) == len(parameters) and all(
            known() is parameter
            for known, parameter in zip(self.parameters, parameters, strict=True)
        )

    def next_feedback(self) -> ErrorFeedback:
        """The error feedback of the last step; a new one if that step's operation still runs."""
        if self.work is not None and not self.work.is_completed():
            self.feedback = ErrorFeedback(0)
        return self.feedback


class _Buckets:
    """The buckets that a hook has seen; each can be found by any of its parameters."""

    def __init__(self) -> None:
        self._by_parameter: dict[int, _Bucket] = {}

    def of(self, bucket: Any) -> _Bucket:
        """The record of DDP's `bucket`; drops other buckets that had one of its parameters."""
        parameters: list[Tensor] = bucket.parameters()
        known = self._by_parameter.get(id(parameters[0]))
        if known is not None and known.is_of(parameters):
            return known
        places = {id(parameter) for parameter in parameters}
        over = {id(self._by_parameter[place]) for place in places if place in self._by_parameter}
        made = _Bucket(list(map(weakref.ref, parameters)), _form(bucket, parameters))
        self._by_parameter = {
            place: other for place, other in self._by_parameter.items() if id(other) not in over
        } | dict.fromkeys(places, made)
        return made


def _form(bucket: Any, parameters: Iterable[Tensor]) -> int:
    """A hash of a bucket's number and parameters: equal on members whose buckets may be added."""
    names = {
        id(parameter): name
        for wrapper in _living()
        for name, parameter in wrapper.module.named_parameters()
    }
    listed = [
        f"{names.get(id(parameter), '')} {parameter.dtype} {tuple(parameter.shape)}"
        for parameter in parameters
    ]
    return form_of(f"bucket {bucket.index()}\n" + "\n".join(listed))


register_module_module_registration_hook(_notice)
