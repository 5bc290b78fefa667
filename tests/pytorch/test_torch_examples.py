"""The examples of PyTorch do what their heads say, started as these say.

Each process imports PyTorch, so most are for `make test-long`: what they show is tested in
test_torch_elastic.py and test_torch_fsdp.py as well. In `make test` is the one under torchrun.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ["-m", "pccl_py.cli", "run", "-n"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def lines_of(*command: str) -> list[str]:
    """Its output, without the number of the process that `pccl run` puts before a line."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PCCL_BIND": "127.0.0.1:0"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [re.sub(r"^\[\d+\] ", "", line) for line in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [[*RUN, "2", "--", sys.executable], [*TORCHRUN, "2"]],
    ids=["pccl run", "torchrun"],
)
def test_torch_ddp_ends_with_equal_parameters(command: list[str]) -> None:
    lines = lines_of(*command, "examples/torch_ddp.py")
    ranks = {line.partition(":")[0] for line in lines}
    assert ranks == {"rank 0 of 2", "rank 1 of 2"}
    assert len({line.partition(": ")[2] for line in lines}) == 1


@pytest.mark.long
def test_torch_elastic_loses_one_gains_one_and_ends_with_equal_digests() -> None:
    lines = lines_of(*RUN, "3", "--", sys.executable, "examples/torch_elastic.py")
    told = [
        re.fullmatch(r"process (\d), one of (\d), step (\d+): (.*), digest (\w+)", line)
        for line in lines
    ]
    rows = [found.groups() for found in told if found is not None]
    assert len(rows) == len(lines), lines
    by_event: dict[str, list[tuple[str, ...]]] = {}
    for process, size, step, event, digest in rows:
        by_event.setdefault(f"{step} {event}", []).append((process, size, digest))
    begun, lost, joined, done = by_event.values()
    for event, processes in ((begun, "012"), (lost, "01"), (joined, "013"), (done, "013")):
        assert "".join(sorted(row[0] for row in event)) == processes
        assert {row[1:] for row in event} == {(str(len(processes)), event[0][2])}
    # The step in whose backward one was killed counts.
    assert any(key.startswith("11 joined (), left (") for key in by_event), list(by_event)


@pytest.mark.long
def test_torch_hsdp_goes_on_with_one_replica_and_ends_with_two_that_are_equal() -> None:
    command = [*RUN, "4", "--restarts", "1", "--", sys.executable, "examples/torch_hsdp.py"]
    lines = lines_of(*command)
    assert sum(line.startswith("lost: ") for line in lines) == 1, lines
    steps = {line for line in lines if line.startswith("step ")}
    assert {"step 4 began with 1 replicas", "step 6 began with 2 replicas"} <= steps, lines
    shards = sorted(line for line in lines if line.startswith("shard "))
    assert len(shards) == 4 and shards[0] == shards[1] and shards[2] == shards[3], lines
