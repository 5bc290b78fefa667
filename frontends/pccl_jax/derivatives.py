"""Derivatives of collectives: the rules by which JAX differentiates the calls of primitive.py.

The loss is the sum of all peers' losses, L = L_0 + ... + L_(n-1); each rank p returns L_p, and
`grad` returns the derivative of L with respect to the peer's own inputs. For the operand x_p and
the result y_p of rank p, of n, let x'_p and y'_p be tangents, X_p = dL/dx_p and Y_p = dL/dy_p. r is
the root, and [p] means the rows of rank p:

                      forward                              backward
    all_reduce sum    y'_p = sum_q x'_q                    X_p = sum_q Y_q         all_reduce
    all_reduce avg    y'_p = sum_q x'_q / m                X_p = sum_q Y_q / m     all_reduce
    reduce            y'_r = sum_q x'_q, elsewhere 0       X_p = Y_r               broadcast
    broadcast         y'_p = x'_r                          X_r = sum_q Y_q, else 0 reduce
    reduce_scatter    y'_p = (sum_q x'_q)[p]               X_p = (Y_0, Y_1, ...)   all_gather
    all_gather        y'_p = (x'_0, x'_1, ...)             X_p = (sum_q Y_q)[p]    reduce_scatter
    scatter           y'_p = x'_r[p]                       X_r = (Y_0, ...), else 0 gather
    gather            y'_r = (x'_0, ...), elsewhere 0      X_p = Y_r[p]            scatter
    all_to_all        y'_p = (x'_0[p], x'_1[p], ...)       X_p = (Y_0[p], ...)     all_to_all
    send, recv        y'_dst = x'_src                      X_src = Y_dst           recv, send

One collective carries the tangents of a call, and one the cotangents, with the tag, deadline,
recovery and plan of the call; both have derivatives themselves. m is the number of members that
contributed to an element *in the forward call*; forward and backward divide by m, also for averages
of reduce and reduce_scatter. If a member is lost between forward and backward, the backward sums
are over the survivors.

All peers must make the same derivative calls in the same order, too. So a derivative call carries
all float arrays of the call, also those not differentiated, and runs even if this peer's loss does
not depend on the result. If a call's operands depend on a differentiated variable on one peer, they
must do so on all peers, or the derivative call waits until its deadline. If an `admit` begins a new
epoch between a call and its derivative, the derivative raises InvalidUsage and sends nothing.
`jax.linearize` of a while_loop repeats the calls of the loop in each call of its linear function.

Derivatives of `min`, `max` and `prod`, and of calls with a codec, raise InvalidArgument in tracing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pccl_jax.call import Call
from pccl_jax.primitive import bind, primitive_of
from pccl_jax.trees import check_dtype, form_of_part, is_float
from pccl_jax.versions import (
    Zero,
    instantiate_zeros,
    is_undefined_primal,
    primitive_jvps,
    primitive_transposes,
    zero_tangent_of,
)
from pccl_py import CodecKind, InvalidArgument, Plan, ReduceOp
from pccl_py.call import ADDING, Kind

TRANSPOSES = {
    Kind.ALL_REDUCE: Kind.ALL_REDUCE,
    Kind.REDUCE: Kind.BROADCAST,
    Kind.BROADCAST: Kind.REDUCE,
    Kind.REDUCE_SCATTER: Kind.ALL_GATHER,
    Kind.ALL_GATHER: Kind.REDUCE_SCATTER,
    Kind.SCATTER: Kind.GATHER,
    Kind.GATHER: Kind.SCATTER,
    Kind.ALL_TO_ALL: Kind.ALL_TO_ALL,
}
_EXTREME = "it is that of those ranks alone that have the extreme element, and none knows which do"
_REASONS = {
    ReduceOp.MIN: _EXTREME,
    ReduceOp.MAX: _EXTREME,
    ReduceOp.PROD: "for each rank it is the product of the others' elements, which no result tells",
}


def _check(call: Call) -> None:
    """Raises InvalidArgument for a call that has no derivative."""
    name, op = call.kind.name.lower(), call.op
    if op in _REASONS:
        raise InvalidArgument(
            f"{name} with op {op.name.lower()} has no derivative: {_REASONS[op]}. Reduce what "
            "all_gather gives by jax.numpy, use sum or avg, or pass jax.lax.stop_gradient(x)"
        )
    codec = CodecKind(call.options[5])
    if codec is not CodecKind.NONE:
        raise InvalidArgument(
            f"{name} with codec {codec.name.lower()} has no derivative: rounding is constant "
            "almost everywhere, and error feedback is of values. Leave the codec out, pass "
            "jax.lax.stop_gradient(x), or say by jax.custom_vjp what its derivative shall be"
        )


# ---- collectives ---------------------------------------------------------------------------------


def _with_op(call: Call, kind: Kind, **changes: Any) -> Call:
    """`call` with this kind, op sum and the `changes`, returning neither origin nor outcome."""
    options = (int(ReduceOp.SUM), *call.options[1:])
    if kind is Kind.BROADCAST:  # a broadcast accepts only the plan auto
        options = (*options[:4], int(Plan.AUTO), *options[5:])
    plain = {"tells_origin": False, "tells_outcome": False}
    return call.replace(**{"kind": kind, "options": options, **plain, **changes})


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    """Binds the call, and a second call that carries the tangents; returns the results of both."""
    _check(call)
    handle, *arrays = primals
    told = call.replace(tells_origin=True)
    outs = told.split(bind(handle, arrays, told))
    kept = [index for index, array in enumerate(arrays) if is_float(array)]
    linear = _with_op(call, call.kind)
    form = form_of_part(call.options[-1], arrays, kept)
    linear = linear.replace(options=(*linear.options[:-1], form))
    given = [instantiate_zeros(tangents[1 + each]) for each in kept]
    if outs.contributors:
        given = [each.astype(_summed(each)) for each in given]
    made: dict[int, Any] = dict(zip(kept, bind(outs.origin[0], given, linear), strict=True))
    if outs.contributors:
        made = {
            index: _divide(each, outs.contributors[index]).astype(arrays[index].dtype)
            for index, each in made.items()
        }
    shown = _shown(call, outs)
    zeros = [zero_tangent_of(each) for each in shown]
    return shown, [made.get(index, zero) for index, zero in enumerate(zeros)]


def _shown(call: Call, outs: Any) -> list[Any]:
    """The results and outcome, with contributors and origin only if `call.tells_origin`."""
    hidden = [*outs.contributors, *outs.origin] if call.tells_origin else []
    return [*outs.results, *hidden, *outs.outcome]


def _summed(array: Any) -> Any:
    """The dtype in which the library adds up an average: f32 for f16, else the array's dtype."""
    return jnp.float32 if array.dtype == jnp.float16 else array.dtype


def _divide(total: Any, contributors: Any) -> Any:
    """`total / contributors`, rounded as in the library: 16-bit floats are divided in f32."""
    wide = jnp.promote_types(total.dtype, jnp.float32)
    return (total.astype(wide) / contributors.astype(wide)).astype(total.dtype)


def _transpose(cotangents: Sequence[Any], handle: Any, *arrays: Any, call: Call) -> Any:
    """Binds the backward collective, with zeros where a cotangent is missing: peers expect it."""
    _check(call)
    name = call.kind.name.lower()
    if call.op is ReduceOp.AVG:
        raise InvalidArgument(
            f"{name} with op avg is not transposed by itself, as it divides by those who "
            "contribute to the call: use jax.vjp or jax.grad, or op sum and divide"
        )
    kind = TRANSPOSES[call.kind]
    for array in arrays if kind in ADDING else ():
        try:
            check_dtype(_aval(array).dtype.name, ReduceOp.SUM)
        except TypeError as error:
            raise TypeError(f"the backward pass of {name} adds up: {error}") from None
    counts = call.counts
    if call.kind is Kind.ALL_TO_ALL:
        counts = (*counts[call.world_size :], *counts[: call.world_size])
    back = _with_op(call, kind, counts=counts)
    given = [instantiate_zeros(each) for each in cotangents[: len(arrays)]]
    made = bind(handle, given, back)
    return [
        None,
        *(each if is_undefined_primal(x) else None for each, x in zip(made, arrays, strict=True)),
    ]


def _aval(array: Any) -> Any:
    return array.aval if is_undefined_primal(array) else jax.typeof(array)


# ---- messages ------------------------------------------------------------------------------------
#
# A message leaves one program and enters another, so neither program's loss depends on the message
# as far as JAX sees. Ties add this dependence: a send returns a tie, a zero that depends on the
# array sent, and a recv takes a tie as an operand. Values of ties are unused; their derivatives are
# zero. The transpose of a send (x -> tie) is a recv (tie -> x), and that of a recv is a send. For
# second derivatives a message of tangents also takes ties of the forward message's operands.


def _tie_of(array: Any) -> Any:
    """The first element of `array`, as an operand that makes a message depend on `array`."""
    return jnp.ravel(array)[:1]


def _send_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    if not call.results:
        raise InvalidArgument(
            "send of a value that is differentiated: its derivative comes back by a tie. Pass "
            "return_tie=True, and add the tie that it returns to the loss; or send "
            "jax.lax.stop_gradient(x)"
        )
    return _message_jvp(primals, tangents, call, tied=slice(1, 2))


def _recv_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> Any:
    return _message_jvp(primals, tangents, call, tied=slice(1, None))


def _message_jvp(primals: Sequence[Any], tangents: Sequence[Any], call: Call, tied: slice) -> Any:
    """Binds the message, and a message of its tangents, which takes ties of the operands `tied`."""
    told = call.replace(tells_origin=True)
    outs = told.split(bind(primals[0], primals[1:], told))
    operands = [*map(instantiate_zeros, tangents[1:]), *map(_tie_of, primals[tied])]
    linear = call.replace(tells_origin=False, tells_outcome=False)
    (moved,) = bind(outs.origin[0], operands, linear)
    shown = _shown(call, outs)
    return shown, [moved, *(zero_tangent_of(each) for each in shown[1:])]


def _send_transpose(cotangents: Sequence[Any], handle: Any, x: Any, *ties: Any, call: Call) -> Any:
    aval = _aval(x)
    back = call.replace(kind=Kind.RECV, results=((aval.shape, aval.dtype.name),))
    known = [tie for tie in ties if not is_undefined_primal(tie)]
    (made,) = bind(handle, [instantiate_zeros(cotangents[0]), *known], back)
    return [None, made if is_undefined_primal(x) else None, *map(_no_cotangent, ties)]


def _recv_transpose(cotangents: Sequence[Any], handle: Any, *ties: Any, call: Call) -> Any:
    first = next(index for index, tie in enumerate(ties) if is_undefined_primal(tie))
    aval = ties[first].aval
    back = call.replace(kind=Kind.SEND, results=((aval.shape, aval.dtype.name),))
    known = [tie for tie in ties if not is_undefined_primal(tie)]
    (made,) = bind(handle, [instantiate_zeros(cotangents[0]), *known], back)
    cotangents_out = [*map(_no_cotangent, ties)]
    cotangents_out[first] = made
    return [None, *cotangents_out]


def _no_cotangent(operand: Any) -> Any:
    return Zero(operand.aval.to_ct_aval()) if is_undefined_primal(operand) else None


def register() -> None:
    """Registers the rules of jvp and transpose of all collectives and messages with JAX."""
    for kind in TRANSPOSES:
        primitive_jvps[primitive_of(kind)] = _jvp
        primitive_transposes[primitive_of(kind)] = _transpose
    primitive_jvps[primitive_of(Kind.SEND)] = _send_jvp
    primitive_jvps[primitive_of(Kind.RECV)] = _recv_jvp
    primitive_transposes[primitive_of(Kind.SEND)] = _send_transpose
    primitive_transposes[primitive_of(Kind.RECV)] = _recv_transpose
