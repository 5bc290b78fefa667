"""Messages: what one member of a group sends and another one receives, while the rest work on.

Group has these methods (communicator.py), beside those that all members call (collectives.py).
"""

from __future__ import annotations

from typing import Literal, SupportsIndex, overload

from pccl_py import _pccl, buffers
from pccl_py.collectives import Collectives
from pccl_py.outcome import Outcome
from pccl_py.words import PeerId, nanoseconds, unsigned
from pccl_py.work import Work

TAG_BITS = 38
"""Tags of messages are smaller than others: with the two ranks they make one number."""


class Messages(Collectives):
    """send and recv of a Group. Any thread may call either, one at a time per rank and tag."""

    @overload
    def send(
        self,
        array: object,
        dst: SupportsIndex | PeerId,
        *,
        tag: int = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def send(
        self,
        array: object,
        dst: SupportsIndex | PeerId,
        *,
        tag: int = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def send(
        self,
        array: object,
        dst: SupportsIndex | PeerId,
        *,
        tag: int = 0,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Sends `array` to the member `dst`, which calls `recv` with as many elements of its dtype.

        `array`: any shape, C-contiguous, of a dtype in `DType`; it is only read. `dst`: another
        rank of the current epoch, or the id of a member. Returns when `dst` has everything: so two
        members that both send first wait for each other until the deadline; pass `async_op` there.
        Messages of one tag to one rank arrive in the order of their calls, and a `recv` of the same
        tag from that rank may be in flight beside them. Raises `Mismatch` if count or dtype differ,
        or the safe points that both have passed; `Aborted` if `dst` is lost, or the link to it is
        broken. A loss of others ends nothing. `tag` is below 2**38. Otherwise as `all_reduce`.
        """
        native = self._open()
        rank = self._rank_of(dst, "dst")
        buffer = buffers.readable(array)
        work = _pccl.send(
            native,
            buffer.address,
            buffer.count,
            buffer.dtype,
            rank,
            unsigned(tag, "the tag of a message", TAG_BITS),
            nanoseconds(deadline, "deadline"),
            buffer.owner,
            not async_op,
        )
        return Work(work) if async_op else Work(work).wait()

    @overload
    def recv(
        self,
        array: object,
        src: SupportsIndex | PeerId,
        *,
        tag: int = ...,
        deadline: float | None = ...,
        async_op: Literal[False] = ...,
    ) -> Outcome: ...
    @overload
    def recv(
        self,
        array: object,
        src: SupportsIndex | PeerId,
        *,
        tag: int = ...,
        deadline: float | None = ...,
        async_op: Literal[True],
    ) -> Work: ...
    def recv(
        self,
        array: object,
        src: SupportsIndex | PeerId,
        *,
        tag: int = 0,
        deadline: float | None = None,
        async_op: bool = False,
    ) -> Outcome | Work:
        """Receives into `array` what the member `src` sends with `send`.

        `array`: any shape, C-contiguous and writable, of as many elements and the same dtype as
        what is sent; on any error it may hold anything. `src`: another rank of the current epoch,
        or the id of a member; there is no receiving from anybody. Otherwise as `send`.
        """
        native = self._open()
        rank = self._rank_of(src, "src")
        buffer = buffers.writable(array)
        work = _pccl.recv(
            native,
            buffer.address,
            buffer.count,
            buffer.dtype,
            rank,
            unsigned(tag, "the tag of a message", TAG_BITS),
            nanoseconds(deadline, "deadline"),
            buffer.owner,
            not async_op,
        )
        return Work(work) if async_op else Work(work).wait()
