"""The benchmark of low-communication training runs, and its rows are what its readers expect."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import diloco_links
from bench.diloco_cases import FULL, JAX, QUICK, TORCH, cases

pytest.importorskip("torch")
pytest.importorskip("optax")
from bench import diloco_gpt, diloco_jax, diloco_losses
from bench.diloco_losses import Round, Survivor
from bench.diloco_losses_worker import LOST

ROOT = Path(__file__).resolve().parents[2]
SMOKE = ("diloco", "diloco int8", "streaming e3m0", "sparseloco", "jax diloco")
pytestmark = pytest.mark.long


@pytest.mark.alone
def test_each_method_has_a_loss_and_its_bytes_beside_synchronous_training(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "diloco", "--quick", "--json", "--part", "quality"]
    methods = {name: cases(QUICK)[name] for name in SMOKE}
    asked = [word for name in methods for word in ("--method", name)]
    done = subprocess.run(
        [*command, *asked, "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {(row["case"], row["metric"]): row for row in map(json.loads, done.stdout.splitlines())}
    baselines = {TORCH: "synchronous", JAX: "jax synchronous"}
    metrics = ("loss", "payload_bytes", "bytes_sent", "peak_bytes")
    assert rows.keys() == {
        (f"quality/{name}", metric)
        for name in (*baselines.values(), *methods)
        for metric in metrics
    }
    for name, case in methods.items():
        loss, payload, sent, _ = (rows[f"quality/{name}", metric] for metric in metrics)
        assert loss["baseline"] == baselines[case.framework]
        assert loss["ratio"] < 1.6
        assert payload["ratio"] <= 1 / case.every
        assert payload["value"] < sent["value"] < 0.2 * sent["baseline_value"]
    coded, plain = (rows[f"quality/diloco{codec}", "payload_bytes"] for codec in (" int8", ""))
    assert coded["value"] < 0.3 * plain["value"]


def test_the_model_and_the_optimizer_in_jax_are_those_in_torch() -> None:
    ours, theirs = diloco_gpt.Worker(QUICK, 3), diloco_jax.Worker(QUICK, 3)
    batch = next(diloco_gpt.Text().batches(1, 0))
    ours.model(batch).backward()
    gradients = diloco_jax.gradients_of(theirs.params, batch.numpy())
    theirs.params, _ = diloco_jax.moved(theirs.params, theirs.moments, gradients)
    before = {name: value.detach().clone() for name, value in ours.model.named_parameters()}
    ours.adamw.step()
    for name, value in ours.model.named_parameters():
        assert value.grad is not None
        np.testing.assert_allclose(gradients[name], value.grad.numpy(), atol=1e-6)
        # The first step of Adam is a sign, which rounding decides where a gradient is nothing.
        clear = np.abs(value.grad.numpy()) > 1e-5
        moved = np.asarray(theirs.params[name]) - before[name].numpy()
        wanted = (value.detach() - before[name]).numpy()
        np.testing.assert_allclose(moved[clear], wanted[clear], rtol=1e-2)


def survivor(loss: float, ends: list[float], discarded: int | None = None) -> Survivor:
    """A worker whose rounds ended at these times, one of them perhaps for nothing."""
    told = [Round(at, number != discarded, 4) for number, at in enumerate(ends)]
    return Survivor(loss, 0.0, told)


def test_a_loss_costs_the_time_between_two_rounds_that_moved_the_parameters() -> None:
    undisturbed = [survivor(2.0, [1, 2, 3, 4, 5])]
    kept = [survivor(2.1, [1, 2, 3.5, 4.5, 5.5]), survivor(2.1, [1, 2, 3.4, 4.5, 5.5])]
    found = diloco_losses.cost(undisturbed, kept)
    assert (found.loss, found.undisturbed) == (2.1, 2.0)
    assert (found.seconds, found.rounds, found.discarded) == (1.5, 1.5, 0)
    lost = [*kept, survivor(2.1, [1, 2, 3, 4.5, 5.5], discarded=LOST)]
    found = diloco_losses.cost(undisturbed, lost)
    assert (found.seconds, found.rounds, found.discarded) == (2.5, 2.5, 1)


def test_a_loss_without_an_entry_has_no_cost() -> None:
    three = [Round(float(number), True, 4 if number < LOST else 3) for number in range(5)]
    with pytest.raises(RuntimeError, match="newcomer"):
        diloco_losses.cost([survivor(2.0, [1, 2, 3, 4, 5])], [Survivor(2.0, 0.0, three)])


def test_the_settings_over_links_are_those_of_methods() -> None:
    from pccl_train import Method

    from bench import diloco_worker

    for name in diloco_links.METHODS:
        for every in diloco_links.FULL_GRID.rounds:
            asked = json.loads(json.dumps(diloco_links.settings_of(name, every)))
            method = Method(**diloco_worker.settings_of(asked))
            assert method.sync_every == every
            assert (method.fragment_sync_delay > 0) == ("streaming" in name)
    for name, case in cases(FULL).items():
        asked = json.loads(json.dumps(diloco_links.settings_in_json(case)))
        method = Method(**diloco_worker.settings_of(asked))
        wanted = Method(sync_every=case.every, **case.settings)
        assert replace(method, outer=wanted.outer) == wanted, name
