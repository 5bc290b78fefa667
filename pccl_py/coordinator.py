"""The coordinator of a run inside this process, tokens, and the status of a run.

The coordinator is native and has a thread of its own; this file gives names and units to its
options. Peers join with the coordinator's token (communicator.connect). The command `pccl
coordinator` is in cli/.
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
from pccl_py.words import PeerId, Plans, PlansName, Probe, ProbeName, nanoseconds, text


class Coordinator(Closing):
    """Decides membership and outcomes of a run. Runs until `close`, or until the process ends.

    A Coordinator runs on when the program drops it, even before the first peer: a peer may make the
    token from the run id and the address.

    Arguments that are not given come from the environment: PCCL_COORDINATOR_BIND and so on
    (docs/reference/ENVIRONMENT.md); defaults are in parentheses.

    `bind`: "host:port" to listen on, or "host" for a free port there; default: 127.0.0.1.
    `advertise`: address that goes into the token, "host" or "host:port"; default: the bound one.
    `run_id`: 16 bytes, default random. `min_world_size`: a group with fewer members fails with
    TooFewPeers (1). `initial_world_size`: peers that the first epoch of a group waits for, unless
    the peers pass a number (1). `lanes_per_link`: TCP connections between two peers, 1 to 64, or
    "auto": each link finds out how many lanes raise its rate ("auto"). `chunk_bytes`: largest
    chunk, 1 KiB to 256 KiB, a power of two (256 KiB). `window_bytes`: most memory for partial sums
    at each peer, up to 1 GiB (256 MiB); each operation gets 16 MiB of this memory, and more if more
    bytes are in flight. `heartbeat` and `silence`: seconds between heartbeats (0.5), and until a
    silent peer is lost (5; at least 3 heartbeats). `prepare`: seconds that a newcomer has to open
    its lanes (10). `stall_warning`: seconds after which the log, the status and DeadlineExceeded
    name a member that has not made a call which over half of the members have made (10; at least a
    heartbeat). `stall`: seconds after which such a member is removed from the group (default:
    never; at least `stall_warning`). Each time is at most seven days. `state`: directory for the
    journal of the run, made if its parent exists; default: the run ends with its coordinator.
    `memory`: bytes that all queues of the coordinator may hold, 16 MiB or more; beyond that, the
    peer with the longest queue is removed (512 MiB). `probe`: whether links of unknown rate are
    probed while nothing else moves, "auto" or "off" ("auto"). `plans`: whether the paths of data
    follow measured rates, "auto" or "fixed" ("auto").

    If `state` holds a run, the Coordinator continues that run: run id, port and all options that
    are None come from `state`, and the token is the same as before. Options may differ from those
    of the run until the first epoch of the run begins.

    Raises InvalidArgument for a bad option, and for one that differs later. Raises SystemRefused if
    the port or `state` is in use, or the journal is damaged, and VersionMismatch if another version
    wrote the journal.
    """

    _exit_order = 1  # closes after groups, which need an answer to leave

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
        plans: Plans | PlansName | None = None,
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
            "plans": read.plans(plans, "PCCL_COORDINATOR_PLANS"),
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
        """The port that the coordinator listens on."""
        return self._native.port

    def close(self) -> None:
        """Stops the coordinator, so that peers get CoordinatorUnreachable. Idempotent.

        Does nothing in a forked child.
        """
        _running.discard(self)
        if not self._forked:
            self._native.close()

    def _exit(self) -> None:
        self.close()

    def _leave(self) -> None:
        """Does nothing: peers of this process need the coordinator to leave their groups."""

    def _fork(self) -> None:
        _running.discard(self)
        self._forked = True


# Keeps coordinators that the program has dropped alive, as peers rely on them.
_running: set[Coordinator] = set()


@dataclass(frozen=True, slots=True)
class Token:
    """A token's content: the coordinator's address ("host:port"), and the run id (16 bytes)."""

    address: str
    # A secret with which a peer can join, so repr() does not show it.
    run_id: bytes = field(repr=False)


def token_create(address: str, run_id: bytes | None = None) -> str:
    """The token of a run whose coordinator is at `address`, "host:port" or "[v6]:port".

    `run_id` is 16 bytes; None draws a random run id. Raises InvalidArgument.
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

    `dial_back`: members are asked to dial this peer, which must be connected from this machine. The
    status has an entry `dial_back` about these dials; ask again until its `over` is true.

    Blocks for `timeout` seconds at most (default 5). Raises InvalidArgument, CoordinatorUnreachable
    (also if this host asks for large answers more than once a second), AuthenticationFailed,
    VersionMismatch.
    """
    peer = None if dial_back is None else PeerId(dial_back)
    answer = _pccl.run_status(text(token, "token").strip(), nanoseconds(timeout, "timeout"), peer)
    try:
        status = json.loads(answer)
    except (RecursionError, ValueError):  # no JSON, or JSON of a huge depth or number
        status = None
    if not isinstance(status, dict):
        raise VersionMismatch("the coordinator's answer is not a status: use the same release")
    return status


def _run_id(read: Arguments, run_id: bytes | None) -> bytes | None:
    """Returns `run_id`, or else the run id of the environment, there in hexadecimal digits."""
    found, called = read.given(run_id, "PCCL_COORDINATOR_RUN_ID")
    if not isinstance(found, str) or called == "run_id":
        return _checked_run_id(run_id)
    try:
        return _checked_run_id(bytes.fromhex(found))
    except (ValueError, InvalidArgument):  # no cause: the text is secret
        raise InvalidArgument(f"{called} must be 32 hexadecimal digits") from None


def _checked_run_id(run_id: bytes | None) -> bytes | None:
    if run_id is not None and len(run_id) != 16:
        raise InvalidArgument(f"a run id must be 16 bytes, not {len(run_id)}")
    return run_id
