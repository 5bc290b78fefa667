"""One peer: the training program of the demo.

It owns the loop that a user of PCCL would write: enter at the safe point, train for a while,
average, go on. Note what is not here: nothing about peers that die. It reports what it does as JSON
lines on its standard output, for `orchestrator.py`; the optimisers are in `diloco.py`, the network
in `model.py`. The same for PyTorch is `peer_torch.py`, for JAX `peer_jax.py`.

    python -m examples.demo.peer SETTINGS_AS_JSON INDEX       (PCCL_TOKEN says where to connect)

"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pccl_py as pccl
from examples.demo.corpus import Corpus, draw, standard_library_text
from examples.demo.diloco import AdamW, OuterNesterov
from examples.demo.model import Floats
from examples.demo.settings import PROMPT, TAG_PSEUDO_GRADIENT, Settings

Report = Callable[..., None]


@dataclass
class Shared:
    """The state that has the same bytes on all peers, and that a newcomer must be given."""

    parameters: Floats
    outer: OuterNesterov
    rounds_done: NDArray[np.int64]  # one element, an array so that it can travel

    def digest(self) -> str:
        """Equal on two peers exactly if their shared state is."""
        hasher = hashlib.blake2b(digest_size=16)
        for part in (self.parameters, self.outer.momentum, self.rounds_done):
            hasher.update(part.data)
        return hasher.hexdigest()


def train(comm: pccl.Communicator, settings: Settings, index: int, report: Report) -> None:
    """Takes part in the run until all its rounds are done."""
    model = settings.model
    corpus = Corpus.load(standard_library_text())
    text = corpus.shard(index, settings.shards)
    examination = corpus.examination(model.context, settings.examination)
    rng = np.random.default_rng((settings.seed, index))

    shared = Shared(model.initial(settings.seed), OuterNesterov(model.size), np.zeros(1, np.int64))
    state = comm.shared_state(
        {
            "parameters": shared.parameters,
            "momentum": shared.outer.momentum,
            "rounds_done": shared.rounds_done,
        }
    )
    inner = AdamW(model.size)
    gradient = np.empty(model.size, np.float32)

    while shared.rounds_done[0] < settings.rounds:
        admission = comm.admit()
        # Newcomers get what the others hold; for everybody else it is a comparison of hashes.
        synced = state.sync()
        if admission.changed:
            report(
                "admitted",
                **describe(comm, admission),
                revision=synced.revision,
                leaves_moved=synced.leaves_moved,
                sources=synced.sources,
                digest=shared.digest(),
                rounds_done=int(shared.rounds_done[0]),
                held_out_loss=model.loss(shared.parameters, *examination),
            )
        this_round = int(shared.rounds_done[0]) + 1

        report("training", round=this_round)
        parameters = shared.parameters.copy()
        remaining = 1 - 0.9 * float(shared.rounds_done[0]) / settings.rounds
        train_loss = 0.0
        for _ in range(settings.steps):
            windows, targets = draw(text, model.context, settings.batch, rng)
            loss = model.loss_and_gradient(parameters, windows, targets, gradient)
            train_loss += loss / settings.steps
            warm_up = min(1.0, (inner.steps + 1) / settings.warm_up_steps)
            inner.step(parameters, gradient, schedule=warm_up * remaining)

        report("reducing", round=this_round, train_loss=train_loss)
        pseudo_gradient = shared.parameters - parameters
        outcome = comm.all_reduce(
            pseudo_gradient, op="avg", recovery="resume", tag=TAG_PSEUDO_GRADIENT
        )
        shared.outer.step(shared.parameters, pseudo_gradient)
        shared.rounds_done += 1

        report(
            "round",
            round=this_round,
            train_loss=train_loss,
            held_out_loss=model.loss(shared.parameters, *examination),
            digest=shared.digest(),
            **account(comm, outcome),
        )

    report("finished", digest=shared.digest(), text=sample(settings, shared.parameters))


def describe(comm: pccl.Communicator, admission: pccl.Admission) -> dict[str, Any]:
    """An admission, for a report."""
    return {
        "epoch": admission.epoch,
        "rank": admission.rank,
        "world_size": admission.world_size,
        "members": [str(member) for member in comm.members],
        "joined": [str(member) for member in admission.joined],
        "left": [str(member) for member in admission.left],
    }


def account(comm: pccl.Group, outcome: pccl.Outcome) -> dict[str, Any]:
    """The result of an all_reduce, and its cost, for a report."""
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
    """A sample of what the model writes; bytes that are no text become replacement characters."""
    written = settings.model.write(parameters, f"\n\n\n{PROMPT}".encode(), 240, settings.seed)
    return written.decode("utf-8", errors="replace")


def reporter() -> Report:
    """Takes standard output for reports; whatever else prints here goes to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def report(kind: str, **fields: Any) -> None:
        stream.write(json.dumps({"kind": kind, "at": time.time(), **fields}) + "\n")

    return report


def run(join: Callable[[Settings, int, Report], None]) -> None:
    """Takes part as the command line says, and tells what went wrong if something did."""
    settings, index = Settings.from_json(sys.argv[1]), int(sys.argv[2])
    report = reporter()
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
