"""Somebody on the way who changes what one peer says, so that every check still comes out right.

It cuts what passes through the proxy into hellos, frames and control messages
(docs/internals/PROTOCOL.md), changes a field of a header or bytes of a body now and then, and makes
the checksum and the length right again. So it is to the others as if that peer lied. It leaves
alone the payloads of data, and what says where data goes or what a member holds of it: nothing
authenticates those, and a lie in them is a wrong sum (docs/internals/PROMISE.md, Byzantine
members). Hellos go as they are, too: identities need keys.
"""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path

HELLO_BYTES, ANSWER_BYTES = 96, 32
FRAME_HEADER_BYTES, MESSAGE_HEADER_BYTES = 64, 8
LANE_PURPOSE = 2
PURPOSE_AT = 10  # in a hello

OPEN, CREDIT, PARTIAL, FINAL, PING, WANT, LEAF, HASHES, LACK = range(1, 10)
DATA_KINDS = (PARTIAL, FINAL, LEAF, HASHES)
# Fields of a frame: offset and bytes. The second list says where data goes, and whose.
ANY_FIELDS = {"epoch": (0, 8), "attempt": (32, 4), "payload_bytes": (36, 4), "fingerprint": (52, 4)}
OTHER_FIELDS = {
    "tag": (8, 8),
    "sequence": (16, 8),
    "index": (24, 8),
    "reduced_attempt": (40, 4),
    "group": (44, 2),
    "class": (46, 2),
    "kind": (48, 1),
    "fragment": (51, 1),
}
# Messages that say what a member holds: report_op, state_offer, state_tensors.
CLAIMS = (16, 36, 37)
_CONTROL = Path(__file__).parents[2] / "engine/wire/control.zig"
_MESSAGE = re.search(
    r"const Message = union\(enum\(u16\)\) {\n(.*?)\n};", _CONTROL.read_text(), re.S
)
assert _MESSAGE is not None, "control.zig does not list the messages as it did"
KINDS = len(_MESSAGE.group(1).splitlines())  # numbered from 1

_WORD = 2**64 - 1


def checksum(header: bytes) -> int:
    """The checksum of a frame's header, as engine/wire/frame.zig says."""
    total = 0x9E3779B97F4A7C15
    word: int
    for (word,) in struct.iter_unpack("<Q", header[:56]):
        total = ((total ^ word) * 0xBF58476D1CE4E5B9) & _WORD
        total = (total << 31 | total >> 33) & _WORD
    last: int = struct.unpack_from("<I", header, 56)[0]
    return ((total ^ last) * 0x94D049BB133111EB & _WORD) >> 32


class Tamper:
    """Changes what `liar` sends, in one unit of `one_in`, while `active`."""

    def __init__(self, liar: str, seed: int, one_in: int) -> None:
        self.liar = liar
        self.random = random.Random(seed)
        self.one_in = one_in
        self.active = False
        self.changes = 0

    def changer(self, sender: str, dials: bool) -> Changer | None:
        """For one direction of a new connection; None: it is left alone."""
        return Changer(self, dials) if sender == self.liar else None

    def strikes(self) -> bool:
        return self.active and self.random.randrange(self.one_in) == 0

    def number(self, old: int, size: int) -> int:
        """Near an edge of something, more often than not."""
        most: int = 256**size - 1
        near = (0, old + 1, old - 1, most, self.random.randrange(70), self.random.randrange(most))
        picked: int = self.random.choice(near)
        return picked & most


class Changer:
    """One direction of one connection."""

    def __init__(self, tamper: Tamper, dials: bool) -> None:
        self._tamper = tamper
        self._waiting = bytearray()
        self._greeting = HELLO_BYTES if dials else ANSWER_BYTES
        self._is_lane: bool | None = None
        self._payload = 0

    def feed(self, data: bytes) -> bytes:
        """The bytes that go on instead. A unit that is not whole yet waits here."""
        self._waiting += data
        passed = bytearray()
        while unit := self._take():
            passed += unit
        return bytes(passed)

    def _take(self) -> bytes:
        if self._greeting:
            return self._take_greeting()
        if self._payload:
            count = min(self._payload, len(self._waiting))
            self._payload -= count
            return self._cut(count)
        if self._is_lane:
            return self._take_frame()
        return self._take_message()

    def _cut(self, count: int) -> bytes:
        taken = bytes(self._waiting[:count])
        del self._waiting[:count]
        return taken

    def _take_greeting(self) -> bytes:
        if len(self._waiting) < self._greeting:
            return b""
        taken = self._cut(self._greeting)
        # Only peers are behind gates that this peer answers at.
        self._is_lane = self._greeting == ANSWER_BYTES or taken[PURPOSE_AT] == LANE_PURPOSE
        self._greeting = 0
        return taken

    def _take_frame(self) -> bytes:
        if len(self._waiting) < FRAME_HEADER_BYTES:
            return b""
        header = bytearray(self._cut(FRAME_HEADER_BYTES))
        (self._payload,) = struct.unpack_from("<I", header, 36)
        if self._tamper.strikes():
            self._tamper.changes += 1
            self._change_header(header)
        return bytes(header)

    def _change_header(self, header: bytearray) -> None:
        fields = dict(ANY_FIELDS)
        if header[48] not in DATA_KINDS:
            fields |= OTHER_FIELDS
        name = self._tamper.random.choice(list(fields))
        at, size = fields[name]
        old = int.from_bytes(header[at : at + size], "little")
        new = self._tamper.number(old, size)
        if name == "kind":
            new = self._tamper.random.choice([OPEN, CREDIT, PING, WANT, LACK])
        header[at : at + size] = new.to_bytes(size, "little")
        struct.pack_into("<I", header, 60, checksum(bytes(header)))

    def _take_message(self) -> bytes:
        if len(self._waiting) < MESSAGE_HEADER_BYTES:
            return b""
        (length, kind) = struct.unpack_from("<IH", self._waiting)
        if len(self._waiting) < MESSAGE_HEADER_BYTES + length:
            return b""
        message = bytearray(self._cut(MESSAGE_HEADER_BYTES + length))
        if kind not in CLAIMS and self._tamper.strikes():
            self._tamper.changes += 1
            self._change_message(message)
        return bytes(message)

    def _change_message(self, message: bytearray) -> None:
        """Another kind with the same body, or a few bytes of the body; its length stays."""
        draw = self._tamper.random
        if len(message) == MESSAGE_HEADER_BYTES or draw.randrange(4) == 0:
            kinds = [kind for kind in range(1, KINDS + 1) if kind not in CLAIMS]
            struct.pack_into("<H", message, 4, draw.choice(kinds))
            return
        body = len(message) - MESSAGE_HEADER_BYTES
        size = min(body, draw.choice([1, 2, 4, 8]))
        at = MESSAGE_HEADER_BYTES + draw.randrange(body - size + 1)
        old = int.from_bytes(message[at : at + size], "little")
        message[at : at + size] = self._tamper.number(old, size).to_bytes(size, "little")
