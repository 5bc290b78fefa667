"""state_hash: how fast a peer hashes its shared state, against BLAKE3's own wheel and memory.

It measures the time that a sync spends on it: a world of one with a state of one array syncs again
and again, and says how long hashing took (`SyncOutcome.hash_duration`). Once on one core, once on
all that this process may use. Beside it, on the same cores and the same bytes, taking turns:

    blake3       the package blake3 (the reference implementation in Rust), where it is installed
    memory_read  NumPy reading the array once with as many threads, which is the ceiling

Values are medians, in bytes per second.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import pccl_py as pccl
from bench import common
from bench.common import MIB, Row
from bench.report import Report, comparison

BENCH = "hash"
METRIC = "bytes_per_second"
SIZES = [16 * MIB, 256 * MIB]
QUICK_SIZES = [4 * MIB]
SAMPLES, QUICK_SAMPLES = 11, 2
THREADS_MAX = 8  # of a sync

Words = NDArray[np.uint64]


def seconds_of(call: Callable[[], object]) -> float:
    """How long the call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def read(words: Words, pool: ThreadPoolExecutor, threads: int) -> None:
    """Reads every word once, in equal parts."""
    list(pool.map(np.bitwise_or.reduce, np.array_split(words, threads)))


def reference(words: Words, threads: int) -> Callable[[], object] | None:
    """Hashes the array with the package blake3; None where it is not installed."""
    if importlib.util.find_spec("blake3") is None:
        return None
    import blake3  # type: ignore[import-not-found,unused-ignore]  # optional

    return lambda: blake3.blake3(words.view(np.uint8).data, max_threads=threads).digest()


def measure(comm: pccl.Communicator, size: int, threads: int, samples: int) -> list[Row]:
    """Rows of one size on the cores that this process is pinned to."""
    words = np.arange(size // 8, dtype=np.uint64)
    taken: dict[str, list[float]] = {"ours": [], "blake3": [], "memory_read": []}
    theirs = reference(words, threads)
    with (
        comm.shared_state({"words": words}, name=f"{size} {threads}") as state,
        ThreadPoolExecutor(threads) as pool,
    ):
        for _ in range(samples):
            taken["ours"].append(state.sync().hash_duration)
            taken["memory_read"].append(seconds_of(lambda: read(words, pool, threads)))
            if theirs is not None:
                taken["blake3"].append(seconds_of(theirs))
    rate = {name: size / statistics.median(values) for name, values in taken.items() if values}
    case = f"state/{threads} threads/{common.size_name(size)}"
    return [
        Row(BENCH, case, METRIC, rate["ours"], "B/s", name, rate[name])
        for name in ("blake3", "memory_read")
        if name in rate
    ]


def run(*, quick: bool, as_json: bool, out: Path) -> list[Row]:
    """Measures, prints and writes hash.jsonl into `out`."""
    allowed = os.sched_getaffinity(0)
    report = Report(BENCH, out, as_json=as_json)
    with pccl.LocalWorld(1) as world:
        for cores in ({min(allowed)}, allowed):
            os.sched_setaffinity(0, cores)
            try:
                for size in QUICK_SIZES if quick else SIZES:
                    samples = QUICK_SAMPLES if quick else SAMPLES
                    threads = min(len(cores), THREADS_MAX)
                    report.add(measure(world.comms[0], size, threads, samples))
            finally:
                os.sched_setaffinity(0, allowed)
            if len(allowed) == 1:
                break
    return report.finish(comparison("Hashing shared state, GB/s", report.rows, 2))
