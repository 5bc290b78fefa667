"""docs/guides/JAX.md has no name that the package has not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pccl_jax as pj
import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "JAX.md").read_text("utf-8")


def test_every_name_of_the_page_is_in_the_package() -> None:
    names = set(re.findall(r"\bpj\.(\w+)", PAGE))
    assert len(names) > 15
    assert [name for name in names if name not in pj.__all__] == []


@pytest.mark.skipif(not importlib.util.find_spec("optax"), reason="optax is not installed")
def test_every_name_of_the_optimizers_is_there() -> None:
    import pccl_jax.optax

    names = set(re.findall(r"\bpj_optax\.(\w+)", PAGE))
    assert names == {"average_gradients", "outcome"} < set(pccl_jax.optax.__all__)
