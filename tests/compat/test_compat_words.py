"""The names of PCCL 1.0's Python package, their numbers, signatures and errors.

The tables are its public interface, in our own words; what the calls do: test_compat_runs.py.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pccl
import pytest

import pccl_py

ROOT = Path(__file__).resolve().parents[2]
COMPAT = ROOT / "compat"

NUMBERS: dict[type[Enum], str] = {
    pccl.Result: "SUCCESS NOT_INITIALIZED INTERNAL_ERROR INVALID_ARGUMENT INVALID_USAGE "
    "TOO_FEW_PEERS MASTER_CONNECTION_FAILED RANK_CONNECTION_FAILED RANK_CONNECTION_LOST "
    "NO_SHARED_STATE_AVAILABLE PENDING_ASYNC_OPS UPDATE_TOPOLOGY_FAILED "
    "TOPOLOGY_OPTIMIZATION_FAILED",
    pccl.ReduceOp: "SUM AVG PROD MAX MIN",
    pccl.Attribute: "- GLOBAL_WORLD_SIZE LOCAL_WORLD_SIZE NUM_DISTINCT_PEER_GROUPS "
    "LARGEST_PEER_GROUP_WORLD_SIZE",
    pccl.SharedStateSyncStrategy: "ENFORCE_POPULAR RECEIVE_ONLY SEND_ONLY",
    pccl.DataType: "UINT8 INT8 INT16 UINT16 UINT32 INT32 UINT64 INT64 FLOAT16 BFLOAT16 "
    "FLOAT DOUBLE",
    pccl.DeviceType: "CPU CUDA",
    pccl.DistributionHint: "NONE NORMAL UNIFORM",
    pccl.QuantizationAlgorithm: "NONE MIN_MAX ZERO_POINT_SCALE",
}
REDUCE = "send, recv, *, op, tag=0, operand_descriptor=None, quantization_options=None"
SIGNATURES = {
    "Communicator": "address, peer_group=0, p2p_connection_pool_size=0",
    "Communicator.connect": "self, n_attempts=5",
    "Communicator.get_attribute": "self, attribute",
    "Communicator.update_topology": "self",
    "Communicator.are_peers_pending": "self",
    "Communicator.optimize_topology": "self",
    "Communicator.sync_shared_state": "self, shared_state, strategy=ENFORCE_POPULAR",
    "Communicator.all_reduce": f"self, {REDUCE}",
    "Communicator.all_reduce_async": f"self, {REDUCE}",
    "Communicator.all_reduce_multiple_with_retry": "self, descriptors, *, max_in_flight=4",
    "MasterNode": "listen_address",
    "MasterNode.run": "self",
    "MasterNode.interrupt": "self",
    "SharedState": "tensor_infos",
    "SharedState.push_revision": "self",
    "AsyncReduceHandle.wait": "self",
    "ReduceInfo": "local_world_size, tx_bytes, rx_bytes",
    "SharedStateSyncInfo": "tx_bytes, rx_bytes",
    "ReduceOperandDescriptor": "datatype, distribution_hint=NONE",
    "QuantizationOptions": "quantized_datatype=UINT8, algorithm=MIN_MAX",
    "ReduceDescriptor": "count, op, tag, operand_descriptor, quantization_options",
    "ReduceOpDescriptor": "sendbuf_ptr, recvbuf_ptr, reduce_descriptor",
    "ReduceOpDescriptor.from_torch": "send, recv, reduce_descriptor",
    "ReduceOpDescriptor.from_numpy": "send, recv, reduce_descriptor",
    "TensorInfo.from_torch": "tensor, name, *, allow_content_inequality=False",
    "TensorInfo.from_numpy": "tensor, name, *, allow_content_inequality=False",
    "PCCLError.check": "result, func_name",
}


@pytest.mark.parametrize("words", NUMBERS, ids=lambda words: words.__name__)
def test_the_numbers_are_those_of_pccl_1(words: type[Enum]) -> None:
    wanted = {name: number for number, name in enumerate(NUMBERS[words].split()) if name != "-"}
    assert {word.name: word.value for word in words} == wanted


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_arguments_are_those_of_pccl_1(name: str) -> None:
    found: Any = pccl
    for part in name.split("."):
        found = getattr(found, part)
    given = []
    for parameter in inspect.signature(found).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in given:
            given.append("*")
        default = parameter.default
        shown = default.name if isinstance(default, Enum) else repr(default)
        given.append(parameter.name + (f"={shown}" if default is not parameter.empty else ""))
    assert ", ".join(given) == SIGNATURES[name]


def test_all_names_are_listed() -> None:
    assert set(pccl.__all__) >= {name.split(".")[0] for name in SIGNATURES}
    assert set(pccl.__all__) >= {words.__name__ for words in NUMBERS}
    assert pccl.cuda.is_cuda_available is False
    assert pccl.cuda.is_available() is False


def test_dtypes_are_those_of_numpy() -> None:
    for each in pccl.DataType:
        assert pccl.DataType.from_numpy_dtype(each.to_numpy_dtype()) is each
    with pytest.raises(ValueError, match="complex64"):
        pccl.DataType.from_numpy_dtype(np.dtype(np.complex64))


def test_an_error_says_its_result_the_call_and_why() -> None:
    pccl.PCCLError.check(0, "pcclConnect")
    with pytest.raises(pccl.PCCLError, match="pcclConnect failed with error: TOO_FEW_PEERS") as one:
        pccl.PCCLError.check(5, "pcclConnect")
    assert one.value.result is pccl.Result.TOO_FEW_PEERS
    with pytest.raises(pccl.PCCLError, match="the ndarray is read-only") as other:
        pccl.TensorInfo.from_numpy(np.frombuffer(b"12345678", np.float64), "x")
    assert other.value.result is pccl.Result.INVALID_ARGUMENT
    assert isinstance(other.value.__cause__, pccl_py.InvalidArgument)


def test_every_error_of_pccl_py_has_a_result() -> None:
    """A loss and a deadline have the result that the call says."""
    from pccl.words import told

    lost = {"Aborted", "Cancelled", "DeadlineExceeded", "InDoubt", "PcclError"}
    for name in pccl_py.__all__:
        kind = getattr(pccl_py, name)
        if not (isinstance(kind, type) and issubclass(kind, pccl_py.PcclError)):
            continue
        with pytest.raises(pccl.PCCLError) as caught, told("call", pccl.Result.SUCCESS):
            raise kind("why")
        assert (caught.value.result is pccl.Result.SUCCESS) == (name in lost), name


@pytest.mark.parametrize(
    ("datatype", "algorithm", "codec"),
    [
        ("UINT8", "MIN_MAX", "min_max_u8"),
        ("UINT8", "ZERO_POINT_SCALE", "zero_point_u8"),
        ("FLOAT", "NONE", "none"),
    ],
)
def test_quantization_has_a_codec(datatype: str, algorithm: str, codec: str) -> None:
    options = pccl.QuantizationOptions(
        pccl.DataType[datatype], pccl.QuantizationAlgorithm[algorithm]
    )
    assert options.codec == codec


def test_what_pccl_1_has_not_is_refused_in_its_words() -> None:
    from pccl.words import name_of

    options = pccl.QuantizationOptions(pccl.DataType.FLOAT16, pccl.QuantizationAlgorithm.MIN_MAX)
    with pytest.raises(
        pccl_py.InvalidArgument, match=r"DataType\.UINT8 with .*MIN_MAX, not DataType\.FLOAT16"
    ):
        _ = options.codec
    assert name_of(pccl.ReduceOp.AVG) == "avg"
    with pytest.raises(TypeError, match=r"such as ReduceOp\.AVG, not 'avg'"):
        name_of("avg")


def test_the_distribution_is_of_this_release_and_has_the_package(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    own = tomllib.loads((COMPAT / "pyproject.toml").read_text("utf-8"))["project"]
    release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert own["version"] == release["version"]
    assert own["dependencies"] == [f"pccl-py=={release['version']}"]
    assert release["optional-dependencies"]["compat"] == [f"pccl-compat=={release['version']}"]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=COMPAT, check=True, capture_output=True, env={**os.environ})
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"pccl_compat-[\d.]+-py3-none-any\.whl", wheel.name)
    files = zipfile.ZipFile(wheel)
    names = set(files.namelist())
    (scripts,) = [files.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    for program in ("ccoip_master", "pccl_master"):
        assert f"{program} = pccl.master:main\n" in scripts
    modules = {f"pccl/{file.name}" for file in (COMPAT / "pccl").glob("*.py")}
    assert names >= modules | {"pccl/py.typed"}
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pccl"}
