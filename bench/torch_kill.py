"""A kill inside of `backward`: how long until the next step of training is finished.

Three processes train with DDP; the last one kills itself in the middle of a backward. Over PCCL
with `average_hook` the others go on with the step. With gloo their step fails, torchrun ends them
and starts all three again, and they begin at their last checkpoint. torch_kill_worker.py is each
process; the other cases are in torch_steps.py.

    seconds_to_next_step  from the kill until all that are there have finished a step
    steps_to_next_step    the same in steps, of the median of those before
    steps_lost            steps that those who went on must take again
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import statistics
import sys
from dataclasses import dataclass
from typing import Any

from bench.common import Row
from bench.torch_places import environments
from bench.torch_plan import Plan
from harness.child import Child, held_port

WORLD = 3
TRIES = 5
SECONDS_MAX = 600.0


@dataclass(frozen=True)
class Loss:
    """One kill."""

    seconds: float
    step_seconds: float
    lost: int


def run(*, quick: bool) -> list[Row]:
    """The rows: ours beside torchrun with gloo."""
    plan = Plan("pccl", "1M", 4, 8) if quick else Plan("pccl", "25M", 8, 14)
    tries = 1 if quick else TRIES
    ours = [_loss(_alone(plan), plan) for _ in range(tries)]
    gloo = Plan("gloo", plan.size, plan.kill_at, plan.steps)
    theirs = [_loss(_under_torchrun(gloo), gloo) for _ in range(1 if quick else 3)]
    name = f"kill/ddp_step/f32/none/w{WORLD}/{plan.size}"
    rows = []
    for metric, unit, value in (
        ("seconds_to_next_step", "s", lambda loss: loss.seconds),
        ("steps_to_next_step", "steps", lambda loss: loss.seconds / loss.step_seconds),
        ("steps_lost", "steps", lambda loss: float(loss.lost)),
    ):
        mine, other = (statistics.median(map(value, losses)) for losses in (ours, theirs))
        rows.append(Row("torch", name, metric, mine, unit, "gloo under torchrun", other))
    return rows


def _loss(told: list[dict[str, Any]], plan: Plan) -> Loss:
    """The loss that the lines of all processes tell of."""
    (killed,) = [line["killed"] for line in told if "killed" in line]
    steps = [line for line in told if "step" in line]
    before = [line["end"] - line["begin"] for line in steps if 2 < line["step"] < plan.kill_at]
    # The first step that everybody there has finished after the kill.
    after = [line for line in steps if line["end"] > killed]
    if not after:
        raise RuntimeError("nobody has finished a step after the kill")
    first = min(after, key=lambda line: line["end"])
    same = [line for line in after if line["step"] == first["step"]]
    return Loss(
        max(line["end"] for line in same) - killed,
        statistics.median(before),
        plan.kill_at - first["step"],
    )


def _alone(plan: Plan) -> list[dict[str, Any]]:
    """The lines of three processes that this one starts; the last is killed, the others are not."""
    told: queue.Queue[str] = queue.Queue()
    command = [sys.executable, "-m", "bench.torch_kill_worker", plan.to_json()]
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(held_port()).getsockname()[1]
        children = [
            stack.enter_context(
                Child(command, heard=told.put, environment=environment, log=sys.stderr)
            )
            for environment in environments(port, world=WORLD)
        ]
        codes = [child.wait_until_heard(SECONDS_MAX) for child in children]
    if any(codes[:-1]):
        raise RuntimeError(f"survivors of a kill ended with status {codes[:-1]}")
    return _parsed(told)


def _under_torchrun(plan: Plan) -> list[dict[str, Any]]:
    """The lines of three processes that torchrun starts, twice."""
    told: queue.Queue[str] = queue.Queue()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(WORLD), "--max-restarts", "1"]
    command += ["-m", "bench.torch_kill_worker", plan.to_json()]
    shared = environments(0, world=WORLD)[0]
    inherited = {name: shared[name] for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")}
    errors: list[str] = []
    with Child(command, heard=told.put, environment=inherited) as child:
        try:
            code = child.wait_until_heard(SECONDS_MAX)
        finally:
            # Killed, it would leave its workers behind.
            if child.signal(signal.SIGTERM):
                child.wait(SECONDS_MAX)
        errors.append(child.errors)
    if code != 0:
        raise RuntimeError(f"torchrun ended with status {code}: {errors[0][-2000:]}")
    return _parsed(told)


def _parsed(told: queue.Queue[str]) -> list[dict[str, Any]]:
    lines = []
    while not told.empty():
        line = told.get()
        if line.startswith("{"):
            lines.append(json.loads(line))
    return lines
