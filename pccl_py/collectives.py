"""What the members of a group do together: reduce, gather, broadcast, wait for each other.

Group has these methods (communicator.py). Checked here are arguments; everything else is decided in
the native library. Buffers are in buffers.py, operations in flight in work.py, what each collective
costs and what a loss does to it in docs/ALGORITHMS.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, SupportsIndex, overload

from pccl_py import _pccl, buffers
from pccl_py.closing import Closing
from pccl_py.codec import Codec, CodecKind, ErrorFeedback, parse_codec
from pccl_py.errors import InvalidArgument, PcclError
from pccl_py.outcome import Outcome
from pccl_py.words import (
    PeerId,
    Plan,
    Recovery,
    ReduceOp,
    index,
    nanoseconds,
    parse_op,
    parse_plan,
    parse_recovery,
    unsigned,
)
from pccl_py.work import Work


class Collectives(Closing):
    """The operations of a Group. Any thread may call any of them, one at a time per tag."""

    def __init__(self) -> None:
        self._feedbacks: dict[int, ErrorFeedback] = {}

    @property
    def rank(self) -> int:
        """Position of this peer in the epoch."""
        raise NotImplementedError

    @property
    def world_size(self) -> int:
        """Number of members of the epoch."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """Number of the membership in force."""
        raise NotImplementedError

    @property
    def members(self) -> tuple[PeerId, ...]:
        """The members of the epoch in rank order."""
        raise NotImplementedError

    def _open(self) -> _pccl.Comm:
        """The native communicator. Raises InvalidUsage where it cannot be used."""
        raise NotImplementedError

    @overload
    def all_reduce(
        self,
        array: object,
        out: object | None = None,
        *,
        op: ReduceOp | str = ...,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def all_reduce(
        self,
        array: object,
        out: object | None = None,
        *,
        op: ReduceOp | str = ...,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def all_reduce(
        self,
        array: object,
        out: object | None = None,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        tag: int = 0,
        codec: Codec | CodecKind | str = "none",
        plan: Plan | str = Plan.AUTO,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Reduces `array` over all members, into `out`, or in place: every peer gets equal bytes.

        `array`: any shape, C-contiguous, of a dtype in `DType`; the same count, dtype, op, codec,
        plan and recovery on every peer. `codec`: how floats travel, "int8" for example, or a Codec
        with options; what is added up, with sum and avg only. `out`: as many elements, the same
        dtype, no partial overlap. On any error the output is as it was. Raises, beside the errors
        of `PcclError`: ValueError for a bad argument or layout, TypeError for a dtype. `deadline`
        is in seconds from now (default: the communicator's). With `async_op`, returns a Work at
        once.
        """
        native = self._open()
        encoding = parse_codec(codec)
        send, recv = buffers.pair(array, out)
        carried = self._carried(encoding, tag, send.count)
        work = _pccl.all_reduce(
            native,
            send.address,
            recv.address,
            send.count,
            send.dtype,
            _options(op, tag, plan, recovery, deadline, encoding, carried.residuals),
            (send.owner, recv.owner, carried.kept),
            not async_op and not carried.feedback,
        )
        return carried.finish(Work(work), async_op)

    def error_feedback(self, tag: int = 0) -> ErrorFeedback:
        """From now on what codecs lose of this peer's contributions with `tag` is given back.

        The same object for the same tag, until it is closed; a new one starts from zero. Members
        need not agree about it.
        """
        self._open()
        number = unsigned(tag, "tag", 64)
        feedback = self._feedback_of(number)
        if feedback is None:
            feedback = self._feedbacks[number] = ErrorFeedback(number)
        return feedback

    def _carried(self, encoding: Codec, tag: int, count: int) -> _Carried:
        """What this call carries on, of an array of `count` elements that is added up."""
        feedback = self._feedback_of(unsigned(tag, "tag", 64)) if encoding.encodes else None
        if feedback is None:
            return _Carried(None, count, (0, 0), None)
        residuals, kept = feedback.begin(count)
        return _Carried(feedback, count, residuals, kept)

    def _parse_carrying(self, codec: Codec | CodecKind | str, tag: int) -> Codec:
        """The codec of a call that adds nothing up, and so has no error feedback."""
        encoding = parse_codec(codec)
        number = unsigned(tag, "tag", 64)
        if encoding.encodes and self._feedback_of(number) is not None:
            raise InvalidArgument(
                f"tag {number} has error feedback, which is for all_reduce, reduce and "
                "reduce_scatter: here nothing is added up that could be given back later; use "
                "another tag"
            )
        return encoding

    def _feedback_of(self, tag: int) -> ErrorFeedback | None:
        feedback = self._feedbacks.get(tag)
        return None if feedback is None or feedback.closed else feedback

    @overload
    def broadcast(
        self,
        array: object,
        root: SupportsIndex | PeerId = 0,
        *,
        tag: int = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def broadcast(
        self,
        array: object,
        root: SupportsIndex | PeerId = 0,
        *,
        tag: int = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def broadcast(
        self,
        array: object,
        root: SupportsIndex | PeerId = 0,
        *,
        tag: int = 0,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Copies `array` of `root` into `array` of every member. Arguments as for `all_reduce`.

        `root` is a rank of the current epoch, or the id of a member. On the root, `array` is only
        read, and may be read-only; so there is no codec, whose rounding the root would not see.
        """
        native = self._open()
        rank = self._rank_of(root)
        buffer = buffers.readable(array) if rank == self.rank else buffers.writable(array)
        work = _pccl.broadcast(
            native,
            buffer.address,
            buffer.count,
            buffer.dtype,
            rank,
            unsigned(tag, "tag", 64),
            nanoseconds(deadline, "deadline"),
            parse_recovery(recovery),
            buffer.owner,
            not async_op,
        )
        return Work(work) if async_op else Work(work).wait()

    @overload
    def reduce(
        self,
        array: object,
        out: object | None = None,
        root: SupportsIndex | PeerId = 0,
        *,
        op: ReduceOp | str = ...,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def reduce(
        self,
        array: object,
        out: object | None = None,
        root: SupportsIndex | PeerId = 0,
        *,
        op: ReduceOp | str = ...,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def reduce(
        self,
        array: object,
        out: object | None = None,
        root: SupportsIndex | PeerId = 0,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        tag: int = 0,
        codec: Codec | CodecKind | str = "none",
        plan: Plan | str = Plan.AUTO,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Reduces `array` over all members into `out` of `root`, or in place there.

        Arguments as for `all_reduce`; `root` is a rank of the current epoch, or the id of a member.
        On the others nothing is written, and `out` is not looked at. With a codec the sum, which
        the root alone has, is not encoded again. A lost root ends the operation with Aborted on
        all.
        """
        native = self._open()
        encoding = parse_codec(codec)
        rank = self._rank_of(root)
        if rank == self.rank:
            send, recv = buffers.pair(array, out)
        else:
            send = recv = buffers.readable(array)
        carried = self._carried(encoding, tag, send.count)
        work = _pccl.reduce(
            native,
            send.address,
            recv.address if rank == self.rank else 0,
            send.count,
            send.dtype,
            rank,
            _options(op, tag, plan, recovery, deadline, encoding, carried.residuals),
            (send.owner, recv.owner, carried.kept),
            not async_op and not carried.feedback,
        )
        return carried.finish(Work(work), async_op)

    @overload
    def reduce_scatter(
        self,
        array: object,
        out: object,
        counts: Sequence[int] | None = ...,
        *,
        op: ReduceOp | str = ...,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def reduce_scatter(
        self,
        array: object,
        out: object,
        counts: Sequence[int] | None = ...,
        *,
        op: ReduceOp | str = ...,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def reduce_scatter(
        self,
        array: object,
        out: object,
        counts: Sequence[int] | None = None,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        tag: int = 0,
        codec: Codec | CodecKind | str = "none",
        plan: Plan | str = Plan.AUTO,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Reduces `array` over all members; `out` of each receives the shard of its rank.

        `array` holds a shard for each rank, in rank order: `world_size` times the elements of
        `out`, or with `counts` as many as counts[rank] says for each, the same list on every peer.
        `out` may be this rank's shard of `array`; else they do not touch. A shard whose rank is
        lost is given to nobody; the others arrive. With a codec the sums are not encoded again.
        Otherwise as `all_reduce`.
        """
        native = self._open()
        encoding = parse_codec(codec)
        send, recv = buffers.apart(array, out)
        shards = self._shards(counts, send, recv, "array", "out")
        carried = self._carried(encoding, tag, send.count)
        work = _pccl.reduce_scatter(
            native,
            send.address,
            recv.address,
            shards,
            send.dtype,
            _options(op, tag, plan, recovery, deadline, encoding, carried.residuals),
            (send.owner, recv.owner, carried.kept),
            not async_op and not carried.feedback,
        )
        return carried.finish(Work(work), async_op)

    @overload
    def all_gather(
        self,
        array: object,
        out: object,
        counts: Sequence[int] | None = ...,
        *,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def all_gather(
        self,
        array: object,
        out: object,
        counts: Sequence[int] | None = ...,
        *,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def all_gather(
        self,
        array: object,
        out: object,
        counts: Sequence[int] | None = None,
        *,
        tag: int = 0,
        codec: Codec | CodecKind | str = "none",
        plan: Plan | str = Plan.AUTO,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Collects `array` of all members in `out`, in rank order: every peer gets equal bytes.

        `out` has `world_size` times the elements of `array`, or with `counts` those of each rank,
        the same list on every peer. `array` may be this rank's shard of `out`; else they do not
        touch. What a lost member had, and no survivor got, is zeros in `out`, on all alike, and the
        outcome names no contributor for it; unless recovery is "resume" a shard comes whole or not
        at all. With a codec each shard is rounded once, and this rank's own in `out` as well, so
        that all have equal bytes. Otherwise as `all_reduce`.
        """
        native = self._open()
        encoding = self._parse_carrying(codec, tag)
        send, recv = buffers.apart(array, out)
        work = _pccl.all_gather(
            native,
            send.address,
            recv.address,
            self._shards(counts, recv, send, "out", "array"),
            send.dtype,
            _options(ReduceOp.SUM, tag, plan, recovery, deadline, encoding),
            (send.owner, recv.owner),
            not async_op,
        )
        return Work(work) if async_op else Work(work).wait()

    @overload
    def scatter(
        self,
        array: object | None,
        out: object,
        root: SupportsIndex | PeerId = ...,
        counts: Sequence[int] | None = ...,
        *,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def scatter(
        self,
        array: object | None,
        out: object,
        root: SupportsIndex | PeerId = ...,
        counts: Sequence[int] | None = ...,
        *,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def scatter(
        self,
        array: object | None,
        out: object,
        root: SupportsIndex | PeerId = 0,
        counts: Sequence[int] | None = None,
        *,
        tag: int = 0,
        codec: Codec | CodecKind | str = "none",
        plan: Plan | str = Plan.AUTO,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Deals out the shards of `array` of `root`: `out` of each receives that of its rank.

        On the root `array` has `world_size` times the elements of `out`, in rank order, or with
        `counts` those of each rank, the same list on every peer; there `out` may be its shard of
        `array`. Elsewhere `array` is not looked at, and may be None. With a codec what moves is
        rounded, and the root's own shard is not. A lost root ends the operation with Aborted on
        all. Otherwise as `all_reduce`.
        """
        native = self._open()
        encoding = self._parse_carrying(codec, tag)
        rank = self._rank_of(root)
        if rank == self.rank:
            if array is None:
                raise InvalidArgument("the root of a scatter needs array, with the shards of all")
            send, recv = buffers.apart(array, out)
            shards = self._shards(counts, send, recv, "array", "out")
        else:
            send = recv = buffers.writable(out)
            shards = recv.count if counts is None else self._listed(counts, recv, "out")
        work = _pccl.scatter(
            native,
            send.address if rank == self.rank else 0,
            recv.address,
            shards,
            recv.dtype,
            rank,
            _options(ReduceOp.SUM, tag, plan, recovery, deadline, encoding),
            (send.owner, recv.owner),
            not async_op,
        )
        return Work(work) if async_op else Work(work).wait()

    @overload
    def gather(
        self,
        array: object,
        out: object | None = ...,
        root: SupportsIndex | PeerId = ...,
        counts: Sequence[int] | None = ...,
        *,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def gather(
        self,
        array: object,
        out: object | None = ...,
        root: SupportsIndex | PeerId = ...,
        counts: Sequence[int] | None = ...,
        *,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def gather(
        self,
        array: object,
        out: object | None = None,
        root: SupportsIndex | PeerId = 0,
        counts: Sequence[int] | None = None,
        *,
        tag: int = 0,
        codec: Codec | CodecKind | str = "none",
        plan: Plan | str = Plan.AUTO,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Collects `array` of all members in `out` of `root`, in rank order.

        On the root `out` has `world_size` times the elements of `array`, or with `counts` those of
        each rank, the same list on every peer; there `array` may be its shard of `out`. Elsewhere
        `out` is not looked at. What a lost member had, and the root has not got, is zeros in
        `out`, and the outcome names no contributor for it; unless recovery is "resume" a shard
        comes whole or not at all. With a codec what moves is rounded, and the root's own shard is
        not. A lost root ends the operation with Aborted on all. Otherwise as `all_reduce`.
        """
        native = self._open()
        encoding = self._parse_carrying(codec, tag)
        rank = self._rank_of(root)
        if rank == self.rank:
            if out is None:
                raise InvalidArgument("the root of a gather needs out, an array for all shards")
            send, recv = buffers.apart(array, out)
            shards = self._shards(counts, recv, send, "out", "array")
        else:
            send = recv = buffers.readable(array)
            shards = send.count if counts is None else self._listed(counts, send, "array")
        work = _pccl.gather(
            native,
            send.address,
            recv.address if rank == self.rank else 0,
            shards,
            send.dtype,
            rank,
            _options(ReduceOp.SUM, tag, plan, recovery, deadline, encoding),
            (send.owner, recv.owner),
            not async_op,
        )
        return Work(work) if async_op else Work(work).wait()

    @overload
    def all_to_all(
        self,
        array: object,
        out: object,
        *,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def all_to_all(
        self,
        array: object,
        out: object,
        *,
        tag: int = ...,
        codec: Codec | CodecKind | str = ...,
        plan: Plan | str = ...,
        recovery: Recovery | str | None = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def all_to_all(
        self,
        array: object,
        out: object,
        *,
        tag: int = 0,
        codec: Codec | CodecKind | str = "none",
        plan: Plan | str = Plan.AUTO,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Gives each member its shard of `array`; `out` receives a shard from each, in rank order.

        Both have `world_size` equal shards, the same on every peer, and do not touch. What a lost
        member had for this peer, if it has not come, is zeros in `out`, and the outcome
        names no contributor for it. With a codec what moves is rounded, and one's own shard is
        not. Otherwise as `all_reduce`.
        """
        native = self._open()
        encoding = self._parse_carrying(codec, tag)
        send, recv = buffers.apart(array, out)
        world = self.world_size
        if send.count != recv.count or send.count % world != 0:
            raise InvalidArgument(
                f"array has {send.count} elements and out has {recv.count}: both need the same "
                f"number, a multiple of world_size, which is {world}"
            )
        if recv.address < send.end and send.address < recv.end:
            raise InvalidArgument("array and out overlap: an all_to_all is not done in place")
        work = _pccl.all_to_all(
            native,
            send.address,
            recv.address,
            send.count // world,
            send.dtype,
            _options(ReduceOp.SUM, tag, plan, recovery, deadline, encoding),
            (send.owner, recv.owner),
            not async_op,
        )
        return Work(work) if async_op else Work(work).wait()

    @overload
    def barrier(
        self, *, tag: int = ..., deadline: float | None = ..., async_op: Literal[False] = ...
    ) -> Outcome: ...
    @overload
    def barrier(
        self, *, tag: int = ..., deadline: float | None = ..., async_op: Literal[True]
    ) -> Work: ...
    def barrier(
        self, *, tag: int = 0, deadline: float | None = None, async_op: bool = False
    ) -> Outcome | Work:
        """Returns once every member has called it."""
        work = _pccl.barrier(
            self._open(),
            unsigned(tag, "tag", 64),
            nanoseconds(deadline, "deadline"),
            not async_op,
        )
        return Work(work) if async_op else Work(work).wait()

    def _rank_of(self, member: SupportsIndex | PeerId, name: str = "root") -> int:
        if isinstance(member, PeerId):
            members = self.members
            if member not in members:
                raise InvalidArgument(f"{name} {member} is no member of epoch {self.epoch}")
            return members.index(member)
        rank = index(member, name)
        if not 0 <= rank < self.world_size:
            raise InvalidArgument(f"{name} is a rank from 0 to {self.world_size - 1}, not {rank}")
        return rank

    def _shards(
        self,
        counts: Sequence[int] | None,
        whole: buffers.Buffer,
        shard: buffers.Buffer,
        all_of: str,
        one_of: str,
    ) -> int | list[int]:
        """Elements of each rank's shard, as the native library takes them."""
        world = self.world_size
        if counts is None:
            if whole.count != shard.count * world:
                raise InvalidArgument(
                    f"{all_of} has {whole.count} elements, {one_of} has {shard.count}: with "
                    f"{world} ranks {all_of} needs {shard.count * world}, or pass counts"
                )
            _check_place(whole, shard, shard.count * self.rank, all_of, one_of)
            return shard.count
        listed = self._listed(counts, shard, one_of)
        if sum(listed) != whole.count:
            raise InvalidArgument(f"counts are {sum(listed)} together, {all_of} has {whole.count}")
        _check_place(whole, shard, sum(listed[: self.rank]), all_of, one_of)
        return listed

    def _listed(self, counts: Sequence[int], shard: buffers.Buffer, one_of: str) -> list[int]:
        """Elements of each rank's shard, of which only this rank's is here."""
        world, rank = self.world_size, self.rank
        if len(counts) != world:
            raise InvalidArgument(
                f"counts has {len(counts)} entries: one for each of {world} ranks"
            )
        listed = [unsigned(count, "each of counts", 64) for count in counts]
        if listed[rank] != shard.count:
            raise InvalidArgument(
                f"counts[{rank}], of this rank, is {listed[rank]}; {one_of} has {shard.count}"
            )
        return listed


@dataclass(frozen=True, slots=True)
class _Carried:
    """What a call carries on of what its codec loses; nothing without error feedback."""

    feedback: ErrorFeedback | None
    count: int
    residuals: tuple[int, int]
    kept: object

    def finish(self, work: Work, async_op: bool) -> Outcome | Work:
        if self.feedback is None:
            return work if async_op else work.wait()
        self.feedback.begun(work, self.count)
        return work if async_op else _wait_or_withdraw(work)


def _wait_or_withdraw(work: Work) -> Outcome:
    """As a blocking call waits, but the work is still there to be asked what became of it."""
    try:
        return work.wait()
    except PcclError:
        raise
    except BaseException:  # of a signal handler: Ctrl-C
        work.cancel()
        work.exception()
        raise


def _check_place(
    whole: buffers.Buffer, shard: buffers.Buffer, first: int, all_of: str, one_of: str
) -> None:
    if shard.count == 0 or shard.address == whole.address + first * whole.dtype.size:
        return
    if shard.address < whole.end and whole.address < shard.end:
        raise InvalidArgument(
            f"array and out overlap: {one_of} must be this rank's shard of {all_of}, or lie apart"
        )


def _options(
    op: ReduceOp | str,
    tag: int,
    plan: Plan | str,
    recovery: Recovery | str | None,
    deadline: float | None,
    encoding: Codec,
    residuals: tuple[int, int] = (0, 0),
) -> tuple[int, int, int, int, int, tuple[int, int, int, int, int, int]]:
    return (
        parse_op(op),
        unsigned(tag, "tag", 64),
        nanoseconds(deadline, "deadline"),
        parse_recovery(recovery),
        parse_plan(plan),
        (*encoding.native(), *residuals),
    )
