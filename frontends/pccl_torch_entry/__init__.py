"""The entry point that `import torch` calls: "pccl" is a backend of torch.distributed from then on.

PyTorch finds it by the group `torch.backends` of the installed distribution (pyproject.toml), so
`dist.init_process_group("pccl")` works in a program that never imports pccl_torch. Every
`import torch` on the machine pays for this file, so it imports nothing, of PCCL neither: that comes
with the first group. The doors are registered here; behind them is pccl_torch/start.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def register() -> None:
    """Makes "pccl" a backend, and "pccl://" a rendezvous. Once is enough; more does nothing."""
    # A PyTorch that was built without it has none of its names.
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or "pccl" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("pccl", _create, extended_api=True, devices=["cpu", "cuda"])
    dist.register_rendezvous_handler("pccl", _meet)


def _create(asked: Any, options: Any = None) -> Any:
    from pccl_torch import start

    return start.create(asked, options)


def _meet(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    from pccl_torch import start

    return start.meet(url, **options)
