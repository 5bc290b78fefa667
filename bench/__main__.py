"""The command line of the benchmarks: `python -m bench loopback --json`. One command per benchmark.

The meaning of a row is in `common.py`; what is measured, and how, in each benchmark's own file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import pccl_py
from bench import (
    accuracy,
    common,
    coordinator,
    cores,
    hostile,
    jax_plan,
    jax_steps,
    kernels,
    loopback,
    planner,
    price,
    recovery,
    state_hash,
    torch_plan,
    torch_steps,
    wan_cases,
    wan_measure,
    wan_network,
    wan_verify,
)
from pccl_py.measure_collectives import COLLECTIVES

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)


@app.callback()
def root() -> None:
    """Benchmarks of PCCL. Rows go to standard output, with --json as JSON lines."""


def _sizes(names: list[str] | None) -> list[int] | None:
    """In bytes; raises typer.BadParameter for one that is no size."""
    try:
        return [common.size_of(name) for name in names] if names else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--size") from None


@app.command(name="loopback")
def loopback_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke run: small, few, and no good as a number.")
    ] = False,
    world: Annotated[
        list[int] | None, typer.Option(min=2, help="World size; may be given again.  [2, 4]")
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="As 64MiB; may be given again.  [4KiB to 256MiB, each four times more]"),
    ] = None,
    codec: Annotated[
        list[str] | None, typer.Option(help="A codec to measure too; may be given again.  \\[int8]")
    ] = None,
    collective: Annotated[
        list[str] | None,
        typer.Option(
            help="To measure beside all_reduce; may be given again: "
            f"{', '.join(COLLECTIVES[1:])}.  \\[each]"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for loopback.jsonl and .png.")] = Path(
        "bench_out"
    ),
) -> None:
    """Collectives of f32 against gloo, MPI and bare TCP, on this machine's loopback."""
    if sys.platform != "linux":
        raise typer.BadParameter("pinning and peak memory are read the way of Linux; run it there")
    sizes = _sizes(size)
    unknown = set(collective or []) - set(COLLECTIVES)
    if unknown:
        known = ", ".join(COLLECTIVES)
        said = f"{min(unknown)!r} is none of {known}"
        raise typer.BadParameter(said, param_hint="--collective")
    pccl_py.exit_on_sigterm()  # so that the processes it started end too
    loopback.run(
        world or [2, 4],
        sizes,
        quick=quick,
        as_json=as_json,
        out=out,
        codecs=["int8"] if codec is None else codec,
        collectives=collective,
    )


@app.command(name="cores")
def cores_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    count: Annotated[
        list[int] | None,
        typer.Option("--cores", min=1, help="Of each peer; may be given again.  [1, 2, 4, 8]"),
    ] = None,
    workers: Annotated[
        list[int] | None,
        typer.Option(min=1, max=64, help="Beside none; may be given again.  \\[cores - 1, or 1]"),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="As 64MiB; may be given again.  [256MiB]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for cores.jsonl.")] = Path("bench_out"),
) -> None:
    """all_reduce between two peers on more and more cores, with workers and without."""
    if sys.platform != "linux":
        raise typer.BadParameter("cores are chosen the way of Linux; run it there")
    pccl_py.exit_on_sigterm()
    cores.run(count, workers, _sizes(size), quick=quick, as_json=as_json, out=out)


@app.command(name="price")
def price_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    size: Annotated[
        list[str] | None, typer.Option(help="As 4KiB; may be given again.  [4KiB, 64MiB]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for price.jsonl.")] = Path("bench_out"),
) -> None:
    """The cost of the library's safety checks: builds it with and without, and lets both call."""
    if sys.platform != "linux":
        raise typer.BadParameter("libraries are loaded side by side the way of Linux; run it there")
    sizes = _sizes(size)
    price.run(sizes, quick=quick, as_json=as_json, out=out)


@app.command(name="hash")
def hash_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    out: Annotated[Path, typer.Option(help="Folder for hash.jsonl.")] = Path("bench_out"),
) -> None:
    """Hashing of shared state against the package blake3, where it is there, and reading memory."""
    if sys.platform != "linux":
        raise typer.BadParameter("cores are chosen the way of Linux; run it there")
    state_hash.run(quick=quick, as_json=as_json, out=out)


@app.command(name="kernels")
def kernels_command(
    match: Annotated[str, typer.Argument(help="Only kernels with this in their name.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    size: Annotated[
        list[str] | None, typer.Option(help="Bytes of f32, as 1MiB; may be given again.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    out: Annotated[Path, typer.Option(help="Folder for kernels.jsonl.")] = Path("bench_out"),
) -> None:
    """Each kernel on one thread against its loads and stores alone, and other libraries."""
    sizes = _sizes(size)
    kernels.run(sizes, match, quick=quick, as_json=as_json, out=out)


@app.command(name="planner")
def planner_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run of 4 worlds each.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for planner.jsonl.")] = Path("bench_out"),
) -> None:
    """The time of the chosen plan on random links, beside other rings and the bound."""
    planner.run(quick=quick, as_json=as_json, out=out)


@app.command(name="accuracy")
def accuracy_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="256 Ki elements, not 16 Mi.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for accuracy.jsonl and .png.")] = Path(
        "bench_out"
    ),
) -> None:
    """How far the average of eight peers is off with every codec, sent through the library."""
    count = accuracy.QUICK_COUNT if quick else accuracy.COUNT
    accuracy.run(count=count, as_json=as_json, out=out)


@app.command(name="coordinator")
def coordinator_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    peers: Annotated[
        list[int] | None,
        typer.Option(min=8, max=512, help="May be given again.  [16, 64, 256, 512]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for coordinator.jsonl.")] = Path("bench_out"),
) -> None:
    """The cost of a decision to the coordinator, with and without a loss, for 16 to 512 peers."""
    coordinator.run(peers or coordinator.PEERS, quick=quick, as_json=as_json, out=out)


@app.command(name="recovery")
def recovery_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    case: Annotated[
        list[str] | None,
        typer.Option(help=f"May be given again.  [{', '.join(recovery.CASES)}]"),
    ] = None,
    mib: Annotated[int, typer.Option(min=1, help="Size of the buffer that is reduced.")] = 64,
    tries: Annotated[int, typer.Option(min=1, help="How often each harm is done.")] = 10,
    silence: Annotated[float, typer.Option(help="The run's silence limit in seconds.")] = 5.0,
    out: Annotated[Path, typer.Option(help="Folder for recovery.jsonl.")] = Path("bench_out"),
) -> None:
    """The cost of a kill, a freeze, a join and a coordinator's death to those who go on working."""
    unknown = set(case or ()) - set(recovery.CASES)
    if unknown:
        known = ", ".join(recovery.CASES)
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {known}")
    pccl_py.exit_on_sigterm()
    cases = case or list(recovery.CASES)
    size = mib * common.MIB
    recovery.run(cases, size=size, tries=tries, silence=silence, as_json=as_json, out=out)


@app.command(name="hostile")
def hostile_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    attack: Annotated[
        list[str] | None,
        typer.Option(help=f"May be given again.  [{', '.join(hostile.CASES)}]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for hostile.jsonl.")] = Path("bench_out"),
) -> None:
    """The cost of strangers, and of those who have the token, to peers that go on working."""
    if sys.platform != "linux":
        raise typer.BadParameter("peak memory is read the way of Linux; run it there")
    unknown = set(attack or ()) - set(hostile.CASES)
    if unknown:
        known = ", ".join(hostile.CASES)
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {known}")
    pccl_py.exit_on_sigterm()
    hostile.run(attack or hostile.CASES, quick=quick, as_json=as_json, out=out)


@app.command(name="torch")
def torch_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    case: Annotated[
        list[str] | None,
        typer.Option(help=f"May be given again.  [{', '.join(torch_plan.CASES)}]"),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="Of all_reduce, as 64MiB; may be given again.  [4KiB to 64MiB]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for torch.jsonl.")] = Path("bench_out"),
) -> None:
    """torch.distributed over PCCL against gloo: all_reduce, steps of training, a slow line, a kill.

    Gradients in int8 go through a line of 100 Mbit/s, which needs root, `ip` and `tc`.
    """
    if sys.platform != "linux":
        raise typer.BadParameter("cores are chosen the way of Linux; run it there")
    unknown = set(case or ()) - set(torch_plan.CASES)
    if unknown:
        known = ", ".join(torch_plan.CASES)
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {known}")
    pccl_py.exit_on_sigterm()
    cases = case or list(torch_plan.CASES)
    torch_steps.run(cases, _sizes(size), quick=quick, as_json=as_json, out=out)


@app.command(name="jax")
def jax_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    case: Annotated[
        list[str] | None,
        typer.Option(help=f"May be given again.  [{', '.join(jax_plan.CASES)}]"),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="Of all_reduce, as 64MiB; may be given again.  [4KiB to 64MiB]"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for jax.jsonl.")] = Path("bench_out"),
) -> None:
    """Collectives inside of jit against JAX's own psum over gloo, pccl_py, and foreign calls."""
    if sys.platform != "linux":
        raise typer.BadParameter("cores are chosen the way of Linux; run it there")
    unknown = set(case or ()) - set(jax_plan.CASES)
    if unknown:
        known = ", ".join(jax_plan.CASES)
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {known}")
    pccl_py.exit_on_sigterm()
    cases = case or list(jax_plan.CASES)
    jax_steps.run(cases, _sizes(size), quick=quick, as_json=as_json, out=out)


@app.command(name="diloco")
def diloco_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run, no good as a number.")] = (
        False
    ),
    method: Annotated[list[str] | None, typer.Option(help="May be given again.  \\[each]")] = None,
    seeds: Annotated[int, typer.Option(help="Of quality and losses.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="quality, losses, links or grid; may be given again.  \\[all but grid, which "
            "takes a quarter of an hour]"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for diloco.jsonl and .png.")] = Path(
        "bench_out"
    ),
) -> None:
    """DiLoCo and its family: quality on real text, losses, and time over links of 50 Mbit/s and up.

    It needs torch; `links` and `grid` need what `wan` needs, root among others. `--method` is of
    `quality`.
    """
    from bench import diloco, diloco_cases  # torch takes seconds to import

    known = [each.value for each in diloco.Part]
    if unknown := set(part or ()) - set(known):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: there are {', '.join(known)}", param_hint="--part"
        )
    parts = [diloco.Part(name) for name in part] if part else diloco.SHORT
    lacking = wan_network.missing() if set(parts) & set(diloco.OVER_LINKS) else ""
    if lacking:
        typer.echo(lacking, err=True)
        raise typer.Exit(2)
    methods = diloco_cases.cases(diloco_cases.FULL)
    if unknown := set(method or ()) - set(methods):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: there are {', '.join(methods)}", param_hint="--method"
        )
    pccl_py.exit_on_sigterm()
    chosen = [*range(seed, seed + seeds)]
    diloco.run(quick=quick, parts=parts, only=method, seeds=chosen, as_json=as_json, out=out)


@app.command(name="wan")
def wan_command(
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smoke run: 8 MiB, few cases, no good as a number.")
    ] = False,
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="May be given again; a name up to a dash means all that begin so: "
            f"{', '.join(one.name for one in wan_cases.table())}."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="To measure beside ours: gloo.  \\[none]")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Measure the emulated network, beside what was asked.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for wan.jsonl and .png.")] = Path("bench_out"),
) -> None:
    """One operation over emulated long links, beside the least time that they allow, and gloo.

    A case takes one to four minutes, all of them more than an hour. It needs root, /dev/net/tun,
    `nsenter`, `setpriv`, `ip` and `ss`, and leaves nothing behind.
    """
    if baseline not in (None, "gloo"):
        raise typer.BadParameter(f"{baseline!r} is not gloo", param_hint="--baseline")
    try:
        cases = wan_cases.chosen(case, quick=quick)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--case") from None
    lacking = wan_network.missing()
    if lacking:
        typer.echo(lacking, err=True)
        raise typer.Exit(2)
    pccl_py.exit_on_sigterm()
    try:
        if verify:
            wan_verify.run(as_json=as_json, out=out)
        else:
            wan_measure.run(cases, quick=quick, baseline=baseline, as_json=as_json, out=out)
    except (RuntimeError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app()
