"""All names of JAX that this package needs and that are not public in JAX.

JAX has no public interface to ordered effects, which keep collectives in program order. If JAX
lacks one of these names, importing this file raises ImportError with the supported versions of JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import jax

# The versions of JAX that pccl_jax supports, equal to the requirement in pyproject.toml.
SUPPORTED = "jax>=0.10,<0.11"
# Names that JAX 0.10 and 0.12 give to the function of a loop's body. In a function of another name
# `is_given_away` finds no free memory, and XLA copies the operand in each step.
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
    from jax._src.interpreters import ad, batching, mlir, partial_eval
    from jax._src.lax.control_flow import loops

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
        # jax.checkpoint keeps calls with these effects, even if the loss does not use the result.
        effects.partial_eval_kept_effects,
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
    make_user_context: Any = jax.make_user_context
    _enable_x64: Any = config.enable_x64
    _trace_state_clean: Any = core.trace_state_clean
    _call_compiled: Any = stages.Compiled.call
    _FoundNan: Any = api_util.InternalFloatingPointError
    _hoist: Any = loops._scan_known_hoisting
    _checkpoint_scan: Any = partial_eval.partial_eval_jaxpr_custom_rules[loops.scan_p]
    _checkpoint_scan_code: Any = _checkpoint_scan.__code__
except (ImportError, AttributeError, KeyError) as error:
    raise ImportError(
        f"pccl_jax keeps collectives in order by parts of JAX that jax {jax.__version__} does not "
        f"have ({error}): install '{SUPPORTED}'"
    ) from error


def before_programs(function: Callable[[Any], bool]) -> None:
    """Makes JAX call `function` with each ordered effect of a program, before reading its token.

    If `function` returns true and the token is on the program's device, JAX uses the token as it
    is, without `device_put`, the most expensive part of an ordered effect.
    """

    def get_token_input(tokens: Any, effect: Any, devices: Any) -> Any:
        token = tokens.current_tokens.get(effect) if function(effect) else None
        if token is not None and len(devices) == 1 and token._buf.devices() == set(devices):
            return token
        return _get_token_input(tokens, effect, devices)

    _Tokens.get_token_input = get_token_input


def run_compiled(compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a compiled program, also while another thread is inside of the program's first run.

    With jax_debug_nans or jax_debug_infs, jax.jit runs a program whose result has a NaN or infinity
    again, but the other members would not repeat its collectives. So run_compiled runs the program
    only once, and raises the error.
    """
    try:
        outs, _, _ = _call_compiled(compiled._params, *args, **kwargs)
    except _FoundNan as error:
        raise FloatingPointError(
            f"invalid value ({error.ty}) encountered in a result of {error.name}. The program was "
            "not run again to find where, as its collectives are those of all members"
        ) from None
    return outs


def keep_in_loops(is_kept: Callable[[Any], bool]) -> None:
    """In differentiated scans, keeps equations in each step if `is_kept` is true of an effect.

    JAX hoists equations that give the same values in all steps before the loop, whatever effects
    they have. If the body of a scan has a kept effect, JAX hoists nothing out of this scan, and
    saves for each step what the backward pass needs.
    """

    # `rest`: arguments that JAX 0.12 adds.
    def hoist(jaxpr: Any, constants: Any, residuals: int, *rest: Any) -> Any:
        if any(is_kept(effect) for effect in jaxpr.effects):
            return jaxpr, constants, [False] * residuals, []
        return _hoist(jaxpr, constants, residuals, *rest)

    # JAX's rule for a scan inside of a checkpoint does not hoist equations that use mutable
    # references (AbstractRef). This copy of the rule takes every operand for a mutable reference.
    names = {**vars(loops), "state": SimpleNamespace(AbstractRef=object)}
    checkpoint_kept = FunctionType(_checkpoint_scan_code, names)

    def checkpoint(saveable: Any, unknowns: Any, instantiated: Any, equation: Any) -> Any:
        kept = any(is_kept(effect) for effect in equation.effects)
        rule = checkpoint_kept if kept else _checkpoint_scan
        return rule(saveable, unknowns, instantiated, equation)

    loops._scan_known_hoisting = hoist
    partial_eval.partial_eval_jaxpr_custom_rules[loops.scan_p] = checkpoint


def is_given_away(value: Any) -> bool:
    """Whether the result of a call that is being lowered may use the memory of the operand `value`.

    True for a donated argument of the program, and for a value that a loop carries.
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
    """Whether JAX traces or transforms a function on this thread."""
    return not _trace_state_clean()


def has_64_bits() -> bool:
    """Whether x64 is on: JAX arrays may have elements of 64 bits."""
    return bool(_enable_x64.value)
