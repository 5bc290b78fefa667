"""The C ABI as its header declares it: every function is called, with good arguments and with null.

The header is read by cffi itself (header.py), so that a function that is declared but missing, a
struct that changed its layout or a constant that moved fails here. Values and losses are tested
through pccl_py; here it is the contract of the calls.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calling import (
    FOREVER,
    LOOPBACK,
    SECOND,
    check,
    connect,
    coordinator,
    ffi,
    lib,
    options,
    refused,
    signature,
    succeeded,
    text,
    together,
    two_ranks,
)
from header import functions

import pccl_py as pccl
from pccl_py import _pccl, errors


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Any, Any]]:
    with two_ranks() as ranks:
        yield ranks


@pytest.fixture(scope="session", autouse=True)
def every_function_has_succeeded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Goal: no function that is only refused. Method: calling.py notes the calls that succeed.

    At the end of the session, whatever the order of these tests, if all of them are run.
    """
    yield
    ours = {name for name in globals() if name.startswith("test_")}
    run = {
        item.name.partition("[")[0] for item in request.session.items if item.path == Path(__file__)
    }
    if run == ours:
        assert functions() - succeeded == set()


# ---- the header ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(functions()))
def test_zeros_for_all_arguments_are_an_answer_and_no_crash(name: str) -> None:
    """Also of a function that is new: null for each pointer, zero for each number."""
    kind = signature(name)
    answer = getattr(lib, name)(*[ffi.cast(argument, 0) for argument in kind.args])
    if kind.result.cname == "pccl_status_t":
        assert "NULL" in refused(answer)


def test_constants_are_those_of_python() -> None:
    for words, kind, prefix in (
        (pccl.DType, "pccl_dtype_t", "PCCL_"),
        (pccl.ReduceOp, "pccl_reduce_op_t", "PCCL_"),
        (pccl.Recovery, "pccl_recovery_t", "PCCL_RECOVERY_"),
        (pccl.Strategy, "pccl_strategy_t", "PCCL_"),
        (pccl.Congestion, "pccl_congestion_t", "PCCL_CONGESTION_"),
        (pccl.Probe, "pccl_probe_t", "PCCL_PROBE_"),
        (pccl.Plans, "pccl_plans_t", "PCCL_PLANS_"),
    ):
        assert ffi.typeof(kind).relements == {prefix + word.name: int(word) for word in words}
    for rule in pccl.StateRule:
        assert getattr(lib, f"PCCL_STATE_{rule.name}") == rule
    statuses = ffi.typeof("pccl_status_t").relements
    assert set(statuses.values()) == {0, *errors.CLASS_OF_STATUS}
    for name, number in statuses.items():
        assert text(lib.pccl_status_name(number)) == name
        if number > 1:
            cls = errors.CLASS_OF_STATUS[number].__name__
            expected = {"SystemRefused": "SYSTEM_ERROR"}.get(
                cls, re.sub(r"(?<!^)([A-Z])", r"_\1", cls).upper()
            )
            assert name == f"PCCL_{expected}"
    assert text(lib.pccl_status_name(99))
    assert text(lib.pccl_status_name(2**31 - 1))


def test_dtype_sizes() -> None:
    sizes = [lib.pccl_dtype_size(dtype) for dtype in range(13)]
    assert sizes == [4, 8, 2, 2, 1, 1, 2, 2, 4, 4, 8, 8, 0]
    assert lib.pccl_dtype_size(2**31 - 1) == 0


def test_versions_agree() -> None:
    version = (lib.PCCL_VERSION_MAJOR, lib.PCCL_VERSION_MINOR, lib.PCCL_VERSION_PATCH)
    assert text(lib.pccl_version_string()) == ".".join(map(str, version)) == pccl.__version__
    assert lib.pccl_version() == version[0] * 10_000 + version[1] * 100 + version[2]
    assert lib.pccl_wire_version() == pccl.wire_version() >= 1
    assert text(lib.pccl_cpu_level()) in ("baseline", "v3", "v4", "v4x")


# ---- null and nonsense -----------------------------------------------------------------------


def null_calls() -> dict[str, Any]:
    """Every call that takes a pointer, with each of them null in turn, by what is null."""
    out = ffi.new("char[600]")
    work, comm = ffi.new("pccl_work_t **"), ffi.new("pccl_comm_t **")
    length, level = ffi.new("size_t *"), ffi.new("pccl_log_level_t *")
    state, ids = ffi.new("pccl_state_t **"), ffi.new("pccl_peer_id_t[1]")
    token = ffi.new("char[]", b"pccl1-x")
    null, good = ffi.NULL, {}
    data, counts = ffi.new("float[4]"), ffi.new("uint64_t[2]", [3, 1])
    apart = ffi.new("float[4]")
    good["c"] = data
    one_array = ffi.new("pccl_array_t[1]", [(data, data, 4, 0, 0)])
    no_send = ffi.new("pccl_array_t[1]", [(null, data, 4, 0, 0)])
    good["arrays"] = (one_array, no_send)
    no_work, ended, part = ffi.new("pccl_work_t **"), options("outcome"), options("outcome_range")
    return {
        "token_create address": lambda c: lib.pccl_token_create(null, null, out, 600),
        "token_create token": lambda c: lib.pccl_token_create(b"h:1", null, null, 600),
        "token_create capacity": lambda c: lib.pccl_token_create(b"h:1", null, out, 3),
        "token_parse token": lambda c: lib.pccl_token_parse(null, options("token_info")),
        "token_parse info": lambda c: lib.pccl_token_parse(token, null),
        "rate_parse text": lambda c: lib.pccl_rate_parse(null, null, ffi.new("uint64_t *")),
        "rate_parse rate": lambda c: lib.pccl_rate_parse(token, null, null),
        "coordinator_create": lambda c: lib.pccl_coordinator_create(null, null),
        "run_dial_back peer": lambda c: lib.pccl_run_dial_back(token, null, 1, out, 600, length),
        "run_status token": lambda c: lib.pccl_run_status(null, 1, out, 600, length),
        "run_status json": lambda c: lib.pccl_run_status(token, 1, null, 600, length),
        "run_status length": lambda c: lib.pccl_run_status(token, 1, out, 600, null),
        "comm_create token": lambda c: lib.pccl_comm_create(null, null, comm),
        "comm_create comm": lambda c: lib.pccl_comm_create(token, null, null),
        "comm_join comm": lambda c: lib.pccl_comm_join(null, null, comm),
        "comm_join joined": lambda c: lib.pccl_comm_join(c, null, null),
        "subgroup comm": lambda c: lib.pccl_comm_subgroup(null, ids, 1, null, comm),
        "subgroup founders": lambda c: lib.pccl_comm_subgroup(c, null, 1, null, comm),
        "subgroup subgroup": lambda c: lib.pccl_comm_subgroup(c, ids, 1, null, null),
        "comm_close": lambda c: lib.pccl_comm_close(null),
        "admit comm": lambda c: lib.pccl_comm_admit(null, 0, options("admission")),
        "admit_together comm": lambda c: lib.pccl_comm_admit_together(null, 0, null),
        "pending_agreed comm": lambda c: lib.pccl_comm_pending_agreed(null, 0, null),
        "pending_agreed pending": lambda c: lib.pccl_comm_pending_agreed(c, 0, null),
        "set_deadline comm": lambda c: lib.pccl_comm_set_deadline(null, 0),
        "info comm": lambda c: lib.pccl_comm_info(null, options("comm_info")),
        "info info": lambda c: lib.pccl_comm_info(c, null),
        "plan comm": lambda c: lib.pccl_comm_plan(null, options("comm_plan")),
        "plan plan": lambda c: lib.pccl_comm_plan(c, null),
        "optimize_topology comm": lambda c: lib.pccl_comm_optimize_topology(null, 0, null),
        "all_reduce comm": lambda c: lib.pccl_all_reduce(null, data, data, 4, 0, null, null),
        "all_reduce send": lambda c: lib.pccl_all_reduce(c, null, data, 4, 0, null, null),
        "all_reduce recv": lambda c: lib.pccl_all_reduce(c, data, null, 4, 0, null, null),
        "broadcast comm": lambda c: lib.pccl_broadcast(null, data, 4, 0, 0, null, null),
        "broadcast buffer": lambda c: lib.pccl_broadcast(c, null, 4, 0, 0, null, null),
        "reduce comm": lambda c: lib.pccl_reduce(null, data, data, 4, 0, 0, null, null),
        "reduce send": lambda c: lib.pccl_reduce(c, null, data, 4, 0, 0, null, null),
        "reduce send, not root": lambda c: lib.pccl_reduce(c, null, null, 4, 0, 1, null, null),
        "reduce recv, root": lambda c: lib.pccl_reduce(c, data, null, 4, 0, 0, null, null),
        "reduce_scatter comm": lambda c: lib.pccl_reduce_scatter(
            null, data, data, 2, 0, null, null
        ),
        "reduce_scatter send": lambda c: lib.pccl_reduce_scatter(c, null, data, 2, 0, null, null),
        "reduce_scatter recv": lambda c: lib.pccl_reduce_scatter(c, data, null, 2, 0, null, null),
        "reduce_scatter_v comm": lambda c: lib.pccl_reduce_scatter_v(
            null, data, data, counts, 2, 0, null, null
        ),
        "reduce_scatter_v send": lambda c: lib.pccl_reduce_scatter_v(
            c, null, data, counts, 2, 0, null, null
        ),
        "reduce_scatter_v recv": lambda c: lib.pccl_reduce_scatter_v(
            c, data, null, counts, 2, 0, null, null
        ),
        "reduce_scatter_v counts": lambda c: lib.pccl_reduce_scatter_v(
            c, data, data, null, 2, 0, null, null
        ),
        "all_gather comm": lambda c: lib.pccl_all_gather(null, data, data, 2, 0, null, null),
        "all_gather send": lambda c: lib.pccl_all_gather(c, null, data, 2, 0, null, null),
        "all_gather recv": lambda c: lib.pccl_all_gather(c, data, null, 2, 0, null, null),
        "all_gather_v comm": lambda c: lib.pccl_all_gather_v(
            null, data, data, counts, 2, 0, null, null
        ),
        "all_gather_v send": lambda c: lib.pccl_all_gather_v(
            c, null, data, counts, 2, 0, null, null
        ),
        "all_gather_v recv": lambda c: lib.pccl_all_gather_v(
            c, data, null, counts, 2, 0, null, null
        ),
        "all_gather_v counts": lambda c: lib.pccl_all_gather_v(
            c, data, data, null, 2, 0, null, null
        ),
        "scatter comm": lambda c: lib.pccl_scatter(null, data, apart, 2, 0, 0, null, null),
        "scatter send, root": lambda c: lib.pccl_scatter(c, null, apart, 2, 0, 0, null, null),
        "scatter recv": lambda c: lib.pccl_scatter(c, data, null, 2, 0, 0, null, null),
        "scatter recv, not root": lambda c: lib.pccl_scatter(c, null, null, 2, 0, 1, null, null),
        "scatter_v comm": lambda c: lib.pccl_scatter_v(
            null, data, apart, counts, 2, 0, 0, null, null
        ),
        "scatter_v send, root": lambda c: lib.pccl_scatter_v(
            c, null, apart, counts, 2, 0, 0, null, null
        ),
        "scatter_v recv": lambda c: lib.pccl_scatter_v(c, data, null, counts, 2, 0, 0, null, null),
        "scatter_v counts": lambda c: lib.pccl_scatter_v(c, data, apart, null, 2, 0, 0, null, null),
        "gather comm": lambda c: lib.pccl_gather(null, apart, data, 2, 0, 0, null, null),
        "gather send": lambda c: lib.pccl_gather(c, null, data, 2, 0, 0, null, null),
        "gather send, not root": lambda c: lib.pccl_gather(c, null, null, 2, 0, 1, null, null),
        "gather recv, root": lambda c: lib.pccl_gather(c, apart, null, 2, 0, 0, null, null),
        "gather_v comm": lambda c: lib.pccl_gather_v(
            null, apart, data, counts, 2, 0, 0, null, null
        ),
        "gather_v send": lambda c: lib.pccl_gather_v(c, null, data, counts, 2, 0, 0, null, null),
        "gather_v recv, root": lambda c: lib.pccl_gather_v(
            c, apart, null, counts, 2, 0, 0, null, null
        ),
        "gather_v counts": lambda c: lib.pccl_gather_v(c, apart, data, null, 2, 0, 0, null, null),
        "all_to_all comm": lambda c: lib.pccl_all_to_all(null, data, apart, 2, 0, null, null),
        "all_to_all send": lambda c: lib.pccl_all_to_all(c, null, apart, 2, 0, null, null),
        "all_to_all recv": lambda c: lib.pccl_all_to_all(c, data, null, 2, 0, null, null),
        "all_to_all_v comm": lambda c: lib.pccl_all_to_all_v(
            null, data, apart, counts, counts, 2, 0, null, null
        ),
        "all_to_all_v send_counts": lambda c: lib.pccl_all_to_all_v(
            c, data, apart, null, counts, 2, 0, null, null
        ),
        "all_to_all_v recv_counts": lambda c: lib.pccl_all_to_all_v(
            c, data, apart, counts, null, 2, 0, null, null
        ),
        "all_to_all_v_async work": lambda c: lib.pccl_all_to_all_v_async(
            c, data, apart, counts, counts, 2, 0, null, null
        ),
        "coalesced comm": lambda c: lib.pccl_coalesced(null, 0, one_array, 1, 0, null, null),
        "coalesced arrays": lambda c: lib.pccl_coalesced(c, 0, null, 1, 0, null, null),
        "coalesced send": lambda c: lib.pccl_coalesced(c, 0, no_send, 1, 0, null, null),
        "coalesced_async work": lambda c: lib.pccl_coalesced_async(
            c, 0, one_array, 1, 0, null, null
        ),
        "send comm": lambda c: lib.pccl_send(null, data, 2, 0, 1, null, null),
        "send buffer": lambda c: lib.pccl_send(c, null, 2, 0, 1, null, null),
        "recv comm": lambda c: lib.pccl_recv(null, data, 2, 0, 1, null, null),
        "recv buffer": lambda c: lib.pccl_recv(c, null, 2, 0, 1, null, null),
        "barrier comm": lambda c: lib.pccl_barrier(null, null, null),
        "all_reduce_async comm": lambda c: lib.pccl_all_reduce_async(
            null, data, data, 4, 0, null, work
        ),
        "all_reduce_async work": lambda c: lib.pccl_all_reduce_async(
            c, data, data, 4, 0, null, null
        ),
        "broadcast_async comm": lambda c: lib.pccl_broadcast_async(null, data, 4, 0, 0, null, work),
        "broadcast_async work": lambda c: lib.pccl_broadcast_async(c, data, 4, 0, 0, null, null),
        "reduce_async comm": lambda c: lib.pccl_reduce_async(null, data, data, 4, 0, 0, null, work),
        "reduce_async work": lambda c: lib.pccl_reduce_async(c, data, data, 4, 0, 0, null, null),
        "reduce_scatter_async comm": lambda c: lib.pccl_reduce_scatter_async(
            null, data, data, 2, 0, null, work
        ),
        "reduce_scatter_async work": lambda c: lib.pccl_reduce_scatter_async(
            c, data, data, 2, 0, null, null
        ),
        "reduce_scatter_v_async comm": lambda c: lib.pccl_reduce_scatter_v_async(
            null, data, data, counts, 2, 0, null, work
        ),
        "reduce_scatter_v_async work": lambda c: lib.pccl_reduce_scatter_v_async(
            c, data, data, counts, 2, 0, null, null
        ),
        "all_gather_async comm": lambda c: lib.pccl_all_gather_async(
            null, data, data, 2, 0, null, work
        ),
        "all_gather_async work": lambda c: lib.pccl_all_gather_async(
            c, data, data, 2, 0, null, null
        ),
        "all_gather_v_async comm": lambda c: lib.pccl_all_gather_v_async(
            null, data, data, counts, 2, 0, null, work
        ),
        "all_gather_v_async work": lambda c: lib.pccl_all_gather_v_async(
            c, data, data, counts, 2, 0, null, null
        ),
        "scatter_async comm": lambda c: lib.pccl_scatter_async(
            null, data, apart, 2, 0, 0, null, work
        ),
        "scatter_async work": lambda c: lib.pccl_scatter_async(c, data, apart, 2, 0, 0, null, null),
        "scatter_v_async comm": lambda c: lib.pccl_scatter_v_async(
            null, data, apart, counts, 2, 0, 0, null, work
        ),
        "scatter_v_async work": lambda c: lib.pccl_scatter_v_async(
            c, data, apart, counts, 2, 0, 0, null, null
        ),
        "gather_async comm": lambda c: lib.pccl_gather_async(
            null, apart, data, 2, 0, 0, null, work
        ),
        "gather_async work": lambda c: lib.pccl_gather_async(c, apart, data, 2, 0, 0, null, null),
        "gather_v_async comm": lambda c: lib.pccl_gather_v_async(
            null, apart, data, counts, 2, 0, 0, null, work
        ),
        "gather_v_async work": lambda c: lib.pccl_gather_v_async(
            c, apart, data, counts, 2, 0, 0, null, null
        ),
        "all_to_all_async comm": lambda c: lib.pccl_all_to_all_async(
            null, data, apart, 2, 0, null, work
        ),
        "all_to_all_async work": lambda c: lib.pccl_all_to_all_async(
            c, data, apart, 2, 0, null, null
        ),
        "send_async comm": lambda c: lib.pccl_send_async(null, data, 2, 0, 1, null, work),
        "send_async work": lambda c: lib.pccl_send_async(c, data, 2, 0, 1, null, null),
        "recv_async comm": lambda c: lib.pccl_recv_async(null, data, 2, 0, 1, null, work),
        "recv_async work": lambda c: lib.pccl_recv_async(c, data, 2, 0, 1, null, null),
        "barrier_async comm": lambda c: lib.pccl_barrier_async(null, null, work),
        "barrier_async work": lambda c: lib.pccl_barrier_async(c, null, null),
        "work_wait": lambda c: lib.pccl_work_wait(null, 0),
        "work_poll": lambda c: lib.pccl_work_poll(null, ffi.new("int *")),
        "work_notify": lambda c: lib.pccl_work_notify(null, null, null),
        "work_fd": lambda c: lib.pccl_work_fd(null, ffi.new("int *")),
        "work_cancel": lambda c: lib.pccl_work_cancel(null),
        "work_resolve": lambda c: lib.pccl_work_resolve(null, 0, 0),
        "work_outcome": lambda c: lib.pccl_work_outcome(null, options("outcome")),
        "work_range": lambda c: lib.pccl_work_range(null, 0, options("outcome_range"), null, 0),
        "work_finish handle": lambda c: lib.pccl_work_finish(null, 0, ended, part, null, 0),
        "work_finish work": lambda c: lib.pccl_work_finish(no_work, 0, ended, part, null, 0),
        "state_create comm": lambda c: lib.pccl_state_create(null, null, state),
        "state_create state": lambda c: lib.pccl_state_create(c, null, null),
        "state_create tensors": lambda c: lib.pccl_state_create(
            c, options("state_options", tensor_count=1), state
        ),
        "state_sync": lambda c: lib.pccl_state_sync(null, null, null),
        "state_revision": lambda c: lib.pccl_state_revision(null, ffi.new("uint64_t *")),
        "state_close": lambda c: lib.pccl_state_close(null),
        "log_next level": lambda c: lib.pccl_log_next(null, out, 600),
        "log_next message": lambda c: lib.pccl_log_next(level, null, 600),
    }


@pytest.mark.parametrize("what", null_calls())
def test_null_is_an_answer_and_no_crash(pair: tuple[Any, Any], what: str) -> None:
    refused(null_calls()[what](pair[0]))


def test_null_where_it_means_nothing_or_none() -> None:
    lib.pccl_coordinator_destroy(ffi.NULL)
    lib.pccl_comm_destroy(ffi.NULL)
    lib.pccl_work_destroy(ffi.NULL)
    lib.pccl_state_destroy(ffi.NULL)
    assert lib.pccl_coordinator_token(ffi.NULL) == ffi.NULL
    assert lib.pccl_coordinator_port(ffi.NULL) == 0
    for count in (lib.pccl_comm_members, lib.pccl_comm_joined, lib.pccl_comm_left):
        assert count(ffi.NULL, ffi.NULL, 0) == 0


def counts_of(*counts: int) -> tuple[Any, int]:
    """For each rank, as the functions with _v take them."""
    return ffi.new("uint64_t[]", counts), len(counts)


# With the arguments (communicator, send, recv, count, dtype, options); two ranks have a shard each.
CALLS: dict[str, Any] = {
    "all_reduce": lambda c, send, recv, n, dtype, chosen: lib.pccl_all_reduce(
        c, send, recv, n, dtype, chosen, ffi.NULL
    ),
    "broadcast": lambda c, send, _, n, dtype, chosen: lib.pccl_broadcast(
        c, send, n, dtype, 0, chosen, ffi.NULL
    ),
    "reduce": lambda c, send, recv, n, dtype, chosen: lib.pccl_reduce(
        c, send, recv, n, dtype, 0, chosen, ffi.NULL
    ),
    "reduce_scatter": lambda c, send, recv, n, dtype, chosen: lib.pccl_reduce_scatter(
        c, send, recv, n, dtype, chosen, ffi.NULL
    ),
    "reduce_scatter_v": lambda c, send, recv, n, dtype, chosen: lib.pccl_reduce_scatter_v(
        c, send, recv, *counts_of(n, 3), dtype, chosen, ffi.NULL
    ),
    "all_gather": lambda c, send, recv, n, dtype, chosen: lib.pccl_all_gather(
        c, send, recv, n, dtype, chosen, ffi.NULL
    ),
    "all_gather_v": lambda c, send, recv, n, dtype, chosen: lib.pccl_all_gather_v(
        c, send, recv, *counts_of(n, 3), dtype, chosen, ffi.NULL
    ),
    "scatter": lambda c, send, recv, n, dtype, chosen: lib.pccl_scatter(
        c, send, recv, n, dtype, 0, chosen, ffi.NULL
    ),
    "scatter_v": lambda c, send, recv, n, dtype, chosen: lib.pccl_scatter_v(
        c, send, recv, *counts_of(n, 3), dtype, 0, chosen, ffi.NULL
    ),
    "gather": lambda c, send, recv, n, dtype, chosen: lib.pccl_gather(
        c, send, recv, n, dtype, 0, chosen, ffi.NULL
    ),
    "gather_v": lambda c, send, recv, n, dtype, chosen: lib.pccl_gather_v(
        c, send, recv, *counts_of(n, 3), dtype, 0, chosen, ffi.NULL
    ),
    "all_to_all": lambda c, send, recv, n, dtype, chosen: lib.pccl_all_to_all(
        c, send, recv, n, dtype, chosen, ffi.NULL
    ),
    "send": lambda c, send, _, n, dtype, chosen: lib.pccl_send(
        c, send, n, dtype, 1, chosen, ffi.NULL
    ),
    "recv": lambda c, _, recv, n, dtype, chosen: lib.pccl_recv(
        c, recv, n, dtype, 1, chosen, ffi.NULL
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("count", "dtype", "fields", "word"),
    [
        (4, 12, {}, "dtype"),
        (4, 2**31 - 1, {}, "dtype"),
        (4, 0, {"op": 8}, "op"),
        (4, 0, {"op": 2**32 - 1}, "op"),
        (4, 0, {"recovery": 5}, "recovery"),
        (2**40 + 1, 4, {}, "count"),
        (2**62, 0, {}, "count"),
        (2**64 - 1, 10, {}, "count"),
    ],
)
def test_nonsense_is_refused_before_memory_is_touched(
    pair: tuple[Any, Any], call: str, count: int, dtype: int, fields: dict[str, int], word: str
) -> None:
    """Enumerations are plain integers in C: any value may come."""
    data = ffi.new("float[4]", [1, 2, 3, 4])
    chosen = options("collective_options")
    for name, value in fields.items():
        place = ffi.cast("uint32_t *", ffi.addressof(chosen, name))
        place[0] = value
    as_dtype = ffi.cast("pccl_dtype_t", dtype)
    said = refused(CALLS[call](pair[0], data, data, count, as_dtype, chosen))
    assert word in said
    if word == "count":
        total = min(count + 3, FOREVER) if call.endswith("_v") else count
        assert str(total) in said, said
    assert list(data) == [1, 2, 3, 4]


@pytest.mark.parametrize("call", CALLS)
def test_what_ends_behind_the_last_address_is_refused(pair: tuple[Any, Any], call: str) -> None:
    last = ffi.cast("float *", 2**64 - 16)
    said = refused(CALLS[call](pair[0], last, last, 2**20, lib.PCCL_F32, ffi.NULL))
    assert "f32 do not fit into memory" in said


NEVER_ENCODED = ("broadcast", "send", "recv")
SUMS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v")


def test_what_is_neither_reduced_nor_gathered_has_no_codec(pair: tuple[Any, Any]) -> None:
    data = ffi.new("float[8]")
    chosen = options("collective_options", codec=lib.PCCL_CODEC_INT8)
    said = refused(CALLS["broadcast"](pair[0], data, data, 4, lib.PCCL_F32, chosen))
    assert "codec int8" in said and "the root's buffer is only read" in said
    for name in ("send", "recv"):
        said = refused(CALLS[name](pair[0], data, data, 4, lib.PCCL_F32, chosen))
        assert "codec int8: a message travels as it is" in said
    said = refused(lib.pccl_barrier(pair[0], chosen, ffi.NULL))
    assert "codec int8: nothing travels" in said


@pytest.mark.parametrize("name", [name for name in CALLS if name not in NEVER_ENCODED])
def test_a_codec_is_for_floats_and_for_what_it_can_add_up(pair: tuple[Any, Any], name: str) -> None:
    data, other = ffi.new("float[8]"), ffi.new("float[8]")
    before, after = ffi.new("float[8]"), ffi.new("float[8]")
    call = CALLS[name]
    chosen = options("collective_options", codec=lib.PCCL_CODEC_INT8)
    said = refused(call(pair[0], data, other, 4, lib.PCCL_I32, chosen))
    assert "codec int8 is for floats, and dtype is i32" in said
    chosen.residual_in = before
    said = refused(call(pair[0], data, other, 4, lib.PCCL_F32, chosen))
    assert "residual_out" in said
    if name not in SUMS:
        chosen.residual_out = after
        said = refused(call(pair[0], data, other, 4, lib.PCCL_F32, chosen))
        assert "are for all_reduce, reduce and reduce_scatter" in said
        return
    for place in (data + 3, other, before + 1):
        chosen.residual_out = place
        said = refused(call(pair[0], data, other, 4, lib.PCCL_F32, chosen))
        assert "residual_out overlaps another buffer" in said
    chosen.residual_in, chosen.residual_out = other, after
    said = refused(call(pair[0], data, other, 4, lib.PCCL_F32, chosen))
    assert "residual_in overlaps recv_buffer" in said
    chosen.residual_in, chosen.residual_out = before, after
    chosen.op = lib.PCCL_MAX
    said = refused(call(pair[0], data, other, 4, lib.PCCL_F32, chosen))
    assert "is for sum and avg, and op is max" in said


@pytest.mark.parametrize("name", SUMS)
def test_integers_have_bits_and_floats_have_none(pair: tuple[Any, Any], name: str) -> None:
    """In a list, too, wherever the floats are in it; without a codec, as for all integers."""
    data, other = ffi.new("uint16_t[8]"), ffi.new("uint16_t[8]")
    chosen = options("collective_options", op=lib.PCCL_BXOR)
    for dtype in (lib.PCCL_F32, lib.PCCL_BF16):
        said = refused(CALLS[name](pair[0], data, other, 3, dtype, chosen))
        assert "op bxor is of integers, and dtype is " in said and "floats have no bxor" in said
    chosen.codec = lib.PCCL_CODEC_INT8
    said = refused(CALLS[name](pair[0], data, other, 3, lib.PCCL_F32, chosen))
    assert "codec int8 is for sum and avg, and op is bxor" in said
    said = refused(CALLS[name](pair[0], data, other, 3, lib.PCCL_U16, chosen))
    assert "codec int8 is for floats, and dtype is u16" in said
    given = [0b1100, 0b1010, 7, 0xFFFF, 0x8001, 3, 5, 6]
    for op, wanted in (
        (lib.PCCL_BAND, [x & (x << 1) & 0xFFFF for x in given]),
        (lib.PCCL_BOR, [(x | x << 1) & 0xFFFF for x in given]),
        (lib.PCCL_BXOR, [(x ^ x << 1) & 0xFFFF for x in given]),
    ):

        def program(rank: int, op: int = op) -> list[int]:
            send = ffi.new("uint16_t[8]", [x << rank & 0xFFFF for x in given])
            recv = ffi.new("uint16_t[8]")
            own = options("collective_options", op=op)
            check(CALLS[name](pair[rank], send, recv, 3, lib.PCCL_U16, own))
            return list(recv)

        first, second = together([functools.partial(program, rank) for rank in range(2)])
        assert first[:3] == wanted[:3]
        if name == "all_reduce":
            assert second == first
        elif name != "reduce":
            assert second[:3] == wanted[3:6]


def test_a_list_of_integers_and_floats_has_no_bits(pair: tuple[Any, Any]) -> None:
    data = ffi.new("int32_t[8]")
    chosen = options("collective_options", op=lib.PCCL_BAND)
    dtypes = [lib.PCCL_I32, lib.PCCL_F32]
    for given in (dtypes, dtypes[::-1]):
        arrays = ffi.new("pccl_array_t[2]")
        for number, (array, dtype) in enumerate(zip(arrays, given, strict=True)):
            array.send_buffer = array.recv_buffer = data + 4 * number
            array.count, array.dtype = 4, dtype
        said = refused(
            lib.pccl_coalesced(pair[0], lib.PCCL_ALL_REDUCE, arrays, 2, 0, chosen, ffi.NULL)
        )
        assert "op band is of integers, and dtype is f32" in said


@pytest.mark.parametrize("name", [name for name in CALLS if name not in NEVER_ENCODED])
def test_what_travels_is_encoded_in_every_call_that_has_a_codec(
    pair: tuple[Any, Any], name: str
) -> None:
    """With numbers that 16 bits have exactly, with residuals where there are sums."""
    chosen = options("collective_options", codec=lib.PCCL_CODEC_BF16)
    plain = options("collective_options")

    def program(rank: int, chosen: Any, kept: Any) -> list[float]:
        send = ffi.new("float[8]", [(rank + 1) * 2**index for index in range(8)])
        recv = ffi.new("float[8]")
        own = ffi.new("pccl_collective_options_t *", chosen[0])
        if chosen.codec and name in SUMS:
            own.residual_in, own.residual_out = kept
        check(CALLS[name](pair[rank], send, recv, 3, lib.PCCL_F32, own))
        return list(recv)

    kept = [(ffi.new("float[8]"), ffi.new("float[8]", [7] * 8)) for _ in range(2)]
    results = [
        together([functools.partial(program, rank, with_codec, kept[rank]) for rank in range(2)])
        for with_codec in (plain, chosen)
    ]
    assert results[0] == results[1]
    assert any(results[0][0])
    if name in SUMS:
        count = 3 if name in ("all_reduce", "reduce") else 6
        for _, after in kept:
            assert list(after) == [0.0] * count + [7.0] * (8 - count), "nothing was lost"


def test_overlap_in_part_is_refused(pair: tuple[Any, Any]) -> None:
    data = ffi.new("float[8]")
    for send, recv in ((data, data + 1), (data + 3, data)):
        for call in ("all_reduce", "reduce"):
            said = refused(CALLS[call](pair[0], send, recv, 4, 0, ffi.NULL))
            assert "overlap" in said and "must be the same, or lie apart" in said


def test_a_shard_is_that_of_its_rank_or_apart(pair: tuple[Any, Any]) -> None:
    """One element beside the place of the rank, and the place of the other rank."""
    data, null = ffi.new("float[8]"), ffi.NULL
    ours = {0: (0, 0), 1: (2, 4)}  # first elements of this rank's shard: of two, of four and three
    for rank, comm in enumerate(pair):
        equal, uneven = ours[rank]
        for wrong in {equal + 1, 2 - equal}:
            said = refused(CALLS["reduce_scatter"](comm, data, data + wrong, 2, 0, null))
            assert "overlap" in said and "recv_buffer must be this rank's part" in said
            said = refused(CALLS["all_gather"](comm, data + wrong, data, 2, 0, null))
            assert "overlap" in said and "send_buffer must be this rank's part" in said
        for wrong in {uneven + 1, 4 - uneven}:
            said = refused(CALLS["reduce_scatter_v"](comm, data, data + wrong, 4, 0, null))
            assert "overlap" in said and "recv_buffer" in said
            said = refused(CALLS["all_gather_v"](comm, data + wrong, data, 4, 0, null))
            assert "overlap" in said and "send_buffer" in said
    # At the root; elsewhere there is one buffer.
    for wrong in (1, 2):
        said = refused(CALLS["scatter"](pair[0], data, data + wrong, 2, 0, null))
        assert "overlap" in said and "recv_buffer must be the root's part" in said
        said = refused(CALLS["gather"](pair[0], data + wrong, data, 2, 0, null))
        assert "overlap" in said and "send_buffer must be the root's part" in said
    for wrong in (1, 4):
        said = refused(CALLS["scatter_v"](pair[0], data, data + wrong, 4, 0, null))
        assert "overlap" in said and "recv_buffer" in said
        said = refused(CALLS["gather_v"](pair[0], data + wrong, data, 4, 0, null))
        assert "overlap" in said and "send_buffer" in said


def test_what_is_exchanged_lies_apart(pair: tuple[Any, Any]) -> None:
    data = ffi.new("float[8]")
    for comm in pair:
        for send, recv in ((data, data), (data, data + 1), (data + 3, data)):
            said = refused(CALLS["all_to_all"](comm, send, recv, 2, 0, ffi.NULL))
            assert "overlap" in said and "apart" in said, said


def test_there_is_a_count_for_each_rank(pair: tuple[Any, Any]) -> None:
    data, null = ffi.new("float[8]"), ffi.NULL
    for ranks in (0, 1, 3):
        counts, _ = counts_of(*[1] * ranks)
        for call in (lib.pccl_reduce_scatter_v, lib.pccl_all_gather_v):
            said = refused(call(pair[0], data, data, counts, ranks, 0, null, null))
            assert f"{ranks} counts" in said and "one for each rank" in said
        for call in (lib.pccl_scatter_v, lib.pccl_gather_v):
            for root in range(2):
                said = refused(call(pair[0], data, data, counts, ranks, 0, root, null, null))
                assert f"{ranks} counts" in said and "one for each rank" in said


def test_a_root_that_is_no_rank_is_refused(pair: tuple[Any, Any]) -> None:
    data, null = ffi.new("float[4]"), ffi.NULL
    for root in (2, 2**32 - 1):
        said = refused(lib.pccl_broadcast(pair[0], data, 4, 0, root, null, null))
        assert f"root {root}" in said
        for call in (lib.pccl_reduce, lib.pccl_scatter, lib.pccl_gather):
            said = refused(call(pair[0], data, data, 4, 0, root, null, null))
            assert f"root {root}" in said
        counts, ranks = counts_of(2, 2)
        for call in (lib.pccl_scatter_v, lib.pccl_gather_v):
            said = refused(call(pair[0], data, data, counts, ranks, 0, root, null, null))
            assert f"root {root}" in said


# ---- what the functions promise --------------------------------------------------------------


@contextlib.contextmanager
def finished(pair: tuple[Any, Any]) -> Iterator[Any]:
    """A work of rank 0 that has committed: the sum of 1 and 2, four times."""
    works = [ffi.new("pccl_work_t **") for _ in pair]
    data = [ffi.new("float[4]", [rank + 1.0] * 4) for rank in range(2)]
    for comm, array, work in zip(pair, data, works, strict=True):
        check(lib.pccl_all_reduce_async(comm, array, array, 4, 0, ffi.NULL, work))
    for work in works:
        check(lib.pccl_work_wait(work[0], FOREVER))
    assert list(data[0]) == list(data[1]) == [3.0] * 4
    try:
        yield works[0][0]
    finally:
        for work in works:
            lib.pccl_work_destroy(work[0])


def test_tokens_are_made_and_read() -> None:
    token = ffi.new("char[]", lib.PCCL_TOKEN_BYTES_MAX)
    run_id = ffi.new("uint8_t[16]", list(range(16)))
    check(lib.pccl_token_create(b"[::1]:4000", run_id, token, lib.PCCL_TOKEN_BYTES_MAX))
    info = options("token_info")
    check(lib.pccl_token_parse(token, info))
    assert text(info.address) == "[::1]:4000"
    assert list(info.run_id) == list(range(16))
    assert pccl.token_parse(text(token)).run_id == bytes(range(16))


def test_the_last_error_belongs_to_its_thread() -> None:
    refused(lib.pccl_token_create(b"no port", ffi.NULL, ffi.new("char[600]"), 600))
    mine = text(lib.pccl_last_error())

    def other() -> tuple[str, str]:
        before = text(lib.pccl_last_error())
        lib.pccl_work_wait(ffi.NULL, 0)
        return before, text(lib.pccl_last_error())

    (answer,) = together([other])
    assert answer[0] == ""
    assert "work" in answer[1]
    assert text(lib.pccl_last_error()) == mine


def test_a_library_over_this_one_keeps_its_own_sentence() -> None:
    lib.pccl_set_last_error(b"call init first")
    assert text(lib.pccl_last_error()) == "call init first"
    lib.pccl_set_last_error(lib.pccl_last_error())
    assert text(lib.pccl_last_error()) == "call init first"
    lib.pccl_set_last_error(b"x" * 2000)
    assert text(lib.pccl_last_error()) == "x" * 1024
    lib.pccl_set_last_error(ffi.NULL)
    assert text(lib.pccl_last_error()) == ""


def test_a_coordinator_says_its_port_and_token() -> None:
    with coordinator() as running:
        info = options("token_info")
        check(lib.pccl_token_parse(lib.pccl_coordinator_token(running), info))
        assert text(info.address) == f"127.0.0.1:{lib.pccl_coordinator_port(running)}"
        second = ffi.new("pccl_coordinator_t **")
        address = ffi.new("char[]", ffi.string(info.address))
        taken = lib.pccl_coordinator_create(options("coordinator_options", bind=address), second)
        assert text(info.address) in refused(taken, "PCCL_SYSTEM_ERROR")


def test_a_coordinator_goes_on_with_the_run_of_its_state_dir(tmp_path: Path) -> None:
    """Options that are left out come from there; the others may differ until an epoch begins."""
    state = ffi.new("char[]", bytes(tmp_path / "state"))
    bind, advertise = ffi.new("char[]", b"0.0.0.0"), ffi.new("char[]", b"localhost")
    with coordinator(state_dir=state, heartbeat_ns=SECOND // 5, bind=bind):
        pass
    with coordinator(state_dir=state, heartbeat_ns=SECOND // 4, advertise=advertise) as first:
        token = text(lib.pccl_coordinator_token(first))
        assert ":" in pccl.token_parse(token).address.removeprefix("localhost")
        with pccl.connect(token, bind="127.0.0.1") as comm:
            comm.admit()
        second = ffi.new("pccl_coordinator_t **")
        same = options("coordinator_options", state_dir=state)
        shared = lib.pccl_coordinator_create(same, second)
        assert "another coordinator" in refused(shared, "PCCL_SYSTEM_ERROR")
    other = options("coordinator_options", state_dir=state, heartbeat_ns=SECOND)
    said = refused(lib.pccl_coordinator_create(other, second))
    assert "heartbeat is 1 s" in said
    assert "0.25 s" in said
    with coordinator(state_dir=state) as again:
        assert text(lib.pccl_coordinator_token(again)) == token


def test_the_status_of_a_run_tells_how_much_room_it_needs(pair: tuple[Any, Any]) -> None:
    with coordinator() as running:
        token = lib.pccl_coordinator_token(running)
        length = ffi.new("size_t *")
        small = ffi.new("char[]", b"\xa5" * 8)
        said = refused(lib.pccl_run_status(token, 5 * SECOND, small, 4, length))
        assert str(length[0] + 1) in said
        assert bytes(ffi.buffer(small))[4:8] == b"\xa5" * 4
        room = ffi.new("char[]", length[0] + 200)
        check(lib.pccl_run_status(token, 5 * SECOND, room, length[0] + 200, length))
        assert len(text(room)) == length[0]
        assert json.loads(text(room))["schema"] == 1
        # Nobody has this id, so no member dials it.
        peer = ffi.new("pccl_peer_id_t *")
        peer.bytes[0] = 7
        check(lib.pccl_run_dial_back(token, peer, 5 * SECOND, room, length[0] + 200, length))
        assert "dial_back" not in json.loads(text(room))


def test_create_is_withdrawn_when_the_callback_says_so() -> None:
    """`interrupted` is asked on the blocked thread, and the peer is gone afterwards."""
    asked: list[Any] = []

    @ffi.callback("int(void *)")
    def interrupted(context: Any) -> int:
        asked.append((threading.get_ident(), ffi.from_handle(context)))
        return int(len(asked) == 3)

    handle = ffi.new_handle("mine")
    with coordinator(initial_world_size=2) as running:
        token = lib.pccl_coordinator_token(running)
        made = ffi.new("pccl_comm_t **")
        fields = {"interrupted": interrupted, "interrupted_context": handle, "bind": LOOPBACK}
        status = lib.pccl_comm_create(token, options("comm_options", **fields), made)
        refused(status, "PCCL_CANCELLED")
        assert asked == [(threading.get_ident(), "mine")] * 3
        assert made[0] == ffi.NULL


def test_the_plan_of_a_peer_alone() -> None:
    with coordinator() as running:
        comm = connect(lib.pccl_coordinator_token(running))
        plan = options("comm_plan")
        check(lib.pccl_comm_plan(comm, plan))
        assert (plan.epoch, plan.kind, plan.world_size) == (0, 0, 0)
        refused(lib.pccl_comm_optimize_topology(comm, 0, plan), "PCCL_INVALID_USAGE")
        check(lib.pccl_comm_admit(comm, 0, ffi.NULL))
        check(lib.pccl_comm_optimize_topology(comm, 0, ffi.NULL))
        for is_waiting in (False, True):
            if is_waiting:
                check(lib.pccl_comm_optimize_topology(comm, 0, plan))
            else:
                check(lib.pccl_comm_plan(comm, plan))
            assert (plan.epoch, plan.attempt, plan.kind) == (1, 1, lib.PCCL_PLAN_RING)
            assert (plan.world_size, plan.order_count, plan.limit_count) == (1, 1, 0)
            assert not any(plan.order) and not any(plan.shares)
        check(lib.pccl_comm_close(comm))
        refused(lib.pccl_comm_plan(comm, plan), "PCCL_INVALID_USAGE")
        refused(lib.pccl_comm_optimize_topology(comm, 0, plan), "PCCL_INVALID_USAGE")
        lib.pccl_comm_destroy(comm)


def test_membership_from_create_to_destroy() -> None:
    with coordinator() as running:
        token = lib.pccl_coordinator_token(running)
        chosen = ffi.new("pccl_peer_id_t *", {"bytes": [7] * 16})
        comm = connect(token, group=ffi.new("char[]", b"first"), peer_id=chosen)
        admission = options("admission")
        check(lib.pccl_comm_admit(comm, 5 * SECOND, admission))
        assert (admission.epoch, admission.rank, admission.world_size) == (1, 0, 1)
        assert (admission.changed, admission.joined_count, admission.left_count) == (1, 1, 0)
        info = options("comm_info")
        check(lib.pccl_comm_info(comm, info))
        assert list(info.peer_id.bytes) == [7] * 16
        assert info.lost == lib.PCCL_OK
        ids = ffi.new("pccl_peer_id_t[2]")
        assert lib.pccl_comm_joined(comm, ids, 2) == 1
        assert list(ids[0].bytes) == [7] * 16
        assert lib.pccl_comm_left(comm, ids, 2) == 0
        pending = ffi.new("uint32_t *", 7)
        check(lib.pccl_comm_pending_agreed(comm, 0, pending))
        assert pending[0] == 0
        check(lib.pccl_comm_set_deadline(comm, 5 * SECOND))
        check(lib.pccl_comm_admit_together(comm, 5 * SECOND, admission))
        assert (admission.epoch, admission.changed) == (1, 0)
        while lib.pccl_comm_not_entered(comm, ids, 2) != 0:
            continue

        joined = ffi.new("pccl_comm_t **")
        group = ffi.new("char[]", b"second")
        check(lib.pccl_comm_join(comm, options("comm_options", group=group), joined))
        check(lib.pccl_comm_admit(joined[0], 0, admission))
        assert admission.world_size == 1
        assert lib.pccl_comm_members(comm, ids, 2) == 1
        named = options("comm_options", group=ffi.new("char[]", b"sub"))
        sub = ffi.new("pccl_comm_t **")
        check(lib.pccl_comm_subgroup(comm, ids, 1, named, sub))
        check(lib.pccl_comm_admit(sub[0], 0, admission))
        assert admission.world_size == 1
        lib.pccl_comm_destroy(sub[0])
        for count in (0, 513):
            assert "1 to 512" in refused(lib.pccl_comm_subgroup(comm, ids, count, named, sub))
        ids[1].bytes = ids[0].bytes
        assert "each named once" in refused(lib.pccl_comm_subgroup(comm, ids, 2, named, sub))
        for name in (b"\xff", b"cut \xc3", b"\xed\xa0\x80", b"caf\xe9"):
            none = options("comm_options", group=ffi.new("char[]", name))
            assert "UTF-8" in refused(lib.pccl_comm_join(comm, none, joined))
            assert "UTF-8" in refused(lib.pccl_comm_create(token, none, joined))
        check(lib.pccl_comm_close(comm))
        check(lib.pccl_comm_close(comm))  # idempotent
        refused(lib.pccl_comm_info(comm, info), "PCCL_INVALID_USAGE")
        refused(lib.pccl_barrier(comm, ffi.NULL, ffi.NULL), "PCCL_INVALID_USAGE")
        check(lib.pccl_barrier(joined[0], ffi.NULL, ffi.NULL))  # the other group is still open
        lib.pccl_comm_destroy(comm)
        lib.pccl_comm_destroy(joined[0])  # without close


def test_a_label_is_what_was_given_else_host_and_process(pair: tuple[Any, Any]) -> None:
    text = ffi.new("char[]", lib.PCCL_LABEL_BYTES_MAX + 1)
    ids = ffi.new("pccl_peer_id_t[2]")
    assert lib.pccl_comm_members(pair[0], ids, 2) == 2
    for rank in range(2):
        check(lib.pccl_comm_label(pair[0], ids + rank, text, len(text)))
        assert ffi.string(text).endswith(f":{os.getpid()}".encode())
    nobody = ffi.new("pccl_peer_id_t *", {"bytes": [9] * 16})
    check(lib.pccl_comm_label(pair[0], nobody, text, 1))
    assert ffi.string(text) == b""
    assert "room" in refused(lib.pccl_comm_label(pair[0], ids, text, 3))
    for arguments in ((ffi.NULL, text), (ids, ffi.NULL)):
        assert "NULL" in refused(lib.pccl_comm_label(pair[0], *arguments, len(text)))
    with coordinator() as running:
        token = lib.pccl_coordinator_token(running)
        comm = connect(token, label=ffi.new("char[]", "größte Maschine #2".encode()))
        assert lib.pccl_comm_members(comm, ids, 2) == 0  # it has entered no epoch
        info = options("comm_info")
        check(lib.pccl_comm_info(comm, info))
        own = ffi.new("pccl_peer_id_t *", info.peer_id)
        check(lib.pccl_comm_label(comm, own, text, len(text)))
        assert ffi.string(text).decode() == "größte Maschine #2"
        lib.pccl_comm_destroy(comm)
        made = ffi.new("pccl_comm_t **")
        for wrong, word in ((b"x" * 81, "80 bytes"), (b"\x1b[2J", "cannot be shown")):
            given = options("comm_options", label=ffi.new("char[]", wrong), bind=LOOPBACK)
            assert word in refused(lib.pccl_comm_create(token, given, made))


def test_how_a_peer_uses_the_network_is_checked_and_taken() -> None:
    with coordinator() as running:
        token = lib.pccl_coordinator_token(running)
        for rate, congestion in ((1000, "SYSTEM"), (1_250_000_000_000, "CUBIC")):
            chosen = getattr(lib, f"PCCL_CONGESTION_{congestion}")
            lib.pccl_comm_destroy(connect(token, send_rate=rate, congestion=chosen))
        several = ffi.new("char[]", b"100mbit,eu-1=20mbit")
        lib.pccl_comm_destroy(connect(token, send_rates=several))
        read = ffi.new("uint64_t *")
        check(lib.pccl_rate_parse(several, ffi.NULL, read))
        assert read[0] == 12_500_000
        made = ffi.new("pccl_comm_t **")
        for fields, words in (
            ({"send_rate": 999}, "send_rate is 999; it must be 1000 to 1250000000000 bytes per"),
            ({"send_rate": 2**64 - 1}, "or 0 for no limit"),
            ({"send_rates": ffi.new("char[]", b"fast")}, "send_rates must be from 8kbit to 10tbit"),
            ({"send_rate": 1000, "send_rates": several}, "send_rate is 1000, and send_rates has"),
            ({"congestion": 4}, "congestion 4 is unknown; see pccl_congestion_t"),
            ({"probe": 2}, "probe 2 is unknown; see pccl_probe_t"),
        ):
            given = options("comm_options", bind=LOOPBACK, **fields)
            assert words in refused(lib.pccl_comm_create(token, given, made))


def test_lists_of_peers_are_written_as_far_as_there_is_room(pair: tuple[Any, Any]) -> None:
    ids = ffi.new("pccl_peer_id_t[3]")
    for count in (lib.pccl_comm_members, lib.pccl_comm_joined):
        ffi.memmove(ids, b"\xa5" * 48, 48)
        assert count(pair[0], ids, 1) == 2
        assert bytes(ffi.buffer(ids))[16:] == b"\xa5" * 32
        assert count(pair[0], ids, 3) == 2
        assert bytes(ffi.buffer(ids))[32:] == b"\xa5" * 16
        assert count(pair[0], ffi.NULL, 0) == 2


def test_blocking_calls_give_a_finished_work(pair: tuple[Any, Any]) -> None:
    works = [ffi.new("pccl_work_t **") for _ in pair]
    sums = [ffi.new("uint64_t[3]", [1, 2, 3]) for _ in pair]
    made = [ffi.new("uint64_t[3]") for _ in pair]
    roots = [ffi.new("int8_t[5]", [rank] * 5) for rank in range(2)]

    def program(rank: int) -> int:
        comm, work = pair[rank], works[rank]
        average = options("collective_options", tag=1, op=lib.PCCL_AVG)
        check(lib.pccl_all_reduce(comm, sums[rank], made[rank], 3, lib.PCCL_U64, average, ffi.NULL))
        check(lib.pccl_barrier(comm, ffi.NULL, ffi.NULL))
        check(lib.pccl_broadcast(comm, roots[rank], 5, lib.PCCL_I8, 1, ffi.NULL, work))
        finished_now = ffi.new("int *")
        check(lib.pccl_work_poll(work[0], finished_now))
        check(lib.pccl_work_wait(work[0], 0))
        return int(finished_now[0])

    assert together([lambda: program(0), lambda: program(1)]) == [1, 1]
    assert [list(array) for array in (*sums, *made)] == [[1, 2, 3]] * 4
    assert [list(array) for array in roots] == [[1] * 5] * 2
    outcomes = [options("outcome") for _ in pair]
    for work, outcome in zip(works, outcomes, strict=True):
        check(lib.pccl_work_outcome(work[0], outcome))
        lib.pccl_work_destroy(work[0])
    assert list(outcomes[0].digest) == list(outcomes[1].digest)


def test_a_reduction_arrives_at_its_root_alone(pair: tuple[Any, Any]) -> None:
    """Elsewhere there need not be a buffer; one that is there is not touched."""
    for root in range(2):
        for in_place in (True, False):
            data = [ffi.new("int16_t[3]", [rank, 10, -1]) for rank in range(2)]
            made = data if in_place else [ffi.new("int16_t[3]", [7, 7, 7]) for _ in range(2)]

            def program(rank: int, data: Any = data, made: Any = made, root: int = root) -> Any:
                work, outcome = ffi.new("pccl_work_t **"), options("outcome")
                recv = made[rank] if rank == root or made is not data else ffi.NULL
                arguments = (data[rank], recv, 3, lib.PCCL_I16, root, ffi.NULL, work)
                check(lib.pccl_reduce(pair[rank], *arguments))
                check(lib.pccl_work_outcome(work[0], outcome))
                lib.pccl_work_destroy(work[0])
                return outcome

            outcomes = together([functools.partial(program, rank) for rank in range(2)])
            assert list(made[root]) == [1, 20, -2]
            assert list(made[1 - root]) == ([1 - root, 10, -1] if in_place else [7, 7, 7])
            assert [outcomes[rank].range_count for rank in (root, 1 - root)] == [1, 0]


def test_shards_are_reduced_and_gathered(pair: tuple[Any, Any]) -> None:
    """Shards have two elements each, or three and one; apart, and in the place of the rank."""
    for counts in ((2, 2), (3, 1), (0, 4)):
        given, ranks = counts_of(*counts)
        for in_place in (True, False):
            first = [0, counts[0]]
            whole = [ffi.new("float[4]", [rank, 1, 2, 3]) for rank in range(2)]
            shards = [
                whole[rank] + first[rank] if in_place else ffi.new("float[4]") for rank in range(2)
            ]
            gathered = [ffi.new("float[4]", [-1] * 4) for _ in range(2)]
            sent = [gathered[rank] + first[rank] if in_place else shards[rank] for rank in range(2)]

            def program(
                rank: int,
                counts: Any = counts,
                given: Any = given,
                ranks: int = ranks,
                buffers: Any = (whole, shards, sent, gathered),
            ) -> None:
                comm, null = pair[rank], ffi.NULL
                whole, shards, sent, gathered = (each[rank] for each in buffers)
                if counts == (2, 2):
                    check(lib.pccl_reduce_scatter(comm, whole, shards, 2, 0, null, null))
                    ffi.memmove(sent, shards, 8)
                    check(lib.pccl_all_gather(comm, sent, gathered, 2, 0, null, null))
                else:
                    arguments = (whole, shards, given, ranks, 0, null, null)
                    check(lib.pccl_reduce_scatter_v(comm, *arguments))
                    ffi.memmove(sent, shards, 4 * counts[rank])
                    arguments = (sent, gathered, given, ranks, 0, null, null)
                    check(lib.pccl_all_gather_v(comm, *arguments))

            together([functools.partial(program, rank) for rank in range(2)])
            assert [list(array) for array in gathered] == [[1, 2, 4, 6]] * 2
            for rank in range(2):
                assert (
                    list(shards[rank][0 : counts[rank]])
                    == [1.0, 2, 4, 6][first[rank] : first[rank] + counts[rank]]
                )


def test_shards_go_from_and_to_a_root(pair: tuple[Any, Any]) -> None:
    """Dealt out by one rank and collected at the other, and elsewhere the whole is no buffer."""
    for root, counts, in_place in itertools.product(
        range(2), ((2, 2), (3, 1), (0, 4)), (True, False)
    ):
        given, ranks = counts_of(*counts)
        first = [0, counts[0]]
        wholes = [ffi.new("int16_t[4]", [5, 6, 7, 8]) for _ in pair]
        collected = [ffi.new("int16_t[4]", [-1] * 4) for _ in pair]
        shards = [ffi.new("int16_t[4]", [-1] * 4) for _ in pair]

        def program(
            rank: int,
            root: int = root,
            counts: Any = counts,
            lists: Any = (given, ranks, first),
            in_place: bool = in_place,
            buffers: Any = (wholes, shards, collected),
        ) -> tuple[list[int], int]:
            comm, null, kind = pair[rank], ffi.NULL, lib.PCCL_I16
            given, ranks, first = lists
            whole, shard, made = (each[rank] for each in buffers)
            work, outcome = ffi.new("pccl_work_t **"), options("outcome")
            to = 1 - root
            send = whole if rank == root else null
            part = whole + first[rank] if in_place and rank == root else shard
            recv = made if rank == to else null
            if counts == (2, 2):
                check(lib.pccl_scatter(comm, send, part, 2, kind, root, null, null))
            else:
                arguments = (send, part, given, ranks, kind, root, null, null)
                check(lib.pccl_scatter_v(comm, *arguments))
            got = list(part[0 : counts[rank]])
            if in_place and rank == to:
                ffi.memmove(made + first[rank], part, 2 * counts[rank])
                part = made + first[rank]
            if counts == (2, 2):
                check(lib.pccl_gather(comm, part, recv, 2, kind, to, null, work))
            else:
                arguments = (part, recv, given, ranks, kind, to, null, work)
                check(lib.pccl_gather_v(comm, *arguments))
            check(lib.pccl_work_outcome(work[0], outcome))
            lib.pccl_work_destroy(work[0])
            return got, outcome.range_count

        results = together([functools.partial(program, rank) for rank in range(2)])
        for rank, (got, range_count) in enumerate(results):
            assert got == [5, 6, 7, 8][first[rank] : first[rank] + counts[rank]]
            assert range_count == (0 if rank == root else 2 - counts.count(0))
        assert list(collected[1 - root]) == list(wholes[root]) == [5, 6, 7, 8]
        assert list(collected[root]) == [-1] * 4


def test_a_shard_of_each_goes_to_each(pair: tuple[Any, Any]) -> None:
    given = [ffi.new("uint32_t[4]", [10 * rank + index for index in range(4)]) for rank in range(2)]
    made = [ffi.new("uint32_t[4]") for _ in pair]

    def program(rank: int) -> None:
        arguments = (given[rank], made[rank], 2, lib.PCCL_U32, ffi.NULL, ffi.NULL)
        check(lib.pccl_all_to_all(pair[rank], *arguments))

    together([functools.partial(program, rank) for rank in range(2)])
    assert [list(array) for array in made] == [[0, 1, 10, 11], [2, 3, 12, 13]]
    assert [list(array) for array in given] == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_a_message_goes_from_one_to_the_other(pair: tuple[Any, Any]) -> None:
    """Blocking one way, then both ways at once under one tag, with options that do not matter."""
    given = ffi.new("int16_t[3]", [7, -8, 9])
    got, back = ffi.new("int16_t[3]"), ffi.new("int16_t[3]")
    arguments = (3, lib.PCCL_I16)

    def send() -> None:
        check(lib.pccl_send(pair[0], given, *arguments, 1, ffi.NULL, ffi.NULL))

    def receive() -> None:
        work, outcome = ffi.new("pccl_work_t **"), options("outcome")
        check(lib.pccl_recv(pair[1], got, *arguments, 0, ffi.NULL, work))
        check(lib.pccl_work_outcome(work[0], outcome))
        assert (outcome.tag, outcome.range_count, outcome.bytes_received) == (0, 1, 6)
        lib.pccl_work_destroy(work[0])

    together([send, receive])
    assert list(got) == list(given) == [7, -8, 9]
    tag = options("collective_options", tag=2**38 - 1, op=lib.PCCL_MAX, plan=lib.PCCL_PLAN_RING)
    works = [ffi.new("pccl_work_t **") for _ in range(4)]
    check(lib.pccl_send_async(pair[0], given, *arguments, 1, tag, works[0]))
    check(lib.pccl_send_async(pair[1], got, *arguments, 0, ffi.NULL, works[1]))
    said = refused(
        lib.pccl_send(pair[0], given, *arguments, 1, tag, ffi.NULL), "PCCL_INVALID_USAGE"
    )
    assert "a message to this rank with tag 274877906943 is in flight" in said
    forth = ffi.new("int16_t[3]")
    check(lib.pccl_recv_async(pair[0], back, *arguments, 1, ffi.NULL, works[2]))
    check(lib.pccl_recv_async(pair[1], forth, *arguments, 0, tag, works[3]))
    for work in works:
        check(lib.pccl_work_wait(work[0], FOREVER))
        lib.pccl_work_destroy(work[0])
    assert list(forth) == list(back) == [7, -8, 9]


def test_a_message_has_another_rank_and_a_tag_with_room(pair: tuple[Any, Any]) -> None:
    data = ffi.new("float[2]")
    for name, to in (("send", "send to"), ("recv", "receive from")):
        call = getattr(lib, f"pccl_{name}")
        said = refused(call(pair[1], data, 2, 0, 1, ffi.NULL, ffi.NULL))
        assert "rank 1 is this peer itself" in said and to in said
        for rank in (2, 2**32 - 1):
            said = refused(call(pair[1], data, 2, 0, rank, ffi.NULL, ffi.NULL))
            assert f"there is no rank {rank} to {to}" in said
        for tag in (2**38, 2**64 - 1):
            chosen = options("collective_options", tag=tag)
            said = refused(call(pair[1], data, 2, 0, 0, chosen, ffi.NULL))
            assert f"tag {tag} is too large for {name}" in said and "2**38" in said


def test_each_two_ranks_exchange_as_many_as_they_agree(pair: tuple[Any, Any]) -> None:
    """Goal: shards of an all_to_all may differ, and no rank knows those of others. Method: three
    elements one way, one the other, none and two to itself; then they disagree."""
    sent = [[0, 3], [1, 2]]
    given = [ffi.new("uint32_t[3]", [10 * rank + index for index in range(3)]) for rank in range(2)]
    made = [ffi.new("uint32_t[5]") for _ in pair]
    null = ffi.NULL

    def program(rank: int, wanted: int) -> str:
        send, ranks = counts_of(*sent[rank])
        recv, _ = counts_of(sent[0][rank], wanted if rank == 0 else sent[1][rank])
        begun = ffi.new("pccl_work_t **")
        arguments = (given[rank], made[rank], send, recv, ranks, lib.PCCL_U32, null)
        if wanted == 1:
            check(lib.pccl_all_to_all_v_async(pair[rank], *arguments, begun))
            send[0] = recv[0] = 99  # the lists are the caller's again
            check(lib.pccl_work_wait(begun[0], FOREVER))
            lib.pccl_work_destroy(begun[0])
            return ""
        return refused(lib.pccl_all_to_all_v(pair[rank], *arguments, null), "PCCL_MISMATCH")

    together([functools.partial(program, rank, 1) for rank in range(2)])
    assert list(made[0]) == [10, 0, 0, 0, 0]
    assert list(made[1]) == [0, 1, 2, 11, 12]
    for said in together([functools.partial(program, rank, 2) for rank in range(2)]):
        assert "3 elements for the other and 2 from it" in said
        assert "1 element for the other and 3 from it" in said
    counts, ranks = counts_of(1, 1)
    others, _ = counts_of(2, 2)
    arguments = (given[0], made[0], counts, others, ranks, lib.PCCL_U32, null, null)
    assert "itself" in refused(lib.pccl_all_to_all_v(pair[0], *arguments))
    check_each = [functools.partial(exchange_evenly, comm) for comm in pair]
    assert together(check_each) == [[7, 7], [7, 7]]


def exchange_evenly(comm: Any) -> list[int]:
    given, made = ffi.new("uint32_t[2]", [7, 7]), ffi.new("uint32_t[2]")
    counts, ranks = counts_of(1, 1)
    kind = lib.PCCL_U32
    null = ffi.NULL
    check(lib.pccl_all_to_all_v(comm, given, made, counts, counts, ranks, kind, null, null))
    return list(made)


def arrays_of(*arrays: tuple[Any, Any, int, int]) -> tuple[Any, int]:
    return ffi.new("pccl_array_t[]", [(*array, 0) for array in arrays]), len(arrays)


def test_several_arrays_are_one_operation(pair: tuple[Any, Any]) -> None:
    """Goal: arrays of other dtypes and counts, some empty, go as one, whatever the collective.
    Method: integers in place, floats apart; one sequence number is used for each call."""
    null = ffi.NULL
    kinds = (lib.PCCL_I32, lib.PCCL_F64)

    def program(rank: int) -> list[list[float]]:
        comm = pair[rank]
        whole = ffi.new("int32_t[4]", [rank + 1, 2, 3, 4])
        given, made = ffi.new("double[2]", [0.5, rank]), ffi.new("double[4]")
        results = []
        for number, (collective, counts) in enumerate(
            (
                (lib.PCCL_ALL_REDUCE, (4, 2)),
                (lib.PCCL_BROADCAST, (4, 2)),
                (lib.PCCL_ALL_GATHER, (2, 2)),
                (lib.PCCL_REDUCE_SCATTER, (2, 1)),
            )
        ):
            gathers = collective == lib.PCCL_ALL_GATHER
            scatters = collective == lib.PCCL_REDUCE_SCATTER
            send = whole + 2 * rank if gathers else whole
            recv = whole + 2 * rank if scatters else whole
            arrays, count = arrays_of(
                (send, recv, counts[0], kinds[0]),
                (null, null, 0, lib.PCCL_U8),
                (given, made, counts[1], kinds[1]),
            )
            work = ffi.new("pccl_work_t **")
            chosen = options("collective_options", tag=70)
            check(lib.pccl_coalesced(comm, collective, arrays, count, 1, chosen, work))
            outcome = options("outcome")
            check(lib.pccl_work_outcome(work[0], outcome))
            assert outcome.sequence == number
            lib.pccl_work_destroy(work[0])
            results.append(list(whole) + list(made))
        return results

    first, second = together([functools.partial(program, rank) for rank in range(2)])
    for summed, copied, gathered, scattered in (first, second):
        assert summed == [3, 4, 6, 8, 1, 1, 0, 0]
        assert copied[:4] == [3, 4, 6, 8] and copied[6:] == [0, 0]
        assert gathered == [3, 4, 6, 8, 0.5, 0, 0.5, 1]
        assert scattered[5:] == [0, 0.5, 1]
    assert first[3][:5] == [6, 8, 6, 8, 1] and second[3][:5] == [3, 4, 12, 16, 1]
    assert first[1][4:6] == [1, 1] and second[1][4:6] == [1, 1]


def test_arrays_that_make_no_sense_are_refused(pair: tuple[Any, Any]) -> None:
    data, apart, null = ffi.new("float[8]"), ffi.new("float[8]"), ffi.NULL
    good = (data, data, 4, lib.PCCL_F32)

    def call(*arrays: tuple[Any, Any, int, int], collective: int = 0) -> str:
        made, count = arrays_of(*arrays)
        return refused(lib.pccl_coalesced(pair[0], collective, made, count, 0, null, null))

    assert "at least one array" in call()
    for unknown in (2, 3, 10, 2**31):
        assert "collective" in call(good, collective=unknown)
    assert "dtype" in call(good, (apart, apart, 4, 99))
    assert "lie apart" in call(good, (apart, data + 3, 4, lib.PCCL_F32))
    assert "lie apart" in call(good, good)
    made, count = arrays_of(good, good)
    made[1].reserved = 1
    said = refused(lib.pccl_coalesced(pair[0], 0, made, count, 0, null, null))
    assert "array 1" in said and "reserved" in said
    many = [(null, null, 0, 0)] * 16_385
    assert "too many" in call(*many)
    assert "too many" in call(*many[:8193], collective=lib.PCCL_ALL_GATHER)
    chosen = options("collective_options", codec=lib.PCCL_CODEC_INT8)
    made, count = arrays_of(good, (apart, apart, 4, lib.PCCL_I32))
    said = refused(lib.pccl_coalesced(pair[0], 0, made, count, 0, chosen, null))
    assert "floats" in said and "i32" in said


def test_members_with_other_arrays_have_called_another_operation(pair: tuple[Any, Any]) -> None:
    data = [ffi.new("float[4]") for _ in pair]

    def program(rank: int) -> str:
        sizes = ((1, 3), (3, 1))[rank]
        arrays, count = arrays_of(
            (data[rank], data[rank], sizes[0], lib.PCCL_F32),
            (data[rank] + sizes[0], data[rank] + sizes[0], sizes[1], lib.PCCL_F32),
        )
        answer = lib.pccl_coalesced(pair[rank], 0, arrays, count, 0, ffi.NULL, ffi.NULL)
        return refused(answer, "PCCL_MISMATCH")

    for said in together([functools.partial(program, rank) for rank in range(2)]):
        assert "2 arrays" in said
        assert "arrays[0] and arrays[1] of one are in each other's place at the other" in said


def test_operations_of_every_kind_are_begun_at_once(pair: tuple[Any, Any]) -> None:
    """Goal: the asynchronous forms take what the others do. Method: one tag each, both ranks."""
    data = [[ffi.new("double[4]", [rank + 1.0] * 4) for _ in range(11)] for rank in range(2)]
    made = [[ffi.new("double[8]") for _ in range(11)] for _ in range(2)]
    counts, ranks = counts_of(1, 3)
    begun: list[list[Any]] = []
    for rank, comm in enumerate(pair):
        works = [ffi.new("pccl_work_t **") for _ in range(11)]
        tags = [options("collective_options", tag=80 + index) for index in range(11)]
        recv = made[rank][0] if rank == 1 else ffi.NULL
        kind = lib.PCCL_F64
        check(lib.pccl_reduce_async(comm, data[rank][0], recv, 4, kind, 1, tags[0], works[0]))
        arguments = (data[rank][1], made[rank][1], 2, kind, tags[1], works[1])
        check(lib.pccl_reduce_scatter_async(comm, *arguments))
        shards = (data[rank][2], made[rank][2], counts, ranks, kind, tags[2], works[2])
        check(lib.pccl_reduce_scatter_v_async(comm, *shards))
        arguments = (data[rank][3], made[rank][3], 4, kind, tags[3], works[3])
        check(lib.pccl_all_gather_async(comm, *arguments))
        shards = (data[rank][4], made[rank][4], counts, ranks, kind, tags[4], works[4])
        check(lib.pccl_all_gather_v_async(comm, *shards))
        send = data[rank][5] if rank == 1 else ffi.NULL
        rooted = (send, made[rank][5], 2, kind, 1, tags[5], works[5])
        check(lib.pccl_scatter_async(comm, *rooted))
        send = data[rank][6] if rank == 0 else ffi.NULL
        of_root = (send, made[rank][6], counts, ranks, kind, 0, tags[6], works[6])
        check(lib.pccl_scatter_v_async(comm, *of_root))
        recv = made[rank][7] if rank == 1 else ffi.NULL
        check(lib.pccl_gather_async(comm, data[rank][7], recv, 4, kind, 1, tags[7], works[7]))
        recv = made[rank][8] if rank == 0 else ffi.NULL
        of_root = (data[rank][8], recv, counts, ranks, kind, 0, tags[8], works[8])
        check(lib.pccl_gather_v_async(comm, *of_root))
        arguments = (data[rank][9], made[rank][9], 2, kind, tags[9], works[9])
        check(lib.pccl_all_to_all_async(comm, *arguments))
        arrays, count = arrays_of((data[rank][10], made[rank][10], 4, kind))
        listed = (lib.PCCL_ALL_REDUCE, arrays, count, 0, tags[10], works[10])
        check(lib.pccl_coalesced_async(comm, *listed))
        arrays[0].count = 99  # it is the caller's again
        begun.append(works)
    counts[0] = counts[1] = 99  # they are the caller's again
    for works in begun:
        for work in reversed(works):
            check(lib.pccl_work_wait(work[0], FOREVER))
            lib.pccl_work_destroy(work[0])
    assert list(made[1][0]) == [3.0] * 4 + [0] * 4
    assert list(made[0][0]) == [0.0] * 8
    for rank in range(2):
        own = [2, (1, 3)[rank]]
        for index, length in zip((1, 2), own, strict=True):
            assert list(made[rank][index]) == [3.0] * length + [0] * (8 - length)
        assert list(made[rank][3]) == [1.0] * 4 + [2.0] * 4
        assert list(made[rank][4]) == [1.0] + [2.0] * 3 + [0] * 4
        assert list(made[rank][5]) == [2.0] * 2 + [0] * 6
        assert list(made[rank][6]) == [1.0] * own[1] + [0] * (8 - own[1])
        assert list(made[rank][7]) == ([1.0] * 4 + [2.0] * 4 if rank == 1 else [0] * 8)
        assert list(made[rank][8]) == ([1.0] + [2.0] * 3 + [0] * 4 if rank == 0 else [0] * 8)
        assert list(made[rank][9]) == [1.0] * 2 + [2.0] * 2 + [0] * 4
        assert list(made[rank][10]) == [3.0] * 4 + [0] * 4


def test_nothing_is_reduced_and_gathered_without_buffers(pair: tuple[Any, Any]) -> None:
    """Counts of 0 need no memory, and all members still meet."""
    null = ffi.NULL

    def program(rank: int) -> None:
        comm, (none, ranks) = pair[rank], counts_of(0, 0)
        check(lib.pccl_reduce(comm, null, null, 0, 0, 0, null, null))
        check(lib.pccl_reduce_scatter(comm, null, null, 0, 0, null, null))
        check(lib.pccl_all_gather(comm, null, null, 0, 0, null, null))
        check(lib.pccl_reduce_scatter_v(comm, null, null, none, ranks, 0, null, null))
        check(lib.pccl_all_gather_v(comm, null, null, none, ranks, 0, null, null))
        check(lib.pccl_scatter(comm, null, null, 0, 0, 0, null, null))
        check(lib.pccl_scatter_v(comm, null, null, none, ranks, 0, 1, null, null))
        check(lib.pccl_gather(comm, null, null, 0, 0, 0, null, null))
        check(lib.pccl_gather_v(comm, null, null, none, ranks, 0, 1, null, null))
        check(lib.pccl_all_to_all(comm, null, null, 0, 0, null, null))
        message = (lib.pccl_send, lib.pccl_recv)[rank]
        check(message(comm, null, 0, 0, 1 - rank, null, null))
        # A rank whose shard is empty sends or receives nothing.
        whole, (some, ranks) = ffi.new("float[2]", [1, 2]), counts_of(0, 2)
        shard = whole if rank == 1 else null
        gathered = ffi.new("float[2]")
        check(lib.pccl_all_gather_v(comm, shard, gathered, some, ranks, 0, null, null))
        assert list(gathered) == [1, 2]
        shard = ffi.new("float[2]") if rank == 1 else null
        check(lib.pccl_reduce_scatter_v(comm, whole, shard, some, ranks, 0, null, null))
        assert rank == 0 or list(shard) == [2, 4]

    together([functools.partial(program, rank) for rank in range(2)])


def test_ranges_list_their_contributors(pair: tuple[Any, Any]) -> None:
    members = ffi.new("pccl_peer_id_t[2]")
    assert lib.pccl_comm_members(pair[0], members, 2) == 2
    with finished(pair) as work:
        outcome, part = options("outcome"), options("outcome_range")
        check(lib.pccl_work_outcome(work, outcome))
        assert (outcome.attempts, outcome.range_count) == (1, 1)
        ids = ffi.new("pccl_peer_id_t[2]")
        check(lib.pccl_work_range(work, 0, part, ids, 2))
        assert (part.begin, part.end, part.contributor_count) == (0, 4, 2)
        assert bytes(ffi.buffer(ids)) == bytes(ffi.buffer(members))
        ffi.memmove(ids, b"\xa5" * 32, 32)
        check(lib.pccl_work_range(work, 0, part, ids, 1))
        assert bytes(ffi.buffer(ids))[16:] == b"\xa5" * 16
        for index in (1, 2**32 - 1):
            assert "range" in refused(lib.pccl_work_range(work, index, part, ids, 2))


def test_a_work_is_finished_in_one_call(pair: tuple[Any, Any]) -> None:
    """Goal: it tells what wait, outcome and range tell, and is freed when it has told all."""
    members, ids = ffi.new("pccl_peer_id_t[2]"), ffi.new("pccl_peer_id_t[2]")
    assert lib.pccl_comm_members(pair[0], members, 2) == 2
    outcome, part = options("outcome"), options("outcome_range")
    works, data = [ffi.new("pccl_work_t **") for _ in pair], ffi.new("float[2][8]")

    def begin(rank: int, count: int) -> None:
        mine, tag = data[rank], options("collective_options", tag=90)
        check(lib.pccl_all_reduce_async(pair[rank], mine, mine, count, 0, tag, works[rank]))

    def finish(rank: int, capacity: int, timeout_ns: int = FOREVER) -> int:
        work = works[rank]
        return int(lib.pccl_work_finish(work, timeout_ns, outcome, part, ids, capacity))

    begin(0, 4)
    refused(finish(0, 2, 0), "PCCL_TIMEOUT")
    assert works[0][0] != ffi.NULL
    begin(1, 4)
    for null in ((ffi.NULL, part), (outcome, ffi.NULL)):
        assert "NULL" in refused(lib.pccl_work_finish(works[0], FOREVER, *null, ids, 2))
    check(finish(0, 2))
    assert (works[0][0], outcome.tag, outcome.range_count) == (ffi.NULL, 90, 1)
    assert (part.begin, part.end, part.contributor_count) == (0, 4, 2)
    assert bytes(ffi.buffer(ids)) == bytes(ffi.buffer(members))
    # One contributor has no room.
    ffi.memmove(ids, b"\xa5" * 32, 32)
    check(finish(1, 1))
    assert bytes(ffi.buffer(ids))[16:] == b"\xa5" * 16
    check(lib.pccl_work_range(works[1][0], 0, part, ids, 2))
    check(finish(1, 2))
    assert works[1][0] == ffi.NULL
    # Nothing to contribute to.
    for rank in range(2):
        begin(rank, 0)
    for rank in range(2):
        check(finish(rank, 0))
        assert (works[rank][0], outcome.range_count) == (ffi.NULL, 0)
        assert (part.begin, part.end, part.contributor_count) == (0, 0, 0)
    # A range for each shard: the first alone is told.
    for rank in range(2):
        sent = data[rank] + rank
        check(lib.pccl_all_gather_async(pair[rank], sent, data[rank], 1, 0, ffi.NULL, works[rank]))
    for rank in range(2):
        check(finish(rank, 2))
        assert (outcome.range_count, part.end, part.contributor_count) == (2, 1, 1)
        check(lib.pccl_work_range(works[rank][0], 1, part, ids, 2))
        assert (part.begin, part.end) == (1, 2)
        lib.pccl_work_destroy(works[rank][0])


def test_a_work_in_flight_says_so_and_can_be_withdrawn() -> None:
    """Its peer leaves the group with it, so these two are of no further use."""
    with two_ranks() as pair:
        withdraw_one_in_flight(pair)


def withdraw_one_in_flight(pair: tuple[Any, Any]) -> None:
    tag = options("collective_options", tag=50)
    work = ffi.new("pccl_work_t **")
    data = ffi.new("double[2]", [1, 2])
    check(lib.pccl_all_reduce_async(pair[0], data, data, 2, lib.PCCL_F64, tag, work))
    finished_now = ffi.new("int *", 7)
    check(lib.pccl_work_poll(work[0], finished_now))
    assert finished_now[0] == 0
    refused(lib.pccl_work_wait(work[0], 0), "PCCL_TIMEOUT")
    refused(lib.pccl_work_outcome(work[0], options("outcome")), "PCCL_INVALID_USAGE")
    refused(lib.pccl_work_resolve(work[0], 0, 1), "PCCL_INVALID_USAGE")
    other = ffi.new("pccl_work_t **")
    said = refused(lib.pccl_barrier_async(pair[0], tag, other), "PCCL_INVALID_USAGE")
    assert "50" in said
    check(lib.pccl_work_cancel(work[0]))
    refused(lib.pccl_work_wait(work[0], FOREVER), "PCCL_CANCELLED")
    ended = FOREVER, options("outcome"), options("outcome_range"), ffi.NULL, 0
    refused(lib.pccl_work_finish(work, *ended), "PCCL_CANCELLED")
    assert work[0] != ffi.NULL
    check(lib.pccl_work_cancel(work[0]))
    refused(lib.pccl_work_outcome(work[0], options("outcome")), "PCCL_INVALID_USAGE")
    lib.pccl_work_destroy(work[0])
    assert list(data) == [1, 2]
    # The same call goes on without it. Any other on this tag is a mismatch where the coordinator
    # hears of it before it hears of the withdrawal, so the one from that rank has its own tag.
    check(lib.pccl_all_reduce_async(pair[1], data, data, 2, lib.PCCL_F64, tag, other))
    check(lib.pccl_work_wait(other[0], FOREVER))
    lib.pccl_work_destroy(other[0])
    assert list(data) == [1, 2]
    tag.tag = 51
    check(lib.pccl_broadcast_async(pair[1], data, 2, lib.PCCL_F64, 0, tag, other))
    refused(lib.pccl_work_wait(other[0], FOREVER), "PCCL_ABORTED")
    lib.pccl_work_destroy(other[0])


def test_a_callback_runs_once_when_the_work_is_finished(pair: tuple[Any, Any]) -> None:
    """From a thread of the library, or at once if it is finished; the last one given counts."""
    called: list[str] = []
    finished_one = threading.Event()

    @ffi.callback("void(void *)")
    def finished_callback(context: Any) -> None:
        called.append(ffi.from_handle(context))
        finished_one.set()

    first, second, late = (ffi.new_handle(name) for name in ("first", "second", "late"))
    tag = options("collective_options", tag=60)
    works = [ffi.new("pccl_work_t **") for _ in pair]
    check(lib.pccl_barrier_async(pair[0], tag, works[0]))
    check(lib.pccl_work_notify(works[0][0], finished_callback, first))
    check(lib.pccl_work_notify(works[0][0], finished_callback, second))
    assert called == []
    check(lib.pccl_barrier_async(pair[1], tag, works[1]))
    assert finished_one.wait(30)
    assert called == ["second"]
    check(lib.pccl_work_wait(works[0][0], 0))
    check(lib.pccl_work_notify(works[0][0], finished_callback, late))
    assert called == ["second", "late"]
    for work in works:
        check(lib.pccl_work_wait(work[0], FOREVER))
        lib.pccl_work_destroy(work[0])


def test_a_destroyed_work_is_withdrawn_and_its_callback_runs_before_or_never() -> None:
    """Its peer leaves the group with it, so these two are of no further use."""
    with two_ranks() as pair:
        destroy_one_in_flight(pair)


def destroy_one_in_flight(pair: tuple[Any, Any]) -> None:
    called: list[bool] = []
    destroyed = threading.Event()

    @ffi.callback("void(void *)")
    def finished_callback(context: Any) -> None:
        called.append(destroyed.is_set())

    tag = options("collective_options", tag=70)
    work, data = ffi.new("pccl_work_t **"), ffi.new("float[4]")
    check(lib.pccl_all_reduce_async(pair[0], data, data, 4, 0, tag, work))
    check(lib.pccl_work_notify(work[0], finished_callback, ffi.NULL))
    lib.pccl_work_destroy(work[0])
    destroyed.set()
    check(lib.pccl_all_reduce(pair[1], data, data, 4, 0, tag, ffi.NULL))
    refused(lib.pccl_all_reduce(pair[0], data, data, 4, 0, tag, ffi.NULL), "PCCL_EXPELLED")
    assert called in ([], [False])


def tensors(*parts: tuple[bytes, Any, list[int], int, int]) -> tuple[Any, list[Any]]:
    """An array of tensors, and what must be kept alive for it."""
    made, kept = ffi.new("pccl_tensor_t[]", len(parts)), []
    for tensor, (name, data, shape, dtype, flags) in zip(made, parts, strict=True):
        kept += [ffi.new("char[]", name), ffi.new("uint64_t[]", shape), data]
        tensor.name, tensor.shape, tensor.data = kept[-3], kept[-2], data
        tensor.dimensions, tensor.dtype, tensor.flags = len(shape), dtype, flags
    return made, kept


def test_a_shared_state_from_create_to_destroy(pair: tuple[Any, Any]) -> None:
    floats = [ffi.new("float[6]", [rank] * 6) for rank in range(2)]
    own = [ffi.new("int8_t[2]", [rank] * 2) for rank in range(2)]
    outcomes = [options("sync_outcome") for _ in pair]

    def program(rank: int) -> None:
        parts, kept = tensors(
            (b"weights", floats[rank], [2, 3], lib.PCCL_F32, 0),
            (b"own", own[rank], [2], lib.PCCL_I8, lib.PCCL_TENSOR_MAY_DIFFER),
            (b"empty", ffi.NULL, [0, 4], lib.PCCL_F64, 0),
            (b"scalar", floats[rank] + 0 if rank > 1 else ffi.NULL, [0], lib.PCCL_F32, 0),
        )
        name = ffi.new("char[]", b"model")
        given = options(
            "state_options", name=name, tensors=parts, tensor_count=4, revision=10 * rank
        )
        made, revision = ffi.new("pccl_state_t **"), ffi.new("uint64_t *")
        check(lib.pccl_state_create(pair[rank], given, made))
        del parts, kept[:2], name, given  # copied
        check(lib.pccl_state_revision(made[0], revision))
        assert revision[0] == 10 * rank
        check(lib.pccl_state_sync(made[0], ffi.NULL, outcomes[rank]))
        check(lib.pccl_state_revision(made[0], revision))
        assert revision[0] == outcomes[rank].revision == 11
        chosen = options("sync_options", strategy=lib.PCCL_RECEIVE_ONLY, deadline_ns=30 * SECOND)
        status = lib.pccl_state_sync(made[0], chosen, ffi.NULL)
        refused(status, "PCCL_STATE_UNAVAILABLE")
        check(lib.pccl_state_close(made[0]))
        check(lib.pccl_state_close(made[0]))  # idempotent
        refused(lib.pccl_state_sync(made[0], ffi.NULL, ffi.NULL), "PCCL_CANCELLED")
        lib.pccl_state_destroy(made[0])

    together([lambda: program(0), lambda: program(1)])
    assert [list(array) for array in floats] == [[1.0] * 6] * 2
    assert [list(array) for array in own] == [[0, 0], [1, 1]]
    assert [outcome.leaves_moved for outcome in outcomes] == [1, 0]
    assert outcomes[0].bytes_received == outcomes[1].bytes_sent == 24
    assert outcomes[0].hash_bytes_received == outcomes[1].hash_bytes_sent == 32
    assert (outcomes[0].sources, outcomes[1].sources) == (1, 0)
    for outcome in outcomes:
        assert outcome.elected_revision == 10
        assert (outcome.contributor_count, outcome.holder_count) == (2, 1)


def test_a_sync_names_its_contributors_and_takes_a_revision(pair: tuple[Any, Any]) -> None:
    room = 2

    def program(rank: int) -> None:
        rules = lib.PCCL_STATE_SUCCESSIVE | lib.PCCL_STATE_REFUSE | lib.PCCL_STATE_ONE_SENDER
        data = ffi.new("float[6]", [rank] * 6)
        parts, kept = tensors((b"x", data, [6], lib.PCCL_F32, 0))
        given = options("state_options", tensors=parts, tensor_count=1, flags=rules)
        made = ffi.new("pccl_state_t **")
        check(lib.pccl_state_create(pair[rank], given, made))
        ids, held = ffi.new("pccl_peer_id_t[]", room + 1), ffi.new("uint8_t[]", b"\xa5" * 3)
        chosen = options(
            "sync_options",
            strategy=lib.PCCL_RECEIVE_ONLY if rank == 1 else lib.PCCL_SEND_ONLY,
            flags=lib.PCCL_SYNC_AT_REVISION,
            revision=40 + rank,
            contributors=ids,
            holders=held,
            capacity=room,
        )
        outcome = options("sync_outcome")
        check(lib.pccl_state_sync(made[0], chosen, outcome))
        assert (outcome.elected_revision, outcome.revision) == (40, 41)
        members = ffi.new("pccl_peer_id_t[]", room)
        assert lib.pccl_comm_members(pair[rank], members, room) == room
        assert bytes(ffi.buffer(ids, 32)) == bytes(ffi.buffer(members))
        assert bytes(ffi.buffer(held, 4)) == b"\x01\x00\xa5\x00"
        assert list(data) == [0.0] * 6
        # No more than there is room for, and no place where none is given.
        chosen.revision, chosen.capacity, chosen.holders = 41, 1, ffi.NULL
        ffi.buffer(ids)[:] = b"\xa5" * (16 * (room + 1))
        check(lib.pccl_state_sync(made[0], chosen, outcome))
        assert bytes(ffi.buffer(ids, 32)) == bytes(ffi.buffer(members, 16)) + b"\xa5" * 16
        chosen.revision = 2**62
        assert "2**62" in refused(lib.pccl_state_sync(made[0], chosen, ffi.NULL))
        chosen.flags = 2
        assert "flags" in refused(lib.pccl_state_sync(made[0], chosen, ffi.NULL))
        chosen.flags, chosen.revision = 0, 7
        assert "without the flag" in refused(lib.pccl_state_sync(made[0], chosen, ffi.NULL))
        lib.pccl_state_destroy(made[0])
        assert kept

    together([lambda: program(0), lambda: program(1)])


def test_tensors_and_strategies_that_make_no_sense_are_refused(pair: tuple[Any, Any]) -> None:
    data, made = ffi.new("float[4]"), ffi.new("pccl_state_t **")

    def create(*parts: tuple[bytes, Any, list[int], int, int], **changed: Any) -> str:
        given, kept = tensors(*parts)
        for field, value in changed.items():
            setattr(given[0], field, value)
        chosen = options("state_options", tensors=given, tensor_count=len(parts))
        said = refused(lib.pccl_state_create(pair[0], chosen, made))
        assert kept
        return said

    good = (b"x", data, [4], lib.PCCL_F32, 0)
    assert "dtype 77" in create(good, dtype=77)
    assert "flags" in create(good, flags=2)
    assert "zeroed" in create(good, reserved=1)
    assert "shape" in create(good, shape=ffi.NULL)
    assert "dimensions" in create(good, dimensions=33)
    assert "name of tensor 0" in create(good, name=ffi.NULL)
    assert "no memory" in create(good, data=ffi.NULL)
    assert "overlaps" in create(good, (b"y", data + 1, [1], lib.PCCL_F32, 0))
    assert '"x"' in create(good, (b"x", data + 9, [1], lib.PCCL_F32, 0))
    assert "larger than memory" in create((b"x", data, [2**40, 2**40], lib.PCCL_F32, 0))
    for field in ("flags", "reserved"):
        unknown = options("state_options", **{field: 32})
        assert "flags" in refused(lib.pccl_state_create(pair[0], unknown, made))
    too_many = options("state_options", tensors=tensors(good)[0], tensor_count=65537)
    assert "65536" in refused(lib.pccl_state_create(pair[0], too_many, made))
    check(lib.pccl_state_create(pair[0], ffi.NULL, made))  # no tensors: a revision
    chosen = options("sync_options", strategy=3)
    assert "strategy 3" in refused(lib.pccl_state_sync(made[0], chosen, ffi.NULL))
    lib.pccl_state_destroy(made[0])
    for first in (254, 255):
        tag = options("collective_options", tag=first << 56)
        assert "tag" in refused(lib.pccl_barrier(pair[0], tag, ffi.NULL))


def test_log_events_come_one_by_one_and_are_cut_to_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Events are the process's: where an earlier file has used pccl_py, its thread takes them too.
    monkeypatch.setattr(_pccl, "log_next", lambda: None)
    level, message = ffi.new("pccl_log_level_t *"), ffi.new("char[]", b"\xa5" * 512)
    with coordinator() as running:
        comm = connect(lib.pccl_coordinator_token(running))
        lib.pccl_comm_destroy(comm)
    seen = []
    while lib.pccl_log_next(level, message, 12) == lib.PCCL_OK:
        assert level[0] in range(4)
        assert len(text(message)) <= 11
        assert bytes(ffi.buffer(message))[12:13] == b"\xa5"
        seen.append(text(message))
    assert seen
    assert lib.pccl_log_next(level, message, 512) == lib.PCCL_TIMEOUT


def test_kernels_are_measured_on_memory_of_the_caller() -> None:
    names: list[str] = []
    while (name := lib.pccl_kernel_name(len(names))) != ffi.NULL:
        names.append(text(name))
    assert "encode/int8_rotated" in names and len(set(names)) == len(names)
    count = 4096
    assert lib.pccl_kernel_memory(count + 1) == 0
    memory = ffi.new("char[]", lib.pccl_kernel_memory(count))
    taken = ffi.new("uint64_t *")
    for what in (lib.PCCL_KERNEL_PREPARE, lib.PCCL_KERNEL_RUN, lib.PCCL_KERNEL_SKELETON):
        check(lib.pccl_kernel_run(b"ring/int4", what, memory, count, 200, taken))
        assert taken[0] > 0
    run = lib.PCCL_KERNEL_RUN
    assert "nothing" in refused(lib.pccl_kernel_run(b"nothing", run, memory, count, 1, taken))
    assert "4096" in refused(lib.pccl_kernel_run(b"ring/int4", run, memory, 5, 1, taken))
    assert "name" in refused(lib.pccl_kernel_run(ffi.NULL, run, memory, count, 1, taken))
    assert "memory" in refused(lib.pccl_kernel_run(b"ring/int4", run, ffi.NULL, count, 1, taken))
    assert "duration" in refused(lib.pccl_kernel_run(b"digest", run, memory, count, 1, ffi.NULL))


def test_two_workers_take_an_outer_step() -> None:
    """DiLoCo's round without a network: 1 - 0.5 and 1 - 3 have the average -0.75."""
    outer, momentum, average = (ffi.new("float[]", [x] * 3) for x in (1, 0.5, 0))
    differences, squares = [ffi.new("float[3]") for _ in range(2)], ffi.new("double *")
    for worker, difference in zip(([0.5] * 3, [3.0] * 3), differences, strict=True):
        parameters = ffi.new("float[]", worker)
        of = lib.pccl_outer_difference
        check(of(outer, parameters, lib.PCCL_F32, 3, difference, squares))
    assert squares[0] == 12
    for index in range(3):
        average[index] = (differences[0][index] + differences[1][index]) / 2
    nesterov = options("outer_options", rule=lib.PCCL_OUTER_NESTEROV, scale=1)
    nesterov.learning_rate, nesterov.momentum = 0.5, 0.5
    check(lib.pccl_outer_step(outer, momentum, ffi.NULL, average, 3, nesterov))
    assert list(momentum) == [-0.5] * 3
    assert list(outer) == [1 - 0.5 * (-0.75 + 0.5 * -0.5)] * 3
    half = ffi.new("uint16_t[]", [0x4000] * 3)  # 2
    check(lib.pccl_outer_mix(half, lib.PCCL_F16, outer, 3, 0.5))
    assert list(half) == [0x3F00] * 3  # 1.75
    assert "alpha" in refused(lib.pccl_outer_mix(half, lib.PCCL_F16, outer, 3, 2))


def test_a_sparse_piece_is_added_where_it_was_taken() -> None:
    values = ffi.new("float[]", [0, 0, -5, 1, 3])
    two = options("sparse_options", kept=2, chunk=4)
    piece = ffi.new("char[]", lib.pccl_sparse_bytes(two, 5))
    check(lib.pccl_sparse_encode(values, 5, two, piece))
    check(lib.pccl_sparse_add(values, ffi.NULL, 5, two, piece, -1))
    assert list(values) == [0] * 5
    weights = ffi.new("float[]", 5)
    check(lib.pccl_sparse_add(ffi.new("float[]", 5), weights, 5, two, piece, 0.5))
    assert list(weights) == [0, 0, 0.5, 0.5, 0.5]
    assert lib.pccl_sparse_bytes(options("sparse_options", chunk=5000), 5) == 0
    ffi.memmove(piece, b"\xff" * len(piece), len(piece))
    assert "place" in refused(lib.pccl_sparse_add(values, ffi.NULL, 5, two, piece, 1))
    assert list(values) == [0] * 5


def test_a_doubt_is_resolved_when_the_decision_is_known(pair: tuple[Any, Any]) -> None:
    """A barrier votes as it calls, so a cancel comes too late for it."""
    works = [ffi.new("pccl_work_t **") for _ in pair]
    tag = options("collective_options", tag=51)
    fd = ffi.new("int *", -1)
    check(lib.pccl_barrier_async(pair[0], tag, works[0]))
    check(lib.pccl_work_fd(works[0][0], fd))
    assert select.select([fd[0]], [], [], 0)[0] == []
    check(lib.pccl_work_cancel(works[0][0]))
    assert select.select([fd[0]], [], [], 0)[0] == [fd[0]]
    refused(lib.pccl_work_wait(works[0][0], 0), "PCCL_IN_DOUBT")
    refused(lib.pccl_work_resolve(works[0][0], 0, 1), "PCCL_TIMEOUT")
    refused(lib.pccl_work_outcome(works[0][0], options("outcome")), "PCCL_INVALID_USAGE")
    check(lib.pccl_barrier_async(pair[1], tag, works[1]))
    check(lib.pccl_work_wait(works[1][0], FOREVER))
    check(lib.pccl_work_resolve(works[0][0], FOREVER, 1))
    outcome = options("outcome")
    check(lib.pccl_work_outcome(works[0][0], outcome))
    assert outcome.tag == 51
    refused(lib.pccl_work_wait(works[0][0], 0), "PCCL_IN_DOUBT")  # as often as it is called
    for work in works:
        lib.pccl_work_destroy(work[0])
