"""The commands of `pccl`, and the options that several commands have, by typer.

The entry point is __init__.py. run.py runs processes, status.py shows a status, doctor.py checks
the network, bench.py measures, and secret.py reads and writes secrets. A program can do the same as
the commands through pccl_py.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum, IntEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer
import typer.core
from rich.console import Console
from rich.text import Text

import pccl_py
from pccl_py import cli, measure_collectives
from pccl_py.cli import bench, doctor, launch, log, run, secret, status
from pccl_py.errors import InvalidArgument
from pccl_py.network import parse_lanes, rates_text
from pccl_py.words import parse_congestion, parse_plans, parse_probe


def default(value: str) -> str:
    """Describes a default of the library in a help text, so that rich does not read markup."""
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
        "docs/guides/PERFORMANCE.md. " + default("auto"),
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
Plans = Annotated[
    Any,
    typer.Option(
        parser=_word(parse_plans),
        metavar="WORD",
        help="Paths of data follow measured rates (auto), or keep to rank order, so that equal "
        "calls give equal bits in each run (fixed). " + default("auto"),
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
# A secret as an argument is accepted by the parser only to be refused with the reason.
RunId = Annotated[str | None, typer.Option(hidden=True)]


app = typer.Typer(
    name="pccl",
    help="PCCL: collective communication among peers that come and go.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
errors = Console(stderr=True, highlight=False)

EXIT_FAILURE = 1
EXIT_USAGE = 2


class Command(typer.core.TyperCommand):
    """A command whose usage line shows arguments by their metavars, and no hidden arguments."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [one for one in self.params if isinstance(one, typer.core.TyperArgument)]
        shown = [one.metavar or "" for one in arguments if not one.hidden]
        return [self.options_metavar or "", *shown]


class RunCommand(Command):
    """`pccl run`: errors about the number of processes, or the command, give an example."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is not None and error.param.name in ("n", "command"):
                said = f"{error.message.rstrip('.')}. " if error.message else ""
                error.message = f"{said}For example: pccl run -n 4 -- python train.py"
            raise


class OnFailure(str, Enum):
    """The choice of what `pccl run` does when a process fails."""

    CONTINUE = "continue"
    STOP = "stop"


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """PCCL: collective communication among peers that come and go."""
    if version:
        typer.echo(cli.version())
        raise typer.Exit


@app.command()
def coordinator(
    bind: Bind = None,
    advertise: Advertise = None,
    token_file: TokenFile = None,
    state: State = None,
    run_id_file: RunIdFile = None,
    run_id: RunId = None,
    min_world_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="A group that falls below fails. " + default("1")),
    ] = None,
    initial_world_size: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Peers the first epoch of a group waits for. " + default("1")
        ),
    ] = None,
    lanes: Lanes = None,
    probe: Probe = None,
    plans: Plans = None,
    chunk_bytes: ChunkBytes = None,
    window_bytes: WindowBytes = None,
    heartbeat: Heartbeat = None,
    silence: Silence = None,
    prepare: Prepare = None,
    stall_warning: StallWarning = None,
    stall: Stall = None,
    memory: Memory = None,
    verbose: Verbose = False,
) -> None:
    """Run a coordinator until SIGINT or SIGTERM. Prints its token, and nothing else, on stdout.

    Warnings go to stderr, with --verbose all events do.
    """
    if run_id is not None:
        secret.refuse_run_id_argument()
    log.to_stderr(logging.DEBUG if verbose else logging.WARNING)
    stop = threading.Event()
    _on_stop_signals(lambda number: stop.set())
    with pccl_py.Coordinator(
        bind=bind,
        advertise=advertise,
        run_id=secret.run_id(run_id_file),
        min_world_size=min_world_size,
        initial_world_size=initial_world_size,
        lanes_per_link=lanes,
        probe=probe,
        plans=plans,
        chunk_bytes=chunk_bytes,
        window_bytes=window_bytes,
        heartbeat=heartbeat,
        silence=silence,
        prepare=prepare,
        stall_warning=stall_warning,
        stall=stall,
        memory=memory,
        state=state,
    ) as running:
        if token_file is not None:
            secret.write(token_file, running.token)
        print(running.token, flush=True)
        stop.wait()


@app.command()
def token(
    address: Annotated[str | None, typer.Argument(help="HOST:PORT of the coordinator.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Show the whole run id, which is the secret of the run.")
    ] = False,
    token_file: TokenFrom = None,
    run_id_file: RunIdFile = None,
    run_id: RunId = None,
) -> None:
    """Make the token of a coordinator at ADDRESS; without ADDRESS, show the content of a token.

    The token to show comes from PCCL_TOKEN or --token-file, and never from an argument.
    """
    if run_id is not None:
        secret.refuse_run_id_argument()
    if address is not None and (show or address.strip().startswith(secret.TOKEN_PREFIX)):
        secret.refuse_token_argument()
    if address is None and run_id_file is not None:
        raise pccl_py.InvalidArgument("--run-id-file is for making a token: pass the ADDRESS too")
    if address is None:
        typer.echo(secret.parts(secret.token(token_file), whole=show))
        return
    if token_file is not None:
        raise pccl_py.InvalidArgument(
            "--token-file is for showing a token: one that is made is printed"
        )
    typer.echo(pccl_py.token_create(address, secret.run_id(run_id_file)))


@app.command(
    name="run",
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False},  # options behind COMMAND are its own
)
def run_command(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
    n: Annotated[int, typer.Option("-n", min=1, metavar="N", help="Number of processes.")],
    on_failure: Annotated[
        OnFailure,
        typer.Option(
            metavar="WORD", help="When a process fails: continue without it, or stop all."
        ),
    ] = OnFailure.CONTINUE,
    restarts: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Restart a failed process at most this many times."),
    ] = 0,
    log_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Also write a file for the coordinator and one for each process; %h in the name "
            "is the host, %p the process id of pccl run.",
        ),
    ] = None,
    bind: Bind = None,
    advertise: Advertise = None,
    new_run: Annotated[
        bool,
        typer.Option("--new-run", help="Start a coordinator although PCCL_TOKEN names a run."),
    ] = False,
    token_file: TokenFile = None,
    state: State = None,
    min_world_size: MinWorldSize = 1,
    lanes: Lanes = None,
    probe: Probe = None,
    plans: Plans = None,
    chunk_bytes: ChunkBytes = None,
    window_bytes: WindowBytes = None,
    heartbeat: Heartbeat = None,
    silence: Silence = None,
    prepare: Prepare = None,
    stall_warning: StallWarning = None,
    stall: Stall = None,
    memory: Memory = None,
    send_rate: SendRate = None,
    congestion: Congestion = None,
    verbose: Verbose = False,
) -> None:
    """Run N processes of COMMAND on this machine: docs/reference/RUN.md.

    With PCCL_TOKEN in the environment they join the run of that token. Without it, or with \
--new-run, a coordinator is started for them here.

    COMMAND is a program, or a Python file: pccl run -n 4 train.py --steps 10. Each process gets \
PCCL_TOKEN, PCCL_RESTARTS, and RANK, WORLD_SIZE and others that torchrun sets, in its \
environment. RANK is the number of the process, and its rank in the first epoch of a new run; \
the run may change ranks later. Each line of output begins with the number of its process.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on; after 10 s, or at the second signal, what \
still runs is killed. The exit status is then 128 plus the signal. Otherwise it is 0 if at least \
--min-world-size processes exit with 0 (with --on-failure stop: if all do), and else the status \
of the first that failed.
    """
    if min_world_size > n:
        raise pccl_py.InvalidArgument(f"--min-world-size is {min_world_size}, but -n only {n}")
    run.refuse_what_one_process_can_have(n, os.environ)
    try:
        command = run.command_of(command)
    except FileNotFoundError as error:
        _complain(error)
        raise typer.Exit(launch.EXIT_NOT_FOUND) from None
    log.to_stderr(logging.DEBUG if verbose else logging.WARNING)
    logs = None if log_dir is None else log.Folder(log_dir)
    given = {"PCCL_SEND_RATE": send_rate, "PCCL_CONGESTION": congestion}
    settings = {name: value for name, value in given.items() if value is not None}
    run.refuse_what_none_can_have({**os.environ, **settings})
    policy = run.Policy(min_world_size, on_failure is OnFailure.STOP, restarts)
    of_coordinator: dict[str, Any] = {
        "bind": bind,
        "advertise": advertise,
        "lanes_per_link": lanes,
        "probe": probe,
        "plans": plans,
        "chunk_bytes": chunk_bytes,
        "window_bytes": window_bytes,
        "heartbeat": heartbeat,
        "silence": silence,
        "prepare": prepare,
        "stall_warning": stall_warning,
        "stall": stall,
        "state": state,
        "memory": memory,
    }
    joined = None if new_run else run.token_to_join(os.environ, of_coordinator)
    with ExitStack() as stack:
        token = joined
        if token is None:
            started = pccl_py.Coordinator(
                min_world_size=min_world_size, initial_world_size=n, **of_coordinator
            )
            token = stack.enter_context(started).token
        if token_file is not None:
            secret.write(token_file, token)
        processes = run.Processes(
            command,
            n,
            token,
            policy,
            console=errors,
            is_joined=joined is not None,
            logs=logs,
            settings=settings,
        )
        _on_stop_signals(processes.signal, signal.SIGHUP, signal.SIGQUIT)
        code = processes.run()
    raise typer.Exit(code)


@app.command(name="status", cls=Command)
def status_command(
    refused: Annotated[str | None, typer.Argument(metavar="", hidden=True)] = None,
    token_file: TokenFrom = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON: docs/reference/STATUS.md.")
    ] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Plans and links instead of members: docs/guides/PLANS.md."),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Refresh until Ctrl-C; with --json a line each time."),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds between refreshes.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds to wait for an answer.")
    ] = 5.0,
) -> None:
    """Show groups, epochs, members, operations in flight and bytes of a run."""
    if refused is not None:
        secret.refuse_token_argument()
    token = secret.token(token_file)
    if watch and as_json:
        status.stream_json(token, interval=interval, timeout=timeout)
    elif watch:
        status.watch(token, interval=interval, timeout=timeout, plan=plan)
    elif as_json:
        status.show_json(token, timeout=timeout)
    else:
        status.show(token, timeout=timeout, plan=plan)


@app.command(name="doctor", cls=Command)
def doctor_command(
    refused: Annotated[str | None, typer.Argument(metavar="", hidden=True)] = None,
    token_file: TokenFrom = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds for each dial.")
    ] = 5.0,
    ports: Annotated[
        str | None,
        typer.Option(help="Ports that peers have here, as 29400-29500. " + default("PCCL_PORTS")),
    ] = None,
) -> None:
    """Check this machine for a peer: routes to coordinator and members and back, clocks, limits.

    One line each: ok, or wrong and what to do. For a moment a peer joins a group of its own, and \
members dial it. The exit status is 1 if anything is wrong.
    """
    if refused is not None:
        secret.refuse_token_argument()
    well = doctor.show(secret.token(token_file), timeout=timeout, ports=ports, as_json=as_json)
    raise typer.Exit(0 if well else EXIT_FAILURE)


@app.command()
def flags(
    for_compiling: Annotated[
        bool, typer.Option("--compile", help="Only where the header is.")
    ] = False,
    for_linking: Annotated[bool, typer.Option("--link", help="Only where the library is.")] = False,
    is_compat: Annotated[
        bool, typer.Option("--compat", help="The header is that of PCCL 1.0, with its names.")
    ] = False,
) -> None:
    """Print what a C compiler needs to find PCCL: cc program.c $(pccl flags) -o program."""
    folder = pccl_py.library_dir()
    compiling = [f"-I{pccl_py.include_dir()}{'/compat' if is_compat else ''}"]
    linking = [f"-L{folder}", "-lpccl", f"-Wl,-rpath,{folder}"]
    both = for_compiling == for_linking
    typer.echo(shlex.join(compiling * (both or for_compiling) + linking * (both or for_linking)))


bench_app = typer.Typer(no_args_is_help=True, help="Measure this machine, or the links of a run.")
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench_root() -> None:
    """Measure this machine, or the links of a run."""


@bench_app.command(name="kernels")
def bench_kernels(
    match: Annotated[str, typer.Argument(help="Only kernels with this in their name.")] = "",
    mib: Annotated[
        list[float] | None,
        typer.Option(help="Size in MiB of f32; may be given again. " + default("1 and 64")),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rounds, of which medians are taken.")
    ] = 15,
) -> None:
    """How fast each kernel runs here, beside a loop with its loads and stores and no arithmetic.

    In the repository, `python -m bench kernels` sets other libraries beside it, and `python -m \
bench loopback` measures whole collectives.
    """
    bench.kernels([round(size * 2**20) for size in mib or [1, 64]], match, rounds=rounds)


def _add_bench(collective: str) -> None:
    """Adds the command `pccl bench COLLECTIVE`."""

    @bench_app.command(
        name=collective,
        help=f"Measure {collective} over the links of a run: each peer calls this with PCCL_TOKEN."
        "\n\nRank 0 prints, with the columns of NCCL's tests. Results are checked; a wrong one is "
        "an error. The peers meet in a group of their own, so a run that goes on there is only "
        "slowed down.",
    )
    def bench_collective(
        least: Annotated[str, typer.Option("--min", help="Smallest size: 4096, 4KiB.")] = "4KiB",
        most: Annotated[str, typer.Option("--max", help="Largest size.")] = "64MiB",
        factor: Annotated[
            int, typer.Option(min=2, metavar="N", help="From one size to the next.")
        ] = 4,
        iters: Annotated[int, typer.Option(min=1, metavar="N", help="Calls of each size.")] = 10,
        warmup: Annotated[
            int, typer.Option(min=1, metavar="N", help="Calls before, of each size.")
        ] = 2,
        codec: Annotated[
            str, typer.Option(help="How floats travel: docs/reference/CODECS.md.")
        ] = "none",
        dtype: Annotated[str, typer.Option(help="Type of elements: f32, bf16, i64, ...")] = "f32",
        initial_world_size: Annotated[
            int | None,
            typer.Option(
                min=1, metavar="N", help="Peers to wait for. " + default("the coordinator's")
            ),
        ] = None,
        token_file: TokenFrom = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    ) -> None:
        sizes = measure_collectives.sizes(
            measure_collectives.size_of(least), measure_collectives.size_of(most), factor
        )
        plan = bench.Plan(collective, sizes, iters, warmup, dtype, codec)
        with pccl_py.connect(
            secret.token(token_file), group=bench.GROUP, initial_world_size=initial_world_size
        ) as comm:
            comm.admit()
            bench.collective(plan, comm, as_json=as_json)


for _collective in measure_collectives.COLLECTIVES:
    _add_bench(_collective)


def _on_stop_signals(handle: Callable[[int], Any], *further: signal.Signals) -> None:
    def on_signal(number: int, frame: FrameType | None) -> None:
        handle(number)

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    for one in further:
        if signal.getsignal(one) is not signal.SIG_IGN:  # ignored by nohup
            signal.signal(one, on_signal)


def main() -> None:
    """Runs the command in the arguments of the process. Errors are one sentence on stderr."""
    try:
        app()
    except pccl_py.InvalidArgument as error:
        _complain(error)
        sys.exit(EXIT_USAGE)
    except (pccl_py.PcclError, OSError) as error:
        _complain(error)
        sys.exit(EXIT_FAILURE)


def _complain(error: Exception) -> None:
    errors.print(Text.assemble(("pccl: ", "bold red"), str(error)), soft_wrap=True)
