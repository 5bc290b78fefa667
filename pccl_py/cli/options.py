"""Options that several commands of `pccl` have: their types, their help, and how they are read.

The commands, and the options that only one of them has, are in commands.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pccl_py.errors import InvalidArgument
from pccl_py.network import parse_lanes, rates_text
from pccl_py.words import parse_congestion, parse_probe


def default(value: str) -> str:
    """A default that the library fills in, for a help text: rich would take [...] for markup."""
    return rf"\[default: {value}]"


def _lanes(value: str) -> int | Literal["auto"]:
    try:
        return parse_lanes(value, "it") or "auto"
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None


def _send_rate(value: str) -> str:
    try:
        rates_text(value, "it")
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    return value


def _word(parse: Callable[[str], IntEnum]) -> Callable[[str], str]:
    def word(value: str) -> str:
        try:
            return parse(value).name.lower()
        except InvalidArgument as error:
            raise typer.BadParameter(str(error)) from None

    return word


Bind = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="HOST:PORT to listen on, or HOST for a free port. " + default("127.0.0.1"),
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Also write the token to this file, readable by you only: for pccl status.",
    ),
]
TokenFrom = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File that holds the token, readable only by you; - is standard input. "
        + default("PCCL_TOKEN"),
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Keep the run in this directory. A coordinator started again with it, on the same "
        "address, continues the run; options left out are those of the run.",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(metavar="HOST", help="Address that goes into the token: HOST or HOST:PORT."),
]
MinWorldSize = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        envvar="PCCL_COORDINATOR_MIN_WORLD_SIZE",
        help="A group that falls below fails.",
    ),
]
Lanes = Annotated[
    Any,
    typer.Option(
        parser=_lanes,
        metavar="N",
        help="TCP connections between two peers, 1 to 64, or auto: as many as bring something. "
        + default("auto"),
    ),
]
SendRate = Annotated[
    Any,
    typer.Option(
        parser=_send_rate,
        metavar="RATE",
        help="What each process sends at most, as 200mbit or 25MB per second, or "
        "200mbit,LABEL=20mbit for one peer. " + default("PCCL_SEND_RATE, or none"),
    ),
]
Congestion = Annotated[
    Any,
    typer.Option(
        parser=_word(parse_congestion),
        metavar="WORD",
        help="Congestion control of the connections between peers, auto, system, bbr or cubic: "
        "docs/NETWORKING.md. " + default("auto"),
    ),
]
Probe = Annotated[
    Any,
    typer.Option(
        parser=_word(parse_probe),
        metavar="WORD",
        help="Probe links of which nobody knows what they carry, while nothing else moves: auto or "
        "off. " + default("auto"),
    ),
]
ChunkBytes = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES", help="Largest chunk, a power of two, 1024 to 262144. " + default("262144")
    ),
]
WindowBytes = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES",
        help="Most bytes of room for partial sums at each peer. " + default("256 MiB"),
    ),
]
Memory = Annotated[
    int | None,
    typer.Option(
        metavar="BYTES",
        help="Bytes that all queues of the coordinator may hold; beyond that, the peer with the "
        "longest is removed. " + default("512 MiB"),
    ),
]
Heartbeat = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Seconds between heartbeats. " + default("0.5")),
]
Silence = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Seconds until a silent peer is lost. " + default("5")),
]
Prepare = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Seconds that a newcomer has to open its connections. " + default("10"),
    ),
]
StallWarning = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Seconds until a member is named that lacks a call which over half have made. "
        + default("10"),
    ),
]
Stall = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", help="Seconds until such a member is removed. " + default("never")
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Events of the run on stderr.")]
RunIdFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with 32 hexadecimal digits, readable only by you; - is standard input. "
        + default("random"),
    ),
]
# Secrets as arguments are taken only to be refused with the reason.
RunId = Annotated[str | None, typer.Option(hidden=True)]
