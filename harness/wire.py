"""Hellos, answers and control messages as bytes, the way docs/internals/PROTOCOL.md has them.

Attackers and tests speak with them to coordinators and peers, and stand in for these. Nothing of
PCCL is imported here, so bytes that differ from the document's are refused by the library. The
caller decides what is said to whom.
"""

from __future__ import annotations

import os
import socket
import struct

MAGIC = b"PCCL\r\n\x1a\n"
VERSION = 7
HELLO_BYTES, ANSWER_BYTES, HEAD_BYTES = 96, 32, 8
CONTROL, LANE, STATUS = 1, 2, 3  # purposes
WELCOME, FULL, HELD = 1, 6, 7  # verdicts of an answer
JOIN, JOIN_END, HEARTBEAT, HEARTBEAT_ACK = 1, 3, 5, 6
PREPARED, DONE = 7, 11
PREPARE, ACTIVATE = 23, 26
STATUS_REQUEST, WELCOMED, JOINED, REFUSED, STATUS_REPLY = 19, 20, 21, 22, 33
NOBODY = bytes(16)


def hello(
    purpose: int,
    run_id: bytes,
    sender: bytes = NOBODY,
    meant: bytes = NOBODY,
    *,
    instance: int | None = None,
    version: int = VERSION,
) -> bytes:
    """The first bytes of a connection. The instance is drawn, as a process draws its own."""
    head = MAGIC + struct.pack("<HBBI", version, purpose, 0, 0)
    drawn = os.urandom(8) if instance is None else struct.pack("<Q", instance)
    return head + run_id + sender + meant + drawn + bytes(24)


def answer(verdict: int) -> bytes:
    """The first bytes that come back."""
    return MAGIC + struct.pack("<HB", VERSION, verdict) + bytes(21)


def verdict_of(answered: bytes) -> int:
    """The verdict in an answer, or in its first 11 bytes."""
    return answered[10]


def head(size: int, number: int) -> bytes:
    """The beginning of a control message, whose body has that many bytes."""
    return struct.pack("<IHH", size, number, 0)


def message(number: int, body: bytes = b"") -> bytes:
    """A control message."""
    return head(len(body), number) + body


def number_and_size(beginning: bytes) -> tuple[int, int]:
    """The inverse of `head`."""
    size, number, _ = struct.unpack("<IHH", beginning)
    return number, size


def words(*texts: bytes) -> bytes:
    """Byte strings as they stand in a body."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def join(group: bytes, address: bytes = b"127.0.0.1:1", *, world_size: int = 1) -> bytes:
    """A newcomer's wish to be in a group, whole. Nobody who looks for it there will find it."""
    key = bytes(16)
    body = words(group, address) + key + struct.pack("<BIQQ", 1, world_size, 0, 0)
    body += words(b"") + words(b"") + struct.pack("<QI", 0, 0)  # no label, no founders
    return message(JOIN, body) + message(JOIN_END)


def heartbeat(number: int) -> bytes:
    """A sign of life, which has an answer."""
    return message(HEARTBEAT, struct.pack("<QQQB", number, 0, 0, 0))


def prepared(group: int, prepare_round: int) -> bytes:
    """All lanes are open, and the user waits to enter."""
    return message(PREPARED, struct.pack("<HQBI", group, prepare_round, 1, 0))


def vote(group: int, epoch: int, sequence: int, seen: int) -> bytes:
    """For a barrier, in the first attempt of an epoch. The voter has seen so many decisions."""
    words = (2, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0)
    barrier = struct.pack("<BBBBBBBBBBHQQQII16s4xQ", *words, 0, 0, 0, NOBODY, 0)
    where = struct.pack("<HQIQQ", group, epoch, 1, 0, sequence)
    return message(DONE, where + barrier + bytes(16) + struct.pack("<QQ", seen, 0))


def read(peer: socket.socket, size: int) -> bytes:
    """The next bytes, all of them. Raises ConnectionError if the other side goes before."""
    got = b""
    while len(got) < size:
        more = peer.recv(size - len(got))
        if not more:
            raise ConnectionError(f"closed after {len(got)} of {size} bytes")
        got += more
    return got
