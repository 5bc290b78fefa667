"""`pccl bench all_reduce` and its like: what is printed, by whom; wrong results are errors.

No test here looks at how fast anything is.
"""

from __future__ import annotations

import ctypes
import json
import math
import signal
import sys
from typing import Any

import pytest

import pccl_py as pccl
from pccl_py import measure_collectives
from pccl_py.cli import bench
from pccl_py.measure_collectives import COLLECTIVES, REDUCING, TRAFFIC, Benchmark, Pattern
from pccl_py.words import DType

CLI = "pccl_py.cli"
# Not a multiple of the period of the pattern, nor of the chunks.
SIZES = (64, 1_000_000)


def run_bench(world: pccl.LocalWorld, collective: str, size: int, **options: Any) -> Any:
    def measure(comm: pccl.Communicator) -> measure_collectives.Result:
        benchmark = Benchmark(comm, collective, size_max=size, **options)
        return benchmark.measure(size, iterations=2, warmup=1)

    results = world.run(measure)
    assert len(set(results)) == 1, "all peers have the same"
    return results[0]


@pytest.fixture(scope="module")
def world() -> Any:
    with pccl.LocalWorld(3) as world:
        yield world


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_each_collective_is_measured_and_right(
    world: pccl.LocalWorld, collective: str, size: int
) -> None:
    result = run_bench(world, collective, size)
    result.check()
    assert result.wrong == 0 and result.seconds > 0
    assert size - 12 < result.size == 4 * result.count <= size
    assert result.algorithm_bandwidth == result.size / result.seconds
    expected = result.algorithm_bandwidth * TRAFFIC[collective](3)
    assert result.bus_bandwidth == pytest.approx(expected)


@pytest.mark.parametrize("dtype", list(DType))
def test_each_dtype_is_measured_and_right(world: pccl.LocalWorld, dtype: DType) -> None:
    for collective in ("all_reduce", "all_to_all"):
        result = run_bench(world, collective, 300_000, dtype=dtype)
        result.check()
        assert (result.dtype, result.wrong) == (dtype.name.lower(), 0)


@pytest.mark.parametrize("codec", list(pccl.CodecKind)[1:])
def test_each_codec_is_measured_and_what_it_loses_is_told(
    world: pccl.LocalWorld, codec: pccl.CodecKind
) -> None:
    for collective in ("all_reduce", "gather"):
        result = run_bench(world, collective, 300_000, codec=codec)
        result.check()
        if codec in (pccl.CodecKind.BF16, pccl.CodecKind.F16):  # exact for small integers
            assert result.error == 0.0
        elif codec is pccl.CodecKind.INT4:
            assert result.error > 0.0


class Wrong:
    """A communicator that changes one byte of what rank 1 receives."""

    def __init__(self, comm: pccl.Communicator) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def all_reduce(self, send: Any, recv: Any, **options: Any) -> None:
        self._comm.all_reduce(send, recv, **options)
        if self._comm.rank == 1:
            ctypes.c_ubyte.from_address(recv.address + recv.count * 4 - 1).value = 0x7E


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_wrong_sum_is_an_error_on_every_peer(
    world: pccl.LocalWorld, codec: pccl.CodecName
) -> None:
    """Goal: one wrong element at one peer is seen by all. Method: its last byte is changed, which
    makes it 1e37: beside a codec, which makes all results inexact, only that is seen."""

    def measure(comm: pccl.Communicator) -> str:
        wrong: Any = Wrong(comm)
        benchmark = Benchmark(wrong, "all_reduce", codec=codec, size_max=4096)
        result = benchmark.measure(4096, iterations=1, warmup=1)
        try:
            result.check()
        except pccl.PcclError as error:
            return str(error)
        return "nothing"

    for said in world.run(measure):
        if codec == "none":
            assert said == "all_reduce of 4096 bytes of f32, 3 peers: 1 element wrong"
        else:
            assert "the codec int8 lost" in said


def test_a_part_that_is_never_written_is_wrong(world: pccl.LocalWorld) -> None:
    class Idle(Wrong):
        def all_reduce(self, send: Any, recv: Any, **options: Any) -> None:
            return

    def measure(comm: pccl.Communicator) -> int:
        idle: Any = Idle(comm)
        return (
            Benchmark(idle, "all_reduce", size_max=400).measure(400, iterations=1, warmup=1).wrong
        )

    assert world.run(measure) == [300] * 3


@pytest.mark.parametrize("peers", [1, 2, 3, 41, 129, 512])
@pytest.mark.parametrize("dtype", list(DType))
def test_sums_of_the_pattern_are_exact_in_every_dtype(dtype: DType, peers: int) -> None:
    pattern = Pattern(dtype, peers)
    contributions = [pattern.read(pattern.of(rank)[: 4 * dtype.size]) for rank in range(peers)]
    sums = [math.fsum(column) for column in zip(*contributions, strict=True)]
    assert pattern.read(pattern.summed()[: 4 * dtype.size]) == sums


# ---- the command


def test_a_run_measures_itself_and_rank_0_prints(start: Any) -> None:
    """As `pccl run -n 3 -- pccl bench all_reduce`, without NumPy."""
    without_numpy = (
        "import sys; sys.modules['numpy'] = None\n"
        "from pccl_py.cli import main\n"
        "sys.argv = ['pccl', *sys.argv[1:]]; main()"
    )
    program = start(
        "run", "-n", "3", "--", sys.executable, "-c", without_numpy,
        "bench", "all_reduce", "--min", "1K", "--max", "70KiB", "--factor", "8", "--iters", "2",
        module=CLI,
    )  # fmt: skip
    assert program.end() == 0, program.errors
    lines = program.rest().splitlines()
    (rank,) = {line[:4] for line in lines}
    said = [line[4:] for line in lines]
    assert said[0] == f"# pccl {pccl.__version__}: all_reduce of f32, sum, 3 peers, codec none"
    assert said[2][0] == "#"
    assert said[2].split() == ["#", "size", "count", "type", "time", "algbw", "busbw", "#wrong"]
    assert [line.split()[:3] for line in said[4:7]] == [
        ["1024", "256", "f32"],
        ["8192", "2048", "f32"],
        ["65536", "16384", "f32"],
    ]
    assert all(line.split()[-1] == "0" for line in said[4:7])
    assert said[7].startswith("# average bus bandwidth: ")
    assert len(said) == 8 and rank in ("[0] ", "[1] ", "[2] ")


def test_json_is_one_object_a_size(start: Any) -> None:
    program = start(
        "run", "-n", "2", "--", sys.executable, "-m", CLI, "bench", "reduce_scatter", "--json",
        "--min", "4096", "--max", "4096", "--dtype", "f64", "--codec", "int8", "--iters", "1",
        module=CLI,
    )  # fmt: skip
    assert program.end() == 0, program.errors
    (line,) = program.rest().splitlines()
    told = json.loads(line[4:])
    assert list(told) == [
        "collective", "dtype", "codec", "world_size", "size", "count", "iterations", "seconds",
        "wrong", "error", "algorithm_bandwidth", "bus_bandwidth",
    ]  # fmt: skip
    assert told["collective"] == "reduce_scatter" and told["codec"] == "int8"
    assert told["bus_bandwidth"] == pytest.approx(told["algorithm_bandwidth"] / 2)


def test_a_lost_peer_ends_the_measurement(start: Any) -> None:
    """The sizes after it would be those of a smaller group. Each survivor says so in one line."""
    with pccl.Coordinator(initial_world_size=3, heartbeat=0.1, silence=2.0) as coordinator:
        programs = [
            start(
                "bench",
                "all_reduce",
                "--json",
                "--min",
                "4KiB",
                "--max",
                "64MiB",
                "--iters",
                "50",
                module=CLI,
                PCCL_TOKEN=coordinator.token,
                PCCL_PEER_ID=f"{number:032x}",
                PCCL_BIND="127.0.0.1:0",
            )
            for number in (1, 2, 3)
        ]
        programs[0].line()  # ranks are in the order of ids
        programs[2].interrupt(signal.SIGKILL)
        for program in programs[:2]:
            assert program.end() == 1
            assert program.errors.startswith("pccl: ") and program.errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all_reduce", "--min", "4KB"], "'4KB' is not a size"),
        (["all_reduce", "--min", "0"], "'0' is not a size"),
        (["all_reduce", "--min", "2MiB", "--max", "1MiB"], "is below the least"),
        (["all_reduce", "--codec", "zip"], "unknown codec 'zip'"),
        (["all_reduce", "--dtype", "f8"], "unknown dtype 'f8'"),
        (["broadcast", "--codec", "int8"], "broadcast has no codec"),
        (["send_recv"], "send_recv needs two peers"),
    ],
)
def test_bad_usage_of_the_bench_is_said(
    pccl_command: Any, arguments: list[str], words: str
) -> None:
    with pccl.Coordinator() as coordinator:
        done = pccl_command("bench", *arguments, PCCL_TOKEN=coordinator.token)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.startswith("pccl: ") and done.stderr.count("\n") == 1


def test_sizes_are_read_as_people_and_nccl_write_them() -> None:
    sizes = [measure_collectives.size_of(text) for text in ("1", "8B", "4K", "4KiB", "2M", "1GiB")]
    assert sizes == [1, 8, 4096, 4096, 2 << 20, 1 << 30]
    assert measure_collectives.sizes(4, 100, 4) == [4, 16, 64]
    for text in ("", "K", "4KB", "4 K", "-4", "4KiBB", "4BB", "٤"):
        with pytest.raises(pccl.InvalidArgument, match="is not a size"):
            measure_collectives.size_of(text)


def test_slow_links_have_digits() -> None:
    assert [bench.gigabytes(rate) for rate in (12.5e9, 9.99e8, 1.25e5)] == [
        "12.50",
        "0.99900",
        "0.00013",
    ]
    assert {*REDUCING} < {*COLLECTIVES} == {*TRAFFIC}
