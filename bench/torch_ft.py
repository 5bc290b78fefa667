"""A kill inside of `backward` under torchft: its Manager over PCCL, and over its own gloo.

Three replicas of one process each run the same program (torch_ft_worker.py); the last one kills
itself in the middle of a backward. torchft finds out, makes a quorum of the others, and has their
process groups configured anew. Both go through `pccl_torch.torchft.DistributedDataParallel`, whose
hook is torchft's but for a mistake of 0.2.0; the case "own_hook" has torchft's as it is.

    seconds_to_next_step  from the kill until both others have committed a step
    steps_to_next_step    the same in steps, of the median of those before
    steps_lost            steps that a survivor made and did not commit
    reconfigure_seconds   of `configure` of the process group after the kill, of the slower survivor
    survivors             replicas of two that have committed a step after the kill

With recovery "resume", which gloo does not have, the step of the loss is committed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import queue
import statistics
import sys
from dataclasses import dataclass
from typing import Any

from bench.common import Row
from bench.torch_places import environments
from bench.torch_plan import Plan
from harness.child import Child

WORLD = 3
TRIES = 3
# Steps of all before the kill, and of the others after it.
KILL_AT, STEPS = 4, 3
SECONDS_MAX = 300.0


@dataclass(frozen=True)
class Loss:
    """One kill, and how many replicas came through it."""

    survivors: int
    seconds: float = 0.0
    step_seconds: float = 1.0
    lost: int = 0
    reconfigure: float = 0.0


def missing() -> str | None:
    """The reason why this cannot be measured here, if there is one."""
    if importlib.util.find_spec("torchft") is None:
        return "torchft is not installed: pip install torchft==0.2.0"
    return None


def run(*, quick: bool) -> list[Row]:
    """The rows: ours beside torchft's gloo."""
    os.environ.setdefault("RUST_LOG", "warn")  # of the lighthouse, which tells of each step
    size, tries = ("1M", 1) if quick else ("25M", TRIES)
    told: dict[str, list[Loss]] = {"pccl": [], "gloo": [], "pccl/resume": []}
    for _ in range(tries):
        for backend, losses in told.items():
            losses.append(_loss(_lines(Plan(backend, size, KILL_AT, STEPS))))
    name = f"kill/torchft_step/f32/none/w{WORLD}/{size}"
    rows = [
        *_rows(name, told["pccl"], "gloo under torchft", told["gloo"]),
        *_rows(f"{name}/resume", told["pccl/resume"], None, []),
    ]
    ours, theirs = (
        _loss(_lines(Plan(backend, size, KILL_AT, STEPS)))
        for backend in ("pccl/own_hook", "gloo/own_hook")
    )
    rows.append(_survivors(f"{name}/own_hook", [ours], "gloo under torchft", [theirs]))
    return rows


def _rows(name: str, ours: list[Loss], baseline: str | None, theirs: list[Loss]) -> list[Row]:
    """Medians of those tries that came through; a side without one has no value."""
    rows = [_survivors(name, ours, baseline, theirs)]
    if any(loss.survivors < WORLD - 1 for loss in ours):
        raise RuntimeError(f"{name}: survivors of a kill did not go on over pccl: {ours}")
    through = [loss for loss in theirs if loss.survivors == WORLD - 1]
    for metric, unit, value in (
        ("seconds_to_next_step", "s", lambda loss: loss.seconds),
        ("steps_to_next_step", "steps", lambda loss: loss.seconds / loss.step_seconds),
        ("steps_lost", "steps", lambda loss: float(loss.lost)),
        ("reconfigure_seconds", "s", lambda loss: loss.reconfigure),
    ):
        other = statistics.median(map(value, through)) if through else None
        mine = statistics.median(map(value, ours))
        rows.append(Row("torch", name, metric, mine, unit, baseline, other))
    return rows


def _survivors(name: str, ours: list[Loss], baseline: str | None, theirs: list[Loss]) -> Row:
    """The least of all tries."""
    other = float(min(loss.survivors for loss in theirs)) if theirs else None
    mine = float(min(loss.survivors for loss in ours))
    return Row("torch", name, "survivors", mine, "replicas", baseline, other)


def _loss(told: list[dict[str, Any]]) -> Loss:
    """The loss that the lines of all replicas tell of."""
    (killed,) = [line["killed"] for line in told if "killed" in line]
    steps = [line for line in told if "step" in line]
    before = [line["end"] - line["begin"] for line in steps if line["replicas"] == WORLD]
    late = [line for line in steps if line["end"] > killed]
    after = [line for line in late if line["committed"]]
    ranks = {line["rank"] for line in after}
    if len(ranks) < WORLD - 1:
        return Loss(len(ranks))
    first = [min(line["end"] for line in after if line["rank"] == rank) for rank in ranks]
    configured = [line for line in told if line.get("configured_at", 0.0) > killed]
    return Loss(
        survivors=len(ranks),
        seconds=max(first) - killed,
        step_seconds=statistics.median(before),
        lost=max(sum(not line["committed"] for line in late if line["rank"] == r) for r in ranks),
        reconfigure=max(line["configure_seconds"] for line in configured),
    )


def _lines(plan: Plan) -> list[dict[str, Any]]:
    """The lines of three replicas, of which the last is killed; whether the others end well."""
    coordination = importlib.import_module("torchft.coordination")
    house = coordination.LighthouseServer("[::]:0", 2, 5000, heartbeat_timeout_ms=1000)
    address = f"http://localhost:{house.address().rsplit(':', 1)[1]}"
    told: queue.Queue[str] = queue.Queue()
    command = [sys.executable, "-m", "bench.torch_ft_worker"]
    try:
        with contextlib.ExitStack() as stack:
            children = [
                stack.enter_context(
                    Child(
                        [*command, plan.to_json(), address],
                        heard=told.put,
                        environment=environment,
                    )
                )
                for environment in environments(0, world=WORLD)
            ]
            for child in children:
                child.wait_until_heard(SECONDS_MAX)
            errors = [child.errors[-2000:] for child in children]
    finally:
        house.shutdown()
    lines = []
    while not told.empty():
        line = told.get()
        if line.startswith("{"):
            lines.append(json.loads(line))
    if not any("killed" in line for line in lines):
        raise RuntimeError(f"no replica was killed: {errors}")
    return lines
