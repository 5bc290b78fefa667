"""Python objects as pickles: broadcast_object and all_gather_object of a Group.

Each is two operations: sizes first, which everybody checks alike against `size_max`, then bytes. A
peer whose object cannot be pickled says why in place of its size, so that nobody waits for it.
For arrays there are the collectives, which copy nothing (collectives.py).
"""

from __future__ import annotations

import pickle
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack, overload

from pccl_py import _in_turn, _pccl
from pccl_py._in_turn import Made
from pccl_py.collectives import Root
from pccl_py.errors import InvalidArgument
from pccl_py.messages import Messages
from pccl_py.options import (
    Broadcast,
    BroadcastOptions,
    Message,
    MessageOptions,
    check,
    documented,
)
from pccl_py.outcome import Origin, Roster
from pccl_py.words import (
    PeerId,
    Recovery,
    at_least_one,
    counted,
    nanoseconds,
    parse_recovery,
    shown,
    unsigned,
)
from pccl_py.work import Work

SIZE_MAX = 64 << 20

# A size, or the number behind the largest and the reason why there is none, in UTF-8.
_HEAD = struct.Struct("<Q248s")
_NO_SIZE = 2**64 - 1

_OPTIONS: dict[str, type] = {
    "broadcast_object": MessageOptions,
    "all_gather_object": BroadcastOptions,
}


class Objects(Messages):
    """The operations of a Group on objects."""

    @overload
    def broadcast_object(
        self,
        value: Any = None,
        root: Root = 0,
        *,
        size_max: int = SIZE_MAX,
        **_: Unpack[Message.Work],
    ) -> Work[Any]: ...
    @overload
    def broadcast_object(
        self,
        value: Any = None,
        root: Root = 0,
        *,
        size_max: int = SIZE_MAX,
        **_: Unpack[Message.Bool],
    ) -> Any: ...
    @documented(MessageOptions)
    def broadcast_object(
        self,
        value: Any = None,
        root: Root = 0,
        *,
        size_max: int = SIZE_MAX,
        **options: Any,
    ) -> Any:
        """Returns the object that `root` passes, on every member; there it is `value` itself.

        `value`: anything that pickle takes; on other ranks it is ignored. If pickle does not take
        it, all members get InvalidArgument, which names the root and says why. `root`: a rank of
        the current epoch, or the id of a member. `size_max`: bytes that the pickle may have, 64 MiB
        if not given, the same on every peer; a larger one is InvalidArgument on all. `deadline` is
        that of the whole, and begins anew where a doubt is resolved: `error.work.resolve()` makes
        the rest of the call, so it must come before the next safe point. A Work unpickles where it
        is waited for, or awaited; its tag is in use, and `admit` waits, until all sizes are known.

        A pickle is code: any peer that can send one to this process can run anything in it. So call
        this only where every member of the group, and every holder of the token, may do that.
        """
        asked = _Asked(self._origin("broadcast_object"), options, size_max, self._deadline_ns)
        rank = self._rank_of(root)
        is_root = rank == self.rank
        own = _Pickled(value) if is_root else None
        heads = bytearray(_HEAD.size if own is None else own.head)
        roots, roster = [self.members[rank]], self._rosters.of(self.epoch)

        def sizes(how: Any) -> object:
            return self.broadcast(heads, root, **how)

        def content(how: Any) -> object:
            (size,) = asked.sizes(heads, roots, roster, own)
            asked.check(size, "the object has")
            memory = bytearray(size) if own is None else own.data
            how["_finish"] = lambda _: value if is_root else pickle.loads(memory)
            return self.broadcast(memory, root, **how)

        return self._in_turn(asked, sizes, content)

    @overload
    def all_gather_object(
        self, value: Any, *, size_max: int = SIZE_MAX, **_: Unpack[Broadcast.Work]
    ) -> Work[list[Any]]: ...
    @overload
    def all_gather_object(
        self, value: Any, *, size_max: int = SIZE_MAX, **_: Unpack[Broadcast.Wait]
    ) -> list[Any]: ...
    @overload
    def all_gather_object(
        self, value: Any, *, size_max: int = SIZE_MAX, **_: Unpack[Broadcast.Bool]
    ) -> list[Any] | Work[list[Any]]: ...
    @documented(BroadcastOptions)
    def all_gather_object(self, value: Any, *, size_max: int = SIZE_MAX, **options: Any) -> Any:
        """The objects of all members, in rank order, on every member.

        `value`: anything that pickle takes. If a member is lost, or was before the call, the
        default recovery "complete" ends it with `Aborted` on all, and each such call until the next
        `admit`. With "restart" a member that was lost has None in the list, on all alike; with
        "raise" only one that was lost before. "resume" is InvalidArgument: it could leave a part of
        an object. If pickle does not take the object of one, all members get InvalidArgument, which
        names that one and says why. `size_max`: bytes that all pickles together may have, 64 MiB if
        not given, the same on every peer; more are InvalidArgument on all. Otherwise as
        `broadcast_object`.

        A pickle is code: any peer that can send one to this process can run anything in it. So call
        this only where every member of the group, and every holder of the token, may do that.
        """
        asked = _Asked(self._origin("all_gather_object"), options, size_max, self._deadline_ns)
        recovery = _recovery_of_whole(options)
        own = _Pickled(value)
        members, roster = self.members, self._rosters.of(self.epoch)
        heads = bytearray(_HEAD.size * len(members))

        def sizes(how: Any) -> object:
            return self.all_gather(own.head, heads, recovery=recovery, **how)

        def content(how: Any) -> object:
            counts = asked.sizes(heads, members, roster, own)
            asked.check(sum(counts), "the objects have together")
            memory = bytearray(sum(counts))
            how["_finish"] = lambda _: _objects(memory, counts)
            return self.all_gather(own.data, memory, counts, recovery=recovery, **how)

        return self._in_turn(asked, sizes, content)

    def _in_turn(self, asked: _Asked, first: _Begin, second: _Begin) -> Any:
        both = _Both(asked, first, second)
        return _in_turn.run(both, asked.origin, self._turns, asked.tag, asked.async_op)


def _recovery_of_whole(options: Mapping[str, Any]) -> Recovery:
    recovery = parse_recovery(options.get("recovery"))
    if recovery is Recovery.RESUME:
        raise InvalidArgument(
            "all_gather_object has no recovery 'resume', which could leave a part of an object: "
            "use 'complete', 'restart' or 'raise'"
        )
    return recovery


class _Pickled:
    """An object as it goes to others, and its head, which goes before it."""

    def __init__(self, value: Any) -> None:
        self.data = b""
        self.refusal: Exception | None = None
        try:
            self.data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            self.head = _HEAD.pack(len(self.data), b"")
        except Exception as refusal:  # noqa: BLE001  of whatever the object's own code does
            self.refusal = refusal
            why = f"{type(refusal).__name__}: {refusal}"
            self.head = _HEAD.pack(_NO_SIZE, why.encode("utf-8", "replace"))


def _objects(memory: bytearray, counts: Iterable[int]) -> list[Any]:
    """The pickles that lie one behind the other."""
    view, objects, begin = memoryview(memory), [], 0
    for count in counts:
        # A pickle begins with 0x80: what a lost member had is zeros, or was never announced.
        there = count > 0 and view[begin] != 0
        objects.append(pickle.loads(view[begin : begin + count]) if there else None)
        begin += count
    return objects


class _Asked:
    """The options of one call, whose deadline is that of both operations."""

    def __init__(
        self, origin: Origin, options: Mapping[str, Any], size_max: int, deadline_ns: int
    ) -> None:
        check(origin.operation, options, _OPTIONS[origin.operation])
        self.origin = origin
        self.tag = unsigned(options.get("tag", 0), "tag", 64)
        self.async_op = options.get("async_op", False)
        self._size_max = at_least_one(size_max, "size_max", 63)
        self._seconds = (nanoseconds(options.get("deadline"), "deadline") or deadline_ns) / 1e9
        self.again()

    def again(self) -> None:
        """Counts the deadline from now."""
        self._until = time.monotonic() + self._seconds

    def now(self, made: Made) -> Any:
        """The options of an operation that begins now."""
        left = max(1e-3, self._until - time.monotonic())
        options = {"tag": self.tag, "deadline": left, "async_op": True, "_made": made}
        return {**options, "_form": _pccl.FORM_OBJECT, "_origin": self.origin}

    def sizes(
        self, heads: bytearray, peers: Sequence[PeerId], roster: Roster, own: _Pickled | None
    ) -> list[int]:
        """The sizes that these peers have told; InvalidArgument on all if one has none to tell."""
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
        """After the sizes are known to all, so that all raise, and nobody waits."""
        if size > self._size_max:
            raise self._refusal(
                f"{what} {counted(size, 'byte')} when pickled, and size_max is {self._size_max}: "
                "pass a larger one on every peer, or send arrays"
            )

    def _refusal(self, sentence: str) -> InvalidArgument:
        error = InvalidArgument(f"{self.origin.operation} (tag {self.tag}): {sentence}")
        self.origin.mark(error)
        return error


_Begin: TypeAlias = Callable[[Any], object]
"""Begins an operation with these options."""


@dataclass(frozen=True, slots=True)
class _Both:
    """The two operations of one call."""

    asked: _Asked
    begin_first: _Begin
    begin_second: _Begin

    def first(self, made: Made) -> object:
        return self.begin_first(self.asked.now(made))

    def second(self, made: Made) -> object:
        return self.begin_second(self.asked.now(made))

    def again(self) -> None:
        self.asked.again()
