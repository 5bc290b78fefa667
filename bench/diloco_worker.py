"""One worker of `bench diloco` over shaped links: it trains numbers that stand for a model.

It owns the rounds of one process. The plan is in diloco_links.py, which starts this in a namespace
of the emulated network and talks to it in JSON lines, on standard input and output:

    {"rank": ..., "world": ..., "address": ..., "parameters": ...}      the place of this process
    {"token": ...}, or null where another process says it               then all are connected
    {"token": ...}                                                      that of the run
    {"name": ..., "settings": {...}, "step_seconds": ..., "rounds": ...}    one training; its result
    {"steps": ..., "step_seconds": ...}                         a synchronous one; its result

An inner step takes a given time and moves nothing; before each exchange the parameters are moved by
random numbers, as codecs need. So what is measured is the exchange, and the kernels around it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import pccl_train.numpy
from pccl_train import SGD, Exchange, Sparse

import pccl_py as pccl
from bench import wan_lanes


def main() -> None:
    place = _read()
    coordinator = None
    if place["rank"] == 0:
        coordinator = pccl.Coordinator(
            bind=f"{place['address']}:0", initial_world_size=place["world"]
        )
    _say({"token": None if coordinator is None else coordinator.token})
    parameters = {f"part{n}": np.zeros(place["parameters"] // 4, np.float32) for n in range(4)}
    random = np.random.default_rng(place["rank"])
    push = random.standard_normal(place["parameters"] // 4, np.float32)
    push *= np.float32(1e-3)
    bind = f"{place['address']}:{wan_lanes.PORT}"
    with pccl.connect(_read()["token"], bind=bind, deadline=600) as comm:
        comm.admit()
        _say({"connected": True})
        while (asked := _read()) is not None:
            if "steps" in asked:
                _say(synchronous(comm, parameters, asked))
            else:
                _say(trained(comm, parameters, push, asked))
    if coordinator is not None:
        coordinator.close()


def trained(comm: Any, parameters: Any, push: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Trains some rounds, after one that is not timed."""
    told: list[Exchange] = []
    diloco = pccl_train.numpy.DiLoCo(
        comm, parameters, name=asked["name"], on_exchange=told.append,
        **settings_of(asked["settings"]),
    )  # fmt: skip
    diloco.begin()
    seconds, rounds = asked["step_seconds"], asked["rounds"]
    began = 0.0
    before = 0
    while diloco.round < 1 + rounds:
        if diloco.position == 0:
            if diloco.round == 1:
                comm.barrier()
                began, before = time.monotonic(), comm.info().bytes_sent
                told.clear()
            for value in parameters.values():
                value += push
        time.sleep(seconds)
        diloco.step()
    wall = time.monotonic() - began
    sent, payload = comm.info().bytes_sent - before, sum(each.bytes_sent for each in told)
    diloco.finish()
    diloco.detach()
    return {
        "wall": wall,
        "exchange": max(each.seconds for each in told),
        "payload_bytes": payload,
        "bytes_sent": sent,
    }


def synchronous(comm: Any, parameters: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Averages as many numbers as the parameters have in every step, after one not timed."""
    values = list(parameters.values())
    comm.all_reduce(values, op="avg")
    comm.barrier()
    began, before = time.monotonic(), comm.info().bytes_sent
    outcomes = []
    for _ in range(asked["steps"]):
        time.sleep(asked["step_seconds"])
        outcomes.append(comm.all_reduce(values, op="avg"))
    return {
        "wall": time.monotonic() - began,
        "exchange": max(each.duration for each in outcomes),
        "payload_bytes": sum(each.bytes_sent for each in outcomes),
        "bytes_sent": comm.info().bytes_sent - before,
    }


def settings_of(asked: dict[str, Any]) -> dict[str, Any]:
    """Settings of `Method` from JSON."""
    made = dict(asked)
    if "sparse" in made:
        made |= {"sparse": Sparse(**made["sparse"]), "outer": SGD(1.0)}
    return made


def _say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _read() -> Any:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


if __name__ == "__main__":
    main()
