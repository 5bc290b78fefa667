"""kernels: each kernel on one thread, in cache and in memory, against its limit and its rivals.

The limit is a loop with the same loads and stores and no arithmetic (kernels/skeleton.zig); a rival
is what an installed library offers for the same: NumPy, torch, pypiquant, ml_dtypes, xxhash,
blake3. All take turns, round by round; values are medians, in bytes of f32 per second of processor
time, so that what else runs on the machine counts less. docs/internals/KERNELS.md has the numbers
of one machine.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import common
from bench.common import MIB, Row
from bench.report import Report, comparison
from pccl_py import measure

BENCH = "kernels"
METRIC = "bytes_per_second"
SIZES = [MIB, 64 * MIB]
QUICK_SIZES = [MIB]
ROUNDS, QUICK_ROUNDS = 15, 2
SINGLE_NS = 2_000_000

Call = Callable[[], object]


class Rivals:
    """The work of the installed libraries on arrays of `size` bytes of f32."""

    def __init__(self, size: int) -> None:
        generator = np.random.default_rng(1)
        self.a = generator.standard_normal(size // 4, dtype=np.float32)
        self.b = generator.standard_normal(size // 4, dtype=np.float32)

    def of(self, kernel: str) -> dict[str, Call]:
        """The rivals of a kernel by name; those whose library is missing are left out."""
        makers = {
            "sum/f32": (self.numpy_sum, self.torch_sum),
            "sum_of_8/f32": (self.torch_sums,),
            "convert/f32_to_f16": (self.torch_cast("float16"),),
            "convert/f32_to_bf16": (self.torch_cast("bfloat16"), self.ml_dtypes_cast("bfloat16")),
            "convert/f32_to_fp8_e4m3": (
                self.torch_cast("float8_e4m3fn"),
                self.ml_dtypes_cast("float8_e4m3fn"),
            ),
            "encode/fp8_e4m3": (
                self.torch_cast("float8_e4m3fn"),
                self.ml_dtypes_cast("float8_e4m3fn"),
            ),
            "encode/int8": (self.piquant_encode("uint8"),),
            "encode/min_max_u8": (self.piquant_encode("uint8"),),
            "encode/int8_stochastic": (self.piquant_encode("uint8", stochastic=True),),
            "encode/int4": (self.piquant_encode("uint4"),),
            "add/int8": (self.piquant_add("uint8"),),
            "add/int4": (self.piquant_add("uint4"),),
            "ring/int8": (self.piquant_ring,),
            "digest": (self.xxhash_digest,),
            "blake3": (self.blake3_digest,),
        }
        found: dict[str, Call] = {}
        for make in makers.get(kernel, ()):
            try:
                name, call = make()
            except ImportError:
                continue
            found[name] = call
        return found

    def numpy_sum(self) -> tuple[str, Call]:
        return "numpy", lambda: np.add(self.a, self.b, out=self.a)

    def torch_sum(self) -> tuple[str, Call]:
        torch = _torch()
        a, b = torch.from_numpy(self.a), torch.from_numpy(self.b)
        return "torch", lambda: a.add_(b)

    def torch_sums(self) -> tuple[str, Call]:
        torch = _torch()
        inputs = [torch.from_numpy(self.b.copy()) for _ in range(8)]
        out = torch.from_numpy(self.a)

        def call() -> None:
            out.copy_(inputs[0])
            for other in inputs[1:]:
                out.add_(other)

        return "torch", call

    def torch_cast(self, name: str) -> Callable[[], tuple[str, Call]]:
        def make() -> tuple[str, Call]:
            torch = _torch()
            a = torch.from_numpy(self.a)
            out = torch.empty(a.shape, dtype=getattr(torch, name))
            return "torch", lambda: out.copy_(a)

        return make

    def ml_dtypes_cast(self, name: str) -> Callable[[], tuple[str, Call]]:
        def make() -> tuple[str, Call]:
            out = np.empty(self.a.shape, dtype=getattr(importlib.import_module("ml_dtypes"), name))
            return "ml_dtypes", lambda: np.copyto(out, self.a, casting="unsafe")

        return make

    def piquant_encode(
        self, name: str, *, stochastic: bool = False
    ) -> Callable[[], tuple[str, Call]]:
        def make() -> tuple[str, Call]:
            encode, _ = self._piquant(name, stochastic=stochastic)
            return "pypiquant", encode

        return make

    def piquant_add(self, name: str) -> Callable[[], tuple[str, Call]]:
        def make() -> tuple[str, Call]:
            encode, add = self._piquant(name)
            encode()
            return "pypiquant", add

        return make

    def piquant_ring(self) -> tuple[str, Call]:
        encode, add = self._piquant("uint8")

        def call() -> None:
            add()
            encode()

        encode()
        return "pypiquant", call

    def _piquant(self, name: str, *, stochastic: bool = False) -> tuple[Call, Call]:
        """The whole encoding, parameters included, and decoding added to an array."""
        piquant = importlib.import_module("piquant")
        context = piquant.Context(1)
        kinds = piquant.DataType
        codes = np.empty(self.a.size, dtype=np.uint8)
        kind = getattr(kinds, name.upper(), None) or getattr(kinds, name)
        f32 = getattr(kinds, "F32", None) or kinds.FLOAT32
        mode = piquant.RoundMode.STOCHASTIC if stochastic else piquant.RoundMode.NEAREST
        a, b = self.a.ctypes.data, self.b.ctypes.data
        count = self.a.size
        params: list[Any] = list(context.compute_quant_params_ptr_float32(a, kind, count))

        def encode() -> None:
            params[:] = context.compute_quant_params_ptr_float32(a, kind, count)
            context.quantize_ptr(a, f32, codes.ctypes.data, kind, count, *params, mode)

        def add() -> None:
            sums = piquant.ReduceOp.ADD
            context.dequantize_ptr(codes.ctypes.data, kind, b, f32, count, *params, sums)

        return encode, add

    def xxhash_digest(self) -> tuple[str, Call]:
        xxhash = importlib.import_module("xxhash")
        data = self.a.view(np.uint8).data
        return "xxhash", lambda: xxhash.xxh3_128_digest(data)

    def blake3_digest(self) -> tuple[str, Call]:
        blake3 = importlib.import_module("blake3")
        data = self.a.view(np.uint8)
        return "blake3", lambda: blake3.blake3(data, max_threads=1).digest()


def _torch() -> Any:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    return torch


def timed(call: Call) -> Callable[[int], int]:
    """Nanoseconds of processor time of one call, taken over as many as make a round."""
    call()
    begin = time.process_time_ns()
    call()
    repeats = max(1, SINGLE_NS // max(1, time.process_time_ns() - begin))

    def run(_: int) -> int:
        begin = time.process_time_ns()
        for _ in range(repeats):
            call()
        return (time.process_time_ns() - begin) // repeats

    return run


def rows_of(name: str, measurement: measure.Measurement, rivals: Rivals, rounds: int) -> list[Row]:
    """A row against the limit, and one against each rival."""
    case = f"{name}/{common.size_name(measurement.size)}"
    rate = measurement.rate(name, rounds=rounds)
    rows = [Row(BENCH, case, METRIC, rate.kernel, "B/s", "skeleton", rate.skeleton)]
    for rival, call in rivals.of(name).items():
        rate = measurement.rate(name, rounds=rounds, other=timed(call))
        rows.append(Row(BENCH, case, METRIC, rate.kernel, "B/s", rival, rate.other))
    return rows


def run(sizes: list[int] | None, match: str, *, quick: bool, as_json: bool, out: Path) -> list[Row]:
    """Measures, prints and writes kernels.jsonl into `out`."""
    names = [name for name in measure.kernel_names() if match in name]
    rounds = QUICK_ROUNDS if quick else ROUNDS
    report = Report(BENCH, out, as_json=as_json)
    for size in sizes or (QUICK_SIZES if quick else SIZES):
        measurement, rivals = measure.Measurement(size), Rivals(size)
        for name in names:
            report.add(rows_of(name, measurement, rivals, rounds))
    return report.finish(comparison("Kernels, one thread, GB/s of f32", report.rows, 1))
