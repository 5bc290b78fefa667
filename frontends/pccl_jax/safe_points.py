"""Safe points: `comm.admit()` outside of traced functions, behind the programs of its thread.

A program does not pass safe points, where shapes would change. A trace that passed one would do so
once, while it compiles, and never again: it is refused, also of a communicator that the function
closes over.
"""

from __future__ import annotations

from pccl_jax.errors import settle, withdrawing
from pccl_jax.versions import is_tracing
from pccl_py import InvalidUsage, communicator


def refuse_traces(what: str) -> None:
    """Raises InvalidUsage while JAX traces a function on this thread, or transforms one."""
    if is_tracing():
        raise InvalidUsage(f"{what}() inside of a traced function: call it outside, between steps")


def _before_admit() -> None:
    refuse_traces("admit")
    with withdrawing():
        settle()


communicator.before_admit.append(_before_admit)
