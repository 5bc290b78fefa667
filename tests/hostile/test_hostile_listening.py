"""Where a peer listens: on no network that it was not told of, and that no peer comes from."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

import pccl_py as pccl


def listening_at() -> set[tuple[str, int]]:
    """Hosts and ports that this process listens on."""
    sockets = psutil.Process().net_connections(kind="tcp")
    return {(one.laddr.ip, one.laddr.port) for one in sockets if one.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ({}, {"127.0.0.1"}),
        ({"bind": ":0"}, {"::", "0.0.0.0"}),
        ({"bind": "127.0.0.2:0"}, {"127.0.0.2"}),
        ({"advertise": "127.0.0.1"}, {"::", "0.0.0.0"}),
    ],
)
def test_a_peer_listens_on_the_interface_that_leads_to_its_coordinator_unless_told(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], hosts: set[str]
) -> None:
    """The coordinator is at 127.0.0.1, so that is the interface that leads to it."""
    monkeypatch.delenv("PCCL_BIND", raising=False)
    with pccl.Coordinator() as coordinator:
        before = listening_at()
        with pccl.connect(coordinator.token, **options) as comm:
            (host,) = {at[0] for at in listening_at() - before}
            assert host in hosts
            comm.admit()
            comm.barrier()
