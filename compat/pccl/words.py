"""Words of PCCL 1.0: enumerations with its numbers, descriptors, and the error with its result.

Descriptors have the addresses of arrays, as in PCCL 1.0, and also keep the arrays, so that the
memory stays. The calls are in communicator.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import pccl_py
from pccl_py import Buffer, buffers
from pccl_py.words import parse_dtype

if TYPE_CHECKING:
    import numpy as np
    import torch


class Result(Enum):
    """How a call ended, with the numbers of `pcclResult_t`."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    INTERNAL_ERROR = 2
    INVALID_ARGUMENT = 3
    INVALID_USAGE = 4
    TOO_FEW_PEERS = 5
    MASTER_CONNECTION_FAILED = 6
    RANK_CONNECTION_FAILED = 7
    RANK_CONNECTION_LOST = 8
    NO_SHARED_STATE_AVAILABLE = 9
    PENDING_ASYNC_OPS = 10
    UPDATE_TOPOLOGY_FAILED = 11
    TOPOLOGY_OPTIMIZATION_FAILED = 12


class PCCLError(Exception):
    """A call has failed. `result` says how; `__cause__`, an error of pccl_py or None, says why."""

    def __init__(self, result: Result, func_name: str, why: str = "") -> None:
        super().__init__(f"{func_name} failed with error: {result.name}" + (why and f": {why}"))
        self.result = result

    @staticmethod
    def check(result: int, func_name: str) -> None:
        """Raises PCCLError unless `result` is the number of Result.SUCCESS."""
        if result != Result.SUCCESS.value:
            raise PCCLError(Result(result), func_name)


# The first class that fits an error gives its result; for other errors, such as Aborted, the call
# names the result.
_RESULTS: tuple[tuple[type[pccl_py.PcclError], Result], ...] = (
    (pccl_py.TooFewPeers, Result.TOO_FEW_PEERS),
    (pccl_py.StateUnavailable, Result.NO_SHARED_STATE_AVAILABLE),
    (pccl_py.InvalidArgument, Result.INVALID_ARGUMENT),
    (pccl_py.Mismatch, Result.INVALID_ARGUMENT),
    (pccl_py.InvalidUsage, Result.INVALID_USAGE),
    (pccl_py.Expelled, Result.MASTER_CONNECTION_FAILED),
    (pccl_py.CoordinatorUnreachable, Result.MASTER_CONNECTION_FAILED),
    (pccl_py.AuthenticationFailed, Result.MASTER_CONNECTION_FAILED),
    (pccl_py.VersionMismatch, Result.MASTER_CONNECTION_FAILED),
    (pccl_py.OutOfMemory, Result.INTERNAL_ERROR),
    (pccl_py.SystemRefused, Result.INTERNAL_ERROR),
)


@contextmanager
def told(func_name: str, lost: Result = Result.RANK_CONNECTION_LOST) -> Iterator[None]:
    """Raises errors of pccl_py as PCCLError; `lost`: the result for a loss or a deadline."""
    try:
        yield
    except pccl_py.PcclError as error:
        result = next((result for kind, result in _RESULTS if isinstance(error, kind)), lost)
        raise PCCLError(result, func_name, str(error)) from error


class ReduceOp(Enum):
    """The operator of a reduction."""

    SUM = 0
    AVG = 1
    PROD = 2
    MAX = 3
    MIN = 4


def name_of(op: object) -> str:
    """pccl_py's name of an operator."""
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op must be a pccl.ReduceOp, such as ReduceOp.AVG, not {op!r}")
    return op.name.lower()


class Attribute(Enum):
    """The numbers that `Communicator.get_attribute` returns."""

    GLOBAL_WORLD_SIZE = 1
    LOCAL_WORLD_SIZE = 2
    NUM_DISTINCT_PEER_GROUPS = 3
    LARGEST_PEER_GROUP_WORLD_SIZE = 4


class SharedStateSyncStrategy(Enum):
    """How a peer takes part in a sync; `word` is the strategy of pccl_py."""

    ENFORCE_POPULAR = 0
    RECEIVE_ONLY = 1
    SEND_ONLY = 2

    @property
    def word(self) -> pccl_py.Strategy:
        return pccl_py.Strategy[self.name.removeprefix("ENFORCE_")]


class DataType(Enum):
    """Type of one element."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    UINT32 = 4
    INT32 = 5
    UINT64 = 6
    INT64 = 7
    FLOAT16 = 8
    BFLOAT16 = 9
    FLOAT = 10
    DOUBLE = 11

    @property
    def word(self) -> pccl_py.DType:
        """The dtype of pccl_py."""
        return parse_dtype(self._name)

    def to_torch_dtype(self) -> torch.dtype:
        import torch

        dtype: torch.dtype = getattr(torch, self._name)
        return dtype

    def to_numpy_dtype(self) -> np.dtype[Any]:
        import numpy as np

        if self is DataType.BFLOAT16:
            import ml_dtypes  # NumPy itself has none

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(self._name)

    @classmethod
    def from_torch_dtype(cls, dtype: torch.dtype) -> DataType:
        return cls._named(str(dtype).removeprefix("torch."))

    @classmethod
    def from_numpy_dtype(cls, dtype: np.dtype[Any]) -> DataType:
        return cls._named(dtype.name)

    @property
    def _name(self) -> str:
        short = {DataType.FLOAT: "float32", DataType.DOUBLE: "float64"}
        return short.get(self, self.name.lower())

    @classmethod
    def _named(cls, name: str) -> DataType:
        for each in cls:
            if each._name == name:
                return each
        raise ValueError(f"Unsupported dtype: {name}")


class DeviceType(Enum):
    """The device of an array's memory; only CPU is accepted."""

    CPU = 0
    CUDA = 1

    @classmethod
    def from_torch_device_type(cls, device_type: str) -> DeviceType | None:
        return {"cpu": cls.CPU, "cuda": cls.CUDA}.get(device_type)


class DistributionHint(Enum):
    """How the elements' values are distributed: ignored."""

    NONE = 0
    NORMAL = 1
    UNIFORM = 2


class QuantizationAlgorithm(Enum):
    """How elements are encoded for the network."""

    NONE = 0
    MIN_MAX = 1
    ZERO_POINT_SCALE = 2


@dataclass(eq=False)
class ReduceOperandDescriptor:
    """The type of the elements of a reduction."""

    datatype: DataType
    distribution_hint: DistributionHint = DistributionHint.NONE


@dataclass(eq=False)
class QuantizationOptions:
    """How the elements of a reduction are encoded for the network."""

    quantized_datatype: DataType = DataType.UINT8
    algorithm: QuantizationAlgorithm = QuantizationAlgorithm.MIN_MAX

    @property
    def codec(self) -> str:
        """The codec of pccl_py: "none", "min_max_u8" or "zero_point_u8"."""
        if self.algorithm is QuantizationAlgorithm.NONE:
            return "none"
        if self.quantized_datatype is not DataType.UINT8:
            raise pccl_py.InvalidArgument(
                f"QuantizationOptions takes DataType.UINT8 with {self.algorithm}, not "
                f"{self.quantized_datatype}; QuantizationAlgorithm.NONE goes with any type"
            )
        return self.algorithm.name.lower().removesuffix("_scale") + "_u8"


@dataclass(eq=False)
class ReduceDescriptor:
    """The description of a reduction without its arrays."""

    count: int
    op: ReduceOp
    tag: int
    operand_descriptor: ReduceOperandDescriptor
    quantization_options: QuantizationOptions


@dataclass(eq=False)
class ReduceOpDescriptor:
    """The description of a reduction with its arrays, which it keeps alive."""

    sendbuf_ptr: int
    recvbuf_ptr: int
    reduce_descriptor: ReduceDescriptor
    _owners: tuple[object, ...] = field(default=(), init=False, repr=False)

    @classmethod
    def from_torch(
        cls, send: torch.Tensor, recv: torch.Tensor, reduce_descriptor: ReduceDescriptor
    ) -> ReduceOpDescriptor:
        """Describes tensors, which may require grad: their detached data is reduced."""
        return cls._from(send.detach(), recv.detach(), reduce_descriptor)

    @classmethod
    def from_numpy(
        cls,
        send: np.ndarray[Any, Any],
        recv: np.ndarray[Any, Any],
        reduce_descriptor: ReduceDescriptor,
    ) -> ReduceOpDescriptor:
        return cls._from(send, recv, reduce_descriptor)

    @classmethod
    def _from(cls, send: Any, recv: Any, reduce_descriptor: ReduceDescriptor) -> ReduceOpDescriptor:
        with told("ReduceOpDescriptor"):
            given, taken = buffers.pair(send, recv)
        made = cls(given.address, taken.address, reduce_descriptor)
        made._owners = (given, taken)
        return made

    def buffer(self, address: int) -> Buffer:
        """The memory at `address`, which is `sendbuf_ptr` or `recvbuf_ptr`."""
        what = self.reduce_descriptor
        dtype = what.operand_descriptor.datatype.word
        return Buffer(address, what.count, dtype, owner=self._owners)


class TensorInfo:
    """The description of a shared state's tensor, which it keeps alive."""

    def __init__(
        self,
        name: str,
        data_ptr: int,
        *,
        numel: int,
        dtype: DataType,
        device_type: DeviceType = DeviceType.CPU,
        allow_content_inequality: bool = False,
    ) -> None:
        if data_ptr == 0:
            raise ValueError("Invalid data pointer: nullptr")
        if device_type is not DeviceType.CPU:
            raise ValueError(f"tensor {name!r} must be on the CPU: copy it there")
        self.name = name
        self.data_ptr = data_ptr
        self.numel = numel
        self.dtype = dtype
        self.device_type = device_type
        self.allow_content_inequality = allow_content_inequality
        self._owner: object = None

    @classmethod
    def from_torch(
        cls, tensor: torch.Tensor, name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """Describes a tensor, which may require grad: its detached data is shared."""
        return cls._from(tensor.detach(), name, allow_content_inequality)

    @classmethod
    def from_numpy(
        cls, tensor: np.ndarray[Any, Any], name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """Describes an array: its data is shared."""
        return cls._from(tensor, name, allow_content_inequality)

    @classmethod
    def _from(cls, tensor: Any, name: str, allow_content_inequality: bool) -> TensorInfo:
        with told("TensorInfo"):
            taken = buffers.writable(tensor)
        made = cls(
            name,
            taken.address,
            numel=taken.count,
            dtype=next(each for each in DataType if each.word is taken.dtype),
            allow_content_inequality=allow_content_inequality,
        )
        made._owner = taken
        return made

    @property
    def buffer(self) -> Buffer:
        """The tensor's memory."""
        return Buffer(self.data_ptr, self.numel, self.dtype.word, owner=self._owner)
