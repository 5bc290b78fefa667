"""The operations of a group's members together: reduce, gather, broadcast, wait for each other.

Group has these methods (communicator.py). Checked here are arguments; everything else is decided in
the native library. Buffers are in buffers.py, operations in flight in work.py, what each collective
costs and what a loss does to it in docs/ALGORITHMS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, SupportsIndex, TypeVar, overload

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

_Options = tuple[int, int, int, int, int, tuple[int, int, int, int, int, int]]


_Taken = TypeVar("_Taken")


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
        """The members of the epoch in rank order, those too that were lost since it began."""
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

        `array`: any shape, C-contiguous, of a dtype in `DType`, or a list of such arrays, which go
        as one operation, `out` being a list as well; the same counts, dtypes, op, codec, plan and
        recovery on every peer. `codec`: how floats travel, "int8" for example, or a Codec
        with options; what is added up, with sum and avg only. `out`: as many elements, the same
        dtype, no partial overlap. On any error `array` is as it was, in place too, and an `out`
        apart from it may hold anything; of what is gathered in place, all of `out` is as it was.
        Raises, beside the errors of `PcclError`: ValueError for a bad argument or layout, TypeError
        for a dtype. `deadline` is in seconds from now (default: the communicator's). With
        `async_op`, returns a Work at once.
        """
        encoding = parse_codec(codec)
        arrays = [_Array(*both) for both in _taken(buffers.pair, _each(array, out))]
        carried = self._carried(encoding, tag, [each.count for each in arrays])
        options = _options(op, tag, plan, recovery, deadline, encoding, carried.residuals)
        block = not async_op and not carried.feedback
        work = self._begin(_Kind.ALL_REDUCE, arrays, options, block, kept=carried.kept)
        return carried.finish(work, async_op)

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

    def _carried(self, encoding: Codec, tag: int, counts: list[int]) -> _Carried:
        """The state that this call carries on, for arrays of so many elements that are added up."""
        feedback = self._feedback_of(unsigned(tag, "tag", 64)) if encoding.encodes else None
        if feedback is None:
            return _Carried(None, counts, (0, 0), None)
        residuals, kept = feedback.begin(counts)
        return _Carried(feedback, counts, residuals, kept)

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
        read, and may be read-only; so there is no codec, whose rounding the root would not see. On
        any error `array` is as it was, on every member. A lost root ends the operation with Aborted
        on all, unless those who are left have all of its data together.
        """
        rank = self._rank_of(root)
        take = buffers.readable if rank == self.rank else buffers.writable
        arrays = [_Array(None, each) for each in _taken(take, _alone(array))]
        options = _options(ReduceOp.SUM, tag, Plan.AUTO, recovery, deadline, Codec("none"))
        work = self._begin(_Kind.BROADCAST, arrays, options, not async_op, root=rank)
        return work if async_op else work.wait()

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
        encoding = parse_codec(codec)
        rank = self._rank_of(root)
        check_no_root(out)
        if rank == self.rank:
            arrays = [_Array(*both) for both in _taken(buffers.pair, _each(array, out))]
        else:
            arrays = [_Array(each, None) for each in _taken(buffers.readable, _alone(array))]
        carried = self._carried(encoding, tag, [each.count for each in arrays])
        options = _options(op, tag, plan, recovery, deadline, encoding, carried.residuals)
        block = not async_op and not carried.feedback
        work = self._begin(_Kind.REDUCE, arrays, options, block, root=rank, kept=carried.kept)
        return carried.finish(work, async_op)

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
        encoding = parse_codec(codec)
        pairs = _taken(buffers.apart, _each_apart(array, out, counts))
        listed = [self._shards(counts, *both, "array", "out") for both in pairs]
        carried = self._carried(encoding, tag, [send.count for send, _ in pairs])
        options = _options(op, tag, plan, recovery, deadline, encoding, carried.residuals)
        block = not async_op and not carried.feedback
        arrays = [_Array(send, recv, recv.count) for send, recv in pairs]
        work = self._begin(
            _Kind.REDUCE_SCATTER, arrays, options, block, counts=listed[0], kept=carried.kept
        )
        return carried.finish(work, async_op)

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
        touch. Elements of a lost member that no survivor got are zeros in `out`, on all alike, and
        the outcome names no contributor for them; unless recovery is "resume" a shard comes whole
        or not at all. With a codec each shard is rounded once, and this rank's own in `out` as
        well, so that all have equal bytes. Otherwise as `all_reduce`.
        """
        encoding = self._parse_carrying(codec, tag)
        pairs = _taken(buffers.apart, _each_apart(array, out, counts))
        listed = [self._shards(counts, recv, send, "out", "array") for send, recv in pairs]
        options = _options(ReduceOp.SUM, tag, plan, recovery, deadline, encoding)
        arrays = [_Array(send, recv, send.count) for send, recv in pairs]
        work = self._begin(_Kind.ALL_GATHER, arrays, options, not async_op, counts=listed[0])
        return work if async_op else work.wait()

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
        encoding = self._parse_carrying(codec, tag)
        rank = self._rank_of(root)
        if rank == self.rank:
            if array is None:
                raise InvalidArgument("the root of a scatter needs array, with the shards of all")
            pairs = _taken(buffers.apart, _each_apart(array, out, counts))
            listed = [self._shards(counts, *both, "array", "out") for both in pairs]
            arrays = [_Array(send, recv, recv.count) for send, recv in pairs]
        else:
            arrays = [_Array(None, each) for each in _taken(buffers.writable, _alone(out, counts))]
            listed = [self._listed(counts, arrays[0].count, "out")]
        options = _options(ReduceOp.SUM, tag, plan, recovery, deadline, encoding)
        work = self._begin(
            _Kind.SCATTER, arrays, options, not async_op, root=rank, counts=listed[0]
        )
        return work if async_op else work.wait()

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
        `out` is not looked at. Elements of a lost member that the root has not got are zeros in
        `out`, and the outcome names no contributor for them; unless recovery is "resume" a shard
        comes whole or not at all. With a codec what moves is rounded, and the root's own shard is
        not. A lost root ends the operation with Aborted on all. Otherwise as `all_reduce`.
        """
        encoding = self._parse_carrying(codec, tag)
        rank = self._rank_of(root)
        check_no_root(out)
        if rank == self.rank:
            if out is None:
                raise InvalidArgument("the root of a gather needs out, an array for all shards")
            pairs = _taken(buffers.apart, _each_apart(array, out, counts))
            listed = [self._shards(counts, recv, send, "out", "array") for send, recv in pairs]
            arrays = [_Array(send, recv, send.count) for send, recv in pairs]
        else:
            arrays = [
                _Array(each, None) for each in _taken(buffers.readable, _alone(array, counts))
            ]
            listed = [self._listed(counts, arrays[0].count, "array")]
        options = _options(ReduceOp.SUM, tag, plan, recovery, deadline, encoding)
        work = self._begin(_Kind.GATHER, arrays, options, not async_op, root=rank, counts=listed[0])
        return work if async_op else work.wait()

    @overload
    def all_to_all(
        self,
        array: object,
        out: object,
        send_counts: Sequence[int] | None = ...,
        recv_counts: Sequence[int] | None = ...,
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
        send_counts: Sequence[int] | None = ...,
        recv_counts: Sequence[int] | None = ...,
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
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        tag: int = 0,
        codec: Codec | CodecKind | str = "none",
        plan: Plan | str = Plan.AUTO,
        recovery: Recovery | str | None = None,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Gives each member its shard of `array`; `out` receives a shard from each, in rank order.

        Both have `world_size` equal shards, the same on every peer, and do not touch. With
        `send_counts` and `recv_counts`, the elements for each rank and from each, every two agree
        about what they exchange (else Mismatch) and nobody knows what others do; then at most 32
        ranks, and straight from each to each: a link that stays broken ends the call with Aborted.
        Elements of a lost member for this peer that have not come are zeros in `out`, and the
        outcome names no contributor for them. With a codec what moves is rounded, and one's own
        shard is not. Otherwise as `all_reduce`.
        """
        encoding = self._parse_carrying(codec, tag)
        options = _options(ReduceOp.SUM, tag, plan, recovery, deadline, encoding)
        counts = recv_counts if send_counts is None else send_counts
        pairs = _taken(buffers.apart, _each_apart(array, out, counts))
        for send, recv in pairs:
            if recv.address < send.end and send.address < recv.end:
                raise InvalidArgument("array and out overlap: an all_to_all is not done in place")
        if send_counts is not None or recv_counts is not None:
            work = self._exchange(*pairs[0], send_counts, recv_counts, options, not async_op)
            return work if async_op else work.wait()
        world = self.world_size
        for send, recv in pairs:
            if send.count == recv.count and send.count % world == 0:
                continue
            raise InvalidArgument(
                f"array has {send.count} elements and out has {recv.count}: both need the same "
                f"number, a multiple of world_size, which is {world}, or pass send_counts and "
                "recv_counts"
            )
        arrays = [_Array(send, recv, send.count // world) for send, recv in pairs]
        work = self._begin(_Kind.ALL_TO_ALL, arrays, options, not async_op)
        return work if async_op else work.wait()

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

    def _begin(
        self,
        kind: _Kind,
        arrays: list[_Array],
        options: _Options,
        block: bool,
        *,
        root: int = 0,
        counts: list[int] | None = None,
        kept: object = None,
    ) -> Work:
        native, owners = self._open(), (arrays, kept)
        if counts is None:
            listed = [array.native() for array in arrays]
            return Work(_pccl.coalesced(native, kind, listed, root, options, owners, block))
        only = arrays[0].native()
        return Work(_pccl.uneven(native, kind, only, counts, root, options, owners, block))

    def _exchange(
        self,
        send: buffers.Buffer,
        recv: buffers.Buffer,
        send_counts: Sequence[int] | None,
        recv_counts: Sequence[int] | None,
        options: _Options,
        block: bool,
    ) -> Work:
        if send_counts is None or recv_counts is None:
            raise InvalidArgument("send_counts and recv_counts go together: pass both, or none")
        sent = self._counts(send_counts, "send_counts")
        received = self._counts(recv_counts, "recv_counts")
        for counts, name, buffer, of in (
            (sent, "send_counts", send, "array"),
            (received, "recv_counts", recv, "out"),
        ):
            if sum(counts) != buffer.count:
                raise InvalidArgument(
                    f"{name} are {sum(counts)} together, {of} has {buffer.count} elements"
                )
        array = _Array(send, recv, 0)
        exchange = _pccl.all_to_all_v(
            self._open(), array.native(), sent, received, options, array, block
        )
        return Work(exchange)

    def _shards(
        self,
        counts: Sequence[int] | None,
        whole: buffers.Buffer,
        shard: buffers.Buffer,
        all_of: str,
        one_of: str,
    ) -> list[int] | None:
        """Elements of each rank's shard; None if all have those of `shard`."""
        world = self.world_size
        listed = self._listed(counts, shard.count, one_of)
        if listed is None:
            if whole.count != shard.count * world:
                raise InvalidArgument(
                    f"{all_of} has {whole.count} elements, {one_of} has {shard.count}: with "
                    f"{world} ranks {all_of} needs {shard.count * world}, or pass counts"
                )
            _check_place(whole, shard, shard.count * self.rank, all_of, one_of)
            return None
        if sum(listed) != whole.count:
            raise InvalidArgument(f"counts are {sum(listed)} together, {all_of} has {whole.count}")
        _check_place(whole, shard, sum(listed[: self.rank]), all_of, one_of)
        return listed

    def _listed(self, counts: Sequence[int] | None, own: int, one_of: str) -> list[int] | None:
        """Elements of each rank's shard, of which this rank's has `own`."""
        if counts is None:
            return None
        listed, rank = self._counts(counts, "counts"), self.rank
        if listed[rank] != own:
            raise InvalidArgument(
                f"counts[{rank}], of this rank, is {listed[rank]}; {one_of} has {own}"
            )
        return listed

    def _counts(self, counts: Sequence[int], name: str) -> list[int]:
        if len(counts) != self.world_size:
            raise InvalidArgument(
                f"{name} has {len(counts)} entries: one for each of {self.world_size} ranks"
            )
        return [unsigned(count, f"each of {name}", 64) for count in counts]


class _Kind(IntEnum):
    """pccl_collective_t of pccl.h."""

    ALL_REDUCE = 0
    BROADCAST = 1
    REDUCE = 4
    REDUCE_SCATTER = 5
    ALL_GATHER = 6
    SCATTER = 7
    GATHER = 8
    ALL_TO_ALL = 9


@dataclass(frozen=True, slots=True)
class _Array:
    """One array of a call: what this rank sends and receives of it, and the elements it counts."""

    send: buffers.Buffer | None
    recv: buffers.Buffer | None
    counted: int | None = None

    @property
    def count(self) -> int:
        return self._any.count if self.counted is None else self.counted

    @property
    def _any(self) -> buffers.Buffer:
        buffer = self.send or self.recv
        assert buffer is not None
        return buffer

    def native(self) -> tuple[int, int, int, int]:
        send = self.send.address if self.send else 0
        recv = self.recv.address if self.recv else 0
        return send, recv, self.count, self._any.dtype


def _each(
    array: object, out: object | None = None, counts: object | None = None
) -> list[tuple[object, object | None]]:
    """The arrays of a call, each with its output: one, or those of a list."""
    if not isinstance(array, list | tuple):
        if isinstance(out, list | tuple):
            raise InvalidArgument("out is a list of arrays, and array is not")
        return [(array, out)]
    if not array:
        raise InvalidArgument("the list of arrays is empty: a call has at least one")
    if counts is not None:
        raise InvalidArgument("lists of counts are for one array: call once for each array")
    if out is None:
        return [(one, None) for one in array]
    if not isinstance(out, list | tuple) or len(out) != len(array):
        what = f"{len(out)} arrays" if isinstance(out, list | tuple) else "no list"
        raise InvalidArgument(f"array is a list of {len(array)} arrays: out is {what}")
    return list(zip(array, out, strict=True))


def _alone(array: object, counts: object | None = None) -> list[tuple[object]]:
    return [(one,) for one, _ in _each(array, None, counts)]


def _taken(take: Callable[..., _Taken], given: Sequence[tuple[object, ...]]) -> list[_Taken]:
    """The results of `take` for each array; an error says which of several it was."""
    made = []
    for number, arguments in enumerate(given):
        try:
            made.append(take(*arguments))
        except (TypeError, InvalidArgument) as error:
            if len(given) == 1:
                raise
            raise type(error)(f"array {number} of {len(given)}: {error}") from None
    return made


def check_no_root(out: object) -> None:
    """On every rank, also where `out` is not used, so that no rank waits for one that raised."""
    if isinstance(out, (int, PeerId)):
        raise TypeError(f"out is {out!r}, which is no array: a root is named as root={out!r}")


def _each_apart(array: object, out: object, counts: object | None) -> list[tuple[object, object]]:
    if out is None:
        raise InvalidArgument("this collective is not done in place without out: pass out")
    return [(one, other) for one, other in _each(array, out, counts)]


@dataclass(frozen=True, slots=True)
class _Carried:
    """The codec's losses that a call carries on; nothing without error feedback."""

    feedback: ErrorFeedback | None
    counts: list[int]
    residuals: tuple[int, int]
    kept: object

    def finish(self, work: Work, async_op: bool) -> Outcome | Work:
        if self.feedback is None:
            return work if async_op else work.wait()
        self.feedback.begun(work, self.counts)
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
) -> _Options:
    return (
        parse_op(op),
        unsigned(tag, "tag", 64),
        nanoseconds(deadline, "deadline"),
        parse_recovery(recovery),
        parse_plan(plan),
        (*encoding.native(), *residuals),
    )
