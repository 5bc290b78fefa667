"""The entry point that `import torch` calls, to make "pccl" a backend of torch.distributed.

PyTorch finds `register` by the entry point group `torch.backends` of the installed distribution
(pyproject.toml), so `dist.init_process_group("pccl")` works in a program that never imports
pccl_torch. Every `import torch` on the machine runs this file, so it imports neither torch nor
PCCL: the first group imports pccl_torch/start.py, which makes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def register() -> None:
    """Makes "pccl" a backend, and "pccl://" a rendezvous. Idempotent."""
    # A PyTorch that was built without torch.distributed has none of its names.
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
