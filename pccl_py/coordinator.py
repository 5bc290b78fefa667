"""The coordinator of a run inside this process, tokens, and the status of a run.

The coordinator itself is native and has a thread of its own; here its options get names and
seconds. Peers join with its token (communicator.connect). `pccl coordinator` is cli/.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from pccl_py import _lifecycle, _log_output, _pccl
from pccl_py._environment import Arguments
from pccl_py.closing import Closing
from pccl_py.errors import InvalidArgument, VersionMismatch
from pccl_py.words import PeerId, Probe, ProbeName, nanoseconds, text


class Coordinator(Closing):
    """Decides membership and outcomes of a run. Runs until `close`, or until the process ends.

    It also runs on when the program holds it no longer, and before any peer has come: a peer may
    know its token from the run id and the address alone.

    Arguments that are not given come from the environment: PCCL_COORDINATOR_BIND and so on
    (docs/reference/ENVIRONMENT.md); defaults are in parentheses.

    `bind`: "host:port" to listen on, or "host" for a free port there; default: 127.0.0.1.
    `advertise`: address that goes into the token, "host" or "host:port"; default: the bound one.
    `run_id`: 16 bytes, default random. `min_world_size`: a group that falls below fails with
    TooFewPeers (1). `initial_world_size`: peers the first epoch of a group waits for, unless they
    say (1). `lanes_per_link`: TCP connections between two peers, 1 to 64, or "auto": as many as
    bring something, which each link finds out by itself ("auto"). `chunk_bytes`: largest chunk, 1
    KiB to 256 KiB, a power of two (256 KiB). `window_bytes`: room for partial sums at each peer, at
    most, 1 GiB or less (256 MiB); 16 MiB of it for each operation, and more where more is in the
    air. `heartbeat` and `silence`: seconds between heartbeats (0.5), and until a silent peer is
    lost (5; at least 3 heartbeats). `prepare`: seconds a newcomer has to open its lanes (10).
    `stall_warning`: seconds after which a member that has not made a call which over half of the
    members have made is named in the log, the status and DeadlineExceeded (10; at least a
    heartbeat). `stall`: seconds after which it is removed from the group (default: never; at least
    `stall_warning`). Each time is at most seven days. `state`: directory for the journal of the
    run, made if its parent exists; default: the run ends with its coordinator. `memory`: bytes that
    all its queues may hold, 16 MiB or more; beyond that, the peer with the longest queue is removed
    (512 MiB). `probe`: whether links of which nobody knows what they carry are probed while nothing
    else moves, "auto" or "off" ("auto").

    With a `state` that holds a run, it goes on with that run: run id, port and all options that are
    None come from there, and the token is the same as before. Options may differ from those of the
    run until its first epoch begins.

    Raises InvalidArgument, also if an option differs later. Raises SystemRefused if the port or
    `state` is in use, or the journal in it is damaged, and VersionMismatch if another version wrote
    it.
    """

    _exit_order = 1  # after the groups, so that they leave a coordinator that still answers

    def __init__(
        self,
        *,
        bind: str | None = None,
        advertise: str | None = None,
        run_id: bytes | None = None,
        min_world_size: int | None = None,
        initial_world_size: int | None = None,
        lanes_per_link: int | Literal["auto"] | None = None,
        chunk_bytes: int | None = None,
        window_bytes: int | None = None,
        heartbeat: float | None = None,
        silence: float | None = None,
        prepare: float | None = None,
        stall_warning: float | None = None,
        stall: float | None = None,
        state: str | os.PathLike[str] | None = None,
        memory: int | None = None,
        probe: Probe | ProbeName | None = None,
    ) -> None:
        _log_output.configure()
        read = Arguments("PCCL_COORDINATOR_")
        options: dict[str, Any] = {
            "bind": read.text(bind, "PCCL_COORDINATOR_BIND"),
            "advertise": read.text(advertise, "PCCL_COORDINATOR_ADVERTISE"),
            "run_id": _run_id(read, run_id),
            "min_world_size": read.at_least_one(min_world_size, "PCCL_COORDINATOR_MIN_WORLD_SIZE"),
            "initial_world_size": read.at_least_one(
                initial_world_size, "PCCL_COORDINATOR_INITIAL_WORLD_SIZE"
            ),
            "lanes_per_link": read.lanes(lanes_per_link, "PCCL_COORDINATOR_LANES_PER_LINK"),
            "chunk_bytes": read.at_least_one(chunk_bytes, "PCCL_COORDINATOR_CHUNK_BYTES"),
            "window_bytes": read.at_least_one(
                window_bytes, "PCCL_COORDINATOR_WINDOW_BYTES", bits=64
            ),
            "heartbeat_ns": read.nanoseconds(heartbeat, "PCCL_COORDINATOR_HEARTBEAT"),
            "silence_ns": read.nanoseconds(silence, "PCCL_COORDINATOR_SILENCE"),
            "prepare_ns": read.nanoseconds(prepare, "PCCL_COORDINATOR_PREPARE"),
            "stall_warning_ns": read.nanoseconds(stall_warning, "PCCL_COORDINATOR_STALL_WARNING"),
            "stall_ns": read.nanoseconds(stall, "PCCL_COORDINATOR_STALL"),
            "state_dir": read.text(
                None if state is None else os.fspath(state), "PCCL_COORDINATOR_STATE"
            ),
            "memory_bytes": read.at_least_one(memory, "PCCL_COORDINATOR_MEMORY", bits=64),
            "probe": read.probe(probe, "PCCL_COORDINATOR_PROBE"),
        }
        with _lifecycle.opening():
            self._native = _pccl.Coordinator(**options)
        self._forked = False
        _running.add(self)
        _lifecycle.register(self)

    @property
    def token(self) -> str:
        """The token that peers join with."""
        return self._native.token

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._native.port

    def close(self) -> None:
        """Stops it: peers see CoordinatorUnreachable. Idempotent; nothing in a forked child."""
        _running.discard(self)
        if not self._forked:
            self._native.close()

    def _exit(self) -> None:
        self.close()

    def _leave(self) -> None:
        """The peers of this process that leave need it to say so to."""

    def _fork(self) -> None:
        _running.discard(self)
        self._forked = True


# Peers rely on a coordinator, whether or not a variable of the program refers to it.
_running: set[Coordinator] = set()


@dataclass(frozen=True, slots=True)
class Token:
    """A token's content: the coordinator's address ("host:port"), and the run id (16 bytes)."""

    address: str
    # Whoever knows it can join, so it is not shown by accident.
    run_id: bytes = field(repr=False)


def token_create(address: str, run_id: bytes | None = None) -> str:
    """The token of a run whose coordinator is at `address`, "host:port" or "[v6]:port".

    `run_id` is 16 bytes; None takes random ones. Raises InvalidArgument.
    """
    return _pccl.token_create(text(address, "address"), _checked_run_id(run_id))


def token_parse(token: str) -> Token:
    """Reads a token. Raises InvalidArgument if it is truncated or mistyped."""
    address, run_id = _pccl.token_parse(text(token, "token").strip())
    return Token(address, run_id)


def run_status(
    token: str, timeout: float | None = None, *, dial_back: PeerId | bytes | str | None = None
) -> dict[str, Any]:
    """The status of a run, from its coordinator: see docs/reference/STATUS.md.

    `dial_back`: members are asked to dial this peer, which must be connected from this machine.
    `dial_back` of the status says how far that has come; ask again until it is `over`.

    Blocks for `timeout` seconds at most (default 5). Raises InvalidArgument,
    CoordinatorUnreachable (also if this host asks for large answers more than once a second),
    AuthenticationFailed, VersionMismatch.
    """
    peer = None if dial_back is None else PeerId(dial_back)
    answer = _pccl.run_status(text(token, "token").strip(), nanoseconds(timeout, "timeout"), peer)
    try:
        status = json.loads(answer)
    except (RecursionError, ValueError):  # JSON it is, but of a depth or a number without end
        status = None
    if not isinstance(status, dict):
        raise VersionMismatch("the coordinator's answer is not a status: use the same release")
    return status


def _run_id(read: Arguments, run_id: bytes | None) -> bytes | None:
    """The run id that was given, or else that of the environment, in hexadecimal digits."""
    found, called = read.given(run_id, "PCCL_COORDINATOR_RUN_ID")
    if not isinstance(found, str) or called == "run_id":
        return _checked_run_id(run_id)
    try:
        return _checked_run_id(bytes.fromhex(found))
    except (ValueError, InvalidArgument):  # the text is secret
        raise InvalidArgument(f"{called} must be 32 hexadecimal digits") from None


def _checked_run_id(run_id: bytes | None) -> bytes | None:
    if run_id is not None and len(run_id) != 16:
        raise InvalidArgument(f"a run id must be 16 bytes, not {len(run_id)}")
    return run_id
