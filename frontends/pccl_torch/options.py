"""Options of a process group: how its collectives move data, and what a loss does to them.

    dist.init_process_group("pccl", pg_options=pccl_torch.Options(codec="int8"))
    dist.new_group(ranks, pg_options=pccl_torch.Options(recovery="resume"))

start.py reads them. torch.distributed's options of a call (timeout, reduce op) take precedence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pccl_py import Codec, CodecKind, Plan, Recovery
from pccl_py.codec import CodecName, parse_codec
from pccl_py.errors import InvalidArgument
from pccl_py.words import PlanName, RecoveryName, nanoseconds, parse_plan, parse_recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a group, the same on all its members; for `pg_options`.

    `recovery`: what the loss of a member does. With "complete", the default, a call raises
    `PeerLost`, and so do all further calls until `pccl_torch.admit()`. With "resume", "restart" and
    "raise" collectives go on without the lost member, with "raise" only those after the loss: sums
    lack its contribution, and data that it would have sent is zeros.
    `codec`: how floats travel in sums and averages ("int8", or a `pccl_py.Codec`), "none" by
    default; the other collectives encode nothing. `plan`: how data moves, "auto" by default.
    `deadline`: seconds that a call may take, instead of the timeout of torch.distributed.
    `whole`: the group needs exactly the members that it was made with, as where each has a shard of
    a model; once its members change, every call in it raises `PeerLost` for good. `planned`: a sum
    of floats is the average over the contributors, times the size of the group, so that dividing it
    by the size gives the average after a loss, too.
    Raises InvalidArgument for a value that is none of these.
    """

    recovery: Recovery | RecoveryName = "complete"
    codec: Codec | CodecKind | CodecName = "none"
    plan: Plan | PlanName = "auto"
    deadline: float | None = None
    whole: bool = False
    planned: bool = False

    def __post_init__(self) -> None:
        if self.recovery is None:
            raise InvalidArgument("recovery of a group must be named, it cannot be None")
        parse_recovery(self.recovery)
        parse_codec(self.codec)
        parse_plan(self.plan)
        nanoseconds(self.deadline, "deadline")

    def timeout(self, asked: timedelta) -> timedelta:
        """The default timeout of a call in the group; `asked`: the timeout given to PyTorch."""
        return asked if self.deadline is None else timedelta(seconds=self.deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Founded(Options):
    """Options for a group that this process already entered: `take` makes the process group."""

    take: Callable[[Any, Options], Any]
