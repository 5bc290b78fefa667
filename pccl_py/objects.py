"""Python objects as pickles: broadcast_object and all_gather_object of a Group.

Each is two operations: sizes first, which everybody checks alike against `size_max`, then bytes.
For arrays there are the collectives, which copy nothing (collectives.py).
"""

from __future__ import annotations

import array
import pickle
import time
from typing import Any

from pccl_py.collectives import Root
from pccl_py.errors import InvalidArgument
from pccl_py.messages import Messages
from pccl_py.words import at_least_one

SIZE_MAX = 64 << 20


class Objects(Messages):
    """The operations of a Group on objects. They wait, and take no `async_op`."""

    def broadcast_object(
        self,
        value: Any = None,
        root: Root = 0,
        *,
        tag: int = 0,
        deadline: float | None = None,
        size_max: int = SIZE_MAX,
    ) -> Any:
        """Returns the object that `root` passes, on every member; there it is `value` itself.

        `value`: anything that pickle takes; on other ranks it is ignored. `root`: a rank of
        the current epoch, or the id of a member. `size_max`: bytes that the pickle may have, 64 MiB
        if not given, the same on every peer; a larger one is InvalidArgument on all. `deadline`: in
        seconds from now, of the whole. `tag`, and other errors, as for `broadcast`.

        A pickle is code: any peer that can send one to this process can run anything in it. So call
        this only where every member of the group, and every holder of the token, may do that.
        """
        limit, left = at_least_one(size_max, "size_max", 63), _Left(deadline)
        is_root = self._rank_of(root) == self.rank
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if is_root else b""
        size = array.array("Q", [len(data)])
        self.broadcast(size, root, tag=tag, deadline=left.seconds())
        _check(size[0], limit, "the object has")
        memory = data if is_root else bytearray(size[0])
        self.broadcast(memory, root, tag=tag, deadline=left.seconds())
        return value if is_root else pickle.loads(memory)

    def all_gather_object(
        self,
        value: Any,
        *,
        tag: int = 0,
        deadline: float | None = None,
        size_max: int = SIZE_MAX,
    ) -> list[Any]:
        """Returns the objects of all members, in rank order, on every member.

        `value`: anything that pickle takes. A lost member has None in the list, on all
        members. `size_max`: bytes that all pickles together may have, 64 MiB if not given, the same
        on every peer; more are InvalidArgument on all. `deadline`: in seconds from now, of the
        whole. `tag`, and other errors, as for `all_gather`.

        A pickle is code: any peer that can send one to this process can run anything in it. So call
        this only where every member of the group, and every holder of the token, may do that.
        """
        limit, left = at_least_one(size_max, "size_max", 63), _Left(deadline)
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        sizes = array.array("Q", bytes(8 * self.world_size))
        self.all_gather(
            array.array("Q", [len(data)]),
            sizes,
            tag=tag,
            recovery="restart",
            deadline=left.seconds(),
        )
        _check(sum(sizes), limit, "the objects have together")
        counts = list(sizes)
        memory = bytearray(sum(counts))
        self.all_gather(data, memory, counts, tag=tag, recovery="restart", deadline=left.seconds())
        view, objects, begin = memoryview(memory), [], 0
        for count in counts:
            # A pickle begins with 0x80: what a lost member had is zeros, or was never announced.
            there = count > 0 and view[begin] != 0
            objects.append(pickle.loads(view[begin : begin + count]) if there else None)
            begin += count
        return objects


class _Left:
    """The time that is left until a deadline."""

    def __init__(self, deadline: float | None) -> None:
        self._given = deadline
        self._begun = time.monotonic()

    def seconds(self) -> float | None:
        if self._given is None:
            return None
        return max(1e-3, self._given - (time.monotonic() - self._begun))


def _check(size: int, limit: int, what: str) -> None:
    """After the sizes are known to all, so that all raise, and nobody waits."""
    if size > limit:
        raise InvalidArgument(
            f"{what} {size} bytes as pickles, and size_max is {limit}: pass a larger one on every "
            "peer, or send arrays"
        )
