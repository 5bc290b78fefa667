"""The command of long chaos runs: `make soak MINUTES=60`. Shows how it goes, and writes a report.

A run of a minute is part of the tests (test_chaos_run.py). With the same seed the plan of faults
is the same; what they hit is up to the machine.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Annotated, Any

import plan
import typer
from namespaces import missing
from orchestrator import Run
from rich.console import Console
from rich.live import Live
from rich.table import Table

EXIT_FAILURE = 1


def line(run: Run) -> Table:
    """How it goes."""
    table = Table(box=None)
    values = {
        "time": f"{run.now():.0f} of {run.plan.seconds:.0f} s",
        "operations": str(run.ledger.committed),
        "epochs": str(run.ledger.newest_epoch),
        "faults": str(sum(record.struck for record in run.strikes.records)),
        "kills": str(run.kills),
        "joins": str(run.joins),
        "violations": str(len(run.ledger.violations)),
    }
    for name in values:
        table.add_column(name, justify="right")
    table.add_row(*values.values())
    return table


def summary(report: dict[str, Any]) -> str:
    shown = {key: value for key, value in report.items() if key != "records"}
    return json.dumps(shown, indent=2)


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are struck.")] = 20,
    seed: Annotated[int | None, typer.Option(help="Of the plan; random unless given.")] = None,
    slots: Annotated[int | None, typer.Option(min=4, max=8, help="Peers; drawn.")] = None,
    gap: Annotated[float, typer.Option(help="Seconds between two faults, on average.")] = 0.9,
    namespaces: Annotated[
        bool, typer.Option(help="Break links in network namespaces, not by a proxy; needs root.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("chaos_out"),
) -> None:
    """Kills, freezes and cuts off peers and their coordinator while they work; must find nothing.

    The report goes to OUT/soak-SEED.json. The exit status is 1 if anything was wrong.
    """
    console = Console()
    if namespaces and missing():
        console.print(missing())
        raise typer.Exit(EXIT_FAILURE)
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    drawn = plan.draw(seed, minutes * 60, slots=slots, gap=gap, namespaces=namespaces)
    console.print(f"seed {seed}: {drawn.slots} peers, {len(drawn.faults)} faults")
    out.mkdir(parents=True, exist_ok=True)
    shown_at = 0.0
    with Live(console=console, refresh_per_second=2) as live:

        def show(run: Run) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= 0.5:
                shown_at = time.monotonic()
                live.update(line(run))

        with Run(drawn, show) as run:
            run.go()
            report = run.report()
    path = out / f"soak-{seed}.json"
    path.write_text(json.dumps(report, indent=2), encoding="utf-8")
    console.print_json(summary(report))
    console.print(f"written: {path}")
    if report["violations"] or report["complaints"]:
        raise typer.Exit(EXIT_FAILURE)


if __name__ == "__main__":
    typer.run(main)
