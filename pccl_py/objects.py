"""Python objects as pickles: broadcast_object and all_gather_object of a Group.

Each is two operations: sizes first, which everybody checks alike against `size_max`, then bytes.
For arrays there are the collectives, which copy nothing (collectives.py).
"""

from __future__ import annotations

import array
import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack, overload

from pccl_py._in_turn import InTurn
from pccl_py.collectives import Root
from pccl_py.errors import InvalidArgument
from pccl_py.messages import Messages
from pccl_py.options import Message, MessageOptions, check, documented
from pccl_py.words import at_least_one
from pccl_py.work import Work

SIZE_MAX = 64 << 20


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

        `value`: anything that pickle takes; on other ranks it is ignored. `root`: a rank of
        the current epoch, or the id of a member. `size_max`: bytes that the pickle may have, 64 MiB
        if not given, the same on every peer; a larger one is InvalidArgument on all. `deadline` is
        that of the whole. A Work unpickles where it is waited for, or awaited.

        A pickle is code: any peer that can send one to this process can run anything in it. So call
        this only where every member of the group, and every holder of the token, may do that.
        """
        asked = _Asked("broadcast_object", options, size_max)
        is_root = self._rank_of(root) == self.rank
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if is_root else b""
        size = array.array("Q", [len(data)])

        def sizes(async_op: bool) -> Any:
            return self.broadcast(size, root, async_op=async_op, **asked.now())

        def content(async_op: bool) -> Any:
            asked.check(size[0], "the object has")
            memory = data if is_root else bytearray(size[0])
            more: Any = {
                "async_op": async_op,
                "_finish": lambda _: value if is_root else pickle.loads(memory),
            }
            return self.broadcast(memory, root, **asked.now(), **more)

        return asked.run(sizes, content)

    @overload
    def all_gather_object(
        self, value: Any, *, size_max: int = SIZE_MAX, **_: Unpack[Message.Work]
    ) -> Work[list[Any]]: ...
    @overload
    def all_gather_object(
        self, value: Any, *, size_max: int = SIZE_MAX, **_: Unpack[Message.Wait]
    ) -> list[Any]: ...
    @overload
    def all_gather_object(
        self, value: Any, *, size_max: int = SIZE_MAX, **_: Unpack[Message.Bool]
    ) -> list[Any] | Work[list[Any]]: ...
    @documented(MessageOptions)
    def all_gather_object(self, value: Any, *, size_max: int = SIZE_MAX, **options: Any) -> Any:
        """The objects of all members, in rank order, on every member.

        `value`: anything that pickle takes. A member that was lost has None in the list, on all
        alike. `size_max`: bytes that all pickles together may have, 64 MiB if not given, the same
        on every peer; more are InvalidArgument on all. Otherwise as `broadcast_object`.

        A pickle is code: any peer that can send one to this process can run anything in it. So call
        this only where every member of the group, and every holder of the token, may do that.
        """
        asked = _Asked("all_gather_object", options, size_max)
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        own, counts = array.array("Q", [len(data)]), array.array("Q", bytes(8 * self.world_size))

        def sizes(async_op: bool) -> Any:
            how: Any = {"async_op": async_op, "recovery": "restart"}
            return self.all_gather(own, counts, **asked.now(), **how)

        def content(async_op: bool) -> Any:
            asked.check(sum(counts), "the objects have together")
            memory = bytearray(sum(counts))
            how: Any = {
                "async_op": async_op,
                "recovery": "restart",
                "_finish": lambda _: _objects(memory, counts),
            }
            return self.all_gather(data, memory, list(counts), **asked.now(), **how)

        return asked.run(sizes, content)


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

    def __init__(self, name: str, options: Mapping[str, Any], size_max: int) -> None:
        check(name, options, MessageOptions)
        self._options = {key: options[key] for key in options if key != "async_op"}
        self._async_op = options.get("async_op", False)
        self._size_max = at_least_one(size_max, "size_max", 63)
        self._begun = time.monotonic()

    def now(self) -> Any:
        """The options of an operation that begins now."""
        given = self._options.get("deadline")
        if given is None:
            return self._options
        return {**self._options, "deadline": max(1e-3, given - (time.monotonic() - self._begun))}

    def check(self, size: int, what: str) -> None:
        """After the sizes are known to all, so that all raise, and nobody waits."""
        if size > self._size_max:
            raise InvalidArgument(
                f"{what} {size} bytes as pickles, and size_max is {self._size_max}: pass a larger "
                "one on every peer, or send arrays"
            )

    def run(self, first: Callable[[bool], Any], then: Callable[[bool], Any]) -> Any:
        """Both in turn, each of which is told whether it is to return a Work."""
        if self._async_op:
            return InTurn(lambda: first(True), lambda: then(True))
        first(False)
        return then(False)
