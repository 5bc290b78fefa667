"""The quality that rare exchanges cost, and the bytes that they save, on real text.

Four workers train a GPT over bytes on the Python files of the standard library, each on a quarter.
After a synchronous warm-up every method goes on from the same checkpoint for the same number of
steps. The workers are threads of this process (`pccl.LocalWorld`), over loopback sockets. JAX
repeats some of the methods, with a warm-up and a synchronous training of its own.

    loss             nats a byte on text that is held out, of the shared parameters at the end
    payload_bytes    of tensors that one worker sent in all steps after the warm-up
    bytes_sent       the same with headers and announcements
    peak_bytes       payload, the most that one exchange sends

The baseline is synchronous training: the average of all gradients in every step.
docs/guides/DILOCO.md says which numbers of the methods are of the papers, and which were chosen, on
another seed.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from pccl_train import Exchange
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import pccl_py as pccl
from bench import diloco_gpt
from bench.common import Row
from bench.diloco_cases import JAX, TORCH, WORKERS, Case, Size, cases
from bench.diloco_gpt import Text

BENCH = "diloco"
SYNCHRONOUS = {TORCH: "synchronous", JAX: "jax synchronous"}


class Worker(Protocol):
    """A worker of any framework; see diloco_gpt.py."""

    def loss(self, text: Tensor) -> float: ...
    def synchronous(
        self, comm: pccl.Communicator, batches: Iterator[Tensor], steps: int
    ) -> int: ...
    def rarely(
        self,
        comm: pccl.Communicator,
        batches: Iterator[Tensor],
        steps: int,
        case: Case,
        on_exchange: Callable[[Exchange], object],
    ) -> None: ...


@dataclass(frozen=True)
class Trained:
    """A method at the end."""

    loss: float
    payload_bytes: float
    bytes_sent: float
    peak_bytes: float


WorkerType = TypeVar("WorkerType", bound=Worker)


class Run(Generic[WorkerType]):
    """One seed: the warm-up, and the methods that go on with copies of the worker `warm`."""

    def __init__(
        self, make: Callable[[Size, int], WorkerType], size: Size, seed: int, text: Text
    ) -> None:
        self._size, self._seed, self._text = size, seed, text
        workers = [make(size, seed) for _ in range(WORKERS)]  # which begin alike
        with pccl.LocalWorld(WORKERS) as world:
            world.run(
                lambda comm: workers[comm.rank].synchronous(
                    comm, text.batches(comm.rank, 100 * seed + 9), size.warm_up
                )
            )
        self.warm = workers[0]

    def trained(self, case: Case | None) -> Trained:
        """The rest of the steps by a method, or with every gradient averaged."""
        size, text = self._size, self._text

        def program(comm: pccl.Communicator) -> Trained:
            worker = copy.deepcopy(self.warm)
            batches = text.batches(comm.rank, 100 * self._seed)
            told: list[Exchange] = []
            before = comm.info().bytes_sent
            if case is None:
                payload = worker.synchronous(comm, batches, size.steps)
                peak = payload / size.steps
            else:
                worker.rarely(comm, batches, size.steps, case, told.append)
                payload = sum(each.bytes_sent for each in told)
                peak = max(each.bytes_sent for each in told)
            sent = comm.info().bytes_sent - before
            loss = worker.loss(text.held_out()) if comm.rank == 0 else math.inf
            return Trained(loss, payload, sent, peak)

        with pccl.LocalWorld(WORKERS) as world:
            results = world.run(program)
        return Trained(
            loss=results[0].loss,
            payload_bytes=max(each.payload_bytes for each in results),
            bytes_sent=max(each.bytes_sent for each in results),
            peak_bytes=max(each.peak_bytes for each in results),
        )


def missing() -> str | None:
    """The reason why JAX cannot repeat methods here, if there is one."""
    if any(importlib.util.find_spec(name) is None for name in ("jax", "optax")):
        return "jax or optax is not installed: pip install jax optax"
    return None


def measured(size: Size, only: list[str] | None) -> Iterator[Row]:
    """Trains by each method, or by those of `only`; the rows of each when all its seeds are done.

    Both frameworks have a synchronous run of their own, which is the baseline of their methods.
    """
    torch.set_num_threads(1)
    status = Console(stderr=True)
    methods = {n: c for n, c in cases(size).items() if only is None or n in only}
    if any(case.framework == JAX for case in methods.values()) and (lacks := missing()):
        status.print(f"not measured, the methods of JAX: {lacks}")
        methods = {n: c for n, c in methods.items() if c.framework != JAX}
    text = Text()
    for framework in dict.fromkeys(case.framework for case in methods.values()):
        base: list[Trained] = []
        mine = {n: c for n, c in methods.items() if c.framework == framework}
        turns = {SYNCHRONOUS[framework]: None, **mine}
        runs = [Run(_make(framework), size, seed, text) for seed in size.seeds]
        for name, case in track(turns.items(), f"methods, {framework}", console=status):
            found = [run.trained(case) for run in runs]
            base = base or found
            yield from _rows(name, found, SYNCHRONOUS[framework], base)


def _make(framework: str) -> Callable[[Size, int], Worker]:
    if framework == TORCH:
        return diloco_gpt.Worker
    from bench import diloco_jax  # where it is not installed, torch is measured alone

    return diloco_jax.Worker


def _rows(name: str, trained: list[Trained], baseline: str, base: list[Trained]) -> Iterator[Row]:
    """Means over the seeds."""
    for metric, unit in (
        ("loss", "nats/byte"),
        ("payload_bytes", "byte"),
        ("bytes_sent", "byte"),
        ("peak_bytes", "byte"),
    ):
        value, theirs = (
            statistics.mean(getattr(each, metric) for each in runs) for runs in (trained, base)
        )
        if name == baseline:
            yield Row(BENCH, f"quality/{name}", metric, value, unit)
        else:
            yield Row(BENCH, f"quality/{name}", metric, value, unit, baseline, theirs)


def table(rows: list[Row]) -> Table:
    """The loss and the bytes of each method beside those of synchronous training."""
    made = Table(title="against synchronous training, at equal tokens", title_justify="left")
    for heading in (
        "method", "loss", "loss more by", "less payload by", "fewer bytes by", "peak, KiB"
    ):  # fmt: skip
        made.add_column(heading, justify="left" if heading == "method" else "right")
    by_name = {(row.case, row.metric): row for row in rows}
    for case in dict.fromkeys(row.case for row in rows if row.case.startswith("quality/")):
        loss = by_name[case, "loss"]
        less = (by_name[case, metric].ratio for metric in ("payload_bytes", "bytes_sent"))
        made.add_row(
            case.removeprefix("quality/"),
            f"{loss.value:.3f}",
            "" if loss.ratio is None else f"{100 * (loss.ratio - 1):+.1f} %",
            *("" if not ratio else f"{1 / ratio:,.0f}" for ratio in less),
            f"{by_name[case, 'peak_bytes'].value / 1024:,.0f}",
        )
    return made
