"""Hellos, answers and control messages as bytes, as specified in docs/internals/PROTOCOL.md.

Attackers and tests send these bytes to coordinators and peers, or act as coordinator or peer. This
file imports nothing of PCCL, so tests notice if the library deviates from the document.
"""

from __future__ import annotations

import os
import socket
import struct

MAGIC = b"PCCL\r\n\x1a\n"
VERSION = 9
HELLO_BYTES, ANSWER_BYTES, HEAD_BYTES = 96, 32, 8
CONTROL, LANE, STATUS = 1, 2, 3  # purposes of a connection, in its hello
WELCOME, FULL, HELD = 1, 6, 7  # verdicts of an answer
# Numbers of control messages.
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
    """A hello, the first bytes of a connection. Without `instance`, a random instance number."""
    head = MAGIC + struct.pack("<HBBI", version, purpose, 0, 0)
    drawn = os.urandom(8) if instance is None else struct.pack("<Q", instance)
    return head + run_id + sender + meant + drawn + bytes(24)


def answer(verdict: int) -> bytes:
    """An answer, the first bytes that the other side sends back."""
    return MAGIC + struct.pack("<HB", VERSION, verdict) + bytes(21)


def verdict_of(answered: bytes) -> int:
    """The verdict in an answer, or in its first 11 bytes."""
    return answered[10]


def head(size: int, number: int) -> bytes:
    """The head of a control message: its number, and the `size` of its body in bytes."""
    return struct.pack("<IHH", size, number, 0)


def message(number: int, body: bytes = b"") -> bytes:
    """A control message with head and body."""
    return head(len(body), number) + body


def number_and_size(beginning: bytes) -> tuple[int, int]:
    """Number and size of body from the head of a control message: the inverse of `head`."""
    size, number, _ = struct.unpack("<IHH", beginning)
    return number, size


def words(*texts: bytes) -> bytes:
    """Byte strings as encoded in the body of a control message, each after its length."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def join(group: bytes, address: bytes = b"127.0.0.1:1", *, world_size: int = 1) -> bytes:
    """A newcomer's complete request to join `group`. The default `address` leads nowhere."""
    key = bytes(16)
    body = words(group, address) + key + struct.pack("<BIQQ", 1, world_size, 0, 0)
    body += words(b"") + words(b"") + struct.pack("<QI", 0, 0)  # no label, no founders
    return message(JOIN, body) + message(JOIN_END)


def heartbeat(number: int) -> bytes:
    """A heartbeat, which the coordinator acknowledges."""
    return message(HEARTBEAT, struct.pack("<QQQBB", number, 0, 0, 0, 0))


def prepared(group: int, prepare_round: int) -> bytes:
    """A newcomer's message that all its lanes are open, and that its user waits to enter."""
    return message(PREPARED, struct.pack("<HQBI", group, prepare_round, 1, 0))


def vote(group: int, epoch: int, sequence: int, seen: int) -> bytes:
    """A member's vote for a barrier, in an epoch's first attempt. `seen`: number of decisions that
    the member acknowledges."""
    words = (2, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0)
    barrier = struct.pack("<BBBBBBBBBBHQQQII16s4xQ", *words, 0, 0, 0, NOBODY, 0)
    where = struct.pack("<HQIQQ", group, epoch, 1, 0, sequence)
    return message(DONE, where + barrier + bytes(16) + struct.pack("<QQ", seen, 0))


def read(peer: socket.socket, size: int) -> bytes:
    """Reads exactly `size` bytes. Raises ConnectionError if the other side closes before."""
    got = b""
    while len(got) < size:
        more = peer.recv(size - len(got))
        if not more:
            raise ConnectionError(f"closed after {len(got)} of {size} bytes")
        got += more
    return got
