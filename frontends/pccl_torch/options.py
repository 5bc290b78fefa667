"""Options of a process group: how its collectives move, and what a loss does to them.

    dist.init_process_group("pccl", pg_options=pccl_torch.Options(codec="int8"))
    dist.new_group(ranks, pg_options=pccl_torch.Options(recovery="resume"))

start.py reads them. torch.distributed's own options of a call win: its timeout, its reduce op.
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

    `recovery`: what the loss of a member does, "complete" by default: the call raises `PeerLost`,
    and so do all further ones until `pccl_torch.admit()`. With "resume", "restart" and "raise"
    collectives go on without the lost member: sums lack it, and what would come from it is zeros.
    `codec`: how floats travel in sums and averages, "none" by default ("int8", or a
    `pccl_py.Codec`); the other collectives move what there is. `plan`: how data moves, "auto" by
    default. `deadline`: seconds that a call may take, instead of the timeout of torch.distributed.
    `whole`: the group is cut for the members that it was made with, as one with a shard of a model
    on each: once others are in it, or fewer, it raises `PeerLost` for good. `planned`: a sum of
    floats is the average over those who contributed, times the size of the group, so that dividing
    by the size afterwards is right after a loss, too.
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
        """The time that a call in the group may take; `asked`: the timeout given to PyTorch."""
        return asked if self.deadline is None else timedelta(seconds=self.deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Founded(Options):
    """Options of a group that is entered already: `take` makes of it what PyTorch asks for."""

    take: Callable[[Any, Options], Any]
