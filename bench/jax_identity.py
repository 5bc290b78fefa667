"""A jitted identity through XLA's foreign functions: the least that a call of one costs.

`identity` is a call of jax_identity.c, with an order like that of collectives, or with none. It is
what jax_worker.py compares collectives with.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.ffi
from pccl_jax.effects import ORDERED
from pccl_jax.versions import (
    Effect,
    Primitive,
    ShapedArray,
    TokenSet,
    abstract_token,
    effect_sets,
    lowering_function,
    register_lowering,
)

TARGET = "bench_identity"


class Unordered(Effect):  # type: ignore[misc]
    """The effect of a call that the data alone puts in order."""


UNORDERED = Unordered()
for _known in effect_sets:
    _known.add_type(Unordered)


def identity(x: Any, *, is_ordered: bool) -> Any:
    """`x`, by a call that XLA keeps; in the order of collectives, or in none."""
    (result,) = _primitive.bind(x, effect=ORDERED if is_ordered else UNORDERED)
    return result


def register() -> None:
    """Compiles the function, and gives it to XLA. Raises FileNotFoundError without a compiler."""
    compiler = ["cc"] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder, "identity.so"))
        flags = ["-O2", "-shared", "-fPIC", f"-I{jax.ffi.include_dir()}"]
        subprocess.run([*compiler, *flags, str(source), "-o", made], check=True)
        library = ctypes.CDLL(made)
    capsule = jax.ffi.pycapsule(library.bench_identity)
    jax.ffi.register_ffi_target(TARGET, capsule, platform="cpu")


def _abstract(x: Any, *, effect: Any) -> tuple[list[Any], set[Any]]:
    return [ShapedArray(x.shape, x.dtype)], {effect}


def _lower(context: Any, x: Any, *, effect: Any) -> Sequence[Any]:
    tokens = [context.tokens_in.get(effect)] if effect == ORDERED else []
    beside = [abstract_token] * len(tokens)
    lower = lowering_function(
        TARGET, has_side_effect=True, operand_output_aliases={len(tokens): len(tokens)}
    )
    *token, result = lower(
        context.replace(
            avals_in=[*beside, *context.avals_in], avals_out=[*beside, *context.avals_out]
        ),
        *tokens,
        x,
    ).results
    if token:
        context.set_tokens_out(context.tokens_in.update_tokens(TokenSet({effect: token[0]})))
    return [result]


_primitive: Any = Primitive(TARGET)
_primitive.multiple_results = True
_primitive.def_effectful_abstract_eval(_abstract)
register_lowering(_primitive, _lower, platform="cpu")
