"""diloco: what rare exchanges cost in quality, and what they save in bytes, on real text.

Four workers train a GPT over bytes on the Python files of the standard library, each on a quarter.
After a synchronous warm-up every method goes on from the same checkpoint for the same number of
steps. The workers are threads of this process (`pccl.LocalWorld`), over loopback sockets.

    loss             nats a byte on text that is held out, of the shared parameters at the end
    bytes_sent       by one worker, headers too, in all steps after the warm-up
    peak_bytes       the most that one exchange sends
    waited           seconds that a worker stood still for exchanges, over loopback

The baseline is synchronous training: the average of all gradients in every step. A method's outer
optimizer has the numbers of its paper; nothing was tuned on the seeds that are reported.
"""

from __future__ import annotations

import copy
import statistics
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pccl_train.torch
import torch
from pccl_train import SGD, Exchange, Nesterov, Sparse
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import pccl_py as pccl
from bench import diloco_links, wan_network
from bench.common import Row
from bench.report import Report
from examples.small_gpt import CONTEXT, SmallGPT

BENCH = "diloco"
WORKERS = 4
BATCH = 8
HELD_OUT_EVERY = 32  # one block of 32 is kept from training
BLOCK = 4096
SYNCHRONOUS = "synchronous"


class Part(str, Enum):
    """The parts of the benchmark."""

    ALL = "all"
    QUALITY = "quality"
    LINKS = "links"


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    width: int
    layers: int
    warm_up: int
    steps: int
    seeds: int


FULL = Size(width=96, layers=3, warm_up=200, steps=400, seeds=2)
QUICK = Size(width=32, layers=1, warm_up=8, steps=24, seeds=1)


@dataclass(frozen=True)
class Case:
    """One method: `every` is H, `settings` the rest."""

    every: int
    settings: dict[str, Any] = field(default_factory=dict)
    muon: bool = False


def cases(size: Size) -> dict[str, Case]:
    """The methods, by name; None of them is `SYNCHRONOUS`."""
    every = min(50, size.steps // 4)
    short = min(20, size.steps // 4)
    streaming: dict[str, Any] = {
        "fragments": 4, "order": "strided", "fragment_sync_delay": every // 10,
        "fragment_update_alpha": 0.5,
    }  # fmt: skip
    late = {"fragment_sync_delay": every, "outer": Nesterov(0.4, 0.6)}
    sparse = {"outer": SGD(1.0), "sparse": Sparse(kept=64)}
    return {
        "diloco": Case(every),
        "diloco int8": Case(every, {"codec": "int8"}),
        "diloco int4, feedback": Case(every, {"codec": "int4", "error_feedback": True}),
        "delayed": Case(every, late),
        "eager": Case(every, {**late, "eager": True}),
        "streaming": Case(every, streaming),
        "streaming e3m0": Case(every, {**streaming, "codec": "e3m0"}),
        "sparseloco": Case(short, sparse),
        "muloco int4": Case(every, {"codec": "int4", "error_feedback": True}, muon=True),
    }


# ---- the model and the text


class Model(SmallGPT):
    """The GPT of the examples, of a size, with parameters that follow from a seed."""

    def __init__(self, size: Size, seed: int) -> None:
        super().__init__(size.width, size.layers)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim == 2:
                    parameter.normal_(0, 0.5 / parameter.shape[1] ** 0.5, generator=generator)

    def optimizers(self, muon: bool) -> list[torch.optim.Optimizer]:
        """AdamW; with `muon` for what is no matrix of a block, and Muon, last, for these."""
        if not muon:
            return [torch.optim.AdamW(self.parameters(), lr=2e-3)]
        matrices = [p for p in self.blocks.parameters() if p.ndim == 2]
        theirs = {id(p) for p in matrices}
        others = [p for p in self.parameters() if id(p) not in theirs]
        return [torch.optim.AdamW(others, lr=2e-3), torch.optim.Muon(matrices, lr=0.02)]


class Text:
    """The standard library in blocks: a part for each worker, and what is held out."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        whole = np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)
        blocks = torch.from_numpy(whole[: len(whole) // BLOCK * BLOCK].reshape(-1, BLOCK).copy())
        is_held = torch.arange(len(blocks)) % HELD_OUT_EVERY == 0
        self._parts = [blocks[~is_held][rank::WORKERS].flatten() for rank in range(WORKERS)]
        self._held_out = blocks[is_held].flatten()

    def batches(self, rank: int, seed: int) -> Iterator[Tensor]:
        """(BATCH, CONTEXT + 1) bytes each, of the worker's part."""
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            yield _windows(self._parts[rank], BATCH, generator)

    def examine(self, model: Model) -> float:
        """The loss on text that is held out, the same for all."""
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            return float(model(_windows(self._held_out, 512, generator)).item())


def _windows(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - CONTEXT - 1, (count, 1), generator=generator)
    return text[starts + torch.arange(CONTEXT + 1)].long()


# ---- training


@dataclass(frozen=True)
class Trained:
    """A method at the end."""

    loss: float
    bytes_sent: float
    peak_bytes: float
    waited: float


class Run:
    """One seed: the warm-up, and the methods that go on from it."""

    def __init__(self, size: Size, seed: int, text: Text) -> None:
        self._size, self._seed, self._text = size, seed, text
        self._state: dict[str, Any] | None = None
        with pccl.LocalWorld(WORKERS) as world:
            model = Model(size, seed)
            warm = [copy.deepcopy(model) for _ in range(WORKERS)]
            world.run(lambda comm: self._synchronous(comm, warm[comm.rank], size.warm_up, seed=9))
        self._warm = warm[0]

    def synchronous(self) -> Trained:
        """Every gradient averaged."""
        return self._over(lambda comm, model: self._synchronous(comm, model, self._size.steps))

    def method(self, case: Case) -> Trained:
        """The rest of the steps by a method."""
        return self._over(lambda comm, model: self._rarely(comm, model, case))

    def _over(self, train: Callable[[pccl.Communicator, Model], list[Exchange]]) -> Trained:
        with pccl.LocalWorld(WORKERS) as world:

            def program(comm: pccl.Communicator) -> tuple[float, float, list[Exchange]]:
                model = copy.deepcopy(self._warm)
                before = comm.info().bytes_sent
                told = train(comm, model)
                sent = comm.info().bytes_sent - before
                return self._text.examine(model) if comm.rank == 0 else 0.0, sent, told

            results = world.run(program)
        exchanges = [each for _, _, told in results for each in told]
        steps = self._size.steps
        return Trained(
            loss=results[0][0],
            bytes_sent=max(sent for _, sent, _ in results),
            peak_bytes=max((each.bytes_sent for each in exchanges), default=results[0][1] / steps),
            waited=sum(each.waited for each in results[0][2]),
        )

    def _optimizers(self, model: Model, *, muon: bool) -> list[torch.optim.Optimizer]:
        """With the state that they have after the warm-up, where it is that of AdamW alone."""
        optimizers = model.optimizers(muon)
        if self._state is not None and not muon:
            optimizers[0].load_state_dict(copy.deepcopy(self._state))
        return optimizers

    def _synchronous(
        self, comm: pccl.Communicator, model: Model, steps: int, seed: int = 0
    ) -> list[Exchange]:
        (optimizer,) = self._optimizers(model, muon=False)
        batches = self._text.batches(comm.rank, 100 * self._seed + seed)
        for _ in range(steps):
            model(next(batches)).backward()
            gradients: Any = [p.grad for p in model.parameters()]
            comm.all_reduce(gradients, op="avg")
            optimizer.step()
            optimizer.zero_grad()
        if self._state is None and comm.rank == 0:
            self._state = optimizer.state_dict()
        return []

    def _rarely(self, comm: pccl.Communicator, model: Model, case: Case) -> list[Exchange]:
        told: list[Exchange] = []
        optimizers = self._optimizers(model, muon=case.muon)
        batches = self._text.batches(comm.rank, 100 * self._seed)
        with pccl_train.torch.DiLoCo(
            comm, model, optimizers[-1],
            sync_every=case.every, on_exchange=told.append, **case.settings,
        ) as diloco:  # fmt: skip
            for _ in range(self._size.steps):
                model(next(batches)).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            diloco.finish()
        return told


# ---- running


def run(*, quick: bool, part: Part, only: list[str] | None, as_json: bool, out: Path) -> list[Row]:
    """Measures the methods, or those of `only`; prints and writes the rows."""
    report = Report(BENCH, out, as_json=as_json)
    tables = []
    if part in (Part.ALL, Part.QUALITY):
        quality(report, only, QUICK if quick else FULL)
        tables.append(_table(report.rows))
    if part in (Part.ALL, Part.LINKS):
        grid = diloco_links.QUICK if quick else diloco_links.FULL
        for row in diloco_links.measured(wan_network.build(), grid):
            report.add([row])
        tables.append(diloco_links.table(report.rows))
    return report.finish(*tables)


def quality(report: Report, only: list[str] | None, size: Size) -> None:
    """Trains by each method, or those of `only`, and adds the rows."""
    torch.set_num_threads(1)
    methods = {n: c for n, c in cases(size).items() if only is None or n in only}
    text = Text()
    found: dict[str, list[Trained]] = {name: [] for name in (SYNCHRONOUS, *methods)}
    turns = [(seed, name) for seed in range(size.seeds) for name in found]
    world: Run | None = None
    for seed, name in track(turns, "methods", console=Console(stderr=True)):
        if name == SYNCHRONOUS:
            world = Run(size, seed, text)
        assert world is not None
        case = methods.get(name)
        found[name].append(world.synchronous() if case is None else world.method(case))
    base = found[SYNCHRONOUS]
    for name, trained in found.items():
        report.add(_rows(name, trained, base))


def _rows(name: str, trained: list[Trained], base: list[Trained]) -> Iterator[Row]:
    for metric, unit in (
        ("loss", "nats/byte"),
        ("bytes_sent", "byte"),
        ("peak_bytes", "byte"),
        ("waited", "s"),
    ):
        value, theirs = (
            statistics.mean(getattr(each, metric) for each in runs) for runs in (trained, base)
        )
        if name == SYNCHRONOUS:
            yield Row(BENCH, f"quality/{name}", metric, value, unit)
        else:
            yield Row(BENCH, f"quality/{name}", metric, value, unit, SYNCHRONOUS, theirs)


def _table(rows: list[Row]) -> Table:
    made = Table(title="against synchronous training, at equal tokens", title_justify="left")
    for heading in ("method", "loss", "loss more by", "fewer bytes by", "peak, KiB"):
        made.add_column(heading, justify="left" if heading == "method" else "right")
    by_name = {(row.case, row.metric): row for row in rows}
    for case in dict.fromkeys(row.case for row in rows if row.case.startswith("quality/")):
        loss, sent = by_name[case, "loss"], by_name[case, "bytes_sent"]
        made.add_row(
            case.removeprefix("quality/"),
            f"{loss.value:.3f}",
            "" if loss.ratio is None else f"{100 * (loss.ratio - 1):+.1f} %",
            "" if not sent.ratio else f"{1 / sent.ratio:,.0f}",
            f"{by_name[case, 'peak_bytes'].value / 1024:,.0f}",
        )
    return made
