"""One peer's messages are changed on their way, all checks made right: to the others, it lies.

Goal: no process crashes, no honest peer holds a result that its outcome does not explain, and the
honest ones go on, or get an error that says why. Method: a proxy (tamper.py) changes frames and
messages of one peer of four, its payloads left alone, while all call all_reduce; then that peer is
cut off, and the others must succeed. Failures print the seed.
"""

from __future__ import annotations

import struct
from typing import Any

import oracle
import pytest
import tamper
from linked import COORDINATOR, LinkedWorld
from peers import Peer, Raised
from proxy import Fate, Rule
from tamper import Changer, Tamper

COUNT = 2_003
LIAR = 3
CALLS = 6
SETTINGS: dict[str, Any] = {
    "chunk_bytes": 1024,
    "window_bytes": 16 * 1024,
    "heartbeat": 0.1,
    "silence": 2.0,
}
# Errors that a call may end with when somebody lies.
CLEAR_ERRORS = ("Aborted", "DeadlineExceeded", "Mismatch", "InDoubt", "TooFewPeers")
OUT = ("Expelled", "CoordinatorUnreachable")


@pytest.mark.parametrize("seed", range(2))
def test_lies_on_the_way_end_in_right_sums_or_clear_errors(seed: int) -> None:
    live_with_a_liar(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_many_lies_on_the_way_end_in_right_sums_or_clear_errors(seed: int) -> None:
    live_with_a_liar(seed)


def live_with_a_liar(seed: int) -> None:
    changes = Tamper(str(LIAR), seed, one_in=2 ** (1 + seed % 5))
    with LinkedWorld(4, tamper=changes, **SETTINGS) as world:
        liar, honest = world.peers[LIAR], world.peers[:LIAR]
        changes.active = True
        members = list(honest)
        for salt in range(CALLS):
            members = call(members, liar, salt)
            if len(members) < len(honest):
                break  # somebody has lost its place to lies: the others are looked at below
        changes.active = False
        assert liar.process.running, liar.errors
        for other in (COORDINATOR, *(str(peer.number) for peer in honest)):
            world.proxy.set_rules(str(LIAR), other, Rule(fate=Fate.SWALLOW))
        world.proxy.reset(str(LIAR), COORDINATOR)
        go_on(members, CALLS)
        assert changes.changes > 0, f"seed {seed} has changed nothing"


def must_be_clear(raised: Raised) -> None:
    assert raised.kind in (*CLEAR_ERRORS, *OUT), raised


def call(members: list[Peer], liar: Peer, salt: int) -> list[Peer]:
    """One call of all. Those who are still members; what they hold was judged."""
    begin([*members, liar], salt, deadline=0.5)
    answers = [answer_of(peer, salt) for peer in members]
    oracle.check_agreement([answer for answer in answers if isinstance(answer, dict)])
    try:
        liar.answer()  # may be anything, but it must come
    except Raised as raised:
        must_be_clear(raised)
    return [peer for peer, answer in zip(members, answers, strict=True) if answer not in OUT]


def go_on(members: list[Peer], first: int) -> None:
    """Without the liar they succeed, after at most a few calls that its loss ends."""
    assert members, "every honest peer has lost its place"
    for salt in range(first, first + 4):
        begin(members, salt, deadline=20)
        answers = [answer_of(peer, salt) for peer in members]
        outcomes = [answer for answer in answers if isinstance(answer, dict)]
        oracle.check_agreement(outcomes)
        if len(outcomes) == len(members):
            return
        assert not set(OUT) & {answer for answer in answers if isinstance(answer, str)}, answers
    pytest.fail("the honest ones do not go on")


def begin(peers: list[Peer], salt: int, deadline: float) -> None:
    for peer in peers:
        peer.ask("make", name="x", of="digits", count=COUNT, salt=salt)
    for peer in peers:
        peer.send("run", kind="all_reduce", array="x", deadline=deadline)


def answer_of(peer: Peer, salt: int) -> dict[str, Any] | str:
    """An outcome that explains what the peer holds, or the class of an error."""
    try:
        outcome: dict[str, Any] = peer.answer()
    except Raised as raised:
        must_be_clear(raised)
        return raised.kind
    oracle.check(outcome, peer.read("x"), salt)
    return outcome


def header_of(kind: int) -> bytes:
    """The header of a frame with a payload of five bytes."""
    fields = (3, 4, 9, 77, 2, 5, 1, 5, 2, kind)
    header = bytearray(struct.pack("<QQQQIIIHHB15x", *fields))
    struct.pack_into("<I", header, 60, tamper.checksum(bytes(header)))
    return bytes(header)


def test_the_checksum_is_that_of_the_engine_and_what_is_cut_comes_out_whole() -> None:
    """A frame of the engine passes through a changer that does nothing, byte by byte."""
    header = header_of(tamper.FINAL)
    data = bytes(tamper.ANSWER_BYTES) + header + b"12345" + header + b"67890"
    idle = Changer(Tamper("0", 0, one_in=1), dials=False)
    assert b"".join(idle.feed(data[at : at + 1]) for at in range(len(data))) == data


def test_a_change_keeps_lengths_and_payloads_and_makes_sums_right() -> None:
    active = Tamper("0", 7, one_in=1)
    active.active = True
    header = header_of(tamper.OPEN)
    for _ in range(200):
        changer = Changer(active, dials=False)
        passed = changer.feed(bytes(tamper.ANSWER_BYTES) + header + b"12345")
        head = passed[tamper.ANSWER_BYTES :][: tamper.FRAME_HEADER_BYTES]
        assert passed[-5:] == b"12345" and len(passed) == tamper.ANSWER_BYTES + 69
        assert struct.unpack_from("<I", head, 60)[0] == tamper.checksum(head)
    assert active.changes == 200
