"""PyTorch's own tests of backends, run in the processes of a World: test_torch_own.py lists them.

They are methods of `torch.testing._internal.distributed.distributed_test`, which starts processes
for each; here all are run in three that live long, each with a default group of its own. There a
test that cannot run in its surroundings ends with an exit status; here that is its answer.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import types
import unittest
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from rank_program import Rank
from torch.distributed import distributed_c10d

# Its types are those of C++.
dist: Any = torch.distributed
c10d: Any = distributed_c10d


# Decorators of the tests ask for a backend by these names where they mean one for CPU tensors; some
# tests are for MPI alone, as gloo once had no all_to_all.
_LIKE, _ELSE = "gloo", "mpi"
_FOR_ELSE = "Only MPI supports"
# The longest deadline in a test is 5 s.
_MEETING = timedelta(seconds=20)
_MODULE = "torch.testing._internal.distributed.distributed_test"


# The backend of the default group, where tests are to look for everything that gloo has.
_COUNTED = os.environ.get("BACKEND_OF_WORLD", "")


class _Counted(str):
    """The name of a backend that is counted as gloo wherever a test asks for its name."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == _LIKE or super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_LIKE)  # in sets of names


@functools.cache
def _case(like: str) -> Any:
    """The class with the tests, which is made for the backend that the environment names."""
    first = f"file://{os.environ['TEMP_DIR']}/init_dir/{like}"
    os.environ.update(BACKEND=like, INIT_METHOD=first if _COUNTED else "env://")
    sys.modules.pop(_MODULE, None)
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # torch.testing takes its test case from there, for expectations that are written into a
        # source file. No test of backends has any.
        plain = types.ModuleType("expecttest")
        plain.__dict__["TestCase"] = unittest.TestCase
        sys.modules["expecttest"] = plain
    utilities: Any = importlib.import_module("torch.testing._internal.common_utils")

    distributed_test: Any = importlib.import_module(_MODULE)
    # Whose collectives are events of the profiler, with shapes.
    for backends in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(distributed_test, backends).append("pccl")

    class Own(
        distributed_test.TestDistBackend,  # type: ignore[misc]
        distributed_test.DistributedTest._DistTestBase,  # type: ignore[misc]
    ):
        def _barrier(self, *_: Any, **__: Any) -> None:
            self.meeting.meet()

    if _COUNTED and like == _LIKE:
        distributed_test.BACKEND = _Counted(_COUNTED)
        for known in (
            distributed_test.PROFILING_SUPPORTED_BACKENDS,
            distributed_test.CUDA_PROFILING_SUPPORTED_BACKENDS,
            distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
        ):
            known.append(_COUNTED)
    utilities.instantiate_parametrized_tests(Own)
    Own.module = distributed_test
    return Own


def names(rank: Rank, folder: str) -> list[str]:
    """All tests that there are."""
    os.environ["TEMP_DIR"] = folder
    return sorted(name for name in dir(_case(_LIKE)) if name.startswith("test_"))


def run(rank: Rank, name: str, folder: str) -> str:
    """Runs a test. The answer is "", or why it was skipped."""
    os.environ["TEMP_DIR"] = folder
    method = _method(rank, name, _LIKE)
    if not _COUNTED and _why_skipped(method).startswith(_FOR_ELSE):
        method = _method(rank, name, _ELSE)
    # A rank that skips the test leaves the group, which another rank may not have entered yet.
    method.__self__.meeting.meet()
    if why := _why_skipped(method):
        return why
    # Some look at it again, and would need eight ranks for groups of two.
    os.environ["BACKEND"] = _ELSE
    torch.manual_seed(1234)
    try:
        method()
    except unittest.SkipTest as skipped:
        return str(skipped)
    except SystemExit as end:
        return _reasons()[end.code]
    except Exception:
        method.__self__.meeting.let_others_go()
        raise
    else:
        # Another rank may still wait for a deadline in its groups.
        method.__self__.meeting.meet()
        return ""
    finally:
        if _COUNTED:
            rank.leave()  # as in processes of its own: what it has broken is not the next one's
        else:
            _drop_groups(rank)


def skip_on_rank_0(rank: Rank, name: str, folder: str) -> str:
    """Runs a test on rank 0, and the other ranks do no more than to meet it once."""
    os.environ["TEMP_DIR"] = folder
    if rank.rank == 0:
        return run(rank, name, folder)
    _Meeting(rank, name).meet()
    return ""


class _Meeting:
    """Barriers of a test, which hold whatever has become of its groups."""

    def __init__(self, rank: Rank, test: str) -> None:
        self._store = dist.PrefixStore(f"{rank.begun}/{test}", rank.store)
        self._size = rank.size
        self._count = 0

    def meet(self) -> None:
        """Returns when all ranks have called it."""
        self._count += 1
        if self._store.add(f"{self._count}", 1) == self._size:
            self._store.set(f"{self._count} over", "")
        self._store.wait([f"{self._count} over"], _MEETING)

    def let_others_go(self) -> None:
        """This rank has failed, and will not come to any of those that are left."""
        for later in range(1, 9):
            self._store.set(f"{self._count + later} over", "")


def _method(rank: Rank, name: str, like: str) -> Any:
    case = _case(like)(name)
    case.meeting = _Meeting(rank, name)
    # Objects that it pickles are of its own module, of which there are two.
    sys.modules[_MODULE] = case.module
    case.rank = rank.rank
    return getattr(case, name)


def _why_skipped(method: Any) -> str:
    return str(getattr(method, "__unittest_skip_why__", ""))


def _drop_groups(rank: Rank) -> None:
    """Leaves the groups that a test has made: in other processes they would end with it."""
    for group in list(c10d._world.pg_map):
        if group not in (dist.group.WORLD, rank.gloo):
            dist.destroy_process_group(group)


def _reasons() -> dict[Any, str]:
    """The meaning of the exit statuses with which a test ends that cannot run here."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
