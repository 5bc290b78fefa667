"""The demo's command line: `python -m examples.demo`, from the root of the repository. Exits with
status 0 if all claims of `verdict.py` hold.

It runs the processes (`orchestrator.py`), judges the run (`verdict.py`), writes the files
(`report.py`, `plot.py`), and shows the run (`view.py`).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import pccl_py as pccl
from examples.demo import plot, report
from examples.demo.orchestrator import Orchestrator
from examples.demo.settings import Settings
from examples.demo.verdict import judge
from examples.demo.view import LiveView, PlainView, View, summary

PLAIN_COLUMNS = 120
DEFAULTS = Settings()


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for loss.png, report.json, events.jsonl and logs.")
    ] = Path("demo_out"),
    rounds: Annotated[int, typer.Option(help="Rounds of DiLoCo, at least 5.")] = DEFAULTS.rounds,
    steps: Annotated[int, typer.Option(help="Local steps per round.")] = DEFAULTS.steps,
    seed: Annotated[
        int, typer.Option(help="Seed of the parameters and of each peer's text.")
    ] = DEFAULTS.seed,
    framework: Annotated[
        str,
        typer.Option(help="That of the peers: numpy, torch with DistributedDataParallel, or jax."),
    ] = DEFAULTS.framework,
    seconds_max: Annotated[float, typer.Option(help="Give up after this long.")] = 300.0,
) -> None:
    """Trains one model on four peers, loses one inside an all_reduce, gains one, compares bytes."""
    settings = Settings.paced(rounds, steps, seed, framework)
    out.mkdir(parents=True, exist_ok=True)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_COLUMNS)
    view: View = LiveView(console) if console.is_terminal else PlainView(console)
    pccl.exit_on_sigterm()  # so that SIGTERM also ends the processes that the demo has started

    began = time.monotonic()
    with view:
        story = Orchestrator(settings, out, view, seconds_max).run()
    checks = judge(story)
    paths = report.write(story, checks, time.monotonic() - began, out)
    picture = out / "loss.png"
    plot.draw(story, picture)
    console.print(summary(story, checks, [picture, *paths]))
    raise typer.Exit(0 if all(check.holds for check in checks) else 1)


if __name__ == "__main__":
    typer.run(demo)
