"""Messages: what one member of a group sends and another one receives, while the rest work on.

Group has these methods (communicator.py), beside those that all members call (collectives.py).
"""

from __future__ import annotations

from typing import Any, Unpack

from pccl_py import _pccl, buffers
from pccl_py.buffers import Array
from pccl_py.collectives import Collectives, Root
from pccl_py.options import Asked, MessageOptions, operation
from pccl_py.words import unsigned
from pccl_py.work import Call

TAG_BITS = 38
"""Tags of messages are smaller than others: with the two ranks they make one number."""


class Messages(Collectives):
    """send and recv of a Group. Any thread may call either, one at a time per rank and tag."""

    @operation(MessageOptions)
    def send(self, array: Array, dst: Root, **options: Unpack[MessageOptions]) -> Call:
        """Sends `array` to the member `dst`, which calls `recv` with as many elements of its dtype.

        `array`: any shape, C-contiguous, of a dtype in `DType`, bool, or an eight-bit float of a
        library; it is only read. `dst`: another rank of the current epoch, or the id of a member.
        Returns when `dst` has everything: so two members that both send first wait for each other
        until the deadline; pass `async_op` there. Messages of one tag to one rank arrive in the
        order of their calls, and a `recv` of the same tag from that rank may be in flight beside
        them. Raises `Mismatch` if count or dtype differ, or the safe points that both have passed
        (bool and floats of eight bits count as u8, a complex number as two floats); `Aborted` if
        `dst` is lost, or the link to it is broken. A loss of others ends nothing. `tag` is below
        2**38.
        """
        rank, timed = self._rank_of(dst, "dst"), Asked("send", options).timed
        return self._message("send", _pccl.send, buffers.readable(array), rank, *timed)

    @operation(MessageOptions)
    def recv(self, array: Array, src: Root, **options: Unpack[MessageOptions]) -> Call:
        """Receives into `array` what the member `src` sends with `send`.

        `array`: any shape, C-contiguous and writable, of as many elements and the same dtype as
        what is sent; on any error it may hold anything. `src`: another rank of the current epoch,
        or the id of a member. Otherwise as `send`.

        There is no receiving from whoever sends first, and None for `src` is a TypeError: if peers
        are lost, the two sides could not agree which message that was. Let all say in an
        `all_gather` who sends. Or, in a small group, begin a `recv` with `async_op` from each
        member, each into an array of its own and with a deadline that is long enough; take the one
        that is done first (`Work.add_done_callback`), leave the others in flight for what comes
        next, and begin another one from that member. Do not cancel those that are left: each ends
        with `Aborted` at its sender. A group has 64 receives in flight at a peer, and these count
        as long as they wait: with 64 of them, every further one waits for its turn.
        """
        _check_source(src)
        rank, timed = self._rank_of(src, "src"), Asked("recv", options).timed
        return self._message("recv", _pccl.recv, buffers.writable(array), rank, *timed)

    def _message(
        self,
        name: str,
        begin: Any,
        buffer: buffers.Buffer,
        rank: int,
        tag: int,
        deadline_ns: int,
    ) -> Call:
        unsigned(tag, "the tag of a message", TAG_BITS)
        place = (buffer.address, buffer.count, buffer.dtype)
        rest = rank, tag, deadline_ns, buffer.owner
        return Call(self._origin(name, of_all=False), begin, self._open(), *place, *rest)


def _check_source(src: object) -> None:
    if src is None:
        raise TypeError(
            "src must be a rank or the id of a member, not None: nobody can receive from whoever "
            "sends first. Let all say in an all_gather who sends; or, with fewer than 64 members, "
            "call recv with async_op=True for each, take the first that is done "
            "(Work.add_done_callback) and leave the others in flight for later messages"
        )
