"""Works that are done, and errors that nobody has, keep no tensors."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pccl_torch
import pytest
import torch

import pccl_py as pccl

SECONDS = 30.0


def group_of(comm: pccl.Communicator) -> Any:
    return pccl_torch.ProcessGroupPccl(
        comm, comm.members, comm.rank, "test", pccl_torch.Options(), None, comm.close
    )


def watched() -> tuple[torch.Tensor, threading.Event]:
    """A tensor, and what is set when its memory is given back."""
    memory, over = np.ones(1000, np.float32), threading.Event()
    weakref.finalize(memory, over.set)
    return torch.from_numpy(memory), over


@pytest.mark.parametrize("waits", ["waits", "has a future", "drops it"])
def test_the_last_work_of_a_group_keeps_no_tensor(world: pccl.LocalWorld, waits: str) -> None:
    def call(comm: pccl.Communicator) -> tuple[Any, threading.Event]:
        group = group_of(comm)
        x, over = watched()
        work = group.allreduce([x])
        if waits == "waits":
            work.wait()
        elif waits == "has a future":
            (output,) = work.get_future().wait()
            assert output.sum() == 2000
        return group, over

    # The groups live, and nothing else is called in them.
    for _, over in world.run(call):
        assert over.wait(SECONDS)


def test_the_last_error_keeps_no_tensor_and_says_what_it_was(world: pccl.LocalWorld) -> None:
    def call(comm: pccl.Communicator) -> tuple[Any, threading.Event]:
        group = group_of(comm)
        x, over = watched()
        with pytest.raises(pccl.Mismatch) as raised:
            group.allreduce([x[: 10 + comm.rank]]).wait()
        last = pccl_torch.last_error(RuntimeError(str(raised.value)))
        assert last is not None
        return group, over

    called = world.run(call)
    gc.collect()  # an error and its frames name each other
    for _, over in called:
        assert over.wait(SECONDS)
    last = pccl_torch.last_error()
    assert isinstance(last, pccl.Mismatch) and last.operation == "all_reduce"
    assert last.work is None and last.__traceback__ is None
