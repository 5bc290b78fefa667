"""PyTorch's own tests of backends, run in the processes of a World: test_torch_own.py lists them.

They are methods of `torch.testing._internal.distributed.distributed_test`, which starts processes
for each; here all are run in three that live long, each with a default group of its own. There a
test that cannot run in its surroundings ends with an exit status; here that is its answer.
"""

from __future__ import annotations

import functools
import os
import tempfile
import unittest
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from rank_program import Rank

# Its types are those of C++.
dist: Any = torch.distributed

SECONDS = 30.0


@functools.cache
def _case() -> Any:
    """The class with the tests. It is made for the backend that the environment names."""
    folder = os.path.join(tempfile.gettempdir(), f"pccl_own_{os.environ['MASTER_PORT']}")
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    os.environ.update(BACKEND="pccl", TEMP_DIR=folder, INIT_METHOD="env://")
    from torch.testing._internal import common_distributed, common_utils

    features = common_distributed.DistTestCases.backend_feature
    for feature in ("ddp", "subgroup"):
        features[feature].add("pccl")
    common_distributed.DistTestCases.skip_collective["sendrecv anysource"].add("pccl")
    from torch.testing._internal.distributed import distributed_test

    class Own(
        distributed_test.TestDistBackend,  # type: ignore[misc]
        distributed_test.DistributedTest._DistTestBase,  # type: ignore[misc]
    ):
        def _barrier(self, *_: Any, **__: Any) -> None:
            dist.barrier()

    common_utils.instantiate_parametrized_tests(Own)
    return Own


def names(rank: Rank) -> list[str]:
    """All tests that there are."""
    return sorted(name for name in dir(_case()) if name.startswith("test_"))


def run(rank: Rank, name: str) -> str:
    """Runs a test in a default group of its own. "" if it has passed, or why it was skipped."""
    store = dist.PrefixStore(name, c_store())
    dist.init_process_group(
        "pccl",
        store=store,
        rank=rank.rank,
        world_size=rank.size,
        timeout=timedelta(seconds=SECONDS),
    )
    try:
        case = _case()(name)
        case.rank = rank.rank
        return _result(case, name)
    finally:
        dist.destroy_process_group()
