"""Calls in one thread while another one renews the groups of a mesh (mesh.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pccl_torch
import pytest
import torch
from pccl_torch.mesh import _PlaceGroup, _ShardGroup

import pccl_py as pccl

SECONDS = 30.0


class Mesh:
    """As much of an Hsdp as its groups know: it has a lock, and is told of losses."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.broken: list[Exception] = []

    def _break(self, error: Exception) -> None:
        with self.lock:
            self.broken.append(error)


class Comm:
    """A group whose calls fail once another thread has the lock of the mesh."""

    epoch = 1
    deadline = 600.0
    _admission = None

    def __init__(self, mesh_is_held: threading.Event) -> None:
        self.peer_id = pccl.PeerId((1).to_bytes(16, "big"))
        self.members = (self.peer_id,)
        self.called = threading.Event()
        self._mesh_is_held = mesh_is_held

    def barrier(self, *_: object, **__: Any) -> None:
        self.called.set()
        assert self._mesh_is_held.wait(SECONDS)
        raise pccl.Aborted("a member is lost")

    send = barrier

    def info(self) -> None:
        raise pccl.InvalidUsage("closed")


CALLS: dict[str, Callable[[Any], object]] = {
    "collective": lambda group: group.monitored_barrier(),
    "message": lambda group: group.send([torch.ones(1)], 0, 0),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_and_an_admit_that_renews_do_not_block_each_other(call: str) -> None:
    held, mesh = threading.Event(), Mesh()
    comm: Any = Comm(held)
    group: Any = _ShardGroup(comm, comm.members, 0, "t", pccl_torch.Options(), None, lambda: None)
    group.hsdp = mesh

    def fails() -> None:
        with pytest.raises(pccl_torch.PeerLost):
            CALLS[call](group)

    def renews() -> None:
        with mesh.lock:
            held.set()
            assert comm.called.wait(SECONDS)
            assert isinstance(group, _PlaceGroup)
            group.renew(comm)

    # As daemons, so that a failure ends with the test.
    threads = [threading.Thread(target=target, daemon=True) for target in (fails, renews)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert len(mesh.broken) == 1
