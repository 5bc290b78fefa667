"""The names of JAX that this package needs and that JAX does not call public, all in one place.

An ordered effect, which keeps collectives in the order of the program, has no public interface.
Where a name is gone, importing this says which versions of JAX have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

# As pyproject.toml has it.
SUPPORTED = "jax>=0.10,<0.11"
# The functions that JAX 0.10 and 0.12 make of the body of a loop. Under another name XLA copies
# once in each step.
_LOOP_BODIES = ("closed_call", "eval_jaxpr")

try:
    from jax._src import (
        ad_util,
        api_util,
        callback,
        config,
        core,
        dispatch,
        effects,
        ffi,
        stages,
    )
    from jax._src.interpreters import ad, batching, mlir

    abstract_token: Any = core.abstract_token
    Primitive: Any = core.Primitive
    ShapedArray: Any = core.ShapedArray
    runtime_tokens: Any = dispatch.runtime_tokens
    _Tokens: Any = dispatch.RuntimeTokenSet
    _get_token_input: Any = _Tokens.get_token_input
    trace_context: Any = config.trace_context
    infer_argnums_and_argnames: Any = api_util.infer_argnums_and_argnames
    Effect: Any = effects.Effect
    effect_sets: list[Any] = [
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.remat_allowed_effects,
        effects.custom_derivatives_allowed_effects,
    ]
    ordered_effects: Any = effects.ordered_effects
    shardable_ordered_effects: Any = effects.shardable_ordered_effects
    lowering_function: Any = ffi.build_ffi_lowering_function
    TokenSet: Any = mlir.TokenSet
    emit_callback: Any = callback.emit_python_callback
    register_lowering: Any = mlir.register_lowering
    optimization_barrier: Any = vars(mlir)["hlo"].optimization_barrier
    _ir: Any = vars(mlir)["ir"]
    primitive_jvps: Any = ad.primitive_jvps
    primitive_transposes: Any = ad.primitive_transposes
    instantiate_zeros: Any = ad.instantiate_zeros
    is_undefined_primal: Any = ad.is_undefined_primal
    zero_tangent_of: Any = ad_util.p2tz
    Zero: Any = ad_util.Zero
    primitive_batchers: Any = batching.primitive_batchers
    _enable_x64: Any = config.enable_x64
    _trace_state_clean: Any = core.trace_state_clean
    _call_compiled: Any = stages.Compiled.call
except (ImportError, AttributeError, KeyError) as error:
    raise ImportError(
        f"pccl_jax keeps collectives in order by parts of JAX that jax {jax.__version__} does not "
        f"have ({error}): install '{SUPPORTED}'"
    ) from error


def before_programs(function: Callable[[Any], None]) -> None:
    """Calls `function` with each ordered effect of a program, before JAX reads its token."""

    def get_token_input(tokens: Any, effect: Any, devices: Any) -> Any:
        function(effect)
        return _get_token_input(tokens, effect, devices)

    _Tokens.get_token_input = get_token_input


def run_compiled(compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a compiled program, also while another thread is inside of its first run."""
    outs, _, _ = _call_compiled(compiled._params, *args, **kwargs)
    return outs


def is_given_away(value: Any) -> bool:
    """Whether an operand, while it is lowered, has memory that is free for the result.

    It has if it is an argument of the program that was donated, or what a loop carries.
    """
    if not isinstance(value, _ir.BlockArgument):
        return False
    owner = value.owner.owner.operation
    if owner.name != "func.func":
        return bool(owner.name == "stablehlo.while")
    if _ir.StringAttr(owner.attributes["sym_name"]).value.startswith(_LOOP_BODIES):
        return True
    if "arg_attrs" not in owner.attributes:
        return False
    attributes = _ir.DictAttr(owner.attributes["arg_attrs"][value.arg_number])
    return "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes


def is_tracing() -> bool:
    """Whether this thread traces a function, or transforms one."""
    return not _trace_state_clean()


def has_64_bits() -> bool:
    """Whether arrays have numbers of 64 bits here and now."""
    return bool(_enable_x64.value)
