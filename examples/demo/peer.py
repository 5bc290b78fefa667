"""One peer: the training program of the demo.

The program has the loop that a user of `pccl_train` would write: inner steps, each followed by
`diloco.step()`. In the last step of a round, `diloco.step()` passes the safe point, where newcomers
enter, averages the pseudo-gradients of all members, and makes the outer step (DiLoCo, arXiv
2311.08105). The program needs no code for peers that die. It reports progress as JSON lines on
standard output, for `orchestrator.py`. The network and the inner optimizer are in `model.py`.
`peer_torch.py` and `peer_jax.py` do the same with `pccl_torch` and `pccl_jax`, without
`pccl_train`.

    python -m examples.demo.peer SETTINGS_AS_JSON INDEX       (PCCL_TOKEN says where to connect)

"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from pccl_train import Nesterov
from pccl_train.numpy import DiLoCo

import pccl_py as pccl
from examples.demo.corpus import Corpus, draw, standard_library_text
from examples.demo.model import AdamW, Floats
from examples.demo.settings import PROMPT, Settings

Report = Callable[..., None]


def train(comm: pccl.Communicator, settings: Settings, index: int, report: Report) -> None:
    """Takes part in the run until all its rounds are done."""
    model = settings.model
    corpus = Corpus.load(standard_library_text())
    text = corpus.shard(index, settings.shards)
    examination = corpus.examination(model.context, settings.examination)
    rng = np.random.default_rng((settings.seed, index))

    parameters = model.initial(settings.seed)
    gradient = np.empty(model.size, np.float32)
    inner = AdamW(model.size)
    outer = Nesterov(0.7, 0.9)
    diloco = DiLoCo(comm, model.views(parameters), sync_every=settings.steps, outer=outer)

    def held() -> dict[str, Any]:
        loss = model.loss(parameters, *examination)
        return {"digest": diloco.digest(), "held_out_loss": loss}

    diloco.begin()
    epoch, members = 0, tuple[pccl.PeerId, ...]()
    while diloco.round < settings.rounds:
        if comm.epoch != epoch:
            report("admitted", **describe(comm, members), rounds_done=diloco.round, **held())
            epoch, members = comm.epoch, comm.members
        this_round = diloco.round + 1

        report("training", round=this_round)
        remaining = 1 - 0.9 * diloco.round / settings.rounds
        train_loss = 0.0
        for step in range(1, settings.steps + 1):
            windows, targets = draw(text, model.context, settings.batch, rng)
            loss = model.loss_and_gradient(parameters, windows, targets, gradient)
            train_loss += loss / settings.steps
            warm_up = min(1.0, (inner.steps + 1) / settings.warm_up_steps)
            inner.step(parameters, gradient, schedule=warm_up * remaining)
            if step == settings.steps:
                report("reducing", round=this_round, train_loss=train_loss)
            diloco.step(tokens=settings.batch)

        exchange = diloco.last_exchange
        assert exchange is not None and exchange.outcome is not None
        cost = account(comm, exchange.outcome)
        report("round", round=this_round, train_loss=train_loss, **held(), **cost)

    diloco.finish()
    report("finished", digest=diloco.digest(), text=sample(settings, parameters))


def describe(comm: pccl.Group, before: tuple[pccl.PeerId, ...]) -> dict[str, Any]:
    """This peer's epoch, for a report. `before`: the members of the epoch before."""
    members = comm.members
    return {
        "epoch": comm.epoch,
        "rank": comm.rank,
        "world_size": comm.world_size,
        "members": [str(member) for member in members],
        "joined": [str(member) for member in members if member not in before],
        "left": [str(member) for member in before if member not in members],
    }


def account(comm: pccl.Group, outcome: pccl.Outcome) -> dict[str, Any]:
    """The outcome of an all_reduce, and the bytes of the whole run so far, for a report."""
    info = comm.info()
    return {
        "epoch": outcome.epoch,
        "sequence": outcome.sequence,
        "attempts": outcome.attempts,
        "result_digest": outcome.digest,
        "ranges": [
            {
                "begin": part.begin,
                "end": part.end,
                "contributors": [str(peer) for peer in part.contributors],
            }
            for part in outcome.ranges
        ],
        "reduce_seconds": outcome.duration,
        "reduce_bytes_sent": outcome.bytes_sent,
        "reduce_bytes_received": outcome.bytes_received,
        "bytes_sent": info.bytes_sent,
        "bytes_received": info.bytes_received,
    }


def sample(settings: Settings, parameters: Floats) -> str:
    """A sample of text from the model; invalid UTF-8 becomes replacement characters."""
    written = settings.model.write(parameters, f"\n\n\n{PROMPT}".encode(), 240, settings.seed)
    return written.decode("utf-8", errors="replace")


def reporter() -> Report:
    """Returns a function that writes reports to standard output. All other output of this process
    goes to standard error from now on."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def report(kind: str, **fields: Any) -> None:
        stream.write(json.dumps({"kind": kind, "at": time.time(), **fields}) + "\n")

    return report


def run(join: Callable[[Settings, int, Report], None]) -> None:
    """Calls `join` with the arguments of the command line, and reports its exception, if any. The
    newcomer first waits for a line on standard input, which says that it is to join."""
    settings, index = Settings.from_json(sys.argv[1]), int(sys.argv[2])
    report = reporter()
    if index == settings.newcomer:
        # The framework is imported by now. That can take longer than the rest of the run.
        if not sys.stdin.readline():
            raise SystemExit("the orchestrator has ended")
        report("joining")
    try:
        join(settings, index, report)
    except BaseException as error:
        report("error", error=type(error).__name__, message=str(error))
        raise


def connect(settings: Settings, index: int, report: Report) -> None:
    """Connects and trains."""
    with pccl.connect() as comm:
        report("connected", peer_id=str(comm.peer_id))
        train(comm, settings, index, report)


if __name__ == "__main__":
    run(connect)
