"""DiLoCo and related methods for parameters in NumPy arrays, which are written in place.

diloco = pccl_train.numpy.DiLoCo(comm, {"w": w, "b": b}, sync_every=50)
diloco.begin()
while diloco.round < 20:
    inner_step(w, b)
    diloco.step(tokens=batch)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pccl_py import buffers
from pccl_py.communicator import Group
from pccl_py.errors import InvalidArgument
from pccl_train.fragments import Tensor
from pccl_train.method import Method
from pccl_train.rounds import Exchange, Rounds


class DiLoCo(Rounds):
    """A worker whose parameters are named, contiguous NumPy arrays of float dtypes.

    `comm`: the group of all workers; None: call `attach` with the group later. `on_exchange`:
    called with each Exchange. `name`: distinguishes successive trainings in one group. All other
    arguments are those of `Method`. Raises InvalidArgument or TypeError for an array that is not
    writable, contiguous and of floats.
    """

    def __init__(
        self,
        comm: Group | None,
        parameters: Mapping[str, NDArray[Any]],
        *,
        on_exchange: Callable[[Exchange], object] | None = None,
        name: str = "diloco",
        **settings: Any,
    ) -> None:
        self._parameters = parameters
        method = Method(**settings)
        super().__init__(_Arrays(parameters), method, name=name, on_exchange=on_exchange)
        if comm is not None:
            self.attach(comm)

    def _own_state(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self._parameters.items()}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        for name, array in self._parameters.items():
            array[...] = state[name]


class _Arrays:
    def __init__(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        if not isinstance(parameters, Mapping):
            raise TypeError(
                f"parameters must be a dict of arrays by name, not {type(parameters).__name__}"
            )
        if not parameters:
            raise InvalidArgument("parameters is empty: name at least one array")
        for name, array in parameters.items():
            try:
                buffer = buffers.writable(array)
            except (TypeError, InvalidArgument) as refusal:
                raise type(refusal)(f"parameter {name!r}: {refusal}") from None
            if buffer.has_own_kind or not buffer.dtype.is_float:
                raise InvalidArgument(f"parameter {name!r} must be of floats, not {buffer.kind}")
        self._parameters = parameters

    def tensors(self) -> Sequence[Tensor]:
        return [
            Tensor(name, np.shape(array), buffers.readable(array).kind)
            for name, array in self._parameters.items()
        ]

    def read(self, names: Sequence[str], *, to_write: bool = False) -> Mapping[str, Any]:
        return {name: self._parameters[name] for name in names}

    def write(self, arrays: Mapping[str, Any]) -> None:
        """Does nothing: `read` returns the parameters themselves, which the caller has changed."""
