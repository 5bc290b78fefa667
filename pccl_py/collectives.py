"""The operations of a group: collectives, messages, the barrier, and collectives on objects.

Group inherits these methods (communicator.py), and frontends call them for their arrays (kit/).
This file checks arguments; the native library decides everything else. Each method makes a Call and
runs it (call.py). buffers.py reads arrays, rows.py computes shards, and work.py has the operation
in flight. docs/internals/ALGORITHMS.md says what each collective costs, and what a loss does to it.

An object travels as its pickle. A call with an object is two operations: the first moves the sizes
of pickles, which every member checks alike against `size_max`, the second the pickles. A peer whose
object cannot be pickled sends the reason in place of the size, so that no member waits for the
pickle.
"""

from __future__ import annotations

import pickle
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, Unpack

from pccl_py import _pccl, buffers, many
from pccl_py.buffers import Array
from pccl_py.call import (
    ADDING,
    BroadcastOptions,
    Call,
    CallArray,
    Kind,
    ManyOptions,
    MessageOptions,
    MoveOptions,
    Named,
    ReduceOptions,
    check,
    check_kind,
    documented,
    each_of,
    operation,
)
from pccl_py.closing import Closing
from pccl_py.codec import ErrorFeedback
from pccl_py.errors import InvalidArgument, PcclError
from pccl_py.outcome import Origin, Outcome, Roster, Rosters
from pccl_py.rows import Counts, Rows
from pccl_py.words import (
    PeerId,
    Recovery,
    at_least_one,
    counted,
    index,
    nanoseconds,
    parse_recovery,
    shown,
    unsigned,
)
from pccl_py.work import Work

Root: TypeAlias = SupportsIndex | PeerId
Arrays: TypeAlias = Array | Sequence[Array]
Opt: TypeAlias = Arrays | None
# Tags of collectives are below this number, pair_tags_first of engine/base/limits.zig.
_TAGS_END = 0xFE << 56


TAG_BITS = 38
"""Tags of messages are below 2**38: the native library packs tag and both ranks into 64 bits."""
SIZE_MAX = 64 << 20

# The head of an object: the size of its pickle; or _NO_SIZE, and in UTF-8 the reason why the object
# cannot be pickled.
_HEAD = struct.Struct("<Q248s")
_NO_SIZE = 2**64 - 1

_OPTIONS: dict[str, type] = {
    "broadcast_object": MessageOptions,
    "all_gather_object": BroadcastOptions,
}


class Part(NamedTuple):
    """One operation of an all_reduce_many: arrays as for all_reduce, and a frontend's options."""

    array: Arrays
    out: Arrays
    beside: dict[str, Any]


class Collectives(Closing):
    """The operations of a Group. Any thread may call any operation, one at a time per tag.

    Messages are sent and received one at a time per rank and tag.
    """

    def __init__(self, rosters: Rosters, deadline_ns: int) -> None:
        self._feedbacks: dict[int, ErrorFeedback] = {}
        self._rosters = rosters
        self._deadline_ns = deadline_ns  # for operations that are called without a deadline
        self._origins: dict[str, Origin] = {}

    @property
    def name(self) -> str:
        """The group's name."""
        raise NotImplementedError

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
        """Number of the current epoch."""
        raise NotImplementedError

    @property
    def members(self) -> tuple[PeerId, ...]:
        """All members of the epoch in rank order, also members that left or were lost since."""
        raise NotImplementedError

    def _open(self) -> _pccl.Comm:
        """The native communicator. Raises InvalidUsage after `close`, and in a forked child."""
        raise NotImplementedError

    @operation(ReduceOptions)
    def all_reduce(
        self, array: Arrays, out: Opt = None, **options: Unpack[ReduceOptions]
    ) -> Outcome | Work:
        """Reduces `array` over all members, into `out`, or in place: every peer gets equal bytes.

        `array`: a C-contiguous array of a dtype in `DType`, or a list of arrays, which is one
        operation and needs a list as `out`. All peers pass equal shapes and dtypes. A `Buffer`
        without a shape counts as an array of one dimension. `out`: an array of any shape with as
        many elements of the same dtype as `array`; `out` is `array` itself or does not overlap
        `array`. On any error `array` keeps its content, in place too, and a separate `out` may hold
        anything.
        """
        call = Call(Kind.ALL_REDUCE, options)
        call.reduces(array, out)
        return self._begin(call)

    @documented(ManyOptions)
    def all_reduce_many(
        self,
        arrays: Sequence[Arrays],
        out: Sequence[Arrays] | None = None,
        **options: Unpack[ManyOptions],
    ) -> list[Outcome]:
        """Reduces each of `arrays` over all members, in place or into the arrays of `out`.

        Each array is an operation of its own, and may be whatever `all_reduce` takes; array i has
        the tag `tag` + i. The operations begin in order, at most `in_flight` at once. An aborted
        operation is repeated, up to `retry` times: an abort reaches all members, so all members
        repeat it. All members pass equally many arrays and the same `retry`. `deadline` limits the
        whole call.

        The call tries all operations, also after one has failed. Then it raises the error of the
        first operation that failed; `error.works` has the last operation of each array, whose
        `exception()` and `outcome` tell whether it committed. Arrays of committed operations have
        their results, and all other arrays keep their content. To reduce all arrays or none, pass a
        list to `all_reduce`.
        """
        parts = []
        for number, both in enumerate(listed("arrays", arrays, out)):
            pairs = []
            with Named(f"arrays[{number}]"):
                for which, one, other in each_of(*both):
                    with Named(which):
                        pairs.append(buffers.pair(one, other))
            parts.append(Part([send for send, _ in pairs], [recv for _, recv in pairs], {}))
        return self._many(parts, dict(options))

    def error_feedback(self, tag: int = 0) -> ErrorFeedback:
        """Error feedback: each call of `tag` adds what its codec lost in the call before.

        Returns the same object for the same tag until it is closed; a new object starts from zero.
        Some members may use error feedback and others not.
        """
        self._open()
        number = unsigned(tag, "tag", 64)
        feedback = self._feedbacks.get(number)
        if feedback is None or feedback.closed:
            feedback = self._feedbacks[number] = ErrorFeedback(number)
        return feedback

    @operation(BroadcastOptions)
    def broadcast(
        self, array: Arrays, root: Root = 0, **options: Unpack[BroadcastOptions]
    ) -> Outcome | Work:
        """Copies `array` of `root` into `array` of every member. Every peer gets equal bytes.

        `array`: a C-contiguous array of a dtype in `DType`, of bool or of an eight-bit float of a
        library, or a list of arrays, which is one operation; all peers pass equal shapes and
        dtypes, as for `all_reduce`. `root`: a rank of the current epoch, or the id of a member; on
        the root `array` is only read, and may be read-only. On any error `array` keeps its content
        on every member. If the root is lost, all members get Aborted, unless the survivors together
        have all of the root's data.
        """
        call = Call(Kind.BROADCAST, options)
        call.root = self._rank_of(root)
        if call.root == self.rank:
            call.shows(array)
        else:
            call.writes(array)
        return self._begin(call)

    @operation(ReduceOptions)
    def reduce(
        self, array: Arrays, out: Opt = None, root: Root = 0, **options: Unpack[ReduceOptions]
    ) -> Outcome | Work:
        """Reduces `array` over all members into `out` of `root`, or in place on the root.

        `array` and `out` are as for `all_reduce`; `root` is a rank of the current epoch, or the id
        of a member. Other ranks write nothing, and ignore `out`. With a codec contributions are
        encoded, and the sum, which only the root has, is not. If the root is lost, all members get
        Aborted.
        """
        call = Call(Kind.REDUCE, options)
        call.root = self._rank_of(root)
        check_no_root(out)
        if call.root == self.rank:
            call.reduces(array, out)
        else:
            call.reads(array)
        return self._begin(call)

    @operation(ReduceOptions)
    def reduce_scatter(
        self, array: Arrays, out: Arrays, counts: Counts = None, **options: Unpack[ReduceOptions]
    ) -> Outcome | Work:
        """Reduces `array` over all members; `out` of each rank receives the rank's shard.

        `array` holds a shard for each rank, in rank order: `world_size` times the elements of
        `out`, or with `counts` counts[rank] elements for each rank. All peers pass the same shape
        of `array`, and the same `counts`. `out`, in any shape, is this rank's shard of `array` or
        does not overlap `array`. After a member was lost or has left, the call ends as an
        `all_gather` does; with recovery "restart" or "resume" all shards but those of lost ranks
        arrive. With a codec contributions are encoded, and sums are not. Otherwise as `all_reduce`.
        """
        call = Call(Kind.REDUCE_SCATTER, options)
        self._share(call, array, out, counts, dealt=True)
        return self._begin(call)

    @operation(MoveOptions)
    def all_gather(
        self, array: Arrays, out: Arrays, counts: Counts = None, **options: Unpack[MoveOptions]
    ) -> Outcome | Work:
        """Collects `array` of all members in `out`, in rank order: every peer gets equal bytes.

        `array`: a C-contiguous array of a dtype in `DType`, of bool or of an eight-bit float of a
        library, or a list of arrays, which is one operation and needs a list as `out`. All peers
        pass equal shapes, except that with `counts` the first lengths may differ. `out`, in any
        shape, has `world_size` times the elements of `array`, or with `counts` counts[rank]
        elements of each rank; all peers pass the same `counts`. `array` is this rank's shard of
        `out` or does not overlap `out`.

        After a member was lost or has left, the call raises Aborted on all members, and so do
        later calls until an `admit` begins an epoch without that member (`Admission.changed`).
        With recovery "restart" or "resume" calls go on: elements of a lost member that no survivor
        received are zeros in `out` on all members, and the outcome names no contributor for them;
        with "restart" a shard arrives whole or is zeros. With a codec each shard is rounded once,
        also this rank's own shard in `out`, so that all members have equal bytes. On any error
        `array` keeps its content; in place, all of `out` does.
        """
        call = Call(Kind.ALL_GATHER, options)
        self._share(call, array, out, counts)
        return self._begin(call)

    @operation(MoveOptions)
    def scatter(
        self,
        array: Opt,
        out: Arrays,
        root: Root = 0,
        counts: Counts = None,
        **options: Unpack[MoveOptions],
    ) -> Outcome | Work:
        """Deals out the shards of `array` of `root`: `out` of each rank receives the rank's shard.

        On the root `array` has `world_size` times the elements of `out`, in rank order, or with
        `counts` counts[rank] elements for each rank; all peers pass the same `counts`. The root's
        `out` may be the root's shard of `array`. Other ranks ignore `array`, which may be None. The
        lengths of `out` but the first are equal on all peers. With a codec the shards that travel
        are rounded, and the root's own shard is not. If the root is lost, all members get Aborted.
        Otherwise as `all_gather`.
        """
        call = Call(Kind.SCATTER, options)
        call.root = self._rank_of(root)
        if call.root == self.rank:
            if array is None:
                raise InvalidArgument("the root of a scatter needs array, with the shards of all")
            self._share(call, array, out, counts, dealt=True)
        else:
            call.writes(out, counts)
            call.counts = self._rows(call.arrays[0].count, counts, "out").elements or ()
        return self._begin(call)

    @operation(MoveOptions)
    def gather(
        self,
        array: Arrays,
        out: Opt = None,
        root: Root = 0,
        counts: Counts = None,
        **options: Unpack[MoveOptions],
    ) -> Outcome | Work:
        """Collects `array` of all members in `out` of `root`, in rank order.

        On the root `out` has `world_size` times the elements of `array`, or with `counts`
        counts[rank] elements of each rank; all peers pass the same `counts`. The root's `array` may
        be the root's shard of `out`. Other ranks ignore `out`. With a codec the shards that travel
        are rounded, and the root's own shard is not. If the root is lost, all members get Aborted,
        whatever the recovery. Otherwise as `all_gather`, where elements that the root has not
        received may be zeros.
        """
        call = Call(Kind.GATHER, options)
        call.root = self._rank_of(root)
        check_no_root(out)
        if call.root == self.rank:
            if out is None:
                raise InvalidArgument("the root of a gather needs out, an array for all shards")
            self._share(call, array, out, counts)
        else:
            call.reads(array, counts)
            call.counts = self._rows(call.arrays[0].count, counts, "array").elements or ()
        return self._begin(call)

    @operation(MoveOptions)
    def all_to_all(
        self,
        array: Arrays,
        out: Arrays,
        send_counts: Counts = None,
        recv_counts: Counts = None,
        **options: Unpack[MoveOptions],
    ) -> Outcome | Work:
        """Gives each member its shard of `array`; `out` receives a shard from each, in rank order.

        Both arrays have `world_size` equal shards, of the same size on all peers, and do not
        overlap. `send_counts` and `recv_counts` are the elements for each rank and from each rank:
        any two peers must agree about the shards between them (else Mismatch), and need not know
        other shards. With counts, bool and floats of eight bits go as u8 and a complex number as
        two floats; at most 32 ranks take part; and shards go straight to their ranks, so a link
        that stays broken ends the call with Aborted. With a codec the shards that travel are
        rounded, and this rank's own shard is not. Otherwise as `all_gather`, where elements that
        this rank has not received may be zeros.
        """
        call = Call(Kind.ALL_TO_ALL, options)
        counts = recv_counts if send_counts is None else send_counts
        pairs = _apart(array, out, counts)
        for send, recv in pairs:
            if recv.address < send.end and send.address < recv.end:
                raise InvalidArgument("array and out must not overlap in an all_to_all")
        if counts is not None:
            self._exchange(call, *pairs[0], send_counts, recv_counts)
            return self._begin(call)
        world = self.world_size
        for send, recv in pairs:
            if send.count != recv.count or send.count % world:
                raise InvalidArgument(
                    f"array has {counted(send.count, 'element')} and out has {recv.count}: both "
                    f"need the same number, a multiple of world_size, which is {world}, or pass "
                    "send_counts and recv_counts"
                )
            call.arrays.append(CallArray(send, recv, send.count // world))
        return self._begin(call)

    @operation(BroadcastOptions)
    def barrier(self, **options: Unpack[BroadcastOptions]) -> Outcome | Work:
        """Returns once every member that is left has called `barrier`.

        With recovery "complete" the call raises Aborted if a member is lost. A peer votes as it
        calls `barrier`, so a barrier whose deadline passes raises InDoubt.
        """
        return self._begin(Call(Kind.BARRIER, options))

    # ---- messages

    @operation(MessageOptions)
    def send(self, array: Array, dst: Root, **options: Unpack[MessageOptions]) -> Outcome | Work:
        """Sends `array` to the member `dst`, which calls `recv` with as many elements of its dtype.

        `array`: any shape, C-contiguous, of a dtype in `DType`, bool, or an eight-bit float of a
        library; it is only read. `dst`: another rank of the current epoch, or the id of a member.
        Returns when `dst` has the whole message: two members that both send first would wait for
        each other until the deadline, so pass `async_op` there. Messages of one tag to one rank
        arrive in the order of their calls, and a `recv` of the same tag from that rank may be in
        flight beside them. Raises `Mismatch` if both sides differ in count, in dtype (bool and
        floats of eight bits go as u8, a complex number as two floats) or in the safe points that
        they have passed; `Aborted` if `dst` is lost, or the link to it is broken. The loss of a
        third member does not end the message. `tag` is below 2**38.
        """
        call = Call(Kind.SEND, options)
        call.root = self._rank_of(dst, "dst")
        call.arrays.append(CallArray(buffers.readable(array), None))
        return self._begin(call)

    @operation(MessageOptions)
    def recv(self, array: Array, src: Root, **options: Unpack[MessageOptions]) -> Outcome | Work:
        """Receives into `array` the message that the member `src` sends with `send`.

        `array`: any shape, C-contiguous and writable, of as many elements and the same dtype as the
        message; on any error `array` may hold anything. `src`: another rank of the current epoch,
        or the id of a member. Otherwise as `send`.

        No call receives from an arbitrary member, and None for `src` is a TypeError: after a loss
        the two sides could not agree which message was meant. Let all members say in an
        `all_gather` whether they send. Or, in a small group, begin a `recv` with `async_op` from
        each member, into an array of its own and with a long deadline; take the `recv` that is done
        first (`Work.add_done_callback`), begin another `recv` from that member, and leave the other
        receives in flight for later messages. Do not cancel them: a cancelled `recv` ends with
        `Aborted` at its sender. A group has 64 receives in flight at a peer, waiting ones included;
        a further `recv` waits for its turn.
        """
        _check_source(src)
        call = Call(Kind.RECV, options)
        call.root = self._rank_of(src, "src")
        call.arrays.append(CallArray(None, buffers.writable(array)))
        return self._begin(call)

    # ---- objects

    @documented(MessageOptions)
    def broadcast_object(
        self,
        value: Any = None,
        root: Root = 0,
        *,
        size_max: int = SIZE_MAX,
        **options: Unpack[MessageOptions],
    ) -> Any:
        """Returns on every member the object that `root` passes; the root gets `value` itself.

        `value`: any object that pickle takes; other ranks ignore `value`. If pickle refuses
        `value`, all members get InvalidArgument, which names the root and the reason. `root`: a
        rank of the current epoch, or the id of a member. `size_max`: bytes that the pickle may
        have, 64 MiB by default, the same on every peer; a larger pickle is InvalidArgument on all
        members. `deadline` limits the whole call. After InDoubt, `error.work.resolve()` makes the
        rest of the call with a new deadline, so call `resolve` before the next safe point.

        A pickle is code: a peer that sends a pickle to this process can run anything in it. So call
        this only if every member of the group, and every holder of the token, may run code here.
        """
        call = _ObjectCall(self._origin("broadcast_object"), options, size_max, self._deadline_ns)
        rank = self._rank_of(root)
        is_root = rank == self.rank
        own = _Pickled(value) if is_root else None
        heads = bytearray(_HEAD.size if own is None else own.head)
        roots, roster = [self.members[rank]], self._rosters.of(self.epoch)

        def sizes(how: Any) -> Any:
            return self.broadcast(heads, root, **how)

        def content(how: Any) -> Any:
            (size,) = call.sizes(heads, roots, roster, own)
            call.check(size, "the object has")
            memory = bytearray(size) if own is None else own.data
            how["_finish"] = lambda _: value if is_root else pickle.loads(memory)
            return self.broadcast(memory, root, **how)

        return call.run(sizes, content)

    @documented(BroadcastOptions)
    def all_gather_object(
        self, value: Any, *, size_max: int = SIZE_MAX, **options: Unpack[BroadcastOptions]
    ) -> list[Any]:
        """The objects of all members, in rank order, on every member.

        `value`: any object that pickle takes. After the loss of a member, before or during the
        call, the default recovery "complete" raises `Aborted` on all members, also in later calls
        until the next `admit`. With "restart" the list has None for each lost member, on all
        members alike; with "raise" the list has None for members that were lost before the call,
        and a later loss raises `Aborted`. "resume" is InvalidArgument, as a part of an object could
        be left. If pickle refuses an object, all members get InvalidArgument, which names the
        member and the reason. `size_max`: bytes that all pickles together may have, 64 MiB by
        default, the same on every peer; more bytes are InvalidArgument on all members. Otherwise as
        `broadcast_object`.

        A pickle is code: a peer that sends a pickle to this process can run anything in it. So call
        this only if every member of the group, and every holder of the token, may run code here.
        """
        call = _ObjectCall(self._origin("all_gather_object"), options, size_max, self._deadline_ns)
        recovery = _recovery_of_whole(options)
        own = _Pickled(value)
        members, roster = self.members, self._rosters.of(self.epoch)
        heads = bytearray(_HEAD.size * len(members))

        def sizes(how: Any) -> Any:
            return self.all_gather(own.head, heads, recovery=recovery, **how)

        def content(how: Any) -> Any:
            counts = call.sizes(heads, members, roster, own)
            call.check(sum(counts), "the objects have together")
            memory = bytearray(sum(counts))
            how["_finish"] = lambda _: _objects(memory, counts)
            return self.all_gather(own.data, memory, counts, recovery=recovery, **how)

        objects: list[Any] = call.run(sizes, content)
        return objects

    # ---- helpers of the operations

    def _many(self, parts: Sequence[Part], options: Any, called: str = "arrays") -> list[Any]:
        """The results of an all_reduce of each part; `called` names the list of parts in errors."""
        name = "all_reduce_many"
        check(name, options, ManyOptions)
        in_flight = unsigned(options.pop("in_flight", many.IN_FLIGHT), "in_flight", 64)
        if not 1 <= in_flight <= many.IN_FLIGHT_MAX:
            raise InvalidArgument(
                f"in_flight must be between 1 and {many.IN_FLIGHT_MAX}, not {in_flight}"
            )
        retry = unsigned(options.pop("retry", many.RETRY), "retry", 64)
        asked = Call(Kind.ALL_REDUCE, options)
        last = asked.tag + len(parts) - 1
        if last >= _TAGS_END:
            raise InvalidArgument(
                f"the tags of these arrays go up to {last}: those from {_TAGS_END} on are not for "
                "collectives"
            )
        deadline_ns = nanoseconds(options.pop("deadline", None), "deadline") or self._deadline_ns
        for number, part in enumerate(parts):
            with Named(f"{called}[{number}]"):
                for which, one, _ in each_of(part.array):
                    with Named(which):
                        _check_dtype(buffers.readable(one), asked)
        _check_apart(parts)

        all_reduce: Any = self.all_reduce

        def begin(number: int, part: Part) -> many.Begin:
            how = {**options, "tag": asked.tag + number, "async_op": True, **part.beside}
            return lambda left, made: all_reduce(
                part.array, part.out, **how, deadline=left, _made=made
            )

        begins = [begin(number, part) for number, part in enumerate(parts)]
        return many.run(
            begins,
            self._origin(name),
            in_flight=in_flight,
            retry=retry,
            seconds=deadline_ns / 1e9,
        )

    def _origin(self, operation: str, *, of_all: bool = True) -> Origin:
        origin = self._origins.get(operation)
        if origin is None:
            origin = Origin(operation, self.name, self._rosters, of_all)
            self._origins[operation] = origin
        return origin

    def _rank_of(self, member: Root, name: str = "root") -> int:
        if isinstance(member, PeerId):
            members = self.members
            if member not in members:
                raise InvalidArgument(f"{name} {member} is not a member of epoch {self.epoch}")
            return members.index(member)
        rank = index(member, name)
        if not 0 <= rank < self.world_size:
            raise InvalidArgument(
                f"{name} must be a rank from 0 to {self.world_size - 1}, not {rank}"
            )
        return rank

    def _begin(self, call: Call) -> Outcome | Work:
        """Runs `call`, which has its arrays. Returns its result, or with `async_op` its Work."""
        is_message = call.kind in (Kind.SEND, Kind.RECV)
        if is_message:
            unsigned(call.tag, "the tag of a message", TAG_BITS)
        feedback = self._feedbacks.get(call.tag) if call.codec.encodes else None
        if feedback is not None and not feedback.closed:
            if call.kind not in ADDING:
                raise InvalidArgument(
                    f"tag {call.tag} has error feedback, which is for all_reduce, reduce and "
                    "reduce_scatter: here nothing is added up that could be given back later; use "
                    "another tag"
                )
            call.carry(feedback)
        origin = self._origin(call.name, of_all=not is_message)
        begun: Outcome | Work = call.run(self._open(), origin)
        return begun

    def _exchange(
        self,
        call: Call,
        send: buffers.Buffer,
        recv: buffers.Buffer,
        send_counts: Counts,
        recv_counts: Counts,
    ) -> None:
        """Adds to `call` the array of an all_to_all with counts."""
        if send_counts is None or recv_counts is None:
            raise InvalidArgument("send_counts and recv_counts go together: pass both, or none")
        call.counts = self._elements(send, send_counts, "send_counts", "array")
        call.recv_counts = self._elements(recv, recv_counts, "recv_counts", "out")
        call.arrays.append(CallArray(send, recv, 0))

    def _elements(
        self, buffer: buffers.Buffer, counts: Sequence[int], name: str, of: str
    ) -> Sequence[int]:
        rows = Rows.of_counts(self, (), counts, name)
        if rows.whole != buffer.count:
            raise InvalidArgument(
                f"{name} add up to {rows.whole}, {of} has {counted(buffer.count, 'element')}"
            )
        return rows.elements or ()

    def _share(
        self, call: Call, array: object, out: object, counts: Counts, *, dealt: bool = False
    ) -> None:
        """Adds arrays to a call that gathers shards in `out`, or with `dealt` deals out `array`."""
        all_of, one_of = ("array", "out") if dealt else ("out", "array")
        for send, recv in _apart(array, out, counts):
            whole, shard = (send, recv) if dealt else (recv, send)
            rows = self._rows(shard.count, counts, one_of)
            if counts is not None and rows.whole != whole.count:
                raise InvalidArgument(f"counts add up to {rows.whole}, {all_of} has {whole.count}")
            if rows.whole != whole.count:
                raise InvalidArgument(
                    f"{all_of} has {counted(whole.count, 'element')}, {one_of} has {shard.count}: "
                    f"with {counted(self.world_size, 'rank')} {all_of} needs {rows.whole}, or pass "
                    "counts"
                )
            _check_place(whole, shard, rows.first, all_of, one_of)
            call.arrays.append(CallArray(send, recv, shard.count))
            call.counts = rows.elements or ()

    def _rows(self, own: int, counts: Counts, name: str) -> Rows:
        """The shards of a call, with elements as rows; `name` is this rank's array in errors."""
        return Rows.of_part(self, (own,), counts, name, "element")


def _check_dtype(array: buffers.Buffer, asked: Call) -> None:
    """Raises the native library's error for a dtype, before the first operation has begun."""
    check_kind(array, asked.op)
    name, dtype = asked.op.name.lower(), array.dtype.name.lower()
    if asked.op.is_bitwise and array.dtype.is_float:
        raise InvalidArgument(
            f"op {name} is of integers, and dtype is {dtype}: floats have no {name}"
        )
    if asked.codec.encodes and not array.dtype.is_float:
        raise InvalidArgument(
            f"codec {asked.codec.name} is for floats, and dtype is {dtype}: reduce integers "
            "without a codec"
        )


def listed(name: str, arrays: object, out: object) -> list[tuple[object, object | None]]:
    """Pairs the arrays of an all_reduce_many with their outputs; `name` is `arrays` in errors."""
    if not isinstance(arrays, list | tuple):
        raise TypeError(f"{name} must be a list, not {type(arrays).__name__}")
    if not arrays:
        raise InvalidArgument(f"{name} is empty: there is at least one")
    if out is None:
        return [(one, None) for one in arrays]
    if not isinstance(out, list | tuple):
        raise TypeError(f"out must be a list, as {name} is, not {type(out).__name__}")
    if len(out) != len(arrays):
        raise InvalidArgument(f"{name} has {len(arrays)}, out has {len(out)}")
    return list(zip(arrays, out, strict=True))


def _check_apart(parts: Sequence[Part]) -> None:
    """Raises InvalidArgument if a part writes memory that another part reads or writes."""
    spans = sorted(
        _Span(buffer.address, buffer.end, number, written)
        for number, part in enumerate(parts)
        for given, written in ((part.array, False), (part.out, True))
        for _, one, _ in each_of(given)
        for buffer in [buffers.readable(one)]
        if buffer.address < buffer.end
    )
    reaching: list[_Span] = []
    for span in spans:
        reaching = [each for each in reaching if each.end > span.begin]
        for each in reaching:
            if each.number != span.number and (each.written or span.written):
                one, other = sorted((each.number, span.number))
                raise InvalidArgument(
                    f"arrays {one} and {other} share memory that one of them writes, and may be in "
                    "flight together: leave out one of them, or copy it"
                )
        reaching.append(span)


class _Span(NamedTuple):
    """The memory [begin, end) of an array of part `number`, which writes to it if `written`."""

    begin: int
    end: int
    number: int
    written: bool


def check_no_root(out: object) -> None:
    """Raises TypeError if `out` is a rank or a peer id, on all ranks, so that no rank waits."""
    if isinstance(out, (int, PeerId)):
        raise TypeError(f"out must be an array, not {out!r}: name a root as root={out!r}")


def _apart(
    array: object, out: object, counts: object | None
) -> list[tuple[buffers.Buffer, buffers.Buffer]]:
    """Pairs the buffers of `array` with those of `out`. Raises InvalidArgument without `out`."""
    if out is None:
        raise InvalidArgument("this collective needs `out`")
    pairs = []
    for which, one, other in each_of(array, out, counts):
        with Named(which):
            pairs.append(buffers.apart(one, other))
    return pairs


def _check_place(
    whole: buffers.Buffer, shard: buffers.Buffer, first: int, all_of: str, one_of: str
) -> None:
    if shard.count == 0 or shard.address == whole.address + first * whole.dtype.size:
        return
    if shard.address < whole.end and whole.address < shard.end:
        raise InvalidArgument(
            f"array and out overlap: {one_of} must be this rank's shard of {all_of}, or lie apart"
        )


def _check_source(src: object) -> None:
    if src is None:
        raise TypeError(
            "src must be a rank or the id of a member, not None: nobody can receive from whoever "
            "sends first. Let all say in an all_gather who sends; or, with fewer than 64 members, "
            "call recv with async_op=True for each, take the first that is done "
            "(Work.add_done_callback) and leave the others in flight for later messages"
        )


def _recovery_of_whole(options: Mapping[str, Any]) -> Recovery:
    recovery = parse_recovery(options.get("recovery"))
    if recovery is Recovery.RESUME:
        raise InvalidArgument(
            "all_gather_object has no recovery 'resume', which could leave a part of an object: "
            "use 'complete', 'restart' or 'raise'"
        )
    return recovery


class _Pickled:
    """The pickle of an object, and its head (_HEAD), which is sent before the pickle."""

    def __init__(self, value: Any) -> None:
        self.data = b""
        self.refusal: Exception | None = None
        try:
            self.data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            self.head = _HEAD.pack(len(self.data), b"")
        except Exception as refusal:  # noqa: BLE001  code of the object itself may raise anything
            self.refusal = refusal
            why = f"{type(refusal).__name__}: {refusal}"
            self.head = _HEAD.pack(_NO_SIZE, why.encode("utf-8", "replace"))


def _objects(memory: bytearray, counts: Iterable[int]) -> list[Any]:
    """Unpickles the objects in `memory`, one behind the other; None for a lost member's object."""
    view, objects, begin = memoryview(memory), [], 0
    for count in counts:
        # A pickle begins with 0x80; the bytes of a lost member are zeros, or none.
        there = count > 0 and view[begin] != 0
        objects.append(pickle.loads(view[begin : begin + count]) if there else None)
        begin += count
    return objects


class _ObjectCall:
    """A call with objects: its options, its two operations, and the deadline of both together."""

    def __init__(
        self, origin: Origin, options: Mapping[str, Any], size_max: int, deadline_ns: int
    ) -> None:
        check(origin.operation, options, _OPTIONS[origin.operation])
        self._origin = origin
        self._tag = unsigned(options.get("tag", 0), "tag", 64)
        self._size_max = at_least_one(size_max, "size_max", 63)
        self._seconds = (nanoseconds(options.get("deadline"), "deadline") or deadline_ns) / 1e9
        self._until = time.monotonic() + self._seconds
        self._works: list[Work[Any]] = []

    def run(self, sizes: Callable[[Any], Any], content: Callable[[Any], Any]) -> Any:
        """Runs the operation for sizes, then the one for content, and returns the latter's result.

        The second operation begins when the first commits, also if `resolve` finds that it has
        committed.
        """
        how = self._options()
        how["_finish"] = lambda _: self._second(content)
        try:
            return sizes(how)
        except PcclError:
            self._until = float("inf")
            raise
        except BaseException as error:
            # Only the first operation has begun: begin and withdraw the second, for which others
            # wait.
            if self._begun() == 1 and self._works[0].exception() is None:
                work = content({**self._options(), "async_op": True})
                work._native.withdraw()
                error.__dict__["work"] = work
            raise

    def _second(self, content: Callable[[Any], Any]) -> Any:
        if self._begun() == 2:  # the second operation has failed: raise its error again
            return self._works[-1].wait()
        return content(self._options())

    def _begun(self) -> int:
        """The number of operations that have begun; keeps only these in `_works`."""
        self._works = [work for work in self._works if work._native.begun]
        return len(self._works)

    def _options(self) -> Any:
        """The options of an operation that begins now, with what is left of the deadline."""
        left = min(self._seconds, max(1e-3, self._until - time.monotonic()))
        options = {"tag": self._tag, "deadline": left, "_made": self._works.append}
        return {**options, "_form": _pccl.FORM_OBJECT, "_origin": self._origin}

    def sizes(
        self, heads: bytearray, peers: Sequence[PeerId], roster: Roster, own: _Pickled | None
    ) -> list[int]:
        """The pickle sizes of `peers`. Raises InvalidArgument if an object cannot be pickled."""
        told = list(_HEAD.iter_unpack(heads))
        for peer, (size, reason) in zip(peers, told, strict=True):
            if size == _NO_SIZE:
                why = shown(reason.rstrip(b"\0").decode(errors="ignore"))
                error = self._refusal(
                    f"the object of {roster.named(peer)} cannot be pickled: {why}"
                )
                raise error from (None if own is None else own.refusal)
        return [size for size, _ in told]

    def check(self, size: int, what: str) -> None:
        """Raises InvalidArgument if `size` exceeds `size_max`, on all members alike."""
        if size > self._size_max:
            raise self._refusal(
                f"{what} {counted(size, 'byte')} when pickled, and size_max is {self._size_max}: "
                "pass a larger one on every peer, or send arrays"
            )

    def _refusal(self, sentence: str) -> InvalidArgument:
        error = InvalidArgument(f"{self._origin.operation} (tag {self._tag}): {sentence}")
        self._origin.mark(error)
        return error
