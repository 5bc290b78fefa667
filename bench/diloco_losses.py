"""The cost of losing a worker in a training with rare exchanges, beside that of torchft's DiLoCo.

Four processes (diloco_losses_worker.py) train as in diloco_quality.py, from the same warm-up, by
DiLoCo over loopback. One is killed inside an exchange of contributions; in the next round another
process connects, and enters. torchft's own DiLoCo on gloo does the same: model, text, H, inner and
outer optimizer are equal, and so is the number of inner steps of a survivor.

    loss                nats a byte on text that is held out, at the end of a survivor; the baseline
                        is that of the same training without a kill and an entry
    seconds_of_loss     from the end of the last round before the kill to the end of the next round
                        that moved the parameters, the most of all survivors
    rounds_of_loss      the same in rounds, of the median of the rounds before it
    rounds_discarded    rounds after which the parameters were as before, the most of all survivors

Values are means over the seeds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import pccl_py as pccl
from bench import diloco_gpt
from bench.common import Row
from bench.diloco_cases import WORKERS, Size
from bench.diloco_gpt import Text
from bench.diloco_losses_worker import LOST, Job
from bench.diloco_quality import Run
from bench.process import Process

BENCH = "diloco"
SECONDS_MAX = 600.0


@dataclass(frozen=True)
class Round:
    """The end of a round, at a time, among so many workers; `moved`: there was an outer step."""

    at: float
    moved: bool
    workers: int


@dataclass(frozen=True)
class Survivor:
    """A worker from the first step, which began at a time, to the last."""

    loss: float
    began: float
    rounds: list[Round]

    def seconds(self, number: int) -> float:
        """From the end of the round before, or the beginning, to the end of the next round from
        `number` on that moved the parameters."""
        before = self.rounds[number - 1].at if number else self.began
        return next(each.at for each in self.rounds[number:] if each.moved) - before


@dataclass(frozen=True)
class Cost:
    """A training with a loss; `undisturbed` is the loss of text without one."""

    loss: float
    undisturbed: float
    seconds: float
    rounds: float
    discarded: float


def cost(undisturbed: list[Survivor], disturbed: list[Survivor]) -> Cost:
    """The cost of a worker less and one more. Raises RuntimeError where no newcomer entered."""
    if any(all(r.workers < WORKERS for r in each.rounds[LOST + 1 :]) for each in disturbed):
        raise RuntimeError(f"no survivor of a loss has seen a newcomer: {disturbed}")
    whole = [
        each.seconds(number)
        for each in disturbed
        for number, told in enumerate(each.rounds)
        if number != LOST and told.moved and told.workers == WORKERS
    ]
    seconds = max(each.seconds(LOST) for each in disturbed)
    return Cost(
        loss=disturbed[0].loss,
        undisturbed=undisturbed[0].loss,
        seconds=seconds,
        rounds=seconds / statistics.median(whole),
        discarded=max(sum(not told.moved for told in each.rounds) for each in disturbed),
    )


def missing() -> str | None:
    """The reason why torchft cannot be measured here, if there is one."""
    if importlib.util.find_spec("torchft") is None:
        return "torchft is not installed: pip install torchft==0.2.0"
    return None


def measured(size: Size) -> Iterator[Row]:
    """The rows of ours, and of torchft where it is installed."""
    torch.set_num_threads(1)
    os.environ.setdefault("RUST_LOG", "warn")  # of the lighthouse, which tells of each step
    status = Console(stderr=True)
    backends = {"pccl": "pccl"}
    if lacks := missing():
        status.print(f"not measured, losses under torchft: {lacks}")
    else:
        backends["torchft"] = f"torchft {importlib.metadata.version('torchft')} on gloo"
    costs: dict[str, list[Cost]] = {backend: [] for backend in backends}
    text = Text()
    with tempfile.TemporaryDirectory(prefix="pccl-diloco-") as folder:
        checkpoint = Path(folder) / "warm.pt"
        for seed in size.seeds:
            warm = Run(diloco_gpt.Worker, size, seed, text).warm
            torch.save(warm.state_dict(), checkpoint)
            for backend in backends:
                status.print(f"losses, {backends[backend]}, seed {seed}")
                undisturbed, disturbed = (
                    _trained(backend, size, seed, checkpoint, disturbed=disturbed)
                    for disturbed in (False, True)
                )
                costs[backend].append(cost(undisturbed, disturbed))
    for backend, name in backends.items():
        yield from _rows(f"losses/{name}", costs[backend])


def _trained(
    backend: str, size: Size, seed: int, checkpoint: Path, *, disturbed: bool
) -> list[Survivor]:
    """The workers that trained from the first step to the last."""
    with contextlib.ExitStack() as stack:
        if backend == "pccl":
            coordinator = stack.enter_context(pccl.Coordinator(initial_world_size=WORKERS))
            meeting = coordinator.token
        else:
            meeting = stack.enter_context(_lighthouse())

        def start(number: int, rank: int, *, dies: bool) -> Process:
            command = [sys.executable, "-m", "bench.diloco_losses_worker"]
            fault = {"PCCL_FAULT_POINT": f"operation.partial:{LOST}"}
            process = Process(command, fault if dies and backend == "pccl" else None)
            stack.callback(process.end)
            job = Job(backend, meeting, str(checkpoint), size, seed, number, rank, dies)
            process.say(job.to_json())  # it has the token, which no command line may show
            return process

        last = WORKERS - 1
        founders = [start(n, n, dies=disturbed and n == last) for n in range(WORKERS)]
        newcomers = [start(WORKERS, last, dies=False)] if disturbed else []
        for process in (*founders, *newcomers):
            _await_lines(process, 1)
        for process in founders:
            process.say("begin")
        if not disturbed:
            return [_survivor(process) for process in founders]
        *survivors, victim = founders
        before = 2 + LOST  # lines: it is ready, it has begun, and the rounds
        _await_lines(survivors[0], before + 1)
        newcomers[0].say("begin")
        found = [_survivor(process) for process in survivors]
        if len(victim.lines) != before:
            raise RuntimeError(f"a worker was to be killed in round {LOST}: {victim.lines}")
        return found


def _await_lines(process: Process, count: int) -> None:
    process.until(lambda: len(process.lines) >= count, f"{count} lines", SECONDS_MAX)


def _survivor(process: Process) -> Survivor:
    process.until(lambda: "loss" in process.lines[-1], "its loss", SECONDS_MAX)
    _, begun, *rounds, end = map(json.loads, process.lines)
    return Survivor(end["loss"], begun["began"], [Round(**told) for told in rounds])


@contextlib.contextmanager
def _lighthouse() -> Iterator[str]:
    """The address of one, which makes a quorum when all that live have asked for it."""
    coordination: Any = importlib.import_module("torchft.coordination")
    house = coordination.LighthouseServer("[::]:0", 2, 60_000, heartbeat_timeout_ms=1000)
    try:
        yield f"http://localhost:{house.address().rsplit(':', 1)[1]}"
    finally:
        house.shutdown()


def _rows(case: str, costs: list[Cost]) -> Iterator[Row]:
    mean = {
        field.name: statistics.mean(getattr(each, field.name) for each in costs)
        for field in dataclasses.fields(Cost)
    }
    yield Row(BENCH, case, "loss", mean["loss"], "nats/byte", "undisturbed", mean["undisturbed"])
    yield Row(BENCH, case, "seconds_of_loss", mean["seconds"], "s")
    yield Row(BENCH, case, "rounds_of_loss", mean["rounds"], "rounds")
    yield Row(BENCH, case, "rounds_discarded", mean["discarded"], "rounds")


def table(rows: list[Row]) -> Table:
    """A line for each library."""
    made = Table(
        title="a worker is killed in an exchange, another one enters", title_justify="left"
    )
    for heading in ("library", "loss", "loss more by", "time, rounds", "rounds discarded"):
        made.add_column(heading, justify="left" if heading == "library" else "right")
    by_name = {(row.case, row.metric): row for row in rows}
    for case in dict.fromkeys(row.case for row in rows if row.case.startswith("losses/")):
        loss = by_name[case, "loss"]
        assert loss.ratio is not None
        made.add_row(
            case.removeprefix("losses/"),
            f"{loss.value:.3f}",
            f"{100 * (loss.ratio - 1):+.1f} %",
            f"{by_name[case, 'rounds_of_loss'].value:.2f}",
            f"{by_name[case, 'rounds_discarded'].value:g}",
        )
    return made
