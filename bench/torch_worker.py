"""One process of the benchmark of torch.distributed: it holds all libraries, and measures in turn.

It owns the measuring: the models, the order of the calls, the clock. The rows are made by
torch_steps.py, which starts this with a plan in JSON and reads a line of JSON for each case:

    {"case": ..., "samples": {contender: [[begin, end], ...]}}

A loss inside of a step is torch_kill.py's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pccl_torch
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench import common
from bench.torch_plan import Case

# Its types are those of C++, which describe neither subclasses nor what they may override.
dist: Any = torch.distributed

TIMEOUT = timedelta(minutes=10)
BATCH = 64
# Layers and width of a model of so many parameters.
MODELS = {"1M": (4, 512), "25M": (24, 1024)}
LEARNING_RATE = 1e-4


Calls = dict[str, Callable[[], object]]


class Worker:
    """This process, in a group of ours and in one of gloo."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group("pccl", timeout=TIMEOUT)
        self.ours = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self.rank: int = dist.get_rank()

    def run(self, case: Case) -> None:
        """Measures one case, and tells."""
        make = {"all_reduce": self._all_reduce, "ddp": self._ddp, "fsdp": self._fsdp}
        make["coded"] = self._coded
        calls, check = make[case.kind](case.size)
        samples = self._measure(calls, case)
        check()
        print(json.dumps({"case": case.name, "samples": samples}), flush=True)

    def _measure(self, calls: Calls, case: Case) -> dict[str, list[tuple[float, float]]]:
        """Taken in turn, so that all see the same moods of the machine."""
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for call in calls.values():
            # The buckets of DDP are made anew after its first step.
            for _ in range(3):
                call()
        order = list(calls)
        for _ in range(case.samples):
            for name in order:
                dist.barrier(group=self.gloo)
                begin = time.monotonic()
                for _ in range(case.iterations):
                    calls[name]()
                samples[name].append((begin, time.monotonic()))
            order = [*order[1:], order[0]]
        return samples

    # ---- the cases: what is called, and a check of what it has come to

    def _all_reduce(self, size: str) -> tuple[Calls, Callable[[], None]]:
        values = torch.zeros(common.size_of(size) // 4)
        array, plain = values.numpy(), self.ours.comm
        for group in (self.ours, self.gloo):
            values.fill_(self.rank + 1.0)
            dist.all_reduce(values, group=group)
            if not bool((values == 3.0).all()):
                raise RuntimeError(f"{group.name()} gave a wrong sum of {size}")
        values.zero_()
        return {
            "pccl": lambda: dist.all_reduce(values, group=self.ours),
            "gloo": lambda: dist.all_reduce(values, group=self.gloo),
            # The same memory, and the same promise, without PyTorch. The tag is far from others.
            "pccl_py": lambda: plain.all_reduce(array, tag=1 << 40, recovery="complete"),
        }, lambda: None

    def _ddp(self, size: str) -> tuple[Calls, Callable[[], None]]:
        groups = {"pccl": self.ours, "gloo": self.gloo}
        wrapped = {
            name: DistributedDataParallel(model_of(size), process_group=group)
            for name, group in groups.items()
        }
        calls: Calls = {name: step_of(model) for name, model in wrapped.items()}
        # The parts of a step, for the share of the moving that goes on beside the computing.
        silent = step_of(model_of(size))
        calls["compute"] = silent
        buckets = [torch.zeros(count) for count in _buckets(wrapped["pccl"])]
        for name, group in groups.items():
            calls[f"{name}/moves"] = _mover(buckets, group)
        return calls, lambda: self._check_equal(wrapped, 1e-4)

    def _coded(self, size: str) -> tuple[Calls, Callable[[], None]]:
        ours = DistributedDataParallel(model_of(size), process_group=self.ours)
        hook: Any = pccl_torch.average_hook("int8")
        ours.register_comm_hook(self.ours, hook)
        theirs = DistributedDataParallel(model_of(size), process_group=self.gloo)
        wrapped = {"pccl": ours, "gloo": theirs}
        return {name: step_of(model) for name, model in wrapped.items()}, (
            lambda: self._check_equal(wrapped, 1e-2)
        )

    def _fsdp(self, size: str) -> tuple[Calls, Callable[[], None]]:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        calls: Calls = {}
        models = {}
        for name, group in (("pccl", self.ours), ("gloo", self.gloo)):
            mesh = DeviceMesh.from_group(group, "cpu")
            model = model_of(size)
            for layer in model:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            models[name] = model
            calls[name] = step_of(model)
        return calls, lambda: self._check_equal(models, 1e-4)

    def _check_equal(self, models: dict[str, Any], error_max: float) -> None:
        """A library that is fast and wrong must not get a row."""
        ours, theirs = (list(models[name].parameters()) for name in ("pccl", "gloo"))
        for one, other in zip(ours, theirs, strict=True):
            far = float((_local(one) - _local(other)).abs().max())
            if not far <= error_max:
                raise RuntimeError(f"parameters trained over pccl and gloo differ by {far}")


def _local(x: Any) -> Tensor:
    tensor: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return tensor.detach()


def model_of(size: str) -> nn.Sequential:
    layers, width = MODELS[size]
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def step_of(model: nn.Module) -> Callable[[], None]:
    """A step of training, on data of this rank."""
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    width = max(layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear))
    data = torch.randn(BATCH, width, generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def _buckets(wrapped: Any) -> list[int]:
    """Elements of the buckets as DDP makes them: 1 MiB first, then 25 MiB each."""
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * common.MIB]
    parameters = list(reversed(list(wrapped.parameters())))
    indices, _ = dist._compute_bucket_assignment_by_size(parameters, limits)
    return [sum(parameters[number].numel() for number in bucket) for bucket in indices]


def _mover(buckets: list[Tensor], group: Any) -> Callable[[], None]:
    def move() -> None:
        works = [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets]
        for work in works:
            work.wait()

    return move


def main() -> None:
    """Pinned before any library starts a thread."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, common.cores_of(rank, world))
    worker = Worker()
    for case in json.loads(sys.argv[1]):
        worker.run(Case(**case))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
