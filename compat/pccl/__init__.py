"""The names of PCCL 1.0's Python package, over pccl_py.

    from pccl import Attribute, Communicator, ReduceOp, SharedState, TensorInfo

A program that was written for PCCL 1.0 runs unchanged. words.py has the enumerations, descriptors
and the error, communicator.py the calls of a peer, master.py the master. The differences, each with
its reason, are in docs/guides/MIGRATING.md; new programs use pccl_py. This file only lists names.
"""

from pccl import cuda
from pccl.communicator import (
    AsyncReduceHandle,
    Communicator,
    ReduceInfo,
    SharedState,
    SharedStateSyncInfo,
)
from pccl.master import MasterNode
from pccl.words import (
    Attribute,
    DataType,
    DeviceType,
    DistributionHint,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    SharedStateSyncStrategy,
    TensorInfo,
)
from pccl_py import __version__

__all__ = [
    "AsyncReduceHandle",
    "Attribute",
    "Communicator",
    "DataType",
    "DeviceType",
    "DistributionHint",
    "MasterNode",
    "PCCLError",
    "QuantizationAlgorithm",
    "QuantizationOptions",
    "ReduceDescriptor",
    "ReduceInfo",
    "ReduceOp",
    "ReduceOpDescriptor",
    "ReduceOperandDescriptor",
    "Result",
    "SharedState",
    "SharedStateSyncInfo",
    "SharedStateSyncStrategy",
    "TensorInfo",
    "__version__",
    "cuda",
]
