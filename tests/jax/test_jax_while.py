"""while_loop over results of a call that has several, where the loop begins with constants.

XLA of jaxlib 0.10.2 takes what the condition reads of a call with several results for the constant
that the loop begins with, and loops without end; calls.py puts a barrier behind such calls. Each
loop here also counts, so that without the barrier it ends, with another count than it should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pccl_jax as pj
import pytest
from jax import lax

import pccl_py as pccl

STEPS_MAX = 50


def on_values(comm: pj.Comm) -> Any:
    """The first of two sums: 1, 3, 9, 27."""

    def body(carry: Any) -> Any:
        value, other, steps = carry
        value, other = pj.all_reduce(comm, (value, other))
        return value, other, steps + 1

    return lax.while_loop(
        lambda carry: (carry[0] < 20) & (carry[2] < STEPS_MAX),
        body,
        (jnp.float32(1), jnp.float32(0), jnp.int32(0)),
    )[2]


def on_outcomes(comm: pj.Comm) -> Any:
    """A number of contributors that begins with another one than there will be."""

    def body(carry: Any) -> Any:
        value, contributors, steps = carry
        value, outcome = pj.all_reduce(comm, value, return_outcome=True)
        return value, outcome.contributors, steps + 1

    return lax.while_loop(
        lambda carry: (carry[1] < 3) & (carry[2] < STEPS_MAX),
        body,
        (jnp.float32(1), jnp.int32(0), jnp.int32(0)),
    )[2]


def on_words(comm: pj.Comm) -> Any:
    """A word of the outcome as it comes out of the call, with nothing between."""

    def body(carry: Any) -> Any:
        words, steps = carry
        _, outcome = pj.all_reduce(comm, jnp.float32(1), return_outcome=True)
        return outcome.words, steps + 1

    words = jnp.zeros(pj.outcomes.WORDS, jnp.uint32)
    return lax.while_loop(
        lambda carry: (carry[0][16] < 3) & (carry[1] < STEPS_MAX), body, (words, jnp.int32(0))
    )[1]


@pytest.mark.parametrize(
    ("loop", "steps"),
    [(on_values, 3), (on_outcomes, 1), (on_words, 1)],
    ids=["values", "outcomes", "words"],
)
def test_a_loop_that_begins_with_constants_ends(
    world: pccl.LocalWorld, loop: Callable[[pj.Comm], Any], steps: int
) -> None:
    looped = pj.jit(loop)
    assert world.run(lambda comm: int(looped(comm))) == [steps] * 3
    # A gradient makes calls of several results, an origin beside the value, of others.
    assert looped.compiled == 1
