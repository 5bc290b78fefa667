"""Python objects as pickles: broadcast_object and all_gather_object of a Group.

Each call is two operations: sizes first, which every member checks alike against `size_max`, then
bytes. A peer whose object cannot be pickled sends the reason in place of the size, so that no
member waits for its bytes. Arrays have the collectives, which copy nothing (collectives.py).
"""

from __future__ import annotations

import pickle
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from pccl_py import _pccl
from pccl_py.collectives import Root
from pccl_py.errors import InvalidArgument, PcclError
from pccl_py.messages import Messages
from pccl_py.options import BroadcastOptions, MessageOptions, check, documented
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

    @documented(MessageOptions)
    def broadcast_object(
        self,
        value: Any = None,
        root: Root = 0,
        *,
        size_max: int = SIZE_MAX,
        **options: Unpack[MessageOptions],
    ) -> Any:
        """Returns the object that `root` passes, on every member; there it is `value` itself.

        `value`: anything that pickle takes; on other ranks it is ignored. If pickle does not take
        it, all members get InvalidArgument, which names the root and says why. `root`: a rank of
        the current epoch, or the id of a member. `size_max`: bytes that the pickle may have, 64 MiB
        if not given, the same on every peer; a larger one is InvalidArgument on all. `deadline` is
        that of the whole, and begins anew where a doubt is resolved: `error.work.resolve()` makes
        the rest of the call, so it must come before the next safe point.

        A pickle is code: any peer that can send one to this process can run anything in it. So call
        this only where every member of the group, and every holder of the token, may do that.
        """
        call = _Call(self._origin("broadcast_object"), options, size_max, self._deadline_ns)
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
        call = _Call(self._origin("all_gather_object"), options, size_max, self._deadline_ns)
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


class _Call:
    """One call: its options, its two operations, and the deadline that they share."""

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
        """Makes both operations, and returns the result of the second.

        The second begins as the first commits, also where a doubt about that is resolved.
        """
        how = self._options()
        how["_finish"] = lambda _: self._second(content)
        try:
            return sizes(how)
        except PcclError:
            self._until = float("inf")
            raise
        except BaseException as error:
            # Between the operations: the second is withdrawn, as other members wait for its bytes.
            if self._begun() == 1 and self._works[0].exception() is None:
                work = content({**self._options(), "async_op": True})
                work._native.withdraw()
                error.__dict__["work"] = work
            raise

    def _second(self, content: Callable[[Any], Any]) -> Any:
        if self._begun() == 2:  # it has failed: its error is raised again
            return self._works[-1].wait()
        return content(self._options())

    def _begun(self) -> int:
        """How many of the operations have begun."""
        self._works = [work for work in self._works if work._native.begun]
        return len(self._works)

    def _options(self) -> Any:
        """The options of an operation that begins now."""
        left = min(self._seconds, max(1e-3, self._until - time.monotonic()))
        options = {"tag": self._tag, "deadline": left, "_made": self._works.append}
        return {**options, "_form": _pccl.FORM_OBJECT, "_origin": self._origin}

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
        error = InvalidArgument(f"{self._origin.operation} (tag {self._tag}): {sentence}")
        self._origin.mark(error)
        return error
