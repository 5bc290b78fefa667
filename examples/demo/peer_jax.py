"""One peer under JAX: the training program of the demo, with each round as one jitted program.

The program has the loop of `peer.py`, with the same text and reports, and uses the NumPy network
for losses and samples. A jitted round has the steps of the inner optimiser as a `scan`, the average
of the pseudo-gradients, and the outer step of DiLoCo. One peer is killed inside of a jitted round,
and the other peers go on.

    python -m examples.demo.peer_jax SETTINGS_AS_JSON INDEX       (PCCL_TOKEN says where to connect)

"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pccl_jax as pj
import pccl_jax.optax as pj_optax
from jax.experimental import io_callback

import pccl_py as pccl
from examples.demo.corpus import Corpus, draw, standard_library_text
from examples.demo.model import Model
from examples.demo.peer import Report, account, describe, run, sample
from examples.demo.settings import Settings

RATE = 3e-3  # learning rate of the inner optimiser
INNER = optax.chain(optax.scale_by_adam(b1=0.9, b2=0.99), optax.add_decayed_weights(0.01))
OUTER = optax.chain(
    pj_optax.average_gradients(recovery="resume"),
    optax.sgd(0.7, momentum=0.9, nesterov=True),
)


def loss_of(flat: Any, windows: Any, targets: Any, model: Model) -> Any:
    """Mean loss in nats per byte. windows: (batch, context); targets: (batch,)."""
    own: dict[str, Any] = model.views(flat)
    embedded = own["table"][windows].reshape(len(windows), -1)
    hidden = jnp.tanh(embedded @ own["w1"] + own["b1"])
    scores = hidden @ own["w2"] + own["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, targets).mean()


def round_of(model: Model, reducing: Callable[[Any], Any]) -> Any:
    """A jitted program for a round: local steps, the average over all peers, the outer step.

    `reducing`: called with the mean loss before the average; must return 1. The program takes the
    parameters, the states of the outer and the inner optimiser, and windows, targets and rates,
    each of which has the steps as first axis.
    """

    def step(carry: Any, given: Any) -> Any:
        parameters, inner = carry
        windows, targets, rate = given
        loss, gradient = jax.value_and_grad(loss_of)(parameters, windows, targets, model)
        direction, inner = INNER.update(gradient, inner, parameters)
        return (parameters - rate * direction, inner), loss

    @pj.jit
    def program(
        comm: pj.Comm, shared: Any, outer: Any, inner: Any, windows: Any, targets: Any, rates: Any
    ) -> Any:
        (local, inner), losses = jax.lax.scan(step, (shared, inner), (windows, targets, rates))
        # `one` is a factor of the pseudo-gradient, so that the average waits for `reducing`.
        one = io_callback(reducing, jax.ShapeDtypeStruct((), jnp.float32), losses.mean())
        updates, outer = OUTER.update((shared - local) * one, outer, shared, comm=comm)
        return optax.apply_updates(shared, updates), outer, inner, losses.mean()

    return program


class Training:
    """One peer: the state shared by all peers, and this peer's own inner optimiser and text."""

    def __init__(
        self, comm: pccl.Communicator, settings: Settings, index: int, report: Report
    ) -> None:
        self.comm, self.settings, self.model, self.report = comm, settings, settings.model, report
        corpus = Corpus.load(standard_library_text())
        self.text = corpus.shard(index, settings.shards)
        self.examination = corpus.examination(self.model.context, settings.examination)
        self.rng = np.random.default_rng((settings.seed, index))

        parameters = jnp.asarray(self.model.initial(settings.seed))
        self.shared: dict[str, Any] = {
            "parameters": parameters,
            "outer": OUTER.init(parameters),
            "rounds_done": 0,
        }
        self.state = pj.shared_state(comm, self.shared)
        self.inner: Any = INNER.init(parameters)
        self.steps_done = 0
        self.program = round_of(self.model, self.tell_reducing)

    @property
    def this_round(self) -> int:
        """The number of the round in progress, from 1."""
        return int(self.shared["rounds_done"]) + 1

    def train(self) -> None:
        """Takes part in the run until all its rounds are done."""
        while self.this_round <= self.settings.rounds:
            self.admit()
            number = self.this_round
            self.report("training", round=number)
            train_loss, outcome = self.make_round()
            self.shared["rounds_done"] = number
            self.report(
                "round",
                round=number,
                train_loss=train_loss,
                held_out_loss=self.held_out_loss(),
                digest=self.digest(),
                **account(self.comm, outcome),
            )
        written = sample(self.settings, np.asarray(self.shared["parameters"]))
        self.report("finished", digest=self.digest(), text=written)

    def admit(self) -> None:
        """Passes the safe point, and syncs the shared state, which newcomers receive."""
        before = self.comm.members
        admission = self.comm.admit()
        self.shared = self.state.sync(self.shared)
        if admission.changed:
            self.report(
                "admitted",
                **describe(self.comm, before),
                digest=self.digest(),
                rounds_done=self.this_round - 1,
                held_out_loss=self.held_out_loss(),
            )

    def make_round(self) -> tuple[float, pccl.Outcome]:
        """Runs a round; returns the mean loss of its steps, and the outcome of the average."""
        settings, model = self.settings, self.model
        drawn = [
            draw(self.text, model.context, settings.batch, self.rng) for _ in range(settings.steps)
        ]
        windows, targets = (np.stack(each).astype(np.int32) for each in zip(*drawn, strict=True))
        numbers = self.steps_done + 1 + np.arange(settings.steps)
        warm_up = np.minimum(1.0, numbers / settings.warm_up_steps)
        remaining = 1 - 0.9 * (self.this_round - 1) / settings.rounds
        rates = (RATE * warm_up * remaining).astype(np.float32)
        self.shared["parameters"], self.shared["outer"], self.inner, loss = self.program(
            self.comm,
            *(self.shared["parameters"], self.shared["outer"], self.inner),
            *(windows, targets, rates),
        )
        self.steps_done += settings.steps
        outcome = pj_optax.outcome(self.shared["outer"])
        assert outcome is not None
        return float(loss), outcome

    def tell_reducing(self, train_loss: Any) -> Any:
        """The jitted program calls this before the average; reports the mean loss."""
        self.report("reducing", round=self.this_round, train_loss=float(train_loss))
        return np.float32(1)

    def held_out_loss(self) -> float:
        """The loss of the shared parameters on held-out text."""
        return self.model.loss(np.asarray(self.shared["parameters"]), *self.examination)

    def digest(self) -> str:
        """A hash of the state that all peers share; leaves out the state of `average_gradients`."""
        own = self.shared
        shared = jax.tree.leaves((own["parameters"], own["outer"][1:], own["rounds_done"]))
        content = b"".join(np.asarray(each).tobytes() for each in shared)
        return hashlib.blake2b(content, digest_size=16).hexdigest()


def connect(settings: Settings, index: int, report: Report) -> None:
    """Connects and trains."""
    with pccl.connect() as comm:
        report("connected", peer_id=str(comm.peer_id))
        Training(comm, settings, index, report).train()


if __name__ == "__main__":
    run(connect)
