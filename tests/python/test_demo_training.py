"""The demo's training program without any peer: gradients, the inner optimizer, corpus.

The demo's use of PCCL is tested in test_demo_run.py, its judgement of itself in
test_demo_verdict.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.demo.corpus import BLOCK_BYTES, HELD_OUT_EVERY, Corpus, draw, standard_library_text
from examples.demo.model import AdamW, Model
from examples.demo.settings import Settings

SMALL = Model(context=3, embedding=4, hidden=5)


def batch_of(model: Model, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    windows = rng.integers(0, 256, (size, model.context), dtype=np.uint8)
    return windows, rng.integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("name", list(SMALL.shapes))
def test_the_gradient_is_the_slope_of_the_loss(name: str) -> None:
    # Goal: each hand-derived formula. Method: central differences in f64, at every place of a
    # small parameter, and at 64 of a large one, rows of bytes that occur among them.
    windows, targets = batch_of(SMALL, 7)
    windows[0, :] = windows[0, 0]  # a byte that stands in several places gathers several gradients
    flat = SMALL.initial(seed=3).astype(np.float64)
    flat += 0.1 * np.random.default_rng(4).standard_normal(flat.shape)
    gradient = np.empty_like(flat)
    loss = SMALL.loss_and_gradient(flat, windows, targets, gradient)
    assert loss == pytest.approx(SMALL.loss(flat, windows, targets), rel=1e-12)

    parameter = SMALL.views(flat)[name]
    expected = SMALL.views(gradient)[name].reshape(-1)
    places = np.arange(parameter.size)
    if name == "table":
        rows = np.unique(windows).astype(np.int64)[:, None] * SMALL.embedding
        places = (rows + np.arange(SMALL.embedding)).reshape(-1)
        absent = np.setdiff1d(np.arange(parameter.size), places)
        assert not expected[absent].any()
    elif len(places) > 64:
        places = np.random.default_rng(5).choice(places, 64, replace=False)
    values = parameter.reshape(-1)
    step = 1e-5
    for place in places:
        kept = values[place]
        values[place] = kept + step
        above = SMALL.loss(flat, windows, targets)
        values[place] = kept - step
        below = SMALL.loss(flat, windows, targets)
        values[place] = kept
        slope = (above - below) / (2 * step)
        assert expected[place] == pytest.approx(slope, rel=1e-6, abs=1e-9), (name, place)


def test_an_untrained_model_guesses_evenly() -> None:
    windows, targets = batch_of(Model(), 64)
    assert Model().loss(Model().initial(1), windows, targets) == pytest.approx(np.log(256), abs=0.1)


def test_the_views_share_memory_with_the_flat_array_and_fill_it() -> None:
    flat = np.zeros(SMALL.size, np.float32)
    for value, view in enumerate(SMALL.views(flat).values(), start=1):
        view[...] = value
    counts = [int(np.prod(shape)) for shape in SMALL.shapes.values()]
    np.testing.assert_array_equal(flat, np.repeat(np.arange(1, 6, dtype=np.float32), counts))
    with pytest.raises(ValueError, match=str(SMALL.size)):
        SMALL.views(np.zeros(SMALL.size + 1, np.float32))


def test_the_demo_moves_enough_chunks_for_half_of_them_to_exist() -> None:
    settings = Settings()
    assert settings.model.size * 4 >= 64 * settings.chunk_bytes


def test_the_same_seed_writes_the_same_text() -> None:
    flat = SMALL.initial(1)
    first, second = (SMALL.write(flat, b"x", 20, seed) for seed in (1, 1))
    assert first == second != SMALL.write(flat, b"x", 20, 2)
    assert len(first) == 20


def test_adamw_follows_algorithm_2_of_its_paper() -> None:
    # Goal: the update as written in arXiv 1711.05101. Method: its lines one by one, in f64.
    rng = np.random.default_rng(0)
    optimiser = AdamW(6, learning_rate=1e-2)
    parameters = rng.standard_normal(6).astype(np.float32)
    theta, m, v = parameters.astype(np.float64), np.zeros(6), np.zeros(6)
    for t in range(1, 8):
        gradient = rng.standard_normal(6).astype(np.float32)
        optimiser.step(parameters, gradient, schedule=1 / t)
        m = optimiser.beta1 * m + (1 - optimiser.beta1) * gradient
        v = optimiser.beta2 * v + (1 - optimiser.beta2) * gradient.astype(np.float64) ** 2
        m_hat, v_hat = m / (1 - optimiser.beta1**t), v / (1 - optimiser.beta2**t)
        adam = m_hat / (np.sqrt(v_hat) + optimiser.epsilon)
        theta = theta - (1 / t) * 1e-2 * (adam + optimiser.weight_decay * theta)
    np.testing.assert_allclose(parameters, theta, rtol=1e-4, atol=1e-6)


def test_shards_and_the_held_out_part_divide_the_text() -> None:
    blocks = 3 * HELD_OUT_EVERY + 5
    numbers = np.arange(blocks, dtype=np.uint8)
    corpus = Corpus.load(np.repeat(numbers, BLOCK_BYTES).tobytes() + b"a piece of a block")
    parts = [corpus.held_out.reshape(-1), *(corpus.shard(index, 5) for index in range(5))]
    assert all(len(part) > 0 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.repeat(numbers, BLOCK_BYTES))


def test_windows_are_followed_by_their_targets() -> None:
    text = np.arange(200, dtype=np.uint8)
    windows, targets = draw(text, 5, 64, np.random.default_rng(0))
    np.testing.assert_array_equal(windows, windows[:, :1] + np.arange(5, dtype=np.uint8))
    np.testing.assert_array_equal(targets, windows[:, -1] + 1)


def test_the_text_is_sorted_by_name_and_only_python_source(tmp_path: Path) -> None:
    filler = b"#" * (HELD_OUT_EVERY * BLOCK_BYTES)
    (tmp_path / "b.py").write_bytes(b"b" + filler)
    (tmp_path / "a.py").write_bytes(b"a")
    (tmp_path / "c.txt").write_bytes(b"no")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.py").write_bytes(b"no")
    assert standard_library_text(tmp_path) == b"ab" + filler


def test_a_standard_library_without_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path} holds only 0 bytes"):
        standard_library_text(tmp_path)


def test_settings_survive_the_command_line() -> None:
    settings = Settings.paced(rounds=12, steps=3, seed=5)
    assert Settings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_too_few_rounds_are_refused(rounds: int) -> None:
    with pytest.raises(ValueError, match="take 5 rounds at least"):
        Settings.paced(rounds=rounds, steps=1, seed=1)


def test_five_rounds_are_enough() -> None:
    assert Settings.paced(rounds=5, steps=1, seed=1).rounds == 5
