"""MasterNode: a coordinator of pccl_py with the interface of PCCL 1.0; and the command for it.

    pccl_master --listen-address 0.0.0.0:48148

The command is called `ccoip_master` as well, like the C program of PCCL 1.0.

A program of PCCL 1.0 calls `MasterNode.run`, which returns, and reaches its end. Its master lives
on because `MasterNode.__del__` blocks until `interrupt`, which a signal handler may call.
"""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import queue
import signal
import weakref

import pccl_py
from pccl.communicator import RUN_ID
from pccl.words import PCCLError, Result, told

_running: weakref.WeakSet[MasterNode] = weakref.WeakSet()


class MasterNode:
    """The master of a run, at `listen_address`, "ip:port"."""

    def __init__(self, listen_address: str) -> None:
        assert ":" in listen_address, (
            f"Invalid listen address: {listen_address}, expected format: ip:port"
        )
        self._address = listen_address
        self._coordinator: pccl_py.Coordinator | None = None
        # A SimpleQueue, as a signal handler may call its `put` during its `get`.
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> None:
        """Begins to listen, and returns."""
        if self._coordinator is not None:
            raise PCCLError(Result.INVALID_USAGE, "pcclRunMaster", "it runs")
        with told("pcclRunMaster", Result.INTERNAL_ERROR):
            # With a run id in the environment, peers need a token with that run id (PCCL_TOKEN).
            run_id = None if os.environ.get("PCCL_COORDINATOR_RUN_ID") else RUN_ID
            self._coordinator = pccl_py.Coordinator(bind=self._address, run_id=run_id)
        _running.add(self)

    @property
    def port(self) -> int:
        """The port that the master listens on, also if `listen_address` names port 0."""
        return 0 if self._coordinator is None else self._coordinator.port

    def interrupt(self) -> None:
        """Ends the run."""
        if self._coordinator is None:
            raise PCCLError(Result.INVALID_USAGE, "pcclInterruptMaster", "it does not run")
        self._coordinator.close()
        self._over.put(None)

    def __del__(self) -> None:
        if getattr(self, "_coordinator", None) is not None:
            self._wait()

    def _wait(self) -> None:
        """Blocks until `interrupt` is called; returns at once if it was called before."""
        self._over.get()
        self._over.put(None)


@atexit.register
def _at_exit() -> None:
    """Blocks until masters in module variables are interrupted, before pccl_py closes them."""
    for master in list(_running):
        master._wait()


def main() -> None:
    """The commands `pccl_master` and `ccoip_master`."""
    asked = argparse.ArgumentParser(description="The master of PCCL 1.0, over pccl-py.")
    asked.add_argument("--listen-address", default="0.0.0.0:48148", help="ip:port")
    master = MasterNode(asked.parse_args().listen_address)
    master.run()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: master.interrupt())
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("pccl").info("the master listens on port %d", master.port)


if __name__ == "__main__":
    main()
